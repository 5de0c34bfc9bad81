// SPDX-License-Identifier: Apache-2.0
#pragma once
// How busy a node was: each second of the last hour, each 15 seconds of the last day. Bounded: 24
// bytes for each of 9,360 points.
//
//     cluster::load_history h;
//     h.add(load, unix_seconds);
//     const auto c = h.since(unix_seconds - 600, 300);     // the last ten minutes, 300 points at most

#include <skein/core/config.hpp>
#include <skein/proc/host_load.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace skein::cluster {

/// How busy a node was at a moment, or on the mean of a stretch that ends there. What nobody knows
/// is less than zero.
struct load_point {
    std::uint32_t at = 0;                                    ///< seconds since 1970
    float cpu = -1;                                          ///< 0 to 1
    float memory_used = -1, disk_used = -1;                  ///< bytes
    float network_receive_rate = -1, network_send_rate = -1; ///< bytes a second
};

/// Points in the order of their time.
struct load_curve {
    std::uint32_t every_s = 1; ///< each is the mean of so many seconds
    std::vector<load_point> points;
};

/// What a node has told a head last of how busy it is.
struct node_usage {
    proc::host_load load;
    std::int64_t at = 0;      ///< seconds since 1970, by the head's clock
    std::uint64_t number = 0; ///< head::usage_changes() when it was told
    bool is_there = false;
};

/// Of one node.
class load_history {
public:
    static constexpr std::size_t most_seconds = 3600;
    static constexpr std::size_t most_stretches = 24 * 60 * 4;
    static constexpr std::uint32_t stretch_s = 15;
    /// Of one answer.
    static constexpr std::size_t most_points = 4096;

    /// A moment that is not after the last one is left out: clocks are set back.
    void add(const proc::host_load& load, std::int64_t unix_s);

    /// What came after `unix_s`, in at most so many points: by the second if that is known for all
    /// of it, else by 15 seconds; of more of them the means of equal stretches of time, which begin
    /// at the same moments however often they are asked for.
    [[nodiscard]] load_curve since(std::int64_t unix_s, std::size_t most = most_points) const;

    /// Of the last one; 0: there is none.
    [[nodiscard]] std::int64_t last() const noexcept { return last_; }
    [[nodiscard]] std::size_t points() const noexcept {
        return seconds_.points.size() + stretches_.points.size();
    }

private:
    /// The newest ones, in a circle once there are so many.
    struct ring {
        std::size_t most = 0, oldest = 0;
        std::vector<load_point> points;

        void add(const load_point& p);
        [[nodiscard]] const load_point& at(std::size_t i) const noexcept {
            return points[(oldest + i) % points.size()];
        }
        /// Those after that moment.
        void copy(std::int64_t unix_s, std::vector<load_point>& into) const;
    };

    ring seconds_{most_seconds, 0, {}}, stretches_{most_stretches, 0, {}};
    std::vector<load_point> open_;        ///< of the stretch that is not over
    std::int64_t last_ = 0, dropped_ = 0; ///< of the seconds
};

namespace detail {

/// The means of stretches of `width` seconds, which begin at multiples of it.
[[nodiscard]] std::vector<load_point> means_of(const std::vector<load_point>& points,
                                               std::uint32_t width);

} // namespace detail
} // namespace skein::cluster

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/load_history.ipp>
#endif
