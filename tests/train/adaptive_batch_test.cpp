// SPDX-License-Identifier: Apache-2.0
#include <skein/train/adaptive_batch.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/temporary_folder.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace sk = skein;
using namespace skein::train;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinRel;
using sk::adaptive_batch;
using sk::adaptive_batch_options;

namespace adaptive_batch_test {

namespace {

/// A training whose gradients and times are planted: what rank 0 of it sees.
struct planted {
    double sqr = 1.0, trace = 0.0; ///< of the true gradient; of the covariance of one sample's
    double fixed = 0.010, each = 0.0,
           sync = 0.0; ///< seconds of a micro-batch, a sample, an exchange
    std::int64_t first = 64;
    int ranks = 2;
    std::uint64_t samples = 60'000;
    double now = 0.0;
    std::uint64_t step = 0;
    step_plan plan{.global_batch = 64};
    step_plan asked = plan;
    std::vector<std::string> why{};

    [[nodiscard]] adaptive_batch_options with(adaptive_batch_options o) {
        o.clock = [this] { return now; };
        return o;
    }
    void start(adaptive_batch& rule, const std::string& optimizer = "sgd") {
        rule.on_start({.world_size = ranks, .optimizer = optimizer, .samples = samples});
        enter(rule);
    }
    void enter(adaptive_batch& rule, int shards = 0) {
        const auto made = rule.on_world({.world_size = ranks,
                                         .step = step,
                                         .first_batch = static_cast<std::uint64_t>(first),
                                         .samples = samples,
                                         .shards = shards,
                                         .plan = &asked});
        plan = made.plan.value_or(asked);
    }
    /// As many steps; `slow` times as long.
    void run(adaptive_batch& rule, int steps, double slow = 1.0) {
        for (int i = 0; i < steps; ++i) {
            step += 1;
            const auto micros = static_cast<double>(plan.micro_batches);
            const double batch = static_cast<double>(plan.global_batch);
            const double micro = std::ceil(batch / (ranks * micros));
            const double compute = (fixed + each * micro) * slow;
            const int count = ranks * static_cast<int>(micros);
            const std::vector<sk::goodput::gradient_squares> squares{
                {.count = count,
                 .local = sqr + count * trace / batch,
                 .total = sqr + trace / batch}};
            const auto word = rule.word();
            step_info info{.step = step,
                           .batch = static_cast<std::uint64_t>(plan.global_batch),
                           .micro_batches = plan.micro_batches,
                           .plan = &plan};
            info.word = word;
            info.squares = count > 1 ? &squares : nullptr;
            info.timing.forward = compute * micros;
            info.timing.early = compute * (micros - 1);
            info.timing.exposed = sync;
            info.own = info.timing;
            now += compute * micros + sync;
            const auto made = rule.on_step(info);
            if (!made.plan) continue;
            why.push_back(made.why);
            plan = asked = *made.plan;
        }
    }
};

} // namespace

TEST_CASE("adaptive batch: a step with a fixed cost has its batch grow as far as the noise asks",
          "[adaptive]") {
    planted world{.trace = 2000.0, .fixed = 0.100, .each = 1e-5};
    adaptive_batch rule(world.with({.max = 4096}));
    world.start(rule);
    world.run(rule, 2000);
    // noise scale: 2000 samples; the goodput (B / t)(phi + b0) / (phi + B) is nearly flat behind it
    CHECK(world.plan.global_batch > 1000);
    CHECK(world.plan.global_batch <= 4096);
    CHECK_THAT(rule.noise().noise_scale() * 64, WithinRel(2000.0, 1e-6));
    REQUIRE_FALSE(world.why.empty());
    CHECK_THAT(world.why[0], ContainsSubstring("noise scale 2000 samples; a step of "));
    CHECK(world.why.size() < 12); // it does not flap
    const auto settled = world.plan;
    world.run(rule, 2000);
    CHECK(world.plan == settled);
}

TEST_CASE(
    "adaptive batch: where a sample costs the same in every batch, the first batch stays or comes "
    "back",
    "[adaptive]") {
    planted world{.trace = 200.0, .fixed = 1e-5, .each = 1e-3};
    adaptive_batch rule(world.with({.max = 4096}));
    world.start(rule);
    world.run(rule, 6000);
    CHECK(world.plan.global_batch <= 80);
}

TEST_CASE("adaptive batch: bounds hold on every rank and for the step", "[adaptive]") {
    planted world{.trace = 1e6, .fixed = 0.100, .each = 1e-6};
    adaptive_batch rule(world.with({.max = 1000, .hi = 100}));
    world.start(rule);
    world.run(rule, 2000);
    CHECK(world.plan == step_plan{.global_batch = 200});

    planted parts{.trace = 1e6, .fixed = 0.001, .each = 1e-6, .sync = 0.2};
    adaptive_batch more(parts.with({.max = 1001, .hi = 100, .accumulation = true}));
    parts.start(more);
    parts.run(more, 3000);
    CHECK(parts.plan.global_batch > 600);
    CHECK(parts.plan.global_batch <= 1001); // 2 ranks of 6 micro-batches would be 1008
    CHECK((parts.plan.global_batch + 2 * parts.plan.micro_batches - 1) /
              (2 * parts.plan.micro_batches) <=
          100);
}

TEST_CASE(
    "adaptive batch: one worker keeps its batch without accumulation, and has two parts with it",
    "[adaptive]") {
    planted alone{.trace = 1e5, .fixed = 0.100, .each = 1e-6, .ranks = 1};
    adaptive_batch rule(alone.with({.max = 1000}));
    alone.start(rule);
    alone.run(rule, 500);
    CHECK(alone.plan == step_plan{.global_batch = 64});

    planted parts{.trace = 1e5, .fixed = 0.100, .each = 1e-6, .ranks = 1};
    parts.plan.micro_batches = 2;
    parts.asked = parts.plan;
    adaptive_batch more(parts.with({.max = 1000, .accumulation = true}));
    parts.start(more);
    CHECK(parts.plan == step_plan{.global_batch = 64}); // the first batch is one part
    parts.plan.micro_batches = 2;
    parts.run(more, 500);
    CHECK(parts.plan.global_batch > 500);
    CHECK(parts.plan.micro_batches == 2);
}

TEST_CASE("adaptive batch: nothing grows before there are 20 steps with statistics", "[adaptive]") {
    planted world{.trace = 1e5, .fixed = 0.100, .each = 1e-6};
    adaptive_batch rule(world.with({.max = 1000, .every_seconds = 0, .every_steps = 0}));
    world.start(rule);
    world.run(rule, 19);
    CHECK(world.plan.global_batch == 64);
    world.run(rule, 10);
    CHECK(world.plan.global_batch > 64);
}

TEST_CASE("adaptive batch: in another world the batch stays where ranks can hold it",
          "[adaptive]") {
    planted world{.trace = 1e6, .fixed = 0.100, .each = 1e-6, .ranks = 4};
    adaptive_batch rule(world.with({.max = 1000, .hi = 100}));
    world.start(rule);
    world.run(rule, 2000);
    CHECK(world.plan.global_batch == 400);
    world.ranks = 1;
    world.enter(rule);
    CHECK(world.plan == step_plan{.global_batch = 100}); // cut, not refused
    world.run(rule, 20);
    world.ranks = 4;
    world.enter(rule);
    CHECK(world.plan == step_plan{.global_batch = 400}); // what was asked for comes back

    adaptive_batch least(world.with({.max = 1000, .lo = 50}));
    world.asked = {.global_batch = 64};
    world.enter(least);
    CHECK(world.plan.global_batch == 200);
}

TEST_CASE("adaptive batch: a word that nobody has heard is not followed in the next world",
          "[adaptive]") {
    planted world{.trace = 1e6, .fixed = 0.100, .each = 1e-6, .ranks = 4};
    adaptive_batch rule(world.with({.max = 1000, .hi = 200}));
    world.start(rule);
    while (rule.word()[0] < 1) world.run(rule, 1);
    CHECK(rule.word()[1] > 200);
    world.ranks = 1;
    world.enter(rule);
    world.run(rule, 1);
    CHECK(world.plan == step_plan{.global_batch = 64});
}

TEST_CASE("adaptive batch: times of a machine that slept are left out, those of a slower one count",
          "[adaptive]") {
    planted world{.trace = 100.0, .fixed = 0.010, .each = 1e-5};
    adaptive_batch rule(world.with({.max = 1000, .every_seconds = 1e9}));
    world.start(rule);
    world.run(rule, 50);
    const auto shape = sk::goodput::step_shape{.ranks = 2, .micro_batch = 32};
    const double mean = rule.times().last_seconds(shape);
    world.run(rule, 1, 1e6); // a night
    CHECK(rule.times().last_seconds(shape) == mean);
    world.run(rule, 20, 100.0); // for good
    CHECK_THAT(rule.times().last_seconds(shape), WithinRel(100 * mean, 1e-9));
}

TEST_CASE("adaptive batch: the rate goes with the batch as the rule says", "[adaptive]") {
    const auto factor = [](sk::goodput::rate_rule how, std::uint64_t batch) {
        planted world{.trace = 64.0};
        adaptive_batch rule(world.with({.max = 4096, .rate = how}));
        world.start(rule, how == sk::goodput::rate_rule::adamscale ? "adamw" : "sgd");
        world.run(rule, 10);
        return rule.rate({.step = 11, .batch = batch, .first_batch = 64});
    };
    using enum sk::goodput::rate_rule;
    CHECK(factor(same, 256) == 1.0);
    CHECK_THAT(factor(linear, 256), WithinRel(4.0, 1e-12));
    CHECK_THAT(factor(adascale, 256), WithinRel(2.0 / 1.25, 1e-6)); // var == sqr
    CHECK_THAT(factor(adamscale, 256), WithinRel(std::sqrt(2.0 / 1.25), 1e-6));
    CHECK(factor(linear, 32) == 1.0); // cut short by the end of an epoch
}

TEST_CASE("adaptive batch: what makes no sense is refused with what does", "[adaptive]") {
    const auto refused = [](adaptive_batch_options o, const char* what) {
        auto why = sk::test::error_of([&] { adaptive_batch rule(o); });
        CHECK(why.code() == sk::errc::usage);
        CHECK_THAT(std::string(why.what()), ContainsSubstring(what));
    };
    refused({}, "a max of 0");
    refused({.max = 64, .lo = 0}, "a lo of 0");
    refused({.max = 64, .lo = 9, .hi = 8}, "9 to 8 samples of a rank at once");
    refused({.max = 64, .lo = 65}, "a lo of 65 samples with a max of 64");
    refused({.max = 64, .hysteresis = 0.5}, "a hysteresis of 0.5");
    refused({.max = 64, .every_seconds = std::numeric_limits<double>::quiet_NaN()}, "nan seconds");
    refused({.max = 64, .smoothing = 1.0}, "a smoothing of 1");
    refused({.max = 64, .warm_up = -1}, "a warm-up of -1 steps");

    planted world;
    const auto starts = [&](adaptive_batch_options o, const std::string& optimizer) {
        adaptive_batch rule(o);
        world.start(rule, optimizer);
    };
    const auto says = [&](adaptive_batch_options o, const std::string& optimizer,
                          const char* what) {
        CHECK_THAT(std::string(sk::test::error_of([&] { starts(o, optimizer); }).what()),
                   ContainsSubstring(what));
    };
    says({.max = 128}, "adamw", "adascale does not suit the optimizer adamw");
    says({.max = 128, .rate = sk::goodput::rate_rule::adamscale}, "sgd",
         "adamscale does not suit the optimizer sgd");
    says({.max = 60'001}, "sgd", "a max of 60001 samples, the data set has 60000");
    says({.max = 63}, "sgd", "a max of 63 samples, the run begins with 64");
    CHECK_NOTHROW(starts({.max = 64, .hi = 16, .accumulation = true}, "lion")); // nobody knows
    world.asked.micro_batches = 4;
    says({.max = 128}, "sgd", "4 micro-batches of each rank, without accumulation");
    world.asked.micro_batches = 1;
    world.samples = 0;
    says({.max = 128}, "sgd", "not supported: adaptive_batch with a stream");
    world.samples = 60'000;
    CHECK_NOTHROW(starts({.max = 64, .lo = 32, .hi = 32}, "sgd")); // lo = hi: the batch stays
}

TEST_CASE("adaptive batch: a state that is restored decides as the one that went on",
          "[adaptive]") {
    planted one{.trace = 3000.0, .fixed = 0.050, .each = 1e-5};
    adaptive_batch whole(one.with({.max = 4096}));
    one.start(whole);
    one.run(whole, 120);
    planted two = one;
    adaptive_batch parted(two.with({.max = 4096}));
    parted.restore(whole.state());
    CHECK(parted.state() == whole.state());
    two.start(parted);
    one.enter(whole); // counts its steps from here, too
    one.run(whole, 2000);
    two.run(parted, 2000);
    CHECK(one.plan == two.plan);
    CHECK(one.why == two.why);
    CHECK(parted.state() == whole.state());

    for (const std::string bad : {"", "1", "2 0 1 0x0p+0 0 0 0x0p+0 0x0p+0 0", "1 0 0 0x1p+0 1 0 0",
                                  "1 0 99999999999 0x1p+0 1 0",
                                  "1 0 1 0x1p+0 1 0 0x1p+0 0x1p+0 1 1 0 5 0x1p+0 0x1p+0 0x1p+0",
                                  "1 0 1 nan 1 0 nan nan 0", "rubbish"}) {
        INFO(bad);
        adaptive_batch rule({.max = 64});
        CHECK(sk::test::error_of([&] { rule.restore(bad); }).code() == sk::errc::malformed);
    }
    auto text = whole.state();
    for (std::size_t cut = 0; cut < text.size(); ++cut) { // whatever it says, nothing breaks
        adaptive_batch rule({.max = 64});
        try {
            rule.restore(text.substr(0, cut));
        } catch (const sk::error& why) {
            CHECK(why.code() == sk::errc::malformed);
        }
    }
}

TEST_CASE("adaptive batch: decisions of a file are taken again, those of another run are refused",
          "[adaptive]") {
    const sk::test::temporary_folder folder;
    const auto path = folder.path + "/events.jsonl";
    const auto write = [&](const std::string& rows) { std::ofstream(path) << rows; };
    const auto row = [](int step, const char* what, int from, int to) {
        return R"({"step":)" + std::to_string(step) + R"(,"rule":"adaptive_batch","what":")" +
               what + R"(","from":)" + std::to_string(from) + R"(,"to":)" + std::to_string(to) +
               R"(,"why":"noise"})" + "\n";
    };
    write(R"({"step":3,"event":"world","workers":2})"
          "\n" +
          row(5, "global_batch", 64, 128) + row(9, "global_batch", 128, 96) +
          row(9, "micro_batches", 1, 2));
    planted world{.trace = 1e5, .fixed = 0.1};
    adaptive_batch rule(world.with({.max = 1000, .accumulation = true, .replay = path}));
    world.start(rule);
    world.run(rule, 4);
    CHECK(world.plan == step_plan{.global_batch = 64});
    world.run(rule, 1);
    CHECK(world.plan == step_plan{.global_batch = 128});
    world.run(rule, 500); // none of its own
    CHECK(world.plan == step_plan{.global_batch = 96, .micro_batches = 2});
    CHECK_THAT(world.why.at(0), ContainsSubstring("events.jsonl has it"));

    write(row(5, "global_batch", 32, 128));
    planted other{.trace = 1e5};
    adaptive_batch of_another(other.with({.max = 1000, .replay = path}));
    other.start(of_another);
    const auto why = sk::test::error_of([&] { other.run(of_another, 10); });
    CHECK(why.code() == sk::errc::mismatch);
    CHECK_THAT(std::string(why.what()),
               ContainsSubstring("goes from 32 to 128 there, here it is 64"));

    const auto refused = [&](const std::string& rows, const char* what) {
        write(rows);
        const auto bad = sk::test::error_of([&] { adaptive_batch r({.max = 64, .replay = path}); });
        CHECK(bad.code() == sk::errc::malformed);
        CHECK_THAT(std::string(bad.what()), ContainsSubstring(what));
    };
    refused(row(5, "global_batch", 64, 128).substr(0, 50), "no row of events");
    refused(R"({"step":3,"event":"world","workers":2})"
            "\n",
            "no decision of adaptive_batch");
    refused(row(5, "global_batch", 64, 0), "a decision without its numbers");
    refused(row(5, "global_batch", 64, 128) + row(4, "global_batch", 128, 64), "a step before");
    std::filesystem::remove(path);
    CHECK(sk::test::error_of([&] { adaptive_batch r({.max = 64, .replay = path}); }).code() ==
          sk::errc::not_found);
}

} // namespace adaptive_batch_test
