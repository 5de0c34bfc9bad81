// SPDX-License-Identifier: Apache-2.0
#include <skein/proc/standard_files.hpp>

#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>

namespace {

/// 0 if exactly the descriptors in `closed` became /dev/null and no other one was opened.
int check_with(unsigned closed) {
    struct stat null{}, before[4], after{};
    ::stat("/dev/null", &null);
    ::close(3);
    // A pipe in each place, which is neither /dev/null nor the same twice.
    for (int fd = 0; fd < 3; ++fd) {
        int ends[2];
        if (::pipe(ends) != 0 || ::dup2(ends[0], fd) != fd) return 10;
        if (::fstat(fd, &before[fd]) != 0) return 11;
    }
    for (int fd = 3; fd < 64; ++fd) ::close(fd);
    for (int fd = 0; fd < 3; ++fd)
        if ((closed >> fd & 1U) != 0) ::close(fd);
    skein::proc::open_standard_files();
    for (int fd = 0; fd < 3; ++fd) {
        if (::fstat(fd, &after) != 0) return 20 + fd;
        const auto& wanted = (closed >> fd & 1U) != 0 ? null : before[fd];
        if (after.st_dev != wanted.st_dev || after.st_ino != wanted.st_ino) return 30 + fd;
    }
    return ::fcntl(3, F_GETFD) < 0 ? 0 : 40;
}

} // namespace

TEST_CASE("closed standard files become /dev/null, open ones stay", "[rt][standard_files]") {
    for (unsigned closed = 0; closed < 8; ++closed) {
        const pid_t child = ::fork();
        if (child == 0) ::_exit(check_with(closed));
        int raw = 0;
        REQUIRE(::waitpid(child, &raw, 0) == child);
        REQUIRE(WIFEXITED(raw));
        CHECK(WEXITSTATUS(raw) == 0);
    }
}

TEST_CASE("a process may outlive who reads its output, and what it starts does not",
          "[rt][standard_files]") {
    const pid_t child = ::fork();
    if (child == 0) {
        skein::proc::outlive_readers();
        int ends[2];
        if (::pipe(ends) != 0) ::_exit(1);
        ::close(ends[0]);
        if (::write(ends[1], "x", 1) != -1 || errno != EPIPE) ::_exit(2);
        ::execl("/bin/sh", "sh", "-c", "kill -s PIPE $$", nullptr);
        ::_exit(3);
    }
    int raw = 0;
    REQUIRE(::waitpid(child, &raw, 0) == child);
    REQUIRE(WIFSIGNALED(raw));
    CHECK(WTERMSIG(raw) == SIGPIPE);
}
