// SPDX-License-Identifier: Apache-2.0
// Memory for objects: read by all, written through windows.
#include <skein/objects/arena.hpp>

#include <csignal>
#include <cstring>
#include <utility>

#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>

#include <catch2/catch_test_macros.hpp>

namespace arena_test {

using namespace skein;
using objects::arena;

constexpr std::uint64_t mebi = std::uint64_t{1} << 20;

void fill(arena& in, std::uint64_t at, std::uint64_t bytes, int with) {
    auto place = in.write(at, bytes);
    REQUIRE(place.bytes().size() == bytes);
    std::memset(place.bytes().data(), with, place.bytes().size());
}

std::int64_t pages_of(const arena& of) {
    struct stat info{};
    REQUIRE(::fstat(of.fd(), &info) == 0);
    return info.st_blocks / 8;
}

TEST_CASE("an arena has no page before it is written, and gives pages back", "[objects][arena]") {
    auto here = arena::create(64 * mebi);
    CHECK(here.bytes() == 64 * mebi);
    CHECK(pages_of(here) == 0);
    fill(here, 0, 2 * mebi, 7);
    CHECK(pages_of(here) == 512);
    CHECK(here.view(2 * mebi - 1, 1)[0] == std::byte{7});
    here.give_back(0, mebi);
    CHECK(pages_of(here) == 256);
    CHECK(here.view(0, 1)[0] == std::byte{0});
    CHECK(here.view(mebi, 1)[0] == std::byte{7});
}

TEST_CASE("an arena is the same memory in another process, which sees what is written later",
          "[objects][arena]") {
    auto here = arena::create(4 * mebi);
    auto there = arena::open(unique_fd(::fcntl(here.fd(), F_DUPFD_CLOEXEC, 0)));
    const auto seen = there.view(4096, 100);
    fill(here, 4096, 100, 3);
    CHECK(seen[99] == std::byte{3});
}

TEST_CASE("what is outside of an arena is refused, and so is a file that is none",
          "[objects][arena]") {
    for (const auto& here : {arena::create(mebi), arena::in_memory(mebi)}) {
        CHECK_THROWS_AS(here.view(mebi, 1), error);
        CHECK_THROWS_AS(here.view(1, mebi), error);
        CHECK_THROWS_AS(here.view(~std::uint64_t{0}, 2), error);
        CHECK_THROWS_AS(here.write(mebi - 1, 2), error);
        CHECK(here.view(mebi, 0).empty());
        here.give_back(mebi, mebi); // nothing
    }
    CHECK_THROWS_AS(arena::open(unique_fd(::open("/dev/null", O_RDWR | O_CLOEXEC))), error);
}

TEST_CASE("a wild write into a view ends the process that makes it", "[V8][objects][arena]") {
    auto here = arena::create(mebi);
    fill(here, 0, 4096, 1);
    const auto seen = here.view(0, 4096);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::signal(SIGSEGV, SIG_DFL);
        *const_cast<volatile std::byte*>(seen.data()) = std::byte{9};
        ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK((WIFSIGNALED(status) || WEXITSTATUS(status) != 0)); // a sanitizer says so itself
    CHECK(seen[0] == std::byte{1});
}

TEST_CASE("a window that has ended cannot be written any more", "[objects][arena]") {
    auto here = arena::create(mebi);
    auto first = here.write(0, 100);
    auto second = std::move(first);
    CHECK(first.bytes().empty()); // NOLINT: what is left of it
    second.bytes()[0] = std::byte{5};
    { const auto ended = std::move(second); }
    CHECK(here.view(0, 1)[0] == std::byte{5});
}

} // namespace arena_test
