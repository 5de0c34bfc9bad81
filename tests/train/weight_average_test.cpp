// SPDX-License-Identifier: Apache-2.0
#include <skein/train/weight_average.hpp>

#include <skein/train/training_state.hpp>
#include <skein/train/weights.hpp>

#include <tests/train/zoo.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cmath>

using namespace train_test;

namespace {

/// The weights after every step, as the user's code sees them.
struct watch_weights {
    Zoo* model;
    std::vector<std::vector<float>>* seen;
    void on_step(const step_info&) const {
        if (seen != nullptr) seen->push_back(weights(**model));
    }
};

struct averaged_run {
    std::vector<float> left;    // in the module
    std::vector<double> val;    // of every evaluation
    std::vector<float> average; // of the checkpoint
};

struct watch_evaluations {
    std::vector<double>* val;
    void on_eval(const eval_info& e) const {
        if (val != nullptr) val->push_back((*e.metrics)[0].value);
    }
};

template <class Strategy>
averaged_run run_averaged(int world, const std::string& runs, average_options options,
                          const std::string& transport = "shm") {
    averaged_run out;
    auto config = quiet_config(runs);
    config.max_steps = 6;
    config.eval_every = 2;
    config.checkpoint.enabled = true;
    run_world(
        world,
        [&](context& ctx) {
            auto model = make_zoo(shape::uneven);
            sk::Trainer<Strategy, watch_evaluations> trainer(
                ctx, config, watch_evaluations{ctx.is_first() ? &out.val : nullptr});
            (void)trainer.fit(model, {sk::AdamW{}, {.average = options}}, constant_rate{1e-2},
                              zoo_loss, numbers{}, numbers{.n = 9});
            if (ctx.is_first()) out.left = weights(*model);
        },
        transport);
    auto net = make_zoo(shape::uneven);
    (void)load_weights(*net, runs + "/run", {.average = true});
    out.average = weights(*net);
    return out;
}

} // namespace

TEST_CASE("the average follows its formula, with and without the warm-up") {
    for (const bool warm_up : {true, false}) {
        torch::manual_seed(11);
        Net net;
        flat_store flat(*net);
        weight_average average({.decay = 0.5, .warm_up = warm_up}, flat, "");
        auto wanted = flat.params_P().to(torch::kDouble).clone();
        for (std::uint64_t step = 1; step <= 12; ++step) {
            flat.params_P().add_(0.25);
            average.update(step);
            const double t = static_cast<double>(step);
            const double d = warm_up ? std::min(0.5, (1 + t) / (10 + t)) : 0.5;
            wanted = d * wanted + (1 - d) * flat.params_P().to(torch::kDouble);
        }
        CHECK((average.values() - wanted).abs().max().item<double>() < 1e-6);

        const auto before = weights(*net);
        const auto kept = average.values().clone();
        average.swap();
        CHECK(weights(*net) != before);
        CHECK(torch::equal(flat.params_P(), kept));
        average.swap();
        CHECK(weights(*net) == before);
        CHECK(torch::equal(average.values(), kept));
        average.restart();
        CHECK(torch::equal(average.values(), flat.params_P()));
    }
}

TEST_CASE("a decay that makes no sense is refused, and a shard averages what it owns") {
    Net net;
    flat_store flat(*net, {.shards = 3, .shard = 1});
    CHECK_THROWS_AS(weight_average({.decay = 1.0}, flat, ""), sk::error);
    CHECK_THROWS_AS(weight_average({.decay = -0.1}, flat, ""), sk::error);
    CHECK(weight_average({}, flat, "").values().numel() == flat.owned());
    CHECK(flat.owned() < flat.size());
}

TEST_CASE("under every strategy the average, what evaluations see and what is left are the same") {
    scratch dir;
    const average_options plain{.decay = 0.9}, keep{.decay = 0.9, .keep = true};
    const auto ddp = run_averaged<sk::DDP<tiny_buckets>>(2, dir.path + "/a", plain);
    CHECK(ddp.average != ddp.left);
    CHECK(ddp.val.size() == 3);
    const auto same = [&](const averaged_run& r) {
        CHECK(r.left == ddp.left);
        CHECK(r.average == ddp.average);
        CHECK(r.val == ddp.val);
    };
    same(run_averaged<sk::Zero1<tiny_buckets>>(2, dir.path + "/b", plain));
    same(run_averaged<sk::FSDP<zoo_cells>>(2, dir.path + "/c", plain));
    same(run_averaged<sk::FSDP<zoo_cells>>(2, dir.path + "/d", plain, "ring"));

    const auto kept = run_averaged<sk::FSDP<zoo_cells>>(2, dir.path + "/e", keep);
    CHECK(kept.left == ddp.average);
    const auto unseen =
        run_averaged<sk::DDP<tiny_buckets>>(2, dir.path + "/f", {.decay = 0.9, .evaluate = false});
    CHECK(unseen.left == ddp.left);
    CHECK(unseen.average == ddp.average);
    CHECK(unseen.val != ddp.val);
}

TEST_CASE("evaluations with the average do not change the training") {
    scratch dir;
    std::vector<std::vector<float>> with, without;
    for (auto* seen : {&with, &without}) {
        auto config = quiet_config(dir.path);
        config.max_steps = 5;
        config.eval_every = seen == &with ? 1 : 0;
        run_world(2, [&](context& ctx) {
            auto model = make_zoo(shape::plain);
            sk::Trainer<sk::Zero1<tiny_buckets>, watch_weights> trainer(
                ctx, config, watch_weights{&model, ctx.is_first() ? seen : nullptr});
            (void)trainer.fit(model, {sk::AdamW{}, {.average = average_options{}}},
                              constant_rate{1e-2}, zoo_loss, numbers{}, numbers{.n = 5});
        });
    }
    CHECK(with.size() == 5);
    CHECK(with == without);
}

TEST_CASE("a run goes on with its average, and one that had none begins it with the weights") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.checkpoint.enabled = true;
    const auto run = [&](const char* name, int steps, bool averaged, resume_mode resume) {
        config.name = name;
        config.max_steps = steps;
        config.resume = resume;
        auto ctx = context::single();
        auto net = make_net();
        sk::Trainer<sk::Single> trainer(ctx, config);
        optimizer_extras extras;
        if (averaged) extras.average = average_options{.decay = 0.8};
        (void)trainer.fit(net, {sk::AdamW{}, extras}, constant_rate{1e-3}, class_loss, numbers{},
                          numbers{4});
        return weights(*net);
    };
    const auto average_of = [&](const char* name) {
        auto net = make_net();
        (void)load_weights(*net, dir.path + "/" + name, {.average = true});
        return weights(*net);
    };
    const auto whole = run("whole", 8, true, resume_mode::fresh);
    (void)run("parts", 3, true, resume_mode::fresh);
    CHECK(run("parts", 8, true, resume_mode::latest) == whole);
    CHECK(average_of("parts") == average_of("whole"));

    const auto third = run("late", 3, false, resume_mode::fresh);
    CHECK_THROWS_AS(average_of("late"), sk::error);
    CHECK(run("late", 8, true, resume_mode::latest) == whole);
    CHECK(average_of("late") != average_of("whole"));
    CHECK(relative_error(average_of("late"), whole) < relative_error(third, whole));

    (void)run("gone", 3, true, resume_mode::fresh); // and without it, the weights are the same
    CHECK(run("gone", 8, false, resume_mode::latest) == whole);
}

TEST_CASE(
    "weights that are not those whose numbers a checkpoint has are told where they are loaded") {
    for (const bool evaluates : {true, false}) {
        scratch dir;
        (void)run_averaged<sk::Single>(1, dir.path, {.evaluate = evaluates});
        auto net = make_zoo(shape::uneven);
        const auto alike = load_weights(*net, dir.path + "/run", {.average = evaluates});
        CHECK(alike.other_numbers.empty());
        const auto other = load_weights(*net, dir.path + "/run", {.average = !evaluates});
        INFO(other.other_numbers);
        CHECK(other.other_numbers.find("val_loss") != std::string::npos);
        CHECK(other.other_numbers.find(evaluates ? "{.average = true}" : "{.average = false}") !=
              std::string::npos);
    }
}
