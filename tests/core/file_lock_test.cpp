// SPDX-License-Identifier: Apache-2.0
#include <skein/core/clock.hpp>
#include <skein/core/file_lock.hpp>
#include <skein/core/unique_fd.hpp>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <catch2/catch_test_macros.hpp>

#include <fcntl.h>
#include <unistd.h>

using namespace std::chrono_literals;
using skein::file_lock;
using skein::unique_fd;

TEST_CASE("a file's lock is held once, until its descriptor is closed") {
    const auto path =
        std::filesystem::temp_directory_path() / ("skein-lock-" + std::to_string(::getpid()));
    const auto open = [&] {
        return unique_fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    };
    unique_fd first = open();
    const unique_fd second = open(); // as another process has it
    REQUIRE(skein::try_lock(first.get()) == file_lock::held);
    CHECK(skein::try_lock(first.get()) == file_lock::held);
    CHECK(skein::try_lock(second.get()) == file_lock::busy);
    const auto begin = skein::system_clock().now();
    CHECK(skein::lock_until(second.get(), begin + 30ms) == file_lock::busy);
    CHECK(skein::system_clock().now() - begin >= 30ms);
    skein::sign_lock(first.get(), "pid 12345 on a");
    skein::sign_lock(first.get(), "pid 1 on a");
    std::ifstream text(path);
    CHECK(std::string(std::istreambuf_iterator<char>(text), {}) == "pid 1 on a");
    first.reset();
    CHECK(skein::lock_until(second.get(), begin) == file_lock::held);
    std::filesystem::remove(path);
    CHECK(skein::try_lock(-1) == file_lock::unsupported);
}
