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
    auto all = objects.adopt(from.incarnation, f.flags, body);
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
