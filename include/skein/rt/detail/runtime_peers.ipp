// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: links to other processes, and what one takes along when it
// ends.

#include <skein/core/backoff.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/check.hpp>
#include <skein/core/sleep.hpp>
#include <skein/rt/detail/direct_state.hpp>
#include <skein/rt/detail/runtime_losses.hpp>
#include <skein/rt/detail/runtime_state.hpp>
#include <skein/rt/detail/space_state.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {
/// Between looks at whether calls at a worker have ended.
[[nodiscard]] inline backoff looks_at_calls() noexcept {
    return {std::chrono::milliseconds(1), std::chrono::milliseconds(50)};
}
} // namespace detail

SKEIN_INLINE std::shared_ptr<peer> runtime::attach(std::shared_ptr<net::channel> wire,
                                                   proc::claims page) {
    auto l = std::make_shared<peer>();
    l->wire = std::move(wire);
    l->page = std::move(page);
    l->number = peer_id(++state_->last_link);
    l->room.link = l.get();
    l->room.wire = l->wire.get();
    l->room.place = sched::place_id(l->number.value());
    const auto& who = l->wire->peer();
    l->who = fmt::format("{} (pid {} at {})", who.name, who.pid, who.host);
    if (const auto hello = wire::decode<detail::worker_hello>(who.extra)) {
        l->room.capacity = std::max<std::uint32_t>(1, hello->cpus);
        l->incarnation = hello->incarnation;
        l->store = hello->store;
        if (!hello->shares_memory && state_->upstream == nullptr) l->page = {};
        l->near_address = hello->near_address;
        l->far_address = hello->far_address;
    }
    return l;
}

/// Frames that have come already are handled inside this call. What hears them holds the peer,
/// until its wire has ended.
SKEIN_INLINE void runtime::listen_to(const std::shared_ptr<peer>& l) {
    const std::weak_ptr<peer> weak = l;
    l->wire->set_closed_handler([weak](const error* why) {
        if (const auto here = weak.lock()) {
            here->orderly = why == nullptr;
            if (why != nullptr) here->why = *why;
            here->set_down();
            here->ended.set();
            here->wire->set_handler(nullptr);
        }
    });
    l->wire->set_handler([this, l](const net::frame_view& f) { on_frame(l, f); });
    if (!l->up) l->wire->set_handler(nullptr); // it had ended before
}

/// False: its calls and actors would be taken for those of another process.
SKEIN_INLINE bool runtime::has_own_incarnation(const peer& newcomer) const {
    const auto its = newcomer.incarnation;
    if (its == 0 || its == state_->incarnation) return false;
    return std::none_of(state_->links.begin(), state_->links.end(),
                        [&](const auto& l) { return l->incarnation == its; });
}

SKEIN_INLINE task<void> runtime::wait_end(std::shared_ptr<peer> l) {
    try {
        co_await l->ended.wait();
        if (l->up && l->room.spent) {
            auto parting = part_from(l);
            co_await parting;
        }
    } catch (const error&) { // cancelled
        l->wire->abort(cancelled_error());
        l->set_down();
    }
}

/// The actor that a worker was for has ended: what still runs there ends, then the process.
SKEIN_INLINE task<void> runtime::part_from(std::shared_ptr<peer> l) {
    const auto runs = [&] {
        return std::any_of(state_->slots.begin(), state_->slots.end(),
                           [&](const auto& s) { return s.call && s.call->on == l.get(); });
    };
    auto pauses = detail::looks_at_calls();
    while (l->up && runs()) co_await sleep_for(pauses.next());
    if (!l->up) co_return;
    auto goodbye = l->wire->close();
    co_await goodbye;
}

SKEIN_INLINE task<void> runtime::serve_worker(std::shared_ptr<net::channel> wire, exit_reason after,
                                              proc::claims page) {
    return serve_worker(std::move(wire), std::move(after), std::move(page), worker_info{});
}

SKEIN_INLINE task<void> runtime::serve_worker(std::shared_ptr<net::channel> wire, exit_reason after,
                                              proc::claims page, worker_info info) {
    SKEIN_CHECK(state_->upstream == nullptr, "a worker cannot have workers of its own");
    auto l = attach(std::move(wire), std::move(page));
    l->room.demand = info.demand;
    l->room.labels = std::move(info.labels);
    l->room.labels_follow = info.labels_follow;
    l->is_space_client = info.is_space_client;
    if (!has_own_incarnation(*l)) {
        l->wire->abort(
            error(errc::malformed, l->who + " does not say which process it is, or says that it is "
                                            "another one"));
        co_return;
    }
    if (info.aside_of != nullptr &&
        !state_->dispatch.asides().stand_beside(l->room, *info.aside_of)) {
        auto goodbye = l->wire->close();
        co_await goodbye;
        co_return;
    }
    state_->links.push_back(l);
    if (!l->is_space_client) state_->dispatch.add(l->room, l->who);
    listen_to(l);
    pump();
    feed(*l);
    auto ended = wait_end(l);
    co_await ended;

    std::string how = l->orderly ? "it left" : l->why.what();
    try {
        if (after) {
            auto asked = after(*l);
            auto sure = shield(std::move(asked));
            auto said = co_await sure;
            if (!said.empty()) how = std::move(said);
        }
    } catch (...) { // its calls are settled all the same
        how +=
            fmt::format(" (its end was not seen: {})", to_error(std::current_exception()).what());
    }
    if (!l->ended_for.empty()) how = fmt::format("{}: {}", l->ended_for, how);
    std::erase(state_->links, l);
    lose(*l, how);
    tell_end(*l, true, fmt::format("{} was lost: {}", l->who, how));
    if (const auto why = state_->given_up)
        give_up(*why); // what would run again has nobody to run it
    pump();
}

/// Whether a call of this process has gone there and has no outcome.
SKEIN_INLINE bool runtime::has_calls(const peer& at) const {
    if (at.room.busy != 0 || !at.forwarded.empty() || at.calls_directly) return true;
    return std::any_of(state_->slots.begin(), state_->slots.end(),
                       [&](const auto& s) { return s.call && s.call->on == &at; });
}

SKEIN_INLINE bool runtime::is_idle(const std::shared_ptr<net::channel>& wire) const {
    const auto found = std::find_if(state_->links.begin(), state_->links.end(),
                                    [&](const auto& l) { return l->wire == wire; });
    return found == state_->links.end() ||
           ((*found)->room.actors == 0 && !(*found)->room.spent && !has_calls(**found));
}

namespace detail {

/// "actor 3 (counter), 2 more cannot move"
template <class Title>
[[nodiscard]] std::string who_stays(const actor_owner& all, const peer& at, Title title) {
    constexpr std::size_t most = 3;
    const auto there = all.ids_of([&](const actor_entry& one) { return one.where == &at; });
    std::string out;
    for (std::size_t i = 0; i < std::min(there.size(), most); ++i)
        out += (i == 0 ? "" : ", ") + title(there[i]);
    if (there.size() > most) out += fmt::format(", {} more", there.size() - most);
    return out.empty() ? "an actor is being made there" : out + " cannot move";
}

} // namespace detail

SKEIN_INLINE task<std::string> runtime::retire(std::shared_ptr<net::channel> wire) {
    const auto found = std::find_if(state_->links.begin(), state_->links.end(),
                                    [&](const auto& l) { return l->wire == wire; });
    if (found == state_->links.end() || !(*found)->up) co_return std::string("it has gone");
    if ((*found)->room.actors > 0) {
        const auto title = [this](actor_id id) { return actor_title(id); };
        co_return detail::who_stays(state_->actors, **found, title);
    }
    if ((*found)->room.spent) co_return std::string("its process ends by itself");
    auto l = *found;
    state_->dispatch.retire(l->room, true);
    if (state_->dispatch.waits()) pump_leases();
    // As long as all of them wait for others, these may need its cpus, or a worker in its place.
    bool blocked = false;
    const auto rest = [&](bool on) {
        auto* const source = state_->dispatch.source();
        if (!l->room.demand && std::exchange(blocked, on) != on && source != nullptr)
            source->blocked(*wire, on);
    };
    try {
        auto pauses = detail::looks_at_calls();
        while (l->up && has_calls(*l)) {
            rest(l->room.busy == 0);
            co_await sleep_for(pauses.next());
        }
    } catch (const error&) {
        rest(false);
        if (l->up && l->ended_for.empty()) state_->dispatch.retire(l->room, false);
        pump();
        throw;
    }
    if (!l->up) co_return std::string("it has gone");
    auto goodbye = wire->close();
    co_await goodbye;
    co_return std::string();
}

SKEIN_INLINE task<void> runtime::serve_driver(std::shared_ptr<net::channel> wire,
                                              proc::claims page) {
    SKEIN_CHECK(state_->links.empty() && state_->upstream == nullptr, "a worker has one driver");
    auto l = attach(std::move(wire), std::move(page));
    state_->upstream = l.get();
    state_->replies.follow(l.get());
    state_->group_handles.follow(l.get());
    state_->executor.add_caller(*l);
    detail::space_state::meet(*this, *l->wire);
    for (const auto& door : state_->direct->doors)
        state_->direct->tasks.spawn(serve_door(this, door.get()));
    listen_to(l);
    auto ended = wait_end(l);
    co_await ended;

    std::string how = "the driver has gone";
    if (state_->after_space_server) {
        auto asked = shield(detail::space_state::end_of_space_server(this, l));
        how = co_await asked;
    }
    state_->closing = true;
    state_->groups.close();
    state_->actors.close();
    state_->executor.close();
    if (!l->orderly) // nobody is told that what is cancelled now was cancelled: it was lost
        for (const auto& one : state_->direct->callers)
            one->abort(error(errc::closed, "the driver has gone"));
    state_->executor.cancel_all();
    try {
        auto joined = state_->executor.join();
        auto sure = shield(std::move(joined));
        co_await sure;
    } catch (...) { // a call's own errors were told to the driver
    }
    auto stored = state_->replies.objects().close();
    co_await stored;
    auto parted = leave_others();
    co_await parted;
    if (state_->spaces) {
        auto left = detail::space_state::leave(state_->spaces.get());
        co_await left;
    }
    lose(*l, how);
    close_queues();
    state_->local_actors.clear();
    state_->executor.remove_caller(*l);
    state_->upstream = nullptr;
    state_->replies.follow(nullptr);
    state_->group_handles.follow(nullptr);
}

namespace detail {

/// Who cannot be reached now is not waited for: its agent ends it.
SKEIN_INLINE task<void> say_goodbye(net::channel::handle to) {
    if (!to->is_connected()) to->abort(error(errc::closed, "the program has ended"));
    auto closing = to->close();
    co_await closing;
}

} // namespace detail

SKEIN_INLINE task<void> runtime::close() {
    state_->closing = true;
    state_->groups.close();
    state_->actors.close();
    state_->executor.close();
    state_->dispatch.book().lent_changed().set();
    const error why(errc::closed, "the program ended before the call was done");
    state_->start_workers = {};
    for (const auto& call : state_->take_waiting())
        if (!call->is_done()) refuse(*call, why);
    state_->groups.fail_all(why);
    for (std::size_t i = 0; i < state_->slots.size(); ++i) {
        const auto call = state_->slots[i].call;
        if (call && !call->is_done()) call->fail({why, nullptr});
    }
    credits::fail_all(*this, why);
    auto stored = state_->replies.objects().close();
    co_await stored;
    scope goodbyes;
    auto open = state_->links;
    for (const auto& l : open) goodbyes.spawn(detail::say_goodbye(l->wire));
    auto joined = goodbyes.join();
    auto sure = shield(std::move(joined));
    co_await sure;
    auto parted = leave_others();
    co_await parted;
    if (!state_->spaces) co_return;
    auto left = detail::space_state::leave(state_->spaces.get());
    co_await left;
}

/// Settles everything that a broken link took along: calls run again, or fail and say how far they
/// got.
SKEIN_INLINE void runtime::lose(peer& l, const std::string& how) {
    if (state_->upstream == nullptr && !state_->closing) ++state_->stats.workers_lost;
    l.set_down();
    state_->replies.objects().lost(l.incarnation, state_->upstream == nullptr);
    if (auto* const second =
            l.room.aside != nullptr ? detail::second_processes::part(l.room) : nullptr)
        second->link->ended.set();
    state_->dispatch.remove(l.room);

    // What ran here for that peer ends; what the driver passed on for it is of no use to anybody.
    detail::executor::end_calls(l);
    std::vector<counted_ptr<detail::call_base>> orphans;
    if (!l.room.spent) // else they go on, as all calls do that nobody waits for
        for (auto& [id, call] : l.forwarded) orphans.emplace_back(call);
    for (const auto& call : orphans) {
        const auto by = static_cast<const detail::forwarded_call&>(*call).asker();
        if (!call->is_done()) cancel(*call, l.forced && by == l.forced);
    }

    losses lost;
    lost.summary = state_->space_server_end ? std::string(state_->space_server_end->text())
                                            : fmt::format("{} was lost: {}", l.who, how);
    if (state_->upstream == nullptr) lost.actors = state_->actors.lose(l);
    take_lost(l, lost);

    // The actors are gone before any call fails: what that sets free must not go to the dead link.
    std::vector<counted_ptr<detail::actor_queue>> gone;
    for (const auto& [id, queue] : state_->actor_queues)
        if (queue->on == &l) gone.emplace_back(queue);
    std::sort(gone.begin(), gone.end(), [](auto& a, auto& b) { return a->id < b->id; });
    for (const auto& queue : gone) {
        credits::leave(*state_, *queue);
        queue->lost = failure{
            error(errc::worker_lost, lost.summary + lost.actors.note_of(queue->id)), nullptr};
    }
    fail_lost(lost);
    for (const auto& queue : gone) fail_queue(*queue);
    for (const auto& call : lost.actors.stranded)
        (void)state_->actors.may_go(call); // it fails, and says why
    for (const auto id : lost.actors.orphaned) state_->actors.let_go(id);
    run_again(lost);
    resume_restarts(lost);
    if (l.room.demand) state_->dispatch.tell_demand(l.room.demand);
    state_->groups.table().lose(l.number, state_->actors.keeps_lent(l.number));
}

/// Takes the calls that were at the link out of their slots.
SKEIN_INLINE void runtime::take_lost(peer& l, losses& into) {
    if (state_->upstream == nullptr) l.page.close(l.sent);
    for (auto& s : state_->slots) {
        if (!s.call || s.call->on != &l) continue;
        auto call = free_slot(s.call->slot);
        if (l.room.principal != nullptr) account(l, *call); // it had the cores of that one
        if (call->is_done()) continue;
        // What it had not begun did not run, and is no attempt.
        if (call->state == detail::phase::sent && state_->upstream == nullptr &&
            !l.page.has_begun(call->order))
            call->state = detail::phase::queued;
        const bool sent = call->state != detail::phase::queued;
        const bool is_task = call->kind == detail::call_kind::task;
        if (state_->upstream == nullptr && !state_->closing && !detail::is_unwanted(*call) &&
            is_task && !call->is_spent &&
            (call->retries_left > 0 || (!sent && !call->body.empty()))) {
            if (sent) {
                --call->retries_left;
                ++call->lost_attempts;
                // A coroutine may only have been there: it shares its worker with all others that
                // run.
                if (call->order == l.page.last_begun() && !call->fn->is_coroutine &&
                    !l.room.demand) {
                    into.suspect = call;
                    call->alone = detail::call_base::most_passes;
                }
            }
            into.report.add(detail::loss_report::runs_again, call->name());
            into.again.push_back(std::move(call));
            continue;
        }
        if (take_moved(call, sent, into)) continue;
        if (sent && is_task) ++call->lost_attempts;
        into.report.add(call->progress(), call->name());
        into.dead.push_back(std::move(call));
    }
    if (l.room.principal != nullptr) (void)detail::second_processes::part(l.room);
}

SKEIN_INLINE void runtime::fail_lost(losses& lost) {
    for (const auto& call : lost.dead) {
        const auto code = detail::is_unwanted(*call)                       ? errc::cancelled
                          : lost.code                                      ? *lost.code
                          : state_->space_server_end                       ? errc::worker_lost
                          : state_->upstream != nullptr || state_->closing ? errc::closed
                                                                           : errc::worker_lost;
        const auto name = call->name();
        std::string text = fmt::format("{} {}: {}", name, call->progress(), lost.summary);
        if (call->kind == detail::call_kind::method) text += lost.actors.note_of(call->target);
        if (call->lost_attempts > 1)
            text +=
                fmt::format("; {} attempts were made, each lost its worker", call->lost_attempts);
        if (call->is_spent) text += "; it does not run again, for items of it have been taken";
        text += lost.report.others(call->progress(), name);
        call->fail({error(code, std::move(text)), nullptr});
    }
}

/// Calls that run again go first in their lines. What may have killed the worker comes last, so
/// that it takes nobody along the next time.
SKEIN_INLINE void runtime::run_again(const losses& lost) {
    std::vector<counted_ptr<detail::call_base>> again;
    counted_ptr<detail::call_base> suspect;
    for (const auto& call : lost.again) {
        ++state_->stats.retried;
        call->on = nullptr;
        call->state = detail::phase::queued;
        call->begin_again();
        if (!state_->actors.may_go(call)) continue;
        if (call == lost.suspect)
            suspect = call;
        else
            again.push_back(call);
    }
    state_->dispatch.line_up_again(again, suspect);
}

// ---- calls of actors that are made again -------------------------------------------------------

// The driver keeps what it takes to make these actors (detail/actor_owner.hpp). Calls keep their
// arguments until they have an outcome: those that their worker had not begun, and those with
// retries, go first in the line of the new instance, in the order in which they were sent.

/// Driver: the call may have to be sent once more.
SKEIN_INLINE bool runtime::keeps_body(const detail::call_base& call) const {
    if (call.kind == detail::call_kind::task || state_->upstream != nullptr) return false;
    if (call.queue) return call.queue->lasts;
    const auto* const entry = state_->actors.find(call.target);
    return entry != nullptr && entry->lasts();
}

/// True: a constructor or method that was at a lost worker goes on elsewhere.
SKEIN_INLINE bool runtime::take_moved(const counted_ptr<detail::call_base>& call, bool sent,
                                      losses& into) {
    if (state_->upstream != nullptr || state_->closing || call->body.empty() ||
        call->kind == detail::call_kind::task || call->is_spent || detail::is_unwanted(*call))
        return false;
    if (!state_->actors.moves(*call, sent)) return false;
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
        call->begin_again();
        if (call->kind == detail::call_kind::create) {
            if (state_->actors.may_go(call)) state_->actors.line_up(std::move(call));
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
    for (auto& [id, calls] : passed) state_->actors.wait_first(id, std::move(calls));
    for (const auto id : lost.actors.moving) state_->actors.make_again(id);
}

} // namespace skein::rt
