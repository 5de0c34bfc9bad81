// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: placement groups. The source of workers finds places for them and says what
// becomes of them; here is who holds them, and what waits for them. docs/design/0012-groups.md

#include <skein/core/cancel.hpp>
#include <skein/core/check.hpp>
#include <skein/core/log.hpp>
#include <skein/rt/detail/runtime_books.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

inline constexpr std::size_t most_bundles = 4096;

SKEIN_INLINE void group_state::last_use_gone() noexcept {
    if (owner != nullptr) owner->drop_group(*this);
    delete this;
}

SKEIN_INLINE std::optional<error> misfit(const group_state& group, const resources& need,
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
                                               std::vector<resources>& into) {
    if (texts.empty() || texts.size() > most_bundles)
        return error(errc::invalid_argument,
                     fmt::format("a placement group of {} bundles", texts.size()))
            .with_hint(fmt::format("1 to {}", most_bundles));
    for (std::size_t b = 0; b < texts.size(); ++b) {
        auto read = parse_resources(texts[b]);
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
    group->owner->end_group(
        *group, error(errc::closed, fmt::format("placement group {} was removed", group->number)));
    while (!group->is_gone && group->owner != nullptr) {
        group->changed.reset();
        auto changed = group->changed.wait();
        co_await changed;
    }
}

} // namespace detail

SKEIN_INLINE counted_ptr<detail::group_state> runtime::make_group(
    const std::vector<std::string>& bundles, group_strategy how) {
    counted_ptr<detail::group_state> made(new detail::group_state);
    auto& groups = books_->groups;
    made->owner = this;
    made->number = ++groups.last;
    groups.entries[made->number].state = made.get();
    const auto fail = [&](error why) {
        group_refused(made->number, why);
        return made;
    };
    if (books_->upstream != nullptr)
        return fail(error(errc::not_supported, "a placement group is made by a worker")
                        .with_hint("make it in the driver, and what runs in it there"));
    if (auto read = detail::read_bundles(bundles, made->bundles); !read) return fail(read.error());
    if (books_->given_up) return fail(*books_->given_up);
    auto* const source = books_->leases.source;
    if (source == nullptr || books_->closing)
        return fail(error(errc::closed, "a placement group is made while there are no workers"));
    books_->begin_work();
    source->want_group({made->number, how, made->bundles});
    return made;
}

/// What a call asks for must be in its group, which it keeps from now on.
SKEIN_INLINE void runtime::join_group(detail::call_base& call) {
    const auto& demand = books_->leases.demands.at(call.shape);
    if (demand.group == 0) return;
    auto& groups = books_->groups;
    const auto found = groups.entries.find(demand.group);
    if (found == groups.entries.end() || found->second.state == nullptr) {
        call.extra().bad_options =
            error(errc::not_found, fmt::format("there is no placement group {}", demand.group))
                .with_hint("it ends with the last handle to it");
        return;
    }
    auto& state = *found->second.state;
    if (state.why) {
        call.extra().bad_options = *state.why;
    } else if (auto why = detail::misfit(state, demand.need, demand.bundle)) {
        call.extra().bad_options = std::move(*why);
    } else {
        using held = counted_ptr<detail::group_state>;
        call.keep(std::make_shared<held>(&state));
    }
}

/// Driver: the group in which an actor with this demand lives, if it is one.
SKEIN_INLINE counted_ptr<detail::group_state> runtime::group_of(std::uint16_t shape) const {
    const auto number = books_->leases.demands.at(shape).group;
    if (number == 0) return {};
    const auto found = books_->groups.entries.find(number);
    if (found == books_->groups.entries.end()) return {};
    return counted_ptr<detail::group_state>(found->second.state);
}

/// Nobody holds it any more.
SKEIN_INLINE void runtime::drop_group(detail::group_state& state) noexcept {
    const auto found = books_->groups.entries.find(state.number);
    if (found == books_->groups.entries.end()) return;
    found->second.state = nullptr;
    tell_drop(state.number);
    forget_group(state.number);
}

SKEIN_INLINE void runtime::tell_drop(std::uint64_t number) {
    auto& entry = books_->groups.entries.at(number);
    auto* const source = books_->leases.source;
    if (entry.is_gone || std::exchange(entry.dropped, true)) return;
    if (source == nullptr || books_->closing) {
        entry.is_gone = true; // all ends
        return;
    }
    source->drop_group(number);
}

SKEIN_INLINE void runtime::end_group(detail::group_state& group, const error& why) {
    const counted_ptr<detail::group_state> hold(&group);
    if (group.why) return;
    group.why = why;
    group.placed = false;
    group.changed.set();
    std::vector<actor_id> inside;
    for (const auto& [id, entry] : books_->actors.entries)
        if (entry.group.get() == &group) inside.push_back(id);
    std::sort(inside.begin(), inside.end());
    for (const auto id : inside) {
        const failure told{error(why.code(), fmt::format("actor {} has ended: {}", id, why.text())),
                           nullptr};
        end_actor(id, detail::message_kill, &told);
    }
    refuse_group(group.number, why);
    tell_drop(group.number);
    if (books_->groups.entries.at(group.number).is_gone) group.is_gone = true;
}

/// What waits for a place in it fails.
SKEIN_INLINE void runtime::refuse_group(std::uint64_t number, const error& why) {
    std::vector<std::uint16_t> kinds;
    books_->leases.demands.for_each_in_group(number, [&](auto kind) { kinds.push_back(kind); });
    for (const auto kind : kinds) refuse_demand(kind, why);
}

/// Its numbers serve others when nobody uses them any more.
SKEIN_INLINE void runtime::forget_group(std::uint64_t number) {
    auto& groups = books_->groups;
    const auto found = groups.entries.find(number);
    if (found == groups.entries.end() || found->second.state != nullptr || !found->second.is_gone)
        return;
    auto& leases = books_->leases;
    bool used = false;
    leases.demands.for_each_in_group(number, [&](auto kind) {
        const auto line = leases.lines.find(kind);
        if (line == leases.lines.end()) return;
        (void)leases.front(line->second);
        used = used || !line->second.is_empty() || line->second.held > 0 ||
               line->second.parents > 0 || line->second.out > 0;
    });
    if (used) return; // at the end of a program: what is left is settled in another order
    leases.demands.for_each_in_group(number, [&](auto kind) { leases.lines.erase(kind); });
    leases.demands.forget_group(number);
    groups.entries.erase(found);
}

// ---- what the source of workers says -----------------------------------------------------------

SKEIN_INLINE void runtime::group_placed(std::uint64_t number, bool on) {
    const auto found = books_->groups.entries.find(number);
    if (found == books_->groups.entries.end() || found->second.state == nullptr) return;
    auto& state = *found->second.state;
    if (state.why) return;
    state.placed = on;
    state.changed.set();
}

SKEIN_INLINE void runtime::group_refused(std::uint64_t number, const error& why) {
    const auto found = books_->groups.entries.find(number);
    if (found == books_->groups.entries.end()) return;
    found->second.is_gone = true;
    if (auto* const state = found->second.state; state != nullptr) end_group(*state, why);
    group_gone(number);
}

SKEIN_INLINE void runtime::group_gone(std::uint64_t number) {
    const auto found = books_->groups.entries.find(number);
    if (found == books_->groups.entries.end()) return;
    found->second.is_gone = true;
    if (auto* const state = found->second.state; state != nullptr) {
        state->is_gone = true;
        state->changed.set();
    }
    forget_group(number);
}

/// Driver: the program ends, or there are no workers for it.
SKEIN_INLINE void runtime::fail_groups(const error& why) {
    for (const auto& group : books_->groups.held()) {
        if (!books_->closing) {
            end_group(*group, why);
            continue;
        }
        if (!group->why) group->why = why;
        group->is_gone = books_->groups.entries.at(group->number).is_gone = true;
        group->changed.set();
    }
}

} // namespace skein::rt
