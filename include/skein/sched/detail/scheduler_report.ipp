// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of sched/scheduler.hpp: what people read. Why a request waits, what a demand
// lacks, listings.

#include <skein/core/known_names.hpp>
#include <skein/sched/detail/scheduler.hpp>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace skein::sched {

namespace detail {

inline constexpr std::string_view node_names = "node="; ///< which each node has, before its name

SKEIN_INLINE std::string schedule_state::amount_text(std::uint32_t dim, std::int64_t n) const {
    resources r;
    switch (dim) {
    case dim_cpu: return fmt::format("cpu={}", to_string(amount::of_steps(n)));
    case dim_gpu:
    case dim_share: return fmt::format("gpu={}", to_string(amount::of_steps(n)));
    case dim_memory:
        r.memory = static_cast<std::uint64_t>(std::max<std::int64_t>(n, 0));
        return r.memory == 0 ? "memory=0" : to_string(r);
    default: break;
    }
    for (const auto& [name, d] : custom_dims) {
        if (d != dim) continue;
        const auto value = to_string(amount::of_steps(n));
        return is_inner_resource(name) ? fmt::format("{} {}", value, name.substr(1))
                                       : fmt::format("{}={}", name, value);
    }
    return "";
}

SKEIN_INLINE std::string schedule_state::where_text(const constraint& where) const {
    std::string s;
    if (const auto number = group_in(where); number != 0) {
        s = bundle_in(where) < 0
                ? fmt::format("in group {}", number)
                : fmt::format("in bundle {} of group {}", bundle_in(where), number);
    } else if (const auto* label = label_of(where)) {
        s = label->starts_with(node_names)
                ? fmt::format("on {}", label->substr(node_names.size()))
                : fmt::format("on {}s labelled {}", options.place_is, *label);
    } else if (!is_anywhere(where)) {
        const auto p = single_place(where);
        s = p == no_index ? fmt::format("on {} {}", options.place_is, place_in(where))
                          : fmt::format("on {}", all_places[p].name);
    } else if (spreads(where)) {
        s = "spread";
    }
    if (!avoided(where).empty())
        s += fmt::format("{}without {} {}s", s.empty() ? "" : ", ", avoided(where).size(),
                         options.place_is);
    return s;
}

/// What the places of a class lack most: "gpu=2: worker-3 has most, gpu=1". ever: if they were
/// empty.
SKEIN_INLINE std::string schedule_state::best_place(const class_record& c, bool ever) const {
    const auto& shape = shapes[c.shape];
    const auto& where = constraints[c.where].where;
    std::string last = fmt::format("no {} is there", options.place_is);
    const auto most_of = [&](const need& n, std::int64_t& most) {
        auto best = no_index;
        for (std::uint32_t p = 0; p < all_places.size(); ++p) {
            if (!(ever ? is_there(all_places[p]) : is_open(all_places[p])) || !matches(where, p))
                continue;
            const auto& place = all_places[p];
            const auto has = ever ? room(place.total_needs, place.gpus).at(n.dim)
                                  : place.in.front().first->now.at(place.in.front().second, n.dim);
            if (best != no_index && has <= most) continue;
            best = p;
            most = has;
        }
        return best;
    };
    for (const auto& n : shape.all) {
        std::int64_t most = 0;
        const auto p = most_of(n, most);
        if (p == no_index) break;
        if (most < n.least) {
            if (n.dim == no_index) {
                for (const auto& r : shape.demand.custom)
                    if (!custom_dims.contains(r.name))
                        return fmt::format("no {} has ever had {} ({})", options.place_is, r.name,
                                           resources_there());
            }
            return fmt::format("{} has most{}, {}", all_places[p].name, ever ? "" : " free",
                               amount_text(n.dim, std::max<std::int64_t>(most, 0)));
        }
        last = fmt::format("no {} has all of it together", options.place_is);
    }
    return last;
}

/// What the places for a constraint have when they are empty: "n1 has cpu=8; n2 has cpu=2,gpu=1".
SKEIN_INLINE std::string schedule_state::totals_text(const constraint& where) const {
    constexpr std::size_t most = 4;
    std::string s;
    std::size_t n = 0;
    for (std::uint32_t p = 0; p < all_places.size(); ++p) {
        const auto& place = all_places[p];
        if (!is_there(place) || !matches(where, p) || ++n > most) continue;
        s += fmt::format("{}{} has {}", n == 1 ? "" : "; ", place.name,
                         place.total.empty() ? "nothing" : to_string(place.total));
    }
    return n > most ? fmt::format("{}; {} more", s, n - most) : s;
}

/// For an error about a name that there is not.
SKEIN_INLINE std::string schedule_state::names_there() const {
    std::set<std::string_view> all;
    for (const auto& place : all_places)
        for (const std::string_view label : place.labels)
            if (is_there(place) && label.starts_with(node_names))
                all.insert(label.substr(std::string_view(node_names).size()));
    return known_names(all, "none is there");
}
/// The same of labels.
SKEIN_INLINE std::string schedule_state::labels_there() const {
    std::set<std::string_view> all;
    for (const auto& place : all_places)
        for (const std::string_view label : place.labels)
            if (is_there(place) && !label.starts_with(node_names)) all.insert(label);
    return known_names(all, "none has one");
}

/// The same of the resources with names of their own.
SKEIN_INLINE std::string schedule_state::resources_there() const {
    std::set<std::string_view> all;
    for (const auto& place : all_places)
        for (const auto& r : place.total.custom)
            if (is_there(place) && !is_inner_resource(r.name)) all.insert(r.name);
    return known_names(all, "none has a resource of its own name");
}

/// Why there is no place for a constraint, with what to do; nothing: there are some, whatever they
/// have.
SKEIN_INLINE std::optional<error> schedule_state::nobody_matches(const class_record& c) const {
    const auto& where = constraints[c.where].where;
    const auto& word = options.place_is;
    bool any = false;
    for (std::uint32_t p = 0; p < all_places.size(); ++p) {
        if (!all_places[p].alive || !matches(where, p)) continue;
        if (is_there(all_places[p])) return std::nullopt;
        any = true;
    }
    const auto* label = label_of(where);
    const bool by_name = label != nullptr && label->starts_with(node_names);
    const auto because = [&](std::string why, std::string hint) {
        return error(errc::exhausted, fmt::format("{}: {}", asks_text(c), why))
            .with_hint(std::move(hint));
    };
    if (any)
        return because(by_name ? "it is drained" : "all that are there are drained",
                       fmt::format("take a drain back, or add a {}", word));
    if (by_name)
        return because(fmt::format("no {} of that name is there; {}", word, names_there()),
                       "name one that is there, or add it");
    if (label != nullptr)
        return because(fmt::format("no {} has that label; {}", word, labels_there()),
                       fmt::format("name another label, or add a {} that has it", word));
    return because(fmt::format("no {}{} is there", is_anywhere(where) ? "" : "such ", word),
                   "add one that has it");
}

/// "asks for cpu=2 on n1"
SKEIN_INLINE std::string schedule_state::asks_text(const class_record& c) const {
    const auto& demand = shapes[c.shape].demand;
    const auto place = where_text(constraints[c.where].where);
    return fmt::format("asks for {}{}{}", demand.empty() ? "room" : to_string(demand),
                       place.empty() ? "" : " ", place);
}

SKEIN_INLINE error schedule_state::missing(const class_record& c) const {
    const auto& where = constraints[c.where].where;
    if (group_in(where) != 0)
        return error(errc::exhausted, asks_text(c) + ", whose bundles are smaller")
            .with_hint("make the bundles larger, or lower the demand");
    if (auto nobody = nobody_matches(c)) return *nobody;
    auto why = best_place(c, true);
    if (why.starts_with("no ")) why += ": " + totals_text(where);
    return error(errc::exhausted, fmt::format("{}, no {} could ever hold it: {}", asks_text(c),
                                              options.place_is, why))
        .with_hint(fmt::format("lower the demand, or add a {} that has it", options.place_is));
}

SKEIN_INLINE error schedule_state::missing(const group_record& g) const {
    std::string what;
    for (std::size_t b = 0; b < g.bundles.size() && b < 8; ++b)
        what += fmt::format("{}{{{}}}", b == 0 ? "" : " ", to_string(g.bundles[b].demand));
    if (g.bundles.size() > 8) what += fmt::format(" and {} more", g.bundles.size() - 8);
    const auto& word = options.place_is;
    auto why = fmt::format("no set of {}s could hold all of them", word);
    std::size_t open = 0;
    std::string largest;
    resources most;
    for (const auto& p : all_places) {
        if (!is_there(p) || p.host != no_index) continue;
        ++open;
        if (!largest.empty() && p.total <= most) continue;
        most = p.total;
        largest = p.name;
    }
    if (g.strategy == group_strategy::strict_spread && open < g.bundles.size())
        why = fmt::format("each wants a {} of its own, and {} are there", word, open);
    else if (open != 0)
        why += fmt::format("; the largest of {} is {} with {}", open, largest, to_string(most));
    const auto number = g.tag != 0 ? g.tag : g.id ? g.id.value() : last_group + 1;
    return error(errc::exhausted,
                 fmt::format("placement group {} asks for {}: {}", number, what, why))
        .with_hint(fmt::format("make the bundles smaller, or add {}s", word));
}

SKEIN_INLINE std::string schedule_state::why_waits(const queue_record& q) const {
    const auto& cls = classes[q.cls];
    const auto& shape = shapes[cls.shape];
    const auto place = where_text(constraints[cls.where].where);
    const auto asked =
        fmt::format("{}{}{}", shape.demand.empty() ? "room" : to_string(shape.demand),
                    place.empty() ? "" : " ", place);
    switch (q.state) {
    case queue_state::empty: return "";
    case queue_state::ready: return fmt::format("waits for its turn: {}", asked);
    case queue_state::infeasible: return missing(cls).what();
    case queue_state::blocked: break;
    }
    if (q.reserved != no_index)
        return fmt::format("waits for {}: {} is kept free for it", asked,
                           all_places[q.reserved].name);
    if (const auto number = group_in(constraints[cls.where].where); number != 0) {
        const auto g = groups.find(number);
        if (g != groups.end() && g->second.waits)
            return fmt::format("waits for {}: the group is not placed", asked);
    }
    const auto resting = resting_text(constraints[cls.where].where);
    auto why = best_place(cls, false);
    if (!resting.empty() && why.starts_with("no "))
        return fmt::format("waits for {}: {}", asked, resting);
    return fmt::format("waits for {}: {}{}{}", asked, why, resting.empty() ? "" : "; ", resting);
}

/// "n1 cannot start anything: the disk is full; n2 ..."
SKEIN_INLINE std::string schedule_state::resting_text(const constraint& where) const {
    constexpr std::size_t most = 3;
    std::string s;
    std::size_t n = 0;
    for (std::uint32_t p = 0; p < all_places.size(); ++p) {
        const auto& place = all_places[p];
        if (place.host != no_index || !is_there(place) || place.resting.empty()) continue;
        if (group_in(where) == 0 && !matches(where, p)) continue;
        if (++n > most) continue;
        s += fmt::format("{}{} {}", n == 1 ? "" : "; ", place.name, place.resting);
    }
    return n > most ? fmt::format("{}; {} more", s, n - most) : s;
}

SKEIN_INLINE std::string schedule_state::why(request_id id) const {
    const auto e = requests.find(id.value());
    if (e == no_index) return "";
    const auto& entry = requests[e];
    const auto& q = all_queues[entry.queue];
    if (entry.state == request_state::queued) {
        const bool first = q.first == e;
        return why_waits(q) +
               (first ? std::string() : fmt::format("; {} wait for the same", q.queued));
    }
    const auto& name = all_places[entry.place].name;
    switch (entry.state) {
    case request_state::waiting: return fmt::format("on {}, waits for others", name);
    case request_state::resuming:
        return fmt::format("on {}, could go on: waits for cpus there", name);
    default: return fmt::format("has room on {}", name);
    }
}

SKEIN_INLINE resources schedule_state::used_of(const place_record& p) const {
    resources used;
    const auto keys = room(p.total_needs, p.gpus).keys();
    for (std::uint32_t d = dim_cpu; d < keys.size(); ++d) {
        const auto n = keys[d] - p.now.at(d);
        if (d == dim_cpu) used.cpu = amount::of_steps(n);
        if (d == dim_memory) used.memory = static_cast<std::uint64_t>(n);
        if (d == dim_gpu) used.gpu = amount::of_steps(p.now.gpus_used());
        if (d < dim_custom) continue;
        for (const auto& [name, dim] : custom_dims)
            if (dim == d) used.set(name, amount::of_steps(n));
    }
    return used;
}

} // namespace detail

SKEIN_INLINE scheduler::totals scheduler::stats() const {
    const auto& b = *state_;
    totals t;
    t.places = b.place_of.size();
    t.queued = b.queued;
    t.granted = b.granted;
    t.waiting = b.waiting;
    t.resuming = b.resuming;
    t.queues = static_cast<std::size_t>(
        std::count_if(b.all_queues.begin(), b.all_queues.end(),
                      [](const auto& q) { return q.cls != detail::no_index && q.queued != 0; }));
    t.groups = b.groups.size();
    t.grants = b.grants;
    t.reservations = b.reservations;
    t.bytes = b.requests.bytes();
    t.stalled = b.queued != 0 && b.waiting != 0 && b.running == 0 && b.resuming == 0 &&
                b.grown.empty() && b.ready_jobs.empty();
    return t;
}

SKEIN_INLINE std::vector<scheduler::queue_info> scheduler::queues() const {
    std::vector<queue_info> out;
    for (const auto& [key, index] : state_->queue_of) {
        const auto& q = state_->all_queues[index];
        if (q.queued == 0 && q.granted == 0) continue;
        const auto& cls = state_->classes[q.cls];
        queue_info i;
        i.job = state_->jobs[q.job].id;
        i.demand = state_->shapes[cls.shape].demand;
        i.where = state_->where_text(state_->constraints[cls.where].where);
        i.queued = q.queued;
        i.granted = q.granted;
        i.why = state_->why_waits(q);
        out.push_back(std::move(i));
    }
    return out;
}

SKEIN_INLINE std::vector<scheduler::place_info> scheduler::places() const {
    std::vector<place_info> out;
    for (const auto& p : state_->all_places) {
        if (!p.alive || p.host != detail::no_index) continue;
        place_info i;
        i.id = p.id;
        i.name = p.name;
        i.total = p.total;
        i.used = state_->used_of(p);
        i.granted = p.held;
        i.draining = p.draining;
        i.resting = !p.resting.empty();
        i.reserved = p.kept.exists();
        out.push_back(std::move(i));
    }
    return out;
}

SKEIN_INLINE std::vector<scheduler::group_info> scheduler::groups() const {
    std::vector<group_info> out;
    for (const auto& [number, g] : state_->groups) {
        group_info i;
        i.id = g.id;
        i.placed = !g.waits;
        for (const auto& b : g.bundles)
            i.bundles.push_back(b.place == detail::no_index ? place_id()
                                                            : state_->all_places[b.place].id);
        out.push_back(std::move(i));
    }
    return out;
}

SKEIN_INLINE std::string scheduler::why(request_id id) const { return state_->why(id); }

} // namespace skein::sched
