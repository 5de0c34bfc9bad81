// SPDX-License-Identifier: Apache-2.0
#include <skein/core/fork_guard.hpp>
#include <skein/core/unique_fd.hpp>

#include <csignal>
#include <utility>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>

namespace {

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

/// Whether a child that is forked now has it.
bool child_has(int fd) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(is_open(fd) ? 1 : 0);
    int raw = 0;
    REQUIRE(::waitpid(child, &raw, 0) == child);
    REQUIRE(WIFEXITED(raw));
    return WEXITSTATUS(raw) == 1;
}

} // namespace

TEST_CASE("a forked child has no descriptor that is guarded, and all others") {
    auto [guarded, plain] = skein::make_pipe();
    CHECK(child_has(guarded.get()));
    {
        skein::fork_guard first(guarded.get());
        CHECK_FALSE(child_has(guarded.get()));
        CHECK(child_has(plain.get()));
        CHECK(is_open(guarded.get())); // here
        const skein::fork_guard moved(std::move(first));
        CHECK_FALSE(child_has(guarded.get()));
    }
    CHECK(child_has(guarded.get()));
}

TEST_CASE("the other end sees the end of a process, though a child of it lives") {
    auto [here, there] = skein::make_pipe();
    ::fcntl(here.get(), F_SETFL, 0); // a read waits
    const pid_t process = ::fork();
    if (process == 0) {
        const skein::fork_guard guard(there.get());
        ::setpgid(0, 0);
        if (::fork() == 0)
            for (;;) ::pause();
        ::_exit(0);
    }
    there.reset();
    char byte = 0;
    CHECK(::read(here.get(), &byte, 1) == 0);
    ::kill(-process, SIGKILL); // the child
    int raw = 0;
    REQUIRE(::waitpid(process, &raw, 0) == process);
}

TEST_CASE("what is no descriptor, or has a number that is too large, is not minded") {
    const skein::fork_guard none(-1), far(1 << 20);
    skein::fork_guard empty;
    empty.reset();
    SUCCEED();
}
