// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of rt/detail/groups.hpp.

#include <skein/core/config.hpp>
#include <skein/core/known_names.hpp>
#include <skein/rt/detail/group_message.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::rt::detail {

// ---- a group ---------------------------------------------------------------------------------

SKEIN_INLINE void group_state::last_use_gone() noexcept {
    if (home != nullptr) home->drop(*this);
    delete this;
}

SKEIN_INLINE std::optional<error> misfit(const group_state& group, const sched::resources& need,
                                         int bundle) {
    const auto count = group.bundles.size();
    const auto asked = need.empty() ? std::string("nothing") : to_string(need);
    if (bundle < 0) {
        const bool any = std::any_of(group.bundles.begin(), group.bundles.end(),
                                     [&](const auto& b) { return fits(need, b); });
        if (any) return std::nullopt;
        std::string all;
        for (std::size_t b = 0; b < count && b < 8; ++b)
            all += fmt::format("{}{{{}}}", b == 0 ? "" : " ", to_string(group.bundles[b]));
        if (count > 8) all += fmt::format(" and {} more", count - 8);
        return error(errc::invalid_argument,
                     fmt::format("it asks for {}, which no bundle of placement group {} has: {}",
                                 asked, group.number, all))
            .with_hint("ask for less, or make a bundle larger; a task asks for .cpus = 1 if "
                       "nothing is said");
    }
    const auto index = static_cast<std::size_t>(bundle);
    if (index >= count)
        return error(errc::invalid_argument,
                     fmt::format("placement group {} has no bundle {}: there are {}", group.number,
                                 bundle, count))
            .with_hint("bundles are counted from 0");
    if (fits(need, group.bundles[index])) return std::nullopt;
    return error(errc::invalid_argument,
                 fmt::format("it asks for {}, and bundle {} of placement group {} is {}", asked,
                             bundle, group.number, to_string(group.bundles[index])))
        .with_hint("ask for less, or make the bundle larger; a task asks for .cpus = 1 if nothing "
                   "is said");
}

SKEIN_INLINE task<void> group_is_ready(counted_ptr<group_state> group) {
    if (!group) throw error(errc::invalid_argument, "an empty placement_group is waited for");
    if (!group->why && group->home != nullptr && group->home->is_elsewhere(*group)) {
        auto asked = group->home->ask(group, false);
        co_await asked;
        co_return;
    }
    while (!group->placed) {
        if (group->why) throw *group->why;
        if (group->home == nullptr) throw error(errc::closed, "the runtime has ended");
        group->changed.reset();
        auto changed = group->changed.wait();
        co_await changed;
    }
    if (group->why) throw *group->why;
}

SKEIN_INLINE task<void> remove_group(counted_ptr<group_state> group) {
    if (!group || group->home == nullptr) co_return;
    const error why(errc::closed, fmt::format("placement group {} was removed", group->number));
    if (group->home->is_elsewhere(*group)) {
        if (!group->why) group->why = why; // what is put into it from here fails at once
        auto asked = group->home->ask(group, true);
        co_await asked;
        co_return;
    }
    group->home->end(*group, why);
    while (!group->is_gone && group->home != nullptr) {
        group->changed.reset();
        auto changed = group->changed.wait();
        co_await changed;
    }
}

// ---- the table -------------------------------------------------------------------------------

SKEIN_INLINE group_entry* groups::find(std::uint64_t number) {
    const auto found = entries_.find(number);
    return found == entries_.end() ? nullptr : &found->second;
}

SKEIN_INLINE const group_entry* groups::find(std::uint64_t number) const {
    const auto found = entries_.find(number);
    return found == entries_.end() ? nullptr : &found->second;
}

SKEIN_INLINE groups::state_ptr groups::state_of(std::uint64_t number) const {
    const auto* const entry = find(number);
    return entry == nullptr ? state_ptr() : state_ptr(entry->state);
}

SKEIN_INLINE std::vector<groups::state_ptr> groups::held() const {
    std::vector<state_ptr> out;
    for (const auto& [number, entry] : entries_)
        if (entry.state != nullptr) out.emplace_back(entry.state);
    return out;
}

// ---- names -------------------------------------------------------------------------------------

SKEIN_INLINE groups::state_ptr groups::named(std::string_view name) const {
    const auto found = names_.find(name);
    return found == names_.end() ? state_ptr() : state_of(found->second);
}

SKEIN_INLINE void groups::name(const group_state& group) {
    if (!group.name.empty()) names_.emplace(group.name, group.number);
}

SKEIN_INLINE void groups::forget_name(const group_state& group) {
    const auto found = names_.find(group.name);
    if (found != names_.end() && found->second == group.number) names_.erase(found);
}

SKEIN_INLINE error groups::no_such(std::string_view name) const {
    return error(errc::not_found, fmt::format("there is no placement group named \"{}\"; {}", name,
                                              known_names(names_, "none has a name")))
        .with_hint("a group has its name from its options until it is removed, or nobody holds it");
}

SKEIN_INLINE std::optional<error> groups::resolve(location& on) const {
    if (!on.is_named_group()) return std::nullopt;
    const auto found = names_.find(on.text());
    if (found == names_.end()) return no_such(on.text());
    const bool children = on.has_children();
    on = location::in_group(found->second, on.bundle());
    if (children) on = on.with_children();
    return std::nullopt;
}

SKEIN_INLINE std::optional<error> groups::resolve(peer_id worker, sched::place& on) const {
    using kind = sched::place::kind;
    if (on.is(kind::group)) on.group = number_of(worker, on.group);
    if (on.is(kind::nodes) && on.name.starts_with("@="))
        return error(errc::invalid_argument, fmt::format("{} is not a label", on.name));
    if (!on.is(kind::named_group)) return std::nullopt;
    auto found = group_named(on.name);
    if (auto why = resolve(found)) return why;
    on = {kind::group, {}, found.group(), on.bundle, on.captures};
    return std::nullopt;
}

// ---- workers -----------------------------------------------------------------------------------

SKEIN_INLINE void groups::hold(peer_id worker, std::uint64_t number, bool is_lent) {
    held_.add(worker, number, is_lent);
    auto* const entry = find(number);
    if (entry != nullptr && !entry->for_workers) entry->for_workers = state_ptr(entry->state);
}

SKEIN_INLINE bool groups::give_back(peer_id worker, std::uint64_t number, std::uint32_t times) {
    if (!held_.give_back(worker, number, times)) return false;
    if (!held_.is_held(number)) let_go(number);
    return true;
}

SKEIN_INLINE void groups::lose(peer_id worker, bool keeps_lent) {
    aliases_.erase(worker);
    if (keeps_lent) late_.insert(worker);
    for (const auto number : keeps_lent ? held_.lose_but_lent(worker) : held_.lose(worker))
        let_go(number);
}

SKEIN_INLINE void groups::lose_lent(peer_id worker) {
    if (late_.erase(worker) == 0) return;
    for (const auto number : held_.lose(worker)) let_go(number);
}

SKEIN_INLINE groups::state_ptr groups::for_workers(std::uint64_t number) const {
    const auto* const entry = find(number);
    return entry == nullptr ? state_ptr() : entry->for_workers;
}

SKEIN_INLINE groups::state_ptr groups::asked_by(peer_id worker, slot_id slot) const {
    for (const auto& [number, entry] : entries_) {
        if (entry.state == nullptr) continue;
        const auto& askers = entry.state->askers;
        if (std::any_of(askers.begin(), askers.end(),
                        [&](const auto& one) { return one.link == worker && one.slot == slot; }))
            return state_ptr(entry.state);
    }
    return {};
}

/// No worker holds it: that may have been its last use, which erases the entry.
SKEIN_INLINE void groups::let_go(std::uint64_t number) {
    auto* const entry = find(number);
    if (entry == nullptr) return;
    const auto last = std::exchange(entry->for_workers, {});
}

SKEIN_INLINE void groups::forget_alias(peer_id worker, std::uint64_t its) {
    const auto all = aliases_.find(worker);
    if (all != aliases_.end()) all->second.erase(its);
}

SKEIN_INLINE std::uint64_t groups::number_of(peer_id worker, std::uint64_t its) const {
    if (its < first_of_worker) return its;
    const auto all = aliases_.find(worker);
    if (all == aliases_.end()) return its;
    const auto found = all->second.find(its);
    return found == all->second.end() ? its : found->second;
}

SKEIN_INLINE bool groups::has_alias(peer_id worker, std::uint64_t its) const {
    const auto all = aliases_.find(worker);
    return all != aliases_.end() && all->second.contains(its);
}

SKEIN_INLINE std::size_t groups::count_aliases(peer_id worker) const {
    const auto all = aliases_.find(worker);
    return all == aliases_.end() ? 0 : all->second.size();
}

} // namespace skein::rt::detail
