// SPDX-License-Identifier: Apache-2.0
// A task can be awaited only inside a skein coroutine: a foreign one has no loop to come back to.
// expect: promise_with_context
#include <skein/core/task.hpp>

#include <coroutine>

struct foreign {
    struct promise_type {
        foreign get_return_object() { return {}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() {}
    };
};

skein::task<int> one() { co_return 1; }

#if defined(SKEIN_COMPILES)
skein::task<void> use() {
#else
foreign use() {
#endif
    auto t = one();
    (void)co_await t;
}
