// SPDX-License-Identifier: Apache-2.0
#include <skein/proc/process.hpp>

#include <tests/apps/apps.hpp>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <sys/resource.h>

#include <catch2/catch_test_macros.hpp>

namespace {

using namespace skein;
using rt_test::drain;

proc::process_options shell(std::string script) {
    proc::process_options how;
    how.argv = {"/bin/sh", "-c", std::move(script)};
    return how;
}

/// What a script prints.
std::string output_of(proc::process_options how) {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    how.stdout_fd = ends[1];
    auto child = proc::child_process::spawn(std::move(how));
    ::close(ends[1]);
    auto text = drain(ends[0]);
    ::close(ends[0]);
    CHECK(child.wait_blocking().success());
    return text;
}

} // namespace

TEST_CASE("an exit status describes itself", "[rt][process]") {
    auto three = proc::child_process::spawn(shell("exit 3"));
    CHECK(three.wait_blocking().code() == 3);
    CHECK(three.wait_blocking().describe() == "exited with 3");
    CHECK_FALSE(three.running());

    auto killed = proc::child_process::spawn(shell("kill -9 $$"));
    CHECK(killed.wait_blocking().signal() == SIGKILL);
    CHECK(killed.wait_blocking().describe() == "killed by signal 9 (SIGKILL)");
    CHECK(killed.wait_blocking().code() == -1);
}

TEST_CASE("a process's title is its program and its part, cut to what Linux keeps",
          "[rt][process]") {
    CHECK(proc::process_title("./build/hello", "w1") == "hello:w1");
    CHECK(proc::process_title("a_program_with_a_long_name", "w12") == "a_program_w:w12");
    CHECK(proc::process_title("p", "named-by-somebody-else") == ":named-by-someb");
    CHECK(proc::process_title("", "w3") == ":w3");
}

TEST_CASE("a child that still runs is killed and reaped by the destructor", "[rt][process]") {
    pid_t pid = 0;
    {
        auto child = proc::child_process::spawn(shell("exec sleep 100"));
        pid = child.pid();
        CHECK_FALSE(child.try_wait());
        CHECK(::kill(pid, 0) == 0);
    }
    CHECK(::kill(pid, 0) == -1);
}

TEST_CASE("a program that is not there is an error with its name", "[rt][process]") {
    proc::process_options how;
    how.argv = {"/no/such/program"};
    try {
        auto child = proc::child_process::spawn(how);
        FAIL("it was started");
    } catch (const error& e) {
        CHECK(e.code() == errc::not_found);
        CHECK(std::string(e.what()).find("/no/such/program") != std::string::npos);
    }
}

TEST_CASE("a folder that is not there is an error", "[rt][process]") {
    auto how = shell("true");
    how.cwd = "/no/such/folder";
    CHECK_THROWS_AS(proc::child_process::spawn(how), error);
}

TEST_CASE("environment, folder and open files are as asked for", "[rt][process]") {
    auto how = shell("echo $ADDED; pwd; cat <&7");
    how.env.emplace_back("ADDED", "with a = in it");
    how.cwd = "/";
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    REQUIRE(::write(ends[1], "through 7\n", 10) == 10);
    ::close(ends[1]);
    how.fds.emplace_back(ends[0], 7);
    CHECK(output_of(how) == "with a = in it\n/\nthrough 7\n");
    ::close(ends[0]);
}

TEST_CASE("a child inherits no open file that it was not given", "[rt][process]") {
    int leaked = ::open("/dev/null", O_RDONLY); // without close-on-exec
    REQUIRE(leaked >= 0);
    proc::process_options how;
    how.argv = {"/bin/ls", "/proc/self/fd"};
    how.last_words = false;
    CHECK(output_of(how) == "0\n1\n2\n3\n"); // 3 is the folder that ls reads
    ::close(leaked);
}

TEST_CASE("swapped descriptors reach the child swapped", "[rt][process]") {
    int a[2], b[2];
    REQUIRE(::pipe2(a, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(b, O_CLOEXEC) == 0);
    REQUIRE(::write(a[1], "a\n", 2) == 2);
    REQUIRE(::write(b[1], "b\n", 2) == 2);
    ::close(a[1]);
    ::close(b[1]);
    // A plain sh reads one digit of <&N only.
    auto how = shell(fmt::format("cat </proc/self/fd/{}; cat </proc/self/fd/{}", a[0], b[0]));
    how.fds = {{a[0], b[0]}, {b[0], a[0]}};
    CHECK(output_of(how) == "b\na\n");
    ::close(a[0]);
    ::close(b[0]);
}

TEST_CASE("output goes to files, appended", "[rt][process]") {
    const auto folder =
        std::filesystem::temp_directory_path() / fmt::format("skein-process-{}", ::getpid());
    std::filesystem::create_directory(folder);
    auto how = shell("echo out; echo err >&2");
    how.stdout_file = folder / "out";
    how.stderr_file = folder / "err";
    for (int i = 0; i < 2; ++i) {
        auto child = proc::child_process::spawn(how);
        CHECK(child.wait_blocking().success());
    }
    std::stringstream out, err;
    out << std::ifstream(folder / "out").rdbuf();
    err << std::ifstream(folder / "err").rdbuf();
    CHECK(out.str() == "out\nout\n");
    CHECK(err.str() == "err\nerr\n");
    std::filesystem::remove_all(folder);
}

TEST_CASE("a child leaves last words to its parent", "[rt][process]") {
    auto child = proc::child_process::spawn(
        shell("eval \"echo the disk is full >&$SKEIN_LAST_WORDS_FD\"; exit 1"));
    child.wait_blocking();
    CHECK(child.last_words() == "the disk is full\n");
    CHECK(child.last_words().empty());
}

TEST_CASE("killing a group reaches the children of a child", "[rt][process]") {
    auto how = shell("sleep 100 & echo $!; wait");
    how.own_group = true;
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    how.stdout_fd = ends[1];
    auto child = proc::child_process::spawn(how);
    ::close(ends[1]);
    char text[32] = {};
    REQUIRE(::read(ends[0], text, sizeof text - 1) > 0);
    CHECK(::getsid(child.pid()) == child.pid()); // a share of its own of the processors
    child.kill_group(SIGKILL);
    CHECK(child.wait_blocking().signal() == SIGKILL);
    // Its end of the pipe closes when the grandchild has gone too.
    CHECK(drain(ends[0]).empty());
    ::close(ends[0]);
}

TEST_CASE("what a child leaves in its group goes with it, a daemon stays", "[P11][rt][process]") {
    auto how = shell("sleep 100 & setsid sh -c 'echo $$; exec sleep 100 >&-' & read x <&7");
    how.own_group = true;
    int out[2], go[2];
    REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(go, O_CLOEXEC) == 0);
    how.stdout_fd = out[1];
    how.fds.emplace_back(go[0], 7);
    auto child = proc::child_process::spawn(how);
    ::close(out[1]);
    char text[32] = {};
    REQUIRE(::read(out[0], text, sizeof text - 1) > 0);
    const pid_t daemon = std::atoi(text);
    REQUIRE(daemon > 0);
    REQUIRE(::write(go[1], "\n", 1) == 1);
    CHECK(child.wait_blocking().success());
    CHECK(drain(out[0]).empty()); // ends only when the first sleep has gone
    CHECK(::kill(daemon, SIGKILL) == 0);
    for (const int fd : {out[0], go[0], go[1]}) ::close(fd);
}

TEST_CASE("too few open files is an error that names the limit", "[rt][process]") {
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    bool started = false, named = false;
    for (rlim_t most = 3; most < 64; ++most) {
        std::string why;
        const rlimit now{most, before.rlim_max};
        REQUIRE(::setrlimit(RLIMIT_NOFILE, &now) == 0);
        try {
            started = proc::child_process::spawn(shell("exit 0")).wait_blocking().success();
        } catch (const error& e) {
            why = e.what();
            named = named || why.find("ulimit -n") != std::string::npos;
        }
        REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
        if (!why.empty()) CHECK(why.find("oo many open files") != std::string::npos);
    }
    CHECK(named);
    CHECK(started); // also below 64
}

TEST_CASE("a child has three standard files, whatever its parent has", "[rt][process]") {
    const pid_t middle = ::fork();
    if (middle == 0) {
        for (int fd = 0; fd < 3; ++fd) ::close(fd);
        auto how = shell("for n in 0 1 2; do [ -c /proc/self/fd/$n ] || exit 1; done");
        how.keep_stdin = true;
        auto child = proc::child_process::spawn(how); // its pipes take 0, 1 and 2 here
        ::_exit(child.wait_blocking().code());
    }
    int raw = 0;
    REQUIRE(::waitpid(middle, &raw, 0) == middle);
    CHECK(proc::exit_status(raw).describe() == "exited with 0");
}

TEST_CASE("a child dies with its parent", "[rt][process]") {
    // The middle process starts a grandchild that holds the pipe, then is killed.
    int ends[2];
    REQUIRE(::pipe2(ends, 0) == 0);
    const pid_t middle = ::fork();
    if (middle == 0) {
        ::close(ends[0]);
        auto how = shell("echo up; exec sleep 100");
        how.stdout_fd = ends[1];
        auto child = proc::child_process::spawn(how);
        ::close(ends[1]);
        ::pause();
        ::_exit(0);
    }
    ::close(ends[1]);
    char text[8] = {};
    REQUIRE(::read(ends[0], text, sizeof text) == 3);
    ::kill(middle, SIGKILL);
    CHECK(drain(ends[0]).empty()); // ends only when the grandchild has gone
    ::close(ends[0]);
    ::waitpid(middle, nullptr, 0);
}
