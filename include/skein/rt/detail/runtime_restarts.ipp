// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: actors that are made again when their worker dies.
//
// The driver keeps their constructor's arguments and the state that came last. Calls keep their
// arguments until they have an outcome: those that their worker had not begun, and those with
// retries, go first in the line of the new instance, in the order in which they were sent.

#include <skein/core/task_context.hpp>
#include <skein/rt/detail/runtime_losses.hpp>
#include <skein/rt/detail/runtime_state.hpp>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

/// The body of a constructor's call.
SKEIN_INLINE void encode_remake(wire::writer& to, const actor_plan& plan) {
    auto terms = plan.terms;
    terms.has_snapshot = plan.snapshot.has_value();
    terms.snapshot_bytes = plan.snapshot ? plan.snapshot->size() : 0;
    terms.encode(to);
    to.raw(plan.arguments);
    if (plan.snapshot) to.raw(*plan.snapshot);
}

} // namespace detail

/// Driver: an actor's constructor leaves for a worker; what it takes to do so again stays here.
SKEIN_INLINE void runtime::remember_plan(detail::call_base& call) {
    auto* const entry = state_->actors.find(call.target);
    if (entry == nullptr || !entry->lasts() || entry->plan->fn != nullptr) return;
    wire::reader in(call.body);
    detail::call_head head;
    detail::actor_terms terms;
    if (!head.decode(in, 0, {}) || !terms.decode(in)) return; // it was written or read here
    entry->plan->fn = call.fn;
    entry->plan->arguments = to_buffer(in.rest());
}

/// Driver: the call may have to be sent once more.
SKEIN_INLINE bool runtime::keeps_body(const detail::call_base& call) const {
    if (call.kind == detail::call_kind::task || state_->upstream != nullptr) return false;
    if (call.queue) return call.queue->lasts;
    const auto* const entry = state_->actors.find(call.target);
    return entry != nullptr && entry->lasts();
}

/// Driver: the actors that lived at the link end or are being made again, and its handles are gone.
SKEIN_INLINE void runtime::begin_restarts(peer& l, losses& into) {
    auto& actors = state_->actors;
    std::vector<actor_id> here;
    for (const auto& [id, entry] : actors.entries)
        if (entry.where == &l) here.push_back(id);
    std::sort(here.begin(), here.end());
    for (const auto id : here) {
        auto& entry = actors.entries.at(id);
        const auto queue = state_->actor_queues.find(id);
        const bool wanted = !state_->closing && entry.lasts() &&
                            (queue != state_->actor_queues.end() ||
                             actors.held.is_held_besides(l.number, id) || entry.is_detached());
        if (wanted && entry.plan->may_restart()) {
            entry.where = nullptr;
            if (std::exchange(entry.is_followed, false))
                followers::take_out(*this, id, entry.beside);
            ++entry.plan->made_again;
            into.moving.push_back(id);
            if (queue == state_->actor_queues.end()) continue;
            credits::leave(*state_, *queue->second);
            queue->second->moving = true;
            continue;
        }
        if (wanted)
            into.notes[id] = fmt::format("; {} was made again {}, as .restarts allows",
                                         actor_title(id), detail::times(entry.plan->made_again));
        if (entry.plan) actors.names.erase(entry.plan->terms.name);
        std::move(entry.beside.begin(), entry.beside.end(), std::back_inserter(into.stranded));
        if (entry.is_followed) followers::take_out(*this, id, into.stranded);
        actors.entries.erase(id);
        actors.held.forget(id);
    }
    if (into.moving.empty())
        into.orphaned = actors.held.lose(l.number);
    else
        actors.late.await(l.number, into.moving);
}

/// True: a constructor or method that was at a lost worker goes on elsewhere.
SKEIN_INLINE bool runtime::take_moved(const counted_ptr<detail::call_base>& call, bool sent,
                                      losses& into) {
    if (state_->upstream != nullptr || state_->closing || call->body.empty() ||
        call->kind == detail::call_kind::task || detail::is_unwanted(*call))
        return false;
    auto* const entry = state_->actors.find(call->target);
    if (entry == nullptr || !entry->lasts() || entry->where != nullptr) return false;
    auto& plan = *entry->plan;
    if (sent && call->kind == detail::call_kind::create) {
        if (!plan.may_restart()) return false;
        ++plan.made_again;
    } else if (sent) {
        if (call->lost_attempts >= plan.terms.call_retries) return false;
        ++call->lost_attempts;
    }
    into.report.add(detail::loss_report::runs_again, call->name());
    into.moved.push_back(call);
    return true;
}

/// What began before the loss of a link goes on: at the front of the lines, in order.
SKEIN_INLINE void runtime::resume_restarts(losses& lost) {
    std::sort(lost.moved.begin(), lost.moved.end(),
              [](auto& a, auto& b) { return a->order < b->order; });
    std::map<actor_id, std::vector<counted_ptr<detail::call_base>>> own, passed;
    for (auto& call : lost.moved) {
        if (call->is_done()) continue;
        ++state_->stats.retried;
        call->on = nullptr;
        call->state = detail::phase::queued;
        if (call->kind == detail::call_kind::create) {
            if (followers::may_go(*this, call)) line_up(std::move(call));
        } else {
            (call->queue ? own : passed)[call->target].push_back(std::move(call));
        }
    }
    for (auto& [id, calls] : own) {
        const auto queue = calls.front()->queue;
        auto& line = queue->waiting;
        line.insert(line.begin() + static_cast<std::ptrdiff_t>(queue->first), calls.begin(),
                    calls.end());
        credits::sort(*queue); // some may have overtaken others of a full group
        drain(*queue);
    }
    for (auto& [id, calls] : passed) {
        if (auto* const entry = state_->actors.find(id)) {
            entry->waiting.insert(entry->waiting.begin(), calls.begin(), calls.end());
            continue;
        }
        for (auto& call : calls) place(std::move(call)); // it has ended
    }
    for (const auto id : lost.moving) make_again(id);
}

SKEIN_INLINE void runtime::make_again(actor_id id) {
    auto* const entry = state_->actors.find(id);
    if (entry == nullptr || entry->where != nullptr) return;
    const task_context::use none(nullptr); // it belongs to no call
    counted_ptr<detail::call_base> call(new detail::remake_call);
    call->fn = entry->plan->fn;
    call->kind = detail::call_kind::create;
    call->target = id;
    call->demand = entry->plan->demand;
    if (entry->plan->beside) call->extra().beside = entry->plan->beside;
    call->retries_left = 1; // there are terms
    if (!prepare(*call)) return;
    wire::writer body;
    detail::encode_head(body, *call, state_->incarnation, false, state_->dispatch.demands());
    detail::encode_remake(body, *entry->plan);
    call->body = std::move(body).take();
    call->state = detail::phase::queued;
    if (followers::may_go(*this, call)) line_up(std::move(call));
}

/// An actor is there again, or not to be expected any more: what others hold of what it had, ends.
SKEIN_INLINE void runtime::give_late_holds_back(actor_id restarted) {
    auto& actors = state_->actors;
    for (const auto lost : actors.late.settle(restarted)) {
        for (const auto id : actors.held.lose(lost)) let_go(id);
        state_->groups.table().lose_lent(lost);
    }
}

} // namespace skein::rt
