// SPDX-License-Identifier: Apache-2.0
#include <tests/rt/apps.hpp>
#include <tests/support/temporary_folder.hpp>

#include <skein/core/scope.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/rt/children.hpp>
#include <skein/rt/local_workers.hpp>
#include <skein/rt/process.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/rt/runtime_context.hpp>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace rt_test;
using namespace std::chrono_literals;

namespace {

/// Changing one byte of this makes another build of the same program.
extern const volatile char build_marker[];
const volatile char build_marker[] = "rt_tests build marker: A";

struct pool {
    net::real_loop loop;
    net::real_network network{loop};
    rt::local_children children{loop};
    rt::runtime driver{rt::runtime_options{}};
    rt::local_workers workers;

    explicit pool(rt::local_workers_options how)
        : workers(loop, network, children, driver, std::move(how)) {}

    /// Serves the workers while body runs; afterwards all have gone.
    template <class Body>
    void run(Body body) {
        const rt::runtime::use current(driver);
        loop.run(everything(this, std::move(body)));
        CHECK(workers.pids().empty());
        CHECK(driver.pending() == 0);
    }

private:
    template <class Body>
    static task<void> everything(pool* self, Body body) {
        scope services;
        services.spawn(self->workers.serve());
        self->driver.ask(&self->workers);
        auto work = body(*self);
        auto asked = as_result(std::move(work));
        auto outcome = co_await asked;
        self->workers.stop();
        auto bye = self->driver.close();
        co_await bye;
        services.cancel();
        auto joined = services.join();
        auto ended = as_result(std::move(joined));
        (void)co_await ended;
        if (!outcome) throw outcome.error();
    }
};

rt::local_workers_options options(int count) {
    rt::local_workers_options o;
    o.count = count;
    o.program = "rt_tests";
    return o;
}

/// A copy of this program that differs in its build id (or, without one, in a constant).
std::filesystem::path other_build(const std::filesystem::path& folder) {
    std::stringstream text;
    text << std::ifstream("/proc/self/exe", std::ios::binary).rdbuf();
    auto bytes = text.str();
    const std::string marker("rt_tests build marker: A");
    for (auto at = bytes.find(marker); at != std::string::npos; at = bytes.find(marker, at + 1))
        bytes[at + marker.size() - 1] = 'B';
    std::string note("\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0", 16); // a SHA-1 build id
    if (const auto at = bytes.find(note); at != std::string::npos) bytes[at + 16] ^= 1;
    const auto path = folder / "other-build";
    std::ofstream(path, std::ios::binary) << bytes;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
}

} // namespace

TEST_CASE("workers over TCP do the same as over socket pairs", "[rt][local_workers]") {
    for (const bool over_tcp : {false, true}) {
        auto how = options(2);
        how.over_tcp = over_tcp;
        pool p(how);
        p.run([](pool& self) -> task<void> {
            std::vector<ref<int>> refs;
            for (int i = 0; i < 100; ++i) refs.push_back(remote<&twice>(i));
            for (int i = 0; i < 100; ++i) {
                const auto got = co_await refs[std::size_t(i)];
                CHECK(got == 2 * i);
            }
            auto a = co_await actor<counter>(0);
            auto b = co_await actor<counter>(0);
            const long p1 = co_await a.call<&counter::pid>();
            const long p2 = co_await b.call<&counter::pid>();
            CHECK(p1 != p2);
            CHECK(self.workers.pids().size() == 2);
            CHECK(std::count(self.workers.pids().begin(), self.workers.pids().end(), p1) == 1);
        });
    }
}

TEST_CASE("tasks survive the death of workers at random moments", "[rt][local_workers]") {
    pool p(options(2));
    p.run([](pool& self) -> task<void> {
        seeded_random dice(7);
        for (int round = 0; round < 5; ++round) {
            std::vector<ref<int>> refs;
            for (int i = 0; i < 50; ++i)
                refs.push_back(remote<&later>.with({.cpus = 0, .retries = 10})(i, 20));
            co_await sleep_for(std::chrono::milliseconds(dice.below(20)));
            if (!self.workers.pids().empty())
                ::kill(self.workers.pids()[dice.below(self.workers.pids().size())], SIGKILL);
            for (int i = 0; i < 50; ++i) {
                const auto got = co_await refs[std::size_t(i)];
                CHECK(got == i);
            }
        }
        CHECK(self.driver.stats().workers_lost >= 1);
    });
}

TEST_CASE("a worker that is stopped for good is killed at the end", "[rt][local_workers]") {
    auto how = options(1);
    how.times.shutdown_grace = 1s; // for the goodbye and what comes after it together
    const auto begin = std::chrono::steady_clock::now();
    pool p(how);
    p.run([](pool& self) -> task<void> {
        auto r = remote<&twice>(1);
        (void)co_await r;
        ::kill(self.workers.pids().front(), SIGSTOP);
    });
    CHECK(std::chrono::steady_clock::now() - begin < 3s); // it was 3.3 s
}

TEST_CASE("a worker over TCP is lost when its process ends, too", "[rt][local_workers]") {
    auto how = options(1);
    how.over_tcp = true;
    pool p(how);
    p.run([](pool&) -> task<void> {
        auto r = as_result(remote<&fork_and_exit>.with({.retries = 0})(3));
        auto outcome = co_await std::move(r);
        REQUIRE_FALSE(outcome);
        CHECK(std::string(outcome.error().what()).find("exited with 3") != std::string::npos);
    });
}

TEST_CASE("another build of this program is refused as worker", "[rt][local_workers]") {
    REQUIRE(build_marker[0] == 'r');
    const auto folder =
        std::filesystem::temp_directory_path() / fmt::format("skein-build-{}", ::getpid());
    std::filesystem::create_directory(folder);
    auto how = options(1);
    how.executable = other_build(folder);
    pool p(how);
    p.run([](pool&) -> task<void> {
        auto r = as_result(remote<&twice>(1));
        auto outcome = co_await std::move(r);
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::mismatch);
        const std::string text = outcome.error().what();
        CHECK(text.find("worker-1 did not start") != std::string::npos);
        CHECK(text.find("build") != std::string::npos);
        CHECK(outcome.error().cause().find("SIGTERM") == std::string::npos); // its own words
    });
    std::filesystem::remove_all(folder);
}

TEST_CASE("a worker has a time of its own to load the program, before it is given up",
          "[rt][local_workers]") {
    STATIC_CHECK(time_constants::lan().start_timeout >= 60s); // LibTorch from a cold disk
    const test::temporary_folder folder;
    const auto slow = folder.path + "/slow";
    std::ofstream(slow) << "#!/bin/sh\nexec sleep 1000\n";
    std::filesystem::permissions(slow, std::filesystem::perms::owner_all);
    for (const bool over_tcp : {false, true}) {
        auto how = options(1);
        how.executable = slow;
        how.over_tcp = over_tcp;
        how.times.start_timeout = 100ms;
        const auto begin = std::chrono::steady_clock::now();
        pool p(how);
        p.run([](pool&) -> task<void> {
            auto r = as_result(remote<&twice>(1));
            auto outcome = co_await std::move(r);
            REQUIRE_FALSE(outcome);
            CHECK(std::string(outcome.error().what()).find("did not start") != std::string::npos);
        });
        CHECK(std::chrono::steady_clock::now() - begin < 5s); // three times
    }
}

TEST_CASE("a process that ends before it connects is seen at once", "[rt][local_workers]") {
    auto how = options(1);
    how.executable = "/bin/false";
    how.over_tcp = true;
    const auto begin = std::chrono::steady_clock::now();
    pool p(how);
    p.run([](pool&) -> task<void> {
        auto r = as_result(remote<&twice>(1));
        auto outcome = co_await std::move(r);
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().cause() == "exited with 1");
    });
    CHECK(std::chrono::steady_clock::now() - begin < 5s);
}

TEST_CASE(
    "after a long call its reply leaves before the next call runs, and cancellations are heard",
    "[rt][local_workers]") {
    const test::temporary_folder folder;
    pool p(options(1));
    static std::string go;
    go = folder.path + "/go";
    p.run([](pool&) -> task<void> {
        auto c = co_await actor<counter>(0);
        auto warm = c.call<&counter::get>();
        (void)co_await warm;
        // All in one message: the second ends only when the first one's result has been seen here.
        auto first = c.call<&counter::add_slowly>(1, 20);
        auto second = c.call<&counter::add_after>(1, go, 20);
        auto third = c.call<&counter::add>(100);
        auto fourth = c.call<&counter::add>(1);
        const int one = co_await first;
        CHECK(one == 1);
        third.cancel();
        co_await sleep_for(1ms); // the cancellation leaves
        std::ofstream(go) << "go";
        const int two = co_await second;
        CHECK(two == 2);
        auto asked = as_result(third);
        auto outcome = co_await std::move(asked);
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::cancelled);
        CHECK(outcome.error().text().find("did not run") != std::string::npos);
        const int three = co_await fourth; // in order, after the others
        CHECK(three == 3);
    });
}

TEST_CASE("long calls and short ones of many kinds stay in order", "[rt][local_workers]") {
    pool p(options(1));
    p.run([](pool&) -> task<void> {
        auto j = co_await actor<journal>();
        std::vector<int> expected;
        for (int i = 1; i <= 60; ++i) {
            expected.push_back(i);
            if (i % 20 == 0)
                j.call<&journal::note_slowly>(i, 8);
            else
                j.call<&journal::note>(i);
        }
        auto last = j.call<&journal::all>();
        j = {}; // the actor ends after its calls
        const auto seen = co_await last;
        CHECK(seen == expected);
    });
}

TEST_CASE("a worker knows nothing of how it was started", "[rt][local_workers]") {
    pool p(options(1));
    p.run([](pool&) -> task<void> {
        auto r = remote<&skein_variables>();
        const auto names = co_await r;
        CHECK(names.empty());
    });
}

TEST_CASE("workers that are still loading do not hold up the end", "[rt][local_workers]") {
    const test::temporary_folder folder;
    const auto slow = folder.path + "/slow";
    std::ofstream(slow) << "#!/bin/sh\nexec sleep 1000\n";
    std::filesystem::permissions(slow, std::filesystem::perms::owner_all);
    auto how = options(2);
    how.executable = slow;
    how.times.shutdown_grace = 60s;
    const auto begin = std::chrono::steady_clock::now();
    pool p(how);
    p.run([](pool&) -> task<void> {
        co_await yield(); // they are being started
    });
    CHECK(std::chrono::steady_clock::now() - begin < 30s);
}

TEST_CASE("a numbered worker has a short name, another keeps its own", "[rt][workers]") {
    CHECK(rt::detail::short_worker_name("worker-12") == "w12");
    CHECK(rt::detail::short_worker_name("named-by-somebody-else") == "named-by-somebody-else");
}

TEST_CASE("a task that crashes takes no others with it", "[rt][local_workers]") {
    pool p(options(2));
    p.run([](pool& self) -> task<void> {
        // The pace is learnt, so that many are sent ahead.
        std::vector<ref<int>> refs;
        for (int i = 0; i < 2000; ++i) refs.push_back(remote<&twice>(i));
        for (auto& r : refs) (void)co_await r;
        refs.clear();
        for (int i = 0; i < 500; ++i) refs.push_back(remote<&twice>(i));
        auto crashes = remote<&die>();
        for (int i = 500; i < 1000; ++i) refs.push_back(remote<&twice>(i));
        for (int i = 0; i < 1000; ++i) {
            const auto got = co_await refs[std::size_t(i)];
            CHECK(got == 2 * i);
        }
        auto asked = as_result(crashes);
        const auto outcome = co_await asked;
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::worker_lost);
        CHECK(contains(outcome.error().what(), "4 attempts were made"));
        CHECK(self.driver.stats().workers_lost == 4);
    });
}

TEST_CASE("what waits behind a long task goes to a worker with nothing to do",
          "[rt][local_workers]") {
    const test::temporary_folder folder;
    const std::string go = folder.path + "/go";
    pool p(options(2));
    p.run([go](pool&) -> task<void> {
        std::vector<ref<int>> refs;
        for (int i = 0; i < 2000; ++i) refs.push_back(remote<&twice>(i));
        for (auto& r : refs) (void)co_await r;
        refs.clear();
        auto blocked = remote<&wait_for_file>(go); // until the test says so
        for (int i = 0; i < 1000; ++i) refs.push_back(remote<&twice>(i));
        for (int i = 0; i < 1000; ++i) { // all of them, while it is under way
            const auto got = co_await refs[std::size_t(i)];
            CHECK(got == 2 * i);
        }
        CHECK_FALSE(blocked.ready());
        std::ofstream(go) << "now";
        co_await blocked;
    });
}

TEST_CASE("a plain call that waits behind another is cancelled without waiting",
          "[rt][local_workers]") {
    const test::temporary_folder folder;
    const std::string go = folder.path + "/go";
    pool p(options(1));
    p.run([go](pool&) -> task<void> {
        auto blocked = remote<&wait_for_file>(go);
        auto behind = remote<&twice>.with({.cpus = 0})(1); // sent at once
        auto asked = as_result(behind);
        behind.cancel();
        const auto outcome = co_await asked;
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::cancelled);
        CHECK(contains(outcome.error().what(), "did not run"));
        CHECK_FALSE(blocked.ready());
        std::ofstream(go) << "now";
        co_await blocked;
    });
}

// ---- workers for one demand -------------------------------------------------------------------------

namespace {

struct seen_by_worker {
    long pid = 0;
    std::string gpus, process;
};
seen_by_worker look_around() {
    const char* gpus = std::getenv("CUDA_VISIBLE_DEVICES");
    return {::getpid(), gpus != nullptr ? gpus : "all", runtime_context().process};
}
task<seen_by_worker> look_around_for(int ms) {
    co_await sleep_for(std::chrono::milliseconds(ms));
    co_return look_around();
}
/// Needs all cores, and others that need one.
task<int> all_and_one(int cores, int x) {
    auto inner = remote<&twice>(x);
    const int y = co_await inner;
    co_return y + cores;
}
task<int> asks_for_gpu(int x) {
    auto inner = remote<&look_around>.with({.gpus = 1})();
    const auto seen = co_await inner;
    co_return seen.gpus.size() == 1 ? x : -1;
}

rt::local_workers_options with_resources(int count, const char* offers) {
    auto how = options(count);
    how.offers = rt::parse_resources(offers).value();
    return how;
}

} // namespace

TEST_CASE("a task with a gpu has a worker that sees this gpu alone", "[rt][local_workers]") {
    pool p(with_resources(1, "gpu=2"));
    p.run([](pool&) -> task<void> {
        auto plain = remote<&look_around>();
        const auto without = co_await plain;
        CHECK(without.gpus == "all"); // what nobody asked for is left as it is
        auto a = remote<&look_around_for>.with({.cpus = 0, .gpus = 1})(50);
        auto b = remote<&look_around_for>.with({.cpus = 0, .gpus = 1})(50);
        const auto first = co_await a;
        const auto second = co_await b;
        CHECK(first.pid != second.pid);
        CHECK(first.gpus != second.gpus);
        CHECK((first.gpus == "0" || first.gpus == "1"));
        auto both = remote<&look_around>.with({.gpus = 2})();
        const auto two = co_await both;
        CHECK(two.gpus == "0,1");
        auto half = remote<&look_around>.with({.gpus = 0.5})();
        const auto part = co_await half;
        CHECK(part.gpus.size() == 1);
        auto nested = remote<&asks_for_gpu>(7);
        const int got = co_await nested;
        CHECK(got == 7);
    });
}

TEST_CASE("more cores than a worker has are lent by several, also while it waits for one of them",
          "[rt][local_workers]") {
    pool p(options(2)); // one core each, or more
    p.run([](pool& self) -> task<void> {
        const int all = std::max(2, self.children.resources().cores);
        std::vector<ref<int>> refs;
        for (int i = 0; i < 20; ++i) {
            refs.push_back(remote<&all_and_one>.with({.cpus = all})(all, i));
            refs.push_back(remote<&twice>(i));
        }
        for (int i = 0; i < 20; ++i) {
            const int large = co_await refs[std::size_t(2 * i)];
            const int small = co_await refs[std::size_t(2 * i + 1)];
            CHECK(large == 2 * i + all);
            CHECK(small == 2 * i);
        }
    });
}

TEST_CASE("what a host does not have is refused with what it has", "[rt][local_workers]") {
    pool p(with_resources(1, "ssd=2"));
    p.run([](pool&) -> task<void> {
        auto none = as_result(as_task(remote<&twice>.with({.gpus = 1})(1)));
        const auto no_gpu = co_await none;
        REQUIRE_FALSE(no_gpu);
        INFO(no_gpu.error().what());
        CHECK(std::string_view(no_gpu.error().what()).find("gpu=1") != std::string_view::npos);
        auto much = as_result(as_task(remote<&twice>.with({.resources = "ssd=3"})(1)));
        const auto too_much = co_await much;
        REQUIRE_FALSE(too_much);
        CHECK(std::string_view(too_much.error().what()).find("ssd=3") != std::string_view::npos);
        auto bad = as_result(as_task(remote<&twice>.with({.resources = "ssd"})(1)));
        const auto wrong = co_await bad;
        REQUIRE_FALSE(wrong);
        CHECK(wrong.error().code() == errc::invalid_argument);
        auto elsewhere = as_result(as_task(remote<&twice>.with({.on = node_named("mars")})(1)));
        const auto no_node = co_await elsewhere;
        REQUIRE_FALSE(no_node);
        CHECK(std::string_view(no_node.error().what()).find("node=mars") != std::string_view::npos);
        // Those that can be had are: two at a time, the others after them.
        std::vector<ref<int>> refs;
        for (int i = 0; i < 10; ++i)
            refs.push_back(remote<&later>.with({.cpus = 0, .resources = "ssd=1"})(i, 2));
        for (int i = 0; i < 10; ++i) {
            const int got = co_await refs[std::size_t(i)];
            CHECK(got == i);
        }
        auto here = remote<&twice>.with({.on = node_named("localhost")})(4);
        const int on_this = co_await here;
        CHECK(on_this == 8);
        auto parts = remote<&twice>.with({.cpus = 0.25})(5);
        const int quarter = co_await parts;
        CHECK(quarter == 10);
    });
}

TEST_CASE("a task whose worker for it dies runs again on another one", "[rt][local_workers]") {
    pool p(with_resources(1, "ssd=1"));
    p.run([](pool&) -> task<void> {
        auto doomed = as_result(
            as_task(remote<&die>.with({.resources = "ssd=1", .retries = 1, .name = "doomed"})()));
        const auto outcome = co_await doomed;
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::worker_lost);
        CHECK(std::string_view(outcome.error().what()).find("2 attempts") !=
              std::string_view::npos);
        auto fine = remote<&twice>.with({.resources = "ssd=1"})(3);
        const int got = co_await fine;
        CHECK(got == 6);
    });
}

// ---- environment and output of workers ----------------------------------------------------------------

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

TEST_CASE("a task gets the variables and the folder that it asks for", "[rt][local_workers]") {
    const test::temporary_folder folder;
    const auto path = std::filesystem::canonical(folder.path).string();
    pool p(options(1));
    p.run([&path](
              pool&) -> task<void> { // NOLINT(cppcoreguidelines-avoid-capturing-lambda-coroutines)
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
    how.print = [&lines](std::vector<rt::worker_lines> all) -> task<void> {
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
