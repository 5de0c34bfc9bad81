// SPDX-License-Identifier: Apache-2.0
#pragma once
// wait: until some of many calls are done, or for so long.
//
//     auto some = skein::wait(refs, 10, 200ms);
//     auto now = co_await std::move(some);
//     // does not suspend: a value, or the call's error
//     for (auto& r : now.done) use(co_await r);
//     refs = std::move(now.pending);
//
// It looks at outcomes, not at values: a call that failed is done. The calls go on, whatever
// becomes of the wait.

#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/timeout.hpp>
#include <skein/rt/ref.hpp>

#include <algorithm>
#include <coroutine>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace skein {

/// What a wait() has seen; both in the order in which the refs were given.
template <class T>
struct waited_refs {
    std::vector<ref<T>> done, pending;
};

namespace rt::detail {

/// Suspends until a call is done, whatever its outcome is.
class outcome_awaiter : public waiter {
public:
    explicit outcome_awaiter(call_base& call) noexcept : call_(call) {}
    [[nodiscard]] bool await_ready() const noexcept { return call_.is_done(); }
    template <skein::detail::promise_with_context Promise>
    bool await_suspend(std::coroutine_handle<Promise> h) {
        if (!arm(h)) return false;
        call_.waiters.push_back(*this);
        return true;
    }
    void await_resume() const {
        if (!call_.is_done()) throw_if_cancelled();
    }

private:
    call_base& call_;
};

struct outcome_count {
    std::size_t missing = 0; ///< outcomes that are still waited for
    event enough;
};

inline task<void> count_outcome_of(counted_ptr<call_base> call, outcome_count* all) {
    outcome_awaiter outcome(*call);
    co_await outcome;
    if (all->missing > 0 && --all->missing == 0) all->enough.set();
}
inline task<void> wait_for_enough(outcome_count* all) { co_await all->enough.wait(); }

template <class T>
task<waited_refs<T>> wait_for_refs(std::vector<ref<T>> refs, std::size_t n, duration limit) {
    outcome_count all;
    all.missing = std::min(n, refs.size());
    for (const auto& r : refs) all.missing -= all.missing > 0 && r.ready() ? 1U : 0U;
    if (all.missing > 0 && limit > duration::zero()) {
        scope watching;
        for (const auto& r : refs)
            if (!r.ready()) watching.spawn(count_outcome_of(r.state(), &all));
        auto enough = wait_for_enough(&all);
        auto limited =
            limit == no_deadline ? std::move(enough) : with_timeout(std::move(enough), limit);
        auto guarded = as_result(std::move(limited));
        const auto ended = co_await guarded;
        watching.cancel();
        auto joined = watching.join();
        auto sure = shield(std::move(joined));
        auto last = as_result(std::move(sure));
        (void)co_await last;
        if (!ended && ended.error().code() == errc::cancelled) throw ended.error();
    }
    waited_refs<T> seen;
    for (auto& r : refs) (r.ready() ? seen.done : seen.pending).push_back(std::move(r));
    co_return seen;
}

} // namespace rt::detail

/// Suspends until n of the refs are done, all if there are fewer, or the time is over; resumed by
/// the loop. What was done by then is given, so that may be more than n. A limit of zero or less:
/// looks, and does not suspend.
///   errors  cancelled: ends the wait, not the calls
template <class T>
[[nodiscard]] task<waited_refs<T>> wait(std::vector<ref<T>> refs, std::size_t n,
                                        time_span limit = no_deadline) {
    return rt::detail::wait_for_refs(std::move(refs), n, limit);
}
template <class T>
[[nodiscard]] task<waited_refs<T>> wait(std::span<const ref<T>> refs, std::size_t n,
                                        time_span limit = no_deadline) {
    return rt::detail::wait_for_refs(std::vector<ref<T>>(refs.begin(), refs.end()), n, limit);
}

} // namespace skein
