// SPDX-License-Identifier: Apache-2.0
// Rules that change the plan of a run, over ranks and resumes.
#include <tests/support/csv_column.hpp>
#include <tests/train/train_support.hpp>

#include <skein/core/posix_disk.hpp>
#include <skein/train/batch_growth.hpp>
#include <skein/train/loss_spike.hpp>
#include <skein/train/reduce_on_plateau.hpp>
#include <skein/train/step_plan.hpp>
#include <skein/train/stop_at.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <mutex>
#include <sstream>

using namespace train_test;
using Catch::Matchers::ContainsSubstring;
using sk::test::csv_column;

namespace session_plan_test {

namespace {

struct outcome {
    fit_result result;
    std::vector<float> weights;
    std::string csv, events;
    std::vector<std::vector<std::uint64_t>>
        ids; ///< of all steps and ranks, in order of their places
};

/// Throws behind a step, before anything of it is written.
struct killer {
    std::uint64_t step = 0;
    void on_step(const step_info& s) const {
        if (s.step == step) throw sk::error(sk::errc::io, "killed");
    }
};

/// 60 samples in their order, epoch by epoch: one place of the whole stream for all ranks.
struct counting_stream {
    std::uint64_t at = 0, epoch = 0;
    std::optional<sample_batch> next(const stream_share& share) {
        if (share.epoch > epoch) {
            epoch = share.epoch;
            at = 0;
        }
        std::vector<std::uint64_t> ids;
        for (auto i = at + share.begin; ids.size() < share.samples && i < 60; ++i) ids.push_back(i);
        const bool none = at >= 60;
        if (share.is_last) at = std::min<std::uint64_t>(60, at + share.global_batch);
        if (none) return std::nullopt;
        return numbers{60}.batch(ids);
    }
    [[nodiscard]] std::uint64_t samples(const sample_batch& b) const { return b.ids.size(); }
    [[nodiscard]] std::string state() const { return fmt::format("{} {}", at, epoch); }
    void restore(std::string_view saved) {
        std::istringstream in{std::string(saved)};
        in >> at >> epoch;
    }
};

const auto plain_loss = [](Net& m, const sample_batch& b, std::uint64_t) {
    return class_loss(m, b);
};

/// A run of so many ranks with these rules.
///   loss  of the model, a batch and the number of steps that are finished
template <class Data = numbers, class Loss = decltype(plain_loss), class... Rules>
outcome train_on(int world, const run_config& config, const schedule& rate, Loss loss,
                 Rules... rules) {
    outcome out;
    std::mutex guard;
    const auto record = [&](std::uint64_t step, int rank, const std::vector<std::uint64_t>& ids) {
        const std::lock_guard lock(guard);
        const auto at = step * static_cast<std::size_t>(world) + static_cast<std::size_t>(rank);
        if (out.ids.size() <= at) out.ids.resize(at + 1);
        out.ids[at].insert(out.ids[at].end(), ids.begin(), ids.end());
    };
    run_world(world, [&](context& ctx) {
        auto net = make_net();
        sk::Trainer<sk::DDP<tiny_buckets>, Rules...> trainer(ctx, config, rules...);
        auto session = trainer.open(net, sk::SGD{}, rate);
        const numbers held_out{6};
        auto data = [] {
            if constexpr (std::is_same_v<Data, numbers>)
                return numbers{60};
            else
                return Data{};
        }();
        session.evaluate_on(net, class_loss, held_out);
        for (auto& step : session.steps(data))
            for (auto& micro : step) {
                record(session.finished(), ctx.rank(), micro.ids);
                session.backward(loss(net, micro, session.finished()));
            }
        auto done = session.finish();
        if (!ctx.is_first()) return;
        out.result = std::move(done);
        out.weights = weights(*net);
    });
    const auto text = [&](const char* file) {
        const auto path = config.runs_dir + "/" + config.name + "/" + file;
        std::ifstream in(path);
        return std::string(std::istreambuf_iterator<char>(in), {});
    };
    out.csv = text("metrics.csv");
    out.events = text("events.jsonl");
    return out;
}
template <class... Rules>
outcome train(int world, const run_config& config, Rules... rules) {
    return train_on<numbers>(world, config, constant_rate{1e-2}, plain_loss, rules...);
}

/// The samples of a run in the order of their places, of the steps from one on.
std::vector<std::uint64_t> order_of(const outcome& run, int world, std::uint64_t from = 0) {
    std::vector<std::uint64_t> all;
    for (auto at = from * static_cast<std::size_t>(world); at < run.ids.size(); ++at)
        all.insert(all.end(), run.ids[at].begin(), run.ids[at].end());
    return all;
}

/// The samples of each step.
std::vector<std::size_t> sizes_of(const outcome& run, int world) {
    std::vector<std::size_t> all(run.ids.size() / static_cast<std::size_t>(world) + 1);
    for (std::size_t at = 0; at < run.ids.size(); ++at)
        all[at / static_cast<std::size_t>(world)] += run.ids[at].size();
    return all;
}

run_config files_config(const scratch& dir) {
    auto config = quiet_config(dir.path);
    config.checkpoint.enabled = config.write_files = true;
    config.eval_every = 2;
    config.checkpoint.every = 2;
    config.checkpoint.keep_last = 100;
    return config;
}

/// The same whether it is killed behind one of its steps and resumed or not.
template <class... Rules>
void expect_same_after_kills(int world, run_config config, const outcome& whole,
                             std::initializer_list<std::uint64_t> kills, Rules... rules) {
    for (const auto kill : kills) {
        INFO(world << " ranks, killed behind step " << kill);
        scratch dir;
        config.runs_dir = dir.path;
        config.resume = resume_mode::fresh;
        CHECK_THROWS_AS(train(world, config, killer{kill}, rules...), sk::error);
        config.resume = resume_mode::latest;
        const auto rest = train(world, config, killer{}, rules...);
        CHECK(rest.result.steps == whole.result.steps);
        CHECK(rest.csv == whole.csv);
        CHECK(rest.events == whole.events);
        CHECK(rest.weights == whole.weights);
    }
}

} // namespace

TEST_CASE("a rate that a plateau has lowered is used by all ranks, and goes on after a resume") {
    // No evaluation is an improvement by 1e9: the second in a row lowers the rate.
    const sk::reduce_on_plateau rule(
        {.factor = 0.5, .patience = 1, .threshold = 1e9, .relative = false});
    for (const int world : {1, 2}) {
        scratch dir;
        auto config = files_config(dir);
        config.max_steps = 14;
        const auto whole = train(world, config, killer{}, rule);
        CHECK(whole.result.steps == 14);
        std::vector<double> rates;
        // The first evaluation is the best; those of steps 6 and 10 are the second bad ones.
        for (int step = 1; step <= 14; ++step)
            rates.push_back(step <= 6 ? 1e-2 : step <= 10 ? 5e-3 : 2.5e-3);
        CHECK(csv_column(whole.csv, "lr") == rates);
        CHECK_THAT(whole.csv, !ContainsSubstring("global_batch"));
        CHECK_THAT(whole.events,
                   ContainsSubstring("{\"step\":6,\"rule\":\"reduce_on_plateau\",\"what\":\"rate_"
                                     "factor\",\"from\":1.0,\"to\":0.5,\"why\":\"val_loss is ") &&
                       ContainsSubstring("{\"step\":10,"));
        expect_same_after_kills(world, config, whole, {5, 6, 7, 11}, rule);
    }
}

TEST_CASE("a run whose batch grows sees each sample once an epoch, in the order of the run without "
          "it, resumed or not") {
    const sk::batch_growth rule(
        {.every_epochs = 1, .at_steps = {2}, .max = 40, .rate = sk::batch_growth_rate::linear});
    for (const int world : {1, 2, 3})
        for (const auto last : {last_batch::shorten, last_batch::carry})
            for (const int accumulation : {1, 2}) {
                INFO(world << " ranks, " << accumulation << " micro-batches");
                scratch dir;
                auto config = files_config(dir);
                config.epochs = 3;
                config.last = last;
                config.accumulation = accumulation;
                const auto plain = train(world, config);
                config.name = "grown";
                const auto whole = train(world, config, killer{}, rule);
                CHECK(whole.result.steps < plain.result.steps);
                CHECK(whole.result.steps == whole.result.total);
                CHECK(order_of(whole, world) == order_of(plain, world));
                // Also the batch that was made ahead before the decision is of the new size.
                CHECK(sizes_of(whole, world)[1] == 12);
                CHECK(sizes_of(whole, world)[2] == 24);
                const auto batches = csv_column(whole.csv, "global_batch");
                CHECK(batches[0] == 12);
                CHECK(batches[1] == 12);
                CHECK(batches[2] == 24);
                CHECK(batches.back() == 40);
                const auto rates = csv_column(whole.csv, "lr"); // in proportion
                for (std::size_t i = 0; i < rates.size(); ++i)
                    CHECK(std::abs(rates[i] - 1e-2 * batches[i] / 12) < 1e-15);
                CHECK_THAT(whole.events,
                           ContainsSubstring("\"what\":\"global_batch\",\"from\":12,\"to\":24"));
                if (accumulation == 2) continue;
                expect_same_after_kills(world, config, whole, {2, 3, 5}, rule);
            }
}

TEST_CASE("the schedule of a run whose batch grows goes by its samples, and so does its length") {
    const sk::batch_growth rule({.factor = 3, .at_steps = {4}});
    const auto rate = [](std::uint64_t step) { return 1.0 / static_cast<double>(1 + step); };
    for (const int world : {1, 2}) {
        scratch dir;
        auto config = files_config(dir);
        config.max_steps = 11;
        config.last = last_batch::carry;
        const auto whole = train_on<numbers>(world, config, rate, plain_loss, killer{}, rule);
        // 4 steps of 12, 2 of 36, and the 12 that are left of 11 * 12
        CHECK(csv_column(whole.csv, "lr") ==
              std::vector<double>{1.0, 1.0 / 2, 1.0 / 3, 1.0 / 4, 1.0 / 5, 1.0 / 8, 1.0 / 11});
        CHECK(order_of(whole, world).size() == 11 * 12);
        CHECK(whole.result.total == 7);
    }
}

TEST_CASE("a stream follows the plan, too, with what was made ahead dropped") {
    const sk::batch_growth rule({.at_epochs = {1}, .at_steps = {2}, .max = 40});
    for (const int world : {1, 2}) {
        for (const std::int64_t epochs : {0, 3}) {
            INFO(world << " ranks, " << epochs << " epochs");
            scratch dir;
            auto config = files_config(dir);
            config.epochs = epochs;
            config.max_steps = 15;
            config.last = last_batch::shorten;
            config.eval_every = 1; // an end that is looked for before a decision
            const auto whole = train_on<counting_stream>(world, config, constant_rate{1e-2},
                                                         plain_loss, killer{}, rule);
            std::vector<std::uint64_t> wanted;
            for (std::uint64_t i = 0; i < 180; ++i) wanted.push_back(i % 60);
            const auto got = order_of(whole, world);
            CHECK(got.size() <= wanted.size());
            wanted.resize(got.size());
            CHECK(got == wanted);
            if (epochs > 0) CHECK(got.size() == 180);
            CHECK(csv_column(whole.csv, "global_batch").back() == 40);
            config.name = "resumed";
            CHECK_THROWS_AS(train_on<counting_stream>(world, config, constant_rate{1e-2},
                                                      plain_loss, killer{5}, rule),
                            sk::error);
            config.resume = resume_mode::latest;
            const auto rest = train_on<counting_stream>(world, config, constant_rate{1e-2},
                                                        plain_loss, killer{}, rule);
            CHECK(rest.csv == whole.csv);
            CHECK(rest.events == whole.events);
            CHECK(rest.weights == whole.weights);
        }
    }
}

TEST_CASE("a run that goes on in a world of another size keeps its plan and decides the same") {
    const sk::batch_growth rule({.every_epochs = 1, .max = 30});
    scratch one;
    auto config = files_config(one);
    config.epochs = 3;
    config.last = last_batch::shorten;
    const auto whole = train(2, config, killer{}, rule);
    for (const int world : {1, 3}) {
        scratch dir;
        config.runs_dir = dir.path;
        config.resume = resume_mode::fresh;
        CHECK_THROWS_AS(train(2, config, killer{7}, rule), sk::error);
        config.resume = resume_mode::latest;
        const auto rest = train(world, config, killer{}, rule);
        CHECK(rest.events == whole.events);
        CHECK(csv_column(rest.csv, "global_batch") == csv_column(whole.csv, "global_batch"));
        const auto from = rest.result.first_step;
        CHECK(from == 6);
        CHECK(order_of(rest, world, from) == order_of(whole, 2, from));
        config.global_batch = 16; // it cannot be told what that means in the middle
        const auto why = [&] {
            try {
                (void)train(world, config, killer{}, rule);
            } catch (const sk::error& e) {
                return std::string(e.what());
            }
            return std::string();
        }();
        CHECK_THAT(why, ContainsSubstring("changed the run's batch from 12 to 30 samples, now 16"));
        config.global_batch = 12;
    }
}

namespace {
/// Changes the plan by itself behind a step.
struct own_rule {
    std::uint64_t step = 0;
    step_plan next{};
    int only_rank = -1;
    decision on_step(const step_info& s) const {
        if (s.step != step || (only_rank >= 0 && s.rank != only_rank)) return {};
        return {.plan = next, .why = "so"};
    }
};
/// Leaves a step out on one rank.
struct own_judge {
    verdict on_agreed(const step_info& s) const {
        return s.step == 3 && s.rank == 1 ? verdict::leave_out : verdict::apply;
    }
};

template <class Rule>
std::vector<std::optional<sk::error>> refused(int world, const Rule& rule) {
    scratch dir;
    const auto config = quiet_config(dir.path);
    return try_world(world, [&](context& ctx) {
        auto net = make_net();
        sk::Trainer<sk::DDP<>, Rule> trainer(ctx, config, rule);
        (void)trainer.fit(net, sk::SGD{}, constant_rate{1e-2}, class_loss, numbers{60}, numbers{0});
    });
}
} // namespace

TEST_CASE("ranks that decide on different plans are told at the next step, with both plans") {
    for (const step_plan& other :
         {step_plan{12, 1, 0.1, 1.0}, step_plan{24, 1, 1.0, 1.0}, step_plan{12, 1, 1.0, 0.5}}) {
        const auto errors = refused(3, own_rule{.step = 2, .next = other, .only_rank = 1});
        for (const auto& why : errors) {
            REQUIRE(why);
            CHECK(why->code() == sk::errc::mismatch);
            CHECK_THAT(why->what(),
                       ContainsSubstring("the ranks have decided on different plans at step 3: "
                                         "rank 0 has 12 samples in 1 micro-batch per rank, rate x "
                                         "1, clip 1, rank 1 has ") &&
                           ContainsSubstring(to_string(other)));
        }
    }
    const auto errors = refused(2, own_judge{});
    REQUIRE(errors[0]);
    CHECK(errors[0]->code() == sk::errc::mismatch);
    CHECK_THAT(errors[0]->what(),
               ContainsSubstring("at step 4") && ContainsSubstring("the step before left out"));
    // Where no step follows, too; and before such a step is saved.
    for (const bool saves : {true, false}) {
        scratch dir;
        auto config = files_config(dir);
        config.max_steps = saves ? 10 : 3;
        config.checkpoint.enabled = saves;
        config.checkpoint.every = 3;
        const auto ended = try_world(2, [&](context& ctx) {
            auto net = make_net();
            sk::Trainer<sk::DDP<>, own_judge> trainer(ctx, config, own_judge{});
            (void)trainer.fit(net, sk::SGD{}, constant_rate{1e-2}, class_loss, numbers{60},
                              numbers{0});
        });
        for (const auto& why : ended) {
            REQUIRE(why);
            CHECK(why->code() == sk::errc::mismatch);
        }
        sk::posix_disk disk;
        if (saves)
            CHECK(
                checkpointer(disk, dir.path + "/" + config.name + "/checkpoints").steps().empty());
    }
}

TEST_CASE("a plan that nobody can hold ends the run with the rule and the number, on all ranks") {
    const auto said = [](const auto& rule) {
        const auto errors = refused(2, rule);
        REQUIRE(errors[0]);
        REQUIRE(errors[1]);
        CHECK(errors[0]->code() == sk::errc::usage);
        CHECK(errors[1]->code() == sk::errc::usage);
        return std::string(errors[0]->what());
    };
    CHECK_THAT(said(sk::batch_growth({.at_steps = {1, 2, 3}})),
               ContainsSubstring("batch_growth asks for a global batch of 96 samples, the data set "
                                 "has 60 after step 3") &&
                   ContainsSubstring("a max of at most 60"));
    CHECK_THAT(said(own_rule{2, {1, 1, 1.0, 1.0}}),
               ContainsSubstring("own_rule asks for a global batch of 1 samples") &&
                   ContainsSubstring("2 ranks"));
    CHECK_THAT(said(own_rule{2, {12, 1, std::numeric_limits<double>::quiet_NaN(), 1.0}}),
               ContainsSubstring("own_rule asks for a rate factor of nan after step 2"));
}

TEST_CASE("a step that is left out for its loss changes nothing but the place in the data") {
    const sk::loss_spike rule({.factor = 5, .warmup = 3});
    const auto spiked = [](Net& m, const sample_batch& b, std::uint64_t step) {
        return class_loss(m, b) * (step == 6 ? 100.0 : 1.0);
    };
    const auto without = [](std::uint64_t step) { return step == 6 ? 0.0 : 1e-2; };
    for (const int world : {1, 2}) {
        scratch dir;
        auto config = files_config(dir);
        config.max_steps = 10;
        const auto whole =
            train_on<numbers>(world, config, constant_rate{1e-2}, spiked, killer{}, rule);
        config.name = "without";
        const auto reference = train_on<numbers>(world, config, without, plain_loss);
        CHECK(whole.weights == reference.weights);
        CHECK_THAT(whole.events, ContainsSubstring("{\"step\":7,\"rule\":\"loss_spike\",\"what\":"
                                                   "\"step\",\"from\":\"apply\",\"to\":"
                                                   "\"leave_out\",\"why\":\"loss is "));
        CHECK(std::ranges::count(whole.events, '\n') == 1);
        for (const std::uint64_t kill : {6, 7, 8}) {
            config.name = "killed-" + std::to_string(kill);
            config.resume = resume_mode::fresh;
            CHECK_THROWS_AS(
                train_on<numbers>(world, config, constant_rate{1e-2}, spiked, killer{kill}, rule),
                sk::error);
            config.resume = resume_mode::latest;
            const auto rest =
                train_on<numbers>(world, config, constant_rate{1e-2}, spiked, killer{}, rule);
            CHECK(rest.csv == whole.csv);
            CHECK(rest.events == whole.events);
            CHECK(rest.weights == whole.weights);
        }
    }
}

TEST_CASE("a loss that is not finite can be left out, and ends the run where nobody does") {
    const auto broken = [](Net& m, const sample_batch& b, std::uint64_t step) {
        const auto loss = class_loss(m, b);
        return step == 2 ? loss * std::numeric_limits<double>::quiet_NaN() : loss;
    };
    for (const int world : {1, 2}) {
        scratch dir;
        auto config = quiet_config(dir.path);
        config.max_steps = 4;
        const auto rate = constant_rate{1e-2};
        const auto left = train_on<numbers>(world, config, rate, broken,
                                            sk::loss_spike({.factor = 5, .warmup = 10}));
        const auto reference = train_on<numbers>(
            world, config, [](std::uint64_t step) { return step == 2 ? 0.0 : 1e-2; }, plain_loss);
        CHECK(left.weights == reference.weights);
        const auto said = [&](auto rule) {
            try {
                (void)train_on<numbers>(world, config, rate, broken, rule);
            } catch (const sk::error& why) {
                CHECK(why.code() == sk::errc::not_finite);
                return std::string(why.what());
            }
            return std::string();
        };
        CHECK_THAT(said(sk::loss_spike({.factor = 5, .then = verdict::end})),
                   ContainsSubstring("loss_spike ends the run at step 3: loss is nan"));
        struct blind {
            void on_agreed(const step_info&) const {}
        };
        CHECK_THAT(said(blind{}), ContainsSubstring("the loss is not finite on rank"));
    }
}

TEST_CASE("a number that is good enough ends the run behind the next step, with an event") {
    for (const int world : {1, 2}) {
        scratch dir;
        auto config = files_config(dir);
        config.max_steps = 20;
        const sk::stop_at rule({.metric = "val_loss", .value = 100.0, .at_least = false});
        const auto whole = train(world, config, killer{}, rule);
        CHECK(whole.result.stopped);
        CHECK(whole.result.steps == 3);
        CHECK_THAT(whole.result.stop_reason, ContainsSubstring("stop_at: val_loss is "));
        CHECK_THAT(whole.events, ContainsSubstring("{\"step\":2,\"rule\":\"stop_at\",\"what\":"
                                                   "\"run\",\"from\":\"go_on\",\"to\":\"stop\""));
        CHECK(std::ranges::count(whole.events, '\n') == 1);
        expect_same_after_kills(world, config, whole, {3}, rule);
    }
}

} // namespace session_plan_test
