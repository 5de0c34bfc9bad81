// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: the lines in which tasks wait for cores, and the leases
// over which they leave. A line asks the scheduler for one lease at a time, sends as many tasks
// over it as the worker takes ahead of time, and keeps it until another line waits. Then it ends
// its turn, gives the lease back and asks again.
//
// Nothing here looks at all workers for each task: the leases of a line are in lists by the room
// they have, and change their list when a task goes or ends there.

#include <skein/core/check.hpp>
#include <skein/rt/detail/runtime_state.hpp>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

inline constexpr std::uint32_t most_cpus = std::numeric_limits<std::uint16_t>::max();
/// The tag of a request for all that a worker has; others carry the cpus of their line.
inline constexpr std::uint64_t whole_tag = std::uint64_t{most_cpus} + 1;

/// Puts the leases of a line on a worker into the list where they belong now.
inline void file(lease_share& share) {
    const auto& at = *share.at;
    auto list = lease_line::nowhere;
    if (share.line->by == lease_line::service::own)
        list = share.out < share.leases.size() ? lease_line::unused : lease_line::nowhere;
    else if (share.out < share.leases.size())
        list = at.unleased == 0 && at.alone == nullptr ? lease_line::unused : lease_line::beside;
    else if (!share.line->need->spreads && share.out < share.leases.size() * at.window)
        list = lease_line::ahead; // what is sent ahead would not be spread
    share.unlink();
    if (list != lease_line::nowhere) share.line->with[list].push_back(share);
}

SKEIN_INLINE lease_line& lease_state::line_of(sched::demand_id demand) {
    auto& line = lines[demand];
    if (line.need != nullptr) return line;
    line.need = &demands.at(demand);
    line.demand = demand;
    line.cpus = line.need->cpus;
    return line;
}

SKEIN_INLINE lease_share* lease_state::share_of(const peer& at, const lease_line& line) noexcept {
    for (const auto& share : at.shares)
        if (share->line == &line) return share.get();
    return nullptr;
}

SKEIN_INLINE lease_share& lease_state::share_for(peer& at, lease_line& line) {
    if (auto* const known = share_of(at, line)) return *known;
    auto& made = *at.shares.emplace_back(std::make_unique<lease_share>());
    made.at = &at;
    made.line = &line;
    return made;
}

SKEIN_INLINE void lease_state::add(peer& worker) {
    if (worker.is_space_client || worker.is_aside) return; // no place
    if (worker.demand) {
        auto& line = line_of(worker.demand);
        line.by = lease_line::service::own;
        auto& share = share_for(worker, line);
        share.leases.emplace_back(); // of no scheduler: it lasts as long as the worker
        ++line.held;
        file(share);
        return;
    }
    sched::resources total;
    total.cpu = sched::amount(static_cast<int>(std::min(worker.capacity, most_cpus)));
    const auto name = fmt::format("worker {}", worker.number);
    const auto added = places.add_place(place_of(worker), name, total, worker.labels);
    SKEIN_CHECK(added, "{} is no place: {}", worker.who, added.error().what());
    workers[place_of(worker)] = &worker;
    largest = std::max(largest, worker.capacity);
    note_use(worker);
    ++state;
    is_changed = true;
    lend_now();
}

/// What it had is gone with it.
SKEIN_INLINE void lease_state::remove(peer& worker) {
    if (workers.erase(place_of(worker)) == 0 && !worker.demand) return;
    if (worker.lent) worker_idle.set();
    if (!worker.demand) (void)places.remove_place(place_of(worker));
    for (const auto& share : worker.shares) {
        share->line->held -= share->leases.size();
        if (worker.demand) share->line->out -= std::min<std::size_t>(share->line->out, share->out);
    }
    worker.shares.clear();
    parents.erase_if([&](call_id, const parent& one) {
        if (one.at != &worker) return false;
        auto& line = line_of(one.call->demand);
        --line.parents;
        if (worker.demand && one.children > 0) resting -= std::min(resting, cores_of(*one.call));
        return true;
    });
    for (auto& [demand, line] : lines) { // whoever had its label may have gone
        if (line.by != lease_line::service::shared || line.held > 0 || line.need->is_anywhere())
            continue;
        withdraw(line);
        line.by = lease_line::service::undecided;
    }
    if (worker.demand) return;
    worker.whole = {};
    largest = 0;
    for (const auto& [place, other] : workers) largest = std::max(largest, other->capacity);
    ++state;
    is_changed = true;
    lend_now();
}

/// Whether new tasks go there.
SKEIN_INLINE void lease_state::retire(peer& worker, bool on) {
    worker.retiring = on;
    (void)places.drain(place_of(worker), on || worker.lent);
    for (const auto& share : worker.shares) release_unused(*share);
    ++state;
    is_changed = true;
}

/// To the end of its line. A suspect waits for a worker with nothing to do, behind what waits now.
SKEIN_INLINE void lease_state::push(counted_ptr<call_base> call) {
    if (call->alone != 0) {
        suspects.push_back({std::move(call), gone + waiting});
        return;
    }
    auto& line = line_of(call->demand);
    (call->nested ? line.inner : line.waiting).push_back(std::move(call));
    ++waiting;
}

/// To the front of their lines.
SKEIN_INLINE void lease_state::run_again(const std::vector<counted_ptr<call_base>>& calls) {
    for (auto at = calls.rbegin(); at != calls.rend(); ++at) {
        if ((*at)->alone != 0) {
            push(*at);
            continue;
        }
        auto& line = line_of((*at)->demand);
        ((*at)->nested ? line.inner : line.waiting).push_front(*at);
        ++waiting;
    }
}

SKEIN_INLINE counted_ptr<call_base> lease_state::pop(lease_line& line) {
    auto& queue = line.next();
    auto call = std::move(queue.front());
    queue.pop_front();
    --waiting;
    ++gone;
    return call;
}

/// The first task of a line that has no outcome yet.
SKEIN_INLINE call_base* lease_state::front(lease_line& line) {
    while (!line.is_empty() && line.next().front()->is_done()) (void)pop(line);
    return line.is_empty() ? nullptr : line.next().front().get();
}

SKEIN_INLINE void lease_state::take_waiting(std::vector<counted_ptr<call_base>>& into) {
    for (auto& [cpus, line] : lines) {
        withdraw(line);
        while (front(line) != nullptr) into.push_back(pop(line));
    }
    for (auto& one : std::exchange(suspects, {})) into.push_back(std::move(one.call));
}

SKEIN_INLINE sched::request_id lease_state::submit(sched::request r) {
    is_changed = true;
    return places.submit(r).value();
}

/// For one lease of a line.
SKEIN_INLINE sched::request_id lease_state::request_lease(const lease_line& line,
                                                          const sched::constraint& where) {
    sched::request r;
    r.demand = line.need->need;
    r.where = where;
    if (where == sched::constraint()) r.where = sched::where_labelled(line.need->label);
    r.tag = line.demand.value();
    return submit(std::move(r));
}

/// A line wants one more lease. True: it has one more; else its request waits in the scheduler, or
/// there was no room before and nothing has changed.
SKEIN_INLINE bool lease_state::ask(lease_line& line) {
    if (!line.asked) {
        if (line.full_at == state) return false;
        line.asked = request_lease(line, {});
        ++asking;
    }
    if (take()) again = true; // another line may have one, too
    if (!line.asked) return true;
    line.full_at = state;
    return false;
}

SKEIN_INLINE void lease_state::withdraw(lease_line& line) {
    if (!line.asked) return;
    (void)places.cancel(std::exchange(line.asked, {}));
    --asking;
    if (!std::exchange(line.stands, false)) return;
    ++state; // a worker may have been kept free for it
    is_changed = true;
}

/// Books what the scheduler grants. True: there are new leases.
SKEIN_INLINE bool lease_state::take() {
    if (!std::exchange(is_changed, false)) return false;
    std::vector<sched::grant> granted;
    std::vector<sched::notice> notices; // nothing is asked for that no worker could hold
    places.take_grants(granted);
    places.take_notices(notices);
    for (const auto& g : granted) book(g);
    return !granted.empty();
}

SKEIN_INLINE void lease_state::book(const sched::grant& g) {
    auto& at = *workers.at(g.place);
    if (g.tag == whole_tag) {
        at.whole = g.id;
        return;
    }
    auto& line = lines.at(sched::demand_id(static_cast<std::uint16_t>(g.tag)));
    if (line.asked == g.id) {
        line.asked = {};
        line.stands = false;
        --asking;
    }
    auto& share = share_for(at, line);
    share.leases.push_back(g.id);
    share.turn += at.window;
    ++line.held;
    file(share);
}

/// One more lease on this worker. False: it has no room for it.
SKEIN_INLINE bool lease_state::lease_on(peer& worker, lease_line& line) {
    const auto id = request_lease(line, sched::constraint::on(place_of(worker)));
    (void)take();
    return !places.cancel(id);
}

/// A worker with nothing to do that could have this, all of whose cpus belong to the next call
/// there; nullptr: there is none.
SKEIN_INLINE peer* lease_state::take_whole(const peers& links, const sched::demand& what) {
    std::vector<peer*> idle; // those whose loop nobody needs go first
    for (const auto& l : links)
        if (l->up && !l->retiring && !l->lent && !l->demand && !l->is_space_client &&
            !l->is_aside && l->busy == 0 && l->alone == nullptr && l->capacity >= what.cpus &&
            (what.is_anywhere() || has_label(*l, what.label)))
            idle.push_back(l.get());
    std::sort(idle.begin(), idle.end(), [](const peer* a, const peer* b) {
        return std::pair(is_needed(*a), a->number) < std::pair(is_needed(*b), b->number);
    });
    for (auto* const l : idle) {
        for (const auto& share : l->shares) release_unused(*share);
        sched::request all;
        all.demand.cpu = sched::amount(static_cast<int>(std::min(l->capacity, most_cpus)));
        all.where = sched::constraint::on(place_of(*l));
        all.tag = whole_tag;
        const auto id = submit(std::move(all));
        if (take()) again = true;
        if (!places.cancel(id)) return l;
    }
    return nullptr;
}

SKEIN_INLINE void lease_state::release_unused(lease_share& share) {
    if (share.line->by == lease_line::service::own) return;
    while (share.leases.size() > share.out) {
        (void)places.release(share.leases.back());
        share.leases.pop_back();
        --share.line->held;
        ++state;
        is_changed = true;
    }
    if (share.leases.empty()) share.turn = 0;
    file(share);
}

/// A line waits: the others give back what they do not use. True: there was something.
SKEIN_INLINE bool lease_state::reclaim() {
    if (lines.size() < 2) return false; // one line has nobody to give it to
    const auto before = state;
    for (auto& [cpus, line] : lines) {
        if (line.by == lease_line::service::own) continue;
        for (const auto list : {lease_line::unused, lease_line::beside}) {
            intrusive_list<lease_share, lease_share> all;
            all.splice_back(line.with[list]);
            while (!all.empty()) {
                auto& share = all.pop_front();
                if (line.is_empty() || (share.turn == 0 && others_wait(line)))
                    release_unused(share);
                else
                    file(share);
            }
        }
    }
    return state != before;
}

/// Lines that have nothing go when there are many.
SKEIN_INLINE void lease_state::forget_idle_lines() {
    for (auto at = lines.begin(); lines.size() > 16 && at != lines.end();) {
        const auto* line = &at->second;
        if (!line->is_empty() || line->asked || line->held > 0 || line->parents > 0 ||
            line->wanted > 0) {
            ++at;
            continue;
        }
        for (const auto& [place, worker] : workers)
            std::erase_if(worker->shares, [&](const auto& share) { return share->line == line; });
        at = lines.erase(at);
    }
}

SKEIN_INLINE call_id lease_state::id_of(const call_base& call) const {
    if (call.nested) return static_cast<const forwarded_call&>(call).id;
    return call_id({incarnation, call.number});
}

/// So many cores of a worker are asked for.
SKEIN_INLINE void lease_state::occupy(peer& at, std::uint32_t cores) noexcept {
    crowded += (cores > at.capacity ? 1U : 0U);
    crowded -= (at.busy > at.capacity ? 1U : 0U);
    at.busy = cores;
    note_use(at);
    if (cores == 0 && at.lent) worker_idle.set();
}

/// Before it goes. A suspect has its worker as a whole.
SKEIN_INLINE void lease_state::sent(peer& to, call_base& call) {
    if (call.cpus == 0 || (is_leased(call) && to.alone == &call)) return;
    if (!is_leased(call)) {
        to.unleased += call.cpus;
        for (const auto& share : to.shares) file(*share);
        return;
    }
    auto& line = line_of(call.demand);
    auto* share = share_of(to, line);
    SKEIN_CHECK(share != nullptr, "{} was sent without a lease", call.name());
    ++share->out;
    if (to.demand) ++line.out;
    if (share->turn > 0) --share->turn;
    file(*share);
    if (call.fn == nullptr || !call.fn->is_coroutine) return; // the others cannot wait
    parents.enter(id_of(call), {&call, &to, 0});
    ++line.parents;
}

/// A task has called another one: it leaves its cores to others until all that it has called is
/// over.
SKEIN_INLINE void lease_state::begin_wait(const peer& at, call_id id) {
    auto* const found = parents.find(id);
    if (found == nullptr || found->at != &at) return;
    if (found->children++ > 0) return;
    const auto [call, where, children] = *found;
    ++where->parents;
    if (where->demand) { // what else it has nobody can use meanwhile
        resting += cores_of(*call);
        if (source != nullptr) source->blocked(*where->wire, true);
        return lend_now();
    }
    auto& share = share_for(*where, line_of(call->demand));
    share.out -= std::min<std::uint32_t>(share.out, 1);
    file(share);
    occupy(*where, where->busy - std::min<std::uint32_t>(where->busy, call->cpus));
}

/// It goes on, whoever has its cores meanwhile; nobody new gets any until that is made good.
SKEIN_INLINE void lease_state::end_wait(const peer& at, call_id id) {
    auto* const found = parents.find(id);
    if (found == nullptr || found->at != &at) return;
    if (found->children == 0 || --found->children > 0) return;
    const auto [call, where, children] = *found;
    --where->parents;
    if (where->demand) {
        resting -= std::min(resting, cores_of(*call));
        if (source != nullptr) source->blocked(*where->wire, false);
        return lend_now();
    }
    auto& share = share_for(*where, line_of(call->demand));
    ++share.out;
    file(share);
    occupy(*where, where->busy + call->cpus);
}

/// A call leaves its worker. True: it had its cores until now.
SKEIN_INLINE bool lease_state::forget_parent(const call_base& call) {
    if (!is_leased(call) || call.fn == nullptr || !call.fn->is_coroutine) return true;
    const auto id = id_of(call);
    const auto* const found = parents.find(id);
    if (found == nullptr) return true; // its worker is lost
    bool had_cores = found->children == 0;
    if (!had_cores) --found->at->parents;
    if (!had_cores && found->at->demand) {
        resting -= std::min(resting, cores_of(call));
        if (source != nullptr) source->blocked(*found->at->wire, false);
        lend_now();
        had_cores = true;
    }
    parents.erase(id);
    --line_of(call.demand).parents;
    return had_cores;
}

/// An actor goes to a worker that is for it alone.
SKEIN_INLINE void lease_state::settle_in(peer& at) {
    auto* const share = share_of(at, line_of(at.demand));
    if (share == nullptr) return;
    ++share->out;
    ++share->line->out;
    file(*share);
}

/// The actor has ended: nobody follows it there.
SKEIN_INLINE void lease_state::spend(peer& at) {
    at.spent = true;
    auto* const share = share_of(at, line_of(at.demand));
    if (share == nullptr) return;
    auto& line = *share->line;
    line.held -= share->leases.size();
    line.out -= std::min<std::size_t>(line.out, share->out);
    share->leases.clear();
    share->out = 0;
    file(*share);
}

SKEIN_INLINE void lease_state::settled(peer& from, const call_base& call, bool had_cores) {
    if (!is_leased(call)) {
        from.unleased -= std::min<std::uint32_t>(from.unleased, call.cpus);
    } else if (call.alone != 0) {
        (void)places.release(std::exchange(from.whole, {}));
        ++state;
        is_changed = true;
    } else if (auto* share = share_of(from, line_of(call.demand)); share != nullptr && had_cores) {
        share->out -= std::min<std::uint32_t>(share->out, 1);
        if (from.demand) share->line->out -= std::min<std::size_t>(share->line->out, 1);
    }
    for (const auto& share : from.shares) file(*share); // its pace may be another, too
    // Each task that is spread asks for the next node.
    if (!demands.at(call.demand).spreads || from.demand || !is_leased(call) || call.alone != 0)
        return;
    if (auto* const share = share_of(from, line_of(call.demand))) release_unused(*share);
}

} // namespace detail

/// Sends what waits in lines as far as there are leases, and asks for more.
SKEIN_INLINE void runtime::pump_leases() {
    auto& leases = state_->leases;
    leases.again = true;
    if (leases.pumping) return; // a call that failed has let another one go
    struct pumping_guard {
        bool& is_on;
        ~pumping_guard() { is_on = false; }
    } const guard{leases.pumping};
    leases.pumping = true;
    while (std::exchange(leases.again, false)) {
        if (!leases.suspects.empty()) try_suspects();
        for (auto& [demand, line] : leases.lines)
            if (!line.is_empty() || line.asked || line.wanted > 0) use_leases(line);
        if (leases.asking > 0 && leases.reclaim()) leases.again = true;
        if (leases.take()) leases.again = true;
    }
    leases.forget_idle_lines();
}

/// A lease without a task comes first, then a new one, also of what other lines do not use; then
/// what a worker takes ahead of time.
SKEIN_INLINE void runtime::use_leases(detail::lease_line& line) {
    using detail::lease_line;
    auto& leases = state_->leases;
    leases.decide(line);
    if (line.by == lease_line::service::undecided) return;
    if (line.by == lease_line::service::own) return use_own_workers(line);
    // Who asks for nothing is always granted one more, also where it cannot be used now.
    const auto may_ask = [&] {
        return !line.need->need.empty() ||
               (line.with[lease_line::unused].empty() && line.with[lease_line::beside].empty());
    };
    while (leases.front(line) != nullptr) {
        auto* to = leases.choose(line);
        if (to == nullptr && may_ask() &&
            (leases.ask(line) || (leases.reclaim() && leases.ask(line))))
            continue;
        if (to == nullptr) to = leases.pick(line, lease_line::beside);
        if (to == nullptr) to = leases.pick(line, lease_line::ahead);
        if (to == nullptr || !leases.may_go_to(*to, *line.next().front())) break;
        send(*to, leases.pop(line));
    }
    if (line.is_empty()) return leases.withdraw(line);
    if (!line.asked && may_ask()) { // there was no room before: stand in line for what comes
        line.asked = leases.request_lease(line, {});
        ++leases.asking;
    }
    line.stands = static_cast<bool>(line.asked);
}

/// A task beside which a worker died takes nobody along the next time: it gets a worker of its own.
/// When those that wait have passed it so often that it is one of them again, it goes like any
/// other.
SKEIN_INLINE void runtime::try_suspects() {
    auto& leases = state_->leases;
    for (auto n = leases.suspects.size(); n > 0 && leases.largest > 0; --n) {
        auto one = std::move(leases.suspects.front());
        leases.suspects.pop_front();
        auto& call = *one.call;
        if (call.is_done()) continue;
        const auto& what = leases.demands.at(call.demand);
        const bool is_elsewhere = !what.is_anywhere() && !leases.any_has(what.label);
        if (call.cpus > leases.largest || is_elsewhere) { // those for it have gone meanwhile
            call.alone = 0;
            leases.push(std::move(one.call));
            leases.again = true;
            continue;
        }
        if (leases.gone >= one.turn) {
            if (auto* to = leases.take_whole(state_->links, what)) {
                send(*to, std::move(one.call));
                continue;
            }
            one.turn = leases.gone + leases.waiting;
            if (leases.waiting > 0 && --call.alone == 0) {
                leases.run_again({one.call});
                continue;
            }
        }
        leases.suspects.push_back(std::move(one));
    }
}

SKEIN_INLINE void runtime::refuse_impossible(detail::call_base& call) {
    refuse(call, error(errc::exhausted,
                       fmt::format("{} asks for {}, more than any worker has", call.name(),
                                   state_->leases.demands.text(call.demand)))
                     .with_hint("start fewer workers with more cores each, or lower .cpus"));
}

} // namespace skein::rt
