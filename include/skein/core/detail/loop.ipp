// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tasks that a loop ends itself; the wall clock.

#include <skein/core/clock.hpp>

#include <utility>

namespace skein {

namespace detail {

SKEIN_INLINE self_owned run_adopted(task<void> work, std::size_t* running) {
    try {
        co_await work;
    } catch (...) { // nobody is left to be told
    }
    work = {};
    --*running;
}

} // namespace detail

SKEIN_INLINE void loop::adopt(task<void> work) {
    ++outer_->adopted_;
    auto adopted = detail::run_adopted(std::move(work), &outer_->adopted_);
    post_root(adopted.frame);
}

SKEIN_INLINE std::chrono::milliseconds loop::wall() { return system_clock().wall(); }

} // namespace skein
