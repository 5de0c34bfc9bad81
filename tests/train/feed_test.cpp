// SPDX-License-Identifier: Apache-2.0
// Pipelines as the data of a run: the samples, weights and places of numbered data.
#include <skein/train/batch_growth.hpp>
#include <skein/train/feed.hpp>

#include <tests/train/train_support.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <stdexcept>

using namespace train_test;
namespace data = skein::data;
using Catch::Matchers::ContainsSubstring;

namespace feed_test {

using id_list = std::vector<std::uint64_t>;

struct row {
    data::array<float> x;
    std::int64_t y = 0, id = 0;
};
struct row_tensors {
    torch::Tensor x, y, id;
};

/// The rows of train_test::numbers.
row of_number(std::int64_t i) {
    const std::uint64_t id = static_cast<std::uint64_t>(i);
    const auto one = numbers{1000}.batch(std::span(&id, 1));
    auto x = data::arena::current().array<float>(8);
    std::memcpy(x.data(), one.x.const_data_ptr(), 8 * sizeof(float));
    return {x, one.y.item<std::int64_t>(), i};
}
bool keeps_most(const row& r) { return r.id % 4 != 1; }
bool keeps_none(const row&) { return false; }
row throws(row r) {
    if (r.id == 5) throw std::runtime_error("five");
    return r;
}

struct outcome {
    std::map<std::uint64_t, id_list> order; ///< of all ranks, by step, sorted
    std::vector<float> weights;
    fit_result result;
};

template <class Pipeline>
outcome train_on(int world, const run_config& config, Pipeline plan,
                 sk::train::feed_options how = {.threads = 2}) {
    outcome out;
    std::mutex guard;
    run_world(world, [&](context& ctx) {
        auto net = make_net();
        auto batches = sk::train::feed<row_tensors>(ctx, config, plan, how);
        auto test = sk::train::numbered<row_tensors>(ctx, config,
                                                     data::range(6) | data::map<&of_number>(), how);
        std::map<std::uint64_t, id_list> order;
        std::uint64_t calls = 0;
        const auto loss = [&](Net& m, const row_tensors& b) {
            if (m->is_training()) {
                const auto* ids = b.id.const_data_ptr<std::int64_t>();
                auto& of = order[calls++ / static_cast<std::uint64_t>(config.accumulation)];
                for (std::int64_t i = 0; i < b.id.size(0); ++i)
                    of.push_back(static_cast<std::uint64_t>(ids[i]));
            }
            return class_loss(m, sample_batch{b.x, b.y, {}});
        };
        sk::Trainer<sk::DDP<>> trainer(ctx, config);
        const auto r = trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, loss, batches, test);
        const std::lock_guard lock(guard);
        for (auto& [step, ids] : order) {
            auto& of = out.order[step];
            of.insert(of.end(), ids.begin(), ids.end());
            std::ranges::sort(of);
        }
        if (!ctx.is_first()) return;
        out.weights = weights(*net);
        out.result = r;
    });
    return out;
}

run_config feed_config(const scratch& dir) {
    auto config = quiet_config(dir.path);
    config.global_batch = 6;
    config.epochs = 3;
    return config;
}

auto shuffled(std::uint64_t n) {
    return data::range(n) | data::map<&of_number>() | data::shuffle();
}

TEST_CASE("a pipeline trains the weights that numbered data does, bit for bit") {
    for (const auto last : {last_batch::drop, last_batch::shorten}) {
        scratch a, b;
        auto config = feed_config(a);
        config.last = last;
        auto ctx = context::single();
        auto net = make_net();
        sk::Trainer<sk::DDP<>> trainer(ctx, config);
        const auto expected =
            trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, class_loss, numbers{40}, numbers{6});
        config.runs_dir = b.path;
        const auto got = train_on(1, config, shuffled(40));
        CHECK(got.result.steps == expected.steps);
        CHECK(got.result.total == expected.total);
        CHECK(got.result.loss == expected.loss);
        CHECK(got.result.val_loss == expected.val_loss);
        CHECK(got.weights == weights(*net));
    }
}

TEST_CASE("ranks and micro-batches share the samples of each step") {
    scratch a;
    auto config = feed_config(a);
    config.last = last_batch::shorten;
    const auto one = train_on(1, config, shuffled(40));
    CHECK(one.result.steps == 21);
    for (const int world : {2, 3})
        for (const int parts : {1, 2}) {
            scratch b;
            config.runs_dir = b.path;
            config.accumulation = parts;
            const auto more = train_on(world, config, shuffled(40));
            CHECK(more.result.steps == 21);
            if (parts == 1) CHECK(more.order == one.order);
            for (std::size_t i = 0; i < one.weights.size(); ++i)
                CHECK(std::abs(more.weights[i] - one.weights[i]) < 1e-4f);
        }
}

TEST_CASE("a pipeline follows a batch that grows, bit for bit as numbered data does") {
    const sk::batch_growth rule({.at_epochs = {1}, .at_steps = {2}, .more_micro_batches = true});
    for (const int world : {1, 2}) {
        scratch dir;
        auto config = feed_config(dir);
        config.last = last_batch::shorten;
        std::vector<float> weights_of[2];
        run_world(world, [&](context& ctx) {
            auto one = make_net(), two = make_net();
            sk::Trainer<sk::DDP<>, sk::batch_growth> by_number(ctx, config, rule);
            sk::Trainer<sk::DDP<>, sk::batch_growth> fed(ctx, config, rule);
            const auto wanted = by_number.fit(one, sk::SGD{}, constant_rate{1e-2}, class_loss,
                                              numbers{40}, numbers{6});
            auto batches = sk::train::feed<row_tensors>(ctx, config, shuffled(40));
            const auto held_out = sk::train::numbered<row_tensors>(
                ctx, config, data::range(6) | data::map<&of_number>());
            const auto got = fed.fit(
                two, sk::SGD{}, constant_rate{1e-2},
                [](Net& m, const row_tensors& b) {
                    return class_loss(m, sample_batch{b.x, b.y, {}});
                },
                batches, held_out);
            expect(wanted.steps < 15); // of 21 without the rule
            expect(got.steps == wanted.steps);
            expect(got.total == wanted.total);
            expect(got.loss == wanted.loss);
            if (!ctx.is_first()) return;
            weights_of[0] = weights(*one);
            weights_of[1] = weights(*two);
        });
        CHECK(weights_of[0] == weights_of[1]);
    }
}

TEST_CASE("filters make steps smaller, alike on every number of ranks; a step of no rows is none") {
    scratch a, b;
    auto config = feed_config(a);
    config.last = last_batch::shorten;
    const auto plan =
        data::range(40) | data::map<&of_number>() | data::filter<&keeps_most>() | data::shuffle();
    const auto one = train_on(1, config, plan);
    config.runs_dir = b.path;
    const auto two = train_on(2, config, plan);
    CHECK(one.result.steps == 21);
    CHECK(two.result.steps == 21);
    for (std::size_t i = 0; i < one.weights.size(); ++i)
        CHECK(std::abs(two.weights[i] - one.weights[i]) < 1e-4f);
    // One sample a step: those that the filter leaves out are no steps, and no end of the epoch.
    scratch c;
    config.runs_dir = c.path;
    config.global_batch = 1;
    config.epochs = 2;
    const auto single =
        train_on(1, config, data::range(8) | data::map<&of_number>() | data::filter<&keeps_most>());
    CHECK(single.result.steps == 12);
    scratch d;
    config.runs_dir = d.path;
    CHECK_THROWS_WITH(
        train_on(1, config, data::range(8) | data::map<&of_number>() | data::filter<&keeps_none>()),
        ContainsSubstring("does not fill one global batch"));
}

TEST_CASE("a run goes on where its checkpoint was made, with other ranks, and refuses other data") {
    scratch whole_dir, dir;
    auto config = feed_config(whole_dir);
    config.checkpoint.enabled = true;
    config.checkpoint.every = 4;
    const auto whole = train_on(1, config, shuffled(40));
    config.runs_dir = dir.path;
    config.epochs = 1; // 6 steps: the first two epochs end behind a checkpoint and at its end
    const auto first = train_on(3, config, shuffled(40));
    config.epochs = 3;
    config.resume = resume_mode::latest;
    scratch other;
    CHECK_THROWS_WITH(
        train_on(2, config, data::range(41) | data::map<&of_number>() | data::shuffle()),
        ContainsSubstring("of other data"));
    const auto rest = train_on(2, config, shuffled(40));
    CHECK(rest.result.first_step == 6);
    CHECK(rest.result.steps == whole.result.steps);
    auto order = first.order;
    for (const auto& [step, ids] : rest.order) order[step + 6] = ids;
    CHECK(order == whole.order);
}

TEST_CASE("what a row throws ends the run with its sample, or is left out") {
    scratch a, b;
    auto config = feed_config(a);
    const auto plan =
        data::range(40) | data::map<&of_number>() | data::map<&throws>() | data::shuffle();
    CHECK_THROWS_WITH(train_on(1, config, plan),
                      ContainsSubstring("sample 5") && ContainsSubstring("five"));
    config.runs_dir = b.path;
    config.last = last_batch::shorten;
    const auto got = train_on(1, config, plan, {.threads = 2, .bad_rows = 3});
    CHECK(got.result.steps == 21);
    CHECK_THROWS_WITH(train_on(1, config, data::range(0) | data::map<&of_number>()),
                      ContainsSubstring("no samples"));
}

TEST_CASE("what is left out stands in the run's folder, each sample once") {
    scratch dir;
    auto config = feed_config(dir);
    config.checkpoint.enabled = true;
    config.write_files = true;
    const auto plan =
        data::range(40) | data::map<&of_number>() | data::map<&throws>() | data::shuffle();
    (void)train_on(2, config, plan, {.threads = 1, .bad_rows = 1}); // another rank has it each time
    config.resume = resume_mode::latest;
    config.epochs = 5;
    (void)train_on(1, config, plan, {.threads = 1, .bad_rows = 1});
    std::ifstream file(dir.path + "/run/left_out.csv");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    CHECK(text == "sample,name,why,data\n5,\"\",\"sample 5, map(throws): five\",\"" +
                      plan.describe() + "\"\n");
}

/// Whether the parts of each row's time lie within it.
struct time_parts {
    int rows = 0;
    bool fit = true;
    void on_step(const step_info& now) {
        const auto& own = now.own;
        const auto sum = own.data + own.forward + own.backward + own.optimizer + own.exposed;
        fit = fit && sum > 0 && sum <= now.since_row;
        rows += 1;
    }
};

TEST_CASE("what a rank waited and computed lies within the time since the row before") {
    for (const int world : {1, 2}) {
        scratch dir;
        const auto config = feed_config(dir);
        run_world(world, [&](context& ctx) {
            auto net = make_net();
            auto batches = sk::train::feed<row_tensors>(ctx, config, shuffled(40), {.threads = 1});
            sk::Trainer<sk::DDP<>, time_parts> trainer(ctx, config, {});
            const auto loss = [](Net& m, const row_tensors& b) {
                return class_loss(m, sample_batch{b.x, b.y, {}});
            };
            const auto test = sk::train::numbered<row_tensors>(
                ctx, config, data::range(6) | data::map<&of_number>());
            trainer.fit(net, sk::SGD{}, constant_rate{1e-2}, loss, batches, test);
            expect(trainer.callback<time_parts>().rows == 18);
            expect(trainer.callback<time_parts>().fit);
        });
    }
}

// ---- evaluation sets with bad rows ---------------------------------------------------------------

/// Four steps of numbered data, evaluated on a pipeline whose sample 5 is bad.
fit_result evaluate_bad(int world, const run_config& config, std::uint64_t bad_rows,
                        std::uint64_t* left_out) {
    fit_result out;
    run_world(world, [&](context& ctx) {
        auto net = make_net();
        const auto test = sk::train::numbered<row_tensors>(
            ctx, config, data::range(6) | data::map<&of_number>() | data::map<&throws>(),
            {.threads = 1, .bad_rows = bad_rows});
        sk::Trainer<sk::DDP<>> trainer(ctx, config);
        const auto loss = [](auto& m, const auto& b) {
            return torch::nn::functional::cross_entropy(m->forward(b.x), b.y);
        };
        auto session = trainer.open(net, sk::SGD{}, constant_rate{1e-2});
        session.evaluate_on(net, loss, test);
        numbers seen{40};
        for (auto step : session.steps(seen))
            for (const auto& batch : step) session.backward(loss(net, batch));
        const auto r = session.finish();
        if (ctx.rank() == ctx.world_size() - 1) *left_out = test.stats().bad; // it has sample 5
        if (ctx.is_first()) out = r;
    });
    return out;
}

TEST_CASE("a bad row of an evaluation set is left out of its mean, or ends the run by its name") {
    for (const int world : {1, 2}) {
        scratch a, b, c;
        auto config = quiet_config(a.path);
        config.max_steps = 4;
        config.eval_every = 2;
        auto ctx = context::single();
        auto net = make_net();
        sk::Trainer<sk::DDP<>> trainer(ctx, config);
        const auto expected =
            trainer.fit(net, sk::SGD{}, constant_rate{1e-2}, class_loss, numbers{40}, numbers{5});
        config.runs_dir = b.path;
        std::uint64_t left_out = 0;
        const auto got = evaluate_bad(world, config, 1, &left_out);
        CHECK(std::abs(got.val_loss - expected.val_loss) < 1e-6);
        CHECK(left_out == 1); // in two evaluations
        config.runs_dir = c.path;
        CHECK_THROWS_WITH(
            evaluate_bad(world, config, 0, &left_out),
            ContainsSubstring("sample 5, map(throws), of evaluation set \"val\" after "
                              "step 2") &&
                ContainsSubstring("five"));
    }
}

/// Numbers of which one cannot be had while it is broken.
struct flaky_numbers {
    const std::atomic<bool>* broken;
    [[nodiscard]] std::uint64_t size() const { return 6; }
    [[nodiscard]] sample_batch batch(std::span<const std::uint64_t> ids) const {
        if (*broken && ids.back() == 5) throw std::runtime_error("a broken disk");
        return numbers{6}.batch(ids);
    }
};
/// What it was told, as a run keeps it.
struct told_evaluations {
    std::string told;
    skein::train::action on_eval(const eval_info& now) {
        told += fmt::format("{} {}\n", now.set, now.step);
        return skein::train::action::go_on;
    }
    std::string state() const { return told; }
    void restore(std::string_view saved) { told = saved; }
};
struct evaluated_run {
    std::string rows, told;
    std::vector<float> weights;
    fit_result result;
};

evaluated_run run_flaky(int world, const run_config& config, const std::atomic<bool>& broken) {
    evaluated_run out;
    run_world(world, [&](context& ctx) {
        auto net = make_net();
        sk::Trainer<sk::DDP<>, told_evaluations> trainer(ctx, config, {});
        const flaky_numbers held_out{&broken};
        const auto r = trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, class_loss, numbers{40},
                                   numbers{4}, sk::evaluation("test", held_out));
        if (!ctx.is_first()) return;
        out.weights = weights(*net);
        out.result = r;
        out.told = trainer.callback<told_evaluations>().told;
    });
    std::ifstream file(config.runs_dir + "/run/metrics.csv");
    out.rows.assign(std::istreambuf_iterator<char>(file), {});
    return out;
}

TEST_CASE("a failed evaluation leaves a checkpoint of its step, and a resumed run makes it again") {
    for (const int world : {1, 2})
        for (const std::int64_t steps : {6, 3}) { // in the middle, and behind the last step
            scratch whole_dir, dir;
            auto config = quiet_config(whole_dir.path);
            config.max_steps = steps;
            config.eval_every = 3;
            config.checkpoint.enabled = true;
            config.checkpoint.every = 100;
            config.write_files = true;
            std::atomic<bool> broken{false};
            const auto whole = run_flaky(world, config, broken);
            config.runs_dir = dir.path;
            broken = true;
            CHECK_THROWS_WITH(run_flaky(world, config, broken), ContainsSubstring("a broken disk"));
            CHECK(std::filesystem::exists(dir.path + "/run/checkpoints/step-00000003"));
            config.resume = resume_mode::latest;
            CHECK_THROWS_WITH(run_flaky(world, config, broken), // once more, from there
                              ContainsSubstring("a broken disk") &&
                                  (world == 1 ? ContainsSubstring("a resumed run makes its "
                                                                  "evaluation")
                                              : ContainsSubstring("disk")));
            broken = false;
            const auto rest = run_flaky(world, config, broken);
            CHECK(rest.result.first_step == 3);
            CHECK(rest.weights == whole.weights);
            CHECK(rest.rows == whole.rows);
            CHECK(rest.told == whole.told);
            CHECK(rest.result.val_loss == whole.result.val_loss);
        }
}

TEST_CASE("weights whose evaluation is not finite get no checkpoint") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.checkpoint.enabled = true;
    config.max_steps = 2;
    auto ctx = context::single();
    auto net = make_net();
    sk::Trainer<sk::DDP<>> trainer(ctx, config);
    CHECK_THROWS_WITH(trainer.fit(net, sk::SGD{}, constant_rate{1e-2}, class_loss, numbers{40},
                                  numbers{.n = 4, .broken = 2}),
                      ContainsSubstring("nan after step 2"));
    CHECK_FALSE(std::filesystem::exists(dir.path + "/run/checkpoints/step-00000002"));
}

} // namespace feed_test
