// SPDX-License-Identifier: Apache-2.0
// What the processes of workers have of their own, and what they print.
#include <tests/apps/app_process.hpp>
#include <tests/apps/apps.hpp>
#include <tests/apps/local_pool.hpp>
#include <tests/support/temporary_folder.hpp>

#include <skein/core/available_cores.hpp>
#include <skein/proc/output.hpp>
#include <skein/program/local_workers.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <unistd.h>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace rt_test;

namespace {

struct seen_surroundings {
    std::string value, folder;
    long pid = 0;
};
seen_surroundings look_up(std::string name) {
    const char* const value = std::getenv(name.c_str());
    return {value != nullptr ? value : "(none)", std::filesystem::current_path().string(),
            ::getpid()};
}
task<seen_surroundings> look_up_elsewhere(std::string name) {
    auto inner = remote<&look_up>.with({.env = "FIRST=from a task"})(name);
    co_return co_await inner;
}
int say(std::string text) {
    std::printf("%s\n", text.c_str());
    return 0;
}
int say_and_die(std::string text) {
    std::fprintf(stderr, "%s\n", text.c_str());
    std::abort();
}

} // namespace

TEST_CASE("a task gets the variables and the folder that it asks for", "[W10][rt][local_workers]") {
    const test::temporary_folder folder;
    const auto path = std::filesystem::canonical(folder.path).string();
    pool p(options(1));
    p.run([&path](pool&) -> task<void> { // NOLINT: path outlives the run
        auto plain = remote<&look_up>("FIRST");
        const auto before = co_await plain;
        CHECK(before.value == "(none)");
        auto one = remote<&look_up>.with({.env = "FIRST=two words\nSECOND="})("FIRST");
        const auto with = co_await one;
        CHECK(with.value == "two words");
        CHECK(with.folder == before.folder);
        CHECK(with.pid != before.pid);
        // The same in another order, and an empty line: the same worker.
        auto two = remote<&look_up>.with({.env = "SECOND=\n\nFIRST=two words"})("SECOND");
        const auto again = co_await two;
        CHECK(again.value.empty());
        CHECK(again.pid == with.pid);
        auto there = remote<&look_up>.with({.cwd = path})("FIRST");
        const auto elsewhere = co_await there;
        CHECK(elsewhere.folder == path);
        CHECK(elsewhere.value == "(none)");
        auto nested = remote<&look_up_elsewhere>("FIRST");
        const auto inner = co_await nested;
        CHECK(inner.value == "from a task");
        auto after = remote<&look_up>("FIRST");
        const auto at_last = co_await after;
        CHECK(at_last.value == "(none)");
    });
}

struct has_surroundings {
    seen_surroundings look(std::string name) { return look_up(std::move(name)); }
    [[noreturn]] void die() { std::abort(); }
};

TEST_CASE("an actor has the variables and the folder that it asks for, made again, too",
          "[O12][rt][local_workers]") {
    const test::temporary_folder folder;
    const auto path = std::filesystem::canonical(folder.path).string();
    pool p(options(1));
    p.run([&path](pool&) -> task<void> { // NOLINT: path outlives the run
        auto a = co_await actor<has_surroundings>.with(
            {.env = "FIRST=of an actor", .cwd = path, .restarts = 1})();
        auto looked = a.call<&has_surroundings::look>("FIRST");
        const auto first = co_await looked;
        CHECK(first.value == "of an actor");
        CHECK(first.folder == path);
        auto died = as_result(as_task(a.call<&has_surroundings::die>()));
        (void)co_await died;
        auto again = a.call<&has_surroundings::look>("FIRST");
        const auto second = co_await again;
        CHECK(second.value == "of an actor");
        CHECK(second.folder == path);
        CHECK(second.pid != first.pid);
        auto common = co_await actor<has_surroundings>();
        auto beside = common.call<&has_surroundings::look>("FIRST");
        const auto other = co_await beside;
        CHECK(other.value == "(none)");
    });
}

TEST_CASE("a folder that is not there, and what is no environment, fails the call",
          "[rt][local_workers]") {
    pool p(options(1));
    p.run([](pool&) -> task<void> {
        auto lost = as_result(as_task(remote<&look_up>.with({.cwd = "/no/such/folder"})("A")));
        const auto no_folder = co_await lost;
        REQUIRE_FALSE(no_folder);
        INFO(no_folder.error().what());
        CHECK(no_folder.error().code() == errc::not_found);
        CHECK(std::string(no_folder.error().what()).find("/no/such/folder") != std::string::npos);
        auto wrong = as_result(as_task(remote<&look_up>.with({.env = "SKEIN_WORKERS=3"})("A")));
        const auto own = co_await wrong;
        REQUIRE_FALSE(own);
        CHECK(own.error().code() == errc::invalid_argument);
        auto fine = remote<&twice>(4); // and others go on
        const int got = co_await fine;
        CHECK(got == 8);
    });
}

TEST_CASE("what workers print is read and passed on when that is asked for",
          "[rt][local_workers]") {
    std::vector<std::string> lines;
    auto how = options(2);
    how.print = [&lines](std::vector<proc::worker_lines> all) -> task<void> { // NOLINT: as above
        for (const auto& some : all)
            for (const auto& line : some.lines) lines.push_back(line.text);
        co_return;
    };
    pool p(std::move(how));
    p.run([](pool&) -> task<void> {
        std::vector<ref<int>> refs;
        for (int i = 0; i < 20; ++i) refs.push_back(remote<&say>(std::to_string(i)));
        for (auto& r : refs) (void)co_await r;
        auto dying =
            as_result(as_task(remote<&say_and_die>.with({.retries = 0})("the last words")));
        const auto died = co_await dying;
        CHECK_FALSE(died);
    });
    for (int i = 0; i < 20; ++i) {
        INFO(i);
        CHECK(std::count(lines.begin(), lines.end(), std::to_string(i)) == 1);
    }
    CHECK(std::count(lines.begin(), lines.end(), "the last words") == 1);
}

namespace {

std::string text_of_file(const std::string& path) {
    std::ifstream from(path);
    return {std::istreambuf_iterator<char>(from), {}};
}

} // namespace

TEST_CASE("what is started again begins in the folder of the program's start",
          "[P3][rt][local_workers]") {
    const test::temporary_folder folder;
    const auto path = std::filesystem::canonical(folder.path).string();
    auto how = app_options("own folder", {"--workers", "1"});
    how.cwd = path;
    const auto ran = run_to_end(std::move(how));
    INFO(ran.err);
    CHECK(ran.code == 0);
    // One place, in a shared worker, in one of its own, and when the driver has gone elsewhere.
    CHECK(ran.out == path + "/out\n" + path + "/out\n" + path + "/out\n");
    CHECK_FALSE(std::filesystem::exists(path + "/out/out"));
}

TEST_CASE("what a worker has printed by its death is there, also in a file",
          "[P6][program][local_workers]") {
    const test::temporary_folder folder;
    for (const std::string app : {"own print", "own print unsynced"}) {
        for (const std::string end : {"segfault", "abort", "_exit", "sigkill"}) {
            INFO(app << ", " << end);
            const auto file = folder.path + "/" + app + " " + end;
            auto how = app_options(app, {"--workers", "1", end});
            how.stdout_file = file;
            how.stderr_file = "/dev/null";
            auto child = proc::child_process::spawn(how);
            CHECK(child.wait_blocking().code() == 0);
            CHECK(text_of_file(file) == end + ": fmt\n" + end + ": printf\n" + end + ": cout\n");
        }
    }
}

TEST_CASE("a reader of the output that goes is no death of a worker, and each task runs once",
          "[P6][program][local_workers]") {
    const test::temporary_folder folder;
    const auto notes = folder.path + "/notes";
    int out[2], err[2];
    REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(err, O_CLOEXEC) == 0);
    auto how = app_options("own unread", {"--workers", "2", notes});
    how.stdout_fd = out[1];
    how.stderr_fd = err[1];
    ::close(out[0]);
    auto child = proc::child_process::spawn(how);
    ::close(out[1]);
    ::close(err[1]);
    const auto said = drain(err[0]);
    ::close(err[0]);
    CHECK(child.wait_blocking().code() == 0);
    CHECK(said == "all done, 13\n"); // what a task starts is ended by SIGPIPE as ever
    CHECK(text_of_file(notes) == std::string(40, 'x'));
}

TEST_CASE("a reader that goes in the middle of a print fails no task",
          "[P6][program][local_workers]") {
#if defined(__x86_64__)
    const test::temporary_folder folder;
    const auto notes = folder.path + "/notes";
    int err[2];
    REQUIRE(::pipe2(err, O_CLOEXEC) == 0);
    auto how = app_options("own much", {"--workers", "1", notes});
    how.stderr_fd = err[1];
    auto child = proc::child_process::spawn(how);
    ::close(err[1]);
    char first = 0;
    CHECK(::read(err[0], &first, 1) == 1);
    ::close(err[0]);
    CHECK(child.wait_blocking().code() == 0);
    CHECK(text_of_file(notes) == "begun done ");
#else
    SKIP("what a failed write returns is changed on x86-64 alone");
#endif
}

TEST_CASE("a task has as many threads as cpus, unless the user has said how many",
          "[W13][rt][local_workers]") {
    const bool shares = available_cores() > 1; // then one worker has several
    for (const std::string workers : {shares ? "1" : "2", "16"}) {
        INFO(workers);
        auto how = app_options("own threads", {"--workers", workers});
        how.unset_env.emplace_back("OMP_NUM_THREADS");
        const auto ran = run_to_end(std::move(how));
        INFO(ran.err);
        // Tasks with 1, 2, 0 and 1 cpus, an actor, one with two; a task that says it; a driver in a
        // task.
        CHECK(ran.out == "1 2 1 1 1 2 7 1\n");
    }
    auto how = app_options("own threads", {"--workers", "2"});
    how.env.emplace_back("OMP_NUM_THREADS", "5");
    const auto ran = run_to_end(std::move(how));
    CHECK(ran.out == "5 5 5 5 5 5 7 5\n");
}

TEST_CASE("run in a task is refused with what to do, and a session there works", "[P12][rt][run]") {
    const auto ran = run_to_end(app_options("own nested", {"--workers", "1"}));
    INFO(ran.out << ran.err);
    CHECK(ran.code == 0);
    CHECK(ran.out.starts_with("not_supported "));
    CHECK(ran.out.find("skein::run inside a running loop") != std::string::npos);
    CHECK(ran.out.ends_with("\nnot_supported 8\n"));
}

TEST_CASE("the death of a worker on this host is one line", "[F4][rt][local_workers]") {
    const auto ran = run_to_end(app_options("own loss", {"--workers", "1"}));
    CHECK(ran.code == 0);
    INFO(ran.err);
    CHECK(std::count(ran.err.begin(), ran.err.end(), '\n') == 1);
    CHECK(ran.err.find("a worker was lost") != std::string::npos);
    CHECK(ran.err.find("worker-1") != std::string::npos);
    CHECK(ran.err.find("SIGKILL") != std::string::npos);
    CHECK(ran.err.find("calls that may run again do") != std::string::npos);
}

TEST_CASE("a limit on the size of files is an error that names it, in tasks and in drivers, and no "
          "end of a process",
          "[program][local_workers]") {
    const test::temporary_folder folder;
    auto how = app_options("own limit", {"--workers", "1", folder.path + "/large"});
    how.stdout_file = folder.path + "/printed";
    how.stderr_file = folder.path + "/said";
    auto child = proc::child_process::spawn(std::move(how));
    const auto status = child.wait_blocking();
    const auto said = text_of_file(folder.path + "/said");
    INFO(said);
    CHECK(status.code() == 0);
    CHECK(said.find("task: too_large write " + folder.path +
                    "/large: file too large (the limit on files of this process is 65536 bytes: "
                    "ulimit -f)\n") != std::string::npos);
    CHECK(said.find("driver: too_large write ") != std::string::npos);
    // What a task starts is ended by it as ever; what a task prints beyond it is dropped.
    CHECK(said.find("child: signal 25\nprinted: 100000\n") != std::string::npos);
    CHECK(text_of_file(folder.path + "/printed").size() == 65536);
}

TEST_CASE("a limit on files that is too small for workers is said in one line",
          "[program][local_workers]") {
    const auto ran = run_to_end(app_options("own no files", {"--workers", "1"}));
    INFO(ran.err);
    CHECK(ran.code == 1);
    CHECK(std::count(ran.err.begin(), ran.err.end(), '\n') == 1);
    CHECK(ran.err.find("the limit on files of this process is 0 bytes: ulimit -f") !=
          std::string::npos);
}

TEST_CASE("a program whose folder has been removed has workers all the same",
          "[program][local_workers]") {
    const test::temporary_folder folder;
    auto how = app_options("own removed folder", {});
    how.executable = "/bin/sh";
    how.cwd = folder.path;
    how.argv = {"sh", "-c", R"(rmdir "$PWD" && exec "$0" --workers 1)",
                std::filesystem::read_symlink("/proc/self/exe").string()};
    const auto ran = run_to_end(std::move(how));
    INFO(ran.err);
    CHECK(ran.code == 0);
    CHECK(ran.out == "4\nnot_found create notes: the current folder of this process has been "
                     "removed; start it in a folder that is there, or give an absolute path\n");
}

TEST_CASE("children that tasks have forgotten do not stay, and those that code waits for are left "
          "to it",
          "[program][local_workers]") {
    const auto ran = run_to_end(app_options("own children", {"--workers", "1"}));
    INFO(ran.err);
    CHECK(ran.code == 0);
    CHECK(ran.out == "forgotten: 3, then 0\nof a coroutine: 7\nof an actor: 7\n");
}
