// SPDX-License-Identifier: Apache-2.0
// Reports of a loop without a Trainer.

#include <skein/core/error.hpp>
#include <skein/dist/bootstrap.hpp>
#include <skein/sim/local_rendezvous.hpp>
#include <skein/train/context.hpp>
#include <skein/train/reports.hpp>

#include <tests/support/temporary_folder.hpp>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace skein::train;
using report::mean;
using report::sum;

namespace {

/// Runs the body on threads that form a world; their errors.
std::vector<std::optional<error>> on_ranks(int n, const std::function<void(context&)>& body,
                                           time_span deadline = std::chrono::seconds(30)) {
    if (n == 1) {
        auto alone = context::single();
        body(alone);
        return {std::nullopt};
    }
    sim::local_world world(std::vector<std::string>(static_cast<std::size_t>(n), "here"));
    std::vector<std::optional<error>> errors(static_cast<std::size_t>(n));
    std::vector<std::thread> threads;
    for (int r = 0; r < n; ++r)
        threads.emplace_back([&, r] {
            try {
                dist::comm_options options;
                options.model = "shm";
                options.limits.deadline = deadline;
                auto comm = dist::make_comm_thread(world.at(r), options);
                context ctx({.rank = r,
                             .world_size = n,
                             .local_rank = r,
                             .local_size = n,
                             .host = "here",
                             .job_id = {},
                             .launcher = {}},
                            &world.at(r), comm.get());
                ctx.use_options(options);
                body(ctx);
            } catch (...) {
                errors[static_cast<std::size_t>(r)] = to_error(std::current_exception());
            }
        });
    for (auto& t : threads) t.join();
    return errors;
}
run_config quiet(const std::string& folder) {
    run_config run;
    run.runs_dir = folder;
    run.output = output_mode::quiet;
    run.checkpoint.enabled = false;
    return run;
}
} // namespace

TEST_CASE("reports: numbers of all ranks are merged by their kinds and written once") {
    for (int world : {1, 2, 3}) {
        test::temporary_folder folder;
        std::vector<double> losses(static_cast<std::size_t>(world));
        const auto errors = on_ranks(world, [&](context& ctx) {
            reports log(ctx, quiet(folder.path));
            const double r = ctx.rank();
            log.report({{"loss", r},
                        {"seen", sum(2)},
                        {"weighted", mean(r, r)},
                        {"most", report::max(r)},
                        {"least", report::min(r)},
                        {"first", report::last(r)}});
            const auto now = log.report({{"loss", 10.0}, {"seen", sum(r)}});
            losses[static_cast<std::size_t>(ctx.rank())] = now.at("loss");
            if (log.made() != 2) throw error(errc::unknown, "two reports");
        });
        for (const auto& e : errors) CHECK(!e);
        for (const double l : losses) CHECK(l == 10.0);
        const auto rows = folder.text("run/metrics.csv");
        const std::string wanted[] = {"", "1,0,2,nan,0,0,0\n2,10,0,,,,\n",
                                      "1,0.5,4,1,1,0,0\n2,10,1,,,,\n",
                                      "1,1,6,1.6666666666666667,2,0,0\n2,10,3,,,,\n"};
        CHECK(rows == "step,loss,seen,weighted,most,least,first\n" + wanted[world]);
        CHECK(!folder.text("run/result.json").empty());
    }
}

TEST_CASE("reports: a loop that goes on drops the rows behind its place") {
    test::temporary_folder folder;
    auto run = quiet(folder.path);
    on_ranks(1, [&](context& ctx) {
        reports log(ctx, run);
        for (int i = 0; i < 4; ++i) log.report({{"i", double(i)}});
    });
    run.resume = resume_mode::latest;
    run.checkpoint.enabled = true;
    on_ranks(1, [&](context& ctx) {
        reports log(ctx, run, 2);
        log.report({{"i", 7.0}});
    });
    CHECK(folder.text("run/metrics.csv") == "step,i\n1,0\n2,1\n3,7\n");
}

TEST_CASE("reports: what ranks do differently is told on all of them") {
    test::temporary_folder folder;
    const auto kinds = on_ranks(2, [&](context& ctx) {
        reports log(ctx, quiet(folder.path));
        if (ctx.is_first())
            log.report({{"seen", sum(1)}});
        else
            log.report({{"seen", 1.0}});
    });
    for (const auto& e : kinds) {
        REQUIRE(e);
        CHECK(e->code() == errc::mismatch);
        CHECK(e->text().find("seen") != std::string::npos);
    }
    // One rank does not come: it is named.
    std::atomic<bool> given_up{false};
    const auto late = on_ranks(
        2,
        [&](context& ctx) {
            reports log(ctx, quiet(folder.path));
            if (!ctx.is_first()) return given_up.wait(false);
            try {
                log.report({{"loss", 1.0}});
            } catch (...) {
                given_up = true;
                given_up.notify_all();
                throw;
            }
            given_up = true;
            given_up.notify_all();
        },
        std::chrono::milliseconds(200));
    REQUIRE(late[0]);
    CHECK(std::string(late[0]->what()).find("rank 1") != std::string::npos);
}

TEST_CASE("reports: names") {
    test::temporary_folder folder;
    on_ranks(1, [&](context& ctx) {
        reports log(ctx, quiet(folder.path));
        CHECK_THROWS_AS(log.report({{"a", 1.0}, {"a", 2.0}}), error);
        for (const char* name : {"step", "event", "step_seconds", "data_s"}) // columns of every row
            CHECK_THROWS_AS(log.report({{name, 1.0}}), error);
        const auto now = log.report({{"a", 1.0}});
        CHECK_THROWS_AS(now.at("b"), error);
        CHECK(now.values().size() == 1);
    });
}
