// SPDX-License-Identifier: Apache-2.0
// Real threads and real worker processes; what happens in which order at the door is in
// pending_test.cpp.
#include <tests/apps/app_process.hpp>
#include <tests/apps/apps.hpp>
#include <tests/support/death.hpp>
#include <tests/support/temporary_folder.hpp>

#include <skein/core/sleep.hpp>
#include <skein/program/session.hpp>
#include <skein/rt/placement_group.hpp>
#include <skein/rt/wait_refs.hpp>

#include <csignal>
#include <fstream>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace session_test {

using namespace skein;
using namespace rt_test;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

run_options with_workers(int n) {
    run_options how;
    how.workers = n;
    how.processes.program = "rt_tests";
    return how;
}

/// The code of the error that f throws; nothing if it throws none.
template <class F>
std::optional<errc> code_of(F f) {
    try {
        f();
    } catch (const error& e) {
        return e.code();
    }
    return std::nullopt;
}

TEST_CASE("a plain main calls tasks and actors, and its worker never gets behind the session",
          "[T1][rt][session]") {
    const auto r = run_to_end(app_options("session", {"--workers", "1", "in.txt", "-v"}));
    CHECK(r.code == 0);
    CHECK(r.out == "[in.txt][-v]57 false\n");
    CHECK(r.err == "main\nmain\n"); // the driver's, and the worker's
}

std::vector<int> make_numbers(int n) { return std::vector<int>(std::size_t(n), 3); }
long add_numbers(skein::view<std::vector<int>> of) {
    return std::accumulate((*of).begin(), (*of).end(), long{0});
}
std::string make_text(int n) { return std::string(std::size_t(n), 'x'); }

TEST_CASE("what a session has stored is an argument of many calls, and read where it lies",
          "[T16][rt][session][objects]") {
    std::optional<skein::view<std::vector<int>>> kept;
    {
        session s(with_workers(2));
        const auto numbers = make_numbers(100'000);
        const auto stored = s.put(numbers);
        CHECK(stored.ready());
        const auto before = objects::copied();
        const auto first = s.submit<&add_numbers>(stored), second = s.submit<&add_numbers>(stored);
        CHECK(first.get() + second.get() == 600'000);
        const auto made = s.submit<&make_numbers>(100'000);
        const auto seen = made.view();
        CHECK(seen.object());
        CHECK((*seen).size() == 100'000);
        CHECK(s.submit<&add_numbers>(made).get() == 300'000);
        kept = stored.view();
        CHECK(objects::copied().out == before.out);
        CHECK(made.get() == numbers);
        CHECK(objects::copied().out == before.out + 400'000);
        // Small values are in the memory of the program, and a view keeps them.
        auto small = s.put(std::string("small"));
        const auto text = small.view();
        CHECK(!text.object());
        CHECK(std::move(small).get() == "small");
        CHECK(*text == "small");
        CHECK(s.submit<&make_text>(3).view().object() == nullptr);
    }
    CHECK(std::accumulate((**kept).begin(), (**kept).end(), long{0}) == 300'000);
}

TEST_CASE("a wrong command line is an error of the constructor", "[T1][rt][session]") {
    std::string program = "rt_tests", flag = "--workers=none";
    char* argv[] = {program.data(), flag.data(), nullptr};
    CHECK(code_of([&] { const session s(2, argv); }) == errc::usage);
    run_options how;
    how.address = "::no address::";
    CHECK(code_of([&] { const session s(how); }).has_value());
}

TEST_CASE("many threads share a session, and each gets its own outcomes", "[T2][T3][rt][session]") {
    session cluster(with_workers(2));
    const auto same = cluster.submit<&twice>(500);
    std::vector<std::string> wrong(8);
    {
        std::vector<std::jthread> threads;
        for (int t = 0; t < 8; ++t)
            threads.emplace_back([&, same, t] {
                auto& said = wrong[std::size_t(t)];
                std::vector<pending<int>> mine;
                for (int i = 0; i < 200; ++i) mine.push_back(cluster.submit<&twice>(1000 * t + i));
                if (same.get() != 1000) said = "not the same value";
                auto bad = cluster.submit<&fail_with_text>("thread " + std::to_string(t));
                const auto values = cluster.get(std::move(mine));
                for (int i = 0; i < 200; ++i)
                    if (values[std::size_t(i)] != 2 * (1000 * t + i)) said = "a wrong value";
                try {
                    (void)bad.get();
                    said = "no error";
                } catch (const remote_error& e) {
                    if (e.remote_text() != "thread " + std::to_string(t)) said = e.what();
                }
            });
    }
    for (const auto& said : wrong) CHECK(said.empty());
}

TEST_CASE("calls of each thread through one handle arrive in its order", "[T7][rt][session]") {
    session cluster(with_workers(1));
    const auto j = cluster.actor<journal>();
    constexpr int threads = 4, calls = 500;
    {
        std::vector<std::jthread> all;
        for (int t = 0; t < threads; ++t)
            all.emplace_back([j, t] {
                for (int i = 0; i < calls; ++i) j.call<&journal::note>(t * calls + i);
            });
    }
    const auto seen = j.call<&journal::all>().get();
    REQUIRE(seen.size() == std::size_t(threads * calls));
    std::vector<int> next(threads);
    bool in_order = true;
    for (const int s : seen) in_order &= s % calls == next[std::size_t(s / calls)]++;
    CHECK(in_order);
}

TEST_CASE("waiting has a limit of its own, and a deadline ends the call",
          "[T4][T15][rt][session]") {
    session cluster(with_workers(1));
    auto p = cluster.submit<&later>(7, 3'600'000);
    CHECK_FALSE(p.wait_for(1ms));
    CHECK(code_of([&] { (void)p.get_for(1ms); }) == errc::timeout);
    CHECK_FALSE(p.ready()); // it goes on
    p.cancel();
    CHECK(code_of([&] { (void)p.get(); }) == errc::cancelled);

    std::string name = "a name of its own";
    auto q = remote<&later>.with({.deadline = 20ms, .name = name}).on(cluster)(7, 3'600'000);
    name.assign(name.size(), '?'); // it was copied
    CHECK_THROWS_WITH(q.get(), ContainsSubstring("a name of its own"));
    CHECK(code_of([&] { (void)q.get(); }) == errc::timeout);
    auto over = remote<&twice>.with({.deadline = -1s}).on(cluster)(7);
    CHECK(code_of([&] { (void)over.get(); }) == errc::timeout);
    auto c = cluster.actor<counter>(1);
    auto slow = remote<&counter::add_later>.with({.deadline = 20ms})(c, 1, 3'600'000);
    CHECK(code_of([&] { (void)slow.get(); }) == errc::timeout);
    auto fine = cluster.submit<&twice>(1);
    CHECK(fine.get_for(no_deadline) == 2);
}

TEST_CASE("the death of a worker is told to the thread that waits", "[T3][rt][session]") {
    session cluster(with_workers(1));
    auto c = cluster.actor<counter>(0);
    const auto pid = static_cast<pid_t>(c.call<&counter::pid>().get());
    auto waits = c.call<&counter::add_later>(1, 3'600'000);
    std::jthread killer([&] {
        while (cluster.submit<&where>().get() != pid) {}
        ::kill(pid, SIGKILL);
    });
    CHECK_THROWS_WITH(waits.get(), ContainsSubstring("killed by signal 9 (SIGKILL)"));
    CHECK(code_of([&] { (void)waits.get(); }) == errc::worker_lost);
    CHECK(cluster.submit<&twice>(4).get() == 8); // by the next one
}

TEST_CASE("actors of a session have options, names and arguments as others have",
          "[T8][T9][T15][rt][session]") {
    session cluster(with_workers(2));
    auto start = cluster.submit<&twice>(5);
    auto c = actor<counter>.with({.name = "table"}).on(cluster)(start);
    auto same = cluster.get_actor<counter>("table");
    CHECK(same.id() == c.id());
    CHECK(same.call<&counter::add>(1).get() == 11);
    auto taken = [&] { (void)actor<counter>.with({.name = "table"}).on(cluster)(1); };
    CHECK(code_of(taken) == errc::already_exists);
    CHECK(code_of([&] { (void)cluster.actor<picky>(-1); }) == errc::remote_exception);
    CHECK(cluster.submit<&add_through>(c, 4).get() == 15);

    // The last handle goes on another thread; the name is free again.
    std::jthread([one = std::move(c), other = std::move(same)] {}).join();
    CHECK(code_of([&] { (void)cluster.get_actor<counter>("table"); }) == errc::not_found);
    auto next = cluster.actor<counter>(3);
    kill(next);
    CHECK(code_of([&] { (void)next.call<&counter::get>().get(); }) == errc::not_found);
}

actor_handle<counter> no_counter() { return {}; }

TEST_CASE("options through a session own their texts, too", "[T15][rt][session]") {
    session cluster(with_workers(1));
    const auto named = [&](int n) {
        return remote<&twice>
            .with({.deadline = std::chrono::hours::min(),
                   .name = fmt::format("the call of a long name with the number {}", n)})
            .on(cluster);
    };
    auto f = named(3);
    const auto other = named(4);
    try {
        (void)f(1).get();
        FAIL("it has no time");
    } catch (const error& e) {
        CHECK(e.code() == errc::timeout);
        CHECK_THAT(e.what(), ContainsSubstring("the call of a long name with the number 3"));
    }
    auto made = [&] {
        return actor<counter>
            .with({.name = fmt::format("the counter of a long name with the number {}", 1)})
            .on(cluster);
    }();
    const auto kept = made();
    const auto found = cluster.get_actor<counter>("the counter of a long name with the number 1");
    CHECK(found.id() == kept.id());
    const auto patient = cluster.submit<&twice>(4);
    CHECK(patient.wait_for(std::chrono::years(300)));
    CHECK(patient.get_for(std::chrono::hours::max()) == 8);
}

TEST_CASE("an empty handle is a result like another", "[T9][rt][session]") {
    session cluster(with_workers(1));
    CHECK_FALSE(cluster.submit<&no_counter>().get());
    const auto none = cluster.run([]() -> task<actor_handle<counter>> { co_return no_counter(); });
    CHECK_FALSE(none);
}

TEST_CASE("run brings a coroutine to the driver's loop, and its outcome back",
          "[T10][rt][session]") {
    session cluster(with_workers(2));
    const auto body = [](int n) -> task<int> {
        std::vector<ref<int>> refs;
        for (int i = 0; i < n; ++i) refs.push_back(remote<&twice>(i));
        auto some = wait(refs, refs.size());
        const auto all = co_await some;
        int total = 0;
        for (const auto& r : all.done) total += co_await r;
        placement_group room({"cpu=1"});
        auto ready = room.ready();
        co_await ready;
        auto in_it = remote<&twice>.with({.on = room})(100);
        co_return total + co_await in_it;
    };
    CHECK(cluster.run(body(5)) == 220);
    CHECK(cluster.run([&] { return body(3); }) == 206);
    // What is made at once needs the loop's thread: a callable is called there.
    const auto c = cluster.run([] { return actor<counter>(4); });
    CHECK(c.call<&counter::add>(1).get() == 5);
    const auto throws = []() -> task<void> {
        co_await yield();
        throw std::logic_error("of its own type");
    };
    CHECK_THROWS_AS(cluster.run(throws), std::logic_error);
    const auto calls = []() -> task<int> {
        auto r = remote<&fail_with_text>("there");
        co_return co_await r;
    };
    CHECK_THROWS_AS(cluster.run(calls), remote_error);
}

TEST_CASE("what would wait for the session on its own thread is refused", "[T11][rt][session]") {
    session cluster(with_workers(1));
    const auto body = [](session* s) -> task<int> {
        int refused = 0;
        const auto count = [&](auto what) {
            if (code_of(what) == errc::invalid_argument) ++refused;
        };
        auto p = s->submit<&twice>(1);
        count([&] { (void)p.get(); });
        count([&] { (void)s->actor<counter>(1); });
        count([&] { (void)s->get_actor<counter>("x"); });
        count([&] { s->run([]() -> task<void> { co_return; }); });
        count([&] { s->close(); });
        // Awaiting is fine, and so is what does not wait.
        auto r = remote<&twice>(1);
        (void)co_await r;
        co_return refused;
    };
    CHECK(cluster.run(body(&cluster)) == 5);
}

TEST_CASE("a session that is destroyed on its own thread ends the program", "[T11][rt][session]") {
    const auto text = skein_test::abort_text([] {
        auto owned = std::make_unique<session>(with_workers(1));
        const auto end = [](std::unique_ptr<session>* mine) -> task<void> {
            mine->reset();
            co_return;
        };
        owned->run(end(&owned));
    });
    CHECK_THAT(text, ContainsSubstring("a session is destroyed on its own thread"));
}

TEST_CASE("the end of a session wakes all who wait, and nothing that is left of it harms",
          "[T12][rt][session]") {
    std::optional<session> cluster(std::in_place, with_workers(1));
    auto never = cluster->submit<&later>(1, 3'600'000);
    auto done = cluster->submit<&twice>(4);
    auto handle = cluster->actor<counter>(1);
    done.wait();
    std::optional<errc> waiting, running;
    {
        std::jthread gets([&] { waiting = code_of([&] { (void)never.get(); }); });
        std::jthread runs([&] {
            running =
                code_of([&] { cluster->run([]() -> task<void> { co_await sleep_for(1h); }); });
        });
        // Both are under way, or refused: the outcome is the same.
        cluster->close();
    }
    CHECK(waiting == errc::closed);
    CHECK(running == errc::closed);
    CHECK(code_of([&] { (void)cluster->submit<&twice>(1).get(); }) == errc::closed);
    CHECK(code_of([&] { (void)cluster->actor<counter>(1); }) == errc::closed);
    cluster->close();
    cluster.reset();
    CHECK(done.get() == 8); // it had its outcome
    CHECK(code_of([&] { (void)never.get(); }) == errc::closed);
    never.cancel();
    CHECK(code_of([&] { (void)handle.call<&counter::get>().get(); }) == errc::closed);
    kill(handle);
}

TEST_CASE("sessions follow each other, and live beside each other", "[T1][T8][rt][session]") {
    for (int i = 0; i < 3; ++i) {
        session one(with_workers(1)), other(with_workers(1));
        auto p = one.submit<&twice>(i);
        CHECK(other.submit<&twice>(i).get() == p.get());
        auto mixed = other.submit<&twice>(p);
        CHECK(code_of([&] { (void)mixed.get(); }) == errc::invalid_argument);
    }
}

TEST_CASE("threads that submit while the session closes get a value or closed",
          "[T12][rt][session]") {
    for (int round = 0; round < 5; ++round) {
        session cluster(with_workers(1));
        cluster.submit<&nothing>().get();
        std::vector<int> other(4);
        {
            std::vector<std::jthread> threads;
            for (int t = 0; t < 4; ++t)
                threads.emplace_back([&, t] {
                    const auto c = [&]() -> shared_actor<counter> {
                        try {
                            return cluster.actor<counter>(0);
                        } catch (const error&) {
                            return {};
                        }
                    }();
                    for (bool open = true; open;) {
                        auto p = c ? c.call<&counter::add>(1) : cluster.submit<&twice>(1);
                        const auto code = code_of([&] { (void)p.get(); });
                        open = !code;
                        if (code && *code != errc::closed) ++other[std::size_t(t)];
                    }
                });
            cluster.close();
        }
        for (const int n : other) CHECK(n == 0);
    }
}

TEST_CASE("signals are the program's: a session catches none", "[T13][rt][session]") {
    const auto handlers = [] {
        std::vector<void (*)(int)> all;
        for (const int number : {SIGINT, SIGTERM, SIGCHLD, SIGPIPE}) {
            struct sigaction now{};
            CHECK(::sigaction(number, nullptr, &now) == 0);
            all.push_back(now.sa_handler);
        }
        return all;
    };
    const auto before = handlers();
    {
        session cluster(with_workers(1));
        cluster.submit<&nothing>().get();
        CHECK(handlers() == before);
    }
    waiting_driver d("session waits");
    ::kill(static_cast<pid_t>(d.pid), SIGINT);
    CHECK(d.process.wait_blocking().signal() == SIGINT);
    CHECK(d.until_all_gone() < 1000);
}

TEST_CASE("a rank of a job opens a session: it and its workers have no part in that job",
          "[T14][rt][session]") {
    // As launch() leaves the environment of a rank that srun has started, and as torchrun makes
    // that of one.
    auto slurm = app_options("session", {"--workers", "1"});
    for (const auto& [name, value] : {std::pair{"SLURM_PROCID", "0"},
                                      {"SLURM_STEP_ID", "0"},
                                      {"SLURM_JOB_ID", "7"},
                                      {"SLURM_STEP_NUM_TASKS", "2"},
                                      {"SLURM_LOCALID", "0"},
                                      {"SLURM_STEP_NODELIST", "here"},
                                      {"SKEIN_IN_JOB", "1"}})
        slurm.env.emplace_back(name, value);
    CHECK(run_to_end(slurm).out == "57 false\n");
    auto torchrun = app_options("session", {"--workers", "1"});
    for (const auto& [name, value] : {std::pair{"RANK", "0"},
                                      {"WORLD_SIZE", "2"},
                                      {"LOCAL_RANK", "0"},
                                      {"MASTER_ADDR", "127.0.0.1"},
                                      {"MASTER_PORT", "1"}})
        torchrun.env.emplace_back(name, value);
    CHECK(run_to_end(torchrun).out == "57 false\n");
}

} // namespace session_test
