// SPDX-License-Identifier: Apache-2.0
#pragma once
// second_processes: whether a plain task may go to a worker in which somebody waits. A plain
// function holds its worker's loop until it returns. Where every worker that has room is waited in,
// plain tasks of that one run in a second process beside it, its `aside`, which is started for the
// first of them: whoever waits there hears of answers, deadlines and timers, and can end what he
// has called. For lines, and for who counts cores, both processes are one worker.
//
// A worker's second process is
//
//     none       nobody has needed it, or it is there
//     asked      the source of workers was asked for one; plain tasks wait
//     refused    it cannot be had: they run in the process that there is
//
//     second_processes asides(book);
//     asides.tell(&source);
//     if (!asides.may_go_to(worker, call)) return;   // the task waits for stand_beside()

#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/demand_lines.hpp>
#include <skein/rt/detail/lease_book.hpp>
#include <skein/rt/detail/worker_room.hpp>
#include <skein/rt/worker_source.hpp>

#include <cstddef>
#include <utility>

namespace skein::rt::detail {

class second_processes {
public:
    explicit second_processes(const lease_book& book) noexcept : book_(book) {}

    /// The source that is asked for second processes; nullptr: there are none.
    void tell(worker_source* source) noexcept { source_ = source; }
    /// How many workers there are or will soon be.
    void expect(std::size_t workers) noexcept { expected_ = workers; }

    /// A second process has come for the worker of this connection. False: there is no use for it.
    [[nodiscard]] bool stand_beside(worker_room& second, const net::channel& of) const noexcept {
        second.is_aside = true;
        for (auto* const one : book_.workers()) {
            if (one->wire != &of || !one->up || one->aside != nullptr) continue;
            one->aside = &second;
            one->aside_is = second_process::none;
            second.principal = one;
            return true;
        }
        return false;
    }
    /// One of the two has ended. Gives the second process, if it is to leave when its tasks have
    /// ended; else another one may come for the first.
    static worker_room* part(worker_room& one) noexcept {
        if (auto* const first = std::exchange(one.principal, nullptr)) {
            first->aside = nullptr;
            first->aside_is = second_process::none;
        }
        auto* const second = std::exchange(one.aside, nullptr);
        if (second != nullptr) {
            second->principal = nullptr;
            second->spent = true;
        }
        return second;
    }
    /// No second process comes for the worker of this connection.
    void refuse(const net::channel& of) const noexcept {
        for (auto* const one : book_.workers())
            if (one->wire == &of && one->aside == nullptr) one->aside_is = second_process::refused;
    }

    /// The task would make somebody wait there who has made calls, and is to hear of them.
    [[nodiscard]] bool is_needed(const worker_room& at, const call_base& call) const noexcept {
        if (!demand_lines::holds_loop(call) || at.demand || source_ == nullptr) return false;
        return at.parents > 0 || (at.calls_made > 0 && at.is_needed());
    }
    /// It would make an actor or a coroutine wait there, and workers are about to come: for one of
    /// them.
    [[nodiscard]] bool awaits_others(const worker_room& at, const call_base& call) const noexcept {
        return book_.places() < expected_ && !at.demand && at.is_needed() &&
               demand_lines::holds_loop(call);
    }
    /// Whether it can go there now: not before there is a process in which nobody waits, if one can
    /// be had.
    [[nodiscard]] bool may_go_to(worker_room& at, const call_base& call) const {
        if (awaits_others(at, call)) return false;
        if (!is_needed(at, call)) return true;
        if (at.aside != nullptr) return at.aside->takes_tasks();
        if (at.aside_is == second_process::none)
            at.aside_is =
                source_->want_beside(*at.wire) ? second_process::asked : second_process::refused;
        return at.aside_is == second_process::refused;
    }

private:
    const lease_book& book_;
    worker_source* source_ = nullptr;
    std::size_t expected_ = 0;
};

} // namespace skein::rt::detail
