// SPDX-License-Identifier: Apache-2.0
// What ranks report and what becomes of it: rows whose names not all ranks know, evaluations, NaN,
// and what of it a resume goes on with.
#include <tests/train/train_support.hpp>

#include <skein/core/posix_disk.hpp>
#include <skein/train/checkpoint.hpp>
#include <skein/train/early_stopping.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace train_test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// The rows of every rank, which must be the same: "<step> name value ..." without the trainer's
/// numbers.
struct row_log {
    std::vector<std::string>* rows;
    void on_step(const step_info& s) {
        std::string row = fmt::format("{}", s.step);
        for (const auto& m : *s.metrics)
            if (m.name != "loss" && m.name != "lr" && m.name != "grad_norm")
                row += fmt::format(" {} {:g}", m.name, m.value);
        rows[s.rank].push_back(std::move(row));
    }
};

/// All ranks' rows of a run; equal, or the test fails.
std::vector<std::string> rows_of(int world, const run_config& config, const auto& loss,
                                 std::uint64_t samples) {
    std::vector<std::vector<std::string>> rows(static_cast<std::size_t>(world));
    run_world(world, [&](context& ctx) {
        auto net = make_net();
        sk::Trainer<sk::DDP<>, row_log> trainer(ctx, config, row_log{rows.data()});
        (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-3}, loss, numbers{samples},
                          numbers{0});
    });
    for (const auto& each : rows) CHECK(each == rows[0]);
    return rows[0];
}

} // namespace

TEST_CASE("what a loss reports is in the row when a rank has no sample of the last batch") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.epochs = 1;
    config.global_batch = 4;
    config.last = last_batch::shorten;
    const auto loss = [](Net& m, const sample_batch& b, metric_set& metrics) {
        metrics.sum("seen", static_cast<double>(b.ids.size()));
        metrics.last("part", static_cast<double>(b.ids.size()));
        return class_loss(m, b);
    };
    for (const int world : {1, 2, 3}) {
        const auto rows = rows_of(world, config, loss, 9);
        REQUIRE(rows.size() == 3);
        CHECK(rows[0].starts_with("1 seen 4 part "));
        CHECK(rows[2] == "3 seen 1 part 1");
    }
    // The same by a loop of one's own.
    run_world(3, [&](context& ctx) {
        std::vector<std::vector<std::string>> own(3);
        auto net = make_net();
        sk::Trainer<sk::DDP<>, row_log> trainer(ctx, config, row_log{own.data()});
        auto session = trainer.open(net, sk::AdamW{}, constant_rate{1e-3});
        const numbers data{9};
        for (auto& step : session.steps(data))
            for (auto& micro : step) {
                session.report(metric_kind::sum, "seen", double(micro.ids.size()));
                session.backward(class_loss(net, micro));
            }
        (void)session.finish();
        const auto& mine = own[static_cast<std::size_t>(ctx.rank())];
        expect(mine == std::vector<std::string>{"1 seen 4", "2 seen 4", "3 seen 1"});
    });
}

TEST_CASE("a number that a rank reports under a condition counts for those that report it") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.max_steps = 8;
    config.global_batch = 4;
    const auto loss = [](Net& m, const sample_batch& b, metric_set& metrics) {
        for (const auto id : b.ids)
            if (id % 16 == 3)
                metrics.sum("threes", 1.0).mean("id", double(id)).max("top", double(id));
        return class_loss(m, b);
    };
    const auto alone =
        rows_of(1, config, loss, 32); // 2 of 32 samples: in most steps nobody reports it
    int with = 0;
    for (const auto& row : alone) with += row.find("threes") != row.npos ? 1 : 0;
    CHECK((with == 1 || with == 2));
    for (const int world : {2, 3, 4}) CHECK(rows_of(world, config, loss, 32) == alone);
}

TEST_CASE(
    "what is reported is in the row when a rank's stream has ended, or when one callback reports") {
    struct short_stream { // rank 0 has two batches, the others one
        int rank = 0;
        std::uint64_t given = 0;
        std::optional<sample_batch> next(const stream_share& share) {
            if (given == (rank == 0 ? 2u : 1u)) return std::nullopt;
            const std::uint64_t first = 10 * given++;
            std::vector<std::uint64_t> ids(share.samples);
            for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = first + i;
            return numbers{}.batch(ids);
        }
        [[nodiscard]] std::string state() const { return std::to_string(given); }
        void restore(std::string_view saved) {
            given = saved.empty() ? 0 : std::stoull(std::string(saved));
        }
    };
    scratch dir;
    auto config = quiet_config(dir.path);
    config.epochs = 1;
    config.last = last_batch::shorten;
    std::vector<std::vector<std::string>> rows(3);
    run_world(3, [&](context& ctx) {
        struct by_callback {
            const std::function<void()>* report;
            void on_step(const step_info&) { (*report)(); }
        };
        auto net = make_net();
        std::function<void()> report;
        using trainer_type = sk::Trainer<sk::DDP<>, row_log, by_callback>;
        trainer_type trainer(ctx, config, row_log{rows.data()}, by_callback{&report});
        report = [&] {
            if (ctx.rank() == 2) trainer.report(metric_kind::last, "late", 7.0);
        };
        const auto loss = [](Net& m, const sample_batch& b, metric_set& metrics) {
            metrics.sum("seen", double(b.ids.size()));
            return class_loss(m, b);
        };
        short_stream data{.rank = ctx.rank()};
        (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-3}, loss, data, numbers{0});
    });
    for (const auto& each : rows)
        CHECK(each == std::vector<std::string>{"1 seen 12", "2 seen 4 late 7"});
}

TEST_CASE("one name by two kinds on two ranks ends both with the name and both sides") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.max_steps = 4;
    int steps[2] = {0, 0};
    const auto errors = try_world(2, [&](context& ctx) {
        auto net = make_net();
        sk::Trainer<sk::DDP<>> trainer(ctx, config);
        const auto loss = [&](Net& m, const sample_batch& b, metric_set& metrics) {
            if (++steps[ctx.rank()] == 3 && ctx.rank() == 1)
                metrics.mean("hits", 1.0);
            else
                metrics.sum("hits", 1.0);
            return class_loss(m, b);
        };
        (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-3}, loss, numbers{64}, numbers{0});
    });
    for (const auto& why : errors) {
        REQUIRE(why);
        CHECK(why->code() == sk::errc::mismatch);
        CHECK_THAT(why->what(),
                   ContainsSubstring("rank 1 reported 'hits' as a mean, rank 0 as a sum"));
    }
}

TEST_CASE(
    "names under a condition are alike in an evaluation, and its short last batch counts less") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.max_steps = 1;
    config.eval_batch = 4;
    struct keep {
        std::vector<metric_value>* out;
        void on_eval(const eval_info& e) { out[e.rank] = *e.metrics; }
    };
    for (const int world : {1, 2, 3}) {
        std::vector<std::vector<metric_value>> seen(3);
        run_world(world, [&](context& ctx) {
            auto net = make_net();
            sk::Trainer<sk::DDP<>, keep> trainer(ctx, config, keep{seen.data()});
            const auto loss = [](Net& m, const sample_batch& b, metric_set& metrics) {
                double sum = 0;
                for (const auto id : b.ids) sum += double(id);
                metrics.mean("id", sum / double(b.ids.size()));
                if (b.ids.back() == 8) metrics.max("last", 8.0);
                return class_loss(m, b);
            };
            (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-3}, loss, numbers{64}, numbers{9});
        });
        for (int r = 0; r < world; ++r) {
            const auto& mine = seen[static_cast<std::size_t>(r)];
            REQUIRE(find_metric(mine, "val_id"));
            CHECK(std::abs(*find_metric(mine, "val_id") - 4.0) < 1e-12); // 0 to 8, each once
            REQUIRE(find_metric(mine, "val_last"));
            CHECK(*find_metric(mine, "val_last") == 8.0);
        }
    }
}

TEST_CASE("a NaN that one rank reports is in the row of all, by whichever kind") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.max_steps = 1;
    for (const int bad : {0, 1}) {
        std::vector<std::vector<std::string>> rows(2);
        run_world(2, [&](context& ctx) {
            auto net = make_net();
            sk::Trainer<sk::DDP<>, row_log> trainer(ctx, config, row_log{rows.data()});
            const auto loss = [&](Net& m, const sample_batch& b, metric_set& metrics) {
                const double x = ctx.rank() == bad ? std::nan("") : 1.0;
                metrics.max("a", x).min("b", x).mean("c", x).sum("d", x);
                return class_loss(m, b);
            };
            (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-3}, loss, numbers{64}, numbers{0});
        });
        for (auto& each : rows) {
            REQUIRE(each.size() == 1);
            std::erase(each[0], '-'); // the sign of a NaN says nothing
            CHECK(each[0] == "1 a nan b nan c nan d nan");
        }
    }
}

TEST_CASE("the best checkpoint stays the best over a resume and over evaluations that are NaN") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.max_steps = 5;
    config.checkpoint.enabled = true;
    config.checkpoint.every = config.eval_every = 1;
    config.checkpoint.keep_last = config.checkpoint.keep_best.k = 1;
    config.checkpoint.keep_best.metric = "val_f1";
    config.checkpoint.keep_best.order = sk::train::metric_order::highest;
    int evaluations = 0;
    const auto loss = [&](Net& m, const sample_batch& b, metric_set& metrics) {
        static constexpr double nan = std::numeric_limits<double>::quiet_NaN();
        static constexpr double f1[] = {nan, 0.2, 0.9, nan, 0.3, 0.4, nan, 0.5};
        if (!m->is_training()) metrics.mean("f1", f1[evaluations++]);
        return class_loss(m, b);
    };
    const auto train = [&] {
        auto ctx = context::single();
        auto net = make_net();
        sk::Trainer<sk::Single, sk::early_stopping> trainer(
            ctx, config,
            sk::early_stopping({.metric = "val_f1", .patience = 9, .lower_is_better = false}));
        (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-3}, loss, numbers{64}, numbers{4});
        return trainer.callback<sk::early_stopping>();
    };
    (void)train();
    config.resume = resume_mode::latest;
    config.max_steps = 8;
    const auto watch = train();
    CHECK(watch.best() == 0.9);
    CHECK(watch.best_step() == 3);
    CHECK(watch.waited() == 5);
    sk::posix_disk disk;
    CHECK(checkpointer(disk, dir.path + "/run/checkpoints").steps() ==
          std::vector<std::uint64_t>{3, 8});
}

TEST_CASE("a run whose last step was the last of an epoch goes on with the next epoch, each sample "
          "once") {
    struct line { // a stream of 10 samples an epoch
        std::uint64_t at = 0, epoch = 0;
        std::optional<sample_batch> next(const stream_share& share) {
            if (share.epoch > epoch) at = 0, epoch = share.epoch;
            std::vector<std::uint64_t> ids;
            while (ids.size() < share.samples && at < 10) ids.push_back(at++);
            if (ids.empty()) return std::nullopt;
            return numbers{}.batch(ids);
        }
        [[nodiscard]] std::string state() const { return fmt::format("{} {}", epoch, at); }
        void restore(std::string_view saved) {
            if (saved.empty()) {
                at = epoch = 0;
                return;
            }
            epoch = std::stoull(std::string(saved));
            at = std::stoull(std::string(saved.substr(saved.find(' '))));
        }
    };
    for (const bool stream : {false, true})
        for (const auto last : {last_batch::drop, last_batch::shorten}) {
            scratch dir;
            auto config = quiet_config(dir.path);
            config.global_batch = stream ? 5 : 6;
            config.checkpoint.enabled = true;
            config.last = last;
            config.prefetch_batches = stream ? 2 : 1;
            std::vector<std::vector<std::uint64_t>> seen;
            const auto train = [&](std::int64_t steps) {
                config.max_steps = steps;
                auto ctx = context::single();
                auto net = make_net();
                sk::Trainer<sk::Single> trainer(ctx, config);
                const auto loss = [&](Net& m, const sample_batch& b) {
                    seen.push_back(b.ids);
                    return class_loss(m, b);
                };
                if (stream)
                    (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-3}, loss, line{},
                                      numbers{0});
                else
                    (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-3}, loss, numbers{12},
                                      numbers{0});
            };
            train(6);
            const auto whole = std::exchange(seen, {});
            config.name = "parts";
            for (const int steps : {2, 4, 6}) { // each the end of an epoch
                train(steps);
                config.resume = resume_mode::latest;
            }
            CHECK(seen == whole);
            CHECK(whole.size() == 6);
        }
}

TEST_CASE("a checkpoint of a step whose loss overflowed float16 is resumed") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.checkpoint.enabled = true;
    config.checkpoint.every = 1;
    config.max_steps = 2;
    std::vector<double> losses;
    const auto train = [&] {
        auto ctx = context::single();
        auto net = make_net();
        sk::Trainer<sk::DDP<sk::bucket<>, sk::precision<sk::f16>>> trainer(ctx, config);
        int calls = 0;
        const auto loss = [&](Net& m, const sample_batch& b) {
            const auto out = m->in(b.x.to(torch::kHalf)).to(torch::kFloat);
            const auto value = torch::nn::functional::cross_entropy(out, b.y);
            return ++calls == 2 ? value * std::numeric_limits<float>::infinity() : value;
        };
        losses.push_back(
            trainer.fit(net, sk::AdamW{}, constant_rate{1e-3}, loss, numbers{64}, numbers{0}).loss);
    };
    train();
    CHECK(std::isinf(losses[0]));
    config.resume = resume_mode::latest;
    train();                      // nothing left to train
    CHECK(std::isnan(losses[1])); // it is not in the checkpoint
    config.max_steps = 3;
    train();
    CHECK(std::isfinite(losses[2]));
}
