// SPDX-License-Identifier: Apache-2.0
#include <tests/apps/apps.hpp>
#include <tests/support/temporary_folder.hpp>

#include <skein/core/available_cores.hpp>
#include <skein/core/available_memory.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/proc/children.hpp>
#include <skein/proc/detail/children.hpp>
#include <skein/sim/loop.hpp>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace std::chrono_literals;

namespace {

/// What the child of these tests does is its message; see helper_main() in apps_support.cpp.
proc::child_options helper(std::string order) {
    proc::child_options how;
    how.role = "test-helper";
    how.name = "helper-1";
    how.argv = {"rt_tests"};
    how.message = to_buffer(as_bytes(order));
    return how;
}

task<std::unique_ptr<proc::child>> started(proc::children* where, proc::child_options how) {
    auto starting = where->start(std::move(how));
    co_return co_await starting;
}

task<std::string> read_to_end(net::stream* from) {
    std::string text;
    std::byte piece[256];
    while (true) {
        auto reading = from->read_some(piece);
        const auto n = co_await reading;
        if (n == 0) co_return text;
        text += to_string(byte_span(piece, n));
    }
}

template <class Body>
void with_children(Body body) {
    net::real_loop loop;
    proc::local_children here(loop);
    loop.run(body(&here));
}

/// A program that nobody can open while we hold it: a lease keeps the kernel waiting inside
/// execve().
class held_program {
public:
    explicit held_program(std::string path) : path_(std::move(path)) {
        std::ofstream(path_) << "#!/bin/sh\nexit 7\n";
        std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
        file_ = unique_fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
        REQUIRE(::fcntl(file_.get(), F_SETSIG, SIGURG) == 0); // nobody minds it
        if (::fcntl(file_.get(), F_SETLEASE, F_WRLCK) != 0)
            SKIP("the file system of " << path_ << " has no leases");
    }
    [[nodiscard]] const std::string& path() const noexcept { return path_; }
    /// Somebody waits for it.
    [[nodiscard]] bool is_wanted() const { return ::fcntl(file_.get(), F_GETLEASE) != F_WRLCK; }
    void let_go() { CHECK(::fcntl(file_.get(), F_SETLEASE, F_UNLCK) == 0); }

private:
    std::string path_;
    unique_fd file_;
};

task<void> start_and_note(proc::children* where, std::string executable, bool* begun) {
    auto how = helper("nothing");
    how.executable = std::move(executable);
    auto starting = started(where, std::move(how));
    auto child = co_await starting;
    *begun = true;
    auto waiting = child->ended();
    const auto end = co_await waiting;
    CHECK(end.status.code() == 7);
}

/// A child of a simulated world: leaves so long after it has been asked, never by itself.
class patient_child final : public proc::child {
public:
    explicit patient_child(std::optional<duration> to_leave) : to_leave_(to_leave) {}

    const std::string& name() const noexcept override { return name_; }
    std::int64_t pid() const noexcept override { return 7; }
    bool running() const noexcept override { return !gone_.is_set(); }
    task<proc::child_end> ended() override {
        auto waited = gone_.wait();
        co_await waited;
        co_return proc::child_end{proc::exit_status(signal_), {}};
    }
    void signal(int number) noexcept override {
        heard.push_back(number);
        if (to_leave_) leaving_.spawn(leave(number));
    }
    void kill() noexcept override {
        heard.push_back(SIGKILL);
        signal_ = SIGKILL;
        gone_.set();
    }
    proc::process_usage usage() override { return {}; }
    std::unique_ptr<net::stream> take_stream() override { return nullptr; }
    task<std::size_t> read_output(bool, std::span<std::byte>) override { co_return 0; }
    task<void> join() {
        auto joined = leaving_.join();
        co_await joined;
    }

    std::vector<int> heard;

private:
    task<void> leave(int number) {
        co_await sleep_for(*to_leave_);
        signal_ = number;
        gone_.set();
    }

    std::string name_ = "patient";
    std::optional<duration> to_leave_;
    int signal_ = 0;
    event gone_;
    scope leaving_;
};

} // namespace

TEST_CASE("a child gets its message and a socket, and says why it leaves", "[rt][children]") {
    with_children([](proc::children* here) -> task<void> {
        auto starting = started(here, helper("echo"));
        auto child = co_await starting;
        CHECK(child->running());
        CHECK(child->pid() > 0);
        CHECK(child->name() == "helper-1");
        auto stream = child->take_stream();
        REQUIRE(stream);
        CHECK_FALSE(child->take_stream());
        auto reading = read_to_end(stream.get());
        const auto said = co_await reading;
        CHECK(said == "test-helper helper-1");
        auto waiting = child->ended();
        const auto end = co_await waiting;
        CHECK(end.status.code() == 3);
        CHECK(end.last_words == "done with it");
        CHECK_FALSE(child->running());
        auto again = child->ended();
        const auto same = co_await again;
        CHECK(same.last_words == "done with it");
    });
}

TEST_CASE("a child that leaves on several threads at once says why it leaves once",
          "[rt][children]") {
    with_children([](proc::children* here) -> task<void> {
        for (int i = 0; i < 20; ++i) {
            auto starting = started(here, helper("leave on all threads"));
            auto child = co_await starting;
            auto waiting = child->ended();
            const auto end = co_await waiting;
            CHECK(end.status.code() == 3);
            CHECK(end.last_words == "done with it");
        }
    });
}

TEST_CASE("nothing of how a child was started reaches a program that it starts",
          "[P7][rt][children]") {
    // The environment of the inner program, then its open files, without that of the folder it
    // reads.
    with_children([](proc::children* here) -> task<void> {
        auto starting = started(here, helper("look around"));
        auto child = co_await starting;
        auto stream = child->take_stream();
        auto reading = read_to_end(stream.get());
        const auto seen = co_await reading;
        CHECK(seen.find("PATH=") != std::string::npos);
        CHECK(seen.find("SKEIN_BOOT_FD") == std::string::npos);
        CHECK(seen.find("SKEIN_LAST_WORDS_FD") == std::string::npos);
        CHECK(seen.find("files: 0 1 2 3\n") != std::string::npos); // 3: the folder itself
        auto waiting = child->ended();
        const auto end = co_await waiting;
        CHECK(end.status.success());
    });
}

TEST_CASE("the stream of a child ends with it, also if somebody it left holds the socket",
          "[rt][children]") {
    with_children([](proc::children* here) -> task<void> {
        auto starting = started(here, helper("leave a child"));
        auto child = co_await starting;
        auto stream = child->take_stream();
        auto waiting = child->ended();
        (void)co_await waiting;
        auto reading = with_timeout(read_to_end(stream.get()), 30s);
        const auto said = co_await reading;
        CHECK(said == "bye");
    });
}

TEST_CASE("a child that does not leave when asked is killed", "[rt][children]") {
    with_children([](proc::children* here) -> task<void> {
        auto starting = started(here, helper("ignore all"));
        auto child = co_await starting;
        auto stream = child->take_stream();
        std::byte ready[1];
        auto reading = stream->read_some(ready); // it ignores signals from here on
        (void)co_await reading;
        auto leaving = proc::stop(*child, 0ms, 50ms);
        const auto end = co_await leaving;
        CHECK(end.status.signal() == SIGKILL);
    });
}

TEST_CASE("a child is asked and killed when its time has come, not before", "[rt][children]") {
    struct expected {
        std::optional<duration> to_leave;
        std::vector<int> heard;
        duration after;
    };
    for (const auto& want :
         {expected{100ms, {SIGTERM}, 1100ms}, expected{3s, {SIGTERM, SIGKILL}, 3s},
          expected{std::nullopt, {SIGTERM, SIGKILL}, 3s}}) {
        sim::loop loop(1);
        loop.run([](expected e) -> task<void> {
            patient_child child(e.to_leave);
            const auto begin = loop::current().now();
            auto leaving = proc::stop(child, 1s, 2s);
            const auto end = co_await leaving;
            CHECK(child.heard == e.heard);
            CHECK(end.status.signal() == e.heard.back());
            CHECK(loop::current().now() - begin == e.after);
            auto joined = child.join();
            co_await joined;
        }(want));
    }
}

TEST_CASE("a child that has been asked by others is killed and not asked once more",
          "[rt][children]") {
    sim::loop loop(1);
    loop.run([]() -> task<void> {
        patient_child child(std::nullopt);
        const auto begin = loop::current().now();
        auto leaving = proc::stop(child, 1s, 0s);
        const auto end = co_await leaving;
        CHECK(child.heard == std::vector<int>{SIGKILL});
        CHECK(end.status.signal() == SIGKILL);
        CHECK(loop::current().now() - begin == 1s);
        auto joined = child.join();
        co_await joined;
    }());
}

TEST_CASE("cancelling a stop leaves the child alone", "[rt][children]") {
    sim::loop loop(1);
    loop.run([]() -> task<void> {
        patient_child child(std::nullopt);
        auto leaving = with_timeout(proc::stop(child, 10s, 10s), 1s);
        auto asked = as_result(std::move(leaving));
        const auto outcome = co_await asked;
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::timeout);
        CHECK(child.heard.empty());
    }());
}

TEST_CASE("a child that cannot start says which program and why", "[rt][children]") {
    with_children([](proc::children* here) -> task<void> {
        auto how = helper("echo");
        how.executable = "/no/such/program";
        auto starting = as_result(started(here, std::move(how)));
        const auto outcome = co_await starting;
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::not_found);
        CHECK(outcome.error().text().find("/no/such/program") != std::string::npos);

        auto large = helper(std::string(64 << 10, 'x'));
        auto refused = as_result(started(here, std::move(large)));
        const auto too_large = co_await refused;
        REQUIRE_FALSE(too_large);
        CHECK(too_large.error().code() == errc::too_large);
    });
}

TEST_CASE("the loop goes on while a start waits for the file system", "[rt][children]") {
    with_children([](proc::children* here) -> task<void> {
        const test::temporary_folder folder;
        held_program program(folder / "slow-to-open");
        bool begun = false;
        scope starts;
        starts.spawn(start_and_note(here, program.path(), &begun));
        for (int i = 0; i < 30'000 && !program.is_wanted(); ++i) co_await sleep_for(1ms);
        REQUIRE(program.is_wanted()); // the start is stuck, and the loop is here
        CHECK_FALSE(begun);
        program.let_go();
        auto joined = starts.join();
        co_await joined;
        CHECK(begun);
    });
}

TEST_CASE("a start that waits for the file system can be cancelled, and one that waits behind it",
          "[rt][children]") {
    with_children([](proc::children* here) -> task<void> {
        const test::temporary_folder folder;
        held_program program(folder / "slow-to-open");
        bool begun = false;
        scope starts;
        for (int i = 0; i < 2; ++i) starts.spawn(start_and_note(here, program.path(), &begun));
        for (int i = 0; i < 30'000 && !program.is_wanted(); ++i) co_await sleep_for(1ms);
        REQUIRE(program.is_wanted());
        starts.cancel();
        auto joined = starts.join(); // although the program cannot be opened still
        co_await joined;
        CHECK_FALSE(begun);
        const auto left = ::waitpid(-1, nullptr, WNOHANG);
        CHECK(left == -1);
        CHECK(errno == ECHILD);
    });
}

TEST_CASE(
    "one look finds the processes of many marks, counts each and signals those that are asked for",
    "[rt][children]") {
    with_children([](proc::children* here) -> task<void> {
        const auto value = std::to_string(::getpid());
        std::vector<std::unique_ptr<proc::child>> all;
        for (const char* name : {"SKEIN_TEST_A", "SKEIN_TEST_A", "SKEIN_TEST_B"}) {
            auto how = helper("");
            how.executable = "/bin/sleep";
            how.argv = {"sleep", "1000"};
            how.env = {{name, value}, {"SKEIN_TEST_ALL", value}};
            auto starting = started(here, std::move(how));
            all.push_back(co_await starting);
        }
        proc::marked_signal a{"SKEIN_TEST_A=" + value, SIGTERM}, every{"SKEIN_TEST_ALL=" + value},
            part{"SKEIN_TEST_A=" + value.substr(1)}, none{"SKEIN_TEST_C=" + value, SIGKILL};
        a.but_not = all[1]->pid();
        proc::marked_signal* const asked[] = {&a, &every, &part, &none};
        // The kernel shows the environment of a new program a moment after its start.
        proc::marked_signal look{every.mark};
        proc::marked_signal* const looking[] = {&look};
        for (int i = 0; i < 30'000 && look.found < 3; ++i) {
            here->signal_marked(looking);
            co_await sleep_for(1ms);
        }
        here->signal_marked(asked);
        CHECK(a.found == 2);
        CHECK(every.found == 3);
        CHECK(part.found == 0);
        CHECK(none.found == 0);
        auto ended = all[0]->ended();
        const auto how = co_await ended;
        CHECK(how.status.signal() == SIGTERM);
        CHECK(all[2]->running());
        here->signal_marked(asked);
        CHECK(a.found == (all[1]->running() ? 1 : 0)); // its group had been told
        all[1]->kill();
        all[2]->kill();
        for (std::size_t i : {1, 2}) {
            auto gone = all[i]->ended();
            const auto end = co_await gone;
            CHECK(end.status.signal() == SIGKILL);
        }
        here->signal_marked(asked);
        CHECK(every.found == 0);
    });
}

TEST_CASE("a process that the kernel takes apart is told from one that a signal still reaches",
          "[rt][children]") {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0)
        for (;;) ::pause();
    CHECK_FALSE(proc::detail::look_at(child, false).is_ending);
    siginfo_t how{};
    REQUIRE(::kill(child, SIGSTOP) == 0);
    REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &how, WSTOPPED | WNOWAIT) == 0);
    CHECK(proc::detail::look_at(child, false).is_stopped);
    CHECK_FALSE(proc::detail::look_at(child, false).is_ending);
    REQUIRE(::kill(child, SIGKILL) == 0);
    REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &how, WEXITED | WNOWAIT) == 0);
    CHECK(proc::detail::look_at(child, false).is_ending);
    REQUIRE(::waitpid(child, nullptr, 0) == child);
    CHECK_FALSE(proc::detail::look_at(child, false).is_ending); // nothing is known of it
}

TEST_CASE("what a child takes is measured while it runs", "[rt][children]") {
    with_children([](proc::children* here) -> task<void> {
        CHECK(here->resources().cores == available_cores());
        CHECK(here->resources().memory_bytes == available_memory());
        auto starting = started(here, helper("ignore all"));
        auto child = co_await starting;
        auto stream = child->take_stream();
        std::byte ready[1];
        auto reading = stream->read_some(ready);
        (void)co_await reading;
        CHECK(child->usage().resident_bytes > 100'000);
        CHECK(child->usage().cpu_time >= duration(0));
        child->kill();
        auto waiting = child->ended();
        (void)co_await waiting;
        CHECK(child->usage().resident_bytes == 0);
    });
    std::vector<double> work(1 << 16, 1.0);
    const auto begin = proc::detail::usage_of(::getpid());
    while (proc::detail::usage_of(::getpid()).cpu_time == begin.cpu_time) // a tick: 10 ms
        for (auto& w : work) w = w * 1.0001 + 1;
    CHECK(proc::detail::usage_of(::getpid()).cpu_time < 3600s);
    CHECK(begin.resident_bytes >= work.size() * sizeof(double));
}

TEST_CASE("what fails is started again so often, with longer and longer pauses", "[rt][children]") {
    proc::restart_rules rules;
    rules.most = 3;
    rules.first_pause = 100ms;
    rules.longest_pause = 300ms;
    rules.is_lasting = [](errc code) { return code == errc::usage; };
    proc::restart_policy policy(rules);
    const error broke(errc::worker_lost, "it broke");
    CHECK(policy.failed(broke) == duration(100ms));
    CHECK(policy.failed(broke) == duration(200ms));
    CHECK(policy.failed(broke) == duration(300ms));
    CHECK_FALSE(policy.failed(broke));
    policy.worked();
    CHECK(policy.failures() == 0);
    CHECK(policy.failed(broke) == duration(100ms));
    CHECK_FALSE(policy.failed(error(errc::usage, "a wrong flag")));
}
