// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/node.hpp: the frames that come over links, and the calls that run here.

#include <skein/core/cancel.hpp>
#include <skein/core/sleep.hpp>
#include <skein/rt/detail/node_books.hpp>

#include <cstring>
#include <exception>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

/// A call of a worker that the driver passes on: its outcome goes back as a reply.
class forwarded_call : public call_base {
public:
    forwarded_call(node& self, std::shared_ptr<link> origin, std::uint64_t origin_id)
        : self_(self), origin_(std::move(origin)), origin_id_(origin_id) {}

protected:
    result<void> take_value(byte_span bytes) override {
        if (!origin_->up) return {};
        self_.reply(*origin_, origin_id_, [&](wire::writer& w) {
            if (kind == call_kind::create) {
                w.fixed(target); // the actor's new id
            } else {
                w.raw(bytes);
            }
        });
        return {};
    }
    void take_failure(const failure& why) override {
        if (origin_->up) self_.reply_failure(*origin_, origin_id_, why);
    }
    void on_finished() override { origin_->forwarded.erase(origin_id_); }

private:
    node& self_;
    std::shared_ptr<link> origin_;
    std::uint64_t origin_id_;
};

} // namespace detail

SKEIN_INLINE void node::on_frame(const std::shared_ptr<link>& from, const net::frame_view& f) {
    switch (f.kind) {
    case detail::message_reply: return on_reply(*from, f);
    case detail::message_call:
        if (books_->upstream == nullptr) return forward(*from, f);
        return execute(from, f.id, f.body, nullptr);
    case detail::message_started: {
        const auto index = static_cast<std::uint32_t>(f.id);
        if (index < books_->slots.size() && books_->slots[index].generation == f.id >> 32 &&
            books_->slots[index].call && books_->slots[index].call->state == detail::phase::sent)
            books_->slots[index].call->state = detail::phase::started;
        return;
    }
    case detail::message_cancel:
        if (const auto found = from->running.find(f.id); found != from->running.end())
            found->second.stop.request();
        if (const auto found = from->forwarded.find(f.id); found != from->forwarded.end())
            cancel(*found->second);
        return;
    case detail::message_drop: {
        if (books_->upstream != nullptr) {
            books_->boxes.erase(f.id);
            return;
        }
        const auto found = books_->actors.find(f.id);
        if (found == books_->actors.end() || found->second.owner != from->number) return;
        auto* where = found->second.where;
        books_->actors.erase(found);
        if (where == nullptr) return;
        --where->actors;
        if (where->wire->is_open()) where->wire->send(detail::message_drop, 0, f.id, {}, {});
        return;
    }
    default:
        throw error(errc::malformed,
                    fmt::format("frame of unknown kind {} from {}", f.kind, from->who));
    }
}

SKEIN_INLINE void node::on_reply(link& from, const net::frame_view& f) {
    const auto call = free_slot(f.id);
    if (!call) return;
    account(from, *call);
    if (call->kind == detail::call_kind::create && books_->upstream == nullptr)
        settle_create(from, *call, f.flags);
    if (!call->is_done()) {
        if (f.flags == detail::reply_ok) {
            call->finish_with_bytes(f.body);
        } else {
            call->fail(detail::decode_failure(f.body));
        }
    }
    if (!books_->queue.empty() || !books_->creations.empty()) pump();
}

/// Driver: an actor was made, or its constructor threw.
SKEIN_INLINE void node::settle_create(link& from, const detail::call_base& call,
                                      std::uint16_t outcome) {
    const auto known = books_->actors.find(call.target); // made by a worker that is still there
    const auto lane = books_->lanes.find(call.target);   // made by this process
    const bool wanted = call.nested ? known != books_->actors.end()
                                    : lane != books_->lanes.end() && !call.is_done();
    if (outcome == detail::reply_ok && wanted) {
        books_->actors[call.target].where = &from;
        if (lane != books_->lanes.end()) lane->second->on = &from;
        return;
    }
    if (known != books_->actors.end()) books_->actors.erase(known);
    --from.actors;
    if (outcome == detail::reply_ok && from.wire->is_open())
        from.wire->send(detail::message_drop, 0, call.target, {}, {});
}

/// Driver: a call of a worker goes on to where it belongs.
SKEIN_INLINE void node::forward(link& from, const net::frame_view& f) {
    wire::reader in(f.body);
    detail::call_head head;
    const auto* fn = head.decode(in) ? registry::instance().at(head.function) : nullptr;
    if (fn == nullptr)
        throw error(errc::malformed, fmt::format("a call that cannot be read from {}", from.who));
    std::shared_ptr<link> origin;
    for (const auto& l : books_->links)
        if (l.get() == &from) origin = l;
    if (!origin) return;
    detail::counted<detail::call_base> call(new detail::forwarded_call(*this, origin, f.id));
    call->fn = fn;
    call->kind = head.kind;
    call->cpus = head.cpus;
    call->retries_left = head.kind == detail::call_kind::task ? head.retries : 0;
    call->target = head.target;
    call->nested = true;
    call->body = f.take_body();
    if (head.kind == detail::call_kind::create) {
        call->target = new_actor_id();
        books_->actors[call->target] = {nullptr, from.number};
        std::memcpy(call->body.data() + detail::call_head::bytes - sizeof call->target,
                    &call->target, sizeof call->target);
    }
    from.forwarded[f.id] = call.get();
    prepare(*call);
    call->state = detail::phase::queued;
    place(std::move(call));
}

SKEIN_INLINE void node::reply(link& to, std::uint64_t id, detail::encoder encode) {
    if (!to.wire->is_open()) return;
    books_->scratch.clear();
    encode(books_->scratch);
    to.wire->send(detail::message_reply, detail::reply_ok, id, books_->scratch.bytes(), {});
}

SKEIN_INLINE void node::reply_failure(link& to, std::uint64_t id, const failure& why) {
    if (!to.wire->is_open()) return;
    books_->scratch.clear();
    detail::encode_failure(books_->scratch, why);
    to.wire->send(detail::message_reply, detail::reply_failed, id, books_->scratch.bytes(), {});
}

SKEIN_INLINE void node::reply_thrown(link& to, std::uint64_t id, const function_record& fn) {
    reply_failure(to, id, detail::failure_of(std::current_exception(), fn, books_->name));
}

/// Worker: runs one call. box: the actor, if the call has waited for its turn. A plain call that has
/// just arrived lets coroutine calls of its actor go first that have not started yet; coroutine calls
/// start from the run queue, so in order.
SKEIN_INLINE void node::execute(const std::shared_ptr<link>& from, std::uint64_t id, byte_span body,
                                std::shared_ptr<detail::actor_box> box) {
    wire::reader in(body);
    detail::call_head head;
    const auto* fn = head.decode(in) ? registry::instance().at(head.function) : nullptr;
    if (fn == nullptr)
        throw error(errc::malformed, fmt::format("a call that cannot be read from {}", from->who));
    if (head.kind == detail::call_kind::method && !box) {
        const auto found = books_->boxes.find(head.target);
        if (found == books_->boxes.end()) {
            const error gone =
                error(errc::not_found, fmt::format("actor {} is gone", head.target))
                    .with_hint("the last handle in the process that made it was dropped");
            return reply_failure(*from, id, {gone, nullptr});
        }
        box = found->second;
        if (box->not_started > 0 && !fn->is_coroutine) {
            ++box->not_started;
            books_->calls.spawn(execute_later(from, id, to_buffer(body), std::move(box)));
            return;
        }
    }
    ++books_->stats.executed;
    detail::incoming_call call{*this, from, id, *fn, head.target, in, std::move(box)};
    struct executing_guard {
        node* before = executing_;
        ~executing_guard() { executing_ = before; }
    } const guard;
    executing_ = this;
    fn->invoke(call);
}

SKEIN_INLINE task<void> node::execute_later(std::shared_ptr<link> from, std::uint64_t id,
                                            byte_buffer body,
                                            std::shared_ptr<detail::actor_box> box) {
    --box->not_started;
    execute(from, id, body, std::move(box));
    co_return;
}

SKEIN_INLINE void node::start(detail::incoming_call& call, task<void> work) {
    auto& running = call.from->running[call.id];
    auto guarded = with_cancel(running.stop.token(), std::move(work));
    books_->calls.spawn(run_call(call.from, call.id, std::move(guarded)));
    books_->fresh.push_back(call.id);
    if (books_->fresh.size() == 1) books_->calls.spawn(tell_started(call.from));
}

SKEIN_INLINE task<void> node::run_call(std::shared_ptr<link> from, std::uint64_t id,
                                       task<void> work) {
    co_await work;
    from->running.erase(id);
}

/// Runs after the first steps of the calls that have just started: those that are not done by then
/// have suspended, and their submitter is told.
SKEIN_INLINE task<void> node::tell_started(std::shared_ptr<link> to) {
    co_await yield();
    for (const auto id : std::exchange(books_->fresh, {})) {
        const auto found = to->running.find(id);
        if (found == to->running.end() || found->second.told || !to->wire->is_open()) continue;
        found->second.told = true;
        to->wire->send(detail::message_started, 0, id, {}, {});
    }
    co_return;
}

} // namespace skein::rt
