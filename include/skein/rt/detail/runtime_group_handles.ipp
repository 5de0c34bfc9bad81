// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: handles to placement groups in the arguments of calls. Who
// calls holds the group until the call has ended; who gets the handle tells the driver of it before
// it answers. docs/design/0012-groups.md

#include <skein/rt/detail/group_message.hpp>
#include <skein/rt/detail/runtime_state.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <cstdint>
#include <memory>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

SKEIN_INLINE group_answer told_of(const group_state& group, std::uint64_t number) {
    group_answer told;
    told.number = number;
    told.placed = group.placed;
    for (const auto& b : group.bundles) told.bundles.push_back(to_string(b));
    return told;
}

SKEIN_INLINE void encode_group(wire::writer& to, const counted_ptr<group_state>& group) {
    if (!group) return wire::encode(to, group_answer());
    auto* const call = runtime::encoding();
    if (call == nullptr)
        throw error(errc::not_supported,
                    fmt::format("not supported: a handle to placement group {} outside of the "
                                "arguments of a call",
                                group->number))
            .with_hint("results and saved states have its name, for get_placement_group()");
    if (group->owner == nullptr || group->owner != call->owner)
        throw error(errc::not_supported,
                    fmt::format("not supported: a handle to placement group {} travels to another "
                                "program or namespace, where it is not known",
                                group->number));
    const auto number = group->number < first_of_worker ? group->number : group->at_driver;
    if (number == 0) {
        if (group->why) throw *group->why;
        throw error(errc::not_supported,
                    "not supported: a handle to a placement group that this worker has made "
                    "travels before its ready() has ended")
            .with_hint("co_await group.ready() first, or give the group a name and pass that");
    }
    wire::encode(to, told_of(*group, number));
    call->keep(std::make_shared<counted_ptr<group_state>>(group));
}

SKEIN_INLINE result<void> decode_group(wire::reader& from, counted_ptr<group_state>& into) {
    group_answer told;
    if (auto read = wire::decode(from, told); !read) return read;
    if (told.number == 0) return {};
    if (told.number >= first_of_worker || told.bundles.size() > most_bundles)
        return error(errc::malformed, "a handle to no placement group");
    auto* const here = runtime::executing();
    if (here == nullptr || !runtime::group_desk::is_worker(*here))
        return error(errc::not_supported, "not supported: a handle to a placement group that is "
                                          "decoded outside of the arguments of a call");
    return runtime::group_desk::take_handle(*here, told, into);
}

} // namespace detail

SKEIN_INLINE bool runtime::group_desk::is_worker(const runtime& self) noexcept {
    return self.state_->upstream != nullptr;
}

/// Worker: the group of which the driver or a caller has told. None: that cannot be read.
SKEIN_INLINE runtime::group_desk::state_ptr runtime::group_desk::enter_told(
    runtime& self, const detail::group_answer& told) {
    auto& groups = self.state_->groups;
    if (auto known = groups.state_of(told.number)) return known;
    state_ptr state(new detail::group_state);
    for (const auto& text : told.bundles) {
        auto bundle = sched::parse_resources(text);
        if (!bundle) return {};
        state->bundles.push_back(std::move(*bundle));
    }
    state->owner = &self;
    state->number = told.number;
    state->placed = told.placed;
    groups.enter(*state);
    return state;
}

/// Worker: a handle has come in the arguments of a call, whose caller holds the group until the
/// answer.
SKEIN_INLINE result<void> runtime::group_desk::take_handle(runtime& self,
                                                           const detail::group_answer& told,
                                                           state_ptr& into) {
    auto& state = *self.state_;
    const auto count = state.groups.size();
    if (count >= detail::most_made_groups && !state.groups.state_of(told.number))
        return error(errc::exhausted, fmt::format("this worker holds {} placement groups", count))
            .with_hint("a group is held until its last handle is gone");
    into = enter_told(self, told);
    if (!into) return error(errc::malformed, "a handle to a placement group of no demands");
    if (!state.borrowed_groups.lend(told.number)) return {};
    detail::group_question what;
    what.number = told.number;
    tell(self, detail::group_matter::hold, what); // the caller lets go when it is answered
    return {};
}

/// Driver: a worker has got a handle from somebody else. The group may have ended with him
/// meanwhile, and if there never was one, he has lied, and not this worker.
SKEIN_INLINE void runtime::group_desk::hold_for(runtime& self, peer& from, std::uint64_t number) {
    auto& groups = self.state_->groups;
    if (number == 0 || number >= detail::first_of_worker)
        throw error(errc::malformed, fmt::format("{} holds placement group {}, which is no number "
                                                 "of its driver's",
                                                 from.who, number));
    const auto count = groups.count_held(from.number);
    if (count >= detail::most_held_groups && !groups.is_held_by(from.number, number))
        throw error(errc::exhausted,
                    fmt::format("{} holds more than {} placement groups", from.who, count));
    groups.hold(from.number, number, true);
}

} // namespace skein::rt
