// SPDX-License-Identifier: Apache-2.0
#pragma once
// The simulated world's loop: virtual time, one thread, everything drawn from one seed.
//
//     sim::loop loop(seed);
//     loop.run(scenario());              // an hour of virtual time takes what its events take
//     loop.trace_hash();                 // the same for the same seed, on every compiler
//
// The kernel is one heap of (time, drawn key, number): events of the same time run in a drawn
// order. A world in which nothing can happen any more although a task waits is an error, not a
// hang.

#include <skein/core/function.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/random.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/time.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::sim {

/// A loop of a part of the world, with a clock of its own, that the world's loop drives
/// (sim/host_loop.hpp).
class inner_loop {
public:
    inner_loop() = default;
    inner_loop(const inner_loop&) = delete;
    inner_loop& operator=(const inner_loop&) = delete;
    /// Whether it has something to do at the world's time of now.
    [[nodiscard]] virtual bool is_ready() noexcept = 0;
    /// One turn of it.
    virtual void run_turn() = 0;
    /// When it has something to do by itself, in the world's time.
    [[nodiscard]] virtual std::optional<time_point> next_turn() noexcept = 0;

protected:
    ~inner_loop() = default;
};

/// A loop whose time is counted, not measured.
class loop final : public skein::loop {
public:
    explicit loop(std::uint64_t seed);
    ~loop() override;

    [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }
    /// Where everything random of this world comes from. Draws are part of the trace.
    [[nodiscard]] random_source& random() noexcept override { return random_; }
    /// How often something was drawn.
    [[nodiscard]] std::uint64_t draws() const noexcept { return random_.drawn; }
    [[nodiscard]] std::optional<duration> simulated_work_time() override;
    /// The time of this world since its beginning.
    [[nodiscard]] std::chrono::milliseconds wall() override;
    /// Uniform in [least, most].
    duration draw_delay(duration least, duration most);
    /// True with probability p.
    bool draw(double p) {
        if (p <= 0) return false;
        return random_.unit() < p;
    }

    /// Runs `call` at a virtual time (at once if it is past).
    void at(time_point when, unique_function<void()> call);
    void after(duration delay, unique_function<void()> call);

    /// Drives another loop as a part of this world, until remove().
    void add(inner_loop& part) { parts_.push_back(&part); }
    void remove(inner_loop& part) noexcept { std::erase(parts_, &part); }

    /// How many events have run.
    [[nodiscard]] std::uint64_t events() const noexcept { return ran_; }
    [[nodiscard]] duration elapsed() const noexcept { return virtual_.time_since_epoch(); }
    /// A fold over every event (time and number) and every advance of time.
    [[nodiscard]] std::uint64_t trace_hash() const noexcept { return trace_; }
    /// Adds to the trace: a protocol may record what it decided.
    void trace(std::uint64_t value) noexcept;
    /// Hands out each part of the trace as a line, to find where two runs of a seed part: what it
    /// was, its value, the time in nanoseconds, how often something was drawn before.
    void set_trace_sink(unique_function<void(std::string_view)> to) { sink_ = std::move(to); }

    /// Stops a world that runs too long: run() throws timeout after so many events or so much time.
    void set_budget(std::uint64_t most_events, duration most_time) noexcept;

protected:
    time_point read_clock() noexcept override { return virtual_; }

    void poll(std::optional<time_point> until, bool may_block) override;
    void notify() noexcept override {}

private:
    struct event_item {
        time_point when;
        std::uint64_t key = 0, number = 0;
        unique_function<void()> call;
    };
    /// Counts, so that the lines of two traces part where the first draw is one too many.
    class counted_random final : public random_source {
    public:
        explicit counted_random(std::uint64_t seed) noexcept : from_(seed, 1) {}
        std::uint64_t next() override {
            ++drawn;
            return from_.next();
        }
        std::uint64_t drawn = 0;

    private:
        seeded_random from_;
    };
    static bool later(const event_item& a, const event_item& b) noexcept;
    void fold(std::uint64_t value) noexcept;
    void tell(std::string_view what, std::uint64_t value) noexcept;
    void run_next();
    bool run_parts();
    [[nodiscard]] std::optional<time_point> next_of_parts() noexcept;

    std::uint64_t seed_;
    counted_random random_;
    time_point virtual_{};
    std::vector<event_item> heap_;
    std::vector<inner_loop*> parts_;
    std::uint64_t scheduled_ = 0, ran_ = 0, turns_ = 0, trace_ = 0x736b65696eULL;
    std::uint64_t most_events_ = 50'000'000;
    duration most_time_ = std::chrono::hours(24 * 365);
    unique_function<void(std::string_view)> sink_;
};

} // namespace skein::sim

#if SKEIN_HEADER_ONLY
#include <skein/sim/detail/loop.ipp>
#endif
