// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tasks that a loop ends itself; the wall clock.

#include <skein/core/clock.hpp>
#include <skein/core/error.hpp>

#include <string>
#include <string_view>
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

SKEIN_INLINE void loop::refuse_inside(std::string_view what, std::string_view hint) {
    if (current_ == nullptr) return;
    throw error(errc::not_supported,
                "not supported: " + std::string(what) +
                    " inside a running loop, in a task, an actor or the app of skein::run")
        .with_hint(std::string(hint));
}

SKEIN_INLINE void loop::adopt(task<void> work) {
    ++outer_->adopted_;
    auto adopted = detail::run_adopted(std::move(work), &outer_->adopted_);
    post_root(adopted.frame);
}

SKEIN_INLINE std::chrono::milliseconds loop::wall() { return system_clock().wall(); }

} // namespace skein
