// SPDX-License-Identifier: Apache-2.0
#include <skein/core/clock.hpp>
#include <skein/core/this_process.hpp>
#include <skein/spmd/detail/elastic_protocol.hpp>
#include <skein/spmd/elastic_run.hpp>
#include <tests/spmd/elastic_programs.hpp>
#include <tests/support/temporary_folder.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include <fmt/format.h>

namespace elastic_coordinator_test {

using namespace skein;
using namespace skein::spmd;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

/// A job of the workers of elastic_programs.hpp.
struct elastic_run {
    test::temporary_folder folder;
    elastic_run_options options;
    std::vector<spmd::view> views;
    std::vector<std::string> failures;
    std::function<void()> on_failure;
    std::vector<std::thread> tools;
    supervisor_outcome outcome;

    explicit elastic_run(const char* program, int least, int most) {
        options.least = least;
        options.most = most;
        options.argv = {"rank"};
        options.env = {{"SKEIN_TEST_PROGRAM", program}, {"SKEIN_TEST_FOLDER", folder.path}};
        options.times.backoff = 1ms;
        options.times.crash_grace = 5s;
        options.times.first_settle = 60s; // on a busy machine one may start late
        options.secret = net::token::generate();
    }
    /// Asked for as skein scale does; behind the end of the job nothing happens.
    void scale(int workers) {
        tools.emplace_back([this, workers] {
            try {
                (void)scale_elastic_job(door_of_job(::getpid()), options.secret, "", workers);
            } catch (const error&) {
                return;
            }
        });
    }
    /// `act` is called with each view of ranks; when it says false the workers are done.
    void live(const std::function<bool(const spmd::view&)>& act) {
        options.on_view = [&](const spmd::view& now) {
            views.push_back(now);
            if (!now.is_over && !act(now)) finish();
        };
        options.on_failure = [&](const error& why, int, int) {
            failures.push_back(why.what());
            if (on_failure) on_failure();
        };
        outcome = run_elastic_host(options);
        for (auto& tool : tools) tool.join();
    }
    /// For messages.
    [[nodiscard]] std::string story() const {
        std::string all;
        for (const auto& v : views) all += fmt::format("view {}: {}\n", v.generation, v.why);
        for (const auto& f : failures) all += "counted: " + f + "\n";
        return all;
    }
    void finish() { std::ofstream(folder.path + "/done") << "done"; }
};

std::vector<std::uint64_t> ids(const spmd::view& of) {
    std::vector<std::uint64_t> all;
    for (const auto& m : of.members) all.push_back(m.id);
    return all;
}
using id_list = std::vector<std::uint64_t>;

void end(const view_member& which, int signal) {
    REQUIRE(which.pid > 0);
    ::kill(static_cast<pid_t>(which.pid), signal);
}

} // namespace

TEST_CASE("workers that are ready form a world, and are done when all have left it") {
    elastic_run job("works", 1, 3);
    job.options.start = 2;
    job.live([](const spmd::view&) { return false; });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    REQUIRE(job.views.size() == 2);
    CHECK(job.views[0].generation == 1);
    CHECK(job.views[0].members.size() == 2);
    CHECK(job.views[1].is_over);
    CHECK(job.failures.empty());
}

TEST_CASE("a worker is killed, rank 0 too: the others keep their processes, another one joins") {
    for (const std::size_t lost : {std::size_t{1}, std::size_t{0}}) {
        elastic_run job("works", 1, 3);
        job.live([&](const spmd::view& now) {
            if (now.generation == 1) end(now.members[lost], SIGKILL);
            return now.generation == 1 || now.members.size() < 3;
        });
        INFO(job.story());
        CHECK_FALSE(job.outcome.failure);
        REQUIRE(job.views.size() >= 3);
        const auto& first = job.views[0];
        auto stay = first.members;
        stay.erase(stay.begin() + static_cast<std::ptrdiff_t>(lost));
        CHECK_THAT(job.views[1].why, ContainsSubstring("SIGKILL"));
        CHECK(job.views[1].failures == 1);
        const auto& last = job.views[job.views.size() - 2];
        REQUIRE(last.members.size() == 3);
        CHECK(last.members[0] == stay[0]); // with its pid
        CHECK(last.members[1] == stay[1]);
        CHECK(last.members[2].id == 4);
        CHECK(job.outcome.restarts == 1);
    }
}

TEST_CASE("a worker that stands still is killed after a second, and the others go on") {
    elastic_run job("works", 1, 2);
    time_point stopped{}, found{};
    job.live([&](const spmd::view& now) {
        if (now.generation == 1) {
            end(now.members[0], SIGSTOP);
            stopped = system_clock().now();
        }
        if (now.generation == 2) found = system_clock().now();
        return now.generation == 1;
    });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    REQUIRE(job.failures.size() == 1);
    CHECK_THAT(job.failures[0], ContainsSubstring("was silent for 1 s"));
    CHECK(between(stopped, found) < 10s); // not by the deadline of what the others wait in
}

TEST_CASE("a worker that computes for ever while another asks for the next world is killed") {
    elastic_run job("hangs", 1, 2);
    job.options.times.ask_limit = 200ms;
    job.live([&](const spmd::view& now) { return now.generation == 1; });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    REQUIRE(job.failures.size() == 1);
    CHECK_THAT(job.failures[0],
               ContainsSubstring("worker 2") && ContainsSubstring("hung, and was killed: 0.2 s"));
}

TEST_CASE("two losses at once make one view") {
    elastic_run job("works", 1, 4);
    job.live([&](const spmd::view& now) {
        if (now.generation == 1) {
            end(now.members[0], SIGKILL);
            end(now.members[2], SIGKILL);
        }
        return now.members.size() < 4 || now.generation == 1;
    });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    CHECK(job.outcome.restarts == 2);
    const auto& next = ids(job.views[1]);
    REQUIRE(next.size() >= 2);
    CHECK(id_list(next.begin(), next.begin() + 2) ==
          id_list{job.views[0].members[1].id, job.views[0].members[3].id});
}

TEST_CASE("a loss while the next world forms makes another one") {
    elastic_run job("works", 1, 3);
    job.live([&](const spmd::view& now) {
        if (now.generation <= 2) end(now.members[0], SIGKILL);
        return now.generation <= 2 || now.members.size() < 3;
    });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    CHECK(job.outcome.restarts == 2);
}

TEST_CASE("a worker that is told to go leaves in order, and is not replaced") {
    elastic_run job("works", 1, 3);
    job.live([&](const spmd::view& now) {
        if (now.generation == 1) end(now.members[1], SIGTERM);
        return now.generation == 1;
    });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    CHECK(job.failures.empty());
    REQUIRE(job.views.size() == 3);
    CHECK(ids(job.views[1]) == id_list{job.views[0].members[0].id, job.views[0].members[2].id});
    CHECK_THAT(job.views[1].why, ContainsSubstring("it was told to go"));
    const auto left = fmt::format("{}/left-{}", job.folder.path, job.views[0].members[1].id);
    CHECK(std::filesystem::exists(left));
}

TEST_CASE("a worker that the others cannot spare leaves when another one has come") {
    elastic_run job("works", 2, 2);
    job.live([&](const spmd::view& now) {
        if (now.generation == 1) end(now.members[0], SIGTERM);
        return now.generation == 1;
    });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    CHECK(job.failures.empty());
    REQUIRE(job.views.size() == 3);
    CHECK(ids(job.views[1]) == id_list{job.views[0].members[1].id, 3});
}

TEST_CASE("of a long reason to leave the others hear the beginning") {
    elastic_run job("says much", 1, 2);
    job.live([&](const spmd::view& now) {
        if (now.generation == 1) end(now.members[1], SIGTERM);
        return now.generation == 1;
    });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    CHECK(job.failures.empty());
    REQUIRE(job.views.size() == 3);
    CHECK(job.views[1].why.size() < 2048);
    CHECK_THAT(job.views[1].why, ContainsSubstring("it was told to go!!"));
}

TEST_CASE("a text is cut between characters") {
    using spmd::detail::clipped;
    CHECK(clipped("short", 5) == "short");
    CHECK(clipped("123456789", 8) == "1234 ...");
    CHECK(clipped("123\xc3\xa4"
                  "56789",
                  8) == "123 ...");
}

TEST_CASE("a collective that fails without a loss is told in the next view's reason") {
    elastic_run job("has a failed collective", 1, 2);
    job.live([&](const spmd::view& now) { return now.generation == 1; });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    CHECK(job.outcome.restarts == 1);
    REQUIRE(job.views.size() == 3);
    CHECK(ids(job.views[1]) == ids(job.views[0]));
    CHECK_THAT(job.views[1].why,
               ContainsSubstring("a collective failed, and no worker was lost: worker 2") &&
                   ContainsSubstring("the sum of bucket 3 has timed out"));
}

TEST_CASE("all workers are told to go: one stays until another one has its state") {
    for (const int most : {1, 2}) {
        elastic_run job("works", 1, most);
        job.live([&](const spmd::view& now) {
            if (now.generation == 1)
                for (const auto& m : now.members) end(m, SIGTERM);
            return now.members.size() > 1 || now.members[0].id <= job.views[0].members.size();
        });
        INFO(job.story());
        CHECK_FALSE(job.outcome.failure);
        CHECK(job.failures.empty());
        REQUIRE(job.views.size() >= 4);
        for (std::size_t v = 1; v < job.views.size(); ++v) {
            const auto before = ids(job.views[v - 1]), now = ids(job.views[v]);
            CHECK(std::find_first_of(now.begin(), now.end(), before.begin(), before.end()) !=
                  now.end());
        }
    }
}

TEST_CASE("the wanted number of workers changes while they work") {
    elastic_run job("works", 1, 4);
    job.options.start = 2;
    job.live([&](const spmd::view& now) {
        if (now.generation == 1) job.scale(4);
        if (now.members.size() == 4) job.scale(1);
        return now.generation == 1 || now.members.size() > 1;
    });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    CHECK(job.failures.empty());
    const auto most = std::max_element(job.views.begin(), job.views.end(),
                                       [](const spmd::view& a, const spmd::view& b) {
                                           return a.members.size() < b.members.size();
                                       });
    CHECK(most->members.size() == 4);
    CHECK(ids(job.views.back()) == id_list{job.views[0].members[0].id});
}

TEST_CASE("below the least number workers wait with what they have until another one is ready") {
    elastic_run job("works", 2, 2);
    job.live([&](const spmd::view& now) {
        if (now.generation == 1) end(now.members[0], SIGKILL);
        return now.generation == 1;
    });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    REQUIRE(job.views.size() == 3);
    CHECK(ids(job.views[1]) == id_list{job.views[0].members[1].id, 3});
}

TEST_CASE("a job that stays below its least number ends, and says why") {
    elastic_run job("replacements never ask", 2, 2);
    job.options.times.pause_limit = 300ms;
    job.live([&](const spmd::view& now) {
        end(now.members[0], SIGKILL);
        return true;
    });
    INFO(job.story());
    REQUIRE(job.outcome.failure);
    CHECK_THAT(job.outcome.failure->what(),
               ContainsSubstring("fewer than 2 workers were there for 0.3 s"));
}

TEST_CASE("a job below its least number whose replacements are refused does not wait for more") {
    elastic_run job("later ones refuse", 2, 2);
    job.options.times.pause_limit = 24h;
    job.live([&](const spmd::view& now) {
        end(now.members[0], SIGKILL);
        return true;
    });
    INFO(job.story());
    REQUIRE(job.outcome.failure);
    CHECK_THAT(job.outcome.failure->what(),
               ContainsSubstring("fewer than 2 workers are there, and no others are started: 3 "
                                 "were refused"));
}

TEST_CASE("all workers of a world are lost: the next ones begin a world of their own") {
    elastic_run job("works", 1, 2);
    job.live([&](const spmd::view& now) {
        if (now.generation == 1)
            for (const auto& m : now.members) end(m, SIGKILL);
        return now.generation == 1;
    });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    CHECK(job.outcome.restarts == 2);
    auto next = ids(job.views[1]);
    std::sort(next.begin(), next.end());
    CHECK(next == id_list{3, 4});
}

TEST_CASE("workers that die on every start end the job with what they died of") {
    elastic_run job("dies on every start", 1, 2);
    job.live([](const spmd::view&) { return true; });
    INFO(job.story());
    REQUIRE(job.outcome.failure);
    CHECK_THAT(job.outcome.failure->what(),
               ContainsSubstring("exited with 3") && ContainsSubstring("the job allows 3"));
    CHECK(job.outcome.restarts == 4);
    CHECK(job.views.size() == 1);
}

TEST_CASE("replacements that die on every start use up the budget") {
    elastic_run job("later ones die on every start", 1, 2);
    job.live([&](const spmd::view& now) {
        if (now.generation == 1) end(now.members[0], SIGKILL);
        return true;
    });
    INFO(job.story());
    REQUIRE(job.outcome.failure);
    CHECK(job.outcome.restarts == 4);
}

TEST_CASE("a worker that refuses its command line is not started again and again") {
    elastic_run job("later ones refuse", 1, 2);
    job.live([&](const spmd::view& now) {
        if (now.generation == 1) end(now.members[0], SIGKILL);
        if (now.generation == 2) job.finish();
        return true;
    });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    CHECK(job.outcome.restarts == 1);
}

TEST_CASE("workers with other settings are refused by name, and the others go on") {
    elastic_run job("later ones differ", 1, 3);
    job.options.start = 2;
    job.on_failure = [&] {
        if (job.failures.size() == 3) job.finish(); // none is started any more
    };
    job.live([&](const spmd::view&) {
        job.scale(3);
        return true;
    });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    CHECK(job.outcome.restarts == 0);
    CHECK(job.views.size() == 2);
    REQUIRE(job.failures.size() == 3);
    CHECK_THAT(job.failures[0], ContainsSubstring("worker 3") && ContainsSubstring("seed 2"));
}

TEST_CASE("a worker that finds in its first world that it is another one leaves the others alone") {
    elastic_run job("joins badly", 1, 3);
    job.options.start = 2;
    job.on_failure = [&] {
        if (job.failures.size() == 3) job.finish();
    };
    job.live([&](const spmd::view&) {
        job.scale(3);
        return true;
    });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    CHECK(job.outcome.restarts == 0);
    REQUIRE(job.failures.size() == 3);
    CHECK_THAT(job.failures[0], ContainsSubstring("my model has 3 layers"));
    CHECK(ids(job.views.back()) == ids(job.views.front()));
}

TEST_CASE("a worker that dies in each world uses up the budget") {
    elastic_run job("dies in each world", 1, 2);
    job.live([](const spmd::view&) { return true; });
    INFO(job.story());
    REQUIRE(job.outcome.failure);
    CHECK(job.outcome.restarts == 4);
    CHECK_THAT(job.outcome.failure->what(), ContainsSubstring("SIGKILL"));
}

TEST_CASE("a worker that hangs before it asks for a world holds nobody up") {
    elastic_run job("later ones never ask", 1, 2);
    job.options.times.ready_limit = 300ms;
    job.on_failure = [&] { job.finish(); };
    job.options.start = 1;
    job.live([&](const spmd::view&) {
        job.scale(2);
        return true;
    });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    REQUIRE(job.failures.size() == 1);
    CHECK_THAT(job.failures[0], ContainsSubstring("was not ready within 0.3 s"));
}

TEST_CASE("a worker that returns early ends the job") {
    elastic_run job("exits early", 1, 2);
    job.live([](const spmd::view&) { return true; });
    INFO(job.story());
    REQUIRE(job.outcome.failure);
    CHECK_THAT(job.outcome.failure->what(),
               ContainsSubstring("worker 2") &&
                   ContainsSubstring("exited before the job was done"));
}

TEST_CASE("a worker that is done when the view without the lost one is there ends the job well") {
    elastic_run job("loses the last one late", 1, 2);
    const test_gate gate{job.folder.path + "/gate"};
    gate.make();
    job.live([&](const spmd::view& now) {
        if (now.generation == 2) gate.open();
        return now.generation > 1;
    });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    CHECK(job.outcome.restarts == 1);
    CHECK(job.views.size() == 3);
}

TEST_CASE("a worker that dies when another one is done ends the job, and nobody begins anew") {
    elastic_run job("loses one after another is done", 1, 2);
    test_gate{job.folder.path + "/gate"}.make();
    job.live([&](const spmd::view&) { return false; });
    INFO(job.story());
    REQUIRE(job.outcome.failure);
    CHECK_THAT(job.outcome.failure->what(),
               ContainsSubstring("worker 2") && ContainsSubstring("SIGKILL"));
    CHECK(job.outcome.culprit >= 0);
    CHECK(job.outcome.restarts == 0);
    CHECK(job.views.size() == 2);
}

TEST_CASE("a worker that ends with an exit code, and does not say that it fails, is replaced") {
    elastic_run job("gives its state up", 1, 2);
    job.live([&](const spmd::view& now) { return now.members.size() < 2 || now.generation == 1; });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    CHECK(job.outcome.restarts == 1);
    REQUIRE(job.failures.size() == 1);
    CHECK_THAT(job.failures[0], ContainsSubstring("worker 2") &&
                                    ContainsSubstring("exited with 1") &&
                                    ContainsSubstring("half a copy of the state has come"));
    CHECK(ids(job.views.back()) == id_list{1, 3});
}

TEST_CASE("a worker that fails ends the job with its reason") {
    elastic_run job("fails", 1, 3);
    job.live([](const spmd::view&) { return true; });
    INFO(job.story());
    REQUIRE(job.outcome.failure);
    CHECK(job.outcome.failure->code() == errc::io);
    CHECK_THAT(job.outcome.failure->what(), ContainsSubstring("the disk made a noise"));
    CHECK(job.outcome.culprit >= 0);
    CHECK(job.views.size() == 2);
}

TEST_CASE("a job of elastic workers is stopped in order, and they say so") {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    elastic_run job("works", 1, 2);
    job.options.takes_signals = false;
    job.options.stop_fd = ends[0];
    job.live([&](const spmd::view&) {
        REQUIRE(::write(ends[1], "x", 1) == 1);
        return true;
    });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    CHECK(job.outcome.stop_signal == SIGTERM);
    CHECK(job.outcome.restarts == 0);
    ::close(ends[0]);
    ::close(ends[1]);
}

TEST_CASE("elastic workers that do not stop in time are killed") {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    elastic_run job("ignores the stop", 1, 2);
    job.options.takes_signals = false;
    job.options.stop_fd = ends[0];
    job.options.times.stop_grace = 200ms;
    job.live([&](const spmd::view&) {
        REQUIRE(::write(ends[1], "x", 1) == 1);
        return true;
    });
    INFO(job.story());
    REQUIRE(job.outcome.failure);
    CHECK(job.outcome.failure->code() == errc::timeout);
    CHECK(job.outcome.stop_signal == SIGTERM);
    ::close(ends[0]);
    ::close(ends[1]);
}

TEST_CASE("what is given reaches every rank, and what rank 0 tells the outcome") {
    elastic_run job("tells", 1, 2);
    job.options.given = to_buffer(as_bytes(std::string("42")));
    job.options.most_told = 64;
    job.live([&](const spmd::view&) { return false; });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    REQUIRE(job.outcome.told.contains("answer"));
    CHECK(as_text(job.outcome.told.at("answer")) == "42!");
}

TEST_CASE("a rank in a long collective is waited for as long as the collective may take") {
    job_times times;
    elastic_member_options member;
    CHECK(times.join_deadline >= time_span(time_constants::lan().collective_timeout));
    CHECK(member.exchange_deadline >= time_span(time_constants::lan().collective_timeout));
    times.wait_for_collectives(1h);
    member.wait_for_collectives(1h);
    CHECK(times.join_deadline == time_span(1h));
    CHECK(times.ask_limit == time_span(1h));
    CHECK(member.join_deadline == time_span(1h));
    CHECK(member.exchange_deadline == time_span(1h));
    times.wait_for_collectives(1s); // not less
    CHECK(times.join_deadline == time_span(1h));
}

} // namespace elastic_coordinator_test
