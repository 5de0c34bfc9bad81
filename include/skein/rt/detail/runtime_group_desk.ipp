// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: what a worker asks about placement groups, and what its
// driver answers. Who holds them is counted as for actors (detail/holds.hpp), names and numbers are
// in detail/groups.hpp. docs/design/0012-groups.md

#include <skein/rt/detail/group_message.hpp>
#include <skein/rt/detail/runtime_state.hpp>
#include <skein/rt/ref.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

/// The question for a name.
class group_call final : public ref_state<void> {
public:
    counted_ptr<group_state> found;

    void give_back(runtime& of, byte_span bytes) override {
        (void)runtime::group_desk::take_answer(of, bytes);
    }

protected:
    result<void> take_value(byte_span bytes) override {
        found = runtime::group_desk::take_answer(*owner, bytes);
        if (!found)
            return error(errc::malformed, "an answer about a placement group cannot be read");
        return ref_state<void>::take_value({});
    }
};

/// The question whether it has its places, or nothing of it is left; the answer says the driver's
/// number of it.
class group_wait final : public ref_state<void> {
public:
    explicit group_wait(counted_ptr<group_state> group) : group_(std::move(group)) {}

protected:
    result<void> take_value(byte_span bytes) override {
        wire::reader in(bytes);
        if (!in.fixed(group_->at_driver) || !in.finish()) return in.status();
        return ref_state<void>::take_value({});
    }

private:
    counted_ptr<group_state> group_;
};

/// "@=2/web": bundle 2 of the group of that name, as a worker says it; "@=/web" any; "@=+/web" with
/// what is made there.
SKEIN_INLINE std::string named_group_label(const location& on) {
    const auto bundle = on.bundle() < 0 ? std::string() : fmt::format("{}", on.bundle());
    return fmt::format("@={}{}/{}", bundle, on.has_children() ? "+" : "", on.text());
}

} // namespace detail

SKEIN_INLINE task<runtime::group_desk::state_ptr> runtime::group_desk::look_up(runtime* self,
                                                                               std::string name) {
    auto& state = *self->state_;
    if (state.upstream == nullptr) {
        auto found = state.groups.named(name);
        if (!found) throw state.groups.no_such(name);
        co_return found;
    }
    counted_ptr<detail::group_call> call(new detail::group_call);
    detail::group_question what;
    what.matter = static_cast<std::uint8_t>(detail::group_matter::find);
    what.name = name;
    ask(*self, call, what, fmt::format("get_placement_group(\"{}\")", name));
    const ref<void> answered(call);
    co_await answered;
    co_return call->found;
}

// ---- a worker's side ---------------------------------------------------------------------------

SKEIN_INLINE bool runtime::group_desk::is_elsewhere(const detail::group_state& group) noexcept {
    return group.owner != nullptr && group.owner->state_->upstream != nullptr &&
           group.owner->state_->borrowed_groups.is_counted(group.number);
}

/// Worker: asks the driver; the call has its answer.
SKEIN_INLINE void runtime::group_desk::ask(runtime& self,
                                           const counted_ptr<detail::call_base>& call,
                                           const detail::group_question& what, std::string name) {
    call->extra().name = std::move(name);
    if (!self.prepare(*call)) return;
    auto told = what;
    if (call->parent) {
        told.incarnation = call->parent->who.id.value().incarnation;
        told.call = call->parent->who.id.value().number;
    }
    auto& up = *self.state_->upstream;
    call->slot = self.take_slot(call);
    call->on = &up;
    call->state = detail::phase::queued;
    if (!up.wire->is_open()) return; // until the link is settled
    up.wire->send(detail::message_group, 0, call->slot.value(), wire::encode(told), {});
    call->state = detail::phase::sent;
}

/// Worker: until the group has its places, or nothing of it is left.
SKEIN_INLINE task<void> runtime::group_desk::ask_and_wait(state_ptr group, bool for_end) {
    counted_ptr<detail::group_wait> call(new detail::group_wait(group));
    detail::group_question what;
    what.matter = static_cast<std::uint8_t>(for_end ? detail::group_matter::remove
                                                    : detail::group_matter::ready);
    what.number = group->number;
    const counted_ptr<detail::call_base> asked(call.get());
    ask(*group->owner, asked, what,
        fmt::format("{} of placement group {}", for_end ? "the end" : "the wait", group->number));
    const ref<void> answered(call);
    try {
        co_await answered;
    } catch (...) {
        answered.cancel(); // the driver has taken its core for others, until it is told
        throw;
    }
    group->placed = !for_end;
}

/// Worker: the driver has to know, and does not answer. No reply that leaves from now on comes
/// there before.
SKEIN_INLINE void runtime::group_desk::tell(runtime& self, detail::group_matter matter,
                                            detail::group_question what) {
    auto& up = *self.state_->upstream;
    if (!up.wire->is_open()) return; // until the link is settled
    what.matter = static_cast<std::uint8_t>(matter);
    self.tell_driver_first();
    up.wire->send(detail::message_group, 0, 0, wire::encode(what), {});
}

SKEIN_INLINE runtime::group_desk::state_ptr runtime::group_desk::take_answer(runtime& self,
                                                                             byte_span answer) {
    const auto read = wire::decode<detail::group_answer>(answer);
    if (!read || read->number == 0) return {};
    auto state = enter_told(self, *read);
    if (!state) return {};
    state->placed = read->placed;
    self.state_->borrowed_groups.hold(state->number);
    return state;
}

/// A call that is to run in it keeps it until it is over.
SKEIN_INLINE void runtime::group_desk::keep(runtime& self, detail::call_base& call,
                                            std::uint64_t number) {
    auto group = self.state_->groups.state_of(number);
    if (!group) {
        call.extra().bad_options =
            error(errc::not_found, fmt::format("there is no placement group {}", number))
                .with_hint("it ends with the last handle to it");
    } else if (group->why) {
        call.extra().bad_options = *group->why;
    } else {
        call.keep(std::make_shared<state_ptr>(std::move(group)));
    }
}

// ---- the driver's side -------------------------------------------------------------------------

namespace detail {

/// Of workers, for one group: a greedy one gets no more of the driver's memory.
inline constexpr std::size_t most_group_waits = 4'096;

[[nodiscard]] inline group_question read_question(const peer& from, byte_span body) {
    auto read = wire::decode<group_question>(body);
    if (!read || read->matter > static_cast<std::uint8_t>(group_matter::hold) ||
        read->strategy > static_cast<std::uint8_t>(sched::group_strategy::strict_spread))
        throw error(errc::malformed,
                    fmt::format("a question about a placement group that cannot be read from {}",
                                from.who));
    return std::move(*read);
}

} // namespace detail

/// A worker has a name, and holds the group from now on.
SKEIN_INLINE void runtime::group_desk::find_for(runtime& self, peer& from, slot_id slot,
                                                const std::string& name) {
    auto& groups = self.state_->groups;
    const auto found = groups.named(name);
    if (!found) return self.reply_failure(from, slot, {groups.no_such(name), nullptr});
    groups.hold(from.number, found->number);
    const auto answer = detail::told_of(*found, found->number);
    self.reply(from, slot, [&](wire::writer& w) { wire::encode(w, answer); });
}

/// A worker asks, or gives back what it holds.
SKEIN_INLINE void runtime::group_desk::on_question(runtime& self, peer& from,
                                                   const net::frame_view& f) {
    using matter = detail::group_matter;
    const auto what = detail::read_question(from, f.body);
    const slot_id slot(f.id);
    if (what.matter == static_cast<std::uint8_t>(matter::find))
        return find_for(self, from, slot, what.name);
    if (what.matter == static_cast<std::uint8_t>(matter::make)) return make_for(self, from, what);
    if (what.matter == static_cast<std::uint8_t>(matter::hold))
        return hold_for(self, from, what.number);
    auto& groups = self.state_->groups;
    const auto number = groups.number_of(from.number, what.number);
    if (!groups.is_held_by(from.number, number))
        throw error(errc::malformed, fmt::format("{} asks about placement group {}, which it does "
                                                 "not hold",
                                                 from.who, what.number));
    const auto state = groups.for_workers(number);
    if (what.matter == static_cast<std::uint8_t>(matter::release)) {
        if (what.times == 0 || !groups.give_back(from.number, number, what.times))
            throw error(errc::malformed, fmt::format("{} gives handles to placement group {} back "
                                                     "that it has not",
                                                     from.who, what.number));
        groups.forget_alias(from.number, what.number);
        if (groups.is_held_by(from.number, number) || !state) return;
        return end_waits(
            self, from, *state, {},
            error(errc::closed, fmt::format("placement group {} was given back, wait for it with "
                                            "a handle to it",
                                            state->number)));
    }
    const bool for_end = what.matter == static_cast<std::uint8_t>(matter::remove);
    if (!state && for_end)
        return self.reply(from, slot, [&](wire::writer& w) { w.fixed(what.number); });
    if (!state)
        return self.reply_failure(
            from, slot,
            {error(errc::closed,
                   fmt::format("placement group {} had ended before its handle came", what.number))
                 .with_hint("who passes a handle holds the group until the call has ended"),
             nullptr});
    if (state->askers.size() >= detail::most_group_waits)
        return self.reply_failure(
            from, slot,
            {error(errc::exhausted, fmt::format("{} calls wait for placement group {} already",
                                                state->askers.size(), state->number))
                 .with_hint("wait once, before the calls that need it are made"),
             nullptr});
    const call_id parent({what.incarnation, what.call});
    state->askers.push_back({from.number, slot, parent, for_end});
    self.state_->dispatch.cores().begin_wait(from.room, parent); // its core is others' meanwhile
    if (for_end)
        end(self, *state,
            error(errc::closed, fmt::format("placement group {} was removed", state->number)));
    changed(self, *state);
    if (self.state_->dispatch.waits()) self.pump_leases();
}

/// A worker makes a group, as the program would: all that is wrong with it is told by what waits
/// for it.
SKEIN_INLINE void runtime::group_desk::make_for(runtime& self, peer& from,
                                                const detail::group_question& what) {
    auto& groups = self.state_->groups;
    if (what.number < detail::first_of_worker || groups.has_alias(from.number, what.number))
        throw error(errc::malformed,
                    fmt::format("{} makes a placement group with the number {}, which is none for "
                                "a new one",
                                from.who, what.number));
    const auto made = groups.count_aliases(from.number);
    if (made >= detail::most_made_groups) // it had to refuse that itself
        throw error(errc::malformed,
                    fmt::format("{} makes more than {} placement groups", from.who, made));
    const auto state = make(self, what.bundles, static_cast<sched::group_strategy>(what.strategy),
                            what.name, what.get_if_exists);
    groups.enter_alias(from.number, what.number, state->number);
    groups.hold(from.number, state->number);
}

/// A worker waits no more: for that answer, or, if none is named, for any about this group.
SKEIN_INLINE void runtime::group_desk::end_waits(runtime& self, peer& from,
                                                 detail::group_state& state,
                                                 std::optional<slot_id> slot, const error& why) {
    for (const auto& one : state.take_askers(from.number, slot)) {
        self.state_->dispatch.cores().end_wait(from.room, one.parent);
        self.reply_failure(from, one.slot, {why, nullptr});
    }
}

/// The same of one that was cancelled, if it is one.
SKEIN_INLINE void runtime::group_desk::take_back(runtime& self, peer& from, slot_id slot) {
    if (const auto group = self.state_->groups.asked_by(from.number, slot))
        end_waits(
            self, from, *group, slot,
            error(errc::cancelled,
                  fmt::format("the wait for placement group {} was cancelled", group->number)));
}

/// What a group is has changed: whoever waits for that hears of it.
SKEIN_INLINE void runtime::group_desk::changed(runtime& self, detail::group_state& state) {
    const state_ptr hold(&state);
    state.changed.set();
    auto& dispatch = self.state_->dispatch;
    const auto is_inside = [&](const peer& worker) {
        const auto demand = worker.room.demand;
        return demand && dispatch.demands().at(demand).group == state.number;
    };
    std::vector<detail::group_state::asker> rest;
    for (const auto& one : std::exchange(state.askers, {})) {
        auto* const to = self.link_at(one.link);
        if (to == nullptr) continue; // it is lost
        const bool is_over = state.why.has_value();
        const bool is_answered =
            one.for_end ? state.is_gone || (is_over && is_inside(*to)) : is_over || state.placed;
        if (!is_answered) {
            rest.push_back(one);
            continue;
        }
        dispatch.cores().end_wait(to->room, one.parent);
        if (is_over && !one.for_end)
            self.reply_failure(*to, one.slot, {*state.why, nullptr});
        else
            self.reply(*to, one.slot, [&](wire::writer& w) { w.fixed(state.number); });
    }
    state.askers.insert(state.askers.begin(), rest.begin(), rest.end());
}

} // namespace skein::rt
