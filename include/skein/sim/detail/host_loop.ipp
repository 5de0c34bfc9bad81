// SPDX-License-Identifier: Apache-2.0
#pragma once
// The clock of a host, in whole numbers: the same on every machine.

#include <skein/core/check.hpp>

#include <algorithm>

namespace skein::sim {

namespace detail {

inline constexpr std::int64_t billion = 1'000'000'000;

/// length * parts / 10^9 without an overflow, rounded towards zero.
constexpr std::int64_t parts_of(std::int64_t length, std::int64_t parts) noexcept {
    return length / billion * parts + length % billion * parts / billion;
}

} // namespace detail

SKEIN_INLINE void host_loop::check_rate(std::int64_t parts_per_billion) {
    SKEIN_CHECK(parts_per_billion > -detail::billion && parts_per_billion < detail::billion,
                "a clock that gains {} parts of 10^9", parts_per_billion);
}

SKEIN_INLINE host_loop::host_loop(sim::loop& world, clock_error how)
    : skein::loop(world.exact_now() + how.ahead), world_(world), clock_(how),
      world_since_(world.exact_now()), here_since_(world.exact_now() + how.ahead),
      start_(deadline_after({}, how.ahead)) {
    check_rate(how.parts_per_billion);
    live_within(world);
    world.add(*this);
}
SKEIN_INLINE host_loop::~host_loop() { world_.remove(*this); }

SKEIN_INLINE void host_loop::set_drift(std::int64_t parts_per_billion) {
    check_rate(parts_per_billion);
    const auto now = world_.exact_now();
    here_since_ = here_at(now);
    world_since_ = now;
    clock_.parts_per_billion = parts_per_billion;
}

SKEIN_INLINE std::chrono::milliseconds host_loop::wall() {
    const auto gone = exact_now() - start_;
    return std::chrono::duration_cast<std::chrono::milliseconds>(gone) + wall_ahead_;
}

SKEIN_INLINE void host_loop::run_turn() {
    const use here(*this);
    turn(false);
}

SKEIN_INLINE std::optional<time_point> host_loop::next_turn() noexcept {
    const auto next = next_timer();
    return next ? std::optional(world_at(*next)) : std::nullopt;
}

SKEIN_INLINE time_point host_loop::here_at(time_point world) const noexcept {
    const auto length = world - world_since_;
    return here_since_ + length +
           duration(detail::parts_of(length.count(), clock_.parts_per_billion));
}

SKEIN_INLINE time_point host_loop::world_at(time_point here) const noexcept {
    constexpr auto far = std::chrono::hours(24 * 365 * 50); // never: a wait without an end
    const auto length = here - here_since_;
    if (length <= duration(0)) return world_since_;
    if (length > far) return time_point::max();
    const auto rate = detail::billion + clock_.parts_per_billion;
    const auto ns = length.count();
    const duration near(ns / rate * detail::billion + ns % rate * detail::billion / rate);
    auto world =
        world_since_ + std::max(near - duration(2), duration(0)); // rounding is at most that
    while (here_at(world) < here) world += duration(1);
    return world;
}

SKEIN_INLINE clock_faults clock_faults::draw(random_source& random) {
    clock_faults f;
    // Always the same number of draws, as in sim::faults::draw.
    const auto kind = random.below(6);
    const bool jumps = random.below(2) == 0;
    if (kind < 2) return f;
    f.most_drift = kind == 5 ? 50'000'000 : 500'000;
    f.most_ahead = std::chrono::hours(24 * 30);
    if (jumps) f.jump_every = std::chrono::seconds(5);
    return f;
}

SKEIN_INLINE clock_error clock_faults::draw_one(random_source& random) const {
    const auto width = static_cast<std::uint64_t>(2 * most_drift) + 1;
    const auto ahead = static_cast<std::uint64_t>(most_ahead.count()) + 1;
    clock_error one;
    one.parts_per_billion = static_cast<std::int64_t>(random.below(width)) - most_drift;
    one.ahead = duration(static_cast<std::int64_t>(random.below(ahead)));
    return one;
}

} // namespace skein::sim
