// SPDX-License-Identifier: Apache-2.0
#include <skein/core/notice.hpp>

#include <cstddef>
#include <string>

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>

namespace notice_tests {

/// What is written to standard error goes to the descriptor while this lives.
class redirected {
public:
    explicit redirected(int to) : before_(::dup(STDERR_FILENO)) { ::dup2(to, STDERR_FILENO); }
    ~redirected() {
        ::dup2(before_, STDERR_FILENO);
        ::close(before_);
    }
    redirected(const redirected&) = delete;
    redirected& operator=(const redirected&) = delete;

private:
    int before_;
};

std::string what_is_read_of(const char* notice) {
    int ends[2] = {-1, -1};
    REQUIRE(::pipe(ends) == 0);
    {
        const redirected out(ends[1]);
        skein::write_notice(notice);
    }
    ::close(ends[1]);
    char text[64] = {};
    const auto n = ::read(ends[0], text, sizeof text);
    ::close(ends[0]);
    REQUIRE(n >= 0);
    return {text, static_cast<std::size_t>(n)};
}

TEST_CASE("a notice is on standard error when the call returns") {
    CHECK(what_is_read_of("error: {} as it is\n") == "error: {} as it is\n");
}

TEST_CASE("a notice that cannot be written is lost alone: the next one is whole") {
    const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
    if (full < 0) SKIP("no /dev/full");
    {
        const redirected out(full);
        skein::write_notice("a line\n");
    }
    ::close(full);
    CHECK(what_is_read_of("another one\n") == "another one\n");
}

} // namespace notice_tests
