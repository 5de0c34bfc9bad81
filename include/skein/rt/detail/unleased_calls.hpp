// SPDX-License-Identifier: Apache-2.0
#pragma once
// unleased_calls: new actors that hold nothing, and tasks that occupy no cores. They need no lease,
// and must not wait behind tasks that do. Such a call is placed at once, or waits, with those of
// its kind: an actor for workers that are about to come, a task for credit of a worker.
//
//     unleased_calls calls(lines, book, asides);
//     if (!calls.place(call, events)) calls.pump(events);   // events.send(worker, call)

#include <skein/core/error.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/demand_lines.hpp>
#include <skein/rt/detail/lease_book.hpp>
#include <skein/rt/detail/second_processes.hpp>
#include <skein/rt/detail/worker_room.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <tuple>
#include <utility>

namespace skein::rt::detail {

/// What dispatch tells those above it. A template parameter, for it is told of each task.
template <class T>
concept dispatch_events = requires(T& above, worker_room& worker, counted_ptr<call_base> call,
                                   error why, sched::demand_id demand) {
    /// The call goes to this worker now; dispatch::begin_task() or begin_actor() follows.
    above.send(worker, std::move(call));
    /// The call fails: it can never run.
    above.refuse(*call, std::move(why));
    /// Whether the worker takes one more task that occupies no cores.
    { above.has_credit(worker) } -> std::same_as<bool>;
    /// Why nothing with this demand can run any more.
    { above.end_of(demand) } -> std::same_as<std::optional<error>>;
};

/// A call asks for more than any worker has.
[[nodiscard]] error impossible(const call_base& call, const sched::demand_table& demands);

class unleased_calls {
public:
    unleased_calls(demand_lines& lines, const lease_book& book,
                   const second_processes& asides) noexcept
        : lines_(lines), book_(book), asides_(asides) {}

    /// How many workers there are or will soon be: new actors wait for these.
    void expect(std::size_t workers) noexcept { expected_ = workers; }

    void push_actor(counted_ptr<call_base> call) { actors_.push_back(std::move(call)); }
    /// Calls go to the front, in this order.
    void push_front(const demand_lines::calls& tasks) {
        tasks_.insert(tasks_.begin(), tasks.begin(), tasks.end());
    }
    void take_all(demand_lines::calls& into) {
        for (auto* const waiting : {&actors_, &tasks_})
            for (auto& call : std::exchange(*waiting, {})) into.push_back(std::move(call));
    }
    [[nodiscard]] bool has_tasks() const noexcept { return !tasks_.empty(); }
    [[nodiscard]] bool empty() const noexcept { return tasks_.empty() && actors_.empty(); }

    /// Sends a call at once. False: it has to wait, and so may others that go first.
    template <dispatch_events Above>
    [[nodiscard]] bool place(counted_ptr<call_base> call, Above& above);
    /// Sends what can go.
    template <dispatch_events Above>
    void pump(Above& above) {
        pump(actors_, above);
        pump(tasks_, above);
    }

private:
    using line = std::deque<counted_ptr<call_base>>;

    template <dispatch_events Above>
    void pump(line& waiting, Above& above);
    template <dispatch_events Above>
    [[nodiscard]] worker_room* pick(const call_base& call, bool& possible, Above& above) const;
    [[nodiscard]] static bool goes_before(const call_base& call, const worker_room& a,
                                          const worker_room& b) noexcept;
    [[nodiscard]] bool expects_more() const noexcept {
        const auto& all = book_.workers();
        const auto up = std::count_if(all.begin(), all.end(), [](auto* one) { return one->up; });
        return static_cast<std::size_t>(up) < expected_;
    }

    demand_lines& lines_;
    const lease_book& book_;
    const second_processes& asides_;
    line tasks_, actors_;
    std::size_t expected_ = 0;
};

/// An actor goes where the fewest are, and of these where it need not wait for a task. A task that
/// needs no free core goes to a worker with nothing to do, then to the one with the least.
inline bool unleased_calls::goes_before(const call_base& call, const worker_room& a,
                                        const worker_room& b) noexcept {
    if (call.kind == call_kind::create)
        return std::tuple(a.actors, a.busy, a.coroutines) <
               std::tuple(b.actors, b.busy, b.coroutines);
    const auto load = [](const worker_room& one) {
        const bool is_idle = one.busy == 0 && one.credit.calls == 0 && !one.is_needed();
        return std::tuple(!is_idle, one.busy, one.credit.calls, one.is_needed());
    };
    return load(a) < load(b);
}

template <dispatch_events Above>
bool unleased_calls::place(counted_ptr<call_base> call, Above& above) {
    bool possible = true;
    auto* const to = pick(*call, possible, above);
    if (to != nullptr && asides_.may_go_to(*to, *call)) {
        above.send(*to, std::move(call));
        return true;
    }
    (call->kind == call_kind::create ? actors_ : tasks_).push_back(std::move(call));
    return false;
}

template <dispatch_events Above>
void unleased_calls::pump(line& waiting, Above& above) {
    while (!waiting.empty()) {
        auto& front = waiting.front();
        if (front->is_done()) {
            waiting.pop_front();
            continue;
        }
        bool possible = true;
        auto* const to = pick(*front, possible, above);
        if (to == nullptr && possible) return;
        if (to != nullptr && !asides_.may_go_to(*to, *front)) return;
        auto call = std::move(front);
        waiting.pop_front();
        if (to == nullptr)
            above.refuse(*call, impossible(*call, lines_.demands()));
        else
            above.send(*to, std::move(call));
    }
}

/// Where it goes now; nullptr: nowhere yet, or (possible = false) never.
template <dispatch_events Above>
worker_room* unleased_calls::pick(const call_base& call, bool& possible, Above& above) const {
    worker_room* best = nullptr;
    std::uint32_t largest = 0;
    bool any = false;
    for (auto* const one : book_.workers()) {
        if (!one->up || one->demand) continue;
        any = true;
        largest = std::max(largest, one->capacity);
        if (call.cpus > one->capacity || one->retiring) continue;
        if (call.kind == call_kind::task && call.cpus == 0 && !above.has_credit(*one)) continue;
        if (best == nullptr || goes_before(call, *one, *best)) best = one;
    }
    possible = !any || call.cpus <= largest;
    // An actor stays where it is put: rather wait for a worker that is about to come.
    if (best != nullptr && call.kind == call_kind::create && best->actors > 0 && expects_more())
        return nullptr;
    return best;
}

} // namespace skein::rt::detail
