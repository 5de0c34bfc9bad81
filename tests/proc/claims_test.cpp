// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/proc/claims.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include <fcntl.h>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using proc::claims;
using proc::shared_memory;

TEST_CASE("each call is begun by the worker or taken back by the driver, never both",
          "[proc][claims]") {
    constexpr std::uint64_t calls = 200'000;
    const auto memory = shared_memory::create(claims::bytes);
    claims driver(memory);
    claims worker(shared_memory::open(unique_fd(::fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0))));
    std::vector<std::uint8_t> begun(calls + 1);
    std::atomic<std::uint64_t> sent{0};
    std::thread runs([&] {
        for (std::uint64_t n = 1; n <= calls; ++n) {
            while (sent.load(std::memory_order_acquire) < n) {}
            begun[n] = worker.begin();
        }
    });
    std::vector<std::uint8_t> taken(calls + 1);
    for (std::uint64_t n = 1; n <= calls;) { // some ahead, as a driver does
        const auto ahead = std::min(calls, n + 63);
        sent.store(ahead, std::memory_order_release);
        for (auto back = ahead; back >= n; --back)
            if (back % 3 == 0) taken[back] = driver.take_back(back);
        n = ahead + 1;
    }
    runs.join();
    std::uint64_t wrong = 0, taken_back = 0;
    for (std::uint64_t n = 1; n <= calls; ++n) {
        wrong += begun[n] == taken[n];
        taken_back += taken[n];
    }
    CHECK(wrong == 0);
    CHECK(taken_back > 0);
    CHECK(driver.last_begun() == calls);
}

TEST_CASE("after the end of a link nothing that was sent begins any more", "[proc][claims]") {
    claims driver(shared_memory::create(claims::bytes));
    auto worker = driver; // a copy counts for itself
    for (int i = 0; i < 10; ++i) CHECK(worker.begin());
    const auto sent = 3 * claims::entries;
    CHECK_FALSE(driver.take_back(10));
    CHECK(driver.take_back(10 + claims::entries));
    CHECK_FALSE(driver.take_back(11 + claims::entries)); // its entry is that of call 11
    driver.close(sent);
    for (auto n = 11u; n <= sent; ++n) CHECK_FALSE(driver.has_begun(n));
    CHECK(driver.has_begun(10));
    CHECK_FALSE(worker.begin());
    for (auto n = 12u; n <= sent; ++n)
        if (worker.begin()) FAIL("call " << n << " began");
}

TEST_CASE("what is not a page of claims is refused", "[proc][claims]") {
    CHECK_THROWS_AS(claims(shared_memory::create(100)), error);
    CHECK_THROWS_AS(claims(shared_memory()), error);
    CHECK_FALSE(claims());
    CHECK(claims().begin());
    CHECK(claims().has_begun(1));
    CHECK_FALSE(claims().take_back(1));
}
