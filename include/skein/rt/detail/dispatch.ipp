// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of rt/detail/dispatch.hpp.

#include <skein/core/loop.hpp>
#include <skein/rt/detail/dispatch.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::rt::detail {

SKEIN_INLINE void dispatch::ask(worker_source* source) noexcept {
    source_ = source;
    cores_.tell(source);
    asides_.tell(source);
}

// ---- workers -----------------------------------------------------------------------------------

SKEIN_INLINE void dispatch::add(worker_room& worker, std::string_view who) {
    if (worker.is_aside) return; // no place
    book_.add(worker, who);
    if (!worker.demand) cores_.lend_now();
}

SKEIN_INLINE void dispatch::remove(worker_room& worker) {
    if (book_.remove(worker)) {
        cores_.forget(worker);
        if (!worker.demand) cores_.lend_now();
    }
    book_.occupy(worker, 0);
}

SKEIN_INLINE void dispatch::retire(worker_room& worker, bool on) {
    worker.retiring = on;
    book_.update(worker);
}

// ---- calls -------------------------------------------------------------------------------------

/// Its demand is the only one, nothing waits, and its line has what it can have.
SKEIN_INLINE worker_room* dispatch::straight_to(const call_base& call) {
    auto& lines = lines_.all();
    if (lines.size() != 1 || lines_.waits() || is_pumping_ || call.alone != 0) return nullptr;
    auto& [demand, line] = *lines.begin();
    if (demand != call.demand) return nullptr;
    auto* const to = book_.straight(line);
    if (to == nullptr || asides_.is_needed(*to, call) || asides_.awaits_others(*to, call))
        return nullptr; // somebody has to come first
    lines_.note_passed();
    return to;
}

SKEIN_INLINE void dispatch::line_up_again(const calls& again,
                                          const counted_ptr<call_base>& suspect) {
    calls urgent, others;
    for (const auto& call : again)
        (demand_lines::is_leased(*call) ? others : urgent).push_back(call);
    const bool is_leased = suspect && demand_lines::is_leased(*suspect);
    if (suspect && !is_leased) urgent.push_back(suspect);
    unleased_.push_front(urgent);
    lines_.push_front(others);
    if (is_leased) lines_.push(suspect);
}

SKEIN_INLINE void dispatch::take_all(calls& into) {
    for (auto& [demand, line] : lines_.all()) book_.withdraw(line);
    lines_.take_all(into);
    unleased_.take_all(into);
}

SKEIN_INLINE bool dispatch::holds_up(const call_base& call) {
    if (book_.is_asking()) return true;
    const auto* const line = lines_.find(call.demand);
    return line != nullptr && line->by == lease_line::service::own;
}

SKEIN_INLINE worker_room& dispatch::begin_task(worker_room& to, call_base& call, call_id id) {
    const bool is_aside =
        to.aside != nullptr && to.aside->takes_tasks() && asides_.is_needed(to, call);
    if (demand_lines::is_coroutine(call)) {
        ++to.coroutines;
        book_.note_use(to);
    }
    if (to.busy == 0) to.pace.begin(loop::current().now());
    book_.occupy(to, to.busy + call.cpus);
    if (call.alone != 0 && call.cpus > 0) to.alone = &call;
    book_.sent(to, call);
    if (to.alone != &call) cores_.begin(id, call, to);
    return is_aside ? *to.aside : to;
}

SKEIN_INLINE void dispatch::begin_actor(worker_room& to) {
    ++to.actors;
    book_.note_use(to);
    if (to.demand) book_.settle_in(to);
}

/// Its cores are free, and the worker's pace is known better.
SKEIN_INLINE void dispatch::end_task(worker_room& ran_at, const call_base& call, call_id id) {
    auto& from = ran_at.for_whom();
    if (demand_lines::is_coroutine(call)) {
        from.coroutines -= std::min<std::size_t>(from.coroutines, 1);
        book_.note_use(from);
    }
    if (from.alone == &call) from.alone = nullptr;
    if (call.cpus == 0) return;
    const bool had_cores = cores_.end(id, call);
    if (had_cores) book_.occupy(from, from.busy - std::min<std::uint32_t>(from.busy, call.cpus));
    from.pace.note_end(loop::current().now());
    book_.settled(from, call, had_cores);
    if (from.demand) tell_demand(lines_.line_of(call.demand));
}

SKEIN_INLINE bool dispatch::end_actor(worker_room& at) {
    --at.actors;
    book_.note_use(at);
    if (!at.demand || at.spent) return false;
    book_.spend(at);
    return true;
}

SKEIN_INLINE bool dispatch::wants_more(const worker_room& idle) const noexcept {
    return book_.is_crowded() && idle.is_place && idle.up && !idle.retiring && !idle.lent &&
           idle.busy == 0;
}

SKEIN_INLINE move_answer dispatch::may_move(worker_room& idle, const call_base& call,
                                            bool& has_more) {
    if (!demand_lines::is_leased(call)) return move_answer::goes;
    auto& line = lines_.line_of(call.demand);
    if (line.by != lease_line::service::shared || !line.need->is_anywhere())
        return move_answer::stays;
    has_more = has_more && book_.lease_on(idle, line);
    const auto* const share = lease_book::share_of(idle, line);
    const bool is_kept = share == nullptr || share->leases.empty(); // for another line
    return is_kept ? move_answer::over : move_answer::goes;
}

// ---- demands -----------------------------------------------------------------------------------

/// Whether a line that has nothing anywhere is served by the workers that are there, or by workers
/// of its own.
SKEIN_INLINE void dispatch::decide(lease_line& line) const {
    if (line.by != lease_line::service::undecided) return;
    if (all_own_) {
        line.by = lease_line::service::own;
        return;
    }
    const auto& need = *line.need;
    const auto largest = book_.largest();
    const bool is_held = need.for_life || need.group != 0;
    if (largest == 0 && need.only_cpus && !is_held) return; // not known yet
    const bool is_shared = !is_held && need.only_cpus && line.cpus <= largest &&
                           (need.is_anywhere() || book_.any_has(need.label));
    line.by = is_shared ? lease_line::service::shared : lease_line::service::own;
}

SKEIN_INLINE void dispatch::tell_demand(lease_line& line) {
    const auto wanted = line.inner.size() + line.waiting.size() + line.out;
    if (line.wanted == wanted || source_ == nullptr) return;
    line.wanted = wanted;
    worker_demand told;
    told.demand = line.demand;
    told.need = line.need->need;
    told.label = line.need->label;
    told.group = line.need->group;
    told.bundle = line.need->bundle;
    told.env = line.need->env;
    told.wanted = wanted;
    source_->want(told);
}

SKEIN_INLINE void dispatch::tell_all() {
    for (auto& [demand, line] : lines_.all())
        if (line.wanted > 0) tell_demand(line);
}

/// At the end of a program what is left of a group may be settled in another order than usual.
SKEIN_INLINE bool dispatch::forget_group(std::uint64_t group) {
    bool is_used = false;
    demands().for_each_in_group(group, [&](auto demand) {
        auto* const line = lines_.find(demand);
        if (line == nullptr) return;
        (void)lines_.front(*line);
        is_used =
            is_used || !line->is_empty() || line->held > 0 || line->parents > 0 || line->out > 0;
        for (const auto* const worker : book_.workers())
            is_used = is_used || worker->demand == demand; // it has a share of it
    });
    if (is_used) return false;
    demands().for_each_in_group(group, [&](auto demand) { lines_.forget(demand); });
    demands().forget_group(group);
    return true;
}

SKEIN_INLINE error impossible(const call_base& call, const sched::demand_table& demands) {
    return error(errc::exhausted, fmt::format("{} asks for {}, more than any worker has",
                                              call.name(), demands.text(call.demand)))
        .with_hint("start fewer workers with more cores each, or lower .cpus");
}

SKEIN_INLINE error refused(const call_base& call, const error& why) {
    return error(why.code(), fmt::format("{} {}: {}", call.name(), call.progress(), why.text()));
}

} // namespace skein::rt::detail
