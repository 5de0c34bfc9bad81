// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: placement groups. The source of workers finds places for
// them and says what becomes of them; here is who holds them, and what waits for them.
// docs/design/0012-groups.md

#include <skein/core/cancel.hpp>
#include <skein/core/check.hpp>
#include <skein/core/log.hpp>
#include <skein/rt/detail/group_message.hpp>
#include <skein/rt/detail/runtime_state.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

inline constexpr std::size_t longest_group_name = 255;

SKEIN_INLINE void group_state::last_use_gone() noexcept {
    if (owner != nullptr) runtime::group_desk::drop(*owner, *this);
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

SKEIN_INLINE task<void> group_is_ready(counted_ptr<group_state> group) {
    if (!group) throw error(errc::invalid_argument, "an empty placement_group is waited for");
    if (!group->why && runtime::group_desk::is_elsewhere(*group)) {
        auto asked = runtime::group_desk::ask_and_wait(group, false);
        co_await asked;
        co_return;
    }
    while (!group->placed) {
        if (group->why) throw *group->why;
        if (group->owner == nullptr) throw error(errc::closed, "the runtime has ended");
        group->changed.reset();
        auto changed = group->changed.wait();
        co_await changed;
    }
    if (group->why) throw *group->why;
}

SKEIN_INLINE task<void> remove_group(counted_ptr<group_state> group) {
    if (!group || group->owner == nullptr) co_return;
    const error why(errc::closed, fmt::format("placement group {} was removed", group->number));
    if (runtime::group_desk::is_elsewhere(*group)) {
        if (!group->why) group->why = why; // what is put into it from here fails at once
        auto asked = runtime::group_desk::ask_and_wait(group, true);
        co_await asked;
        co_return;
    }
    runtime::group_desk::end(*group->owner, *group, why);
    while (!group->is_gone && group->owner != nullptr) {
        group->changed.reset();
        auto changed = group->changed.wait();
        co_await changed;
    }
}

} // namespace detail

SKEIN_INLINE runtime::group_desk::state_ptr runtime::group_desk::make(
    runtime& self, const std::vector<std::string>& bundles, sched::group_strategy how,
    std::string_view name, bool get_if_exists) {
    auto& state = *self.state_;
    auto& groups = state.groups;
    state_ptr made(new detail::group_state);
    made->owner = &self;
    const bool is_worker = state.upstream != nullptr;
    made->number = groups.new_number() + (is_worker ? detail::first_of_worker : 0);
    const auto fail = [&](const error& why) {
        groups.enter(*made);
        self.group_refused(made->number, why);
        return made;
    };
    if (name.size() > detail::longest_group_name || name.find('\n') != name.npos)
        return fail(
            error(errc::invalid_argument,
                  fmt::format("the name of a placement group has {} bytes or a line break",
                              name.size()))
                .with_hint(fmt::format("one line, at most {} bytes", detail::longest_group_name)));
    if (auto known = groups.named(name)) {
        if (get_if_exists) return known;
        return fail(error(errc::already_exists,
                          fmt::format("there is a placement group named \"{}\" already", name))
                        .with_hint("get_placement_group gives it; .get_if_exists = true makes it "
                                   "only if it is missing"));
    }
    if (get_if_exists && name.empty())
        return fail(error(errc::invalid_argument, ".get_if_exists needs a .name"));
    if (auto read = detail::read_bundles(bundles, made->bundles); !read) return fail(read.error());
    if (is_worker && groups.size() >= detail::most_made_groups)
        return fail(error(errc::exhausted,
                          fmt::format("this worker holds {} placement groups", groups.size()))
                        .with_hint("a group ends with its last handle"));
    if (is_worker) {
        groups.enter(*made);
        detail::group_question what;
        what.name = name;
        what.strategy = static_cast<std::uint8_t>(how);
        what.get_if_exists = get_if_exists;
        what.bundles = bundles;
        what.number = made->number;
        state.borrowed_groups.hold(made->number);
        tell(self, detail::group_matter::make, std::move(what));
        return made;
    }
    if (state.given_up) return fail(*state.given_up);
    auto* const source = state.dispatch.source();
    if (source == nullptr || state.closing)
        return fail(error(errc::closed, "a placement group is made while there are no workers"));
    groups.enter(*made);
    made->name = name;
    groups.name(*made);
    state.begin_work();
    source->want_group({made->number, how, made->bundles});
    return made;
}

/// What a call asks for must be in its group, which it keeps from now on.
SKEIN_INLINE void runtime::group_desk::join(runtime& self, detail::call_base& call) {
    const auto& demand = self.state_->dispatch.demands().at(call.demand);
    if (demand.group == 0) return;
    keep(self, call, demand.group);
    if (call.extra().bad_options) return;
    const auto group = self.state_->groups.state_of(demand.group);
    call.extra().bad_options = detail::misfit(*group, demand.need, demand.bundle);
}

/// Driver: the group in which an actor with this demand lives, if it is one.
SKEIN_INLINE runtime::group_desk::state_ptr runtime::group_desk::of(const runtime& self,
                                                                    sched::demand_id demand) {
    const auto number = self.state_->dispatch.demands().at(demand).group;
    return number == 0 ? state_ptr() : self.state_->groups.state_of(number);
}

/// Nobody holds it here any more.
SKEIN_INLINE void runtime::group_desk::drop(runtime& self, detail::group_state& group) noexcept {
    auto& state = *self.state_;
    auto* const entry = state.groups.find(group.number);
    if (entry == nullptr) return;
    entry->state = nullptr;
    const auto times = state.borrowed_groups.let_go(group.number);
    if (state.upstream != nullptr || times > 0) { // the driver's
        state.groups.erase(group.number);
        if (times == 0 || state.upstream == nullptr) return;
        detail::group_question what;
        what.number = group.number;
        what.times = times;
        return tell(self, detail::group_matter::release, std::move(what));
    }
    state.groups.forget_name(group);
    tell_drop(self, group.number);
    forget(self, group.number);
}

SKEIN_INLINE void runtime::group_desk::tell_drop(runtime& self, std::uint64_t number) {
    auto& state = *self.state_;
    auto& entry = *state.groups.find(number);
    auto* const source = state.dispatch.source();
    if (entry.is_gone || std::exchange(entry.dropped, true)) return;
    if (source == nullptr || state.closing) {
        entry.is_gone = true; // all ends
        return;
    }
    source->drop_group(number);
}

SKEIN_INLINE void runtime::group_desk::end(runtime& self, detail::group_state& group,
                                           const error& why) {
    const state_ptr hold(&group);
    if (group.why) return;
    group.why = why;
    group.placed = false;
    self.state_->groups.forget_name(group);
    changed(self, group);
    std::vector<actor_id> inside;
    for (const auto& [id, entry] : self.state_->actors.entries)
        if (entry.group.get() == &group) inside.push_back(id);
    std::sort(inside.begin(), inside.end());
    for (const auto id : inside) {
        const failure told{
            error(why.code(), fmt::format("{} has ended: {}", self.actor_title(id), why.text())),
            nullptr};
        self.end_actor(id, detail::message_kill, &told);
    }
    refuse(self, group.number, why);
    tell_drop(self, group.number);
    if (!self.state_->groups.find(group.number)->is_gone) return;
    group.is_gone = true;
    changed(self, group);
}

/// What waits for a place in it fails.
SKEIN_INLINE void runtime::group_desk::refuse(runtime& self, std::uint64_t number,
                                              const error& why) {
    std::vector<sched::demand_id> inside;
    self.state_->dispatch.demands().for_each_in_group(
        number, [&](auto demand) { inside.push_back(demand); });
    for (const auto demand : inside) self.refuse_demand(demand, why);
}

/// Its numbers serve others when nobody uses them any more.
SKEIN_INLINE void runtime::group_desk::forget(runtime& self, std::uint64_t number) {
    auto& groups = self.state_->groups;
    const auto* const entry = groups.find(number);
    if (entry == nullptr || entry->state != nullptr || !entry->is_gone) return;
    if (!self.state_->dispatch.forget_group(number)) return;
    groups.erase(number);
}

// ---- what the source of workers says -----------------------------------------------------------

SKEIN_INLINE void runtime::group_placed(std::uint64_t number, bool on) {
    const auto group = state_->groups.state_of(number);
    if (!group || group->why) return;
    group->placed = on;
    group_desk::changed(*this, *group);
}

SKEIN_INLINE void runtime::group_refused(std::uint64_t number, const error& why) {
    auto* const entry = state_->groups.find(number);
    if (entry == nullptr) return;
    entry->is_gone = true;
    if (auto* const group = entry->state; group != nullptr) group_desk::end(*this, *group, why);
    group_gone(number);
}

SKEIN_INLINE void runtime::group_gone(std::uint64_t number) {
    auto* const entry = state_->groups.find(number);
    if (entry == nullptr) return;
    entry->is_gone = true;
    if (const group_desk::state_ptr group(entry->state); group) {
        group->is_gone = true;
        group_desk::changed(*this, *group);
    }
    group_desk::forget(*this, number);
}

/// Driver: the program ends, or there are no workers for it.
SKEIN_INLINE void runtime::group_desk::fail_all(runtime& self, const error& why) {
    auto& state = *self.state_;
    for (const auto& group : state.groups.held()) {
        if (!state.closing) {
            end(self, *group, why);
            continue;
        }
        if (!group->why) group->why = why;
        group->is_gone = state.groups.find(group->number)->is_gone = true;
        changed(self, *group);
    }
}

} // namespace skein::rt
