// SPDX-License-Identifier: Apache-2.0
#pragma once
// A doorbell: how one thread sleeps until another one, maybe of another process, has changed
// something in shared memory. Lives in the shared segment, one per sleeper.
//
//     sleeper:  wait_at(bell, spin, until, ready)      ringer:  counter.store(n); bell.ring();
//
// States of asleep: 0 the owner looks by itself, nobody needs to ring; 1 it is about to sleep or
// sleeps. Invariant: the sleeper sets asleep = 1, passes a seq_cst fence, reads the bell, looks
// once more (acquire loads will do after the fence), then sleeps if the bell is still the same; a
// ringer changes the world by a seq_cst store, then reads asleep with a seq_cst load. So either the
// ringer sees 1 and rings, or the sleeper sees the change.

#include <skein/core/clock.hpp>
#include <skein/core/time.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace skein::dist {

/// The system's monotonic clock: shared memory exists only in the real world.
[[nodiscard]] inline time_point steady_now() noexcept { return system_clock().now(); }

inline void cpu_pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

/// All zero is a valid new doorbell, so that fresh shared memory needs no construction.
struct alignas(128) doorbell {
    std::atomic<std::uint32_t> rings;
    std::atomic<std::uint32_t> asleep;

    /// Wakes the owner if it sleeps; a load and nothing else if it does not. Any thread or process.
    void ring() noexcept {
        if (asleep.load(std::memory_order_seq_cst) != 0) ring_always();
    }
    void ring_always() noexcept;
    /// Sleeps while rings is `seen`, at most for `longest`.
    void sleep(std::uint32_t seen, duration longest) noexcept;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(doorbell) == 128);

/// How long to look before sleeping: long while waits turn out to be short, else hardly at all,
/// since looking costs a core that somebody may compute on.
class spin_budget {
public:
    [[nodiscard]] int rounds() const noexcept { return rounds_; }
    /// Tells how long a wait took that needed more than a look.
    void waited(duration length) noexcept {
        if (length < worthwhile)
            rounds_ = std::min(rounds_ + rounds_ / 2 + 16, most);
        else
            rounds_ = std::max(rounds_ / 2, least);
    }

private:
    static constexpr duration worthwhile =
        std::chrono::microseconds(60);            // a sleep costs about 10-50 us
    static constexpr int least = 32, most = 2048; // a pause takes about 20-40 ns
    int rounds_ = 512;
};

/// Blocks the thread until ready(). Between sleeps of at most `slice`, still_good() may throw.
template <class Ready, class Check>
void wait_at(doorbell& bell, spin_budget& spin, duration slice, Ready ready, Check still_good) {
    if (ready()) return;
    const time_point begin = steady_now();
    for (int i = spin.rounds(); i > 0; --i) {
        cpu_pause();
        if (ready()) {
            spin.waited(steady_now() - begin);
            return;
        }
    }
    struct awake_again {
        doorbell& bell;
        spin_budget& spin;
        time_point begin;
        ~awake_again() {
            bell.asleep.store(0, std::memory_order_relaxed);
            spin.waited(steady_now() - begin);
        }
    } guard{bell, spin, begin};
    for (;;) {
        bell.asleep.store(1, std::memory_order_seq_cst);
        std::atomic_thread_fence(std::memory_order_seq_cst);
        const std::uint32_t seen = bell.rings.load(std::memory_order_seq_cst);
        if (ready()) return;
        still_good();
        bell.sleep(seen, slice);
    }
}

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/doorbell.ipp>
#endif
