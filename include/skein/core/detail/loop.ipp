// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tasks that a loop ends itself.

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
    ++adopted_;
    auto adopted = detail::run_adopted(std::move(work), &adopted_);
    post_root(adopted.frame);
}

} // namespace skein
