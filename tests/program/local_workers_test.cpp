// SPDX-License-Identifier: Apache-2.0
#include <tests/apps/apps.hpp>
#include <tests/apps/local_pool.hpp>
#include <tests/support/temporary_folder.hpp>

#include <skein/core/scope.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/proc/children.hpp>
#include <skein/proc/process.hpp>
#include <skein/program/local_workers.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/rt/runtime_context.hpp>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <catch2/catch_test_macros.hpp>

#include <netinet/in.h>
#include <sys/socket.h>

using namespace skein;
using namespace rt_test;
using namespace std::chrono_literals;

namespace {

/// Changing one byte of this makes another build of the same program.
extern const volatile char build_marker[];
const volatile char build_marker[] = "rt_tests build marker: A";

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

/// Connected to every port at which this process listens.
std::vector<unique_fd> strangers_at_own_ports() {
    std::vector<unique_fd> out;
    for (int fd = 3; fd < 1024; ++fd) {
        int listens = 0;
        socklen_t bytes = sizeof listens;
        if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens == 0)
            continue;
        sockaddr_in at{};
        socklen_t size = sizeof at;
        auto* const raw = reinterpret_cast<sockaddr*>(&at); // NOLINT
        if (::getsockname(fd, raw, &size) != 0 || at.sin_family != AF_INET) continue;
        unique_fd made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (::connect(made.get(), raw, size) == 0) out.push_back(std::move(made));
    }
    return out;
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

TEST_CASE("a worker that is stopped for good is killed at the end", "[P8][rt][local_workers]") {
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
        auto r = as_result(remote<&clone_and_exit>.with({.retries = 0})(3));
        auto outcome = co_await std::move(r);
        REQUIRE_FALSE(outcome);
        CHECK(std::string(outcome.error().what()).find("exited with 3") != std::string::npos);
    });
}

TEST_CASE("who comes first to a worker's port on this host is no worker", "[rt][local_workers]") {
    // A process that loads long, then says where it was to connect: others have the time to come.
    const test::temporary_folder folder;
    const auto slow = folder.path + "/slow";
    const auto self = std::filesystem::read_symlink("/proc/self/exe").string();
    std::ofstream(slow) << "#!/bin/sh\nuntil test -e " << folder.path
                        << "/go; do sleep 0.01; done\nexec " << self << " \"$@\"\n";
    std::filesystem::permissions(slow, std::filesystem::perms::owner_all);
    auto how = options(1);
    how.over_tcp = true;
    how.executable = slow;
    std::vector<unique_fd> strangers;
    pool p(how);
    p.run([&](pool&) -> task<void> {
        auto r = remote<&twice>(4);
        while (strangers.empty()) {
            auto turn = sleep_for(1ms);
            co_await turn;
            strangers = strangers_at_own_ports();
        }
        std::ofstream(folder.path + "/go") << "1";
        const int got = co_await std::move(r);
        CHECK(got == 8);
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

TEST_CASE("a process that ends before it connects is seen at once", "[F9][rt][local_workers]") {
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
    "[W8][rt][local_workers]") {
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

TEST_CASE("a worker knows nothing of how it was started", "[P7][rt][local_workers]") {
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
    CHECK(program::detail::short_worker_name("worker-12") == "w12");
    CHECK(program::detail::short_worker_name("named-by-somebody-else") == "named-by-somebody-else");
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
          "[W1][rt][local_workers]") {
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
          "[C7][rt][local_workers]") {
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

// ---- cancelling by force ------------------------------------------------------------------------

namespace {

/// Says that it has begun, and computes until the test is over, whatever it is asked.
int compute_for_ever(std::string began) {
    std::ofstream(began) << "now";
    wait_for_file(began + ".never");
    return 0;
}
/// The same in a task of its own.
task<int> have_it_computed(std::string began) {
    auto inner = remote<&compute_for_ever>(began);
    co_return co_await std::move(inner);
}
/// And one that computes itself meanwhile; what it calls has another worker.
task<int> compute_beside(std::string began) {
    auto inner = remote<&compute_for_ever>.with({.resources = "disk=1"})(began);
    while (!std::filesystem::exists(began)) co_await sleep_for(1ms);
    wait_for_file(began + ".never");
    co_return co_await std::move(inner);
}
task<void> until_exists(std::string path) {
    while (!std::filesystem::exists(path)) co_await sleep_for(1ms);
}

} // namespace

TEST_CASE("a task that computes is ended by force with its worker, and another one takes its place",
          "[C14][rt][local_workers]") {
    const test::temporary_folder folder;
    const std::string began = folder.path + "/began";
    pool p(options(1));
    p.run([began](pool& self) -> task<void> {
        auto deaf = remote<&compute_for_ever>(began);
        auto begun = until_exists(began);
        co_await begun;
        auto behind = remote<&twice>.with({.retries = 0})(4); // its worker had not begun it
        deaf.cancel();                                        // it does not listen
        deaf.cancel_by_force();
        auto asked = as_result(deaf);
        const auto outcome = co_await asked;
        REQUIRE_FALSE(outcome);
        const std::string text = outcome.error().what();
        INFO(text);
        CHECK(outcome.error().code() == errc::cancelled);
        CHECK(contains(text, "may have run"));
        CHECK(contains(text, "ended by force, to cancel"));
        CHECK(contains(text, "SIGKILL"));
        const int got = co_await behind;
        CHECK(got == 8);
        CHECK(self.driver.stats().workers_lost == 1);
    });
}

TEST_CASE("what a task has called is cancelled by force with it", "[C14][rt][local_workers]") {
    const test::temporary_folder folder;
    const std::string began = folder.path + "/began";
    pool p(options(2));
    p.run([began](pool& self) -> task<void> {
        auto outer = remote<&have_it_computed>(began);
        auto begun = until_exists(began);
        co_await begun;
        outer.cancel_by_force();
        auto asked = as_result(outer);
        const auto outcome = co_await asked;
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::cancelled);
        while (self.driver.stats().workers_lost == 0) co_await sleep_for(1ms);
        CHECK(self.driver.stats().workers_lost == 1); // that of the inner one alone
    });
}

TEST_CASE("what a task has called that hears of nothing ends by force, too",
          "[C14][rt][local_workers]") {
    const test::temporary_folder folder;
    const std::string began = folder.path + "/began";
    pool p(with_resources(1, "disk=1"));
    p.run([began](pool& self) -> task<void> {
        auto outer = remote<&compute_beside>(began);
        auto begun = until_exists(began);
        co_await begun;
        co_await sleep_for(10ms); // it computes now
        outer.cancel_by_force();
        auto asked = as_result(outer);
        const auto outcome = co_await asked;
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::cancelled);
        while (self.driver.stats().workers_lost < 2) co_await sleep_for(1ms);
    });
}

TEST_CASE("a task that ends when it is asked costs no worker, also by force",
          "[C14][rt][local_workers]") {
    pool p(options(1));
    p.run([](pool& self) -> task<void> {
        auto r = remote<&later>(1, 60'000);
        auto started = remote<&twice>(1);
        (void)co_await started;
        r.cancel_by_force();
        auto asked = as_result(r);
        const auto outcome = co_await asked;
        REQUIRE_FALSE(outcome);
        CHECK(outcome.error().code() == errc::cancelled);
        co_await sleep_for(2 * time_constants::lan().force_after);
        CHECK(self.driver.stats().workers_lost == 0);
    });
}

TEST_CASE("force ends no worker that actors live on, and no call of an actor",
          "[C14][rt][local_workers]") {
    const test::temporary_folder folder;
    const std::string began = folder.path + "/began";
    pool p(options(1));
    p.run([began](pool& self) -> task<void> {
        auto c = co_await actor<counter>(1);
        auto r = c.call<&counter::add>(1);
        CHECK_THROWS_AS(r.cancel_by_force(), error);
        (void)co_await r;
        auto deaf = remote<&compute_for_ever>(began);
        auto begun = until_exists(began);
        co_await begun;
        deaf.cancel_by_force();
        co_await sleep_for(2 * time_constants::lan().force_after);
        CHECK_FALSE(deaf.ready());
        CHECK(self.driver.stats().workers_lost == 0);
        std::ofstream(began + ".never") << "now";
        const int got = co_await deaf; // a value that comes is delivered
        CHECK(got == 0);
    });
}

// ---- workers for one demand ---------------------------------------------------------------------

namespace {

struct seen_by_worker {
    long pid = 0;
    std::string gpus, process;
};
seen_by_worker look_around() {
    const char* gpus = std::getenv("CUDA_VISIBLE_DEVICES");
    return {::getpid(), gpus != nullptr ? gpus : "all", runtime_context().process};
}
struct onlooker {
    seen_by_worker look() { return look_around(); }
};
/// Two at once: neither has its worker from the other.
seen_by_worker look_around_beside_another(const std::string& folder) {
    meet_in(folder);
    return look_around();
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

} // namespace

TEST_CASE("a task with a gpu has a worker that sees this gpu alone", "[W4][rt][local_workers]") {
    pool p(with_resources(1, "gpu=2"));
    p.run([](pool&) -> task<void> {
        auto plain = remote<&look_around>();
        const auto without = co_await plain;
        CHECK(without.gpus.empty()); // who asks for none sees none
        const test::temporary_folder folder;
        auto a = remote<&look_around_beside_another>.with({.cpus = 0, .gpus = 1})(folder.path);
        auto b = remote<&look_around_beside_another>.with({.cpus = 0, .gpus = 1})(folder.path);
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
          "[W4][rt][local_workers]") {
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

TEST_CASE("what a host does not have is refused with what it has",
          "[W4][W5][W6][rt][local_workers]") {
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
        INFO(no_node.error().what());
        CHECK(std::string_view(no_node.error().what())
                  .find("asks for cpu=1 on mars: no host of that name is there") !=
              std::string_view::npos);
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

TEST_CASE("an actor has a process of its own that sees its gpu alone and ends with it",
          "[O12][M1][rt][local_workers]") {
    pool p(with_resources(2, "gpu=1"));
    p.run([](pool& self) -> task<void> {
        auto a = co_await actor<onlooker>.with({.gpus = 1})();
        auto looked = a.call<&onlooker::look>();
        const auto first = co_await looked;
        CHECK(first.gpus == "0");
        // The gpu is the actor's for life: who wants it, too, waits for its end.
        auto wants = remote<&look_around>.with({.gpus = 1})();
        auto plain = remote<&look_around>();
        const auto beside = co_await plain;
        CHECK(beside.pid != first.pid);
        CHECK_FALSE(wants.ready());
        auto again = a.call<&onlooker::look>();
        const auto still = co_await again;
        CHECK(still.pid == first.pid);
        a = {};
        const auto second = co_await wants;
        CHECK(second.gpus == "0");
        CHECK(second.pid != first.pid);
        CHECK(std::count(self.workers.pids().begin(), self.workers.pids().end(), first.pid) == 0);
    });
}

TEST_CASE("an actor that holds something is made again where that is", "[O12][rt][local_workers]") {
    pool p(with_resources(1, "ssd=1"));
    p.run([](pool&) -> task<void> {
        auto a = co_await actor<counter>.with({.resources = "ssd=1", .restarts = 2})(5);
        auto where = a.call<&counter::pid>();
        const long first = co_await where;
        auto died = as_result(as_task(a.call<&counter::die>()));
        const auto lost = co_await died;
        CHECK_FALSE(lost);
        auto there = a.call<&counter::pid>();
        const long second = co_await there;
        CHECK(first != second);
        auto value = a.call<&counter::get>();
        const int n = co_await value;
        CHECK(n == 5);
        kill(a);
        auto b = co_await actor<counter>.with({.resources = "ssd=1"})(7);
        auto other = b.call<&counter::get>();
        const int m = co_await other;
        CHECK(m == 7);
    });
}

TEST_CASE("what an actor asks for and cannot have, or nobody waits for, holds nothing up",
          "[O12][rt][local_workers]") {
    pool p(with_resources(1, "ssd=1"));
    p.run([](pool& self) -> task<void> {
        auto none = as_result(actor<counter>.with({.gpus = 1, .name = "none"})(1));
        const auto no_gpu = co_await none;
        REQUIRE_FALSE(no_gpu);
        INFO(no_gpu.error().what());
        CHECK(std::string_view(no_gpu.error().what()).find("gpu=1") != std::string_view::npos);
        auto named = co_await actor<counter>.with({.name = "none"})(2); // the name is free again
        auto throws = as_result(actor<picky>.with({.resources = "ssd=1"})(-1));
        const auto thrown = co_await throws;
        REQUIRE_FALSE(thrown);
        CHECK(thrown.error().code() == errc::remote_exception);
        auto holds = co_await actor<picky>.with({.resources = "ssd=1"})(3);
        auto waits = as_result(with_timeout(actor<picky>.with({.resources = "ssd=1"})(4),
                                            std::chrono::milliseconds(1)));
        const auto waited = co_await waits;
        REQUIRE_FALSE(waited);
        CHECK(self.driver.pending() == 0); // it is not made later, for nobody
        auto placed = co_await actor<counter>.with({.on = node_named("localhost")})(6);
        auto alone = placed.call<&counter::pid>();
        const long own = co_await alone;
        auto shared = named.call<&counter::pid>();
        const long common = co_await shared;
        CHECK(own != common);
    });
}
