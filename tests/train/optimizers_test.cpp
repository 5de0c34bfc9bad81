// SPDX-License-Identifier: Apache-2.0
#include <skein/train/optimizers.hpp>

#include <skein/train/training_state.hpp>

#include <tests/train/zoo.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cmath>

using namespace train_test;

namespace {

// [own]
/// Momentum and the sign of it: an optimizer of a user's own.
struct signum {
    double momentum = 0.9;
    double weight_decay = 0.0;

    static constexpr std::string_view name = "signum";
    std::vector<optimizer_state> states() const { return {{"momentum"}}; }
    void describe(description& to) const {
        to.add("momentum", momentum).add("weight decay", weight_decay);
    }
    void update(const update_runs& runs, const update_values& v) const {
        const auto lr = float(v.lr), decay = float(v.weight_decay), scale = float(v.grad_scale);
        const auto kept = float(momentum);
        runs.for_each([=](const run_part& r) {
            for (std::size_t i = 0; i < r.params.size(); ++i) {
                auto& m = r.states[0][i];
                m = kept * m + (1 - kept) * (r.grads[i] / scale);
                r.params[i] -= lr * (float(m > 0) - float(m < 0) + decay * r.params[i]);
            }
        });
    }
};
// [/own]

Net twin_of(const Net& from) {
    torch::NoGradGuard no_grad;
    Net to;
    for (std::size_t i = 0; i < from->parameters().size(); ++i)
        to->parameters()[i].copy_(from->parameters()[i]);
    return to;
}

/// 20 steps by us and by something else on the same gradients' scale; the relative difference.
///   theirs  takes one step of the module whose gradients are there
double apart_from(const optimizer_options& options, Net& mine, Net& theirs,
                  const std::function<void(int)>& their_step) {
    flat_store flat(*mine);
    flat_optimizer opt(options, flat);
    for (int step = 0; step < 20; ++step) {
        const auto id = static_cast<std::uint64_t>(step);
        const auto batch = numbers{}.batch(std::vector<std::uint64_t>{id, id + 1, id * 2 % 64});
        flat.expect_gradients();
        (class_loss(mine, batch) * 2.0).backward();
        flat.settle_gradients();
        opt.step(1e-2, 2.0);
        theirs->zero_grad();
        class_loss(theirs, batch).backward();
        their_step(step + 1);
    }
    return relative_error(weights(*mine), weights(*theirs));
}

/// The same for what torch::optim has.
template <class Torch, class Options>
double apart_from_torch(const optimizer_options& options, const Options& torch_options) {
    torch::manual_seed(11);
    Net mine;
    auto theirs = twin_of(mine);
    Torch torch_optimizer(theirs->parameters(), torch_options);
    return apart_from(options, mine, theirs, [&](int) { torch_optimizer.step(); });
}

/// Six steps of the zoo under a strategy.
template <class Strategy>
std::vector<float> trained_with(int world, const optimizer_options& options, run_config config) {
    std::vector<float> out;
    config.max_steps = 6;
    run_world(world, [&](context& ctx) {
        auto model = make_zoo(shape::uneven);
        sk::Trainer<Strategy> trainer(ctx, config);
        (void)trainer.fit(
            model, options, [](std::uint64_t step) { return 1e-2 / double(1 + step); }, zoo_loss,
            numbers{}, numbers{.n = 5});
        if (ctx.is_first()) out = weights(*model);
    });
    return out;
}

} // namespace

TEST_CASE("Adam agrees with torch::optim::Adam over 20 steps, its decay in the gradient") {
    for (const double decay : {0.0, 0.1}) {
        const auto apart = apart_from_torch<torch::optim::Adam>(
            sk::Adam{.beta2 = 0.95, .weight_decay = decay, .decay_vectors = true},
            torch::optim::AdamOptions(1e-2).betas({0.9, 0.95}).weight_decay(decay));
        CHECK(apart < 2e-6);
    }
}

TEST_CASE("Adagrad agrees with torch::optim::Adagrad over 20 steps") {
    struct row {
        double decay, lr_decay, initial;
    };
    for (const auto& r : {row{0, 0, 0}, row{0.1, 0, 0}, row{0, 0.1, 0.5}, row{0.1, 0.05, 0.1}}) {
        INFO("decay " << r.decay << ", lr_decay " << r.lr_decay << ", initial " << r.initial);
        const auto apart =
            apart_from_torch<torch::optim::Adagrad>(sk::Adagrad{.lr_decay = r.lr_decay,
                                                                .initial_sum = r.initial,
                                                                .weight_decay = r.decay,
                                                                .decay_vectors = true},
                                                    torch::optim::AdagradOptions(1e-2)
                                                        .lr_decay(r.lr_decay)
                                                        .weight_decay(r.decay)
                                                        .initial_accumulator_value(r.initial));
        CHECK(apart < 2e-6);
    }
}

TEST_CASE("Lion agrees with the formulas of its paper, taken number by number in double") {
    for (const double decay : {0.0, 0.3}) {
        torch::manual_seed(11);
        Net mine;
        auto theirs = twin_of(mine);
        std::vector<std::vector<double>> momentum;
        const auto slow_lion = [&](int) {
            torch::NoGradGuard no_grad;
            const auto parameters = theirs->parameters();
            momentum.resize(parameters.size());
            for (std::size_t i = 0; i < parameters.size(); ++i) {
                auto* p = static_cast<float*>(parameters[i].mutable_data_ptr());
                const auto grad = parameters[i].grad().contiguous();
                const auto* g = static_cast<const float*>(grad.const_data_ptr());
                momentum[i].resize(static_cast<std::size_t>(grad.numel()), 0.0);
                for (std::size_t k = 0; k < momentum[i].size(); ++k) {
                    const double c = 0.9 * momentum[i][k] + 0.1 * g[k];
                    const double sign = c > 0 ? 1.0 : c < 0 ? -1.0 : 0.0;
                    p[k] = float(p[k] - 1e-2 * (sign + decay * p[k]));
                    momentum[i][k] = 0.99 * momentum[i][k] + 0.01 * g[k];
                }
            }
        };
        const auto apart = apart_from(sk::Lion{.weight_decay = decay, .decay_vectors = true}, mine,
                                      theirs, slow_lion);
        CHECK(apart < 2e-5); // signs agree throughout, or it were 1e-2
    }
}

TEST_CASE("settings of every optimizer that make no sense are usage errors with its name") {
    Net net;
    flat_store flat(*net);
    const std::vector<std::pair<optimizer_options, const char*>> bad{
        {sk::AdamW{.beta2 = 1.5}, "AdamW betas"},
        {sk::Adam{.beta1 = -0.1}, "Adam betas"},
        {sk::Adam{.eps = 0.0}, "Adam eps"},
        {sk::SGD{.weight_decay = -1}, "SGD weight"},
        {sk::Adagrad{.lr_decay = -1}, "Adagrad"},
        {sk::Adagrad{.eps = 0}, "Adagrad eps"},
        {sk::Adagrad{.initial_sum = -1}, "Adagrad"},
        {sk::Lion{.beta1 = 1.0}, "Lion betas"},
        {sk::Lion{.weight_decay = std::nan("")}, "Lion weight"}};
    for (const auto& [options, words] : bad) {
        INFO(words);
        try {
            flat_optimizer opt(options, flat);
            FAIL("it was taken");
        } catch (const sk::error& why) {
            CHECK(why.code() == sk::errc::usage);
            CHECK(std::string(why.what()).find(words) != std::string::npos);
        }
    }
}

TEST_CASE("an optimizer names itself and every setting, in the order of its struct") {
    const auto said = any_optimizer(sk::Lion{.weight_decay = 0.5}).describe();
    CHECK(said.name == "lion");
    const std::vector<std::pair<std::string, std::string>> wanted{
        {"beta1", "0.9"}, {"beta2", "0.99"}, {"weight decay", "0.5"}, {"decay_vectors", "false"}};
    CHECK(said.settings == wanted);
    CHECK(any_optimizer(signum{}).describe().name == "signum");
    static_assert(optimizer<signum> && optimizer<sk::Adagrad> && !optimizer<int>);
}

TEST_CASE("every optimizer, a user's own too, gives the same bits under every strategy") {
    const auto config = quiet_config("unused");
    const std::vector<optimizer_options> all{
        sk::Adam{.weight_decay = 0.1}, sk::Adagrad{.initial_sum = 0.1, .weight_decay = 0.1},
        sk::Lion{.weight_decay = 0.1}, signum{.weight_decay = 0.1}};
    for (const auto& options : all) {
        INFO(options.how.name());
        const auto ddp = trained_with<sk::DDP<tiny_buckets>>(2, options, config);
        CHECK(trained_with<sk::Zero2<tiny_buckets>>(2, options, config) == ddp);
        CHECK(trained_with<sk::FSDP<zoo_cells>>(2, options, config) == ddp);
        CHECK(trained_with<sk::FSDP<zoo_cells>>(3, options, config) ==
              trained_with<sk::DDP<tiny_buckets>>(3, options, config));
        if (options.how.name() == "adam")
            CHECK(relative_error(trained_with<sk::Single>(1, options, config), ddp) < 1e-5);
    }
}

TEST_CASE("a user's optimizer is saved by the names of its states and goes on from them") {
    scratch dir;
    auto config = quiet_config(dir.path);
    config.checkpoint.enabled = true;
    const auto run = [&](const char* name, int steps, resume_mode resume) {
        config.name = name;
        config.max_steps = steps;
        config.resume = resume;
        auto ctx = context::single();
        auto net = make_net();
        sk::Trainer<sk::Single> trainer(ctx, config);
        (void)trainer.fit(net, signum{}, constant_rate{1e-3}, class_loss, numbers{}, numbers{4});
        return weights(*net);
    };
    const auto whole = run("whole", 8, resume_mode::fresh);
    (void)run("parts", 3, resume_mode::fresh);
    CHECK(run("parts", 8, resume_mode::latest) == whole);
    sk::posix_disk disk;
    checkpointer saver(disk, dir.path + "/parts/checkpoints");
    const auto found = saver.load_latest();
    REQUIRE(found);
    CHECK(found->contains("optim.momentum.in.weight"));
}

TEST_CASE("ranks whose optimizers or schedules differ are told which setting, by name or by rate") {
    const auto config = quiet_config("unused");
    const auto errors_of = [&](const std::function<optimizer_options(int)>& how,
                               const std::function<schedule(int)>& rate) {
        const auto errors = try_world(2, [&](context& ctx) {
            auto net = make_net();
            sk::Trainer<sk::DDP<>> trainer(ctx, config);
            (void)trainer.fit(net, how(ctx.rank()), rate(ctx.rank()), class_loss, numbers{},
                              numbers{4});
        });
        REQUIRE(errors[0]);
        REQUIRE(errors[1]);
        CHECK(errors[0]->code() == sk::errc::mismatch);
        return std::string(errors[0]->what());
    };
    const auto alike = [](int) { return schedule(constant_rate{1e-3}); };
    const auto other =
        errors_of([](int rank) { return signum{.momentum = rank == 0 ? 0.9 : 0.8}; }, alike);
    CHECK(other.find("rank 1 has momentum 0.8, rank 0 has 0.9") != std::string::npos);
    const auto rates =
        errors_of([](int) { return sk::AdamW{}; },
                  [](int rank) { return [rank](std::uint64_t) { return 1e-3 * (rank + 1); }; });
    CHECK(rates.find("rank 1 has learning rate of step 0 0.002") != std::string::npos);
}

namespace {

template <class Strategy>
std::vector<float> trained_with_all(int world, const std::string& folder) {
    std::vector<float> out;
    auto config = quiet_config("unused");
    config.max_steps = 6;
    config.eval_every = 2;
    config.clip_value = 0.05;
    run_world(world, [&](context& ctx) {
        auto model = make_zoo(shape::tied);
        skein::Trainer<Strategy> trainer(ctx, config);
        // [asking]
        const skein::parameter_groups groups{
            {.match = [](const skein::parameter_info& p) { return p.name.starts_with("embed"); },
             .lr_scale = 0.1},
            {.match = [](const skein::parameter_info& p) { return p.name.ends_with("bias"); },
             .frozen = true}};
        const auto rate = [](std::uint64_t step) { return 1e-2 / std::sqrt(1.0 + double(step)); };
        trainer.fit(model,
                    {skein::AdamW{.weight_decay = 0.1},
                     {.groups = groups,
                      .average = skein::average_options{.decay = 0.99, .keep = true},
                      .states_in = folder}},
                    rate, zoo_loss, numbers{}, numbers{.n = 5});
        // [/asking]
        if (ctx.is_first()) out = weights(*model);
    });
    return out;
}

} // namespace

TEST_CASE(
    "groups, clipping by value, an average and states in files go together, in all strategies") {
    scratch dir;
    const auto ddp = trained_with_all<sk::DDP<tiny_buckets>>(2, "");
    CHECK(trained_with_all<sk::DDP<tiny_buckets>>(2, dir.path) == ddp);
    CHECK(trained_with_all<sk::Zero1<tiny_buckets>>(2, dir.path) == ddp);
    CHECK(trained_with_all<sk::FSDP<zoo_cells>>(2, dir.path) == ddp);
    CHECK(std::filesystem::is_empty(dir.path));
}
