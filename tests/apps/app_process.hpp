// SPDX-License-Identifier: Apache-2.0
#pragma once
// This test program, started again as one of its apps (apps.hpp).

#include <tests/apps/apps.hpp>

#include <skein/proc/process.hpp>

#include <chrono>
#include <sstream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>

namespace rt_test {

struct app_run {
    int code = 0;
    std::string out, err;
};

inline skein::proc::process_options app_options(const std::string& app,
                                                std::vector<std::string> arguments) {
    skein::proc::process_options how;
    how.executable = "/proc/self/exe";
    how.argv = {"rt_tests"};
    for (auto& a : arguments) how.argv.push_back(a);
    how.env.emplace_back("SKEIN_TEST_APP", app);
    how.unset_env = {"SKEIN_WORKERS"};
    return how;
}

/// Runs a test app to its end. Its output ends when the last process that holds it has gone.
inline app_run run_to_end(skein::proc::process_options how) {
    int out[2], err[2];
    REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(err, O_CLOEXEC) == 0);
    how.stdout_fd = out[1];
    how.stderr_fd = err[1];
    auto child = skein::proc::child_process::spawn(how);
    ::close(out[1]);
    ::close(err[1]);
    app_run r;
    r.out = drain(out[0]);
    r.err = drain(err[0]);
    r.code = child.wait_blocking().code();
    ::close(out[0]);
    ::close(err[0]);
    return r;
}

inline std::string read_line(int fd) {
    std::string line;
    char c = 0;
    while (::read(fd, &c, 1) == 1 && c != '\n') line += c;
    return line;
}

/// A driver with two workers that waits for ever; the pipe tells when all three have gone.
struct waiting_driver {
    skein::proc::child_process process;
    int output = -1;
    long pid = 0, first = 0, second = 0;

    explicit waiting_driver(const std::string& app = "wait") {
        int ends[2];
        REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
        auto how = app_options(app, {"--workers", "2"});
        how.stdout_fd = ends[1];
        process = skein::proc::child_process::spawn(how);
        ::close(ends[1]);
        output = ends[0];
        std::istringstream in(read_line(output));
        in >> pid >> first >> second;
        REQUIRE(second > 0);
    }
    ~waiting_driver() { ::close(output); }
    /// Milliseconds until the last process that holds the output has gone.
    long until_all_gone() {
        const auto begin = std::chrono::steady_clock::now();
        (void)drain(output);
        return (std::chrono::steady_clock::now() - begin) / std::chrono::milliseconds(1);
    }
};

} // namespace rt_test
