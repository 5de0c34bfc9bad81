// SPDX-License-Identifier: Apache-2.0
#pragma once
// A host of the simulated world with a clock of its own: a loop whose time runs faster or slower
// than the world's, and whose wall clock jumps. What runs on it has its timers and its now() by
// that clock.
//
//     sim::host_loop slow(world, {.parts_per_billion = -50'000'000, .ahead = 3s});  // 5 % slow
//     // this task and all below it live on that host
//     auto serving = sim::run_on(slow, server.serve());
//     co_await serving;                                     // here the caller's loop goes on
//
// The world's loop drives it, in the same thread: tasks of several hosts may share objects of a
// test, wait for each other and cancel each other. Times do not travel between them.

#include <skein/core/loop.hpp>
#include <skein/core/random.hpp>
#include <skein/core/time.hpp>
#include <skein/sim/loop.hpp>

#include <chrono>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

namespace skein::sim {

/// How a clock differs from the world's.
struct clock_error {
    std::int64_t parts_per_billion = 0; ///< of 10^9; it gains so much, or loses where negative
    time_span ahead{};                  ///< where it begins, after the world's beginning
};

/// The loop of one host. Must outlive what was run on it, and not the world's loop.
class host_loop final : public skein::loop, public inner_loop {
public:
    host_loop(sim::loop& world, clock_error how);
    ~host_loop() override;

    [[nodiscard]] clock_error clock() const noexcept { return clock_; }
    /// From now on it gains or loses so much.
    void set_drift(std::int64_t parts_per_billion);
    /// Somebody sets the wall clock; the time that decides goes on.
    void set_wall_forward(std::chrono::milliseconds by) noexcept { wall_ahead_ += by; }

    [[nodiscard]] random_source& random() noexcept override { return world_.random(); }
    [[nodiscard]] std::optional<duration> simulated_work_time() override {
        return world_.simulated_work_time();
    }
    [[nodiscard]] std::chrono::milliseconds wall() override;

    [[nodiscard]] bool is_ready() noexcept override { return has_work(); }
    void run_turn() override;
    [[nodiscard]] std::optional<time_point> next_turn() noexcept override;

    /// Its time at a time of the world that is not past, and the earliest time of the world at
    /// which it is so late here.
    [[nodiscard]] time_point here_at(time_point world) const noexcept;
    [[nodiscard]] time_point world_at(time_point here) const noexcept;

protected:
    time_point read_clock() noexcept override { return here_at(world_.exact_now()); }
    void poll(std::optional<time_point>, bool) override {} // the world waits
    void notify() noexcept override {}

private:
    static void check_rate(std::int64_t parts_per_billion);

    sim::loop& world_;
    clock_error clock_;
    time_point world_since_{}, here_since_{}; ///< the same moment; the rate has been the same since
    time_point start_;                        ///< its time at the world's beginning
    std::chrono::milliseconds wall_ahead_{0};
};

namespace detail {

/// Goes on on another loop of this thread.
class move_to {
public:
    explicit move_to(skein::loop& there) noexcept : there_(there) {}
    bool await_ready() const noexcept { return &there_ == &skein::loop::current(); }
    template <skein::detail::promise_with_context Promise>
    void await_suspend(std::coroutine_handle<Promise> h) {
        next_ = {h, h.promise().context};
        there_.post(next_);
    }
    void await_resume() const noexcept {}

private:
    skein::loop& there_;
    resumption next_;
};

} // namespace detail

/// Runs work, and all that it awaits and spawns, on another loop of this thread; goes on on the
/// caller's loop then.
template <class T>
[[nodiscard]] task<T> run_on(skein::loop& there, task<T> work) {
    auto& before = skein::loop::current();
    std::exception_ptr failure;
    std::conditional_t<std::is_void_v<T>, std::monostate, std::optional<T>> value;
    detail::move_to away(there);
    co_await away;
    try {
        if constexpr (std::is_void_v<T>) {
            co_await work;
        } else {
            value.emplace(co_await work);
        }
    } catch (...) {
        failure = std::current_exception();
    }
    work = {}; // what it held ends where it was
    detail::move_to back(before);
    co_await back;
    if (failure) std::rethrow_exception(failure);
    if constexpr (!std::is_void_v<T>) co_return std::move(*value);
}

/// Which clocks the hosts of a world have. All zero: the world's.
struct clock_faults {
    std::int64_t most_drift = 0; ///< parts per billion, either way
    time_span most_ahead{};      ///< a clock counts from some start of its machine
    time_span jump_every{};      ///< of wall clocks; zero = none
    time_span most_jump = std::chrono::hours(240); ///< either way

    /// A mix of one seed: a third of the worlds have one clock, most others clocks that differ by
    /// up to 500 ppm, one in six by up to five per cent.
    static clock_faults draw(random_source& random);
    [[nodiscard]] bool any() const noexcept { return most_drift != 0 || jump_every != duration(0); }
    /// The clock of one host.
    [[nodiscard]] clock_error draw_one(random_source& random) const;
};

} // namespace skein::sim

#if SKEIN_HEADER_ONLY
#include <skein/sim/detail/host_loop.ipp>
#endif
