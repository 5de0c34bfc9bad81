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
#include <utility>

namespace skein::dist {

/// The system's monotonic clock: shared memory exists only in the real world.
[[nodiscard]] inline time_point steady_now() noexcept { return system_clock().now(); }

/// Tells the processor that this thread spins.
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
/// since looking costs a core that somebody may compute on. Two sides that both sleep make each
/// other's waits long, as each wakes late; so now and then a wait looks for longer than waking
/// takes.
class spin_budget {
public:
    [[nodiscard]] int rounds() const noexcept { return rounds_; }
    /// For a wait that begins now.
    [[nodiscard]] int next() noexcept {
        if (rounds_ > least || --until_trial_ > 0) return rounds_;
        between_trials_ = std::min(2 * between_trials_, rarest);
        until_trial_ = between_trials_;
        return trial;
    }
    /// Looking was enough.
    void paid() noexcept {
        rounds_ = std::min(rounds_ + rounds_ / 2 + 16, most);
        between_trials_ = until_trial_ = often;
    }
    /// Tells how long a wait took that was slept through in the end.
    void slept(duration length) noexcept {
        if (length < worthwhile)
            paid();
        else
            rounds_ = std::max(rounds_ / 2, least);
    }

private:
    static constexpr duration worthwhile =
        std::chrono::microseconds(60);            // a sleep costs about 10-50 us
    static constexpr int least = 32, most = 2048; // a pause takes about 20-40 ns
    static constexpr int trial = 8192;            // two idle cores wake each other in 60-90 us
    static constexpr int often = 16, rarest = 512;
    int rounds_ = 512, until_trial_ = often, between_trials_ = often;
};

/// The core this thread runs on; negative: the system does not say.
[[nodiscard]] int this_core() noexcept;

/// Blocks the thread until ready(). Between sleeps of at most `slice`, still_good() may throw.
///   worth_looking  false: sleep at once, as when the other side needs this core to come
template <class Ready, class Check, class Look>
void wait_at(doorbell& bell, spin_budget& spin, duration slice, Ready ready, Check still_good,
             Look worth_looking) {
    if (ready()) return;
    const bool look = worth_looking();
    const time_point begin = steady_now();
    for (int i = look ? spin.next() : 0; i > 0; --i) {
        cpu_pause();
        if (ready()) return spin.paid();
    }
    struct awake_again {
        doorbell& bell;
        ~awake_again() { bell.asleep.store(0, std::memory_order_relaxed); }
    } guard{bell};
    for (;;) {
        bell.asleep.store(1, std::memory_order_seq_cst);
        std::atomic_thread_fence(std::memory_order_seq_cst);
        const std::uint32_t seen = bell.rings.load(std::memory_order_seq_cst);
        if (ready()) break;
        still_good();
        bell.sleep(seen, slice);
    }
    if (look) spin.slept(steady_now() - begin);
}

template <class Ready, class Check>
void wait_at(doorbell& bell, spin_budget& spin, duration slice, Ready ready, Check still_good) {
    wait_at(bell, spin, slice, std::move(ready), std::move(still_good), [] { return true; });
}

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/doorbell.ipp>
#endif
