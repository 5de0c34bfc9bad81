// SPDX-License-Identifier: Apache-2.0
#pragma once
// A driver's placement groups.
//
// A group waits, or is placed; it may lose places and wait again. One that no nodes could hold is
// impossible until there are others. Nobody holds it any more: it closes, which ends when its
// leases have gone.
//
//     struct pool : group_leases { ... };             // leases in groups
//     leased_groups groups(driver, head, pool, pause);
//     head_client head(..., groups);                  // hears of their places
//     groups.want(group);
//     groups.drop(group.number);

#include <skein/core/config.hpp>
#include <skein/cluster/detail/head_client.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/rt/worker_source.hpp>

#include <cstdint>
#include <map>
#include <string>

namespace skein::cluster::detail {

/// What groups ask of a driver's leases.
class group_leases {
public:
    /// False: all ends.
    [[nodiscard]] virtual bool is_filling() const = 0;
    /// The room of groups has changed.
    virtual void fill() = 0;
    /// Gives back those of the group that have nothing to do. True: none is left, and what was
    /// asked for there is forgotten.
    virtual bool leave_group(std::uint64_t group) = 0;

protected:
    group_leases() = default;
    group_leases(const group_leases&) = default;
    group_leases& operator=(const group_leases&) = default;
    ~group_leases() = default;
};

/// Belongs to one loop.
class leased_groups final : public group_events {
public:
    /// The first three must outlive it. `pause` between two looks at a group that closes.
    leased_groups(rt::runtime& driver, head_client& head, group_leases& leases, duration pause)
        : driver_(driver), head_(head), leases_(leases), pause_(pause) {}

    void want(const rt::worker_group& what);
    void drop(std::uint64_t number);
    /// Cpus that they take, in steps; those that cannot be had count for nothing.
    [[nodiscard]] std::int64_t cpus_in_steps(bool any_blocked) const noexcept;
    /// Of each that is impossible once. Without nodes nothing is said of any.
    void say_impossible();
    void say_nothing();
    [[nodiscard]] bool any_waits() const noexcept;
    /// Those that close are left as they are.
    [[nodiscard]] task<void> stop() { return stop_closing(this); }

    void on_group_placed(const group_placed& m) override;
    void on_group_waits(const group_waits& m) override;
    void on_group_refused(const group_refused& m) override;

private:
    struct group {
        sched::amount cpus; ///< of all its bundles
        bool placed = false, impossible = false, closing = false;
        std::string why; ///< no nodes could hold it; until it is said
        bool is_said = false;
    };

    static task<void> close_group(leased_groups* self, std::uint64_t number);
    static task<void> stop_closing(leased_groups* self);

    rt::runtime& driver_;
    head_client& head_;
    group_leases& leases_;
    duration pause_;
    std::map<std::uint64_t, group> groups_;
    scope closing_;
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/leased_groups.ipp>
#endif
