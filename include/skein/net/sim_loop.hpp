// SPDX-License-Identifier: Apache-2.0
#pragma once
// The simulated world's loop: virtual time, one thread, everything drawn from one seed.
//
//     net::sim_loop loop(seed);
//     loop.run(scenario());              // an hour of virtual time takes what its events take
//     loop.trace_hash();                 // the same for the same seed, on every compiler
//
// The kernel is one heap of (time, drawn key, number): events of the same time run in a drawn order.
// A world in which nothing can happen any more although a task waits is an error, not a hang.

#include <skein/core/loop.hpp>
#include <skein/core/random.hpp>
#include <skein/core/sleep.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::net {

/// A loop whose time is counted, not measured.
class sim_loop final : public loop {
public:
    explicit sim_loop(std::uint64_t seed) : seed_(seed), random_(seed, 1) {}

    [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }
    /// Where everything random of this world comes from. Draws are part of the trace.
    [[nodiscard]] random_source& random() noexcept override { return random_; }
    [[nodiscard]] std::optional<duration> simulated_work_time() override {
        return draw_delay(std::chrono::microseconds(10), std::chrono::milliseconds(2));
    }
    /// Uniform in [least, most].
    duration draw_delay(duration least, duration most) {
        const auto width = static_cast<std::uint64_t>((most - least).count()) + 1;
        return least + duration(static_cast<std::int64_t>(random_.below(width)));
    }
    /// True with probability p.
    bool draw(double p) {
        if (p <= 0) return false;
        return random_.unit() < p;
    }

    /// Runs `call` at a virtual time (at once if it is past).
    void at(time_point when, unique_function<void()> call) {
        event_item e;
        e.when = std::max(when, virtual_);
        e.key = random_.next();
        e.number = ++scheduled_;
        e.call = std::move(call);
        heap_.push_back(std::move(e));
        std::push_heap(heap_.begin(), heap_.end(), later);
    }
    void after(duration delay, unique_function<void()> call) {
        at(skein::deadline_after(virtual_, delay), std::move(call));
    }

    /// How many events have run.
    [[nodiscard]] std::uint64_t events() const noexcept { return ran_; }
    [[nodiscard]] duration elapsed() const noexcept { return virtual_.time_since_epoch(); }
    /// A fold over every event (time and number) and every advance of time.
    [[nodiscard]] std::uint64_t trace_hash() const noexcept { return trace_; }
    /// Adds to the trace: a protocol may record what it decided.
    void trace(std::uint64_t value) noexcept {
        std::uint64_t x = trace_ ^ (value + 0x9e3779b97f4a7c15ULL + (trace_ << 6) + (trace_ >> 2));
        x ^= x >> 30;
        x *= 0xbf58476d1ce4e5b9ULL;
        x ^= x >> 27;
        x *= 0x94d049bb133111ebULL;
        trace_ = x ^ (x >> 31);
    }

    /// Stops a world that runs too long: run() throws timeout after so many events or so much time.
    void set_budget(std::uint64_t most_events, duration most_time) noexcept {
        most_events_ = most_events;
        most_time_ = most_time;
    }

protected:
    time_point read_clock() noexcept override { return virtual_; }

    void poll(std::optional<time_point> until, bool may_block) override {
        if (++turns_ > 64 * most_events_ || ran_ > most_events_ || elapsed() > most_time_) {
            throw error(errc::timeout,
                        fmt::format("simulated world of seed {} exceeds its budget after {} "
                                    "events, {:.3f} s",
                                    seed_, ran_, to_seconds(elapsed())));
        }
        virtual_ += duration(100); // work takes time: a task that only yields still gets older
        const bool have = !heap_.empty();
        if (!may_block) {
            if (have && heap_.front().when <= virtual_) run_next();
            return;
        }
        if (have && (!until || heap_.front().when <= *until)) {
            virtual_ = std::max(virtual_, heap_.front().when);
            run_next();
        } else if (until) {
            virtual_ = std::max(virtual_, *until);
            trace(static_cast<std::uint64_t>(virtual_.time_since_epoch().count()));
        } else {
            throw error(errc::internal,
                        fmt::format("simulated world of seed {} is stuck at {:.6f} s: a task "
                                    "waits, but no event and no timer is left",
                                    seed_, to_seconds(elapsed())));
        }
    }
    void notify() noexcept override {}

private:
    struct event_item {
        time_point when;
        std::uint64_t key = 0, number = 0;
        unique_function<void()> call;
    };
    static bool later(const event_item& a, const event_item& b) noexcept {
        if (a.when != b.when) return a.when > b.when;
        if (a.key != b.key) return a.key > b.key;
        return a.number > b.number;
    }
    void run_next() {
        std::pop_heap(heap_.begin(), heap_.end(), later);
        event_item e = std::move(heap_.back());
        heap_.pop_back();
        ++ran_;
        trace(static_cast<std::uint64_t>(e.when.time_since_epoch().count()) ^ (e.number << 1));
        e.call();
    }

    std::uint64_t seed_;
    seeded_random random_;
    time_point virtual_{};
    std::vector<event_item> heap_;
    std::uint64_t scheduled_ = 0, ran_ = 0, turns_ = 0, trace_ = 0x736b65696eULL;
    std::uint64_t most_events_ = 50'000'000;
    duration most_time_ = std::chrono::hours(24 * 365);
};

} // namespace skein::net
