// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tasks that end after a while of the loop's time, well, badly or late.

#include <skein/core/cancel.hpp>
#include <skein/core/error.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/task.hpp>

#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

namespace skein_test {

inline skein::task<int> give_after(skein::duration d, int value) {
    co_await skein::sleep_for(d);
    co_return value;
}

inline skein::task<int> fail_after(skein::duration d, std::string text = "failed") {
    co_await skein::sleep_for(d);
    throw std::runtime_error(text);
}

/// Needs a second to clean up after it was cancelled.
inline skein::task<int> slow_to_leave(bool* left) {
    try {
        co_await skein::sleep_for(std::chrono::hours(1));
    } catch (const skein::error&) {}
    auto clean_up = skein::shield(give_after(std::chrono::seconds(1), 0));
    (void)co_await clean_up;
    *left = true;
    co_return 0;
}

} // namespace skein_test
