// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a shm_communicator waits for the others, and how it fails.

#include <skein/core/constants.hpp>
#include <skein/dist/detail/abort_body.ipp>
#include <skein/dist/doorbell.hpp>

#include <algorithm>
#include <cerrno>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

namespace skein::dist {

template <class Reached>
void shm_communicator::wait_until(Reached reached) {
    int behind = rank_;
    const auto all_reached = [&] {
        for (int r = 0; r < size_; ++r) {
            if (r != rank_ && !reached(r)) {
                behind = r;
                return false;
            }
        }
        return true;
    };
    // Whoever aborts has stored its counters before: what it has done its part of ends well here
    // too.
    const auto ready = [&] {
        const bool aborted = head().aborted.load(std::memory_order_acquire) != 0;
        return all_reached() || aborted;
    };
    constexpr duration look = time_constants::lan().shm_look;
    const auto worth_looking = [&] { return !short_ || !needs_this_core(behind); };
    const auto check = [&] { still_good(behind, ready, reached); };
    wait_at(me().bell, spin_, look, ready, check, worth_looking);
    if (!all_reached()) throw_if_aborted();
}

/// Everybody has come and says the same. Blocks; on a thread that only begins it looks for a
/// moment.
struct shm_communicator::meeting {
    shm_communicator& comm;
    [[nodiscard]] bool await_ready() const noexcept { return !comm.here_ || comm.all_come_soon(); }
    void await_suspend(std::coroutine_handle<> h) const noexcept { comm.parked_ = {h, false}; }
    void await_resume() const {
        comm.short_ = true; // until the next collective begins
        comm.wait_for_all_to_agree();
    }
};

/// Where a collective goes on that may block for long.
struct shm_communicator::own_loop {
    shm_communicator& comm;
    [[nodiscard]] bool await_ready() const noexcept { return !comm.here_; }
    void await_suspend(std::coroutine_handle<> h) const noexcept { comm.parked_ = {h, true}; }
    void await_resume() const noexcept {}
};

SKEIN_INLINE suspended_start shm_communicator::end_here() noexcept {
    here_ = false;
    return std::exchange(parked_, {});
}

/// It last ran where this thread runs: while this one looks, that one cannot come.
SKEIN_INLINE bool shm_communicator::needs_this_core(int r) const noexcept {
    const auto mine = this_core();
    return mine >= 0 && at(r).core.load(std::memory_order_relaxed) == mine + 1;
}

/// A look of a microsecond or two: who submits may have work to do, and who has not waits for the
/// ticket, and looks on there. An abort is something to go on with, too.
SKEIN_INLINE bool shm_communicator::all_come_soon() noexcept {
    constexpr int brief = 64;
    const auto now_at = static_cast<std::uint32_t>(doing_.sequence);
    int behind = 0;
    for (int left = brief;; --left) {
        while (behind < size_ &&
               (behind == rank_ ||
                detail::at_least(at(behind).arrived.load(std::memory_order_acquire), now_at))) {
            ++behind;
        }
        if (behind == size_ || head().aborted.load(std::memory_order_acquire) != 0) {
            if (left < brief) spin_.paid();
            return true;
        }
        if (left <= 0 || (left == brief && needs_this_core(behind))) return false;
        cpu_pause();
    }
}

SKEIN_INLINE void shm_communicator::wait_all(counter which, std::uint32_t value) {
    wait_until([&](int r) {
        return detail::at_least((at(r).*which).load(std::memory_order_acquire), value);
    });
}

/// Called between sleeps: throws if waiting for `behind` makes no sense any more. A rank may do its
/// part, leave and end while this one looks at it: hence the second look at what it did.
template <class Ready, class Reached>
void shm_communicator::still_good(int behind, Ready ready, Reached reached) {
    const auto has_left = [&](int r) { return at(r).left.load(std::memory_order_seq_cst) != 0; };
    for (int r = 0; r < size_; ++r) {
        if (r == rank_ || has_left(r)) continue;
        if (is_gone(r) && !has_left(r) && !ready()) {
            blame(
                errc::peer_lost, r,
                fmt::format("its process {} has ended", at(r).pid.load(std::memory_order_relaxed)));
        }
    }
    if (has_left(behind) && !reached(behind)) {
        blame(errc::peer_lost, behind, "it has closed its communicator");
    }
    if (steady_now() < until_) return;
    const auto now_at = static_cast<std::uint32_t>(doing_.sequence);
    for (int r = 0; r < size_; ++r) { // who is really missing, not who waits for the missing one
        if (!detail::at_least(at(r).arrived.load(std::memory_order_acquire), now_at)) behind = r;
    }
    blame(errc::timeout, behind,
          fmt::format("it has not done its part within {:.3g} s", to_seconds(deadline_)));
}

SKEIN_INLINE void shm_communicator::blame(errc code, int culprit, std::string what) {
    error why(code, fmt::format("rank {} failed in {}: {}", label(culprit),
                                detail::describe(doing_), what));
    abort(why);
    throw_if_aborted(); // an earlier abort by somebody else wins
    throw why;
}

SKEIN_INLINE bool shm_communicator::is_gone(int r) const noexcept {
    if (watched_.empty()) return false;
    const int pid = at(r).pid.load(std::memory_order_relaxed);
    if (pid == ::getpid()) return false;
    const int fd = watched_[static_cast<std::size_t>(r)].get();
    if (fd < 0) return ::kill(pid, 0) != 0 && errno == ESRCH;
    pollfd ask{fd, POLLIN, 0};
    return ::poll(&ask, 1, 0) > 0; // readable = the process has ended
}

SKEIN_INLINE void shm_communicator::abort(error why) noexcept {
    auto& h = head();
    std::uint32_t expected = 0;
    if (h.aborted.compare_exchange_strong(expected, 1, std::memory_order_seq_cst)) {
        static_assert(sizeof h.error == detail::most_abort_bytes);
        h.error_bytes = 0;
        try {
            const byte_buffer body = detail::abort_body(why);
            std::copy(body.begin(), body.end(), h.error);
            h.error_bytes = static_cast<std::uint32_t>(body.size());
        } catch (const std::bad_alloc&) {} // the others learn that there was an abort, not why
        h.aborted.store(2, std::memory_order_seq_cst);
    }
    for (int r = 0; r < size_; ++r) at(r).bell.ring_always();
}

SKEIN_INLINE void shm_communicator::throw_if_aborted() const {
    std::uint32_t phase = head().aborted.load(std::memory_order_acquire);
    if (phase == 0) return;
    // Phase 1 takes a microsecond, unless the writer died in it.
    for (int i = 0; phase == 1 && i < 1'000'000; ++i) {
        cpu_pause();
        phase = head().aborted.load(std::memory_order_acquire);
    }
    const std::string where = fmt::format("rank {}, {}", label(rank_), detail::describe(doing_));
    if (phase == 1) throw error(errc::aborted, "a rank died while it aborted").with_where(where);
    const std::size_t written = std::min<std::size_t>(head().error_bytes, sizeof head().error);
    error why = detail::decode_abort(byte_span(head().error, written), "a rank");
    if (why.where().empty()) why.with_where(where);
    throw why;
}

} // namespace skein::dist
