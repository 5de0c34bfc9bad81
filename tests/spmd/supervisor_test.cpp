// SPDX-License-Identifier: Apache-2.0
#include <skein/core/event.hpp>
#include <skein/core/this_process.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/proc/children.hpp>
#include <skein/spmd/supervisor.hpp>
#include <tests/support/temporary_folder.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

using namespace skein;
using namespace skein::spmd;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

struct told {
    spmd::supervisor_outcome outcome;
    std::vector<std::string> restarts;
};

told supervise_program(const char* program, int workers = 2, int max_failures = 2,
                       spmd::supervisor_options options = {}) {
    told t;
    options.workers = workers;
    options.max_failures = max_failures;
    options.times.backoff = 1ms;
    options.argv = {"rank"};
    options.env.emplace_back("SKEIN_TEST_PROGRAM", program);
    options.join_deadline = 20s;
    options.times.crash_grace = 5s;
    options.alive = {net::keep_alive_mode::on, 50ms, 500ms, 1500ms};
    options.on_failure = [&](const error& why, int, int) { t.restarts.push_back(why.what()); };
    t.outcome = supervise(std::move(options));
    return t;
}

} // namespace

TEST_CASE("ranks that meet, exchange and leave make a good job") {
    const auto t = supervise_program("is fine", 3);
    CHECK_FALSE(t.outcome.failure);
    CHECK(t.restarts.empty());
}

TEST_CASE("a rank may go on working after all have left") {
    const test::temporary_folder folder;
    spmd::supervisor_options options;
    options.times.stop_grace = 0ms; // counts from a stop request, and nobody makes one
    options.env.emplace_back("SKEIN_TEST_FILE", folder.path + "/report");
    const auto t = supervise_program("writes a report after it has left", 2, 0, options);
    CHECK_FALSE(t.outcome.failure);
    CHECK(std::filesystem::exists(folder.path + "/report"));
}

TEST_CASE("nothing of a rank reaches the programs it starts, and its token no environment") {
    const test::temporary_folder folder;
    spmd::supervisor_options options;
    options.env.emplace_back("SKEIN_TEST_FILE", folder.path + "/seen");
    std::string had; // as alternatives of a pattern
    for (char** variable = environ; *variable != nullptr; ++variable) {
        const std::string_view text(*variable);
        if (text.starts_with("SKEIN_")) had.append("|").append(text.substr(0, text.find('=')));
    }
    options.env.emplace_back("SKEIN_TEST_HAD", had);
    const auto t = supervise_program("starts other programs", 2, 0, options);
    CHECK_FALSE(t.outcome.failure);
    CHECK(read_small_file((folder.path + "/seen").c_str()) == "nobody's rank\nno token");
}

TEST_CASE("ranks begin where the program was started, and use as many threads as they are told") {
    const test::temporary_folder folder;
    const auto before = std::filesystem::current_path();
    const auto threads_before = std::getenv("OMP_NUM_THREADS");
    const std::string had = threads_before != nullptr ? threads_before : "";
    const auto report = std::filesystem::absolute(folder.path + "/seen").string();
    const auto seen = [&](const char* users) {
        users != nullptr ? ::setenv("OMP_NUM_THREADS", users, 1) : ::unsetenv("OMP_NUM_THREADS");
        spmd::supervisor_options options;
        options.threads = 3;
        options.env.emplace_back("SKEIN_TEST_FILE", report);
        std::filesystem::current_path(folder.path); // as a main does that has gone elsewhere
        const auto t = supervise_program("tells its surroundings", 2, 0, options);
        std::filesystem::current_path(before);
        CHECK_FALSE(t.outcome.failure);
        return read_small_file(report.c_str());
    };
    CHECK(seen(nullptr) == folder_at_start() + " 3");
    CHECK(seen("5") == folder_at_start() + " 5");
    had.empty() ? ::unsetenv("OMP_NUM_THREADS") : ::setenv("OMP_NUM_THREADS", had.c_str(), 1);
}

TEST_CASE("a job of one rank is a job") {
    CHECK_FALSE(supervise_program("is fine", 1).outcome.failure);
}

TEST_CASE("a killed rank is named and the job started again") {
    const auto t = supervise_program("is killed once");
    CHECK_FALSE(t.outcome.failure);
    CHECK(t.outcome.restarts == 1);
    REQUIRE(t.restarts.size() == 1);
    CHECK_THAT(t.restarts[0], ContainsSubstring("worker 1") && ContainsSubstring("SIGKILL"));
}

TEST_CASE("a rank that hangs is found by its silence") {
    const auto t = supervise_program("hangs once");
    CHECK_FALSE(t.outcome.failure);
    CHECK(t.outcome.restarts == 1);
    REQUIRE(t.restarts.size() == 1);
    CHECK_THAT(t.restarts[0], ContainsSubstring("rank 1"));
}

TEST_CASE("a job that fails again and again is given up") {
    const auto t = supervise_program("is always killed", 2, 2);
    REQUIRE(t.outcome.failure);
    CHECK(t.outcome.restarts == 2);
    CHECK(t.outcome.failure->code() == errc::worker_lost);
    CHECK_THAT(t.outcome.failure->what(), ContainsSubstring("restarted 2 times"));
}

TEST_CASE("a rank that says why it fails is believed") {
    const auto t = supervise_program("fails", 2, 1);
    REQUIRE(t.outcome.failure);
    CHECK(t.outcome.failure->code() == errc::io);
    CHECK_THAT(t.restarts.at(0), ContainsSubstring("the disk made a noise; listen to it"));
}

TEST_CASE("a lasting failure is not tried again") {
    const auto t = supervise_program("finds a nan", 2, 5);
    REQUIRE(t.outcome.failure);
    CHECK(t.outcome.failure->code() == errc::not_finite);
    CHECK(t.outcome.restarts == 0);
}

TEST_CASE("what ends two attempts at the same step in the same words is not tried a third time") {
    const auto t = supervise_program("fails at a step", 2, 5);
    REQUIRE(t.outcome.failure);
    CHECK(t.outcome.failure->code() == errc::io);
    CHECK(t.outcome.restarts == 1);
    CHECK_THAT(t.outcome.failure->what(), ContainsSubstring("came again at the same step"));

    const auto at = [](const char* text) { return error(errc::io, text); };
    CHECK(comes_again(at("the log on rank 1 at step 4"), at("the log on rank 1 at step 4")));
    CHECK_FALSE(comes_again(at("the log on rank 1 at step 4"), at("the log on rank 1 at step 6")));
    CHECK_FALSE(comes_again(at("the disk is away"), at("the disk is away"))); // it may come back
}

TEST_CASE("a rank that is silent while all are asked to stop does not hold up the end") {
    spmd::supervisor_options options;
    options.times.stop_grace = 1h; // only its silence may end it
    const auto t = supervise_program("is stopped when all are asked to stop", 2, 2, options);
    CHECK(t.outcome.stop_signal == SIGTERM);
    CHECK(t.outcome.restarts == 0);
    REQUIRE(t.outcome.failure);
}

TEST_CASE("a supervisor that is stopped for a while finds its ranks as they were") {
    const auto t = supervise_program("stops its supervisor for a while");
    CHECK_FALSE(t.outcome.failure);
    CHECK(t.outcome.restarts == 0);
}

TEST_CASE("an end that would come again is not tried again") {
    const auto refused = supervise_program("refuses its command line", 2, 5);
    REQUIRE(refused.outcome.failure);
    CHECK(refused.outcome.restarts == 0);
    CHECK_THAT(refused.outcome.failure->what(), ContainsSubstring("exited with 2"));
    const auto unread = supervise_program("has no reader", 2, 5);
    REQUIRE(unread.outcome.failure);
    CHECK(unread.outcome.restarts == 0);
    CHECK_THAT(unread.outcome.failure->what(), ContainsSubstring("SIGPIPE"));
}

TEST_CASE("a rank that ends before it joins fails the job at once") {
    const auto t = supervise_program("exits before it joins", 2, 0);
    REQUIRE(t.outcome.failure);
    CHECK_THAT(t.outcome.failure->what(),
               ContainsSubstring("worker 1") && ContainsSubstring("exited with 3"));
}

TEST_CASE("a rank that returns without leaving fails the job") {
    const auto t = supervise_program("returns without leaving", 2, 0);
    REQUIRE(t.outcome.failure);
    CHECK_THAT(t.outcome.failure->what(), ContainsSubstring("1"));
}

TEST_CASE("a program that cannot be started is an error, not a hang") {
    spmd::supervisor_options options;
    options.workers = 2;
    options.executable = "/nonexistent/program";
    options.argv = {"rank"};
    const auto outcome = supervise(std::move(options));
    REQUIRE(outcome.failure);
    CHECK(outcome.failure->code() == errc::not_found);
    CHECK(outcome.restarts == 0);
}

TEST_CASE("several jobs at once, each on a thread of its own, leave the signals alone") {
    struct sigaction before{};
    ::sigaction(SIGTERM, nullptr, &before);
    struct one_job {
        told seen;
        struct sigaction behind{};
    };
    std::vector<one_job> jobs(2);
    std::vector<std::thread> threads;
    for (auto& job : jobs)
        threads.emplace_back([&job] {
            spmd::supervisor_options options;
            options.takes_signals = false;
            options.on_failure = [&](const error&, int, int) {};
            job.seen = supervise_program("is fine", 2, 0, std::move(options));
            ::sigaction(SIGTERM, nullptr, &job.behind);
        });
    for (auto& thread : threads) thread.join();
    for (const auto& job : jobs) {
        CHECK_FALSE(job.seen.outcome.failure);
        CHECK(job.behind.sa_handler == before.sa_handler);
    }
}

TEST_CASE("a job is stopped through a descriptor as by SIGTERM") {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    REQUIRE(::write(ends[1], "x", 1) == 1);
    spmd::supervisor_options options;
    options.takes_signals = false;
    options.stop_fd = ends[0];
    const auto t = supervise_program("waits to be stopped", 2, 2, options);
    CHECK(t.outcome.stop_signal == SIGTERM);
    CHECK(t.outcome.restarts == 0);
    ::close(ends[0]);
    ::close(ends[1]);
}

namespace {

/// Of this host; once their ranks have begun for the first time they are to leave their places.
class places_to_leave final : public proc::children {
public:
    places_to_leave(net::real_loop& on, int ranks) : here_(on), left_(ranks) {}
    task<std::unique_ptr<proc::child>> start(proc::child_options how) override {
        auto starting = here_.start(std::move(how));
        auto made = co_await starting;
        if (--left_ == 0 && tell_) tell_("node n2 is drained");
        co_return made;
    }
    void on_leave(std::function<void(const std::string& why)> tell) override {
        tell_ = std::move(tell);
    }

private:
    proc::local_children here_;
    int left_;
    std::function<void(const std::string& why)> tell_;
};

/// A child as it is.
class same_child : public proc::child {
public:
    explicit same_child(std::unique_ptr<proc::child> which) : which_(std::move(which)) {}
    const std::string& name() const noexcept override { return which_->name(); }
    std::int64_t pid() const noexcept override { return which_->pid(); }
    bool running() const noexcept override { return which_->running(); }
    task<proc::child_end> ended() override {
        auto ending = which_->ended();
        co_return co_await ending;
    }
    void signal(int number) noexcept override { which_->signal(number); }
    void kill() noexcept override { which_->kill(); }
    proc::process_usage usage() override { return which_->usage(); }
    std::unique_ptr<net::stream> take_stream() override { return which_->take_stream(); }
    task<std::size_t> read_output(bool is_error, std::span<std::byte> into) override {
        return which_->read_output(is_error, into);
    }

private:
    std::unique_ptr<proc::child> which_;
};

/// Whoever waits for its end is told first.
class heard_child final : public same_child {
public:
    heard_child(std::unique_ptr<proc::child> which, std::function<void()> on_end)
        : same_child(std::move(which)), on_end_(std::move(on_end)) {}
    task<proc::child_end> ended() override {
        auto ending = same_child::ended();
        auto how = co_await ending;
        on_end_();
        co_return how;
    }

private:
    std::function<void()> on_end_;
};

/// One that dies is taken apart until somebody would kill it, as on a host that is busy.
class slow_to_end final : public same_child {
public:
    using same_child::same_child;
    task<proc::child_end> ended() override {
        auto ending = same_child::ended();
        auto how = co_await ending;
        if (how.status.signal() == SIGKILL) {
            auto asked = killed_.wait();
            co_await asked;
        }
        co_return how;
    }
    void kill() noexcept override {
        same_child::kill();
        killed_.set();
    }
    proc::process_look look() override { return {.is_ending = !running()}; }

private:
    event killed_;
};

class slow_host final : public proc::children {
public:
    explicit slow_host(net::real_loop& on) : here_(on) {}
    task<std::unique_ptr<proc::child>> start(proc::child_options how) override {
        auto starting = here_.start(std::move(how));
        auto made = co_await starting;
        co_return std::make_unique<slow_to_end>(std::move(made));
    }

private:
    proc::local_children here_;
};

/// Of this host; they are to leave their places when the first one of them has ended.
class places_to_leave_late final : public proc::children {
public:
    places_to_leave_late(net::real_loop& on, int* starts) : here_(on), starts_(starts) {}
    task<std::unique_ptr<proc::child>> start(proc::child_options how) override {
        ++*starts_;
        auto starting = here_.start(std::move(how));
        auto made = co_await starting;
        std::function<void()> on_end = [this] {
            if (tell_) std::exchange(tell_, {})("node n2 is drained");
        };
        co_return std::make_unique<heard_child>(std::move(made), std::move(on_end));
    }
    void on_leave(std::function<void(const std::string& why)> tell) override {
        tell_ = std::move(tell);
    }

private:
    proc::local_children here_;
    int* starts_;
    std::function<void(const std::string& why)> tell_;
};

} // namespace

TEST_CASE("a killed rank that the kernel is slow to take apart is told as one that was killed") {
    spmd::supervisor_options options;
    options.children = [](loop& on, net::network&) {
        return std::make_shared<slow_host>(dynamic_cast<net::real_loop&>(on));
    };
    const auto t = supervise_program("is killed once", 2, 2, options);
    CHECK_FALSE(t.outcome.failure);
    CHECK(t.outcome.restarts == 1);
    REQUIRE(t.restarts.size() == 1);
    CHECK_THAT(t.restarts[0], ContainsSubstring("worker 1") && ContainsSubstring("SIGKILL"));
}

TEST_CASE("a training that is done while it is asked to leave its places is not run again") {
    int starts = 0;
    spmd::supervisor_options options;
    options.children = [&starts](loop& on, net::network&) {
        return std::make_shared<places_to_leave_late>(dynamic_cast<net::real_loop&>(on), &starts);
    };
    const auto t = supervise_program("is done as it is asked to move", 2, 0, options);
    CHECK_FALSE(t.outcome.failure);
    CHECK(t.outcome.restarts == 0);
    CHECK(starts == 2);
}

TEST_CASE("ranks that are to leave their places are started again, and nothing counts") {
    std::vector<std::string> said;
    spmd::supervisor_options options;
    options.say = [&](const std::string& line) { said.push_back(line); };
    options.children = [](loop& on, net::network&) {
        return std::make_shared<places_to_leave>(dynamic_cast<net::real_loop&>(on), 2);
    };
    const auto t = supervise_program("waits to be moved", 2, 0, options);
    CHECK_FALSE(t.outcome.failure);
    CHECK(t.outcome.restarts == 0);
    CHECK(t.outcome.stop_signal == 0);
    CHECK(t.restarts.empty());
    REQUIRE(said.size() == 1);
    CHECK_THAT(said.front(), ContainsSubstring("node n2 is drained: the ranks save"));
}

TEST_CASE("ranks have variables and orders of their own, rank 0 tells, and the culprit is named") {
    spmd::supervisor_options options;
    options.variables.emplace_back("SKEIN_TEST_ORDER", "sum");
    options.given = to_buffer(as_bytes("1 2 3"));
    options.most_told = 64;
    const auto t = supervise_program("tells", 2, 0, options);
    CHECK_FALSE(t.outcome.failure);
    REQUIRE(t.outcome.told.contains("answer"));
    CHECK(as_text(t.outcome.told.at("answer")) == "sum of 1 2 3");
    CHECK(t.outcome.culprit == -1);
    CHECK(supervise_program("is always killed", 2, 0).outcome.culprit == 1);
    CHECK(supervise_program("fails", 2, 0).outcome.culprit == 1);
}
