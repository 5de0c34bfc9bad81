// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: how much a process sends ahead of what has begun. The rest
// waits here, where it can be cancelled, moved or refused.
//
// Each actor has a line of credit in each process that calls it, and each worker one at its driver
// for tasks that occupy no cores. A call takes from it when it is sent, and gives back when its
// executor has begun it, not when it ends: of thousands that wait for one that comes later, that
// one must get through. That it has begun is known anyhow: by its reply, or by `started`, which a
// coroutine sends as it suspends. So nothing is sent for credit alone, but in two cases:
//
// A call that waits at its executor for others of its method_group (or of .max_concurrency) says
// `held`. It is counted for that gate from then on. When as many are held as there is credit for,
// more of its kind wait here, in a line of their own, and let the others pass: by then it is
// certain that the gate is full, so that no order is broken that anybody was promised. A call that
// was taken back is in its worker's memory until its place has come: then the worker says `passed`.
//
// What goes from one worker to another by way of the driver has the credit of the first: the driver
// passes on `started` and `held`, so that all that is under way behind it is bounded, on both links
// and between.

#include <skein/rt/detail/runtime_state.hpp>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

namespace skein::rt {

SKEIN_INLINE bool runtime::credits::has(const state& of, const detail::credit_line& line) noexcept {
    return line.calls < of.credit_calls && line.bytes < of.credit_bytes;
}

/// Nothing of an actor's line can be sent before credit comes back.
SKEIN_INLINE bool runtime::credits::is_spent(const state& of,
                                             const detail::actor_queue& queue) noexcept {
    return queue.on != nullptr && !queue.moving && !queue.lost && !has(of, queue.credit);
}

/// A call whose arguments are encoded waits in its actor's line, or goes at once if nothing is in
/// its way.
SKEIN_INLINE void runtime::credits::line_up(runtime& self, counted_ptr<detail::call_base> call) {
    auto& of = *self.state_;
    auto& raw = *call;
    auto& queue = *raw.queue;
    if (of.closing) return self.refuse(raw, self.is_closing(raw.name()));
    const auto written = of.scratch.bytes();
    if (written.size() <= byte_line::most_bytes) {
        queue.arguments.push(written);
        raw.kept = static_cast<std::uint32_t>(written.size());
    } else {
        raw.body = detail::body_to_keep(of.scratch);
    }
    raw.state = detail::phase::queued;
    if (is_spent(of, queue)) { // the line holds it
        queue.waiting.push_back(std::move(call));
    } else {
        queue.waiting.push_back(call);
        self.drain(queue);
    }
    waits_here(self, raw);
}

/// The bytes of the first call of a line, until the next call is lined up or taken.
SKEIN_INLINE mut_byte_span runtime::credits::take_arguments(detail::actor_queue& queue,
                                                            detail::call_base& call) noexcept {
    if (call.kept == 0) return call.body;
    return queue.arguments.take(std::exchange(call.kept, 0));
}

/// Sends a call that has waited in its actor's line. As runtime::send() does, for what can be in a
/// line.
SKEIN_INLINE void runtime::credits::send(runtime& self, detail::actor_queue& queue,
                                         counted_ptr<detail::call_base> call) {
    auto& of = *self.state_;
    auto& raw = *call;
    peer& to = *queue.on;
    const bool keeps = queue.lasts && of.upstream == nullptr;
    if (keeps && raw.kept != 0) raw.body = to_buffer(take_arguments(queue, raw));
    const bool is_small = raw.kept != 0;
    auto large = is_small || keeps ? byte_buffer() : std::exchange(raw.body, {});
    const mut_byte_span bytes = is_small ? take_arguments(queue, raw)
                                : keeps  ? mut_byte_span(raw.body)
                                         : mut_byte_span(large);
    raw.slot = self.take_slot(std::move(call));
    take(of, to, raw, bytes.size());
    if (raw.rare) detail::stamp_deadline(raw, bytes);
    if (self.transmit(to, raw, bytes, is_small || keeps ? nullptr : &large) || keeps) return;
    raw.body = is_small ? to_buffer(bytes) : std::move(large);
}

/// Of many that wait the next ones are in no cache: they are fetched while others are sent.
SKEIN_INLINE void runtime::credits::look_ahead(const detail::actor_queue& queue) noexcept {
    constexpr std::size_t far = 8, line = 64;
    queue.arguments.look_ahead();
    if (queue.waiting.size() - queue.first <= far) return;
    const auto* const later =
        reinterpret_cast<const std::byte*>(queue.waiting[queue.first + far].get());
    for (std::size_t at = 0; at < sizeof(detail::call_base); at += line)
        __builtin_prefetch(later + at);
}

/// It waits for its gate, and others need not wait for it.
SKEIN_INLINE bool runtime::credits::stands_aside(const state& of, const detail::actor_queue& queue,
                                                 const detail::call_base& call) noexcept {
    if (queue.gates.size() <= call.fn->group) return false;
    const auto& gate = queue.gates[call.fn->group];
    return !gate.waiting.empty() || !has(of, gate.held);
}

SKEIN_INLINE void runtime::credits::take(state& of, peer& to, detail::call_base& call,
                                         std::size_t bytes) noexcept {
    detail::credit_line* line = nullptr;
    if (call.kind == detail::call_kind::method && call.queue)
        line = &call.queue->credit;
    else if (call.kind == detail::call_kind::task && call.cpus == 0 && of.upstream == nullptr)
        line = &to.room.credit;
    call.held = false;
    call.taken = {};
    if (line == nullptr) return;
    constexpr std::size_t most = std::numeric_limits<std::uint32_t>::max();
    call.taken = {line->number, static_cast<std::uint32_t>(std::min(bytes, most))};
    line->take(call.taken.bytes);
}

/// The actor whose line has that number; nullptr: the line is no more.
SKEIN_INLINE detail::actor_queue* runtime::credits::queue_of(state& of, actor_id id,
                                                             detail::actor_queue* known,
                                                             std::uint32_t line) noexcept {
    if (known == nullptr) {
        const auto found = of.actor_queues.find(id);
        if (found == of.actor_queues.end()) return nullptr;
        known = found->second;
    }
    return known->credit.number == line ? known : nullptr;
}

/// Its executor has begun it, or never will. Gives the actor if something should go there now; else
/// it goes, with what else comes back, at the end of the turn.
SKEIN_INLINE counted_ptr<detail::actor_queue> runtime::credits::give(
    state& of, peer& from, detail::call_base& call) noexcept {
    const auto taken = std::exchange(call.taken, {});
    if (taken.line == 0) return {};
    if (call.kind == detail::call_kind::task) {
        from.room.credit.give(taken.bytes);
        return {};
    }
    auto* const queue = queue_of(of, call.target, call.queue.get(), taken.line);
    if (queue == nullptr) return {};
    auto& line =
        std::exchange(call.held, false) ? queue->gates[call.fn->group].held : queue->credit;
    line.give(taken.bytes);
    if (!queue->has_waiting() && !queue->credit_came) return {};
    if (++queue->returned >= of.credit_batch) return counted_ptr<detail::actor_queue>(queue);
    loop::current().at_turn_end(queue->sends);
    return {};
}

/// It runs, and has suspended.
SKEIN_INLINE void runtime::credits::on_started(runtime& self, peer& from, slot_id id) {
    const counted_ptr<detail::call_base> call(self.call_at(from, id));
    if (!call) return;
    if (call->state == detail::phase::sent) call->state = detail::phase::started;
    const bool is_task = call->kind == detail::call_kind::task;
    if (call->nested && call->kind == detail::call_kind::method)
        static_cast<const detail::forwarded_call&>(*call).pass_on(detail::message_started);
    if (const auto queue = give(*self.state_, from, *call)) self.drain(*queue);
    if (is_task && self.state_->dispatch.waits_for_credit()) self.pump();
}

/// It waits behind a gate.
SKEIN_INLINE void runtime::credits::on_held(runtime& self, peer& from, slot_id id) {
    const counted_ptr<detail::call_base> call(self.call_at(from, id));
    if (!call || call->kind != detail::call_kind::method) return;
    if (call->nested)
        static_cast<const detail::forwarded_call&>(*call).pass_on(detail::message_held);
    if (call->taken.line == 0 || call->held) return;
    const counted_ptr<detail::actor_queue> queue(
        queue_of(*self.state_, call->target, call->queue.get(), call->taken.line));
    if (!queue) return;
    const std::size_t gate = call->fn->group;
    if (queue->gates.size() <= gate) queue->gates.resize(gate + 1);
    queue->credit.give(call->taken.bytes);
    queue->gates[gate].held.take(call->taken.bytes);
    call->held = true;
    self.drain(*queue);
}

/// Driver: a call is counted at its worker no more; it is in the worker's memory still.
SKEIN_INLINE void runtime::credits::keep(detail::call_base& call) {
    const auto taken = std::exchange(call.taken, {});
    if (taken.line != 0) call.on->taken_back[call.slot] = {call.target, taken};
}

/// Worker: the place of a call has come that was taken back.
SKEIN_INLINE void runtime::credits::on_passed(runtime& self, peer& from, slot_id id) {
    const auto node = from.taken_back.extract(id);
    if (node.empty()) return;
    const auto [target, taken] = node.mapped();
    if (!target) {
        from.room.credit.give(taken.bytes);
        if (self.state_->dispatch.waits_for_credit()) self.pump();
        return;
    }
    const counted_ptr<detail::actor_queue> queue(
        queue_of(*self.state_, target, nullptr, taken.line));
    if (!queue) return;
    queue->credit.give(taken.bytes);
    self.drain(*queue);
}

/// An actor is no more where it was, or not yet anywhere: its calls have a new line, and wait in
/// one.
SKEIN_INLINE void runtime::credits::leave(state& of, detail::actor_queue& queue) {
    queue.on = nullptr;
    if (++of.last_line < 2) of.last_line = 2;
    queue.credit = {of.last_line};
    bool any = false;
    for (auto& gate : queue.gates) {
        any = any || !gate.waiting.empty();
        std::move(gate.waiting.begin(), gate.waiting.end(), std::back_inserter(queue.waiting));
    }
    queue.gates.clear();
    if (any) sort(queue);
}

/// In the order in which they were made.
SKEIN_INLINE void runtime::credits::sort(detail::actor_queue& queue) {
    const auto begin = queue.waiting.begin() + static_cast<std::ptrdiff_t>(queue.first);
    const auto earlier = [](const auto& a, const auto& b) { return a->number < b->number; };
    if (!std::is_sorted(begin, queue.waiting.end(), earlier))
        std::sort(begin, queue.waiting.end(), earlier);
}

/// Sends what stands aside, as far as its gate takes more. It is older than what waits in the line
/// of all.
SKEIN_INLINE void runtime::credits::send_held(runtime& self, detail::actor_queue& queue) {
    auto& of = *self.state_;
    for (std::size_t i = 0; i < queue.gates.size(); ++i) {
        while (i < queue.gates.size() && !queue.gates[i].waiting.empty()) {
            auto& gate = queue.gates[i];
            const bool goes = queue.on != nullptr && !is_cut(queue) && has(of, queue.credit) &&
                              has(of, gate.held);
            if (!goes && !gate.waiting.front()->is_done()) break;
            auto call = std::move(gate.waiting.front());
            gate.waiting.pop_front();
            if (!call->is_done()) send(self, queue, std::move(call));
        }
    }
}

/// A call that has waited here is done. It stays in its line for a while, without its arguments.
SKEIN_INLINE void runtime::credits::forget(detail::actor_queue& queue, detail::call_base& call) {
    call.body = {};
    constexpr std::uint32_t few = 64;
    if (++queue.ended < few || 2 * std::size_t{queue.ended} < queue.waiting.size() - queue.first)
        return;
    queue.ended = 0;
    byte_line arguments;
    const auto is_done = [](const auto& one) { return one->is_done(); };
    const auto begin = queue.waiting.begin() + static_cast<std::ptrdiff_t>(queue.first);
    for (auto at = begin; at != queue.waiting.end(); ++at) {
        auto& one = **at;
        if (one.kept == 0) continue;
        const auto bytes = queue.arguments.take(one.kept);
        if (!is_done(*at)) arguments.push(bytes);
    }
    queue.arguments = std::move(arguments);
    queue.waiting.erase(std::remove_if(begin, queue.waiting.end(), is_done), queue.waiting.end());
    for (auto& gate : queue.gates) std::erase_if(gate.waiting, is_done);
}

/// The program ends: what waits for credit did not run.
SKEIN_INLINE void runtime::credits::fail_all(runtime& self, const error& why) {
    std::vector<counted_ptr<detail::actor_queue>> all;
    for (const auto& [id, queue] : self.state_->actor_queues) all.emplace_back(queue);
    std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a->id < b->id; });
    for (const auto& queue : all) {
        std::vector<counted_ptr<detail::call_base>> calls(
            queue->waiting.begin() + static_cast<std::ptrdiff_t>(queue->first),
            queue->waiting.end());
        for (const auto& gate : queue->gates)
            calls.insert(calls.end(), gate.waiting.begin(), gate.waiting.end());
        for (const auto& call : calls)
            if (!call->is_done()) call->fail({why, nullptr});
        tell_credit(*self.state_, *queue);
    }
}

// ---- who waits for credit ----------------------------------------------------------------------

/// Of calls whose actor has no place at the moment one may wait here.
SKEIN_INLINE bool runtime::credits::has_credit(const state& of,
                                               const detail::actor_queue& queue) noexcept {
    if (queue.lost || queue.owner == nullptr || of.closing) return true;
    return !queue.has_waiting() && has(of, queue.credit);
}

SKEIN_INLINE void runtime::credits::tell_credit(const state& of,
                                                detail::actor_queue& queue) noexcept {
    if (!queue.credit_came || !has_credit(of, queue)) return;
    queue.credit_came->set();
    queue.credit_came->reset(); // who is woken looks again: another one may have been faster
}

SKEIN_INLINE task<void> runtime::wait_credit(counted_ptr<detail::actor_queue> queue) {
    while (!credits::has_credit(*state_, *queue)) {
        if (!queue->credit_came) queue->credit_came = std::make_unique<event>();
        co_await queue->credit_came->wait();
    }
}

/// Worker: a task whose call waits here leaves its cores to others, as one whose call is under way.
SKEIN_INLINE void runtime::credits::waits_here(runtime& self, detail::call_base& call) {
    if (self.state_->upstream == nullptr || call.on != nullptr || call.direct ||
        call.state != detail::phase::queued)
        return;
    self.direct_call_began(call);
}

} // namespace skein::rt
