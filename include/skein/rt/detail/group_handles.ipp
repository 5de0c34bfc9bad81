// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of rt/detail/group_handles.hpp. docs/design/0012-groups.md

#include <skein/core/config.hpp>
#include <skein/rt/detail/group_desk.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/rt/ref.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <utility>

#include <fmt/format.h>

namespace skein::rt::detail {

/// The question for a name; or, of a group, whether it has its places, or nothing of it is left: the
/// answer says the driver's number of it.
class group_call final : public ref_state<void> {
public:
    explicit group_call(group_handles& by, counted_ptr<group_state> asked_about = {}) noexcept
        : group(std::move(asked_about)), by_(by), is_find_(!group) {}
    counted_ptr<group_state> group;

    void give_back(runtime&, byte_span bytes) override {
        if (is_find_) (void)by_.take_answer(bytes);
    }

protected:
    result<void> take_value(byte_span bytes) override {
        wire::reader in(bytes);
        if (is_find_)
            group = by_.take_answer(bytes);
        else if (!in.fixed(group->at_driver) || !in.finish())
            return in.status();
        if (!group)
            return error(errc::malformed, "an answer about a placement group cannot be read");
        return ref_state<void>::take_value({});
    }

private:
    group_handles& by_;
    bool is_find_;
};

SKEIN_INLINE groups& group_handles::table() const noexcept { return desk_.table(); }

SKEIN_INLINE group_handles::state_ptr group_handles::make(const std::vector<std::string>& bundles,
                                                          sched::group_strategy how,
                                                          std::string_view name,
                                                          bool get_if_exists) {
    group_question wish;
    wish.name = name;
    wish.strategy = static_cast<std::uint8_t>(how);
    wish.get_if_exists = get_if_exists;
    wish.bundles = bundles;
    if (driver_ == nullptr) return desk_.make(wish);
    const auto made = desk_.new_group(first_of_worker);
    if (const auto why = misread(wish, *made)) return desk_.refuse_new(made, *why);
    const auto count = table().size();
    if (count >= most_made_groups)
        return desk_.refuse_new(
            made,
            error(errc::exhausted, fmt::format("this worker holds {} placement groups", count))
                .with_hint("a group ends with its last handle"));
    table().enter(*made);
    wish.number = made->number;
    borrowed_.hold(made->number);
    tell_driver(group_matter::make, std::move(wish));
    return made;
}

SKEIN_INLINE task<group_handles::state_ptr> group_handles::look_up(std::string name) {
    if (driver_ == nullptr) {
        auto found = table().named(name);
        if (!found) throw table().no_such(name);
        co_return found;
    }
    counted_ptr<group_call> call(new group_call(*this));
    group_question what;
    what.matter = static_cast<std::uint8_t>(group_matter::find);
    what.name = name;
    ask_driver(call, std::move(what), fmt::format("get_placement_group(\"{}\")", name));
    const ref<void> answered(call);
    co_await answered;
    co_return call->group;
}

SKEIN_INLINE bool group_handles::is_elsewhere(const group_state& group) const noexcept {
    return driver_ != nullptr && borrowed_.is_counted(group.number);
}

SKEIN_INLINE void group_handles::ask_driver(const counted_ptr<call_base>& call, group_question what,
                                            std::string name) {
    const auto body = [&](wire::writer& to) {
        if (call->parent) {
            what.incarnation = call->parent->who.id.value().incarnation;
            what.call = call->parent->who.id.value().number;
        }
        wire::encode(to, what);
    };
    above_.ask_driver(call, std::move(name), message_group, body);
}

/// Until the group has its places, or nothing of it is left.
SKEIN_INLINE task<void> group_handles::ask(state_ptr group, bool for_end) {
    const counted_ptr<group_call> call(new group_call(*this, group));
    group_question what;
    what.matter = static_cast<std::uint8_t>(for_end ? group_matter::remove : group_matter::ready);
    what.number = group->number;
    ask_driver(
        call, std::move(what),
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

/// The driver has to know, and does not answer. No reply that leaves from now on comes there
/// before.
SKEIN_INLINE void group_handles::tell_driver(group_matter matter, group_question what) {
    if (!driver_->wire->is_open()) return; // until the link is settled
    what.matter = static_cast<std::uint8_t>(matter);
    replies_.told_driver();
    driver_->wire->send(message_group, 0, 0, wire::encode(what), {});
}

SKEIN_INLINE group_handles::state_ptr group_handles::take_answer(byte_span answer) {
    const auto read = wire::decode<group_answer>(answer);
    if (!read || read->number == 0) return {};
    auto group = enter(*read);
    if (!group) return {};
    group->placed = read->placed;
    borrowed_.hold(group->number);
    return group;
}

/// The group of which the driver or a caller has told. Null: that cannot be read.
SKEIN_INLINE group_handles::state_ptr group_handles::enter(const group_answer& told) {
    if (auto known = table().state_of(told.number)) return known;
    state_ptr group(new group_state);
    for (const auto& text : told.bundles) {
        auto bundle = sched::parse_resources(text);
        if (!bundle) return {};
        group->bundles.push_back(std::move(*bundle));
    }
    group->home = this;
    group->number = told.number;
    group->placed = told.placed;
    table().enter(*group);
    return group;
}

SKEIN_INLINE result<void> group_handles::take(const group_answer& told, state_ptr& into) {
    const auto count = table().size();
    if (count >= most_made_groups && !table().state_of(told.number))
        return error(errc::exhausted, fmt::format("this worker holds {} placement groups", count))
            .with_hint("a group is held until its last handle is gone");
    into = enter(told);
    if (!into) return error(errc::malformed, "a handle to a placement group of no demands");
    if (!borrowed_.lend(told.number)) return {};
    group_question what;
    what.number = told.number;
    tell_driver(group_matter::hold, what); // the caller lets go when it is answered
    return {};
}

SKEIN_INLINE void group_handles::end(group_state& group, const error& why) {
    desk_.end(group, why);
}

SKEIN_INLINE void group_handles::drop(group_state& group) noexcept {
    auto* const entry = table().find(group.number);
    if (entry == nullptr) return;
    entry->state = nullptr;
    const auto times = borrowed_.let_go(group.number);
    if (driver_ == nullptr && times == 0) return desk_.drop(group);
    table().erase(group.number);
    if (times == 0 || driver_ == nullptr) return;
    group_question what;
    what.number = group.number;
    what.times = times;
    tell_driver(group_matter::release, std::move(what));
}

} // namespace skein::rt::detail
