// SPDX-License-Identifier: Apache-2.0
// Steps that are driven by hand, taken back and begun again; what fit() refuses, keeps and
// survives.
#include <tests/train/train_support.hpp>

#include <skein/spmd/supervisor.hpp>
#include <skein/train/checkpoint.hpp>

#include <skein/train/zero.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <system_error>

#include <unistd.h>

using namespace train_test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// One fit() in this process; the error it ends with, or nothing.
template <class Loss, class... Callbacks>
std::optional<sk::error> fit_alone(const run_config& config, Loss loss, std::uint64_t held_out = 4,
                                   Callbacks... callbacks) {
    auto ctx = context::single();
    auto net = make_net();
    sk::Trainer<sk::Single, Callbacks...> trainer(ctx, config, callbacks...);
    try {
        (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-3}, loss, numbers{64},
                          numbers{held_out});
    } catch (const sk::error& why) {
        return why;
    }
    return std::nullopt;
}

run_config written_config(const scratch& dir) {
    auto config = quiet_config(dir.path);
    config.max_steps = 4;
    config.write_files = config.checkpoint.enabled = true;
    config.checkpoint.every = 2;
    config.eval_every = 2;
    return config;
}

std::string all_files(const std::string& folder) {
    std::string out;
    std::vector<std::filesystem::path> paths;
    for (const auto& e : std::filesystem::recursive_directory_iterator(folder))
        if (e.is_regular_file()) paths.push_back(e.path());
    std::sort(paths.begin(), paths.end());
    for (const auto& p : paths) {
        std::ifstream in(p, std::ios::binary);
        out += p.string() + ":" + std::string(std::istreambuf_iterator<char>(in), {}) + "\n";
    }
    return out;
}

} // namespace

TEST_CASE("a submodule that is in eval mode on purpose stays there, in training and evaluation") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.max_steps = 4;
    config.eval_every = 2;
    auto ctx = context::single();
    auto net = make_net();
    net->norm->eval();
    int trained = 0, evaluated = 0;
    const auto loss = [&](Net& m, const sample_batch& b) {
        CHECK_FALSE(m->norm->is_training());
        CHECK(m->in->is_training() == m->is_training());
        ++(m->is_training() ? trained : evaluated);
        return class_loss(m, b);
    };
    sk::Trainer<sk::Single> trainer(ctx, config);
    (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-3}, loss, numbers{64}, numbers{4});
    CHECK(trained == 4);
    CHECK(evaluated == 2);
    CHECK_FALSE(net->norm->is_training());
    CHECK(net->is_training());
    net->eval(); // as a whole: it is to be trained all the same
    const auto again = [&](Net& m, const sample_batch& b) { return class_loss(m, b); };
    (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-3}, again, numbers{64}, numbers{4});
    CHECK(net->norm->is_training());
}

TEST_CASE(
    "a parameter frozen during training stays as it is, one unfrozen then is refused by name") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.max_steps = 6;
    auto ctx = context::single();
    auto net = make_net();
    std::vector<float> frozen_at;
    int calls = 0;
    const auto freeze = [&](Net& m, const sample_batch& b) {
        if (m->is_training() && ++calls == 3) {
            for (auto& p : m->in->parameters()) p.set_requires_grad(false);
            frozen_at = weights(*m->in);
        }
        return class_loss(m, b);
    };
    sk::Trainer<sk::Single> trainer(ctx, config);
    (void)trainer.fit(net, sk::AdamW{.weight_decay = 0.5}, constant_rate{1e-2}, freeze, numbers{64},
                      numbers{4});
    CHECK(weights(*net->in) == frozen_at);
    calls = 0;
    const auto thaw = [&](Net& m, const sample_batch& b) {
        if (++calls == 2) m->in->weight.set_requires_grad(true);
        return class_loss(m, b);
    };
    try {
        (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, thaw, numbers{64}, numbers{0});
        FAIL("trained on");
    } catch (const sk::error& why) {
        CHECK(why.code() == sk::errc::not_supported);
        CHECK_THAT(why.what(), ContainsSubstring("in.weight") && ContainsSubstring("frozen"));
    }
}

TEST_CASE("a parameter that no rank's loss depends on is not decayed, also over ranks") {
    struct ForkImpl : torch::nn::Module {
        ForkImpl() : used(8, 4), unused(8, 4) {
            register_module("used", used);
            register_module("unused", unused);
        }
        torch::nn::Linear used, unused;
    };
    scratch dir;
    auto config = quiet_config(dir.path);
    config.max_steps = 3;
    for (const int world : {1, 2})
        run_world(world, [&](context& ctx) {
            auto model = [] {
                const std::lock_guard lock(model_guard);
                torch::manual_seed(1);
                return std::make_shared<ForkImpl>();
            }();
            const auto before = weights(*model->unused);
            const auto used = weights(*model->used);
            const auto loss = [](std::shared_ptr<ForkImpl>& m, const sample_batch& b) {
                return torch::nn::functional::cross_entropy(m->used(b.x), b.y);
            };
            sk::Trainer<sk::DDP<tiny_buckets>> trainer(ctx, config);
            (void)trainer.fit(model, sk::AdamW{.weight_decay = 0.5}, constant_rate{1e-2}, loss,
                              numbers{64}, numbers{0});
            expect(weights(*model->unused) == before);
            expect(weights(*model->used) != used);
        });
}

TEST_CASE(
    "numbers that a loss reports are there when the evaluation set is smaller than the world") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.max_steps = 1;
    struct keep {
        std::vector<metric_value>* out;
        void on_eval(const eval_info& e) {
            if (e.rank == 2) *out = *e.metrics;
        }
    };
    std::vector<metric_value> seen;
    run_world(3, [&](context& ctx) {
        auto net = make_net();
        sk::Trainer<sk::DDP<>, keep> trainer(ctx, config, keep{&seen});
        const auto loss = [](Net& m, const sample_batch& b, metric_set& metrics) {
            metrics.sum("seen", static_cast<double>(b.ids.size())).mean("id", double(b.ids[0]));
            return class_loss(m, b);
        };
        (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-3}, loss, numbers{64}, numbers{2});
    });
    REQUIRE(find_metric(seen, "val_seen"));
    CHECK(*find_metric(seen, "val_seen") == 2.0);
    CHECK(*find_metric(seen, "val_id") == 0.5);
}

TEST_CASE("a refused resume leaves the run's files as they are") {
    scratch dir;
    auto config = written_config(dir);
    REQUIRE_FALSE(fit_alone(config, class_loss));
    const auto before = all_files(dir.path);
    config.resume = resume_mode::latest;
    config.seed += 1;
    const auto why = fit_alone(config, class_loss);
    REQUIRE(why);
    CHECK(why->code() == sk::errc::mismatch);
    CHECK(all_files(dir.path) == before);
}

TEST_CASE("a resume with every checkpoint damaged is refused and cuts nothing") {
    scratch dir;
    auto config = written_config(dir);
    REQUIRE_FALSE(fit_alone(config, class_loss));
    for (const char* step : {"2", "4"})
        std::filesystem::resize_file(
            dir.path + "/run/checkpoints/step-0000000" + step + "/manifest.json", 3);
    const auto before = all_files(dir.path);
    config.resume = resume_mode::latest;
    for (int again = 0; again < 2; ++again) {
        const auto why = fit_alone(config, class_loss);
        REQUIRE(why);
        CHECK(why->code() == sk::errc::not_found);
        CHECK(sk::spmd::is_lasting(why->code())); // no supervisor tries it again
        CHECK_THAT(why->what(), ContainsSubstring("another run name"));
        CHECK(all_files(dir.path) == before);
    }
}

TEST_CASE("the trainer's own names are refused at the first report, and stop stops nothing") {
    scratch dir;
    const auto config = quiet_config(dir.path);
    for (const char* name : {"loss", "lr", "grad_norm", "stop", "step", "val_loss"}) {
        const auto why = fit_alone(config, [&](Net& m, const sample_batch& b, metric_set& metrics) {
            metrics.max(name, 1.0);
            return class_loss(m, b);
        });
        REQUIRE(why);
        CHECK(why->code() == sk::errc::usage);
        CHECK_THAT(why->what(), ContainsSubstring("'" + std::string(name) + "' is taken"));
        auto ctx = context::single();
        sk::Trainer<sk::Single> trainer(ctx, config);
        CHECK_THROWS_AS(trainer.report(metric_kind::max, name, 1.0), sk::error);
    }
}

TEST_CASE("a metric of the best checkpoints that no evaluation gives is refused with the names "
          "there are") {
    scratch dir;
    auto config = written_config(dir);
    config.checkpoint.keep_best.metric = "val_los";
    const auto why = fit_alone(config, [](Net& m, const sample_batch& b, metric_set& metrics) {
        metrics.sum("hits", 1.0);
        return class_loss(m, b);
    });
    REQUIRE(why);
    CHECK(why->code() == sk::errc::usage);
    CHECK_THAT(why->what(), ContainsSubstring("'val_los'") &&
                                ContainsSubstring(R"(there are: "loss", "val_loss", "val_hits")"));
    config.name = "right";
    config.checkpoint.keep_best.metric = "loss";
    CHECK_FALSE(fit_alone(config, class_loss));
}

TEST_CASE(
    "what loss or data throw is named with type, rank and step, and is no reason to try again") {
    scratch dir;
    const auto config = quiet_config(dir.path);
    int calls = 0;
    const auto third = [&](auto thrown) {
        calls = 0;
        return fit_alone(config, [&](Net& m, const sample_batch& b) {
            if (++calls == 3) throw thrown;
            return class_loss(m, b);
        });
    };
    const auto own = third(std::out_of_range("no such word"));
    REQUIRE(own);
    CHECK(own->code() == sk::errc::invalid_argument); // lasting: the supervisor gives up at once
    CHECK_THAT(own->what(), ContainsSubstring("std::out_of_range") &&
                                ContainsSubstring("rank 0 at step 3") &&
                                ContainsSubstring("no such word"));
    CHECK(third(std::system_error(EIO, std::generic_category(), "shard"))->code() == sk::errc::io);
    CHECK_THAT(third(7)->what(), ContainsSubstring("threw int on rank 0 at step 3"));
    const auto ours = third(sk::error(sk::errc::io, "the tape is gone"));
    CHECK(ours->code() == sk::errc::io);
    CHECK_THAT(ours->what(), ContainsSubstring("rank 0 at step 3"));

    const auto torchs = fit_alone(config, [](Net& m, const sample_batch&) {
        return m->forward(torch::zeros({2, 5})).mean();
    });
    REQUIRE(torchs);
    CHECK_THAT(torchs->what(), ContainsSubstring("c10::") &&
                                   ContainsSubstring("rank 0 at step 1") &&
                                   !ContainsSubstring("Exception raised from"));
}

TEST_CASE("a loss that is no single number is an error with its shape") {
    scratch dir;
    const auto config = quiet_config(dir.path);
    const auto why =
        fit_alone(config, [](Net& m, const sample_batch& b) { return m->forward(b.x); });
    REQUIRE(why);
    CHECK_THAT(why->what(), ContainsSubstring("it has the shape [12, 4]") &&
                                ContainsSubstring("rank 0 at step 1"));
    const auto none = fit_alone(config, [](Net&, const sample_batch&) { return torch::Tensor(); });
    REQUIRE(none);
    CHECK_THAT(none->what(), ContainsSubstring("no tensor"));
}

TEST_CASE("files that cannot be written for a while do not end the training, and no row is lost") {
    scratch dir, undisturbed;
    auto config = written_config(dir);
    config.max_steps = 8;
    struct spoiler {
        std::string folder;
        void on_step(const step_info& s) { // before the row of this step is written
            namespace fs = std::filesystem;
            const auto csv = folder + "/metrics.csv", svg = folder + "/loss.svg";
            if (s.step == 3) {
                fs::rename(csv, csv + ".away");
                fs::create_directory(csv);
                fs::remove(svg);
                fs::create_directory(svg);
            }
            if (s.step == 6) {
                fs::remove(csv);
                fs::rename(csv + ".away", csv);
                fs::remove(svg);
            }
        }
    };
    REQUIRE_FALSE(fit_alone(config, class_loss, 4, spoiler{dir.path + "/run"}));
    config.runs_dir = undisturbed.path;
    REQUIRE_FALSE(fit_alone(config, class_loss));
    CHECK(dir.text("run/metrics.csv") == undisturbed.text("run/metrics.csv"));
    CHECK(dir.text("run/loss.svg") == undisturbed.text("run/loss.svg"));
}

TEST_CASE("ranks with different settings or data are refused with the setting and both values") {
    scratch dir;
    const auto refused =
        [&](const std::function<void(context&, run_config&, double&, numbers&)>& change) {
            auto errors = try_world(2, [&](context& ctx) {
                auto config = quiet_config(dir.path);
                double lr = 1e-3;
                numbers data{64};
                if (ctx.rank() == 1) change(ctx, config, lr, data);
                auto net = make_net();
                sk::Trainer<sk::DDP<>> trainer(ctx, config);
                (void)trainer.fit(net, sk::AdamW{}, constant_rate{lr}, class_loss, data,
                                  numbers{4});
            });
            REQUIRE(errors[0]);
            REQUIRE(errors[1]);
            CHECK(errors[0]->code() == sk::errc::mismatch);
            CHECK(errors[1]->code() == sk::errc::mismatch);
            return std::string(errors[0]->what());
        };
    CHECK_THAT(refused([](context&, run_config&, double& lr, numbers&) { lr = 0.25; }),
               ContainsSubstring("rank 1 has learning rate 0.25, rank 0 has 0.001"));
    CHECK_THAT(refused([](context&, run_config& c, double&, numbers&) { c.global_batch = 16; }),
               ContainsSubstring("rank 1 has global_batch 16, rank 0 has 12"));
    CHECK_THAT(refused([](context&, run_config& c, double&, numbers&) { c.seed = 9; }),
               ContainsSubstring("rank 1 has seed 9, rank 0 has 1"));
    CHECK_THAT(refused([](context&, run_config&, double&, numbers& d) { d.n = 60; }),
               ContainsSubstring("rank 1 has samples 60, rank 0 has 64"));
}

TEST_CASE("programs get evaluations and checkpoints as events, and steps with all their numbers") {
    scratch dir;
    auto config = written_config(dir);
    config.output = output_mode::json;
    std::fflush(stdout);
    const int saved = ::dup(1);
    std::FILE* const to = std::fopen((dir.path + "/out").c_str(), "w");
    ::dup2(::fileno(to), 1);
    const auto why = fit_alone(config, [](Net& m, const sample_batch& b, metric_set& metrics) {
        metrics.sum("hits", 2.0);
        return class_loss(m, b);
    });
    std::fflush(stdout);
    ::dup2(saved, 1);
    ::close(saved);
    std::fclose(to);
    INFO((why ? why->what() : "no error"));
    CHECK_FALSE(why);
    const auto text = dir.text("out");
    CHECK_THAT(text,
               ContainsSubstring("{\"event\":\"eval\",\"step\":2,\"metrics\":{\"val_loss\":") &&
                   ContainsSubstring("\"val_hits\":") &&
                   ContainsSubstring("{\"event\":\"checkpoint\",\"step\":4,\"path\":") &&
                   ContainsSubstring("\"grad_norm\":") && ContainsSubstring("\"hits\":2.0"));
}

// ---- a loop of one's own ------------------------------------------------------------------------

namespace {

/// All that a step could leave behind: numbers drawn for dropout, running statistics.
struct DriftingImpl : torch::nn::Module {
    explicit DriftingImpl(double p) : in(8, 16), norm(16), drop(p), out(16, 4) {
        register_module("in", in);
        register_module("norm", norm);
        register_module("drop", drop);
        register_module("out", out);
    }
    torch::Tensor forward(const torch::Tensor& x) { return out(drop(torch::tanh(norm(in(x))))); }
    torch::nn::Linear in;
    torch::nn::BatchNorm1d norm;
    torch::nn::Dropout drop;
    torch::nn::Linear out;
};
TORCH_MODULE(Drifting);

struct drifting_run {
    std::vector<float> weights, statistics;
    std::vector<std::uint64_t> order; ///< samples of rank 0, of committed steps
    double loss = 0, val_loss = 0;
    std::uint64_t steps = 0;

    friend bool operator==(const drifting_run&, const drifting_run&) = default;
};

const auto counted_loss = [](auto& m, const sample_batch& b, metric_set& metrics) {
    metrics.sum("seen", static_cast<double>(b.ids.size()));
    return class_loss(m, b);
};

run_config drifting_config(const scratch& dir) {
    auto config = quiet_config(dir.path);
    config.max_steps = 9;
    config.accumulation = 2;
    config.eval_every = 3;
    config.checkpoint.every = 4;
    config.checkpoint.keep_best.k = 0;
    config.write_files = config.checkpoint.enabled = true;
    return config;
}

Drifting make_drifting(int world) {
    const std::lock_guard lock(model_guard);
    torch::manual_seed(42);
    return Drifting(world == 1 ? 0.3 : 0.0); // ranks that are threads share one generator
}

void take_results(const context& ctx, Drifting& net, const fit_result& r, drifting_run& out) {
    if (!ctx.is_first()) return;
    out.weights = weights(*net);
    const auto mean = net->norm->running_mean.contiguous();
    out.statistics.assign(mean.data_ptr<float>(), mean.data_ptr<float>() + mean.numel());
    out.loss = r.loss;
    out.val_loss = r.val_loss;
    out.steps = r.steps;
}

enum class taken_back { never, in_the_middle, computed, agreed };

/// The loop of one's own; each step is taken back once where it says.
template <class Strategy>
drifting_run loop_by_hand(int world, const run_config& config, taken_back where) {
    drifting_run out;
    run_world(world, [&](context& ctx) {
        auto net = make_drifting(world);
        const numbers data{64}, held_out{10};
        auto loss = counted_loss;
        sk::Trainer<Strategy> trainer(ctx, config);
        auto session = trainer.open(net, sk::AdamW{}, constant_rate{1e-2});
        session.evaluate_on(net, loss, held_out);
        std::uint64_t taken = 0;
        for (auto& step : session.steps(data)) {
            const bool back =
                where != taken_back::never && std::exchange(taken, step.number()) < step.number();
            std::vector<std::uint64_t> seen;
            for (auto& micro : step) {
                session.report(metric_kind::sum, "seen", static_cast<double>(micro.ids.size()));
                seen.insert(seen.end(), micro.ids.begin(), micro.ids.end());
                session.backward(class_loss(net, micro));
                if (back && where == taken_back::in_the_middle) break;
            }
            if (back && where == taken_back::agreed) session.agree();
            if (back) {
                session.redo();
                continue;
            }
            if (ctx.is_first()) out.order.insert(out.order.end(), seen.begin(), seen.end());
        }
        take_results(ctx, net, session.finish(), out);
    });
    return out;
}

template <class Strategy>
drifting_run by_fit(int world, const run_config& config, std::uint64_t redo_in = 0) {
    drifting_run out;
    std::vector<int> left(static_cast<std::size_t>(world), redo_in > 0 ? 1 : 0);
    run_world(world, [&](context& ctx) {
        auto net = make_drifting(world);
        std::vector<std::uint64_t> order;
        std::uint64_t calls = 0;
        const auto loss = [&](Drifting& m, const sample_batch& b, metric_set& metrics) {
            if (m->is_training()) {
                order.insert(order.end(), b.ids.begin(), b.ids.end());
                if (++calls == redo_in && std::exchange(left[std::size_t(ctx.rank())], 0) > 0) {
                    order.resize(order.size() - b.ids.size());
                    if (redo_in % 2 == 0) order.resize(order.size() - b.ids.size());
                    (void)m->forward(b.x); // statistics and generator have moved
                    metrics.sum("seen", 1e6);
                    throw redo_step{};
                }
            }
            return counted_loss(m, b, metrics);
        };
        sk::Trainer<Strategy> trainer(ctx, config);
        const auto r =
            trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, loss, numbers{64}, numbers{10});
        take_results(ctx, net, r, out);
        if (ctx.is_first()) out.order = order;
    });
    return out;
}

template <class Strategy>
void redo_changes_nothing(int world) {
    scratch one;
    const auto whole = by_fit<Strategy>(world, drifting_config(one));
    const auto csv = one.text("run/metrics.csv");
    CHECK(csv.find("seen") != std::string::npos);
    for (const auto where :
         {taken_back::never, taken_back::in_the_middle, taken_back::computed, taken_back::agreed}) {
        INFO(world << " ranks, taken back at " << static_cast<int>(where));
        scratch two;
        CHECK(loop_by_hand<Strategy>(world, drifting_config(two), where) == whole);
        CHECK(two.text("run/metrics.csv") == csv);
    }
    for (const std::uint64_t call : {5u, 8u}) {
        scratch two;
        CHECK(by_fit<Strategy>(world, drifting_config(two), call) == whole);
        CHECK(two.text("run/metrics.csv") == csv);
    }
}

} // namespace

TEST_CASE("a loop of one's own, and steps that are taken back, give the bits and rows of fit()") {
    redo_changes_nothing<sk::Single>(1);
}

TEST_CASE("the same over ranks, where gradients and parameters are shared") {
    redo_changes_nothing<sk::DDP<tiny_buckets>>(2);
    redo_changes_nothing<sk::Zero2<>>(2);
}

TEST_CASE("a step that was taken back before an interruption is the same after a resume") {
    scratch one, two;
    const auto whole = by_fit<sk::Single>(1, drifting_config(one));
    auto config = drifting_config(two);
    config.max_steps = 5;
    auto first = loop_by_hand<sk::Single>(1, config, taken_back::agreed);
    config.max_steps = 9;
    config.resume = resume_mode::latest;
    const auto second = loop_by_hand<sk::Single>(1, config, taken_back::computed);
    first.order.insert(first.order.end(), second.order.begin(), second.order.end());
    CHECK(first.order == whole.order);
    CHECK(second.weights == whole.weights);
    CHECK(second.statistics == whole.statistics);
}

TEST_CASE("a session refuses calls that are out of order, with the call and the way out") {
    scratch dir;
    const auto config = quiet_config(dir.path);
    const auto refused = [&](auto body) {
        auto ctx = context::single();
        auto net = make_net();
        const numbers data{64};
        sk::Trainer<sk::Single> trainer(ctx, config);
        auto session = trainer.open(net, sk::AdamW{}, constant_rate{1e-2});
        try {
            body(session, net, data);
        } catch (const sk::error& why) {
            CHECK(why.code() == sk::errc::usage);
            return std::string(why.what());
        }
        return std::string("nothing was refused");
    };
    using train_session = sk::train::session;
    CHECK_THAT(refused([](train_session& s, Net&, const numbers&) { (void)s.draw(); }),
               ContainsSubstring("before steps()"));
    CHECK_THAT(refused([](train_session& s, Net&, const numbers&) { (void)s.finish(); }),
               ContainsSubstring("has not begun"));
    CHECK_THAT(
        refused([](train_session& s, Net&, const numbers& data) {
            for (auto& step : s.steps(data)) (void)step;
        }),
        ContainsSubstring("session.backward() was called for 0 of 1 micro-batches of step 1"));
    CHECK_THAT(refused([](train_session& s, Net& net, const numbers& data) {
                   for (auto& step : s.steps(data))
                       for (auto& micro : step) {
                           s.backward(class_loss(net, micro));
                           s.backward(class_loss(net, micro));
                       }
               }),
               ContainsSubstring("without a micro-batch in hand"));
    CHECK_THAT(refused([](train_session& s, Net& net, const numbers& data) {
                   for (auto& step : s.steps(data))
                       for (auto& micro : step)
                           s.backward(sk::weighted_loss{class_loss(net, micro), torch::ones({})});
               }),
               ContainsSubstring("expect_weights()"));
    CHECK_THAT(refused([](train_session& s, Net& net, const numbers& data) {
                   for (auto& step : s.steps(data)) {
                       for (auto& micro : step) s.backward(class_loss(net, micro));
                       s.agree();
                       s.apply();
                       CHECK(s.phase() == step_phase::applied);
                       s.redo();
                   }
               }),
               ContainsSubstring("step 1 is applied: it cannot be taken back"));
}

TEST_CASE("a rank whose own loop throws ends the others, and a session left early leaves nothing "
          "behind") {
    scratch dir;
    const auto config = quiet_config(dir.path);
    const auto errors = try_world(2, [&](context& ctx) {
        auto net = make_net();
        const numbers data{64};
        sk::Trainer<sk::DDP<>> trainer(ctx, config);
        auto session = trainer.open(net, sk::AdamW{}, constant_rate{1e-2});
        for (auto& step : session.steps(data)) {
            if (ctx.rank() == 1 && step.number() == 3) throw std::runtime_error("own words");
            for (auto& micro : step) session.backward(class_loss(net, micro));
        }
        (void)session.finish();
    });
    REQUIRE(errors[0]);
    REQUIRE(errors[1]);
    CHECK_THAT(errors[0]->what(), ContainsSubstring("rank 1"));
    CHECK_THAT(errors[1]->what(), ContainsSubstring("own words"));
}

TEST_CASE("a stop that one rank's callback asks for ends all ranks after the next step, with a "
          "checkpoint unless checkpoint.on_stop is false") {
    struct enough {
        int rank;
        action on_step(const step_info& s) {
            return s.rank == rank && s.step == 4 ? action::stop : action::go_on;
        }
    };
    scratch dir;
    auto config = quiet_config(dir.path);
    for (const bool on_stop : {true, false}) {
        config.checkpoint = {.every = 2, .on_stop = on_stop};
        config.name = on_stop ? "saves" : "does-not";
        std::vector<fit_result> results(2);
        run_world(2, [&](context& ctx) {
            auto net = make_net();
            sk::Trainer<sk::DDP<>, enough> trainer(ctx, config, enough{1});
            results[static_cast<std::size_t>(ctx.rank())] = trainer.fit(
                net, sk::AdamW{}, constant_rate{1e-2}, class_loss, numbers{64}, numbers{0});
        });
        for (const auto& r : results) {
            CHECK(r.stopped);
            CHECK(r.stop_signal == 0);
            CHECK(r.steps == 5);
            CHECK_THAT(r.checkpoint,
                       ContainsSubstring(on_stop ? "step-00000005" : "step-00000004"));
        }
    }
}

TEST_CASE("the time of a step is told in parts, to callbacks and in metrics.jsonl but not in "
          "metrics.csv") {
    struct keep {
        std::vector<step_timing>* out;
        void on_step(const step_info& s) {
            if (s.rank == 0) out->push_back(s.timing);
        }
    };
    scratch dir;
    auto config = quiet_config(dir.path);
    config.max_steps = 4;
    config.write_files = true;
    std::vector<step_timing> seen;
    run_world(2, [&](context& ctx) {
        auto net = make_net();
        sk::Trainer<sk::DDP<tiny_buckets>, keep> trainer(ctx, config, keep{&seen});
        (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, class_loss, numbers{64},
                          numbers{0});
    });
    REQUIRE(seen.size() == 4);
    for (const auto& t : seen) {
        CHECK(t.data >= 0.0);
        CHECK(t.forward > 0.0);
        CHECK(t.backward > 0.0);
        CHECK(t.exposed > 0.0);
        CHECK((t.overlap >= 0.0 && t.overlap <= 1.0));
    }
    CHECK(seen[0].optimizer == 0.0); // there is none before
    CHECK(seen[1].optimizer > 0.0);
    CHECK(dir.text("run/metrics.csv").find("exposed") == std::string::npos);
    CHECK_THAT(dir.text("run/metrics.jsonl"),
               ContainsSubstring("\"data_s\"") && ContainsSubstring("\"overlap\""));
}
