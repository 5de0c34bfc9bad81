// SPDX-License-Identifier: Apache-2.0
// Metrics of a run: merged over batches, ranks, windows and epochs, and kept in checkpoints.
#include <tests/train/train_support.hpp>

#include <skein/core/posix_disk.hpp>
#include <skein/metrics/metrics_manager.hpp>
#include <skein/train/early_stopping.hpp>
#include <skein/train/evaluation.hpp>
#include <skein/train/stage.hpp>
#include <skein/train/stop_at.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <atomic>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

using namespace train_test;
using Catch::Matchers::ContainsSubstring;
namespace metrics = skein::metrics;
using metrics::on;

namespace stage_test {

/// How many labels of each class were seen, how many in all, and how many were hit.
struct labels_seen {
    static constexpr std::string_view name = "labels";
    int classes = 4;
    metrics::summed counts{};
    void begin() { counts.resize(static_cast<std::size_t>(classes)); }
    void update(const metrics::samples& s) {
        for (std::size_t i = 0; i < s.target.size(); ++i)
            counts[static_cast<std::size_t>(s.target[i])] += 1;
    }
    metrics::score compute() const {
        return std::vector<double>(counts.values().begin(), counts.values().end());
    }
};
struct seen {
    metrics::summed count{};
    void update(const metrics::samples& s) { count[0] += static_cast<double>(s.target.size()); }
    double compute() const { return count[0]; }
};
/// A sum of scores, weighted; and the largest one.
struct mean_score {
    static constexpr std::string_view name = "score";
    metrics::summed sum{}, weight{};
    void update(const metrics::samples& s) {
        for (std::size_t i = 0; i < s.preds.size(); ++i) {
            const double w = s.weight.is_given() ? s.weight[i / s.preds.extent(1)] : 1.0;
            sum[0] += w * s.preds[i];
            weight[0] += w;
        }
    }
    double compute() const { return sum[0] / weight[0]; }
};
struct scores_in_order {
    static constexpr std::string_view name = "order";
    metrics::gathered rows{};
    void update(const metrics::samples& s) {
        for (std::size_t i = 0; i < s.target.size(); ++i)
            rows.push({static_cast<float>(s.target[i])});
    }
    double compute() const { return static_cast<double>(rows.rows()); }
};

using stage = skein::train::stage;

inline const auto shown = [](Net& m, const sample_batch& b, stage& here) {
    const auto logits = m->forward(b.x);
    here.update(logits, b.y);
    return torch::nn::functional::cross_entropy(logits, b.y);
};

struct told {
    std::map<std::uint64_t, std::map<std::string, double>> rows; ///< of steps
    std::map<std::string, std::map<std::uint64_t, std::map<std::string, double>>> sets;
    std::map<std::string, sk::report::metric_array> arrays; ///< the newest
};
struct note_all {
    told* to;
    void on_step(const step_info& s) {
        if (s.rank != 0) return;
        for (const auto& m : *s.metrics) to->rows[s.step][m.name] = m.value;
        for (const auto& a : *s.arrays) to->arrays[a.name] = a;
    }
    void on_eval(const eval_info& e) {
        if (e.rank != 0) return;
        for (const auto& m : *e.metrics) to->sets[std::string(e.set)][e.step][m.name] = m.value;
        for (const auto& a : *e.arrays) to->arrays[a.name] = a;
    }
};

/// The text of the error that the call ends with.
template <class Call>
std::string failure(sk::errc wanted, Call call) {
    try {
        call();
    } catch (const sk::error& why) {
        CHECK(why.code() == wanted);
        return why.what();
    }
    FAIL("no error");
    return {};
}
template <class Loss, class... Sets>
std::pair<told, fit_result> run_with(int world, const run_config& config,
                                     const metrics::metrics_manager& declared, Loss loss,
                                     const Sets&... sets) {
    std::pair<told, fit_result> out;
    run_world(world, [&](context& ctx) {
        auto net = make_net();
        sk::Trainer<sk::DDP<tiny_buckets>, note_all> trainer(ctx, config, note_all{&out.first});
        trainer.measure(declared);
        const auto r = trainer.fit(net, sk::SGD{}, constant_rate{1e-2}, loss, numbers{50}, sets...);
        if (ctx.is_first()) out.second = r;
    });
    return out;
}

run_config short_config(const std::string& runs) {
    auto c = quiet_config(runs);
    c.epochs = 2;
    c.last = last_batch::shorten; // 50 samples by 12: the last batch has 2
    c.eval_every = 3;
    return c;
}
metrics::metrics_manager both() {
    return {on("train", labels_seen{}, seen{}, mean_score{}, scores_in_order{}),
            on("val", labels_seen{}, seen{}, mean_score{}, scores_in_order{})};
}

TEST_CASE("metrics count every sample of every rank once, in windows, epochs and evaluations") {
    scratch dir;
    for (int world : {1, 2, 3}) {
        const auto [all, result] =
            run_with(world, short_config(dir.path), both(), shown, numbers{10});
        // Five batches an epoch: windows of three steps, cut off where an epoch ends.
        CHECK(all.rows.at(3).at("train_seen") == 36);
        CHECK(all.rows.at(5).at("train_seen") == 14);
        CHECK(all.rows.at(5).at("train_epoch_seen") == 50);
        CHECK(all.rows.at(5).at("train_epoch_order") == 50);
        CHECK(all.rows.at(6).at("train_seen") == 12);
        CHECK(all.rows.at(10).at("train_epoch_seen") == 50);
        CHECK(!all.rows.at(4).contains("train_seen"));
        CHECK(all.sets.at("val").at(3).at("val_seen") == 10);
        CHECK(std::isfinite(all.sets.at("val").at(3).at("val_loss")));
        const auto& labels = all.arrays.at("train_epoch_labels");
        CHECK(labels.shape == std::vector<std::size_t>{4});
        double sum = 0;
        for (const double v : labels.values) sum += v;
        CHECK(sum == 50);
        CHECK(find_metric(result.metrics, "val_seen") != nullptr);
        CHECK(result.arrays.size() == 3);
    }
}

namespace {
/// Another batch behind a step, or behind the evaluation of one.
struct grows {
    std::uint64_t step = 0, evaluated = 0;
    std::int64_t batch = 0;
    decision on_step(const step_info& s) const { return s.step == step ? to(*s.plan) : decision{}; }
    decision on_eval(const eval_info& e) const {
        return e.step == evaluated ? to(*e.plan) : decision{};
    }
    decision to(step_plan next) const {
        next.global_batch = batch;
        return {.plan = next, .why = "so"};
    }
};
std::pair<told, fit_result> run_grown(int world, const run_config& config, grows rule) {
    std::pair<told, fit_result> out;
    const numbers held_out{10}, tests{5};
    run_world(world, [&](context& ctx) {
        auto net = make_net();
        sk::Trainer<sk::DDP<tiny_buckets>, note_all, grows> trainer(ctx, config,
                                                                    note_all{&out.first}, rule);
        trainer.measure(both());
        const auto r = trainer.fit(net, sk::SGD{}, constant_rate{1e-2}, shown, numbers{50},
                                   sk::evaluation("test", tests, {.every = 0}),
                                   sk::evaluation("val", held_out));
        if (ctx.is_first()) out.second = r;
    });
    return out;
}
} // namespace

TEST_CASE("a batch that grows amid an epoch does not end the epoch's metrics") {
    for (const int world : {1, 2}) {
        scratch dir;
        const auto all = run_grown(world, short_config(dir.path), {.step = 7, .batch = 20}).first;
        // 12 * 4 + 2, then 12 * 2 + 20 + 6
        CHECK(all.rows.at(5).at("train_epoch_seen") == 50);
        CHECK(!all.rows.at(8).contains("train_epoch_seen"));
        CHECK(all.rows.at(9).at("train_epoch_seen") == 50);
        CHECK(all.rows.at(9).at("train_seen") == 38); // since step 6
    }
}

TEST_CASE("a run that a larger batch leaves no further step ends with all that is due") {
    for (const bool by_evaluation : {false, true}) {
        INFO(by_evaluation);
        scratch dir;
        auto config = short_config(dir.path);
        config.last = last_batch::drop;
        config.checkpoint.enabled = config.write_files = true;
        config.checkpoint.every = 100;
        config.eval_every = 7;
        const auto [all, result] = run_grown(
            2, config,
            {.step = by_evaluation ? 0u : 7u, .evaluated = by_evaluation ? 7u : 0u, .batch = 15});
        // 4 steps of 12, and 3 more: of the last epoch 14 samples are left, which are no batch.
        CHECK(result.steps == 7);
        CHECK(!result.stopped);
        CHECK(all.sets.at("val").contains(7));
        CHECK(all.sets.at("test").contains(7));
        CHECK_THAT(result.checkpoint, ContainsSubstring("00007"));
        const auto rows = dir.text(result.run_name + "/metrics.jsonl");
        const auto last = rows.substr(rows.rfind("{\"step\":7"));
        CHECK_THAT(last, ContainsSubstring("\"train_seen\":36") &&
                             ContainsSubstring("\"train_epoch_seen\":36") &&
                             ContainsSubstring("\"test_loss\""));
    }
}

TEST_CASE("a rule may watch a metric of training, which is in some rows only") {
    scratch dir;
    const auto run_ruled = [&](sk::stop_at rule) {
        fit_result out;
        run_world(2, [&](context& ctx) {
            auto net = make_net();
            sk::Trainer<sk::DDP<tiny_buckets>, sk::stop_at> trainer(ctx, short_config(dir.path),
                                                                    rule);
            trainer.measure(both());
            const auto r =
                trainer.fit(net, sk::SGD{}, constant_rate{1e-2}, shown, numbers{50}, numbers{0});
            if (ctx.is_first()) out = r;
        });
        return out;
    };
    const auto of = [](const char* metric) {
        return sk::stop_at({.metric = metric, .value = 50, .at = watched::steps});
    };
    CHECK(run_ruled(of("train_epoch_seen")).steps == 6); // an epoch, and the step that agrees
    const auto why = failure(sk::errc::usage, [&] { run_ruled(of("train_epoch_sen")); });
    CHECK(why.find("no row of a step has a 'train_epoch_sen'") != std::string::npos);
    CHECK(why.find("train_epoch_seen") != std::string::npos);
    CHECK(failure(sk::errc::usage, [&] {
              run_ruled(of("train_labels"));
          }).find("'train_labels' is 4 numbers") != std::string::npos);
}

TEST_CASE("metrics of many ranks are those of one") {
    scratch dir;
    const auto one = run_with(1, short_config(dir.path), both(), shown, numbers{11}).first;
    for (int world : {2, 3}) {
        const auto many = run_with(world, short_config(dir.path), both(), shown, numbers{11}).first;
        CHECK(many.arrays.at("val_labels") == one.arrays.at("val_labels"));
        CHECK(std::abs(many.rows.at(10).at("train_epoch_score") -
                       one.rows.at(10).at("train_epoch_score")) < 1e-5);
    }
}

TEST_CASE("a rank without samples takes part, one that shows none of its samples is an error") {
    scratch dir;
    auto config = short_config(dir.path);
    // Two held-out samples for three ranks.
    const auto few = run_with(3, config, both(), shown, numbers{2}).first;
    CHECK(few.sets.at("val").at(3).at("val_seen") == 2);

    const auto only_first = [](Net& m, const sample_batch& b, stage& here) {
        const auto logits = m->forward(b.x);
        if (b.ids[0] == 0) here.update(logits, b.y); // as "if rank == 0" does in an evaluation
        return torch::nn::functional::cross_entropy(logits, b.y);
    };
    const metrics::metrics_manager declared{on("val", seen{})};
    CHECK(failure(sk::errc::mismatch, [&] {
              run_with(2, config, declared, only_first, numbers{10});
          }).find("rank 1 was given samples of stage \"val\"") != std::string::npos);
    CHECK(failure(sk::errc::usage, [&] {
              run_with(1, config, declared, class_loss, numbers{10});
          }).find("no samples reached the metrics of stage \"val\"") != std::string::npos);
}

TEST_CASE("a stage that there is not, and metrics that were not declared") {
    scratch dir;
    const auto config = short_config(dir.path);
    CHECK(failure(sk::errc::usage, [&] {
              run_with(1, config, {on("vla", seen{})}, shown, numbers{10});
          }).find("stage \"vla\"") != std::string::npos);
    CHECK(failure(sk::errc::usage, [&] {
              run_with(1, config, {}, shown, numbers{10});
          }).find("stage \"train\" has no metrics") != std::string::npos);
    // Declared for evaluations alone: training passes over what it is shown.
    const auto val = run_with(1, config, {on("val", seen{})}, shown, numbers{10}).first;
    CHECK(val.sets.at("val").at(3).at("val_seen") == 10);
    CHECK(!val.rows.at(3).contains("train_seen"));

    const auto twice = [](Net& m, const sample_batch& b, stage& here) {
        here.sum("seen", 1);
        return shown(m, b, here);
    };
    CHECK(failure(sk::errc::usage, [&] {
              run_with(1, config, {on("val", seen{})}, twice, numbers{10});
          }).find("\"val_seen\" is both") != std::string::npos);
}

TEST_CASE("ranks with other metrics are told before the first step") {
    scratch dir;
    const auto errors = try_world(2, [&](context& ctx) {
        auto net = make_net();
        sk::Trainer<sk::DDP<>> trainer(ctx, short_config(dir.path));
        trainer.measure({on("train", labels_seen{.classes = 4 + ctx.rank()})});
        trainer.fit(net, sk::SGD{}, constant_rate{1e-2}, shown, numbers{50}, numbers{0});
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        CHECK(e->code() == sk::errc::mismatch);
        CHECK(std::string(e->what()).find("metric labels of train") != std::string::npos);
    }
}

TEST_CASE("evaluation sets have names and rhythms of their own") {
    scratch dir;
    auto config = short_config(dir.path);
    const numbers held_out{10}, tests{5}, none{0};
    const metrics::metrics_manager declared{on("val", seen{}), on("test", seen{})};
    const auto [all, result] =
        run_with(2, config, declared, shown, sk::evaluation("val", held_out),
                 sk::evaluation("test", tests, {.every = 0}), sk::evaluation("none", none));
    CHECK(all.sets.at("val").size() == 4); // 3, 6, 9 and the last, 10
    REQUIRE(all.sets.at("test").size() == 1);
    CHECK(all.sets.at("test").at(10).at("test_seen") == 5);
    CHECK(all.sets.count("none") == 0);
    CHECK(result.val_step == 10);
    CHECK(find_metric(result.metrics, "test_loss") != nullptr);

    CHECK(failure(sk::errc::already_exists, [&] {
              run_with(1, config, {}, class_loss, held_out, tests);
          }).find("two evaluation sets are called \"val\"") != std::string::npos);
    for (const char* name : {"", "train", "a_b", "a b"})
        (void)failure(sk::errc::usage,
                      [&] { run_with(1, config, {}, class_loss, sk::evaluation(name, held_out)); });
}

TEST_CASE("a step that is done again shows its samples once") {
    scratch dir;
    std::atomic<int> redone{0};
    const auto restless = [&](Net& m, const sample_batch& b, stage& here) {
        const auto value = shown(m, b, here);
        if (here.is_training() && redone++ < 3) throw redo_step();
        return value;
    };
    const auto all = run_with(1, short_config(dir.path), both(), restless, numbers{10}).first;
    CHECK(all.rows.at(5).at("train_epoch_seen") == 50);
    CHECK(all.rows.at(5).at("train_epoch_order") == 50);
}

TEST_CASE("accumulators amid an epoch are in the checkpoint, for any number of ranks") {
    for (const auto& [before, after] : {std::pair{1, 1}, {2, 2}, {2, 3}, {3, 1}}) {
        scratch one, two;
        auto config = short_config(one.path);
        config.write_files = config.checkpoint.enabled = true;
        config.checkpoint.every = 4; // amid an epoch and amid a window
        const auto whole = run_with(after, config, both(), shown, numbers{10}).first;

        config.runs_dir = two.path;
        std::atomic<int> batches{0};
        const auto dies = [&](Net& m, const sample_batch& b, stage& here) {
            if (here.is_training() && b.ids.size() == 12UL / static_cast<unsigned>(before) &&
                batches++ == 4 * before)
                throw std::runtime_error("gone");
            return shown(m, b, here);
        };
        auto first = config;
        (void)try_world(before, [&](context& ctx) {
            auto net = make_net();
            sk::Trainer<sk::DDP<tiny_buckets>> trainer(ctx, first);
            trainer.measure(both());
            trainer.fit(net, sk::SGD{}, constant_rate{1e-2}, dies, numbers{50}, numbers{10});
        });
        config.resume = resume_mode::latest;
        const auto rest = run_with(after, config, both(), shown, numbers{10}).first;
        REQUIRE(rest.rows.begin()->first == 5);
        for (const std::uint64_t step : {5U, 6U, 9U, 10U})
            for (const char* name : {"train_seen", "train_order"})
                CHECK(rest.rows.at(step).at(name) == whole.rows.at(step).at(name));
        CHECK(rest.rows.at(5).at("train_epoch_seen") == 50);
        CHECK(rest.arrays.at("train_epoch_labels") == whole.arrays.at("train_epoch_labels"));
        if (before == after) {
            CHECK(rest.rows.at(5).at("train_epoch_score") ==
                  whole.rows.at(5).at("train_epoch_score"));
            CHECK(one.text("run/metrics.csv") == two.text("run/metrics.csv"));
        }
    }
}

TEST_CASE("a resume with other metrics is told what the checkpoint has") {
    scratch dir;
    auto config = short_config(dir.path);
    config.write_files = config.checkpoint.enabled = true;
    config.checkpoint.every = 4;
    (void)run_with(1, config, both(), shown, numbers{10});
    config.resume = resume_mode::latest;
    config.epochs = 3;
    CHECK(failure(sk::errc::mismatch, [&] {
              run_with(1, config, {on("train", seen{})}, shown, numbers{10});
          }).find("the metrics were saved as labels") != std::string::npos);
}

TEST_CASE("metrics of training that no checkpoint could be read with are refused before a step") {
    scratch dir;
    auto config = short_config(dir.path);
    const metrics::metrics_manager large{on("train", labels_seen{.classes = 7'000'000})};
    config.write_files = config.checkpoint.enabled = true;
    CHECK(failure(sk::errc::too_large, [&] {
              run_with(1, config, large, shown, numbers{0});
          }).find("MiB of a checkpoint") != std::string::npos);
}

TEST_CASE("the best checkpoint is chosen by any number of an evaluation") {
    scratch dir;
    auto config = short_config(dir.path);
    config.write_files = config.checkpoint.enabled = true;
    config.eval_every = 3;
    config.checkpoint.every = 2; // where no evaluation comes
    config.checkpoint.keep_last = 1;
    config.checkpoint.keep_best = {.k = 1, .metric = "val_score", .order = metric_order::highest};
    const auto [all, result] = run_with(1, config, {on("val", mean_score{})}, shown, numbers{10});
    CHECK(all.sets.at("val").size() == 7); // 2 3 4 6 8 9 10
    std::uint64_t best = 2;
    for (const std::uint64_t step : {4, 6, 8, 10})
        if (all.sets.at("val").at(step).at("val_score") >
            all.sets.at("val").at(best).at("val_score"))
            best = step;
    sk::posix_disk disk;
    const auto kept = checkpointer(disk, result.run_path + "/checkpoints").steps();
    CHECK(kept.back() == 10);
    CHECK(kept.front() == best);
    CHECK(kept.size() == (best == 10 ? 1 : 2));
    config.name = "newest";
    config.checkpoint.keep_best.value = best_value::newest;
    const auto fewer = run_with(1, config, {on("val", mean_score{})}, shown, numbers{10}).first;
    CHECK(fewer.sets.at("val").size() == 4); // 3 6 9 10

    config.name = "unknown";
    config.checkpoint.keep_best.metric = "accuracy";
    const auto why =
        failure(sk::errc::usage, [&] { run_with(1, config, both(), shown, numbers{10}); });
    CHECK(why.find("'accuracy' is no number of this run") != std::string::npos);
    CHECK(why.find("val_score") != std::string::npos);
    config.checkpoint.keep_best.metric = "train_acuracy"; // also where nothing is evaluated
    CHECK(failure(sk::errc::usage, [&] {
              run_with(1, config, both(), shown, numbers{10});
          }).find("'train_acuracy' is no number of this run") != std::string::npos);
    CHECK(failure(sk::errc::usage, [&] {
              run_with(1, config, {on("train", seen{})}, shown, numbers{0});
          }).find("'train_acuracy' is no number of this run") != std::string::npos);
    config.checkpoint.keep_best.metric = "val_acuracy";
    (void)failure(sk::errc::usage, [&] { run_with(1, config, both(), shown, numbers{10}); });
    // Nothing is evaluated: only the default is no error.
    (void)failure(sk::errc::usage, [&] { run_with(1, config, both(), shown, numbers{0}); });
    config.checkpoint.keep_best.metric = "val_loss";
    (void)run_with(1, config, both(), shown, numbers{0});
}

TEST_CASE(
    "what comes to more than one number says no best checkpoint, and is refused at the start") {
    scratch dir;
    auto config = short_config(dir.path);
    config.checkpoint.enabled = true;
    int batches = 0;
    const auto counted = [&](Net& m, const sample_batch& b, stage& here) {
        batches += 1;
        return shown(m, b, here);
    };
    for (const auto* metric : {"val_labels", "train_labels", "train_epoch_labels"}) {
        config.checkpoint.keep_best.metric = metric;
        const auto why =
            failure(sk::errc::usage, [&] { run_with(1, config, both(), counted, numbers{10}); });
        CHECK_THAT(why, ContainsSubstring("is no number of this run") &&
                            ContainsSubstring("\"val_score\"") &&
                            !ContainsSubstring("\"val_labels\""));
    }
    CHECK(batches == 0);
}

TEST_CASE("an evaluation that only a checkpoint wants has nothing to say about patience") {
    scratch dir;
    auto config = short_config(dir.path);
    config.checkpoint.enabled = config.write_files = true;
    config.checkpoint.every = 1;
    std::vector<bool> due;
    struct note_due {
        std::vector<bool>* to;
        void on_eval(const eval_info& e) { to->push_back(e.is_due); }
    };
    context ctx = context::single();
    auto net = make_net();
    sk::Trainer<sk::Single, note_due, sk::early_stopping> trainer(
        ctx, config, note_due{&due}, sk::early_stopping({.patience = 3, .least = 1e9}));
    const auto result =
        trainer.fit(net, sk::SGD{}, constant_rate{1e-2}, class_loss, numbers{50}, numbers{10});
    // Steps 3, 6 and 9 and the last are due; the first of them is the best, 6, 9 and 10 wait.
    CHECK(due ==
          std::vector<bool>{false, false, true, false, false, true, false, false, true, true});
    CHECK(result.steps == 10);
    CHECK(trainer.callback<sk::early_stopping>().waited() == 3);
}

TEST_CASE("metrics of streams: an epoch may be told to be over only by the next batch") {
    struct counted {
        std::uint64_t at = 0;
        std::uint64_t epoch = 0;
        std::optional<sample_batch> next(const stream_share& share) {
            if (share.epoch > epoch) {
                epoch = share.epoch;
                at = 0;
            }
            if (at + share.global_batch > 30) return std::nullopt;
            std::vector<std::uint64_t> ids;
            for (std::uint64_t i = 0; i < share.samples; ++i) ids.push_back(at + share.begin + i);
            if (share.is_last) at += share.global_batch;
            return numbers{}.batch(ids);
        }
        std::string state() const { return std::to_string(epoch * 1000 + at); }
        void restore(std::string_view saved) {
            const auto both = std::stoull(std::string(saved));
            epoch = both / 1000;
            at = both % 1000;
        }
    };
    scratch dir;
    for (int world : {1, 2}) {
        auto config = short_config(dir.path);
        config.last = last_batch::drop;
        told all;
        run_world(world, [&](context& ctx) {
            auto net = make_net();
            sk::Trainer<sk::DDP<tiny_buckets>, note_all> trainer(ctx, config, note_all{&all});
            trainer.measure({on("train", seen{})});
            trainer.fit(net, sk::SGD{}, constant_rate{1e-2}, shown, counted{}, numbers{0});
        });
        CHECK(all.rows.size() == 4);
        CHECK(all.rows.at(3).at("train_epoch_seen") == 24); // of the epoch before
        CHECK(all.rows.at(4).at("train_seen") == 12);       // the run's end ends a window
    }
}

TEST_CASE("tensors of every type are shown, and what cannot be is told") {
    metric_set reported;
    metrics::metric_list list;
    list.add("seen", seen{}).add("score", mean_score{});
    stage here("val", reported, &list, true);
    const auto scores = torch::ones({3, 2});
    for (const auto type : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16})
        here.update(scores.to(type), torch::zeros({3}, torch::kInt));
    here.update("score", torch::full({1, 2}, 3.0).requires_grad_(), torch::zeros({1}),
                torch::tensor({2.0}));
    here.update(scores.t().contiguous().t(), torch::zeros({3}, torch::kBool)); // strided
    const auto made = list.compute();
    CHECK(made[0].values[0] == 15);
    CHECK(made[1].values[0] == (5 * 6 * 1.0 + 2 * 2 * 3.0) / (5 * 6 + 2 * 2));
    CHECK(failure(sk::errc::not_supported, [&] {
              here.update(scores.to(torch::kComplexFloat), torch::zeros({3}));
          }).find("preds of a metric") != std::string::npos);
    CHECK(failure(sk::errc::not_supported, [&] {
              here.update(torch::empty({3, 2}, torch::device(torch::kMeta)), torch::zeros({3}));
          }).find("on meta") != std::string::npos);
    here.mean("m", 2.0).max("most", 3).min("least", 1).last("l", 1).sum("s", 1);
    CHECK(reported.size() == 5);
    CHECK(here.name() == "val");
    CHECK(!here.is_training());
}

TEST_CASE("early stopping names the evaluation sets that there are") {
    scratch dir;
    const auto config = short_config(dir.path);
    context ctx = context::single();
    auto net = make_net();
    sk::Trainer<sk::Single, sk::early_stopping> trainer(ctx, config,
                                                        sk::early_stopping({.metric = "loss"}));
    const auto why = failure(sk::errc::usage, [&] {
        trainer.fit(net, sk::SGD{}, constant_rate{1e-2}, class_loss, numbers{50}, numbers{10});
    });
    CHECK(why.find("no evaluation has a 'loss'") != std::string::npos);
    CHECK(why.find("\"val\"") != std::string::npos);
}

} // namespace stage_test
