// SPDX-License-Identifier: Apache-2.0
// What callbacks say of steps besides decisions: a rate for each, what it is worth, a word of rank 0, a
// plan for another world.
#include <tests/support/csv_column.hpp>
#include <tests/train/train_support.hpp>

#include <skein/train/batch_growth.hpp>
#include <skein/train/steering.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <array>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

using namespace train_test;
using Catch::Matchers::ContainsSubstring;
using sk::test::csv_column;

namespace steering_test {

namespace {

struct outcome {
    fit_result result;
    std::vector<float> weights;
    std::string csv, events;
};

std::string text_of(const run_config& config, const char* file) {
    std::ifstream in(config.runs_dir + "/" + config.name + "/" + file);
    return std::string(std::istreambuf_iterator<char>(in), {});
}

/// A run of so many ranks; each has callbacks of its own.
template <class... Rules, class Make>
outcome train_with(int world, const run_config& config, const schedule& rate, Make make) {
    outcome out;
    run_world(world, [&](context& ctx) {
        auto net = make_net();
        const numbers data{60};
        auto trainer = make(ctx);
        const auto done = trainer.fit(net, sk::SGD{}, rate, class_loss, data, numbers{6});
        if (!ctx.is_first()) return;
        out.result = done;
        out.weights = weights(*net);
    });
    out.csv = text_of(config, "metrics.csv");
    out.events = text_of(config, "events.jsonl");
    return out;
}

run_config files_config(const scratch& dir) {
    auto config = quiet_config(dir.path);
    config.checkpoint.enabled = config.write_files = true;
    config.checkpoint.every = 1;
    config.checkpoint.keep_last = 100;
    return config;
}

/// Rank 0 knows how often it was asked; the others hear it.
struct talker {
    static constexpr std::size_t word_size = 2;
    int rank = 0;
    double asked = 0;
    std::vector<double> heard{};
    std::array<double, 2> word() {
        expect(rank == 0);
        asked += 1;
        return {asked, asked == 3 ? std::nan("") : -asked};
    }
    void on_step(const step_info& s) {
        expect(s.word.size() == 2);
        expect(std::isnan(s.word[1]) ? s.word[0] == 3 : s.word[1] == -s.word[0]);
        heard.push_back(s.word[0]);
    }
};
struct second_talker {
    static constexpr std::size_t word_size = 1;
    std::array<double, 1> word() { return {0.5}; }
    void on_step(const step_info& s) { expect(s.word.size() == 1 && s.word[0] == 0.5); }
};
struct quiet_one {
    void on_step(const step_info& s) { expect(s.word.empty()); }
};

/// The rate of each step is multiplied by a number of it.
struct wavy {
    double also = 1.0;
    [[nodiscard]] double rate(const rate_info& s) const {
        return also * (1.0 + 0.5 * static_cast<double>(s.step % 2));
    }
};

/// The batch is four times as large from a step on, and each is worth the root of that.
struct worth_root {
    std::uint64_t from = 2;
    [[nodiscard]] double gain(double scale) const { return std::sqrt(scale); }
    decision on_step(const step_info& s) const {
        if (s.step != from) return {};
        auto next = *s.plan;
        next.global_batch *= 4;
        return {.plan = next, .why = "a test"};
    }
};

struct killer {
    std::uint64_t step = 0;
    void on_step(const step_info& s) const {
        if (s.step == step) throw sk::error(sk::errc::io, "killed");
    }
};

struct half_at {
    std::uint64_t step = 0;
    decision on_step(const step_info& s) const {
        if (s.step != step) return {};
        auto next = *s.plan;
        next.rate_factor *= 0.5;
        return {.plan = next, .why = "a test"};
    }
};

struct plan_watch {
    std::int64_t* parts;
    void on_step(const step_info& s) const { *parts = s.plan->micro_batches; }
};

struct no_gain {
    static constexpr std::string_view rule_name = "no_gain";
    [[nodiscard]] double gain(double) const { return std::nan(""); }
    decision on_step(const step_info& s) const {
        auto next = *s.plan;
        next.global_batch = 24;
        return {.plan = next, .why = "a test"};
    }
};

/// Each rank is to have four samples.
struct four_each {
    [[nodiscard]] decision on_world(const world_change& w) const {
        auto next = *w.plan;
        next.global_batch = 4 * w.world_size;
        return {.plan = next, .why = "four each"};
    }
};

} // namespace

TEST_CASE("steering: all ranks hear the word of rank 0, each callback its own",
          "[train][adaptive]") {
    for (const int world : {1, 3}) {
        scratch dir;
        auto config = files_config(dir);
        config.max_steps = 5;
        const auto run = train_with(world, config, constant_rate{1e-2}, [&](context& ctx) {
            return sk::Trainer<sk::DDP<>, talker, quiet_one, second_talker>(
                ctx, config, talker{.rank = ctx.rank()}, quiet_one{}, second_talker{});
        });
        CHECK(run.result.steps == 5);
        CHECK_THAT(run.csv, !ContainsSubstring("word")); // they are no columns
    }
}

TEST_CASE("steering: a step has the rate that callbacks give it", "[train][adaptive]") {
    for (const int world : {1, 2}) {
        scratch dir;
        auto config = files_config(dir);
        config.max_steps = 4;
        const auto run = train_with(world, config, constant_rate{1e-2}, [&](context& ctx) {
            return sk::Trainer<sk::DDP<>, wavy, wavy>(ctx, config, wavy{}, wavy{.also = 2.0});
        });
        CHECK(csv_column(run.csv, "lr") == std::vector{4.5e-2, 2e-2, 4.5e-2, 2e-2});
        CHECK(run.events.empty()); // it is no event
    }
}

TEST_CASE("steering: ranks whose rates differ end at that step", "[train][adaptive]") {
    scratch dir;
    const auto config = quiet_config(dir.path);
    const auto errors = try_world(2, [&](context& ctx) {
        auto net = make_net();
        const numbers data{60};
        sk::Trainer<sk::DDP<>, wavy> trainer(ctx, config, wavy{.also = 1.0 + ctx.rank()});
        (void)trainer.fit(net, sk::SGD{}, constant_rate{1e-2}, class_loss, data, numbers{0});
    });
    REQUIRE(errors[0]);
    CHECK(errors[0]->code() == sk::errc::mismatch);
    CHECK_THAT(errors[0]->what(), ContainsSubstring("rate of the step x 1.5, rank 1 has"));
}

TEST_CASE("steering: a run goes by what its steps are worth", "[train][adaptive]") {
    // 12 samples a step, 5 steps an epoch, 6 epochs: 30 steps of the first batch. Two of them, then
    // steps of 48 samples worth two each.
    const schedule rate = warmup_cosine{.peak = 1e-2, .warmup = 0, .total = 30};
    for (const int world : {1, 2}) {
        scratch dir;
        auto config = files_config(dir);
        config.max_steps = 0;
        config.epochs = 6;
        const auto make = [&](std::uint64_t kill) {
            return [&config, kill](context& ctx) {
                return sk::Trainer<sk::DDP<>, killer, worth_root>(ctx, config, killer{kill},
                                                                  worth_root{});
            };
        };
        const auto whole = train_with(world, config, rate, make(0));
        CHECK(whole.result.steps == 2 + 14);
        const auto rates = csv_column(whole.csv, "lr");
        REQUIRE(rates.size() == 16);
        for (std::size_t step = 2; step < 16; ++step)
            CHECK_THAT(rates[step], Catch::Matchers::WithinRel(rate(2 + 2 * (step - 2)), 1e-9));
        CHECK_THAT(whole.events, ContainsSubstring("\"global_batch\",\"from\":12,\"to\":48"));
        for (const std::uint64_t kill : {1, 2, 3, 9}) {
            INFO(world << " ranks, killed behind step " << kill);
            scratch again;
            config.runs_dir = again.path;
            config.resume = resume_mode::fresh;
            CHECK_THROWS_AS(train_with(world, config, rate, make(kill)), sk::error);
            config.resume = resume_mode::latest;
            const auto rest = train_with(world, config, rate, make(0));
            CHECK(rest.result.steps == whole.result.steps);
            CHECK(rest.csv == whole.csv);
            CHECK(rest.events == whole.events);
            CHECK(rest.weights == whole.weights);
        }
    }
}

TEST_CASE("steering: a run whose batch stays is as long with a measured gain as without",
          "[train][adaptive]") {
    for (const auto last : {last_batch::drop, last_batch::shorten, last_batch::carry}) {
        scratch dir;
        auto config = files_config(dir);
        config.max_steps = 0;
        config.epochs = 3;
        config.global_batch = 16; // 3.75 steps an epoch
        config.last = last;
        const auto steps = [&](auto... rules) {
            return train_with(1, config, constant_rate{1e-2},
                              [&](context& ctx) {
                                  return sk::Trainer<sk::DDP<>, decltype(rules)...>(ctx, config,
                                                                                    rules...);
                              })
                .result.steps;
        };
        const auto without = steps();
        CHECK(steps(worth_root{.from = 1000}) == without);
    }
}

TEST_CASE("steering: in each world a rule says what its steps are", "[train][adaptive]") {
    scratch dir;
    auto config = files_config(dir);
    config.max_steps = 6;
    const auto make = [&](std::uint64_t kill) {
        return [&config, kill](context& ctx) {
            return sk::Trainer<sk::DDP<>, killer, four_each>(ctx, config, killer{kill},
                                                             four_each{});
        };
    };
    CHECK_THROWS_AS(train_with(2, config, constant_rate{1e-2}, make(3)), sk::error);
    CHECK_THAT(text_of(config, "events.jsonl"), ContainsSubstring("\"from\":12,\"to\":8"));
    config.resume = resume_mode::latest;
    const auto rest = train_with(3, config, constant_rate{1e-2}, make(0));
    // The newest checkpoint is that of step 2. 72 samples: 16 of them by two ranks.
    CHECK(csv_column(rest.csv, "global_batch") == std::vector<double>{8, 8, 12, 12, 12, 12, 12});
}

TEST_CASE("steering: a plan that another number of ranks cannot hold is cut, which is an event",
          "[train][adaptive]") {
    scratch dir;
    auto config = files_config(dir);
    config.max_steps = 6;
    config.accumulation = 3;
    const auto make = [&](std::uint64_t kill) {
        return [&config, kill](context& ctx) {
            return sk::Trainer<sk::DDP<>, killer, sk::batch_growth>(
                ctx, config, killer{kill},
                sk::batch_growth({.at_steps = {1}, .max = 14, .more_micro_batches = true}));
        };
    };
    CHECK_THROWS_AS(train_with(1, config, constant_rate{1e-2}, make(3)), sk::error);
    CHECK_THAT(text_of(config, "events.jsonl"),
               ContainsSubstring("\"micro_batches\",\"from\":3,\"to\":4"));
    config.resume = resume_mode::latest;
    const auto rest =
        train_with(4, config, constant_rate{1e-2}, make(0)); // 16 parts for 14 samples
    CHECK_THAT(
        rest.events,
        ContainsSubstring("\"rule\":\"world\",\"what\":\"micro_batches\",\"from\":4,\"to\":3"));
}

TEST_CASE("steering: what a world has cut comes back, also behind another rule's decision",
          "[train][adaptive]") {
    scratch dir;
    auto config = files_config(dir);
    config.max_steps = 8;
    config.accumulation = 3;
    const auto make = [&](std::uint64_t kill) {
        return [&config, kill](context& ctx) {
            return sk::Trainer<sk::DDP<>, killer, sk::batch_growth, half_at>(
                ctx, config, killer{kill},
                sk::batch_growth({.at_steps = {1}, .max = 14, .more_micro_batches = true}),
                half_at{5});
        };
    };
    CHECK_THROWS_AS(train_with(1, config, constant_rate{1e-2}, make(4)), sk::error);
    config.resume = resume_mode::latest;
    CHECK_THROWS_AS(train_with(4, config, constant_rate{1e-2}, make(7)), sk::error); // cut to 3
    std::int64_t parts = 0;
    run_world(1, [&](context& ctx) {
        auto net = make_net();
        const numbers data{60};
        sk::Trainer<sk::DDP<>, killer, sk::batch_growth, half_at, plan_watch> trainer(
            ctx, config, killer{},
            sk::batch_growth({.at_steps = {1}, .max = 14, .more_micro_batches = true}), half_at{5},
            plan_watch{&parts});
        (void)trainer.fit(net, sk::SGD{}, constant_rate{1e-2}, class_loss, data, numbers{6});
    });
    CHECK_THAT(text_of(config, "events.jsonl"),
               ContainsSubstring("\"rate_factor\",\"from\":1.0,\"to\":0.5"));
    CHECK(parts == 4);
}

TEST_CASE("steering: a rate or a gain that is no number is refused with the callback",
          "[train][adaptive]") {
    scratch dir;
    const auto config = quiet_config(dir.path);
    const auto says = [&](auto rule) {
        auto ctx = context::single();
        auto net = make_net();
        const numbers data{60};
        sk::Trainer<sk::DDP<>, decltype(rule)> trainer(ctx, config, rule);
        try {
            (void)trainer.fit(net, sk::SGD{}, constant_rate{1e-2}, class_loss, data, numbers{0});
        } catch (const sk::error& why) {
            return std::string(why.what());
        }
        return std::string();
    };
    CHECK_THAT(says(wavy{.also = std::nan("")}), ContainsSubstring("rate is nan"));
    CHECK_THAT(says(wavy{.also = -1.0}), ContainsSubstring("rate is -1"));
    CHECK_THAT(says(no_gain{}), ContainsSubstring("no_gain's gain is nan"));
}

TEST_CASE("steering: what a measured gain cannot have is refused by name", "[train][adaptive]") {
    scratch dir;
    const auto config = quiet_config(dir.path);
    struct stream {
        std::optional<sample_batch> next(const stream_share&) { return std::nullopt; }
        [[nodiscard]] std::uint64_t samples(const sample_batch& b) const { return b.ids.size(); }
        [[nodiscard]] std::string state() const { return {}; }
        void restore(std::string_view) {}
    };
    auto ctx = context::single();
    auto net = make_net();
    stream data;
    sk::Trainer<sk::DDP<>, worth_root> trainer(ctx, config, worth_root{});
    try {
        (void)trainer.fit(net, sk::SGD{}, constant_rate{1e-2}, class_loss, data, numbers{0});
        FAIL("it was taken");
    } catch (const sk::error& why) {
        CHECK(why.code() == sk::errc::not_supported);
        CHECK_THAT(why.what(), ContainsSubstring("with a stream"));
    }
}

} // namespace steering_test
