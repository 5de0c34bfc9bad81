// SPDX-License-Identifier: Apache-2.0
#pragma once
// The placement groups of one host: all their bundles are on it, in its scheduler. Part of
// detail/local_workers.ipp.

#include <skein/rt/worker_source.hpp>
#include <skein/sched/scheduler.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::program::detail {

class local_groups {
public:
    struct group {
        rt::worker_group what;
        sched::placement_group_id id; ///< of the scheduler; none: not asked for yet
        std::uint32_t cores = 0;
        bool placed = false, closing = false;
    };

    explicit local_groups(sched::scheduler& host) : host_(host) {}

    void want(const rt::worker_group& what) {
        auto& made = all_[what.number];
        made.what = what;
        sched::amount cpus;
        for (const auto& b : what.bundles) cpus += b.cpu;
        made.cores = whole_cores(cpus);
    }
    void drop(std::uint64_t number) {
        if (const auto found = all_.find(number); found != all_.end()) found->second.closing = true;
    }
    [[nodiscard]] group* find(std::uint64_t number) {
        const auto found = all_.find(number);
        return found == all_.end() ? nullptr : &found->second;
    }
    [[nodiscard]] bool any_waits() const {
        for (const auto& [number, g] : all_)
            if (!g.placed && !g.closing) return true;
        return false;
    }
    /// Those that nobody holds any more give their room back when their last worker has ended;
    /// gives them. Of the workers for a demand it knows this, `what`, how many there are, `alive`,
    /// and what is asked for, `asked`.
    template <class Demands>
    [[nodiscard]] std::vector<group> close(Demands& demands) {
        std::vector<group> closed;
        for (const auto& [number, g] : all_) {
            if (!g.closing) continue;
            const auto is_of = [&n = g.what.number](const auto& k) {
                return k.second.what.group == n;
            };
            bool any = false;
            for (auto& k : demands) {
                if (!is_of(k)) continue;
                if (k.second.asked) (void)host_.cancel(std::exchange(k.second.asked, {}));
                any = any || k.second.alive > 0;
            }
            if (any) continue;
            std::erase_if(demands, is_of);
            if (g.id) (void)host_.remove_group(g.id);
            closed.push_back(g);
        }
        for (const auto& g : closed) all_.erase(g.what.number);
        return closed;
    }

    /// Asks the scheduler for new ones; gives those that this host can never hold.
    [[nodiscard]] std::vector<std::pair<std::uint64_t, error>> ask() {
        std::vector<std::pair<std::uint64_t, error>> refused;
        for (auto& [number, g] : all_) {
            if (g.id || g.closing) continue;
            sched::group_request r;
            r.strategy = g.what.strategy;
            r.bundles = g.what.bundles;
            r.tag = number;
            r.fail_if_infeasible = true;
            const auto asked = host_.create_group(std::move(r));
            if (asked) {
                g.id = *asked;
            } else {
                refused.emplace_back(number, told(g.what, asked.error()));
            }
        }
        for (const auto& [number, why] : refused) all_.erase(number);
        return refused;
    }
    /// Where a demand in a group may go; nothing: there is no such group (any more).
    [[nodiscard]] std::optional<sched::constraint> where(const rt::worker_demand& what) {
        const auto* const g = find(what.group);
        if (g == nullptr || !g->id || g->closing) return std::nullopt;
        return sched::constraint::in(g->id, what.bundle);
    }

private:
    [[nodiscard]] static error told(const rt::worker_group& what, const error& why) {
        if (what.strategy == sched::group_strategy::strict_spread && what.bundles.size() > 1)
            return error(errc::exhausted,
                         fmt::format("placement group {}: strict_spread wants a node for each of "
                                     "its {} bundles, and the workers of this host are one",
                                     what.number, what.bundles.size()))
                .with_hint("use spread, or run on a cluster");
        return why;
    }

    sched::scheduler& host_;
    std::map<std::uint64_t, group> all_;
};

} // namespace skein::program::detail
