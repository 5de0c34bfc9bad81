// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of rt/detail/call.hpp: how a call ends, and who is told.

#include <skein/core/check.hpp>
#include <skein/core/log.hpp>
#include <skein/objects/store_client.hpp>
#include <skein/rt/detail/runtime_state.hpp>

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace skein::rt::detail {

SKEIN_INLINE call_base::~call_base() = default;

SKEIN_INLINE void call_base::free_rarities::operator()(rarities* r) const noexcept { delete r; }

SKEIN_INLINE call_base::rarities& call_base::extra() {
    if (!rare) rare.reset(new rarities);
    return *rare;
}

SKEIN_INLINE void call_base::keep(std::shared_ptr<void> handle) {
    extra().kept.push_back(std::move(handle));
}

SKEIN_INLINE void call_base::add_dependent(counted_ptr<call_base> call) {
    extra().dependents.push_back(std::move(call));
}

SKEIN_INLINE std::string call_base::name() const {
    if (rare && !rare->name.empty()) return rare->name;
    return fn != nullptr ? fn->name : std::string("a forwarded call");
}

SKEIN_INLINE const char* call_base::progress() const noexcept {
    if (state == phase::started) return "had started";
    const bool ran_before = lost_attempts > 0 || (rare && rare->failed_attempts > 0);
    return state == phase::sent || ran_before ? "may have run" : "did not run";
}

SKEIN_INLINE void call_base::finish_with_bytes(byte_span value) {
    if (auto read = take_value(value); !read) return fail({read.error(), nullptr});
    finished();
}

SKEIN_INLINE void call_base::finish_with_object(const objects::object_ptr& value) {
    if (auto read = take_object(value); !read) return fail({read.error(), nullptr});
    finished();
}

/// Of a call that knows nothing of objects: it copies the value.
SKEIN_INLINE result<void> call_base::take_object(const objects::object_ptr& value) {
    const auto bytes = objects::read_now(value);
    if (!bytes) return error(errc::malformed, "an object where a value was expected");
    return take_value(bytes->bytes());
}

SKEIN_INLINE bool call_base::object_must_be_read() const noexcept {
    return rare->object != nullptr && !has_value() && objects::read_now(rare->object) == nullptr;
}

SKEIN_INLINE bool call_base::is_unread() const noexcept {
    return must_be_read() && !rare->unreadable;
}

SKEIN_INLINE objects::reading_ptr call_base::bytes_of_object() const {
    if (auto now = objects::read_now(rare->object)) return now;
    if (rare->unreadable) throw *rare->unreadable;
    throw error(errc::not_supported,
                fmt::format("not supported: object {}, which may be in a file, is copied where "
                            "nothing can wait for it: into a saved state",
                            rare->object->name().number.value()))
        .with_hint("keep a skein::view of it");
}

SKEIN_INLINE void call_base::read_value() {
    if (std::exchange(extra().is_reading, true)) return;
    objects::read_then(rare->object,
                       [self = counted_ptr<call_base>(this)](result<objects::reading_ptr> got) {
                           self->value_was_read(std::move(got));
                       });
}

SKEIN_INLINE void call_base::value_was_read(result<objects::reading_ptr> got) {
    rare->is_reading = false;
    rare->unreadable.reset();
    if (got)
        rare->bytes = std::move(*got);
    else
        rare->unreadable = got.error();
    wake_waiters();
    for (const auto& call : std::exchange(rare->dependents, {})) {
        if (rare->bytes)
            call->keep(std::const_pointer_cast<objects::reading>(rare->bytes)); // until it has left
        if (call->owner != nullptr) call->owner->argument_ready(*call);
    }
    on_read();
    rare->bytes.reset();
}

/// Those who want the value of an object wait until that is read.
SKEIN_INLINE void call_base::wake_waiters() {
    if (!rare || !rare->object || failed()) {
        while (!waiters.empty()) waiters.front().wake();
        return;
    }
    const bool has_bytes = !must_be_read() || rare->unreadable;
    const auto bytes = has_bytes && !has_value() ? objects::read_now(rare->object) : nullptr;
    std::vector<waiter*> wait_on;
    while (!waiters.empty()) {
        auto& one = waiters.front();
        auto* const reads = dynamic_cast<value_waiter*>(&one);
        if (reads == nullptr || has_bytes) {
            if (reads != nullptr) reads->bytes = bytes;
            one.wake();
        } else {
            one.unlink();
            wait_on.push_back(&one);
        }
    }
    for (auto* const one : wait_on) waiters.push_back(*one);
    if (!wait_on.empty()) read_value();
}

SKEIN_INLINE void call_base::fail(failure why) {
    failure_ = std::make_unique<rt::failure>(std::move(why));
    if (kind == call_kind::create && owner != nullptr) owner->create_failed(target, *failure_);
    take_failure(*failure_);
    finished();
}

/// A failure whose refs are all gone is told to the log: the first ones of a thread, then ever
/// fewer.
SKEIN_INLINE void call_base::tell_unseen() const noexcept {
    static constinit thread_local std::uint64_t unseen = 0;
    constexpr std::uint64_t all_of_the_first = 8;
    const auto code = why().what.code();
    if (code == errc::cancelled || code == errc::closed) return; // somebody asked for that
    if (++unseen > all_of_the_first && !std::has_single_bit(unseen)) return;
    try {
        logging::warn("rt",
                      fmt::format("a call failed and nobody holds its ref: {}", why().what.what()),
                      {{"failed_unseen", unseen}});
    } catch (...) { // no memory for a line
    }
}

SKEIN_INLINE void call_base::finished() {
    // A forwarded call is the business of the worker that made it.
    if (failed() && watchers_ == 0 && !nested && owner != nullptr) tell_unseen();
    if (direct && owner != nullptr) owner->direct_call_ended(*this);
    if (owner != nullptr) std::exchange(owner, nullptr)->count_outcome(failure_ != nullptr);
    state = phase::done;
    if (rare && rare->deadline) rare->deadline->cancel();
    if (rare && rare->force) rare->force->cancel();
    if (rare) {
        rare->kept.clear();
        rare->objects.clear();
        rare->arguments.reset(); // a chain of calls must not be freed from its end in one go
    }
    if (queue) --queue->pending;
    queue = {};
    list_node<call_base>::unlink();
    parent = {};
    on_finished();
    wake_waiters();
    if (rare && !rare->dependents.empty()) release_dependents();
}

SKEIN_INLINE void call_base::release_dependents() {
    for (const auto& call : std::exchange(rare->dependents, {}))
        if (call->owner != nullptr) call->owner->argument_ready(*call);
}

SKEIN_INLINE void actor_queue::last_use_gone() noexcept {
    if (owner != nullptr) owner->drop_actor(*this);
    delete this;
}

SKEIN_INLINE void actor_queue::sending::go(turn_hook& self) {
    auto& queue = static_cast<sending&>(self).queue;
    if (queue.owner != nullptr && queue.returned > 0) queue.owner->drain(queue);
}

SKEIN_INLINE void cancel_call(call_base& call, bool by_force) noexcept {
    if (call.owner != nullptr) call.owner->cancel(call, by_force);
}

SKEIN_INLINE void check_force(const function_record& fn) {
    if (fn.actor == nullptr) return;
    throw error(
        errc::not_supported,
        fmt::format("not supported: {} is a call of an actor and cannot be cancelled by force",
                    fn.name))
        .with_hint("cancel() asks it to end; kill() ends its actor");
}

SKEIN_INLINE void keep_failures(call_base& call, std::string_view text) {
    auto& rare = call.extra();
    if (call.kind != call_kind::task) {
        rare.bad_options = error(errc::not_supported, ".retry_on is for tasks")
                               .with_hint("make the call again, or give the actor .call_retries");
    } else if (text.size() > call_head::most_retry_on) {
        rare.bad_options =
            error(errc::too_large, fmt::format(".retry_on names types of {} bytes", text.size()))
                .with_hint("name fewer, or use any_failure");
    } else if (auto known = known_failures::parse(text); known) {
        rare.retry_on = std::move(*known);
    } else {
        rare.bad_options = known.error();
    }
}

SKEIN_INLINE void keep_options(runtime& by, call_base& call, const call_options& how) {
    if (call.kind == call_kind::task) {
        by.set_demand(call, how);
        const int retries = how.retries < 0 ? default_task_retries : how.retries;
        call.retries_left = static_cast<std::uint8_t>(std::min(retries, 255));
    }
    if (!how.retry_on.empty()) keep_failures(call, how.retry_on.text());
    if (!how.name.empty()) call.extra().name = how.name.view();
    if (how.deadline != no_deadline) call.extra().limit = how.deadline;
}

SKEIN_INLINE runtime& runtime_of(const counted_ptr<actor_queue>& queue) {
    SKEIN_CHECK(queue, "a method is called through an empty actor_handle");
    SKEIN_CHECK(queue->owner != nullptr, "a method is called after the runtime has ended");
    return *queue->owner;
}

} // namespace skein::rt::detail
