// SPDX-License-Identifier: Apache-2.0
#include <skein/core/file_limit.hpp>
#include <skein/core/posix_disk.hpp>

#include <tests/support/temporary_folder.hpp>

#include <cerrno>
#include <csignal>
#include <string>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>

using namespace skein;

namespace {

/// The limit of this process, and what SIGXFSZ does, until the end of a test.
struct limited {
    explicit limited(rlim_t bytes) {
        (void)::getrlimit(RLIMIT_FSIZE, &before);
        auto now = before;
        now.rlim_cur = bytes;
        (void)::setrlimit(RLIMIT_FSIZE, &now);
        (void)::sigaction(SIGXFSZ, nullptr, &handled);
        (void)std::signal(SIGXFSZ, SIG_DFL);
    }
    ~limited() {
        (void)::setrlimit(RLIMIT_FSIZE, &before);
        (void)::sigaction(SIGXFSZ, &handled, nullptr);
    }
    struct ::rlimit before{};
    struct ::sigaction handled{};
};

} // namespace

TEST_CASE("a file that may not grow any more is an error with path and limit") {
    const test::temporary_folder folder;
    std::string said;
    {
        const limited some(4096);
        posix_disk disk;
        auto opened = disk.open(folder.path + "/a", open_mode::write);
        const std::string much(5000, 'x');
        const auto done = (*opened)->write_at(0, as_bytes(std::string_view(much)));
        said = done ? "written" : done.error().what();
    }
    CHECK(said == "write " + folder.path +
                      "/a: file too large (the limit on files of this process is 4096 bytes: "
                      "ulimit -f)");
}

TEST_CASE("what the program has said about SIGXFSZ stays, and without a limit none is named") {
    {
        const limited some(4096);
        outlive_file_limit();
        struct ::sigaction now{};
        (void)::sigaction(SIGXFSZ, nullptr, &now);
        CHECK(is_file_limit_outlived(now.sa_handler));
        (void)std::signal(SIGXFSZ, SIG_IGN);
        outlive_file_limit();
        (void)::sigaction(SIGXFSZ, nullptr, &now);
        CHECK(now.sa_handler == SIG_IGN);
        CHECK(file_size_limit() == 4096U);
    }
    const limited none(RLIM_INFINITY);
    CHECK_FALSE(file_size_limit());
    CHECK(errno_text(EFBIG) == "file too large");
}
