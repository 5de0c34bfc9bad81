// SPDX-License-Identifier: Apache-2.0
// expect: skein: put() takes a value that can be sent and owns what it holds
#include <skein/rt/put.hpp>

skein::task<void> use(skein::ref<int> r) {
    auto putting = skein::put(r);
    (void)co_await putting;
}
