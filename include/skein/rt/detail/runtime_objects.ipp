// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: objects in calls of this process, and in their answers.

#include <skein/core/awaitable.hpp>
#include <skein/core/loop.hpp>
#include <skein/rt/detail/object_message.hpp>
#include <skein/rt/detail/runtime_state.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {
/// So much a link takes at once, without its loop.
inline constexpr std::size_t leaves_at_once = std::size_t{128} << 10;
} // namespace detail

/// A constructor's are kept for longer than its call. What a plain function calls leaves while that
/// keeps the loop, if it can: it does not wait for the store.
SKEIN_INLINE bool runtime::large_arguments::are(runtime& self, const detail::call_base& call,
                                                std::size_t bytes) noexcept {
    return bytes >= limit::inline_bytes && call.kind != detail::call_kind::create &&
           (bytes > detail::leaves_at_once || !loop::current().is_occupied()) &&
           self.state_->replies.objects().takes(bytes) &&
           (!call.queue || call.queue->on == nullptr ||
            call.queue->on->role != detail::peer_role::here);
}

SKEIN_INLINE void runtime::large_arguments::begin(runtime& self,
                                                  const counted_ptr<detail::call_base>& call,
                                                  byte_buffer body) {
    if (self.state_->closing) return self.refuse(*call, self.is_closing(call->name()));
    if (call->kind == detail::call_kind::method) call->queue->waiting.push_back(call);
    go_on(self, call, std::move(body));
}

SKEIN_INLINE void runtime::large_arguments::go_on(runtime& self,
                                                  counted_ptr<detail::call_base> call,
                                                  byte_buffer body) {
    (void)call->extra();
    call->state = detail::phase::preparing;
    self.state_->replies.objects().spawn(make(&self, std::move(call), std::move(body)));
}

SKEIN_INLINE task<void> runtime::large_arguments::make(runtime* self,
                                                       counted_ptr<detail::call_base> call,
                                                       byte_buffer body) {
    wire::reader in(body);
    detail::call_head head;
    (void)head.decode(in, self->state_->incarnation, loop::current().now());
    const auto head_bytes = in.position();
    byte_span whole = body;
    if (std::vector<detail::object_use> known; !call->rare->objects.empty())
        (void)detail::take_uses(whole, known);
    auto making = as_result(self->state_->replies.objects().make(whole.subspan(head_bytes)));
    const auto made = co_await making;
    if (call->is_done()) co_return; // who has ended it has looked after its line
    if (!made && made.error().code() == errc::cancelled) {
        self->refuse(*call, self->is_closing(call->name()));
        co_return;
    }
    if (made && *made) {
        call->extra().objects.push_back({(*made)->name(), detail::all_arguments, 0});
        call->keep(std::const_pointer_cast<objects::object>(*made));
        wire::writer small;
        small.raw(byte_span(body).first(head_bytes));
        detail::append_objects(small, *call);
        body = std::move(small).take();
    }
    call->body = std::move(body);
    call->state = detail::phase::queued;
    if (const auto queue = call->queue) {
        self->drain(*queue);
        credits::waits_here(*self, *call);
    } else {
        self->place(std::move(call));
    }
}

SKEIN_INLINE void runtime::object_replies::take(runtime& self, peer& from, detail::call_base& call,
                                                const net::frame_view& f) {
    byte_span body = f.body;
    auto& objects = self.state_->replies.objects();
    std::vector<objects::object_ptr> all;
    try {
        all = objects.adopt(from.incarnation, f.flags, body);
    } catch (const error& e) {
        if (e.code() != errc::exhausted) throw;
        return has_no_room(self, from, call, f.flags, body, e);
    }
    const bool is_only_passed_on = self.state_->upstream == nullptr && call.nested;
    if (is_only_passed_on || objects.are_here(all))
        return finish(self, from, call, f, body, std::move(all));
    std::vector<counted_ptr<detail::actor_queue>> lent; // these are held at once, too
    if ((f.flags & detail::reply_lends) != 0) {
        detail::lending_reply parts;
        if (!parts.decode(body))
            throw error(errc::malformed,
                        fmt::format("a reply that cannot be read from {}", from.who));
        for (const auto id : parts.actors) lent.push_back(self.hold_actor(id, 0));
    }
    call.on = nullptr; // its link may end meanwhile
    objects.spawn(bring(&self, from.shared_from_this(), counted_ptr(&call), f.flags,
                        to_buffer(body), std::move(all), std::move(lent)));
}

/// For a value that comes along: this call fails, and its link goes on. body: without the list.
SKEIN_INLINE void runtime::object_replies::has_no_room(runtime& self, peer& from,
                                                       detail::call_base& call, std::uint16_t flags,
                                                       byte_span body, const error& why) {
    call.fail({why, nullptr});
    if (self.state_->upstream == nullptr || (flags & detail::reply_lends) == 0) return;
    net::frame_view lent; // the handles in it are nobody's
    lent.flags = detail::reply_lends;
    lent.body = body;
    self.give_back(call, from.incarnation, lent);
}

/// They are on another node.
SKEIN_INLINE task<void> runtime::object_replies::bring(
    runtime* self, std::shared_ptr<peer> from, counted_ptr<detail::call_base> call,
    std::uint16_t flags, byte_buffer body, std::vector<objects::object_ptr> all,
    [[maybe_unused]] std::vector<counted_ptr<detail::actor_queue>> lent) {
    auto bringing = as_result(self->state_->replies.objects().bring(all));
    const auto came = co_await bringing;
    if (call->is_done()) co_return;
    if (!came && came.error().code() == errc::cancelled) {
        self->refuse(*call, self->is_closing(call->name()));
        co_return;
    }
    if (!came && runs_again(*self, *call, came.error())) co_return;
    if (!came) {
        call->fail({error(came.error().code(),
                          fmt::format("the value of {}: {}", call->name(), came.error().text()))
                        .with_hint(std::string(came.error().hint())),
                    nullptr});
        co_return;
    }
    net::frame_view f;
    f.flags = flags;
    f.body = body;
    try {
        finish(*self, *from, *call, f, body, std::move(all));
    } catch (const error& e) {
        call->fail({e, nullptr});
    }
}

/// Driver: what has ended with the node on which it was made is made again, as if its worker had been
/// lost a moment before.
SKEIN_INLINE bool runtime::object_replies::runs_again(runtime& self, detail::call_base& call,
                                                      const error& why) {
    const bool is_lost = why.code() == errc::object_lost || why.code() == errc::not_found;
    if (!is_lost || self.state_->upstream != nullptr || self.state_->closing ||
        self.state_->given_up || call.kind != detail::call_kind::task || call.retries_left == 0 ||
        call.is_spent || detail::is_unwanted(call) || call.body.empty())
        return false;
    --call.retries_left;
    ++call.lost_attempts;
    ++self.state_->stats.retried;
    call.on = nullptr;
    call.alone = 0;
    call.state = detail::phase::queued;
    call.begin_again();
    self.place(counted_ptr(&call));
    return true;
}

SKEIN_INLINE void runtime::object_replies::values_wanted(runtime& self, peer& from, slot_id id) {
    auto* const call = self.call_at(from, id);
    const auto refuse = [&] {
        wire::writer w;
        detail::encode_failure(w,
                               {error(errc::object_lost, "nobody has its objects any more"), {}});
        if (from.is_open())
            from.send(detail::message_values, detail::reply_failed, id.value(), w.bytes());
    };
    if (call == nullptr || call->is_done()) return refuse();
    if (self.state_->upstream == nullptr && call->nested) {
        const auto& passed = static_cast<const detail::forwarded_call&>(*call);
        const auto& origin = passed.who_asks();
        if (!origin->is_open()) return refuse();
        return origin->send(detail::message_values_wanted, 0, passed.origin_id().value(), {});
    }
    if (!call->rare || call->rare->objects.empty() || !self.state_->replies.objects().has_store())
        return refuse();
    self.state_->replies.objects().spawn(
        give_values(&self, from.shared_from_this(), id, counted_ptr(call)));
}

SKEIN_INLINE task<void> runtime::object_replies::give_values(runtime* self,
                                                             std::shared_ptr<peer> to, slot_id id,
                                                             counted_ptr<detail::call_base> call) {
    auto& objects = self->state_->replies.objects();
    auto uses = call->rare->objects;
    std::vector<objects::object_ptr> all;
    std::optional<error> why;
    for (const auto& one : uses) {
        all.push_back(objects.store().find(one.name.key()));
        if (!all.back()) why = error(errc::object_lost, "an object of the call is held no more");
    }
    if (!why) {
        auto packing = as_result(objects.values_of(std::move(uses), std::move(all)));
        auto packed = co_await packing;
        if (!packed && packed.error().code() == errc::cancelled) throw packed.error();
        if (!to->is_open()) co_return;
        try {
            if (!packed) throw packed.error();
            net::frame f;
            f.kind = detail::message_values;
            f.id = id.value();
            f.body = std::move(*packed);
            to->send(std::move(f));
            co_return;
        } catch (const error& e) {
            why = e;
        }
    }
    if (!to->is_open()) co_return;
    wire::writer w;
    detail::encode_failure(w, {std::move(*why), nullptr});
    to->send(detail::message_values, detail::reply_failed, id.value(), w.bytes());
}

/// From who has sent the call, or, at the driver, from the worker for which it has passed it on.
SKEIN_INLINE void runtime::object_replies::values(runtime& self, peer& from,
                                                  const net::frame_view& f) {
    const slot_id id(f.id);
    const bool is_passed_on = self.state_->upstream == nullptr;
    if (!is_passed_on)
        return self.state_->replies.objects().take_values(from, id, f.flags != 0, f.body);
    const auto found = from.forwarded.find(id);
    if (found == from.forwarded.end()) return;
    const auto& call = *found->second;
    if (call.on == nullptr || !call.on->is_open()) return;
    net::frame out;
    out.kind = detail::message_values;
    out.flags = f.flags;
    out.id = call.slot.value();
    out.body = f.take_body();
    call.on->send(std::move(out));
}

/// All of them can be read here, or are passed on. body: without the list of objects.
SKEIN_INLINE void runtime::object_replies::finish(runtime& self, peer& from,
                                                  detail::call_base& call, const net::frame_view& f,
                                                  byte_span body,
                                                  std::vector<objects::object_ptr> all) {
    if (f.flags == detail::reply_object) return call.finish_with_object(all.front());
    const bool is_passed_on = self.state_->upstream == nullptr && call.nested;
    if (is_passed_on) {
        auto& passed = static_cast<detail::forwarded_call&>(call);
        detail::lending_reply parts;
        const bool lends = (f.flags & detail::reply_lends) != 0;
        if (lends && !parts.decode(body))
            throw error(errc::malformed,
                        fmt::format("a reply that cannot be read from {}", from.who));
        if (passed.origin().up)
            for (const auto id : parts.actors) self.state_->actors.hold(passed.origin().number, id);
        return passed.pass_refs(f.flags, f.body, std::move(all));
    }
    if (call.fn != nullptr && call.fn->gives_views &&
        !std::all_of(all.begin(), all.end(),
                     [](const auto& one) { return objects::read_now(one) != nullptr; })) {
        const counted_ptr<detail::call_base> kept(&call);
        return self.state_->replies.objects().spawn(read_and_take(
            &self, from.shared_from_this(), kept, f.flags, to_buffer(body), std::move(all)));
    }
    take_read(self, from, call, f.flags, body);
}

SKEIN_INLINE void runtime::object_replies::take_read(runtime& self, peer& from,
                                                     detail::call_base& call, std::uint16_t flags,
                                                     byte_span body) {
    const detail::executing_mark by(&self);
    if ((flags & detail::reply_lends) == 0) return call.finish_with_bytes(body);
    net::frame_view inner;
    inner.flags = detail::reply_lends;
    inner.body = body;
    self.take_reply(from, call, inner);
}

/// There are views in the value, of objects that may be in files.
SKEIN_INLINE task<void> runtime::object_replies::read_and_take(
    runtime* self, std::shared_ptr<peer> from, counted_ptr<detail::call_base> call,
    std::uint16_t flags, byte_buffer body, std::vector<objects::object_ptr> all) {
    auto reading = as_result(self->state_->replies.objects().store().read(std::move(all)));
    const auto read = co_await reading;
    if (call->is_done()) co_return;
    std::optional<error> why;
    try {
        if (!read) throw read.error();
        take_read(*self, *from, *call, flags, body);
    } catch (const error& e) {
        why = e;
    }
    if (why && !call->is_done()) call->fail({std::move(*why), nullptr});
}

} // namespace skein::rt
