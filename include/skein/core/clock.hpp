// SPDX-License-Identifier: Apache-2.0
#pragma once
// Time as a parameter, for code that must also run in the simulated world.
//
// now() is for deciding (deadlines, rates); wall() is for people (log lines, file names) and may
// jump. Inside a task prefer loop::now().

#include <skein/core/time.hpp>

#include <chrono>
#include <cstdint>

namespace skein {

/// Where code asks for the time that does not ask its loop. Not owned by those who ask.
class clock {
public:
    virtual ~clock() = default;
    /// Monotonic.
    [[nodiscard]] virtual time_point now() noexcept = 0;
    /// Since 1970-01-01 UTC.
    [[nodiscard]] virtual std::chrono::milliseconds wall() noexcept = 0;
};

/// The machine's clocks.
class system_clock final : public clock {
public:
    [[nodiscard]] time_point now() noexcept override {
        return time_point(std::chrono::duration_cast<duration>(
            std::chrono::steady_clock::now().time_since_epoch()));
    }
    [[nodiscard]] std::chrono::milliseconds wall() noexcept override {
        return std::chrono::duration_cast<std::chrono::milliseconds>(
            std::chrono::system_clock::now().time_since_epoch());
    }
};

/// A clock that stands still until it is moved; for tests.
class manual_clock final : public clock {
public:
    [[nodiscard]] time_point now() noexcept override { return now_; }
    [[nodiscard]] std::chrono::milliseconds wall() noexcept override {
        return wall_start_ +
               std::chrono::duration_cast<std::chrono::milliseconds>(now_.time_since_epoch());
    }
    void advance(duration by) noexcept { now_ += by; }

private:
    time_point now_{};
    std::chrono::milliseconds wall_start_{1'700'000'000'000};
};

} // namespace skein
