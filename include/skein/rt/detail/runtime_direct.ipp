// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: a worker calls actors on other workers, and on itself,
// without its driver.
//
// Before its first call of an actor a worker asks the driver where that is; calls wait in the
// actor's line until the answer is there, and from then on all of them take the same way, so that
// they arrive in order. There is one link from each worker that calls to each that is called; who
// calls dials.

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/log.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/link.hpp>
#include <skein/rt/detail/direct_state.hpp>
#include <skein/rt/detail/runtime_losses.hpp>
#include <skein/rt/detail/space_state.hpp>
#include <skein/rt/worker_link.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

/// For the driver to say what became of a worker: it waits for news itself, from an agent perhaps.
inline constexpr std::chrono::milliseconds news_of_end{8'000};
/// For a worker that computes to answer who dials it.
inline constexpr std::chrono::milliseconds busy_worker{30'000};

SKEIN_INLINE net::connection_options direct_options(const runtime& self, const net::token& secret,
                                                    bool in_memory, const direct_hello& hello) {
    worker_link how{secret};
    how.in_memory = in_memory;
    how.start = busy_worker;
    auto o = worker_connection(self, how);
    o.self.purpose = direct_purpose;
    o.self.extra = wire::encode(hello);
    return o;
}

SKEIN_INLINE task<void> cut_later(std::shared_ptr<peer> link, std::string why) {
    if (link->wire->is_connected()) co_await sleep_for(time_constants::lan().last_word);
    link->abort(error(errc::peer_lost, std::move(why)));
}

} // namespace detail

// ---- the way to an actor -----------------------------------------------------------------------

/// Worker: an actor is called for the first time, or its way is not known any more.
SKEIN_INLINE void runtime::find_way(detail::actor_queue& queue) {
    if (queue.first == queue.waiting.size()) return;
    if (state_->direct->via == nullptr) {
        queue.on = state_->upstream;
        queue.moving = false;
        return;
    }
    const auto* const box = state_->local_actors.find(queue.id);
    if (box == nullptr) {
        const auto known = state_->direct->known.find(queue.id);
        if (loop::current().is_occupied() && !state_->direct->has_link(queue.id)) {
            queue.on = state_->upstream;
            queue.moving = false;
            queue.by_driver = true;
            return;
        }
        if (known == state_->direct->known.end()) return ask_where(queue, false);
        return state_->direct->go_there(queue, known->second);
    }
    if ((*box)->lasts) return ask_where(queue, false);
    queue.on = &here();
    queue.moving = false;
}

/// Worker: a plain function has called it through the driver. When all of those calls are over, and
/// somebody calls who can wait for an answer, the way is looked for.
SKEIN_INLINE void runtime::look_for_way(detail::actor_queue& queue) {
    if (queue.pending > 1 || queue.has_waiting() || queue.lost || loop::current().is_occupied())
        return;
    queue.by_driver = false;
    credits::leave(*state_, queue);
    queue.moving = true;
}

/// Its link has broken: what is called now waits until it is known what became of the worker.
SKEIN_INLINE bool runtime::is_cut(const detail::actor_queue& queue) noexcept {
    return queue.on != nullptr && queue.on->role == detail::peer_role::dialled &&
           !queue.on->is_open();
}

SKEIN_INLINE void runtime::ask_where(detail::actor_queue& queue, bool is_cut_off) {
    queue.asked = true;
    if (!state_->upstream->is_open()) return; // its end settles the line
    const auto body = wire::encode(detail::where_question{queue.id.value(), is_cut_off});
    state_->upstream->send(detail::message_where, 0, 0, body);
}

SKEIN_INLINE void runtime::on_there(const net::frame_view& f) {
    auto said = wire::decode<detail::where_answer>(f.body);
    if (!said || said->verdict > static_cast<std::uint8_t>(detail::whereabouts::at_worker))
        throw error(errc::malformed, "an answer about an actor that cannot be read");
    const actor_id id(said->actor);
    const auto found = state_->actor_queues.find(id);
    if (found == state_->actor_queues.end() || !found->second->asked) return;
    const counted_ptr<detail::actor_queue> queue(found->second);
    const auto verdict = static_cast<detail::whereabouts>(said->verdict);
    const bool is_own = said->incarnation == state_->incarnation;
    const bool at_worker = verdict == detail::whereabouts::at_worker;
    if (verdict == detail::whereabouts::gone && !said->who.empty())
        return close_queue(id, {error(errc::not_found, std::move(said->who)), nullptr});
    if (verdict == detail::whereabouts::gone ||
        (at_worker && is_own && state_->local_actors.find(id) == nullptr))
        return close_queue(id, detail::ended(actor_title(id), "is gone"));
    if (!at_worker || is_own) {
        queue->on = at_worker ? &here() : state_->upstream;
        queue->moving = queue->asked = false;
        return drain(*queue);
    }
    auto& at = state_->direct->targets[said->incarnation];
    at.who = std::move(said->who);
    at.addresses = std::move(said->addresses);
    auto& known = state_->direct->known;
    if (known.size() >= detail::direct_state::most_known) known.clear();
    known[id] = said->incarnation;
    state_->direct->go_there(*queue, said->incarnation);
    drain(*queue);
}

namespace detail {

/// The calls of an actor go to that worker, over the link that there is or will be.
SKEIN_INLINE void direct_state::go_there(actor_queue& queue, std::uint64_t incarnation) {
    auto& at = targets.at(incarnation);
    if (at.is_unreachable) return self.ask_where(queue, true);
    if (at.link && at.link->is_open()) {
        queue.on = at.link.get();
        queue.moving = queue.asked = false;
        return;
    }
    queue.asked = true;
    at.waiting.push_back(queue.id);
    const task_context::use none(nullptr); // the link belongs to no call
    if (!std::exchange(at.is_served, true)) tasks.spawn(runtime::reach(&self, incarnation));
}

/// There is one to that actor's worker.
SKEIN_INLINE bool direct_state::has_link(actor_id actor) const {
    const auto at = known.find(actor);
    const auto to = at != known.end() ? targets.find(at->second) : targets.end();
    return to != targets.end() && !to->second.is_unreachable && to->second.link &&
           to->second.link->is_open();
}

/// That worker has ended.
SKEIN_INLINE void direct_state::forget(std::uint64_t incarnation) {
    targets.erase(incarnation);
    std::erase_if(known, [&](const auto& one) { return one.second == incarnation; });
}

} // namespace detail

/// Worker: an actor has no way any more, for this reason.
SKEIN_INLINE void runtime::close_queue(actor_id id, const failure& why) {
    const auto found = state_->actor_queues.find(id);
    if (found == state_->actor_queues.end()) return;
    const counted_ptr<detail::actor_queue> queue(found->second);
    credits::leave(*state_, *queue);
    queue->moving = queue->asked = false;
    if (!queue->lost) queue->lost = why;
    fail_queue(*queue);
}

/// Worker: its driver has gone.
SKEIN_INLINE void runtime::close_queues() {
    std::vector<actor_id> all;
    for (const auto& [id, queue] : state_->actor_queues) all.push_back(id);
    std::sort(all.begin(), all.end());
    const failure why{state_->space_server_end.value_or(error(errc::closed, "the driver has gone")),
                      nullptr};
    for (const auto id : all) close_queue(id, why);
}

// ---- links to others ---------------------------------------------------------------------------

/// Dials a worker and looks after the link, as long as there are calls for it.
SKEIN_INLINE task<void> runtime::reach(runtime* self, std::uint64_t incarnation) {
    auto& direct = *self->state_->direct;
    auto& at = direct.targets.at(incarnation);
    while (!at.waiting.empty() && !self->state_->closing) {
        std::shared_ptr<net::channel> wire;
        try {
            auto dialling = self->dial(incarnation);
            wire = co_await dialling;
        } catch (...) { // cancelled; else the driver is as good a way
        }
        if (wire) {
            auto talking = talk(self, incarnation, std::move(wire));
            co_await talking;
            if (!at.end) continue;
        }
        if (self->state_->closing) co_return;
        const auto waiting = std::exchange(at.waiting, {});
        if (at.end) {
            const failure why{error(errc::worker_lost, at.end->how), nullptr};
            for (const auto id : waiting) self->close_queue(id, why);
            direct.forget(incarnation);
            co_return;
        }
        at.is_unreachable = true;
        for (const auto id : waiting)
            if (const auto queue = self->state_->actor_queues.find(id);
                queue != self->state_->actor_queues.end())
                self->ask_where(*queue->second, true);
    }
    at.is_served = false;
}

/// A link to that worker and no other; nullptr: it cannot be had.
SKEIN_INLINE task<std::shared_ptr<net::channel>> runtime::dial(std::uint64_t incarnation) {
    auto& direct = *state_->direct;
    auto& at = direct.targets.at(incarnation);
    const detail::direct_hello hello{state_->incarnation, incarnation, ++at.generation,
                                     state_->replies.objects().store_number()};
    const auto addresses = at.addresses;
    for (const auto& text : addresses) {
        const auto to = net::address::parse(text);
        if (!to || at.end) continue;
        auto knocking = with_cancel(
            at.stop.token(),
            net::link::connect(*direct.via, *to,
                               detail::direct_options(*this, direct.secret, to->is_unix(), hello),
                               worker_links(*this, time_constants::lan().worker_resume)));
        auto asked = as_result(std::move(knocking));
        auto made = co_await asked;
        if (state_->closing) break;
        if (!made) {
            logging::debug("rt", "a worker cannot be reached there",
                           {{"worker", at.who}, {"at", text}, {"why", made.error().what()}});
            continue;
        }
        const auto its = wire::decode<detail::direct_hello>((*made)->peer().extra);
        if (its && its->incarnation == incarnation) co_return std::move(*made);
        (*made)->abort(error(errc::mismatch, "another process listens there"));
    }
    co_return nullptr;
}

SKEIN_INLINE task<void> runtime::talk(runtime* self, std::uint64_t incarnation,
                                      std::shared_ptr<net::channel> wire) {
    auto& at = self->state_->direct->targets.at(incarnation);
    auto l = std::make_shared<peer>();
    l->role = detail::peer_role::dialled;
    l->wire = std::move(wire);
    l->number = peer_id(++self->state_->last_link);
    l->who = at.who;
    l->incarnation = incarnation;
    if (const auto its = wire::decode<detail::direct_hello>(l->wire->peer().extra))
        l->store = its->store;
    at.link = l;
    self->listen_to(l);
    for (const auto id : std::exchange(at.waiting, {})) {
        const auto found = self->state_->actor_queues.find(id);
        if (found == self->state_->actor_queues.end() || !found->second->asked) continue;
        const counted_ptr<detail::actor_queue> queue(found->second);
        queue->on = l.get();
        queue->moving = queue->asked = false;
        self->drain(*queue);
    }
    auto ended = self->wait_end(l);
    co_await ended;
    if (!self->state_->closing && !at.end) {
        auto hearing = as_result(hear_of_end(self, incarnation));
        (void)co_await hearing;
    }
    self->lose_target(at, *l);
}

/// Waits until the driver has said what became of a worker; not for ever: it may compute.
SKEIN_INLINE task<void> runtime::hear_of_end(runtime* self, std::uint64_t incarnation) {
    auto& at = self->state_->direct->targets.at(incarnation);
    at.told.reset();
    at.is_said_to_live = false;
    if (self->state_->upstream->is_open())
        self->state_->upstream->send(detail::message_lost, 0, incarnation, {});
    auto waiting = at.told.wait_for(detail::news_of_end);
    if (!co_await waiting) throw error(errc::timeout, "the driver does not say how it ended");
}

SKEIN_INLINE void runtime::on_end(const net::frame_view& f) {
    auto said = wire::decode<detail::worker_end>(f.body);
    if (!said) throw error(errc::malformed, "news of a worker that cannot be read");
    const auto found = state_->direct->targets.find(said->incarnation);
    if (found == state_->direct->targets.end()) return;
    auto& at = found->second;
    if (!said->has_ended) {
        at.is_said_to_live = true;
        at.told.set();
        return;
    }
    if (at.end) return;
    at.end = std::move(*said);
    at.stop.request();
    at.told.set();
    const auto incarnation = at.end->incarnation;
    if (!at.is_served) { // nobody waits for it
        state_->replies.objects().lost(incarnation);
        state_->direct->forget(incarnation);
        return;
    }
    if (at.link && at.link->is_open()) // its last replies may be on the way
        state_->direct->tasks.spawn(detail::cut_later(at.link, at.end->how));
}

/// The calls that had gone there fail, and say how far they got; those behind them take another
/// way, or fail.
SKEIN_INLINE void runtime::lose_target(detail::direct_target& at, peer& l) {
    losses lost;
    if (at.end) state_->replies.objects().lost(l.incarnation);
    const bool closing = state_->closing;
    lost.code = state_->space_server_end ? errc::worker_lost
                : closing                ? errc::closed
                : at.end                 ? errc::worker_lost
                                         : errc::reset;
    if (state_->space_server_end) {
        lost.summary = state_->space_server_end->text();
    } else if (closing) {
        lost.summary = "the driver has gone";
    } else if (at.end) {
        lost.summary = at.end->how;
    } else {
        lost.summary = fmt::format(
            "the link to {} broke: {}; {}", l.who, l.orderly ? "it was closed there" : l.why.what(),
            at.is_said_to_live ? "it lives, so that what it had begun has been cancelled"
                               : "the driver did not say what became of it");
    }
    for (auto& s : state_->slots) {
        if (!s.call || s.call->on != &l) continue;
        auto call = free_slot(s.call->slot);
        if (call->is_done()) continue;
        lost.report.add(call->progress(), call->name());
        lost.dead.push_back(std::move(call));
    }
    std::sort(lost.dead.begin(), lost.dead.end(),
              [](auto& a, auto& b) { return a->number < b->number; });
    std::vector<counted_ptr<detail::actor_queue>> actor_queues;
    for (const auto& [id, queue] : state_->actor_queues)
        if (queue->on == &l) actor_queues.emplace_back(queue);
    std::sort(actor_queues.begin(), actor_queues.end(),
              [](auto& a, auto& b) { return a->id < b->id; });
    for (const auto& queue :
         actor_queues) { // before a call fails: what that sets free must not go there
        credits::leave(*state_, *queue);
        queue->moving = !at.end && !closing;
        if (!queue->moving) queue->lost = failure{error(*lost.code, lost.summary), nullptr};
    }
    at.link.reset();
    fail_lost(lost);
    for (const auto& queue : actor_queues) {
        if (queue->lost)
            fail_queue(*queue);
        else
            drain(*queue);
    }
}

// ---- which calls are under way -----------------------------------------------------------------

namespace detail {

/// The coroutine task that made it and may wait for it. Methods hold no cores.
SKEIN_INLINE call_context* waiting_task(const call_base& call) noexcept {
    auto* const parent = call.parent.get();
    return parent != nullptr && !parent->actor && parent->fn != nullptr && parent->fn->is_coroutine
               ? parent
               : nullptr;
}

/// A call that takes long leaves its task's cores to others: the driver is told, but not of every
/// short one.
SKEIN_INLINE void direct_state::tell_waits() {
    const auto now = loop::current().now();
    while (!waiting.empty()) {
        auto& first = waiting.front();
        const auto due = first.waits_since + short_wait;
        if (now < due) return loop::current().set_timer(look, due);
        first.unlink_wait();
        first.blocked = true;
        self.tell_wait(first, true);
    }
}

} // namespace detail

SKEIN_INLINE void runtime::direct_call_began(detail::call_base& call) {
    auto& of = *detail::space_state::home_of(*this).state_; // that of a space client's process
    call.direct = true;
    of.replies.news().call_began();
    if (auto* const parent = detail::waiting_task(call)) of.direct->begin_to_wait(*parent);
}

SKEIN_INLINE detail::direct_state& detail::direct_state::of(runtime& one) {
    return *space_state::home_of(one).state_->direct;
}

SKEIN_INLINE void detail::direct_state::begin_to_wait(call_context& one) {
    if (one.direct_calls++ > 0) return;
    auto& turns = loop::current();
    one.waits_since = turns.now();
    waiting.push_back(one);
    if (!look.is_set()) turns.set_timer(look, turns.now() + short_wait);
}

SKEIN_INLINE void runtime::direct_call_ended(detail::call_base& call) noexcept {
    if (state_->home != nullptr) return state_->home->direct_call_ended(call);
    call.direct = false;
    const bool is_idle = state_->replies.news().call_ended();
    if (auto* const parent = detail::waiting_task(call)) state_->direct->end_to_wait(*parent);
    if (!is_idle) return;
    if (state_->upstream == nullptr || !state_->upstream->is_open()) return;
    try {
        state_->upstream->send(detail::message_busy, 0, 0, {});
    } catch (...) { // its end settles that
    }
}

SKEIN_INLINE void detail::direct_state::end_to_wait(call_context& one) noexcept {
    if (one.direct_calls == 0 || --one.direct_calls > 0) return;
    one.unlink_wait();
    if (std::exchange(one.blocked, false)) self.tell_wait(one, false);
}

SKEIN_INLINE void runtime::tell_wait(const detail::call_context& waiting, bool on) noexcept {
    if (state_->upstream == nullptr || !state_->upstream->is_open()) return;
    try {
        wire::writer body;
        body.fixed(waiting.who.id.value().incarnation);
        body.fixed(waiting.who.id.value().number);
        state_->upstream->send(detail::message_waits, on ? 1 : 0, 0, body.bytes());
    } catch (...) { // its end settles that
    }
}

} // namespace skein::rt
