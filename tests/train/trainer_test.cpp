// SPDX-License-Identifier: Apache-2.0
#include <tests/support/log_lines.hpp>
#include <tests/train/train_support.hpp>

#include <skein/train/early_stopping.hpp>
#include <skein/train/run_result.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <atomic>
#include <csignal>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

using namespace train_test;

namespace {

struct outcome {
    std::vector<float> weights;
    std::vector<double> losses;
    std::vector<std::uint64_t> order; ///< samples in the order of training, by step and rank
    fit_result result;
};

struct note_losses {
    std::vector<double>* losses;
    void on_step(const step_info& s) {
        if (s.rank == 0) losses->push_back(s.loss);
    }
};

/// Trains a Net and returns rank 0's view of it.
template <class Strategy>
outcome train_by(int world, const run_config& config, optimizer_options options = sk::AdamW{},
                 const std::string& model = "shm", int attempt = 0, const std::string& job = {},
                 std::uint64_t stop_after = 0) {
    outcome out;
    std::atomic<bool> stop{false};
    std::map<std::uint64_t, std::map<int, std::vector<std::uint64_t>>> seen;
    std::mutex guard;
    run_world(
        world,
        [&](context& ctx) {
            ctx.watch_stop_flag(&stop);
            auto net = make_net();
            sk::Trainer<Strategy, note_losses> trainer(ctx, config, note_losses{&out.losses});
            std::uint64_t batches = 0;
            const auto loss = [&](Net& m, const sample_batch& b) {
                if (m->is_training()) {
                    const std::lock_guard lock(guard);
                    auto& ids = seen[batches++ / static_cast<std::uint64_t>(config.accumulation)]
                                    [ctx.rank()];
                    ids.insert(ids.end(), b.ids.begin(), b.ids.end());
                    if (stop_after > 0 && batches == stop_after) stop = true;
                }
                return class_loss(m, b);
            };
            const auto r =
                trainer.fit(net, options, warmup_cosine{.peak = 1e-2, .warmup = 3, .total = 40},
                            loss, numbers{64}, numbers{10});
            if (ctx.is_first()) {
                out.weights = weights(*net);
                out.result = r;
            }
        },
        model, attempt, job);
    for (auto& [step, ranks] : seen)
        for (auto& [rank, ids] : ranks) out.order.insert(out.order.end(), ids.begin(), ids.end());
    return out;
}

} // namespace

TEST_CASE("DDP parameters equal the single-process oracle within 1e-6 after 20 steps") {
    scratch dir;
    const auto config = quiet_config(dir.path);
    for (const optimizer_options& options :
         {optimizer_options(sk::AdamW{.eps = 1e-5}), optimizer_options(sk::SGD{.momentum = 0.9})}) {
        const auto oracle = train_by<sk::Single>(1, config, options);
        for (int world : {2, 3}) {
            const auto ddp = train_by<sk::DDP<tiny_buckets>>(world, config, options);
            CHECK(relative_error(ddp.weights, oracle.weights) < 1e-6);
            CHECK(ddp.order == oracle.order);
        }
    }
}

TEST_CASE("uneven shares of a batch still give the gradient of the whole batch") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.global_batch = 7;
    const auto oracle = train_by<sk::Single>(1, config, sk::AdamW{.eps = 1e-5});
    const auto three = train_by<sk::DDP<>>(3, config, sk::AdamW{.eps = 1e-5});
    CHECK(relative_error(three.weights, oracle.weights) < 1e-6);
}

TEST_CASE("accumulation gives the run of the big batch") {
    scratch dir;
    auto config = quiet_config(dir.path);
    const auto oracle = train_by<sk::Single>(1, config, sk::AdamW{.eps = 1e-5});
    config.accumulation = 3;
    CHECK(relative_error(train_by<sk::Single>(1, config, sk::AdamW{.eps = 1e-5}).weights,
                         oracle.weights) < 1e-6);
    CHECK(relative_error(train_by<sk::DDP<>>(2, config, sk::AdamW{.eps = 1e-5}).weights,
                         oracle.weights) < 1e-6);
}

TEST_CASE("two runs with the same seed are bit-identical, another seed is not") {
    scratch dir;
    auto config = quiet_config(dir.path);
    const auto a = train_by<sk::DDP<tiny_buckets>>(2, config),
               b = train_by<sk::DDP<tiny_buckets>>(2, config);
    CHECK(a.weights == b.weights);
    CHECK(a.losses == b.losses);
    config.seed = 2;
    CHECK(train_by<sk::DDP<tiny_buckets>>(2, config).losses != a.losses);
}

TEST_CASE("shared memory, ring and hierarchical runs of two workers are bit-identical") {
    scratch dir;
    const auto config = quiet_config(dir.path);
    const auto shm = train_by<sk::DDP<tiny_buckets>>(2, config, sk::AdamW{}, "shm");
    for (const char* model : {"ring", "hierarchical"}) {
        const auto other = train_by<sk::DDP<tiny_buckets>>(2, config, sk::AdamW{}, model);
        CHECK(other.weights == shm.weights);
        CHECK(other.losses == shm.losses);
    }
}

TEST_CASE("a run that was interrupted and resumed is bit-identical to an undisturbed one") {
    for (int world : {1, 2}) {
        scratch one, two;
        auto config = quiet_config(one.path);
        config.checkpoint.enabled = config.write_files = true;
        config.checkpoint.every = 6;
        config.eval_every = 4;
        const auto whole = train_by<sk::DDP<tiny_buckets>>(world, config);

        config.runs_dir = two.path;
        const auto first = train_by<sk::DDP<tiny_buckets>>(world, config, sk::AdamW{}, "shm", 0, {},
                                                           /*stop_after=*/11);
        CHECK(first.result.stopped);
        config.resume = resume_mode::latest;
        const auto second = train_by<sk::DDP<tiny_buckets>>(world, config);

        CHECK(second.result.first_step == 11);
        CHECK(second.weights == whole.weights);
        auto joined = first.losses;
        joined.insert(joined.end(), second.losses.begin(), second.losses.end());
        CHECK(joined == whole.losses);
        CHECK(two.text("run/metrics.csv") == one.text("run/metrics.csv"));
    }
}

TEST_CASE(
    "a checkpoint resumes on another number of workers with the data order going on exactly") {
    struct row {
        int before, after;
    };
    for (const auto [before, after] : {row{2, 1}, row{2, 3}, row{1, 2}, row{3, 2}}) {
        scratch one, two;
        auto config = quiet_config(one.path);
        config.checkpoint.enabled = true;
        const auto whole = train_by<sk::DDP<tiny_buckets>>(1, config, sk::AdamW{.eps = 1e-5});

        config.runs_dir = two.path;
        config.max_steps = 9;
        const auto first = train_by<sk::DDP<tiny_buckets>>(before, config, sk::AdamW{.eps = 1e-5});
        config.max_steps = 20;
        config.resume = resume_mode::latest;
        const auto second = train_by<sk::DDP<tiny_buckets>>(after, config, sk::AdamW{.eps = 1e-5});

        auto order = first.order;
        order.insert(order.end(), second.order.begin(), second.order.end());
        INFO(before << " workers, then " << after);
        CHECK(order == whole.order);
        CHECK(relative_error(second.weights, whole.weights) < 1e-6);
    }
}

TEST_CASE("a restarted job finds its own folder and goes on, though the name was taken before") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.checkpoint.enabled = true;
    config.max_steps = 5;
    (void)train_by<sk::DDP<>>(1, config); // somebody else's "run"
    const auto first = train_by<sk::DDP<>>(2, config, sk::AdamW{}, "shm", 0, "job-7");
    CHECK(first.result.run_name == "run.2");
    config.max_steps = 8;
    const auto again = train_by<sk::DDP<>>(2, config, sk::AdamW{}, "shm", 1, "job-7");
    CHECK(again.result.run_name == "run.2");
    CHECK(again.result.first_step == 5);
    CHECK(again.losses.size() == 3);
}

TEST_CASE("a broken newest checkpoint is passed over for the one before it") {
    for (const bool truncate : {true, false}) {
        scratch dir;
        auto config = quiet_config(dir.path);
        config.checkpoint.enabled = true;
        config.checkpoint.every = 4;
        config.max_steps = 8;
        const auto whole = train_by<sk::DDP<>>(2, config);
        const auto shard = whole.result.checkpoint + "/shard-1-of-2.safetensors";
        const auto size = std::filesystem::file_size(shard);
        if (truncate) {
            std::filesystem::resize_file(shard, size - 5);
        } else {
            std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
            file.seekg(static_cast<std::streamoff>(size / 2));
            const char flipped = static_cast<char>(file.get() ^ 4);
            file.seekp(static_cast<std::streamoff>(size / 2));
            file.put(flipped);
        }
        config.resume = resume_mode::latest;
        const auto again = train_by<sk::DDP<>>(2, config);
        CHECK(again.result.first_step == 4);
        CHECK(again.weights == whole.weights);
    }
}

TEST_CASE("a checkpoint of another model, of other data, or beyond the last step is refused") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.checkpoint.enabled = true;
    config.max_steps = 4;
    (void)train_by<sk::Single>(1, config);
    config.resume = resume_mode::latest;
    auto ctx = context::single();
    const auto attempt = [&](auto&& body) {
        try {
            body();
        } catch (const sk::error& e) {
            return e.code();
        }
        return sk::errc::unknown;
    };
    const auto fit = [&](auto model, optimizer_options options, numbers data, auto loss) {
        sk::Trainer<sk::Single> trainer(ctx, config);
        (void)trainer.fit(model, options, constant_rate{1e-3}, loss, data, numbers{4});
    };
    CHECK(attempt([&] {
              fit(torch::nn::Linear(8, 4), sk::AdamW{}, numbers{64},
                  [](auto& m, const sample_batch& b) { return m->forward(b.x).pow(2).mean(); });
          }) == sk::errc::mismatch);
    CHECK(attempt([&] { fit(make_net(), sk::SGD{}, numbers{64}, class_loss); }) ==
          sk::errc::mismatch);
    CHECK(attempt([&] { fit(make_net(), sk::AdamW{}, numbers{63}, class_loss); }) ==
          sk::errc::mismatch);
    config.max_steps = 2;
    CHECK(attempt([&] { fit(make_net(), sk::AdamW{}, numbers{64}, class_loss); }) ==
          sk::errc::usage);
}

TEST_CASE("a loss that is not a number ends the run on every rank with step, rank and a way out") {
    scratch dir;
    auto config = quiet_config(dir.path);
    std::atomic<int> told{0};
    const auto errors = try_world(2, [&](context& ctx) {
        auto net = make_net();
        sk::Trainer<sk::DDP<>> trainer(ctx, config);
        const auto loss = [&](Net& m, const sample_batch& b) {
            auto l = class_loss(m, b);
            if (ctx.rank() == 1 && ++told == 3) l = l * std::numeric_limits<double>::quiet_NaN();
            return l;
        };
        (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-3}, loss, numbers{64}, numbers{4});
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        CHECK(e->code() == sk::errc::not_finite);
        CHECK(std::string(e->what()).find("on rank 1 at step 3") != std::string::npos);
        CHECK(e->hint().find("learning rate") != std::string::npos);
    }
}

TEST_CASE("a loss that is not a number ends the run before the step, also with sound gradients") {
    scratch dir;
    const auto config = quiet_config(dir.path);
    std::vector<std::vector<float>> before(2), after(2);
    const auto errors = try_world(2, [&](context& ctx) {
        auto net = make_net();
        sk::Trainer<sk::DDP<>> trainer(ctx, config);
        std::uint64_t calls = 0;
        const auto loss = [&](Net& m, const sample_batch& b) {
            auto l = class_loss(m, b);
            if (ctx.rank() == 1 && ++calls == 3) {
                before[1] = weights(*m);
                return l.detach() * std::numeric_limits<double>::quiet_NaN() + 0.0 * l - 0.0 * l;
            }
            if (ctx.rank() == 0) before[0] = weights(*m);
            return l;
        };
        try {
            (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-3}, loss, numbers{64}, numbers{4});
        } catch (...) {
            after[static_cast<std::size_t>(ctx.rank())] = weights(*net);
            throw;
        }
    });
    for (std::size_t r = 0; r < 2; ++r) {
        REQUIRE(errors[r]);
        CHECK(errors[r]->code() == sk::errc::not_finite);
        CHECK(std::string(errors[r]->what()).find("on rank 1 at step 3") != std::string::npos);
        CHECK(after[r] == before[r]);
    }
}

TEST_CASE("an exception in one rank's loss ends the others too, with the culprit's words") {
    scratch dir;
    const auto config = quiet_config(dir.path);
    const auto errors = try_world(2, [&](context& ctx) {
        auto net = make_net();
        sk::Trainer<sk::DDP<>> trainer(ctx, config);
        const auto loss = [&](Net& m, const sample_batch& b) {
            if (ctx.rank() == 1) throw sk::error(sk::errc::io, "the disk of rank one is gone");
            return class_loss(m, b);
        };
        (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-3}, loss, numbers{64}, numbers{4});
    });
    REQUIRE(errors[0]);
    REQUIRE(errors[1]);
    CHECK(std::string(errors[0]->what()).find("the disk of rank one is gone") != std::string::npos);
    CHECK(errors[1]->code() == sk::errc::io);
}

TEST_CASE("a stop request saves, ends in order on all ranks, and the run can be resumed") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.checkpoint.enabled = true;
    const auto whole = train_by<sk::DDP<>>(2, config);
    config.name = "stopped";
    std::atomic<bool> stop{false};
    std::vector<fit_result> results(2);
    run_world(2, [&](context& ctx) {
        if (ctx.rank() == 1) ctx.watch_stop_flag(&stop);
        auto net = make_net();
        sk::Trainer<sk::DDP<>> trainer(ctx, config);
        std::uint64_t calls = 0;
        const auto loss = [&](Net& m, const sample_batch& b) {
            if (ctx.rank() == 1 && ++calls == 7) stop = true;
            return class_loss(m, b);
        };
        results[static_cast<std::size_t>(ctx.rank())] =
            trainer.fit(net, sk::AdamW{}, warmup_cosine{.peak = 1e-2, .warmup = 3, .total = 40},
                        loss, numbers{64}, numbers{10});
    });
    for (const auto& r : results) {
        CHECK(r.stopped);
        CHECK(r.steps == 7);
    }
    config.resume = resume_mode::latest;
    const auto rest = train_by<sk::DDP<>>(2, config);
    CHECK(rest.result.first_step == 7);
    CHECK(rest.weights == whole.weights);
}

TEST_CASE("a stop by a signal on one rank is told by its number on all") {
    scratch dir;
    const auto config = quiet_config(dir.path);
    std::atomic<bool> asked{true}, quiet{false};
    std::vector<fit_result> results(2);
    run_world(2, [&](context& ctx) {
        ctx.watch_stop_flag(ctx.rank() == 1 ? &asked : &quiet, [] { return SIGTERM; });
        auto net = make_net();
        sk::Trainer<sk::DDP<>> trainer(ctx, config);
        results[static_cast<std::size_t>(ctx.rank())] =
            trainer.fit(net, sk::AdamW{}, constant_rate{}, class_loss, numbers{64}, numbers{10});
    });
    for (const auto& r : results) {
        CHECK(r.stopped);
        CHECK(r.stop_signal == SIGTERM);
        CHECK(r.steps == 1);
    }
}

TEST_CASE("an evaluation is told with its step") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.max_steps = 10;
    config.eval_every = 4;
    std::atomic<bool> stop{false};
    auto ctx = context::single();
    ctx.watch_stop_flag(&stop);
    auto net = make_net();
    int batches = 0;
    const auto loss = [&](Net& m, const sample_batch& b) {
        if (m->is_training() && ++batches == 6) stop = true;
        return class_loss(m, b);
    };
    sk::Trainer<sk::Single> trainer(ctx, config);
    const auto r = trainer.fit(net, sk::AdamW{}, constant_rate{}, loss, numbers{64}, numbers{10});
    CHECK(r.steps == 6);
    CHECK(r.val_step == 4);
}

TEST_CASE("reported numbers are merged over ranks by their kind and reach callbacks and files") {
    struct keep {
        std::vector<metric_value>* out;
        void on_step(const step_info& s) {
            if (s.rank == 1) *out = *s.metrics;
        }
    };
    scratch dir;
    auto config = quiet_config(dir.path);
    config.write_files = true;
    config.max_steps = 2;
    std::vector<metric_value> seen;
    run_world(2, [&](context& ctx) {
        auto net = make_net();
        sk::Trainer<sk::DDP<>, keep> trainer(ctx, config, keep{&seen});
        const auto loss = [&](Net& m, const sample_batch& b, metric_set& metrics) {
            metrics.sum("samples", static_cast<double>(b.ids.size()));
            trainer.report(metric_kind::max, "highest", ctx.rank() * 10.0);
            return class_loss(m, b);
        };
        (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-3}, loss, numbers{64}, numbers{9});
    });
    REQUIRE(find_metric(seen, "samples"));
    CHECK(*find_metric(seen, "samples") == 12.0);
    CHECK(*find_metric(seen, "highest") == 10.0);
    const auto csv = dir.text("run/metrics.csv");
    CHECK(csv.find("samples") != std::string::npos);
    CHECK(csv.find("val_samples") != std::string::npos);
    CHECK(dir.text("run/config.json").find("\"world_size\": 2") != std::string::npos);
}

TEST_CASE("evaluation is the mean over all held-out samples for any number of workers") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.max_steps = 1;
    std::vector<double> found;
    for (int world : {1, 2, 3}) found.push_back(train_by<sk::DDP<>>(world, config).result.val_loss);
    CHECK(std::abs(found[1] - found[0]) < 1e-6);
    CHECK(std::abs(found[2] - found[0]) < 1e-6);
}

TEST_CASE("every callback is told of its event once, on every rank") {
    struct counter {
        int starts = 0, steps = 0, evals = 0, saves = 0, ends = 0;
        void on_start(const start_info&) { ++starts; }
        void on_step(const step_info&) { ++steps; }
        void on_eval(const eval_info&) { ++evals; }
        void on_checkpoint(const checkpoint_info&) { ++saves; }
        void on_end(const fit_result&) { ++ends; }
    };
    scratch dir;
    auto config = quiet_config(dir.path);
    config.checkpoint.enabled = true;
    config.max_steps = 6;
    config.eval_every = 2;
    config.checkpoint.every = 3;
    run_world(2, [&](context& ctx) {
        auto net = make_net();
        sk::Trainer<sk::DDP<>, counter> trainer(ctx, config, counter{});
        (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-3}, class_loss, numbers{64},
                          numbers{4});
        const auto& c = trainer.template callback<counter>();
        expect(c.starts == 1);
        expect(c.steps == 6);
        expect(c.evals == 4); // after 2, 4 and 6, and for the checkpoint after 3
        expect(c.saves == 2);
        expect(c.ends == 1);
    });
}

TEST_CASE(
    "more workers than samples, and fewer samples than a batch, are usage errors on every rank") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.global_batch = 2;
    for (const auto& e :
         try_world(3, [&](context& ctx) { sk::Trainer<sk::DDP<>> t(ctx, config); })) {
        REQUIRE(e);
        CHECK(e->code() == sk::errc::usage);
    }
    config.global_batch = 12;
    const auto errors = try_world(2, [&](context& ctx) {
        auto net = make_net();
        sk::Trainer<sk::DDP<>> trainer(ctx, config);
        (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-3}, class_loss, numbers{11},
                          numbers{4});
    });
    for (const auto& e : errors) REQUIRE(e);
    CHECK((errors[0]->code() == sk::errc::usage || errors[1]->code() == sk::errc::usage));
}

TEST_CASE("dropout draws the same numbers in a resumed run") {
    scratch one, two;
    auto config = quiet_config(one.path);
    config.checkpoint.enabled = true;
    const auto fit = [&](std::int64_t steps) {
        config.max_steps = steps;
        auto ctx = context::single();
        auto net = make_net();
        sk::Trainer<sk::Single> trainer(ctx, config);
        const auto loss = [](Net& m, const sample_batch& b) {
            const auto x = torch::nn::functional::dropout(
                b.x, torch::nn::functional::DropoutFuncOptions().p(0.3).training(m->is_training()));
            return torch::nn::functional::cross_entropy(m->forward(x), b.y);
        };
        (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, loss, numbers{64}, numbers{4});
        return weights(*net);
    };
    const auto whole = fit(10);
    config.runs_dir = two.path;
    (void)fit(4);
    config.resume = resume_mode::latest;
    CHECK(fit(10) == whole);
}

// ---- callbacks, settings and places ------------------------------------------------------------

namespace {

/// Throws in one of its members, on the last rank.
struct thrower {
    static constexpr std::string_view rule_name = "thrower";
    std::string where;
    int rank = 0;
    template <class Event>
    void may(const char* here, const Event& e, std::uint64_t step) const {
        if (where == here && e.rank == rank && (step >= 3 || where == "on_start"))
            throw std::runtime_error("disk of " + where);
    }
    void on_start(const start_info& s) const { may("on_start", s, 0); }
    void on_agreed(const step_info& s) const { may("on_agreed", s, s.step); }
    void on_step(const step_info& s) const { may("on_step", s, s.step); }
    void on_eval(const eval_info& s) const { may("on_eval", s, s.step); }
    void on_checkpoint(const checkpoint_info& s) const { may("on_checkpoint", s, s.step); }
    void on_end(const fit_result& s) const { may("on_end", s, s.steps); }
};

} // namespace

TEST_CASE(
    "what a callback throws says which, in what, on which rank and at which step, and lasts") {
    for (const auto& [where, step] :
         {std::pair{"on_start", 0}, std::pair{"on_agreed", 3}, std::pair{"on_step", 3},
          std::pair{"on_eval", 4}, std::pair{"on_checkpoint", 4}, std::pair{"on_end", 6}}) {
        scratch dir;
        auto config = quiet_config(dir.path);
        config.max_steps = 6;
        config.eval_every = config.checkpoint.every = 2;
        config.checkpoint.enabled = true;
        const auto errors = try_world(2, [&](context& ctx) {
            auto net = make_net();
            sk::Trainer<sk::DDP<>, thrower> trainer(ctx, config, thrower{where, 1});
            (void)trainer.fit(net, sk::SGD{}, constant_rate{0.1}, class_loss, numbers{64},
                              numbers{6});
        });
        INFO(where);
        REQUIRE(errors[1]);
        CHECK(errors[1]->code() == sk::errc::invalid_argument);
        CHECK(
            std::string(errors[1]->what())
                .find(fmt::format("{0} of thrower threw std::runtime_error on rank 1 at step {1}: "
                                  "disk of {0}",
                                  where, step)) != std::string::npos);
    }
}

TEST_CASE("the result of a fit names the best checkpoint, as the run's folder does") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.max_steps = 8;
    config.checkpoint = {.every = 2, .keep_last = 1, .keep_best = {.metric = "val_loss"}};
    config.write_files = true;
    std::vector<fit_result> results(2);
    run_world(2, [&](context& ctx) {
        auto net = make_net();
        sk::Trainer<sk::DDP<>> trainer(ctx, config);
        const auto rising = [&](Net& m, const sample_batch& b) { // the first is the best
            auto loss = class_loss(m, b);
            return m->is_training() ? -loss : loss;
        };
        results[static_cast<std::size_t>(ctx.rank())] =
            trainer.fit(net, sk::SGD{}, constant_rate{0.5}, rising, numbers{64}, numbers{6});
    });
    CHECK(results[0].best_checkpoint == dir.path + "/run/checkpoints/step-00000002");
    CHECK(results[1].best_checkpoint == results[0].best_checkpoint);
    CHECK(load_result(dir.path + "/run").best_checkpoint == results[0].best_checkpoint);
    CHECK(results[0].checkpoint != results[0].best_checkpoint);
}

TEST_CASE("a metric that no evaluation can have is refused before the first step") {
    const auto told = [](auto loss, const char* best, const char* stop) {
        scratch dir;
        auto config = quiet_config(dir.path);
        config.checkpoint.enabled = true;
        config.checkpoint.keep_best.metric = best;
        int steps = 0;
        try {
            auto ctx = context::single();
            auto net = make_net();
            sk::Trainer<sk::Single, sk::early_stopping> trainer(
                ctx, config, sk::early_stopping({.metric = stop}));
            const auto counted = [&](Net& m, const sample_batch& b) {
                steps += m->is_training() ? 1 : 0;
                return loss(m, b);
            };
            (void)trainer.fit(net, sk::SGD{}, constant_rate{0.1}, counted, numbers{64}, numbers{6});
        } catch (const sk::error& why) {
            CHECK(why.code() == sk::errc::usage);
            return fmt::format("{} steps: {}", steps, why.what());
        }
        return std::string();
    };
    CHECK(told(class_loss, "val_loss", "val_loss").empty());
    CHECK_THAT(told(class_loss, "val_acuracy", "val_loss"),
               Catch::Matchers::StartsWith("0 steps") &&
                   Catch::Matchers::ContainsSubstring("'val_acuracy' is no number of this run") &&
                   Catch::Matchers::ContainsSubstring("val_loss"));
    CHECK_THAT(told(class_loss, "val_loss", "val_f2"),
               Catch::Matchers::StartsWith("0 steps") &&
                   Catch::Matchers::ContainsSubstring("no evaluation has a 'val_f2'") &&
                   Catch::Matchers::ContainsSubstring("val_loss"));
}

/// As many samples with other values; `draws`: new ones at each call.
struct other_numbers : numbers {
    float more = 0;
    bool draws = false, is_missing = false;
    [[nodiscard]] sample_batch batch(std::span<const std::uint64_t> ids) const {
        if (is_missing) throw std::runtime_error("no file numbers.bin");
        auto out = numbers::batch(ids);
        out.x = out.x + more;
        if (draws) out.x = out.x + torch::rand_like(out.x);
        return out;
    }
};

TEST_CASE(
    "samples that differ between ranks are refused before the first step, drawn ones are not") {
    std::atomic<int> steps{0};
    const auto train = [&](bool draws, bool alike) {
        scratch dir;
        const auto config = quiet_config(dir.path);
        return try_world(2, [&](context& ctx) {
            auto net = make_net();
            sk::Trainer<sk::DDP<>> trainer(ctx, config);
            other_numbers data;
            data.more = alike || ctx.rank() == 0 ? 0.0f : 0.5f;
            data.draws = draws;
            const auto loss = [&](auto& m, const sample_batch& b) {
                ++steps;
                return class_loss(m, b);
            };
            (void)trainer.fit(net, sk::SGD{}, constant_rate{1e-3}, loss, data, numbers{0});
        });
    };
    for (const auto& e : train(false, false)) {
        REQUIRE(e);
        CHECK(e->code() == sk::errc::mismatch);
        CHECK_THAT(e->what(),
                   Catch::Matchers::ContainsSubstring("checksum of some training samples"));
    }
    CHECK(steps == 0);
    for (const auto& e : train(false, true)) CHECK_FALSE(e);
    for (const auto& e : train(true, false)) CHECK_FALSE(e);
    const auto errors = try_world(2, [&](context& ctx) { // an evaluation's, too
        scratch dir;
        auto net = make_net();
        sk::Trainer<sk::DDP<>> trainer(ctx, quiet_config(dir.path));
        other_numbers held_out;
        held_out.more = ctx.rank() == 0 ? 0.0f : 0.5f;
        (void)trainer.fit(net, sk::SGD{}, constant_rate{1e-3}, class_loss, numbers{}, held_out);
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        CHECK_THAT(e->what(), Catch::Matchers::ContainsSubstring("checksum of some val samples"));
    }
}

TEST_CASE(
    "data that cannot be read on one rank ends the run with the reason, before the first step") {
    scratch dir;
    const auto config = quiet_config(dir.path);
    const auto errors = try_world(2, [&](context& ctx) {
        auto net = make_net();
        sk::Trainer<sk::DDP<>> trainer(ctx, config);
        other_numbers data;
        data.is_missing = !ctx.is_first();
        (void)trainer.fit(net, sk::SGD{}, constant_rate{1e-3}, class_loss, data, numbers{0});
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        CHECK(e->code() == sk::errc::mismatch);
        CHECK_THAT(e->what(), Catch::Matchers::ContainsSubstring("rank 1") &&
                                  Catch::Matchers::ContainsSubstring("no file numbers.bin"));
    }
}

TEST_CASE("a rank that begins with other values of the model is told, and goes on with rank 0's") {
    const auto warned = [&](bool alike) {
        scratch dir;
        const auto config = quiet_config(dir.path);
        sk::test::log_lines lines("train");
        run_world(2, [&](context& ctx) {
            auto net = make_net();
            torch::nn::init::constant_(net->in->bias, alike ? 1.0 : 1.0 + ctx.rank());
            sk::Trainer<sk::DDP<>> trainer(ctx, config);
            (void)trainer.fit(net, sk::SGD{}, constant_rate{1e-3}, class_loss, numbers{},
                              numbers{0});
        });
        return lines.count("rank 1 has begun with other values of the model than rank 0");
    };
    CHECK(warned(false) == 1);
    CHECK(warned(true) == 0);
}

TEST_CASE("what is described of model and data is alike on all ranks, or told with both values") {
    scratch dir;
    const auto config = quiet_config(dir.path);
    const auto errors = try_world(2, [&](context& ctx) {
        auto net = make_net();
        sk::Trainer<sk::DDP<>> trainer(ctx, config);
        trainer.describe({{"text", "a.txt"}, {"heads", ctx.is_first() ? 2 : 4}});
        (void)trainer.fit(net, sk::SGD{}, constant_rate{0.1}, class_loss, numbers{64}, numbers{0});
    });
    for (const auto& each : errors) {
        REQUIRE(each);
        CHECK(each->code() == sk::errc::mismatch);
        CHECK_THAT(each->what(), Catch::Matchers::ContainsSubstring("described heads") &&
                                     Catch::Matchers::ContainsSubstring("4") &&
                                     Catch::Matchers::ContainsSubstring("2"));
    }
}

TEST_CASE(
    "a program that goes to another folder in the middle of its training leaves the run where "
    "it began") {
    scratch home, other;
    const auto start = std::filesystem::current_path();
    std::filesystem::current_path(home.path);
    auto config = quiet_config("runs");
    config.max_steps = 6;
    config.eval_every = config.checkpoint.every = 2;
    config.checkpoint.enabled = config.write_files = true;
    struct wanderer {
        std::string to;
        void on_step(const step_info& s) const {
            if (s.step == 3) std::filesystem::current_path(to);
        }
    };
    auto ctx = context::single();
    auto net = make_net();
    sk::Trainer<sk::Single, wanderer> trainer(ctx, config, wanderer{other.path});
    fit_result result;
    try {
        result =
            trainer.fit(net, sk::SGD{}, constant_rate{0.1}, class_loss, numbers{64}, numbers{6});
    } catch (const sk::error& why) {
        std::filesystem::current_path(start);
        FAIL(why.what());
    }
    std::filesystem::current_path(start);
    CHECK(std::filesystem::equivalent(result.run_path, home.path + "/runs/run"));
    CHECK(std::filesystem::exists(home.path + "/runs/run/checkpoints/step-00000006"));
    CHECK(std::filesystem::exists(home.path + "/runs/run/result.json"));
    CHECK(load_result(result.run_path).steps == 6);
    CHECK(std::filesystem::is_empty(other.path));
}

// ---- a training and what comes behind it -------------------------------------------------------

TEST_CASE("a second fit of a trainer begins with its callbacks as they were given") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.max_steps = 30;
    config.eval_every = 1;
    auto ctx = context::single();
    sk::Trainer<sk::Single, sk::early_stopping> trainer(ctx, config,
                                                        sk::early_stopping({.patience = 2}));
    std::uint64_t steps[2] = {};
    for (auto& each : steps) {
        auto net = make_net();
        const auto worse = [&](Net& m, const sample_batch& b) { // the first evaluation is the best
            auto loss = class_loss(m, b);
            return m->is_training() ? -loss : loss;
        };
        each =
            trainer.fit(net, sk::SGD{}, constant_rate{0.5}, worse, numbers{64}, numbers{6}).steps;
        CHECK(trainer.callback<sk::early_stopping>().waited() >= 2);
    }
    CHECK(steps[0] < 10);
    CHECK(steps[1] == steps[0]);
}

TEST_CASE("a training leaves the generator and the threads of its process as they were") {
    scratch dir;
    const auto config = quiet_config(dir.path);
    const int threads = at::get_num_threads();
    at::set_num_threads(3);
    const auto draw_behind_fit = [&](std::uint64_t seed, bool fails) {
        auto ctx = context::single();
        auto net = make_net();
        torch::manual_seed(seed);
        sk::Trainer<sk::Single> trainer(ctx, config);
        const auto loss = [&](Net& m, const sample_batch& b) {
            if (fails) throw std::runtime_error("no loss");
            return torch::dropout(m->forward(b.x), 0.5, true).pow(2).mean();
        };
        try {
            (void)trainer.fit(net, sk::SGD{}, constant_rate{0.1}, loss, numbers{64}, numbers{6});
            CHECK_FALSE(fails);
        } catch (const sk::error&) {
            CHECK(fails);
        }
        return torch::rand({1}).item<float>();
    };
    for (const bool fails : {false, true}) {
        torch::manual_seed(7);
        const auto without = torch::rand({1}).item<float>();
        CHECK(draw_behind_fit(7, fails) == without);
        CHECK(draw_behind_fit(8, fails) != without);
        CHECK(at::get_num_threads() == 3);
    }
    at::set_num_threads(threads);
}
