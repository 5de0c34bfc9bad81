// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of sched/scheduler.hpp: placement groups. A group is planned on copies of the
// rooms and then placed as a whole or not at all; a plan looks at every place once, which a single
// request never does.
//
// Which bundles go together on which places is bin packing: the plan takes the largest first and
// the first place that fits, and so may miss a fit that exists. strict_spread is exact.

#include <skein/sched/detail/scheduler.hpp>

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

namespace skein::sched::detail {

/// One try to find places for the bundles of a group that have none.
class group_plan {
public:
    group_plan(const group_record& g, std::vector<plan_room> rooms, bool all_bundles)
        : group_(g), rooms_(std::move(rooms)), chosen_(g.bundles.size(), no_index) {
        for (std::uint32_t b = 0; b < g.bundles.size(); ++b)
            if (all_bundles || g.bundles[b].place == no_index) order_.push_back(b);
        const auto size = [&](std::uint32_t b) {
            const auto& n = g.bundles[b].all;
            return std::array{need_of(n, dim_gpu), need_of(n, dim_share), need_of(n, dim_cpu),
                              need_of(n, dim_memory)};
        };
        std::sort(order_.begin(), order_.end(), [&](auto a, auto b) {
            const auto x = size(a), y = size(b);
            return x != y ? x > y : a < b;
        });
    }

    /// The place of each bundle that had none; empty: there is no way.
    [[nodiscard]] std::vector<std::uint32_t> make() {
        bool found = false;
        switch (group_.strategy) {
        case group_strategy::strict_pack: found = on_one(); break;
        case group_strategy::pack: found = on_one() || greedy(true, false); break;
        case group_strategy::spread: found = greedy(false, false) || greedy(true, false); break;
        case group_strategy::strict_spread: found = greedy(false, true) || match(); break;
        }
        if (!found) chosen_.clear();
        return std::move(chosen_);
    }

private:
    bool on_one() {
        for (const auto& candidate : rooms_) {
            auto r = candidate.room;
            const bool all = std::all_of(order_.begin(), order_.end(), [&](auto b) {
                if (!r.fits(group_.bundles[b].all)) return false;
                r.take(group_.bundles[b].all);
                return true;
            });
            if (!all) continue;
            for (const auto b : order_) chosen_[b] = candidate.place;
            return true;
        }
        return false;
    }
    /// Largest first; together: rather on places that have one already, else rather not, or never.
    bool greedy(bool together, bool never_together) {
        auto rooms = rooms_;
        std::fill(chosen_.begin(), chosen_.end(), no_index);
        for (const auto b : order_) {
            const auto& all = group_.bundles[b].all;
            const auto main = all.empty() ? dim_order : all.front().dim;
            plan_room* best = nullptr;
            for (auto& r : rooms) {
                if ((never_together && r.used) || !r.room.fits(all)) continue;
                if (best == nullptr || (r.used != best->used && r.used == together) ||
                    (r.used == best->used && !together && r.room.at(main) > best->room.at(main)))
                    best = &r;
            }
            if (best == nullptr) return false;
            best->room.take(all);
            best->used = true;
            chosen_[b] = best->place;
        }
        return true;
    }
    /// Bundles and places in pairs: augmenting paths (Kuhn's algorithm), exact. Breadth first,
    /// without recursion.
    bool match() {
        std::vector<std::uint32_t> owner(rooms_.size(), no_index); // the bundle on a room
        for (const auto start : order_) {
            std::vector<std::uint32_t> reached_from(rooms_.size(), no_index); // the bundle before
            std::vector<std::uint32_t> line{start};
            std::vector<std::uint32_t> room_of(group_.bundles.size(), no_index);
            for (std::uint32_t r = 0; r < rooms_.size(); ++r)
                if (owner[r] != no_index) room_of[owner[r]] = r;
            auto end = no_index;
            for (std::size_t i = 0; i < line.size() && end == no_index; ++i)
                for (std::uint32_t r = 0; r < rooms_.size(); ++r) {
                    if (rooms_[r].used || reached_from[r] != no_index ||
                        !rooms_[r].room.fits(group_.bundles[line[i]].all))
                        continue;
                    reached_from[r] = line[i];
                    if (owner[r] == no_index) {
                        end = r;
                        break;
                    }
                    line.push_back(owner[r]);
                }
            if (end == no_index) return false;
            for (auto r = end; r != no_index;) { // each bundle of the path moves one room on
                const auto b = reached_from[r];
                owner[r] = b;
                r = b == start ? no_index : room_of[b];
            }
        }
        for (std::uint32_t r = 0; r < rooms_.size(); ++r)
            if (owner[r] != no_index) chosen_[owner[r]] = rooms_[r].place;
        return true;
    }

    const group_record& group_;
    std::vector<plan_room> rooms_;
    std::vector<std::uint32_t> order_, chosen_;
};

/// Copies of the rooms of all places that may take bundles: as they are, as they may become, or
/// empty.
///   but   leaves this one out
SKEIN_INLINE std::vector<plan_room> schedule_state::rooms_for(const group_record& g, outlook when,
                                                              std::uint32_t but) const {
    std::vector<plan_room> rooms;
    for (std::uint32_t p = 0; p < all_places.size(); ++p) {
        const auto& place = all_places[p];
        const bool may_be = when == outlook::ever ? is_there(place) : is_open(place);
        if (place.host != no_index || !may_be || p == but) continue;
        plan_room r;
        r.place = p;
        const bool others = place.kept.exists() && place.kept.group != g.id.value();
        if (when == outlook::ever) {
            r.room = room(place.total_needs, place.gpus);
        } else if (when == outlook::soon) {
            if (others) continue;
            r.room = obtainable(place);
        } else {
            r.room = place.now;
            r.room.add_cpus(-place.resuming_cpus);
            if (others) r.room.withhold(place.kept.kept);
        }
        if (when != outlook::ever)
            r.used = std::any_of(g.bundles.begin(), g.bundles.end(), [&](const auto& b) {
                return b.place != no_index && all_places[b.place].host == p;
            });
        rooms.push_back(std::move(r));
    }
    return rooms;
}

SKEIN_INLINE std::vector<std::uint32_t> schedule_state::plan(const group_record& g, outlook when,
                                                             std::uint32_t but) const {
    return group_plan(g, rooms_for(g, when, but), when == outlook::ever).make();
}

SKEIN_INLINE result<placement_group_id> schedule_state::create_group(group_request g) {
    if (g.bundles.empty() || g.bundles.size() > 4096)
        return error(errc::invalid_argument,
                     fmt::format("a placement group of {} bundles", g.bundles.size()))
            .with_hint("1 to 4096");
    for (std::size_t b = 0; b < g.bundles.size(); ++b)
        if (auto ok = check_demand(g.bundles[b]); !ok) {
            auto why = ok.error();
            return std::move(why).with_where(fmt::format("bundle {}", b));
        }
    group_record r;
    r.id = placement_group_id(last_group + 1);
    r.job = g.job;
    r.job_index = job_for(g.job);
    r.strategy = g.strategy;
    r.tag = g.tag;
    r.since = grants;
    r.fails = g.fail_if_infeasible;
    for (auto& demand : g.bundles) {
        group_record::bundle b;
        b.all = needs_of(demand);
        b.demand = std::move(demand);
        r.bundles.push_back(std::move(b));
    }
    if (r.fails && plan(r, outlook::ever).empty()) return missing(r);
    const auto id = r.id;
    ++last_group;
    auto& kept = groups.emplace(last_group, std::move(r)).first->second;
    check_group(kept);
    groups_may_fit = true;
    return id;
}

/// Says so when no set of places could hold a group.
SKEIN_INLINE void schedule_state::check_group(group_record& g) {
    if (!plan(g, outlook::ever).empty()) {
        g.told = told_state::nothing;
        return;
    }
    notice n;
    n.what = g.fails ? notice::kind::refused : notice::kind::group_infeasible;
    n.group = g.id;
    n.tag = g.tag;
    n.why = missing(g);
    if (g.fails) {
        const auto id = g.id;
        const auto gone = remove_group(id);
        for (const auto& e : gone) { // its last bundles held these; nobody asked for the removal
            notice held;
            held.id = e.id;
            held.tag = e.tag;
            held.group = id;
            held.why = n.why;
            notices.push_back(std::move(held));
        }
    } else if (!is_news(g.told)) {
        return;
    }
    notices.push_back(std::move(n));
}

/// Places the bundles that have no place: all of them, or none.
SKEIN_INLINE void schedule_state::place_group(group_record& g) {
    const auto chosen = plan(g, outlook::now);
    if (chosen.empty()) return;
    drop_reservations(g);
    for (std::size_t b = 0; b < g.bundles.size(); ++b) {
        if (g.bundles[b].place != no_index) continue;
        const auto gpus = all_places[chosen[b]].now.take(g.bundles[b].all);
        place_bundle(g, b, chosen[b], gpus);
    }
    group_is_placed(g);
}

/// Its room has been taken from the host.
SKEIN_INLINE void schedule_state::place_bundle(group_record& g, std::size_t b, std::uint32_t host,
                                               gpu_set gpus) {
    const auto p = new_place();
    auto& place = all_places[p]; // new_place() may have moved all
    const auto& under = all_places[host];
    place.id = under.id;
    place.name = under.name;
    place.total = g.bundles[b].demand;
    place.host = host;
    place.group = g.id.value();
    place.bundle = static_cast<int>(b);
    open_place(p, g.bundles[b].all, gpus);
    join(g.domain, p);
    g.bundles[b].place = p;
    charge(g.job_index, g.bundles[b].all, 1, true);
    offer(host);
    offer(p);
    grow(p);
}

SKEIN_INLINE void schedule_state::group_is_placed(group_record& g) {
    g.waits = false;
    ++grants;
    notice n;
    n.what = notice::kind::group_placed;
    n.group = g.id;
    n.tag = g.tag;
    for (const auto& b : g.bundles) {
        n.bundles.push_back(all_places[b.place].id);
        n.gpus.push_back(all_places[b.place].gpus);
    }
    n.why = error(errc::unknown, "placed");
    notices.push_back(std::move(n));
}

SKEIN_INLINE bool schedule_state::adopt_bundle(placement_group_id id, std::size_t bundle,
                                               place_id at, gpu_set gpus) {
    const auto found = groups.find(id.value());
    const auto host = place_of.find(at);
    if (found == groups.end() || host == place_of.end()) return false;
    auto& g = found->second;
    if (bundle >= g.bundles.size() || g.bundles[bundle].place != no_index) return false;
    if (!all_places[host->second].now.take_these(g.bundles[bundle].all, gpus)) return false;
    place_bundle(g, bundle, host->second, gpus);
    if (std::all_of(g.bundles.begin(), g.bundles.end(),
                    [](const auto& b) { return b.place != no_index; }))
        group_is_placed(g);
    return true;
}

SKEIN_INLINE void schedule_state::place_groups() {
    if (!std::exchange(groups_may_fit, false)) return;
    for (auto& [number, g] : groups)
        if (g.waits && g.told == told_state::nothing) place_group(g);
}

SKEIN_INLINE void schedule_state::lose_bundle(group_record& g, std::size_t bundle,
                                              std::vector<evicted>& into) {
    const auto p = g.bundles[bundle].place;
    const auto host = all_places[p].host;
    const auto gpus = all_places[p].gpus;
    drop_reservation(p);
    all_places[p].alive = false;
    evict(p, into);
    leave_all(p);
    free_places.push_back(p);
    g.bundles[bundle].place = no_index;
    charge(g.job_index, g.bundles[bundle].all, -1, true);
    all_places[host].now.give(g.bundles[bundle].all, gpus);
    offer(host);
    grow(host);
}

SKEIN_INLINE void schedule_state::move_bundles(place_id from) {
    const auto host = place_of.find(from);
    if (host == place_of.end()) return;
    std::vector<evicted> none;
    for (auto& [number, g] : groups) {
        std::vector<std::size_t> empty;
        bool all = true;
        for (std::size_t b = 0; b < g.bundles.size(); ++b) {
            if (g.bundles[b].place == no_index) continue;
            const auto& place = all_places[g.bundles[b].place];
            if (place.host != host->second) continue;
            if (place.held == 0)
                empty.push_back(b);
            else
                all = false;
        }
        if (empty.empty() || (!all && g.strategy == group_strategy::strict_pack) ||
            plan(g, outlook::ever, host->second).empty())
            continue;
        for (const auto b : empty) lose_bundle(g, b, none);
        ++places_version;
        group_is_broken(g, error(errc::closed, fmt::format("{} {}", all_places[host->second].name,
                                                           all_places[host->second].draining
                                                               ? "is drained"
                                                               : "takes nothing for now")));
    }
}

/// Some of its bundles have no place any more.
SKEIN_INLINE void schedule_state::group_is_broken(group_record& g, error why) {
    drop_reservations(g);
    g.waits = true;
    g.since = grants;
    groups_may_fit = true;
    notice n;
    n.what = notice::kind::group_broken;
    n.group = g.id;
    n.tag = g.tag;
    for (const auto& b : g.bundles)
        n.bundles.push_back(b.place == no_index ? place_id() : all_places[b.place].id);
    n.why = std::move(why);
    notices.push_back(std::move(n));
}

SKEIN_INLINE std::vector<evicted> schedule_state::remove_group(placement_group_id id) {
    std::vector<evicted> out;
    const auto found = groups.find(id.value());
    if (found == groups.end()) return out;
    drop_reservations(found->second);
    for (std::size_t b = 0; b < found->second.bundles.size(); ++b)
        if (found->second.bundles[b].place != no_index) lose_bundle(found->second, b, out);
    refuse_queues_of(id);
    groups.erase(found);
    return out;
}

SKEIN_INLINE void schedule_state::refuse_queues_of(placement_group_id id) {
    for (std::uint32_t q = 0; q < all_queues.size(); ++q) {
        const auto& queue = all_queues[q];
        if (queue.cls == no_index ||
            group_in(constraints[classes[queue.cls].where].where) != id.value())
            continue;
        if (queue.queued != 0)
            refuse(q, error(errc::closed, fmt::format("placement group {} was removed", id)));
    }
}

/// Keeps a set of places free for a group, where it would fit once what runs there has ended.
SKEIN_INLINE void schedule_state::reserve_for(group_record& g) {
    g.since = grants;
    const auto chosen = plan(g, outlook::soon);
    if (chosen.empty()) return;
    for (std::size_t b = 0; b < chosen.size(); ++b) {
        if (chosen[b] == no_index) continue;
        auto& kept = all_places[chosen[b]].kept;
        kept.group = g.id.value();
        for (const auto& n : g.bundles[b].all) {
            const auto same = std::find_if(kept.kept.begin(), kept.kept.end(),
                                           [&](const need& k) { return k.dim == n.dim; });
            if (same == kept.kept.end()) {
                kept.kept.push_back(n);
            } else if (n.dim == dim_share) {
                same->least = std::max(same->least, n.least);
            } else {
                same->least += n.least;
            }
        }
        offer(chosen[b]);
    }
    g.reserved = true;
    ++reservations;
}

SKEIN_INLINE bool schedule_state::keep_room(placement_group_id id) {
    const auto found = groups.find(id.value());
    if (found == groups.end() || !found->second.waits || found->second.told != told_state::nothing)
        return false;
    if (!found->second.reserved) reserve_for(found->second);
    return found->second.reserved;
}

SKEIN_INLINE void schedule_state::drop_reservations(group_record& g) {
    if (!std::exchange(g.reserved, false)) return;
    g.since = grants;
    for (std::uint32_t p = 0; p < all_places.size(); ++p) {
        if (all_places[p].kept.group != g.id.value()) continue;
        all_places[p].kept = {};
        offer(p);
        grow(p);
    }
}

} // namespace skein::sched::detail
