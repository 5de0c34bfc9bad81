// SPDX-License-Identifier: Apache-2.0
#pragma once
// Workers that did not start: what people are told, when another is asked for, and when none comes
// any more.
//
// Failures are counted in a row: a worker that comes ends the row. Three and more of them, so long
// after the first and with no worker there, are for good.
//
//     start_failures failures(start_within, first_pause);
//     const auto next = failures.failed({node, how, has_run}, any_worker, now);
//     if (next.gives_up) ...                 // else another after next.pause
//     failures.came(node);

#include <skein/core/config.hpp>
#include <skein/core/error.hpp>
#include <skein/core/time.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace skein::cluster::detail {

/// How the text begins that says why; on which node, if it is known.
[[nodiscard]] std::string failed_start_text(const std::string& node);

struct failed_start {
    const std::string& node; ///< its name; empty: none was found
    const std::string& how;
    bool has_run = false; ///< and has ended before the driver saw it
};

struct after_failed_start {
    std::optional<error> gives_up;
    duration pause{};
};

class start_failures {
public:
    start_failures(duration start_within, duration first_pause)
        : start_within_(start_within), first_pause_(first_pause) {}

    [[nodiscard]] after_failed_start failed(const failed_start& one, bool any_worker,
                                            time_point now);
    /// A node could not for a reason of its own: it rests, and others are asked.
    void on_other_node(const std::string& node, const std::string& how);
    void came(const std::string& node);

private:
    static constexpr std::size_t most_reasons = 256;

    /// How often it was said so far, with this time; ever fewer of many are.
    [[nodiscard]] std::uint64_t count(const std::string& reason);

    duration start_within_, first_pause_;
    int in_a_row_ = 0;
    time_point first_{}; ///< of these
    std::map<std::string, std::uint64_t> reasons_;
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/start_failures.ipp>
#endif
