// SPDX-License-Identifier: Apache-2.0
#include <skein/core/unique_fd.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

using skein::make_pipe;
using skein::unique_fd;

namespace {
/// Whether the pipe's other end is closed: then reading gives the end instead of "not yet".
bool has_ended(const unique_fd& to_read) {
    char byte = 0;
    return ::read(to_read.get(), &byte, 1) == 0;
}
} // namespace

TEST_CASE("the owner closes its descriptor") {
    auto [to_read, to_write] = make_pipe();
    CHECK_FALSE(has_ended(to_read));
    CHECK(errno == EAGAIN); // it does not block
    CHECK((::fcntl(to_read.get(), F_GETFD) & FD_CLOEXEC) != 0);
    {
        const unique_fd owner = std::move(to_write);
        CHECK(owner);
        CHECK_FALSE(to_write);
    }
    CHECK(has_ended(to_read));
}

TEST_CASE("assignment closes what was there") {
    auto [to_read, to_write] = make_pipe();
    to_write = unique_fd();
    CHECK(has_ended(to_read));
    CHECK(to_write.get() == -1);
}

TEST_CASE("a released descriptor stays open") {
    auto [to_read, to_write] = make_pipe();
    const int fd = to_write.release();
    to_write.reset();
    CHECK_FALSE(has_ended(to_read));
    to_write.reset(fd);
    to_write.reset();
    CHECK(has_ended(to_read));
}
