// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/run_config.hpp>

#include <catch2/catch_test_macros.hpp>

#include <functional>
#include <limits>
#include <string>

using namespace skein;
using namespace skein::train;

TEST_CASE("the default configuration is valid for as many ranks as its batch has samples") {
    run_config config;
    CHECK_NOTHROW(validate(config, 1));
    CHECK_NOTHROW(validate(config, 16));
}

TEST_CASE("values that make no sense are usage errors that name the value and a way out") {
    struct row {
        std::function<void(run_config&)> spoil;
        const char* words;
    };
    const row rows[] = {
        {[](run_config& c) { c.scaling.workers = 0; }, "scaling.workers = 0"},
        {[](run_config& c) { c.max_steps = -3; }, "-3 steps"},
        {[](run_config& c) { c.epochs = -1; }, "-1 epochs"},
        {[](run_config& c) { c.prefetch_batches = -1; }, "-1 batches"},
        {[](run_config& c) { c.accumulation = 0; }, "accumulation of 0"},
        {[](run_config& c) { c.global_batch = 0; }, "0 samples"},
        {[](run_config& c) { c.clip = -1; }, "clip of -1"},
        {[](run_config& c) { c.clip = std::numeric_limits<double>::quiet_NaN(); }, "clip of nan"},
        {[](run_config& c) { c.clip_value = -0.5; }, "clip_value of -0.5"},
        {[](run_config& c) { c.name = "a/b"; }, "'a/b'"},
        {[](run_config& c) { c.name = ""; }, "''"},
        {[](run_config& c) { c.name = ".."; }, "'..'"},
        {[](run_config& c) { c.name = "a\nb"; }, "run name"},
        {[](run_config& c) { c.name = std::string(256, 'a'); }, "aaaa"},
        {[](run_config& c) { c.runs_dir = ""; }, "no folder"},
        {[](run_config& c) { c.scaling.workers = 10'000; }, "scaling.workers = 10000"},
        {[](run_config& c) { c.scaling.threads = -1; }, "scaling.threads = -1"},
        {[](run_config& c) { c.scaling.threads = 100'000; }, "scaling.threads = 100000"},
        {[](run_config& c) { c.scaling.gpus = 0.5; }, "scaling.gpus = 0.5"},
        {[](run_config& c) { c.scaling.gpus = 65; }, "scaling.gpus = 65"},
        {[](run_config& c) { c.scaling.cpus = -1; }, "scaling.cpus = -1"},
        {[](run_config& c) { c.failure.max_failures = -1; }, "failure.max_failures = -1"},
        {[](run_config& c) { c.checkpoint.every = -1; }, "checkpoint.every = -1"},
        {[](run_config& c) { c.checkpoint.keep_best.k = -1; }, "keep_best.k = -1"},
        {[](run_config& c) { c.eval_every = -1; }, "eval_every = -1"},
        {[](run_config& c) { c.eval_samples = -2; }, "eval_samples = -2"},
        {[](run_config& c) { c.eval_batch = -1; }, "eval_batch = -1"},
        {[](run_config& c) {
             c.resume = resume_mode::latest;
             c.checkpoint.enabled = false;
         },
         "without checkpoints"},
    };
    for (const auto& r : rows) {
        run_config config;
        r.spoil(config);
        try {
            validate(config, 1);
            FAIL("accepted: " << r.words);
        } catch (const error& e) {
            CHECK(e.code() == errc::usage);
            CHECK(e.text().find(r.words) != std::string::npos);
            CHECK_FALSE(e.hint().empty());
        }
    }
}

TEST_CASE("each setting of checkpoints is one that ranks must have alike") {
    const std::function<void(checkpoint_config&)> changes[] = {
        [](auto& c) { c.enabled = false; },
        [](auto& c) { c.every = 7; },
        [](auto& c) { c.keep_last = 3; },
        [](auto& c) { c.keep_best.k = 3; },
        [](auto& c) { c.keep_best.metric = "val_f1"; },
        [](auto& c) { c.keep_best.order = metric_order::highest; },
        [](auto& c) { c.keep_every = 3; },
        [](auto& c) { c.keep_bytes = 3; },
        [](auto& c) { c.on_stop = false; },
    };
    const run_config same;
    for (const auto& change : changes) {
        run_config other;
        change(other.checkpoint);
        CHECK(spmd::hash_of(settings_of(other)) != spmd::hash_of(settings_of(same)));
    }
}

TEST_CASE("the command line names this program") {
    CHECK(command_line().find("skein_train_tests") != std::string::npos);
}

TEST_CASE("more workers than the batch can feed is a usage error with both numbers") {
    run_config config;
    config.global_batch = 8;
    config.accumulation = 3;
    CHECK_NOTHROW(validate(config, 2));
    try {
        validate(config, 3);
        FAIL("accepted");
    } catch (const error& e) {
        CHECK(e.code() == errc::usage);
        CHECK(e.text().find("8 samples") != std::string::npos);
        CHECK(e.text().find("3 workers") != std::string::npos);
    }
}

TEST_CASE("another precision than float32 says that it is not supported") {
    run_config config;
    config.precision = "bf16";
    try {
        validate(config, 1);
        FAIL("accepted");
    } catch (const error& e) {
        CHECK(e.code() == errc::not_supported);
    }
}

TEST_CASE("the steps of a run are those asked for, or what its epochs come to") {
    run_config config;
    config.max_steps = 77;
    config.global_batch = 4;
    CHECK(total_steps(config, 10) == 77);
    config.epochs = 3;
    config.max_steps = 0; // not looked at
    CHECK_NOTHROW(validate(config, 1));
    CHECK(total_steps(config, 10) == 6);
    config.last = last_batch::shorten;
    CHECK(total_steps(config, 10) == 9);
    CHECK_THROWS_AS(total_steps(config, 0), error);
}
