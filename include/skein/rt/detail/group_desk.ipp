// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of rt/detail/group_desk.hpp. docs/design/0012-groups.md

#include <skein/core/config.hpp>
#include <skein/sched/scheduler.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::rt::detail {

inline constexpr std::size_t longest_group_name = 255;
/// Of workers, for one group: a greedy one gets no more of the driver's memory.
inline constexpr std::size_t most_group_waits = 4'096;

/// What a group asks for, read into `into`.
[[nodiscard]] inline result<void> read_bundles(const std::vector<std::string>& texts,
                                               std::vector<sched::resources>& into) {
    if (texts.empty() || texts.size() > most_bundles)
        return error(errc::invalid_argument,
                     fmt::format("a placement group of {} bundles", texts.size()))
            .with_hint(fmt::format("1 to {}", most_bundles));
    for (std::size_t b = 0; b < texts.size(); ++b) {
        auto read = sched::parse_resources(texts[b]);
        result<void> good = read ? check_demand(*read) : result<void>(read.error());
        if (good && read->empty())
            good =
                error(errc::invalid_argument, "it asks for nothing").with_hint("\"cpu=1,gpu=1\"");
        if (!good) {
            const auto& why = good.error();
            error said(why.code(), fmt::format("bundle {} of a placement group, \"{}\": {}", b,
                                               texts[b], why.text()));
            if (!why.hint().empty()) said.with_hint(why.hint());
            return said;
        }
        into.push_back(std::move(*read));
    }
    return {};
}

SKEIN_INLINE std::optional<error> misread(const group_question& wish, group_state& into) {
    const auto& name = wish.name;
    if (name.size() > longest_group_name || name.find('\n') != name.npos)
        return error(errc::invalid_argument,
                     fmt::format("the name of a placement group has {} bytes or a line break",
                                 name.size()))
            .with_hint(fmt::format("one line, at most {} bytes", longest_group_name));
    if (wish.get_if_exists && name.empty())
        return error(errc::invalid_argument, ".get_if_exists needs a .name");
    if (auto read = read_bundles(wish.bundles, into.bundles); !read) return read.error();
    return std::nullopt;
}

SKEIN_INLINE group_answer told_of(const group_state& group, std::uint64_t number) {
    group_answer told;
    told.number = number;
    told.placed = group.placed;
    for (const auto& b : group.bundles) told.bundles.push_back(to_string(b));
    return told;
}

// ---- making and ending -------------------------------------------------------------------------

SKEIN_INLINE group_desk::state_ptr group_desk::new_group(std::uint64_t first) {
    state_ptr made(new group_state);
    made->home = &home_;
    made->number = known_.new_number() + first;
    return made;
}

SKEIN_INLINE group_desk::state_ptr group_desk::refuse_new(const state_ptr& made, const error& why) {
    known_.enter(*made);
    refused(made->number, why);
    return made;
}

SKEIN_INLINE group_desk::state_ptr group_desk::make(const group_question& wish) {
    auto made = new_group(0);
    if (auto known = known_.named(wish.name)) {
        if (wish.get_if_exists) return known;
        return refuse_new(
            made, error(errc::already_exists,
                        fmt::format("there is a placement group named \"{}\" already", wish.name))
                      .with_hint("get_placement_group gives it; .get_if_exists = true makes it "
                                 "only if it is missing"));
    }
    if (const auto why = misread(wish, *made)) return refuse_new(made, *why);
    if (given_up_) return refuse_new(made, *given_up_);
    auto* const source = dispatch_.source();
    if (source == nullptr || closing_)
        return refuse_new(
            made, error(errc::closed, "a placement group is made while there are no workers"));
    known_.enter(*made);
    made->name = wish.name;
    known_.name(*made);
    above_.workers_are_needed();
    source->want_group(
        {made->number, static_cast<sched::group_strategy>(wish.strategy), made->bundles});
    return made;
}

SKEIN_INLINE void group_desk::drop(group_state& group) noexcept {
    known_.forget_name(group);
    tell_drop(group.number);
    forget(group.number);
}

SKEIN_INLINE void group_desk::tell_drop(std::uint64_t number) {
    auto& entry = *known_.find(number);
    auto* const source = dispatch_.source();
    if (entry.is_gone || std::exchange(entry.dropped, true)) return;
    if (source == nullptr || closing_) {
        entry.is_gone = true; // all ends
        return;
    }
    source->drop_group(number);
}

SKEIN_INLINE void group_desk::end(group_state& group, const error& why) {
    const state_ptr hold(&group);
    if (group.why) return;
    group.why = why;
    group.placed = false;
    known_.forget_name(group);
    changed(group);
    above_.end_actors(group);
    std::vector<sched::demand_id> inside; // what waits for a place in it fails
    dispatch_.demands().for_each_in_group(group.number,
                                          [&](auto demand) { inside.push_back(demand); });
    for (const auto demand : inside) above_.refuse_demand(demand, why);
    tell_drop(group.number);
    if (!known_.find(group.number)->is_gone) return;
    group.is_gone = true;
    changed(group);
}

/// Its numbers serve others when nobody uses them any more.
SKEIN_INLINE void group_desk::forget(std::uint64_t number) {
    const auto* const entry = known_.find(number);
    if (entry == nullptr || entry->state != nullptr || !entry->is_gone) return;
    if (dispatch_.forget_group(number)) known_.erase(number);
}

SKEIN_INLINE void group_desk::fail_all(const error& why) {
    for (const auto& group : known_.held()) {
        if (!closing_) {
            end(*group, why);
            continue;
        }
        if (!group->why) group->why = why;
        group->is_gone = known_.find(group->number)->is_gone = true;
        changed(*group);
    }
}

// ---- calls -------------------------------------------------------------------------------------

SKEIN_INLINE group_desk::state_ptr group_desk::of(sched::demand_id demand) const {
    const auto number = dispatch_.demands().at(demand).group;
    return number == 0 ? state_ptr() : known_.state_of(number);
}

SKEIN_INLINE std::optional<error> group_desk::keep(call_base& call, std::uint64_t number) const {
    auto group = known_.state_of(number);
    if (!group)
        return error(errc::not_found, fmt::format("there is no placement group {}", number))
            .with_hint("it ends with the last handle to it");
    if (group->why) return group->why;
    call.keep(std::make_shared<state_ptr>(std::move(group)));
    return std::nullopt;
}

// ---- what the source of workers says -----------------------------------------------------------

SKEIN_INLINE void group_desk::placed(std::uint64_t number, bool on) {
    const auto group = known_.state_of(number);
    if (!group || group->why) return;
    group->placed = on;
    changed(*group);
}

SKEIN_INLINE void group_desk::refused(std::uint64_t number, const error& why) {
    auto* const entry = known_.find(number);
    if (entry == nullptr) return;
    entry->is_gone = true;
    if (auto* const group = entry->state; group != nullptr) end(*group, why);
    gone(number);
}

SKEIN_INLINE void group_desk::gone(std::uint64_t number) {
    auto* const entry = known_.find(number);
    if (entry == nullptr) return;
    entry->is_gone = true;
    if (const state_ptr group(entry->state); group) {
        group->is_gone = true;
        changed(*group);
    }
    forget(number);
}

// ---- workers -----------------------------------------------------------------------------------

SKEIN_INLINE void group_desk::on_question(peer& from, slot_id slot, byte_span body) {
    const auto what = wire::decode<group_question>(body);
    if (!what || what->matter > static_cast<std::uint8_t>(group_matter::hold) ||
        what->strategy > static_cast<std::uint8_t>(sched::group_strategy::strict_spread))
        throw malformed(fmt::format(
            "a question about a placement group that cannot be read from {}", from.who));
    const auto matter = static_cast<group_matter>(what->matter);
    if (matter == group_matter::find) return find_for(from, slot, what->name);
    if (matter == group_matter::make) return make_for(from, *what);
    if (matter == group_matter::hold) return hold_for(from, what->number);
    const auto number = known_.number_of(from.number, what->number);
    if (!known_.is_held_by(from.number, number))
        throw malformed(fmt::format("{} asks about placement group {}, which it does "
                                    "not hold",
                                    from.who, what->number));
    if (matter == group_matter::release) return release_for(from, *what, number);
    wait_for(from, slot, *what, number);
}

/// A worker has a name, and holds the group from now on.
SKEIN_INLINE void group_desk::find_for(peer& from, slot_id slot, const std::string& name) {
    const auto found = known_.named(name);
    if (!found) return replies_.reply_failure(from, slot, {known_.no_such(name), nullptr});
    known_.hold(from.number, found->number);
    const auto answer = told_of(*found, found->number);
    replies_.reply(from, slot, [&](wire::writer& w) { wire::encode(w, answer); });
}

/// A worker makes a group, as the program would: all that is wrong with it is told by what waits
/// for it.
SKEIN_INLINE void group_desk::make_for(const peer& from, const group_question& wish) {
    if (wish.number < first_of_worker || known_.has_alias(from.number, wish.number))
        throw malformed(
            fmt::format("{} makes a placement group with the number {}, which is none for "
                        "a new one",
                        from.who, wish.number));
    const auto made = known_.count_aliases(from.number);
    if (made >= most_made_groups) // it had to refuse that itself
        throw malformed(fmt::format("{} makes more than {} placement groups", from.who, made));
    const auto group = make(wish);
    known_.enter_alias(from.number, wish.number, group->number);
    known_.hold(from.number, group->number);
}

/// A worker has got a handle from somebody else. The group may have ended with him meanwhile, and
/// if there never was one, he has lied, and not this worker.
SKEIN_INLINE void group_desk::hold_for(const peer& from, std::uint64_t number) {
    if (number == 0 || number >= first_of_worker)
        throw malformed(fmt::format("{} holds placement group {}, which is no number "
                                    "of its driver's",
                                    from.who, number));
    const auto count = known_.count_held(from.number);
    if (count >= most_held_groups && !known_.is_held_by(from.number, number))
        throw error(errc::exhausted,
                    fmt::format("{} holds more than {} placement groups", from.who, count));
    known_.hold(from.number, number, true);
}

SKEIN_INLINE void group_desk::release_for(peer& from, const group_question& what,
                                          std::uint64_t number) {
    const auto group = known_.for_workers(number);
    if (what.times == 0 || !known_.give_back(from.number, number, what.times))
        throw malformed(fmt::format("{} gives handles to placement group {} back "
                                    "that it has not",
                                    from.who, what.number));
    known_.forget_alias(from.number, what.number);
    if (known_.is_held_by(from.number, number) || !group) return;
    end_waits(from, *group, {},
              error(errc::closed, fmt::format("placement group {} was given back, wait for it with "
                                              "a handle to it",
                                              group->number)));
}

/// A worker waits until the group has its places, or, as it is to end, until nothing of it is left.
SKEIN_INLINE void group_desk::wait_for(peer& from, slot_id slot, const group_question& what,
                                       std::uint64_t number) {
    const auto group = known_.for_workers(number);
    const bool for_end = what.matter == static_cast<std::uint8_t>(group_matter::remove);
    if (!group && for_end)
        return replies_.reply(from, slot, [&](wire::writer& w) { w.fixed(what.number); });
    std::optional<error> why;
    if (!group)
        why = error(errc::closed,
                    fmt::format("placement group {} had ended before its handle came", what.number))
                  .with_hint("who passes a handle holds the group until the call has ended");
    else if (group->askers.size() >= most_group_waits)
        why = error(errc::exhausted, fmt::format("{} calls wait for placement group {} already",
                                                 group->askers.size(), group->number))
                  .with_hint("wait once, before the calls that need it are made");
    if (why) return replies_.reply_failure(from, slot, {std::move(*why), nullptr});
    const call_id parent({what.incarnation, what.call});
    group->askers.push_back({from.number, slot, parent, for_end});
    dispatch_.cores().begin_wait(from.room, parent); // its core is others' meanwhile
    if (for_end)
        end(*group,
            error(errc::closed, fmt::format("placement group {} was removed", group->number)));
    changed(*group);
    if (dispatch_.waits()) above_.cores_are_free();
}

/// A worker waits no more: for that answer, or, if none is named, for any about this group.
SKEIN_INLINE void group_desk::end_waits(peer& from, group_state& group, std::optional<slot_id> slot,
                                        const error& why) {
    for (const auto& one : group.take_askers(from.number, slot)) {
        dispatch_.cores().end_wait(from.room, one.parent);
        replies_.reply_failure(from, one.slot, {why, nullptr});
    }
}

SKEIN_INLINE void group_desk::cancel(peer& from, slot_id slot) {
    if (const auto group = known_.asked_by(from.number, slot))
        end_waits(
            from, *group, slot,
            error(errc::cancelled,
                  fmt::format("the wait for placement group {} was cancelled", group->number)));
}

/// What a group is has changed: whoever waits for that hears of it.
SKEIN_INLINE void group_desk::changed(group_state& group) {
    const state_ptr hold(&group);
    group.changed.set();
    const auto is_inside = [&](const peer& worker) {
        const auto demand = worker.room.demand;
        return demand && dispatch_.demands().at(demand).group == group.number;
    };
    std::vector<group_state::asker> rest;
    for (const auto& one : std::exchange(group.askers, {})) {
        auto* const to = above_.worker_at(one.link);
        if (to == nullptr) continue;
        const bool is_over = group.why.has_value();
        const bool is_answered =
            one.for_end ? group.is_gone || (is_over && is_inside(*to)) : is_over || group.placed;
        if (!is_answered) {
            rest.push_back(one);
            continue;
        }
        dispatch_.cores().end_wait(to->room, one.parent);
        if (is_over && !one.for_end)
            replies_.reply_failure(*to, one.slot, {*group.why, nullptr});
        else
            replies_.reply(*to, one.slot, [&](wire::writer& w) { w.fixed(group.number); });
    }
    group.askers.insert(group.askers.begin(), rest.begin(), rest.end());
}

} // namespace skein::rt::detail
