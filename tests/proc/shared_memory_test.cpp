// SPDX-License-Identifier: Apache-2.0
#include <skein/proc/shared_memory.hpp>

#include <skein/core/error.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

using skein::proc::shared_memory;

TEST_CASE("shared memory is zero, and what one end writes the other reads", "[rt]") {
    CHECK_FALSE(shared_memory());
    CHECK(shared_memory().fd() == -1);
    CHECK(shared_memory().bytes().empty());
    const auto mine = shared_memory::create(10'000);
    REQUIRE(mine.bytes().size() == 10'000);
    CHECK(std::all_of(mine.bytes().begin(), mine.bytes().end(),
                      [](std::byte b) { return b == std::byte{0}; }));
    const auto other =
        shared_memory::open(skein::unique_fd(::fcntl(mine.fd(), F_DUPFD_CLOEXEC, 0)));
    REQUIRE(other.bytes().size() == 10'000);
    CHECK(other.bytes().data() != mine.bytes().data());
    mine.bytes()[9'999] = std::byte{7};
    CHECK(other.bytes()[9'999] == std::byte{7});
}

TEST_CASE("nobody shrinks shared memory under those who use it", "[rt]") {
    const auto mine = shared_memory::create(8192);
    CHECK(::ftruncate(mine.fd(), 0) != 0);
    CHECK(::ftruncate(mine.fd(), 100'000) != 0);
}

TEST_CASE("what is no shared memory is refused", "[rt]") {
    const auto refused = [](int file) {
        try {
            (void)shared_memory::open(skein::unique_fd(file));
            return false;
        } catch (const skein::error& e) {
            return e.code() == skein::errc::malformed;
        }
    };
    CHECK(refused(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
    CHECK(refused(::memfd_create("not sealed", MFD_CLOEXEC)));
    CHECK(refused(-1));
}

TEST_CASE("memory that cannot be had is an error", "[rt]") {
    CHECK_THROWS_AS(shared_memory::create(std::size_t{1} << 62), skein::error);
}
