// SPDX-License-Identifier: Apache-2.0
// A wait can be awaited only inside a skein coroutine.
// expect: promise_with_context
#include <skein/core/sleep.hpp>

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

#if defined(SKEIN_COMPILES)
skein::task<void> use() {
#else
foreign use() {
#endif
    co_await skein::sleep_for(std::chrono::seconds(1));
}
