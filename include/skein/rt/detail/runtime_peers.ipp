// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: links to other processes, and what one takes along when it ends.

#include <skein/core/cancel.hpp>
#include <skein/core/check.hpp>
#include <skein/core/sleep.hpp>
#include <skein/rt/detail/direct_books.hpp>
#include <skein/rt/detail/runtime_books.hpp>
#include <skein/rt/detail/runtime_losses.hpp>
#include <skein/rt/detail/space_books.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

SKEIN_INLINE std::shared_ptr<peer> runtime::attach(std::shared_ptr<net::channel> wire,
                                                   detail::claims page) {
    auto l = std::make_shared<peer>();
    l->wire = std::move(wire);
    l->page = std::move(page);
    l->number = peer_id(++books_->last_link);
    const auto& who = l->wire->peer();
    l->who = fmt::format("{} (pid {} at {})", who.name, who.pid, who.host);
    if (const auto hello = wire::decode<detail::worker_hello>(who.extra)) {
        l->capacity = std::max<std::uint32_t>(1, hello->cpus);
        l->incarnation = hello->incarnation;
        if (!hello->shares_memory && books_->upstream == nullptr) l->page = {};
        l->near_address = hello->near_address;
        l->far_address = hello->far_address;
    }
    return l;
}

/// Frames that have come already are handled inside this call. What hears them holds the peer, until its wire has ended.
SKEIN_INLINE void runtime::listen_to(const std::shared_ptr<peer>& l) {
    const std::weak_ptr<peer> weak = l;
    l->wire->set_closed_handler([weak](const error* why) {
        if (const auto here = weak.lock()) {
            here->orderly = why == nullptr;
            if (why != nullptr) here->why = *why;
            here->up = false;
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
    if (its == 0 || its == books_->incarnation) return false;
    return std::none_of(books_->links.begin(), books_->links.end(),
                        [&](const auto& l) { return l->incarnation == its; });
}

SKEIN_INLINE task<void> runtime::wait_end(std::shared_ptr<peer> l) {
    try {
        co_await l->ended.wait();
        if (l->up && l->spent) {
            auto parting = part_from(l);
            co_await parting;
        }
    } catch (const error&) { // cancelled
        l->wire->abort(cancelled_error());
        l->up = false;
    }
}

/// The actor that a worker was for has ended: what still runs there ends, then the process.
SKEIN_INLINE task<void> runtime::part_from(std::shared_ptr<peer> l) {
    const auto runs = [&] {
        return std::any_of(books_->slots.begin(), books_->slots.end(),
                           [&](const auto& s) { return s.call && s.call->on == l.get(); });
    };
    for (auto pause = std::chrono::milliseconds(1); l->up && runs();
         pause = std::min(2 * pause, std::chrono::milliseconds(50)))
        co_await sleep_for(pause);
    if (!l->up) co_return;
    auto goodbye = l->wire->close();
    co_await goodbye;
}

SKEIN_INLINE task<void> runtime::serve_worker(std::shared_ptr<net::channel> wire, obituary after,
                                              detail::claims page) {
    return serve_worker(std::move(wire), std::move(after), std::move(page), worker_room{});
}

SKEIN_INLINE task<void> runtime::serve_worker(std::shared_ptr<net::channel> wire, obituary after,
                                              detail::claims page, worker_room room) {
    SKEIN_CHECK(books_->upstream == nullptr, "a worker cannot have workers of its own");
    auto l = attach(std::move(wire), std::move(page));
    l->kind = room.kind;
    l->labels = std::move(room.labels);
    l->labels_follow = room.labels_follow;
    l->is_guest = room.is_guest;
    if (!has_own_incarnation(*l)) {
        l->wire->abort(
            error(errc::malformed, l->who + " does not say which process it is, or says that it is "
                                            "another one"));
        co_return;
    }
    if (room.aside_of != nullptr &&
        !books_->leases.stand_beside(*l, books_->links, *room.aside_of)) {
        auto goodbye = l->wire->close();
        co_await goodbye;
        co_return;
    }
    books_->links.push_back(l);
    books_->leases.add(*l);
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
    std::erase(books_->links, l);
    lose(*l, how);
    tell_end(*l, true, fmt::format("{} was lost: {}", l->who, how));
    if (const auto why = books_->given_up)
        give_up(*why); // what would run again has nobody to run it
    pump();
}

/// Whether a call of this process has gone there and has no outcome.
SKEIN_INLINE bool runtime::has_calls(const peer& at) const {
    if (at.busy != 0 || !at.forwarded.empty() || at.calls_directly) return true;
    return std::any_of(books_->slots.begin(), books_->slots.end(),
                       [&](const auto& s) { return s.call && s.call->on == &at; });
}

SKEIN_INLINE bool runtime::is_idle(const std::shared_ptr<net::channel>& wire) const {
    const auto found = std::find_if(books_->links.begin(), books_->links.end(),
                                    [&](const auto& l) { return l->wire == wire; });
    return found == books_->links.end() ||
           ((*found)->actors == 0 && !(*found)->spent && !has_calls(**found));
}

SKEIN_INLINE task<bool> runtime::retire(std::shared_ptr<net::channel> wire) {
    const auto found = std::find_if(books_->links.begin(), books_->links.end(),
                                    [&](const auto& l) { return l->wire == wire; });
    if (found == books_->links.end() || !(*found)->up || (*found)->actors > 0 || (*found)->spent)
        co_return false;
    auto l = *found;
    books_->leases.retire(*l, true);
    if (books_->leases.waits()) pump_leases();
    // As long as all of them wait for others, these may need its cpus, or a worker in its place.
    bool rests = false;
    const auto rest = [&](bool on) {
        auto* const source = books_->leases.source;
        if (l->kind == 0 && std::exchange(rests, on) != on && source != nullptr)
            source->rests(*wire, on);
    };
    try {
        for (auto pause = std::chrono::milliseconds(1); l->up && has_calls(*l);
             pause = std::min(2 * pause, std::chrono::milliseconds(50))) {
            rest(l->busy == 0);
            co_await sleep_for(pause);
        }
    } catch (const error&) {
        rest(false);
        if (l->up && l->ended_for.empty()) books_->leases.retire(*l, false);
        pump();
        throw;
    }
    if (!l->up) co_return false;
    auto goodbye = wire->close();
    co_await goodbye;
    co_return true;
}

SKEIN_INLINE task<void> runtime::serve_driver(std::shared_ptr<net::channel> wire,
                                              detail::claims page) {
    SKEIN_CHECK(books_->links.empty() && books_->upstream == nullptr, "a worker has one driver");
    auto l = attach(std::move(wire), std::move(page));
    books_->upstream = l.get();
    detail::space_books::meet(*this, *l->wire);
    for (const auto& door : books_->direct->doors)
        books_->direct->tasks.spawn(serve_door(this, door.get()));
    listen_to(l);
    auto ended = wait_end(l);
    co_await ended;

    std::string how = "the driver has gone";
    if (books_->after_keeper) {
        auto asked = shield(detail::space_books::end_of_keeper(this, l));
        how = co_await asked;
    }
    books_->closing = true;
    if (!l->orderly) // nobody is told that what is cancelled now was cancelled: it was lost
        for (const auto& one : books_->direct->callers)
            one->abort(error(errc::closed, "the driver has gone"));
    books_->calls.cancel();
    try {
        auto joined = books_->calls.join();
        auto sure = shield(std::move(joined));
        co_await sure;
    } catch (...) { // a call's own errors were told to the driver
    }
    auto parted = leave_others();
    co_await parted;
    if (books_->spaces) {
        auto left = detail::space_books::leave(books_->spaces.get());
        co_await left;
    }
    lose(*l, how);
    close_lanes();
    books_->boxes.clear();
    books_->upstream = nullptr;
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
    books_->closing = true;
    books_->leases.worker_idle.set();
    const error why(errc::closed, "the program ended before the call was done");
    books_->start_workers = {};
    for (const auto& call : books_->take_waiting())
        if (!call->is_done()) refuse(*call, why);
    group_desk::fail_all(*this, why);
    for (std::size_t i = 0; i < books_->slots.size(); ++i) {
        const auto call = books_->slots[i].call;
        if (call && !call->is_done()) call->fail({why, nullptr});
    }
    credits::fail_all(*this, why);
    scope goodbyes;
    auto open = books_->links;
    for (const auto& l : open) goodbyes.spawn(detail::say_goodbye(l->wire));
    auto joined = goodbyes.join();
    auto sure = shield(std::move(joined));
    co_await sure;
    auto parted = leave_others();
    co_await parted;
    if (!books_->spaces) co_return;
    auto left = detail::space_books::leave(books_->spaces.get());
    co_await left;
}

/// Settles everything that a broken link took along: calls run again, or fail and say how far they got.
SKEIN_INLINE void runtime::lose(peer& l, const std::string& how) {
    if (books_->upstream == nullptr && !books_->closing) ++books_->stats.workers_lost;
    l.up = false;
    l.unlink();
    if (l.aside != nullptr) books_->leases.part(l);
    books_->leases.remove(l);
    books_->leases.occupy(l, 0);

    // What ran here for that peer ends; what the driver passed on for it is of no use to anybody.
    l.running.for_each([](slot_id, const auto& call) {
        call->stop.request();
        call->context->cancel_children(false);
    });
    std::vector<counted_ptr<detail::call_base>> orphans;
    if (!l.spent) // else they go on, as all calls do that nobody waits for
        for (auto& [id, call] : l.forwarded) orphans.emplace_back(call);
    for (const auto& call : orphans) {
        const auto by = static_cast<const detail::forwarded_call&>(*call).asker();
        if (!call->is_done()) cancel(*call, l.forced && by == l.forced);
    }

    losses lost;
    lost.summary = books_->keeper_end ? std::string(books_->keeper_end->text())
                                      : fmt::format("{} was lost: {}", l.who, how);
    if (books_->upstream == nullptr) begin_restarts(l, lost);
    take_lost(l, lost);

    // The actors are gone before any call fails: what that sets free must not go to the dead link.
    std::vector<counted_ptr<detail::actor_state>> gone;
    for (const auto& [id, lane] : books_->lanes)
        if (lane->on == &l) gone.emplace_back(lane);
    std::sort(gone.begin(), gone.end(), [](auto& a, auto& b) { return a->id < b->id; });
    for (const auto& lane : gone) {
        credits::leave(*books_, *lane);
        lane->lost =
            failure{error(errc::worker_lost, lost.summary + lost.note_of(lane->id)), nullptr};
    }
    fail_lost(lost);
    for (const auto& lane : gone) fail_lane(*lane);
    for (const auto& call : lost.stranded)
        (void)followers::may_go(*this, call); // it fails, and says why
    for (const auto id : lost.orphaned) let_go(id);
    run_again(lost);
    resume_restarts(lost);
    if (l.kind != 0) tell_demand(books_->leases.line_of(static_cast<std::uint16_t>(l.kind)));
    group_desk::forget_holds(*this, l);
}

/// Takes the calls that were at the link out of their slots.
SKEIN_INLINE void runtime::take_lost(peer& l, losses& into) {
    if (books_->upstream == nullptr) l.page.close(l.sent);
    for (auto& s : books_->slots) {
        if (!s.call || s.call->on != &l) continue;
        auto call = free_slot(s.call->slot);
        if (l.principal != nullptr) account(l, *call); // it had the cores of that one
        if (call->is_done()) continue;
        // What it had not begun did not run, and is no attempt.
        if (call->state == detail::phase::sent && books_->upstream == nullptr &&
            !l.page.has_begun(call->order))
            call->state = detail::phase::queued;
        const bool sent = call->state != detail::phase::queued;
        const bool is_task = call->kind == detail::call_kind::task;
        if (books_->upstream == nullptr && !books_->closing && !detail::is_unwanted(*call) &&
            is_task && (call->retries_left > 0 || (!sent && !call->body.empty()))) {
            if (sent) {
                --call->retries_left;
                ++call->lost_attempts;
                // A coroutine may only have been there: it shares its worker with all others that run.
                if (call->order == l.page.last_begun() && !call->fn->is_coroutine && l.kind == 0) {
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
    if (l.principal != nullptr) books_->leases.part(l);
}

SKEIN_INLINE void runtime::fail_lost(losses& lost) {
    for (const auto& call : lost.dead) {
        const auto code = detail::is_unwanted(*call)                       ? errc::cancelled
                          : lost.code                                      ? *lost.code
                          : books_->keeper_end                             ? errc::worker_lost
                          : books_->upstream != nullptr || books_->closing ? errc::closed
                                                                           : errc::worker_lost;
        const auto name = call->name();
        std::string text = fmt::format("{} {}: {}", name, call->progress(), lost.summary);
        if (call->kind == detail::call_kind::method) text += lost.note_of(call->target);
        if (call->lost_attempts > 1)
            text +=
                fmt::format("; {} attempts were made, each lost its worker", call->lost_attempts);
        text += lost.report.others(call->progress(), name);
        call->fail({error(code, std::move(text)), nullptr});
    }
}

/// Calls that run again go first in their lines. What may have killed the worker comes last, so that it takes nobody
/// along the next time.
SKEIN_INLINE void runtime::run_again(const losses& lost) {
    std::vector<counted_ptr<detail::call_base>> urgent, others;
    counted_ptr<detail::call_base> suspect;
    for (const auto& call : lost.again) {
        ++books_->stats.retried;
        call->on = nullptr;
        call->state = detail::phase::queued;
        if (!followers::may_go(*this, call)) continue;
        if (call == lost.suspect) {
            suspect = call;
            continue;
        }
        (detail::lease_books::is_leased(*call) ? others : urgent).push_back(call);
    }
    auto& queue = books_->queue;
    if (suspect && !detail::lease_books::is_leased(*suspect)) urgent.push_back(suspect);
    queue.insert(queue.begin(), urgent.begin(), urgent.end());
    books_->leases.run_again(others);
    if (suspect && detail::lease_books::is_leased(*suspect)) books_->leases.push(suspect);
}

} // namespace skein::rt
