// SPDX-License-Identifier: Apache-2.0
// launch() in this process; with workers of its own it is tested by whole programs in
// tests/programs.
#include <skein/core/error.hpp>
#include <skein/dist/comm_thread.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/train/launch.hpp>

#include <catch2/catch_test_macros.hpp>

#include <fmt/core.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace skein;
using namespace skein::train;

namespace {

run_config quiet_config() {
    run_config c;
    c.output = output_mode::quiet;
    return c;
}

/// Runs two ranks of one world as threads.
std::vector<int> run_two(const run_config& config, const rank_function& body) {
    static std::atomic<int> number{0};
    ::setenv("SKEIN_GROUP",
             fmt::format("unix-abstract:@skein-launch-{}-{}", ::getpid(), number++).c_str(), 1);
    std::vector<int> codes(2, -1);
    std::vector<std::thread> ranks;
    ::setenv("SKEIN_TOKEN", std::string(64, '5').c_str(), 1);
    for (int r = 0; r < 2; ++r) {
        ranks.emplace_back([&, r] {
            spmd::launch_environment where;
            where.source = "torch";
            where.rank = where.local_rank = r;
            where.world_size = where.local_size = 2;
            where.job_id = "job";
            codes[static_cast<std::size_t>(r)] = run_as_rank(where, config, body);
        });
    }
    for (auto& r : ranks) r.join();
    ::unsetenv("SKEIN_GROUP");
    ::unsetenv("SKEIN_TOKEN");
    return codes;
}

} // namespace

TEST_CASE("one worker runs in this process") {
    int rank = -1, size = -1;
    const auto pid = ::getpid();
    CHECK(launch(quiet_config(), [&](context& ctx) {
              rank = ctx.rank();
              size = ctx.world_size();
              CHECK(::getpid() == pid);
          }) == 0);
    CHECK(rank == 0);
    CHECK(size == 1);
}

TEST_CASE("several workers in a task are refused with what to do, and one runs there") {
    const auto inside = [](int workers) -> task<int> {
        auto config = quiet_config();
        config.scaling.workers = workers;
        co_return launch(config, [](context&) {});
    };
    net::real_loop loop;
    try {
        (void)loop.run(inside(2));
        FAIL("it was started");
    } catch (const error& e) {
        CHECK(e.code() == errc::not_supported);
        CHECK(std::string(e.what()).find("launch() with 2 workers") != std::string::npos);
        CHECK(std::string(e.hint()).find("context::single()") != std::string::npos);
    }
    CHECK(loop.run(inside(1)) == 0);
}

TEST_CASE("a usage error exits with 2 and any other with 1") {
    CHECK(launch(quiet_config(), [](context&) { throw error(errc::usage, "no"); }) == 2);
    CHECK(launch(quiet_config(), [](context&) { throw error(errc::io, "no"); }) == 1);
    CHECK(launch(quiet_config(), [](context&) { throw std::runtime_error("no"); }) == 1);
}

TEST_CASE("a configuration that makes no sense never reaches the training") {
    auto config = quiet_config();
    config.scaling.workers = 0;
    CHECK(launch(config, [](context&) { FAIL("called"); }) == 2);
    config.scaling.workers = 2;
    config.communicator = "carrier pigeon";
    CHECK(launch(config, [](context&) { FAIL("called"); }) == 2);
    config.scaling.workers = 1; // nobody to talk to, but a mistake all the same
    CHECK(launch(config, [](context&) { FAIL("called"); }) == 2);
}

TEST_CASE("SIGTERM asks the training to stop and gives 143") {
    CHECK(launch(quiet_config(), [](context& ctx) {
              CHECK_FALSE(ctx.stop_requested());
              ::raise(SIGTERM);
              CHECK(ctx.stop_requested());
              CHECK(ctx.stop_signal() == SIGTERM);
          }) == 143);
    // The handlers of before are back, and the next launch starts fresh.
    CHECK(launch(quiet_config(), [](context& ctx) { CHECK_FALSE(ctx.stop_requested()); }) == 0);
}

TEST_CASE("two ranks get a communicator that works") {
    std::atomic<int> sum{0};
    const auto codes = run_two(quiet_config(), [&](context& ctx) {
        float value = static_cast<float>(ctx.rank() + 1);
        dist::buffer_view view{&value, 1, dist::dtype::f32};
        ctx.comm()->all_reduce(view, dist::reduce_op::sum).wait();
        sum += static_cast<int>(value);
    });
    CHECK(codes == std::vector<int>{0, 0});
    CHECK(sum == 6);
}

TEST_CASE("ranks with another seed do not train: both end with an error") {
    static std::atomic<int> number{0};
    std::atomic<int> trained{0};
    ::setenv("SKEIN_GROUP",
             fmt::format("unix-abstract:@skein-launch-seed-{}-{}", ::getpid(), number++).c_str(),
             1);
    ::setenv("SKEIN_TOKEN", std::string(64, '5').c_str(), 1);
    std::vector<int> codes(2, -1);
    std::vector<std::thread> ranks;
    for (int r = 0; r < 2; ++r) {
        ranks.emplace_back([&, r] {
            spmd::launch_environment where;
            where.source = "torch";
            where.rank = where.local_rank = r;
            where.world_size = where.local_size = 2;
            auto config = quiet_config();
            config.seed = static_cast<std::uint64_t>(r) + 1;
            codes[static_cast<std::size_t>(r)] =
                run_as_rank(where, config, [&](context&) { ++trained; });
        });
    }
    for (auto& r : ranks) r.join();
    ::unsetenv("SKEIN_GROUP");
    ::unsetenv("SKEIN_TOKEN");
    CHECK(codes == std::vector<int>{1, 1});
    CHECK(trained == 0);
}

TEST_CASE("SIGTERM ends a rank that waits for its world, with 143") {
    ::setenv("SKEIN_GROUP", fmt::format("unix-abstract:@skein-launch-stop-{}", ::getpid()).c_str(),
             1);
    ::setenv("SKEIN_TOKEN", std::string(64, '5').c_str(), 1);
    struct sigaction before{}, now{};
    ::sigaction(SIGTERM, nullptr, &before);
    int code = -1;
    bool called = false;
    std::thread waits([&] {
        spmd::launch_environment where;
        where.source = "torch";
        where.world_size = where.local_size = 2; // the other one never comes
        code = run_as_rank(where, quiet_config(), [&](context&) { called = true; });
    });
    do {
        std::this_thread::yield();
        ::sigaction(SIGTERM, nullptr, &now);
    } while (now.sa_handler == before.sa_handler);
    ::kill(::getpid(), SIGTERM);
    waits.join();
    ::unsetenv("SKEIN_GROUP");
    ::unsetenv("SKEIN_TOKEN");
    CHECK(code == 143);
    CHECK_FALSE(called);
}

namespace {

/// A world of one rank, as torchrun starts it; in a process of its own, because launch() takes what
/// says so out of the environment for good. What it prints goes to `said`.
[[noreturn]] void live_as_torch_rank(std::FILE* said) {
    for (const auto& [name, value] :
         std::vector<std::pair<const char*, const char*>>{{"RANK", "0"},
                                                          {"WORLD_SIZE", "1"},
                                                          {"LOCAL_RANK", "0"},
                                                          {"LOCAL_WORLD_SIZE", "1"},
                                                          {"MASTER_ADDR", "localhost"},
                                                          {"MASTER_PORT", "29999"}})
        ::setenv(name, value, 1);
    ::setenv("SKEIN_GROUP", fmt::format("unix-abstract:@skein-launch-n-{}", ::getpid()).c_str(), 1);
    ::setenv("SKEIN_TOKEN", std::string(64, '5').c_str(), 1);
    ::dup2(::fileno(said), STDERR_FILENO);
    auto config = quiet_config();
    config.output = output_mode::plain;
    config.scaling.workers = 3;
    const int code = launch(config, [](context&) {});
    ::_exit(std::getenv("SKEIN_TOKEN") == nullptr ? code : 77);
}

} // namespace

TEST_CASE("a number of workers that a launcher overrules is said not to be used") {
    std::FILE* const said = std::tmpfile();
    REQUIRE(said != nullptr);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) live_as_torch_rank(said);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WEXITSTATUS(status) == 0);
    char text[512] = "";
    std::rewind(said);
    (void)!std::fread(text, 1, sizeof text - 1, said);
    std::fclose(said);
    CHECK(std::string(text).find("3 workers were asked for, but torch has started a world of 1") !=
          std::string::npos);
}

TEST_CASE("a rank is named after its program and its number") {
    std::vector<std::string> names(2);
    const auto codes = run_two(quiet_config(), [&](context& ctx) {
        char name[16] = "";
        ::prctl(PR_GET_NAME, name);
        names[static_cast<std::size_t>(ctx.rank())] = name;
    });
    CHECK(codes == std::vector<int>{0, 0});
    CHECK(names == std::vector<std::string>{"skein_tra:rank0", "skein_tra:rank1"});
}

TEST_CASE("the failure of one rank ends the other, which waits in a collective") {
    const auto codes = run_two(quiet_config(), [](context& ctx) {
        if (ctx.rank() == 1) throw error(errc::not_finite, "loss is nan");
        float value = 1;
        dist::buffer_view view{&value, 1, dist::dtype::f32};
        ctx.comm()->all_reduce(view, dist::reduce_op::sum).wait();
    });
    CHECK(codes == std::vector<int>{1, 1});
}
