// SPDX-License-Identifier: Apache-2.0
#pragma once
// dispatch: which worker a task or a new actor of a driver goes to, and when. It is told of
// workers, calls and demands, and tells those above which call goes where. Its parts:
//
//     demand_lines       who waits for which cores
//     lease_book         who holds what of which worker
//     lent_cores         whose cores somebody else has for a while
//     second_processes   whether a plain task may go where somebody waits
//     unleased_calls     what needs no free core
//
// A task that occupies cores goes straight over a lease of its demand, or stands in its line. A
// line asks for one lease at a time, sends as many tasks over it as the worker takes ahead of time,
// and keeps it until another line waits; then it ends its turn, gives the lease back and asks
// again. A line is served
//
//     undecided   by nobody yet: it is not known who could
//     shared      by all workers with room for it
//     own         by workers that the source of workers starts for it alone, one task each
//
// A small use, `events` being what hears of send() and refuse():
//
//     dispatch parts;
//     parts.add(worker, "worker-1");
//     if (auto* to = parts.straight_to(*call)) return send(*to, call);
//     parts.line_up(call);
//     parts.pump_leases(events);               // events.send(worker, call) for all that can go

#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/demand_lines.hpp>
#include <skein/rt/detail/lease_book.hpp>
#include <skein/rt/detail/lent_cores.hpp>
#include <skein/rt/detail/second_processes.hpp>
#include <skein/rt/detail/unleased_calls.hpp>
#include <skein/rt/detail/worker_room.hpp>
#include <skein/rt/worker_source.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::rt::detail {

/// A call fails for a reason that others have, too.
[[nodiscard]] error refused(const call_base& call, const error& why);

/// What becomes of a task that could move to another worker.
enum class move_answer : std::uint8_t {
    goes,
    stays, ///< it may be there only
    over   ///< there is no room for more
};

class dispatch {
public:
    using calls = demand_lines::calls;

    // Parts below, for what they alone do.

    [[nodiscard]] sched::demand_table& demands() noexcept { return lines_.demands(); }
    [[nodiscard]] const sched::demand_table& demands() const noexcept { return lines_.demands(); }
    [[nodiscard]] demand_lines& lines() noexcept { return lines_; }
    [[nodiscard]] lease_book& book() noexcept { return book_; }
    [[nodiscard]] lent_cores& cores() noexcept { return cores_; }
    [[nodiscard]] second_processes& asides() noexcept { return asides_; }

    /// The source that is asked for workers, for demands that no worker here can serve; nullptr:
    /// none.
    void ask(worker_source* source) noexcept;
    [[nodiscard]] worker_source* source() const noexcept { return source_; }
    /// How many workers there are or will soon be: new actors wait for these.
    void expect(std::size_t workers) noexcept {
        asides_.expect(workers);
        unleased_.expect(workers);
    }
    /// From now on each demand has workers of its own, and no worker serves all demands.
    void serve_apart() noexcept { all_own_ = true; }
    [[nodiscard]] bool serves_apart() const noexcept { return all_own_; }

    // Workers.

    void add(worker_room& worker, std::string_view who);
    /// The worker is lost.
    void remove(worker_room& worker);
    /// Whether new tasks go there.
    void retire(worker_room& worker, bool on);

    // Calls.

    /// The worker to which a task may go at once without passing another task; nullptr: it has to
    /// stand in line.
    [[nodiscard]] worker_room* straight_to(const call_base& call);
    /// A call goes to the end of its line.
    void line_up(counted_ptr<call_base> call) {
        if (call->kind == call_kind::create && !call->demand)
            return unleased_.push_actor(std::move(call));
        lines_.push(std::move(call));
    }
    /// Calls that have lost their worker go to the front of their lines. The one that may have
    /// killed it comes last.
    void line_up_again(const calls& again, const counted_ptr<call_base>& suspect);
    /// Whether a call waits in a line.
    [[nodiscard]] bool waits() const noexcept { return lines_.waits(); }
    /// The same, or a new actor or a task without cores waits for a worker.
    [[nodiscard]] bool has_waiting() const noexcept { return !unleased_.empty() || lines_.waits(); }
    /// A task without cores waits, as it seems for credit.
    [[nodiscard]] bool waits_for_credit() const noexcept { return unleased_.has_tasks(); }
    /// Takes all that wait.
    void take_all(calls& into);
    /// Whether others may go when this call, which has waited here, is over.
    [[nodiscard]] bool holds_up(const call_base& call);

    /// A task goes to this worker. Gives the worker in whose process it runs.
    [[nodiscard]] worker_room& begin_task(worker_room& to, call_base& call, call_id id);
    void begin_actor(worker_room& to);
    /// A task has left the worker in whose process it ran.
    void end_task(worker_room& ran_at, const call_base& call, call_id id);
    /// An actor has ended, or could not be made. True: its worker was for it alone, and leaves;
    /// tell_demand() follows.
    [[nodiscard]] bool end_actor(worker_room& at);

    /// Whether a worker may have more of what waits at others: nothing that waits here may go
    /// there.
    [[nodiscard]] bool wants_more(const worker_room& idle) const noexcept;
    /// Whether a task that waits at another worker moves to an idle one, where it needs a lease.
    /// has_more: whether there may be more leases there.
    [[nodiscard]] move_answer may_move(worker_room& idle, const call_base& call, bool& has_more);

    // Demands.

    /// How many workers a demand could use is told to the source of workers, if it has changed.
    void tell_demand(sched::demand_id demand) { tell_demand(lines_.line_of(demand)); }
    /// The same of all that are wanted still.
    void tell_all();
    /// Forgets the demands of a placement group. False: somebody has something of it.
    [[nodiscard]] bool forget_group(std::uint64_t group);

    // Sending what can go.

    template <dispatch_events Above>
    void pump(Above& above);
    /// Sends what waits in lines as far as there are leases, and asks for more.
    template <dispatch_events Above>
    void pump_leases(Above& above);
    /// A new actor, or a task that needs no free core: it goes at once, or waits.
    template <dispatch_events Above>
    void place(counted_ptr<call_base> call, Above& above);
    /// No worker will come for this demand: calls that wait for one fail.
    template <dispatch_events Above>
    void refuse_demand(sched::demand_id demand, const error& why, Above& above);

private:
    template <dispatch_events Above>
    void use_leases(lease_line& line, Above& above);
    template <dispatch_events Above>
    void use_own_workers(lease_line& line, Above& above);
    template <dispatch_events Above>
    void try_suspects(Above& above);

    void decide(lease_line& line) const;
    void tell_demand(lease_line& line);

    demand_lines lines_;
    lease_book book_{lines_};
    lent_cores cores_{lines_, book_};
    second_processes asides_{book_};
    unleased_calls unleased_{lines_, book_, asides_};
    worker_source* source_ = nullptr;
    bool all_own_ = false;
    bool is_pumping_ = false, again_ = false;
};

// ---- templates ---------------------------------------------------------------------------------

template <dispatch_events Above>
void dispatch::pump(Above& above) {
    unleased_.pump(above);
    if (lines_.were_thinned() || lines_.waits()) pump_leases(above);
}

template <dispatch_events Above>
void dispatch::place(counted_ptr<call_base> call, Above& above) {
    if (!unleased_.place(std::move(call), above)) pump(above);
}

template <dispatch_events Above>
void dispatch::pump_leases(Above& above) {
    again_ = true;
    if (is_pumping_) return; // a call that failed has let another one go
    struct pumping_guard {
        bool& is_on;
        ~pumping_guard() { is_on = false; }
    } const guard{is_pumping_};
    is_pumping_ = true;
    while (std::exchange(again_, false)) {
        if (lines_.has_suspects()) try_suspects(above);
        for (auto& [demand, line] : lines_.all())
            if (!line.is_empty() || line.asked || line.wanted > 0) use_leases(line, above);
        if (book_.is_asking() && book_.reclaim()) again_ = true;
        if (book_.take()) again_ = true;
        if (book_.has_news()) again_ = true;
    }
    book_.forget_idle_lines();
}

/// A lease without a task comes first, then a new one, also of what other lines do not use; then
/// what a worker takes ahead of time.
template <dispatch_events Above>
void dispatch::use_leases(lease_line& line, Above& above) {
    decide(line);
    if (line.by == lease_line::service::undecided) return;
    if (line.by == lease_line::service::own) return use_own_workers(line, above);
    // Who asks for nothing is always granted one more, also where it cannot be used now.
    const auto may_ask = [&] {
        return !line.need->need.empty() ||
               (line.with[lease_line::unused].empty() && line.with[lease_line::beside].empty());
    };
    while (lines_.front(line) != nullptr) {
        auto* to = book_.choose(line);
        if (to == nullptr && may_ask() && (book_.ask(line) || (book_.reclaim() && book_.ask(line))))
            continue;
        if (to == nullptr) to = book_.pick(line, lease_line::beside);
        if (to == nullptr) to = book_.pick(line, lease_line::ahead);
        if (to == nullptr || !asides_.may_go_to(*to, *line.next().front())) break;
        above.send(*to, lines_.pop(line));
    }
    if (line.is_empty()) return book_.withdraw(line);
    if (!line.asked && may_ask()) book_.stand(line); // there was no room before
    line.stands = static_cast<bool>(line.asked);
}

/// Over the workers that are for this line alone, one task each. More of them are asked for, or
/// fewer.
template <dispatch_events Above>
void dispatch::use_own_workers(lease_line& line, Above& above) {
    if (source_ == nullptr) {
        while (lines_.front(line) != nullptr) {
            const auto call = lines_.pop(line);
            above.refuse(*call, impossible(*call, demands()));
        }
        return;
    }
    if (const auto why = above.end_of(line.demand)) {
        while (lines_.front(line) != nullptr) {
            const auto call = lines_.pop(line);
            above.refuse(*call, refused(*call, *why));
        }
    }
    while (lines_.front(line) != nullptr) {
        auto* const to = book_.pick(line, lease_line::unused);
        if (to == nullptr) break;
        above.send(*to, lines_.pop(line));
    }
    tell_demand(line);
    // Nothing is left of it: workers with room for it may have come meanwhile.
    if (line.is_empty() && line.held == 0 && line.wanted == 0)
        line.by = lease_line::service::undecided;
}

/// A task beside which a worker died takes nobody along the next time: it gets a worker of its own.
/// When those that wait have passed it so often that it is one of them again, it goes like any
/// other.
template <dispatch_events Above>
void dispatch::try_suspects(Above& above) {
    for (auto n = lines_.suspects(); n > 0 && book_.largest() > 0; --n) {
        auto one = lines_.pop_suspect();
        auto& call = *one.call;
        if (call.is_done()) continue;
        const auto& need = demands().at(call.demand);
        const bool is_elsewhere = !need.is_anywhere() && !book_.any_has(need.label);
        if (call.cpus > book_.largest() || is_elsewhere) { // those for it have gone meanwhile
            call.alone = 0;
            lines_.push(std::move(one.call));
            again_ = true;
            continue;
        }
        if (lines_.gone() >= one.turn) {
            if (auto* const to = book_.take_whole(need)) {
                above.send(*to, std::move(one.call));
                continue;
            }
            one.turn = lines_.gone() + lines_.waiting();
            if (lines_.waiting() > 0 && --call.alone == 0) {
                lines_.push_front({one.call});
                continue;
            }
        }
        lines_.push_suspect(std::move(one));
    }
}

template <dispatch_events Above>
void dispatch::refuse_demand(sched::demand_id demand, const error& why, Above& above) {
    auto* const line = lines_.find(demand);
    if (line == nullptr) return;
    calls all;
    while (lines_.front(*line) != nullptr) all.push_back(lines_.pop(*line));
    tell_demand(*line);
    for (const auto& call : all) {
        auto said = refused(*call, why);
        if (!why.hint().empty()) said.with_hint(why.hint());
        if (!why.cause().empty()) said.with_cause(why.cause());
        above.refuse(*call, std::move(said));
    }
}

} // namespace skein::rt::detail
