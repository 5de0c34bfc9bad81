// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of sched/scheduler.hpp: places, what they offer, and the search among them.

#include <skein/sched/detail/scheduler.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::sched::detail {

[[nodiscard]] inline gpu_set first_gpus(std::int64_t count) noexcept {
    gpu_set all;
    for (int i = 0; i < count && i < gpu_set::most; ++i) all.insert(i);
    return all;
}

SKEIN_INLINE std::uint32_t schedule_state::new_place() {
    if (free_places.empty()) {
        all_places.emplace_back();
        return static_cast<std::uint32_t>(all_places.size() - 1);
    }
    const auto p = free_places.back();
    free_places.pop_back();
    const bool listed = all_places[p].grown; // of the one before it
    all_places[p] = {};
    all_places[p].grown = listed;
    return p;
}

/// Numbers for the custom resources of a new place; requests that named one before can be compared
/// now.
SKEIN_INLINE void schedule_state::learn(const resources& total) {
    const auto before = dims;
    for (const auto& c : total.custom)
        if (custom_dims.emplace(c.name, dims).second) ++dims;
    if (dims == before) return;
    for (auto& s : shapes) number_shape(s);
    for (auto& [number, g] : groups)
        for (auto& b : g.bundles) b.all = needs_of(b.demand);
    for (auto& p : all_places)
        for (const auto& [domain, leaf] : p.in) {
            domain->now.reserve(1, dims);
            domain->ever.reserve(1, dims);
            if (domain->of != nullptr) domain->of->now.reserve(1, dims);
        }
}

SKEIN_INLINE result<void> schedule_state::add_place(place_id id, std::string name,
                                                    const resources& total,
                                                    std::vector<std::string> labels) {
    const auto where = fmt::format("place {} ({})", id, name);
    if (!id || place_of.contains(id))
        return error(id ? errc::already_exists : errc::invalid_argument,
                     id ? "a place with this number is there already" : "0 is no place")
            .with_where(where)
            .with_hint("remove_place() first, or choose another number");
    if (auto ok = check_total(total); !ok) {
        auto why = ok.error();
        return std::move(why).with_where(where);
    }
    const bool long_label = std::any_of(labels.begin(), labels.end(),
                                        [](const auto& l) { return l.empty() || l.size() > 256; });
    if (labels.size() > 64 || long_label)
        return error(errc::too_large, "more than 64 labels, or one that is empty or over 256 bytes")
            .with_where(where);
    learn(total);
    const auto p = new_place();
    auto& place = all_places[p];
    place.id = id;
    place.name = std::move(name);
    place.labels = std::move(labels);
    place.total = total;
    place_of.emplace(id, p);
    open_place(p, needs_of(total), first_gpus(total.gpu.in_steps() / amount::steps));
    join(everywhere, p);
    join_labelled(p);
    count_cluster(place, 1);
    ++places_version;
    offer(p);
    grow(p);
    return {};
}

/// Where those look for it who ask for one of its labels, or take the nodes in turn.
SKEIN_INLINE void schedule_state::join_labelled(std::uint32_t p) {
    const auto& labels = all_places[p].labels;
    for (auto& c : constraints) {
        const auto* label = c.labelled ? label_of(c.where) : nullptr;
        if (label != nullptr && std::find(labels.begin(), labels.end(), *label) != labels.end())
            join(*c.labelled, p);
        if (c.by_node) join_node(*c.by_node, p);
    }
}

SKEIN_INLINE bool schedule_state::set_labels(place_id id, std::vector<std::string> labels) {
    const auto found = place_of.find(id);
    if (found == place_of.end()) return false;
    auto& place = all_places[found->second];
    for (std::size_t i = 1; i < place.in.size(); ++i) leave(*place.in[i].first, place.in[i].second);
    place.in.resize(1); // the first is everywhere
    place.labels = std::move(labels);
    join_labelled(found->second);
    ++places_version;
    offer(found->second);
    grow(found->second);
    return true;
}

SKEIN_INLINE void schedule_state::open_place(std::uint32_t p, const needs& total, gpu_set gpus) {
    auto& place = all_places[p];
    place.alive = true;
    place.total_needs = total;
    place.gpus = gpus;
    place.now = room(total, gpus);
}

/// What a leaf has for new requests; nullptr: nothing, it is closed.
inline void set_offer(place_domain& d, std::uint32_t leaf, const key_list* keys) {
    if (keys != nullptr)
        d.now.set(leaf, *keys);
    else
        d.now.close(leaf);
    if (d.of == nullptr) return;
    const auto most = d.now.most_of_each();
    if (most[dim_order] == closed_key)
        d.of->now.close(d.node_leaf);
    else
        d.of->now.set(d.node_leaf, most);
}

SKEIN_INLINE void schedule_state::join(place_domain& d, std::uint32_t p) {
    std::uint32_t leaf;
    if (d.holes.empty()) {
        leaf = static_cast<std::uint32_t>(d.members.size());
        d.members.push_back(p);
    } else {
        leaf = d.holes.back();
        d.holes.pop_back();
        d.members[leaf] = p;
    }
    d.now.reserve(static_cast<std::uint32_t>(d.members.size()), dims);
    d.ever.reserve(static_cast<std::uint32_t>(d.members.size()), dims);
    auto& place = all_places[p];
    if (is_there(place)) d.ever.set(leaf, room(place.total_needs, place.gpus).keys());
    place.in.emplace_back(&d, leaf);
}

/// Into the places of its node.
SKEIN_INLINE void schedule_state::join_node(node_domain& all, std::uint32_t p) {
    const auto& labels = all_places[p].labels;
    const auto named = std::find_if(labels.begin(), labels.end(),
                                    [](const auto& l) { return l.starts_with("node="); });
    const auto node = named != labels.end() ? *named : fmt::format("place={}", all_places[p].id);
    const auto [known, is_new] = all.leaf_of.try_emplace(node, 0);
    if (is_new) {
        known->second = static_cast<std::uint32_t>(all.nodes.size());
        if (all.holes.empty()) {
            all.nodes.emplace_back();
        } else {
            known->second = all.holes.back();
            all.holes.pop_back();
        }
        all.now.reserve(static_cast<std::uint32_t>(all.nodes.size()), dims);
        auto& made = all.nodes[known->second] = std::make_unique<place_domain>();
        made->of = &all;
        made->node_leaf = known->second;
    }
    join(*all.nodes[known->second], p);
}

SKEIN_INLINE void schedule_state::leave(place_domain& d, std::uint32_t leaf) {
    set_offer(d, leaf, nullptr);
    d.ever.close(leaf);
    d.members[leaf] = no_index;
    d.holes.push_back(leaf);
    auto* const all = d.of;
    if (all == nullptr || d.holes.size() < d.members.size()) return;
    const auto node = d.node_leaf; // nothing is left of it
    std::erase_if(all->leaf_of, [&](const auto& n) { return n.second == node; });
    all->holes.push_back(node);
    all->nodes[node].reset();
}

SKEIN_INLINE void schedule_state::leave_all(std::uint32_t p) {
    for (const auto& [domain, leaf] : all_places[p].in) leave(*domain, leaf);
    all_places[p].in.clear();
}

SKEIN_INLINE std::vector<evicted> schedule_state::remove_place(place_id id) {
    std::vector<evicted> out;
    const auto found = place_of.find(id);
    if (found == place_of.end()) return out;
    const auto p = found->second;
    drop_reservation(p);
    all_places[p].alive = false;
    for (auto& [number, g] : groups) {
        bool broken = false;
        for (std::size_t b = 0; b < g.bundles.size(); ++b) {
            if (g.bundles[b].place == no_index || all_places[g.bundles[b].place].host != p)
                continue;
            lose_bundle(g, b, out);
            broken = true;
        }
        if (!broken) continue;
        group_is_broken(g, error(errc::peer_lost, fmt::format("{} has gone", all_places[p].name)));
    }
    evict(p, out);
    leave_all(p);
    count_cluster(all_places[p], -1);
    place_of.erase(id);
    free_places.push_back(p);
    ++places_version;
    groups_may_fit = true;
    return out;
}

SKEIN_INLINE bool schedule_state::drain(place_id id, bool on) {
    const auto found = place_of.find(id);
    if (found == place_of.end()) return false;
    if (all_places[found->second].draining == on) return true;
    all_places[found->second].draining = on;
    if (on) drop_reservation(found->second);
    for (std::uint32_t p = 0; p < all_places.size(); ++p) { // with the bundles that lie on it
        auto& place = all_places[p];
        if (!place.alive || (p != found->second && place.host != found->second)) continue;
        if (on && p != found->second) drop_reservation(p);
        const auto ever = room(place.total_needs, place.gpus);
        for (const auto& [domain, leaf] : place.in) {
            if (on) {
                domain->ever.close(leaf);
            } else {
                domain->ever.set(leaf, ever.keys());
            }
        }
        offer(p);
        grow(p);
    }
    ++places_version;
    return true;
}

/// It takes nothing for now, neither do the bundles that lie on it.
SKEIN_INLINE bool schedule_state::rest(place_id id, std::string why) {
    const auto found = place_of.find(id);
    if (found == place_of.end()) return false;
    auto& resting = all_places[found->second].resting;
    const bool was = !resting.empty(), is = !why.empty();
    resting = std::move(why);
    if (was == is) return true;
    for (std::uint32_t p = 0; p < all_places.size(); ++p) {
        if (!all_places[p].alive || (p != found->second && all_places[p].host != found->second))
            continue;
        if (is) drop_reservation(p);
        offer(p);
        grow(p);
    }
    return true;
}

/// It could hold requests, if not now.
SKEIN_INLINE bool schedule_state::is_there(const place_record& p) const {
    return p.alive && !p.draining &&
           (p.host == no_index || (all_places[p.host].alive && !all_places[p.host].draining));
}

SKEIN_INLINE bool schedule_state::is_open(const place_record& p) const {
    return is_there(p) && p.resting.empty() &&
           (p.host == no_index || all_places[p.host].resting.empty());
}

/// Works out what a place has for new requests, and tells the trees.
SKEIN_INLINE void schedule_state::offer(std::uint32_t p) {
    auto& place = all_places[p];
    if (!is_open(place)) {
        for (const auto& [domain, leaf] : place.in) set_offer(*domain, leaf, nullptr);
        return;
    }
    if (place.resuming_cpus == 0 && !place.kept.exists()) {
        for (const auto& [domain, leaf] : place.in) set_offer(*domain, leaf, &place.now.keys());
        return;
    }
    auto offered = place.now.keys();
    offered[dim_cpu] -= place.resuming_cpus; // before anyone new
    for (const auto& n : place.kept.kept) {
        if (n.dim == dim_gpu || n.dim == dim_share) {
            offered[dim_gpu] = offered[dim_share] = 0;
        } else if (n.dim < offered.size()) {
            offered[n.dim] -= n.least;
        }
    }
    for (const auto& [domain, leaf] : place.in) set_offer(*domain, leaf, &offered);
}

/// A place may have more room than before: what was blocked may fit.
SKEIN_INLINE void schedule_state::grow(std::uint32_t p) {
    if (all_places[p].host == no_index) groups_may_fit = true;
    if (all_places[p].grown) return;
    all_places[p].grown = true;
    grown.push_back(p);
}

/// Shares are parts of what all places have together.
SKEIN_INLINE void schedule_state::count_cluster(const place_record& p, int sign) {
    cluster.resize(dims);
    for (const auto& n : p.total_needs) cluster[n.dim] += sign * n.least;
    for (auto& j : jobs) {
        settle(j);
        find_rate(j);
    }
}

/// Where a search for a constraint goes; nullptr: it names one place.
SKEIN_INLINE place_domain* schedule_state::domain_of(const constraint_record& c) {
    if (is_anywhere(c.where)) return &everywhere;
    if (c.labelled) return c.labelled.get();
    if (const auto number = group_in(c.where); number != 0 && bundle_in(c.where) < 0) {
        const auto g = groups.find(number);
        return g == groups.end() ? nullptr : &g->second.domain;
    }
    return nullptr;
}

/// The one place of a constraint that names one, if it is there.
SKEIN_INLINE std::uint32_t schedule_state::single_place(const constraint& where) const {
    if (const auto number = group_in(where); number != 0) {
        const auto g = groups.find(number);
        const auto b = bundle_in(where);
        return g == groups.end() || b < 0 ? no_index
                                          : g->second.bundles[static_cast<std::size_t>(b)].place;
    }
    const auto found = place_of.find(place_in(where));
    return found == place_of.end() ? no_index : found->second;
}

SKEIN_INLINE bool schedule_state::is_avoided(const constraint& where, std::uint32_t p) const {
    const auto& not_these = avoided(where);
    return !not_these.empty() &&
           std::binary_search(not_these.begin(), not_these.end(), all_places[p].id);
}

/// Whether a constraint lets requests go to a place at all.
SKEIN_INLINE bool schedule_state::matches(const constraint& where, std::uint32_t p) const {
    const auto& place = all_places[p];
    if (is_avoided(where, p)) return false;
    if (const auto number = group_in(where); number != 0)
        return place.group == number && (bundle_in(where) < 0 || bundle_in(where) == place.bundle);
    if (place.host != no_index) return false;
    if (const auto* label = label_of(where))
        return std::find(place.labels.begin(), place.labels.end(), *label) != place.labels.end();
    return is_anywhere(where) || place.id == place_in(where);
}

/// Whether a place offers enough to the requests of a class.
SKEIN_INLINE bool schedule_state::allows(const class_record& c, std::uint32_t p) const {
    const auto& place = all_places[p];
    return place.alive &&
           place.in.front().first->now.fits(place.in.front().second, shapes[c.shape].all) &&
           matches(constraints[c.where].where, p);
}

/// Whether a place could hold it if it were empty; worked out again when places have changed.
SKEIN_INLINE bool schedule_state::is_feasible(std::uint32_t c) {
    auto& cls = classes[c];
    if (cls.checked == places_version) return cls.feasible;
    cls.checked = places_version;
    const auto& all = shapes[cls.shape].all;
    const auto& where = constraints[cls.where].where;
    if (const auto number = group_in(where); number != 0) {
        cls.feasible = false;
        const auto g = groups.find(number);
        if (g == groups.end()) return false;
        for (std::size_t b = 0; b < g->second.bundles.size() && !cls.feasible; ++b)
            cls.feasible = (bundle_in(where) < 0 || std::cmp_equal(bundle_in(where), b)) &&
                           bundle_room(g->second.bundles[b].all).fits(all);
        return cls.feasible;
    }
    if (const auto* domain = domain_of(constraints[cls.where])) {
        const auto found = domain->ever.first(
            all, [&](std::uint32_t leaf) { return !is_avoided(where, domain->members[leaf]); });
        cls.feasible = found != no_index;
    } else {
        const auto p = single_place(where);
        cls.feasible = p != no_index && is_there(all_places[p]) && !is_avoided(where, p) &&
                       room(all_places[p].total_needs, all_places[p].gpus).fits(all);
    }
    return cls.feasible;
}

/// The place for the first request of a queue, or no_index.
SKEIN_INLINE std::uint32_t schedule_state::find(const queue_record& q) {
    const auto& cls = classes[q.cls];
    const auto& shape = shapes[cls.shape];
    const auto& where = constraints[cls.where];
    if (q.reserved != no_index && fits_reserved(q.reserved)) return q.reserved;
    const auto* domain = domain_of(where);
    if (domain == nullptr) {
        const auto p = single_place(where.where);
        return p != no_index && allows(cls, p) ? p : no_index;
    }
    if (where.by_node) return find_in_turn(*where.by_node, shape, where.where);
    return find_in(*domain, shape, where.where);
}

SKEIN_INLINE std::uint32_t schedule_state::find_in(const place_domain& d, const shape_record& shape,
                                                   const constraint& where) const {
    const auto accept = [&](std::uint32_t leaf) { return !is_avoided(where, d.members[leaf]); };
    // What needs nothing would all be packed onto one place.
    const bool by_room = options.policy == placement::spread || shape.all.empty();
    const auto leaf =
        by_room ? d.now.most(shape.main, shape.all, accept) : d.now.first(shape.all, accept);
    return leaf == no_index ? no_index : d.members[leaf];
}

/// On the node behind the last one, or the next after it that has room. Whoever asks takes it.
SKEIN_INLINE std::uint32_t schedule_state::find_in_turn(node_domain& all, const shape_record& shape,
                                                        const constraint& where) const {
    auto found = no_index;
    const auto accept = [&](std::uint32_t leaf) {
        found = find_in(*all.nodes[leaf], shape, where);
        return found != no_index;
    };
    auto leaf = all.now.first_from(all.next, shape.all, accept);
    if (leaf == no_index) leaf = all.now.first(shape.all, accept); // from the beginning
    if (leaf == no_index) return no_index;
    all.next = leaf + 1;
    return found;
}

/// What is kept free is there.
SKEIN_INLINE bool schedule_state::fits_reserved(std::uint32_t p) const {
    const auto& place = all_places[p];
    return is_open(place) &&
           std::all_of(place.kept.kept.begin(), place.kept.kept.end(), [&](const need& n) {
               const auto pending = n.dim == dim_cpu ? place.resuming_cpus : 0;
               return place.now.at(n.dim) - pending >= n.least;
           });
}

/// The room of a bundle as if it lay on gpus 0, 1, ...
SKEIN_INLINE room schedule_state::bundle_room(const needs& all) {
    const auto whole = need_of(all, dim_gpu) / amount::steps;
    return {all, first_gpus(need_of(all, dim_share) != 0 ? 1 : whole)};
}

} // namespace skein::sched::detail

namespace skein::sched {

SKEIN_INLINE bool scheduler::rest(place_id id, std::string why) {
    return state_->rest(id, std::move(why));
}

} // namespace skein::sched
