// SPDX-License-Identifier: Apache-2.0
// Real processes: this test program is the worker of its own runs, and a driver that can be killed.
#include <tests/apps/app_process.hpp>
#include <tests/apps/apps.hpp>
#include <tests/support/temporary_folder.hpp>

#include <skein/core/random.hpp>
#include <skein/proc/boot.hpp>
#include <skein/proc/process.hpp>

#include <filesystem>
#include <fstream>
#include <sstream>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace rt_test;
using namespace std::chrono_literals;

namespace {

template <class App>
void expect_run(int workers, App app) {
    CHECK(drive(workers, app) == 0);
}

} // namespace

TEST_CASE("a function runs in another process", "[rt][run]") {
    expect_run(1, []() -> task<int> {
        auto r = remote<&where>();
        const long pid = co_await r;
        co_return pid == ::getpid() ? 1 : 0;
    });
}

TEST_CASE("each process has its own globals", "[P4][rt][run]") {
    expect_run(1, []() -> task<int> {
        counted_here = 10;
        auto one = remote<&count_here>();
        const int first = co_await one;
        auto two = remote<&count_here>();
        const int second = co_await two;
        co_return first == 1 && second == 2 && counted_here == 10 ? 0 : 1;
    });
}

TEST_CASE("a task that throws runs again in another process", "[F11][rt][run]") {
    expect_run(1, []() -> task<int> {
        auto r = remote<&good_at_third>.with({.retry_on = thrown<std::out_of_range>()})();
        if (co_await r != 3) co_return 1;
        auto spent =
            as_result(remote<&fail_with_text>.with({.retries = 1, .retry_on = any_failure})("x"));
        auto outcome = co_await std::move(spent);
        if (outcome || !contains(outcome.error().what(), "it failed 2 times")) co_return 2;
        co_return rt::runtime::current().stats().retried == 3 ? 0 : 3;
    });
}

TEST_CASE("tasks spread over the workers", "[rt][run]") {
    expect_run(2, []() -> task<int> {
        // New actors wait for both workers; from then on tasks go to the one with less to do.
        auto a = co_await actor<counter>(0);
        auto b = co_await actor<counter>(0);
        // Each task holds its worker until both run: with one at a time this would not end.
        const test::temporary_folder folder;
        auto p = remote<&meet_in>(folder.path);
        auto q = remote<&meet_in>(folder.path);
        const long first = co_await p;
        const long second = co_await q;
        co_return first != second ? 0 : 1;
    });
}

TEST_CASE("exceptions of a worker arrive with type, text and process", "[F3][rt][run]") {
    expect_run(1, []() -> task<int> {
        auto r = remote<&fail_with_text>("row 7 of 5");
        try {
            (void)co_await r;
        } catch (const remote_error& e) {
            const bool good = e.code() == errc::remote_exception &&
                              e.remote_type() == "std::out_of_range" &&
                              e.remote_text() == "row 7 of 5" && e.worker() == "worker-1" &&
                              e.pid() > 0 && e.pid() != ::getpid() && !e.host().empty() &&
                              contains(e.what(), "rt_test::fail_with_text");
            co_return good ? 0 : 1;
        }
        co_return 2;
    });
}

TEST_CASE("a killed worker ends its actor's calls and is replaced", "[F4][F9][rt][run]") {
    expect_run(1, []() -> task<int> {
        auto c = co_await actor<counter>(0);
        auto fine = c.call<&counter::add>(1);
        if (co_await fine != 1) co_return 1;
        auto slow = c.call<&counter::add_later>(1, 100000);
        auto fatal = c.call<&counter::die>();
        auto after = c.call<&counter::add>(1);
        auto asked = as_result(slow);
        auto lost = co_await std::move(asked);
        if (lost || lost.error().code() != errc::worker_lost) co_return 2;
        const std::string text = lost.error().what();
        if (!contains(text, "killed by signal 9 (SIGKILL)") || !contains(text, "worker-1 (pid "))
            co_return 3;
        // It names those that were lost with it, and itself once.
        if (!contains(text, "; lost with it: rt_test::counter::add(int) (may have run), "
                            "rt_test::counter::die() (may have run)"))
            co_return 4;
        if (text.find("add_later") != text.rfind("add_later")) co_return 9;
        auto asked_fatal = as_result(fatal);
        if (co_await std::move(asked_fatal)) co_return 5;
        auto asked_after = as_result(after);
        auto gone = co_await std::move(asked_after);
        if (gone || gone.error().code() != errc::worker_lost) co_return 6;
        // A later call through the old handle says that it did not run.
        auto late = as_result(c.call<&counter::get>());
        auto refused = co_await std::move(late);
        if (refused || !contains(refused.error().what(), "did not run")) co_return 7;
        // The next worker takes over for tasks and new actors.
        auto again = remote<&twice>(4);
        if (co_await again != 8) co_return 8;
        co_return 0;
    });
}

TEST_CASE("a task that kills its worker fails after its retries", "[F2][rt][run]") {
    expect_run(1, []() -> task<int> {
        auto r = as_result(remote<&die>.with({.retries = 1})());
        auto outcome = co_await std::move(r);
        if (outcome || outcome.error().code() != errc::worker_lost) co_return 1;
        if (!contains(outcome.error().what(), "; 2 attempts were made, each lost its worker"))
            co_return 3;
        co_return rt::runtime::current().stats().workers_lost == 2 ? 0 : 2;
    });
}

TEST_CASE("a worker calls other functions and makes actors of its own", "[rt][run]") {
    expect_run(2, []() -> task<int> {
        auto r = remote<&nested>(20);
        if (co_await r != 41) co_return 1;
        auto failing = as_result(remote<&nested_failure>("inside"));
        auto failed = co_await std::move(failing);
        if (failed || !contains(failed.error().what(), "std::out_of_range: inside")) co_return 2;
        auto own = remote<&own_actor>(6);
        if (co_await own != 7) co_return 3;
        auto c = co_await actor<counter>(1);
        auto through = remote<&add_through>(c, 5);
        if (co_await through != 6) co_return 4;
        auto here = c.call<&counter::add>(1);
        co_return co_await here == 7 ? 0 : 5;
    });
}

TEST_CASE("more nested tasks than workers do not wait for each other for ever", "[rt][run]") {
    expect_run(1, []() -> task<int> {
        std::vector<ref<int>> all_of_them;
        for (int i = 0; i < 20; ++i) all_of_them.push_back(remote<&nested>(i));
        for (int i = 0; i < 20; ++i)
            if (co_await all_of_them[std::size_t(i)] != 2 * i + 1) co_return 1;
        co_return 0;
    });
}

TEST_CASE("large arguments and results travel", "[A1][rt][run]") {
    expect_run(1, []() -> task<int> {
        row big;
        big.v.assign(3'000'000, 1.5f);
        auto r = remote<&scale>(big, 2.f);
        auto back = co_await r;
        if (back.v.size() != big.v.size() || back.v.front() != 3.f || back.v.back() != 3.f)
            co_return 1;
        std::vector<double> values(100'000, 0.5);
        auto s = remote<&sum>(values);
        co_return co_await s == 50'000.0 ? 0 : 2;
    });
}

TEST_CASE("run gives the app's exit code, and 1 for an error", "[P14][rt][run]") {
    CHECK(run_to_end(app_options("seven", {})).code == 7);
    const auto bad = run_to_end(app_options("uncaught", {"--workers", "1"}));
    CHECK(bad.code == 1);
    CHECK(contains(bad.err, "error: rt_test::fail_with_text"));
    CHECK(contains(bad.err, "std::out_of_range: the text"));
    const auto good = run_to_end(app_options("hello", {"--workers=2"}));
    CHECK(good.code == 0);
    CHECK(good.out == "42\n");
}

TEST_CASE("what a worker prints is its driver's output", "[P6][rt][run]") {
    const auto r = run_to_end(app_options("speaks", {"--workers", "1"}));
    CHECK(r.code == 0);
    CHECK(r.out == "from a worker\n");
    CHECK(r.err == "from a worker, too\n");
}

TEST_CASE("a wrong command line is a usage error that says what is right", "[P5][P14][rt][run]") {
    for (const auto& arguments : std::vector<std::vector<std::string>>{{"--workers"},
                                                                       {"--workers", "0"},
                                                                       {"--workers=x"},
                                                                       {"--workers", "-1"},
                                                                       {"--unknown"}}) {
        const auto r = run_to_end(app_options("hello", arguments));
        CHECK(r.code == 2);
        CHECK(contains(r.err, "error: "));
        CHECK(contains(r.err, arguments.front() == "--unknown" ? "--unknown" : "--workers"));
    }
    auto how = app_options("hello", {});
    how.env.emplace_back("SKEIN_WORKERS", "zero");
    how.unset_env.clear();
    CHECK(run_to_end(how).code == 2);
    const auto passed = run_to_end(app_options("arguments", {"a", "--workers", "2", "--flag"}));
    CHECK(passed.out == "[a][--flag]\n");
}

TEST_CASE("an app without arguments explains itself", "[P5][rt][run]") {
    for (const char* flag : {"--help", "-h"}) {
        const auto r = run_to_end(app_options("hello", {flag}));
        CHECK(r.code == 0);
        CHECK(contains(r.out, "usage: rt_tests [--workers N]"));
        CHECK(r.err.empty());
    }
    CHECK(run_to_end(app_options("arguments", {"--help"})).out == "[--help]\n");
    const auto r = run_to_end(app_options("arguments", {"a", "--skein-help"}));
    CHECK(r.code == 0);
    CHECK(contains(r.out, "usage: rt_tests [--workers N]"));
}

TEST_CASE("a flag that is nearly one of skein's is passed on, and said", "[P5][rt][run]") {
    struct slip {
        std::string said, meant;
    };
    for (const auto& [said, meant] :
         {slip{"--adress=a:1", "--address"}, slip{"--adddres", "--address"},
          slip{"--wokrers", "--workers"}, slip{"-workers", "--workers"}, slip{"--haed", "--head"},
          slip{"--jion=a", "--join"}, slip{"--no-prefix-ouput", "--no-prefix-output"}}) {
        const auto r = run_to_end(app_options("arguments", {said}));
        CHECK(r.out == "[" + said + "]\n");
        CHECK(r.err ==
              "warning: " + said + " is left to the program; skein's flag is " + meant + "\n");
        const auto refused = run_to_end(app_options("hello", {said}));
        CHECK(refused.code == 2);
        CHECK(contains(refused.err, "unknown argument " + said + "; is " + meant + " meant?"));
    }
    for (const char* own : {"--json", "--read", "--header", "--lr", "--epochs", "a", "-", "--", ""})
        CHECK(run_to_end(app_options("arguments", {own})).err.empty());
}

TEST_CASE("workers carry the program's name and their own", "[P2][rt][run]") {
    expect_run(1, []() -> task<int> {
        auto r = remote<&process_title>();
        const auto title = co_await r;
        co_return title == "rt_tests:w1" ? 0 : 1;
    });
}

TEST_CASE("an app that makes no remote call starts no worker", "[P1][rt][run]") {
    auto how = app_options("seven", {});
    how.env.emplace_back("SKEIN_WORKERS", "2000"); // would be noticed
    how.unset_env.clear();
    CHECK(run_to_end(how).code == 7);
}

TEST_CASE("another program as worker is refused by name", "[P2][rt][run]") {
    auto how = app_options("foreign", {"--workers", "1"});
    how.env.emplace_back("SKEIN_TEST_EXE", "/bin/true");
    const auto r = run_to_end(how);
    CHECK(r.code == 1);
    CHECK(contains(r.err, "worker-1 did not start"));
    how.env.back().second = "/no/such/program";
    const auto missing = run_to_end(how);
    CHECK(missing.code == 1);
    CHECK(contains(missing.err, "/no/such/program"));
}

TEST_CASE("run may be called twice: workers never get behind the first", "[P3][P12][rt][run]") {
    const auto r = run_to_end(app_options("twice", {"--workers", "2", "x"}));
    CHECK(r.code == 0);
    CHECK(r.out == "1 42\n1 42\nmain ends: 42 42\n");
    CHECK(r.err.empty());
}

TEST_CASE("a worker is lost when its process ends, whoever holds its socket", "[F8][rt][run]") {
    expect_run(1, []() -> task<int> {
        auto r = as_result(remote<&clone_and_exit>.with({.retries = 0})(3));
        auto outcome = co_await std::move(r);
        if (outcome || outcome.error().code() != errc::worker_lost) co_return 1;
        if (!contains(outcome.error().what(), "exited with 3")) co_return 2;
        auto next = remote<&twice>(21);
        co_return co_await next == 42 ? 0 : 3;
    });
}

TEST_CASE("what a worker said before its end is heard, whoever holds its socket", "[rt][run]") {
    expect_run(1, []() -> task<int> {
        auto known = remote<&where>();
        const long pid = co_await known;
        const test::temporary_folder folder;
        auto r =
            as_result(remote<&clone_reply_and_exit>.with({.retries = 0})(3, folder.path + "/go"));
        co_await sleep_for(1ms); // it is sent
        // From here on nothing is read until the worker has ended: reply and end are seen together.
        std::ofstream(folder.path + "/go") << "go";
        siginfo_t seen{};
        if (::waitid(P_PID, static_cast<id_t>(pid), &seen, WEXITED | WNOWAIT) != 0) co_return 1;
        if (seen.si_status != 3) co_return 2;
        auto outcome = co_await std::move(r);
        if (!outcome || *outcome != 42) co_return 3;
        auto next = remote<&twice>(21);
        co_return co_await next == 42 ? 0 : 4;
    });
}

TEST_CASE("children that tasks forked go with their worker", "[P11][rt][run]") {
    // They hold the output: it would not end before they do.
    const auto r = run_to_end(app_options("child", {"--workers", "1"}));
    CHECK(r.code == 0);
}

TEST_CASE("an app that throws anything at all ends with an error line", "[rt][run]") {
    const auto r = run_to_end(app_options("number", {}));
    CHECK(r.code == 1);
    CHECK(r.err == "error: the app threw something that is not a std::exception\n");
}

TEST_CASE("the variable that makes a worker, set by hand, is an error that names it", "[rt][run]") {
    for (const char* value : {"0", "99", "abc", "", "-1"}) {
        auto how = app_options("seven", {});
        how.env.emplace_back(proc::boot_variable, value);
        how.last_words = false; // nobody listens
        const auto r = run_to_end(how);
        CHECK(r.code == 1);
        CHECK(contains(r.err, "error: "));
        CHECK(contains(r.err, proc::boot_variable));
    }
}

TEST_CASE("a program that is started by a worker's child, which closed all files, is no worker",
          "[rt][run]") {
    auto how = app_options("seven", {});
    how.env.emplace_back(proc::boot_variable, "3"); // as workers have it; here nothing is open
    how.last_words = false;
    const auto r = run_to_end(how);
    CHECK(r.code == 7);
    CHECK(r.err.empty());
}

TEST_CASE("a run without standard files works and its sockets stay clean", "[P13][rt][run]") {
    auto how = app_options("hello", {"--workers", "1"});
    const test::temporary_folder folder;
    how.argv = {"/bin/sh",
                "-c",
                "\"$1\" --workers 1 <&- >&- 2>&-; echo $? >\"$2\"; \"$1\" --workers 1 <&- 2>&-",
                "sh",
                std::filesystem::read_symlink("/proc/self/exe"),
                folder.path + "/code"};
    how.executable = "/bin/sh";
    const auto r = run_to_end(how);
    CHECK(r.code == 0);
    CHECK(r.out == "42\n");
    std::string code;
    std::ifstream(folder.path + "/code") >> code;
    CHECK(code == "0");
}

TEST_CASE("a killed driver leaves no worker behind", "[P10][rt][run]") {
    waiting_driver d;
    ::kill(static_cast<pid_t>(d.pid), SIGKILL);
    CHECK(d.until_all_gone() < 1000);
    d.process.wait_blocking();
}

TEST_CASE("signals stop the app in order", "[P9][rt][run]") {
    for (const auto& [number, code] : {std::pair{SIGINT, 130}, std::pair{SIGTERM, 143}}) {
        waiting_driver d;
        ::kill(static_cast<pid_t>(d.pid), number);
        CHECK(d.process.wait_blocking().code() == code);
        CHECK(d.until_all_gone() < 1000);
    }
}

TEST_CASE("a second signal ends the app at once, also when it is another one", "[P9][rt][run]") {
    for (const auto& [first, second] :
         {std::pair{SIGINT, SIGTERM}, {SIGTERM, SIGINT}, {SIGINT, SIGINT}}) {
        int ends[2];
        REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
        auto how = app_options("clings", {});
        how.stdout_fd = ends[1];
        auto child = proc::child_process::spawn(how);
        ::close(ends[1]);
        CHECK(read_line(ends[0]) == "ready");
        child.kill(first);
        CHECK(read_line(ends[0]) == "asked");
        child.kill(second);
        CHECK(child.wait_blocking().signal() == second);
        ::close(ends[0]);
    }
}
