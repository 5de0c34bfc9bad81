// SPDX-License-Identifier: Apache-2.0
#pragma once
// demand_lines: which tasks of a driver wait for which cores. Each demand (cpus, gpus, memory,
// resources, place) has a number and one line; what other calls have made goes before what the
// program itself has submitted.
//
// A task that waits here is in one of two states: it stands in the line of its demand; or it is a
// suspect, beside which a worker has died, and waits for a worker with nothing to do, to take
// nobody along the next time.
//
//     demand_lines lines;
//     lines.push(call);                          // to the end of the line of call->demand
//     while (lines.front(line) != nullptr) run(lines.pop(line));

#include <skein/core/counted_ptr.hpp>
#include <skein/core/result.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/lease_line.hpp>
#include <skein/rt/options.hpp>
#include <skein/sched/demands.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

namespace skein::rt::detail {

/// What `.on` says, as it travels.
[[nodiscard]] sched::place place_of(const location& on);

/// The number of what a caller asks for.
///   errors  invalid_argument (no place could have it), exhausted (so many different ones)
[[nodiscard]] result<sched::demand_id> demand_of(sched::demand_table& demands,
                                                 const call_options& how, bool for_life = false);

class demand_lines {
public:
    using calls = std::vector<counted_ptr<call_base>>;
    struct suspect {
        counted_ptr<call_base> call;
        std::uint64_t turn = 0; ///< it is tried when so many tasks have left
    };

    /// Tasks that occupy cores. Not a nested one that has killed a worker: it would wait for a
    /// worker with nothing to do, and others wait for it.
    [[nodiscard]] static bool is_leased(const call_base& call) noexcept {
        return call.kind == call_kind::task && call.cpus > 0 && !(call.nested && call.alone != 0);
    }
    /// Tasks that may suspend.
    [[nodiscard]] static bool is_coroutine(const call_base& call) noexcept {
        return call.kind == call_kind::task && call.fn != nullptr && call.fn->is_coroutine;
    }
    /// Plain tasks with cores, which hold the loop of their worker until they return.
    [[nodiscard]] static bool holds_loop(const call_base& call) noexcept {
        return call.kind == call_kind::task && call.cpus > 0 && call.fn != nullptr &&
               !call.fn->is_coroutine;
    }
    /// An actor that holds what it asks for waits in a line as tasks do.
    [[nodiscard]] static bool is_lined_up(const call_base& call) noexcept {
        return is_leased(call) || (call.kind == call_kind::create && call.demand);
    }

    [[nodiscard]] sched::demand_table& demands() noexcept { return demands_; }
    [[nodiscard]] const sched::demand_table& demands() const noexcept { return demands_; }
    [[nodiscard]] lease_line& line_of(sched::demand_id demand);
    /// The same of a demand that may have none; then nullptr.
    [[nodiscard]] lease_line* find(sched::demand_id demand) noexcept;
    /// All lines, in the order of their numbers.
    [[nodiscard]] std::map<sched::demand_id, lease_line>& all() noexcept { return lines_; }

    /// To the end of its line. A suspect stands behind all that wait now.
    void push(counted_ptr<call_base> call);
    /// To the front of their lines, in this order.
    void push_front(const calls& again);
    /// The first task of a line that has no outcome yet.
    [[nodiscard]] call_base* front(lease_line& line);
    [[nodiscard]] counted_ptr<call_base> pop(lease_line& line);
    /// A task has gone to a worker without a place in its line.
    void note_passed() noexcept { ++gone_; }
    /// Takes all that wait.
    void take_all(calls& into);
    /// Takes those that `leaves` names; who waits behind them does so no more.
    template <class Leaves>
    void take_if(const Leaves& leaves, calls& into);
    /// Whether take_if() has taken some since this was asked before: lines may be empty now.
    [[nodiscard]] bool were_thinned() noexcept { return std::exchange(is_thinned_, false); }

    [[nodiscard]] bool waits() const noexcept { return waiting_ > 0 || !suspects_.empty(); }
    /// Tasks in lines; suspects are not among them.
    [[nodiscard]] std::size_t waiting() const noexcept { return waiting_; }
    /// Tasks that have left their line.
    [[nodiscard]] std::uint64_t gone() const noexcept { return gone_; }

    [[nodiscard]] bool has_suspects() const noexcept { return !suspects_.empty(); }
    [[nodiscard]] std::size_t suspects() const noexcept { return suspects_.size(); }
    [[nodiscard]] suspect pop_suspect();
    void push_suspect(suspect one) { suspects_.push_back(std::move(one)); }

    /// The line of a demand that nobody has any more.
    void forget(sched::demand_id demand) { lines_.erase(demand); }

private:
    sched::demand_table demands_;
    std::map<sched::demand_id, lease_line> lines_;
    std::deque<suspect> suspects_;
    std::size_t waiting_ = 0;
    std::uint64_t gone_ = 0;
    bool is_thinned_ = false;
};

template <class Leaves>
void demand_lines::take_if(const Leaves& leaves, calls& into) {
    const auto take_out = [&](std::deque<counted_ptr<call_base>>& from) {
        const auto first = into.size();
        for (const auto& call : from)
            if (leaves(call)) into.push_back(call);
        if (into.size() == first) return;
        std::erase_if(from, leaves);
        waiting_ -= into.size() - first;
        gone_ += into.size() - first;
        is_thinned_ = true;
    };
    for (auto& [demand, line] : lines_) {
        take_out(line.inner);
        take_out(line.waiting);
    }
    std::erase_if(suspects_, [&](const suspect& one) {
        if (!leaves(one.call)) return false;
        into.push_back(one.call);
        return true;
    });
}

} // namespace skein::rt::detail
