// SPDX-License-Identifier: Apache-2.0
#include <tests/train/train_support.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace train_test;

namespace {

Net copy_of(const Net& from) {
    torch::NoGradGuard no_grad;
    Net to;
    for (std::size_t i = 0; i < from->parameters().size(); ++i)
        to->parameters()[i].copy_(from->parameters()[i]);
    return to;
}

/// 30 steps by us and by torch::optim on the same batches; the relative difference.
template <class Torch>
double difference(optimizer_options options, double lr, double clip,
                  const std::function<Torch(Net&)>& make_torch) {
    torch::manual_seed(11);
    Net mine;
    auto theirs = copy_of(mine);
    flat_store flat(*mine);
    flat_optimizer opt(options, flat);
    Torch torch_opt = make_torch(theirs);
    for (std::uint64_t step = 0; step < 30; ++step) {
        const auto batch =
            numbers{}.batch(std::vector<std::uint64_t>{step, step + 1, step * 2 % 64});
        flat.expect_gradients();
        class_loss(mine, batch).backward();
        flat.settle_gradients();
        opt.step(lr, clip_to(std::sqrt(squared_norm(flat.grads_P())), clip).scale);

        torch_opt.zero_grad();
        class_loss(theirs, batch).backward();
        if (clip > 0) torch::nn::utils::clip_grad_norm_(theirs->parameters(), clip);
        torch_opt.step();
    }
    return relative_error(weights(*mine), weights(*theirs));
}

std::vector<torch::optim::OptimizerParamGroup> groups(
    Net& net, bool decay_vectors,
    std::function<std::unique_ptr<torch::optim::OptimizerOptions>(bool)> make) {
    std::vector<torch::Tensor> matrices, vectors;
    for (auto& p : net->parameters())
        (p.dim() >= 2 || decay_vectors ? matrices : vectors).push_back(p);
    std::vector<torch::optim::OptimizerParamGroup> out;
    out.emplace_back(matrices, make(true));
    if (!vectors.empty()) out.emplace_back(vectors, make(false));
    return out;
}

} // namespace

TEST_CASE("AdamW agrees with torch::optim::AdamW, vectors not decayed") {
    for (const double clip : {0.0, 0.1}) {
        const auto error = difference<torch::optim::AdamW>(
            sk::AdamW{.beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.2}, 1e-2, clip, [](Net& net) {
                const auto make = [](bool decay) {
                    auto o = std::make_unique<torch::optim::AdamWOptions>(1e-2);
                    o->betas({0.9, 0.95}).weight_decay(decay ? 0.2 : 0.0);
                    return o;
                };
                return torch::optim::AdamW(groups(net, false, make),
                                           torch::optim::AdamWOptions(1e-2));
            });
        CHECK(error < 2e-6);
    }
}

TEST_CASE("AdamW can decay vectors too") {
    const auto error = difference<torch::optim::AdamW>(
        sk::AdamW{.weight_decay = 0.3, .decay_vectors = true}, 1e-2, 0.0, [](Net& net) {
            return torch::optim::AdamW(net->parameters(),
                                       torch::optim::AdamWOptions(1e-2).weight_decay(0.3));
        });
    CHECK(error < 2e-6);
}

TEST_CASE("SGD agrees with torch::optim::SGD, with and without momentum and nesterov") {
    struct row {
        double momentum;
        bool nesterov;
        double decay;
    };
    for (const auto& r :
         {row{0, false, 0}, row{0, false, 0.1}, row{0.9, false, 0.1}, row{0.9, true, 0.1}}) {
        const auto error = difference<torch::optim::SGD>(
            sk::SGD{.momentum = r.momentum,
                    .nesterov = r.nesterov,
                    .weight_decay = r.decay,
                    .decay_vectors = true},
            0.05, 0.5, [&](Net& net) {
                return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.05)
                                                                .momentum(r.momentum)
                                                                .nesterov(r.nesterov)
                                                                .weight_decay(r.decay));
            });
        INFO("momentum " << r.momentum << " nesterov " << r.nesterov << " decay " << r.decay);
        CHECK(error < 2e-6);
    }
}

TEST_CASE("settings that make no sense are usage errors") {
    Net net;
    flat_store flat(*net);
    CHECK_THROWS_AS(flat_optimizer(sk::AdamW{.beta1 = 1.0}, flat), sk::error);
    CHECK_THROWS_AS(flat_optimizer(sk::AdamW{.eps = 0}, flat), sk::error);
    CHECK_THROWS_AS(flat_optimizer(sk::SGD{.momentum = -0.1}, flat), sk::error);
    CHECK_THROWS_AS(flat_optimizer(sk::SGD{.nesterov = true}, flat), sk::error);
}

TEST_CASE("clipping leaves short gradients alone and brings long ones to the limit") {
    CHECK(clip_to(0.5, 1.0).scale == 1.0);
    CHECK(clip_to(0.5, 0.0).scale == 1.0);
    const auto c = clip_to(4.0, 1.0);
    CHECK(std::abs(4.0 / c.scale - 1.0) < 1e-6);
}

TEST_CASE(
    "a parameter that has no gradient in some steps is left out of them, as torch::optim does") {
    struct branches : torch::nn::Module {
        branches() : a(8, 4), b(8, 4) {
            register_module("a", a);
            register_module("b", b);
        }
        torch::nn::Linear a, b;
    };
    for (const bool adam : {true, false}) {
        torch::manual_seed(3);
        branches mine, theirs;
        {
            torch::NoGradGuard no_grad;
            for (std::size_t i = 0; i < mine.parameters().size(); ++i)
                theirs.parameters()[i].copy_(mine.parameters()[i]);
        }
        flat_store flat(mine);
        const auto options =
            adam ? optimizer_options(sk::AdamW{.weight_decay = 0.3, .decay_vectors = true})
                 : optimizer_options(
                       sk::SGD{.momentum = 0.9, .weight_decay = 0.3, .decay_vectors = true});
        flat_optimizer opt(options, flat);
        torch::optim::AdamW torch_adam(theirs.parameters(),
                                       torch::optim::AdamWOptions(1e-2).weight_decay(0.3));
        torch::optim::SGD torch_sgd(theirs.parameters(),
                                    torch::optim::SGDOptions(1e-2).momentum(0.9).weight_decay(0.3));
        const auto unused = [](branches& m) { return weights(*m.b); };
        for (std::uint64_t step = 0; step < 12; ++step) {
            const auto x = numbers{}.batch(std::vector<std::uint64_t>{step, step + 1}).x;
            const auto loss = [&](branches& m) { // b takes part in every third step only
                auto sum = m.a(x).pow(2).mean();
                return step % 3 == 1 ? sum + m.b(x).pow(2).mean() : sum;
            };
            const auto before = unused(mine);
            flat.expect_gradients();
            loss(mine).backward();
            flat.settle_gradients();
            opt.step(1e-2, 1.0, flat.touched());
            if (step % 3 != 1) CHECK(unused(mine) == before);
            for (auto& p : theirs.parameters()) p.mutable_grad().reset();
            loss(theirs).backward();
            adam ? torch_adam.step() : torch_sgd.step();
        }
        CHECK(relative_error(weights(mine), weights(theirs)) < 2e-6);
        CHECK(opt.left_out().size() == 4);
    }
}

TEST_CASE("the updates of all shards are bit for bit the update of the whole") {
    const auto batch = numbers{}.batch(std::vector<std::uint64_t>{1, 2, 3, 9});
    const std::vector<optimizer_options> all{
        sk::AdamW{.weight_decay = 0.3}, sk::SGD{.momentum = 0.9, .weight_decay = 0.3},
        sk::Adam{.weight_decay = 0.3}, sk::Adagrad{.initial_sum = 0.2}, sk::Lion{}};
    for (const auto& options : all) {
        INFO(options.how.name());
        const auto trained = [&](int shards, double clip_value) {
            std::vector<float> all_weights;
            for (int shard = 0; shard < shards; ++shard) {
                torch::manual_seed(11);
                Net net;
                flat_store flat(*net, {.shards = shards, .shard = shard});
                flat_optimizer opt(options, flat);
                std::int64_t states = 0;
                for (const auto& [name, state] : opt.states()) states += state.numel();
                CHECK(states ==
                      flat.owned() * static_cast<std::int64_t>(options.how.states().size()));
                for (int step = 0; step < 4; ++step) { // the same gradients at every step
                    flat.expect_gradients();
                    auto other = make_net();
                    class_loss(other, batch).backward();
                    for (std::size_t i = 0; i < flat.segments().size(); ++i)
                        net->parameters()[i].mutable_grad() = other->parameters()[i].grad();
                    flat.settle_gradients();
                    opt.step(1e-2, 3.0, {}, clip_value);
                }
                for (const auto& piece : flat.pieces()) {
                    const auto part = flat.params_P().narrow(0, piece.flat, piece.count);
                    const auto* from = static_cast<const float*>(part.const_data_ptr());
                    all_weights.insert(all_weights.end(), from, from + piece.count);
                }
            }
            return all_weights;
        };
        for (const double clip_value : {0.0, 0.01}) {
            const auto whole = trained(1, clip_value);
            CHECK(whole.size() > 200);
            // With one unit the pieces of all shards, in rank order, are the buffer.
            CHECK(trained(2, clip_value) == whole);
            CHECK(trained(3, clip_value) == whole);
        }
    }
}

TEST_CASE("gradients clipped by norm and then by value are those that torch's utilities leave") {
    for (const double norm_limit : {0.0, 0.4}) {
        torch::manual_seed(11);
        Net mine;
        auto theirs = copy_of(mine);
        flat_store flat(*mine);
        flat_optimizer opt(sk::SGD{}, flat);
        torch::optim::SGD torch_opt(theirs->parameters(), torch::optim::SGDOptions(0.1));
        for (std::uint64_t step = 0; step < 20; ++step) {
            const auto batch = numbers{}.batch(std::vector<std::uint64_t>{step, step + 1});
            flat.expect_gradients();
            class_loss(mine, batch).backward();
            flat.settle_gradients();
            const double norm = std::sqrt(squared_norm(flat.grads_P()));
            opt.step(0.1, clip_to(norm, norm_limit).scale, {}, 0.02);
            torch_opt.zero_grad();
            class_loss(theirs, batch).backward();
            if (norm_limit > 0) torch::nn::utils::clip_grad_norm_(theirs->parameters(), norm_limit);
            torch::nn::utils::clip_grad_value_(theirs->parameters(), 0.02);
            torch_opt.step();
        }
        CHECK(relative_error(weights(*mine), weights(*theirs)) < 2e-6);
    }
}

namespace {

/// Some steps with the same made-up gradients.
void step_often(flat_store& flat, flat_optimizer& opt, int steps = 3) {
    for (int step = 0; step < steps; ++step) {
        for (const auto& piece : flat.pieces()) flat.own_grads(piece).fill_(0.5 + step);
        opt.step(1e-2);
    }
}

/// An optimizer that does nothing, with one state of any name.
struct idle_optimizer {
    static constexpr const char* name = "idle";
    std::vector<optimizer_state> states() const { return {{state}}; }
    void describe(description&) const {}
    void update(const update_runs&, const update_values&) const {}
    std::string state;
};

auto holds(std::string text) {
    return [text = std::move(text)](const parameter_info& p) {
        return p.name.find(text) != std::string_view::npos;
    };
}

} // namespace

TEST_CASE("groups give parameters a rate and a decay of their own, as torch's parameter groups") {
    torch::manual_seed(11);
    Net mine;
    auto theirs = copy_of(mine);
    flat_store flat(*mine);
    flat_optimizer opt({sk::AdamW{.weight_decay = 0.2, .decay_vectors = true},
                        {.groups = {{.match = holds("norm"), .weight_decay = 0.0},
                                    {.match = holds("out"), .lr_scale = 0.2}}}},
                       flat);
    const auto options_of = [](double lr, double decay) {
        return std::make_unique<torch::optim::AdamWOptions>(
            torch::optim::AdamWOptions(lr).weight_decay(decay));
    };
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(theirs->in->parameters(), options_of(1e-2, 0.2));
    groups.emplace_back(theirs->norm->parameters(), options_of(1e-2, 0.0));
    // Not 1e-3: since LibTorch 2.15 a rate that is the default of its options counts as not given.
    groups.emplace_back(theirs->out->parameters(), options_of(2e-3, 0.2));
    torch::optim::AdamW torch_opt(groups, torch::optim::AdamWOptions(1e-2));
    for (std::uint64_t step = 0; step < 20; ++step) {
        const auto batch = numbers{}.batch(std::vector<std::uint64_t>{step, step + 1});
        flat.expect_gradients();
        class_loss(mine, batch).backward();
        flat.settle_gradients();
        opt.step(1e-2);
        torch_opt.zero_grad();
        class_loss(theirs, batch).backward();
        torch_opt.step();
    }
    CHECK(relative_error(weights(*mine), weights(*theirs)) < 2e-6);
}

TEST_CASE("a frozen group keeps its weights and its states, the others go on as without it") {
    const auto run = [](Net& net, parameter_groups groups) {
        flat_store flat(*net);
        flat_optimizer opt({sk::AdamW{.weight_decay = 0.3}, {.groups = std::move(groups)}}, flat);
        step_often(flat, opt);
        std::vector<std::vector<float>> states;
        for (const auto& s : flat.segments()) {
            const auto m = flat_store::view_of(opt.states()[0].second, s).contiguous();
            const auto* from = static_cast<const float*>(m.const_data_ptr());
            states.emplace_back(from, from + m.numel());
        }
        return states;
    };
    auto before = make_net(), all = make_net(), some = make_net();
    const auto moved = run(all, {});
    const auto kept = run(some, {{.match = holds("in."), .frozen = true}});
    CHECK(weights(*some->in) == weights(*before->in));
    CHECK(weights(*all->in) != weights(*before->in));
    CHECK(weights(*some->norm) == weights(*all->norm));
    CHECK(weights(*some->out) == weights(*all->out));
    CHECK(kept[0] == std::vector<float>(kept[0].size(), 0.0f));
    CHECK(kept.back() == moved.back());
}

TEST_CASE("what groups come to is one number that tells other matches, rates and decays apart") {
    Net net;
    flat_store flat(*net);
    const auto hash = [&](parameter_groups groups) {
        return flat_optimizer({sk::AdamW{}, {.groups = std::move(groups)}}, flat).effect_hash();
    };
    const auto one = hash({{.match = holds("in."), .lr_scale = 0.5}});
    CHECK(one == hash({{.match = holds("in.w"), .lr_scale = 0.5},
                       {.match = holds("in.b"), .lr_scale = 0.5}}));
    CHECK(one != hash({{.match = holds("in.w"), .lr_scale = 0.5}}));
    CHECK(one != hash({{.match = holds("in."), .lr_scale = 0.25}}));
    CHECK(one != hash({{.match = holds("in."), .lr_scale = 0.5, .frozen = true}}));
    CHECK(one != hash({}));
}

TEST_CASE("ranks whose groups match other parameters are told so before the first step") {
    const auto config = quiet_config("unused");
    const auto errors = try_world(2, [&](context& ctx) {
        auto net = make_net();
        sk::Trainer<sk::DDP<>> trainer(ctx, config);
        const std::string mine = ctx.rank() == 0 ? "in." : "out.";
        (void)trainer.fit(net, {sk::AdamW{}, {.groups = {{.match = holds(mine), .lr_scale = 0.1}}}},
                          constant_rate{1e-3}, class_loss, numbers{}, numbers{4});
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        CHECK(e->code() == sk::errc::mismatch);
        CHECK(std::string(e->what()).find("what the parameter groups match of rank 1") !=
              std::string::npos);
    }
}

TEST_CASE("states in mapped files give the same bits, and nothing lies in their folder") {
    scratch dir;
    const auto run = [](const std::string& folder) {
        auto net = make_net();
        flat_store flat(*net);
        flat_optimizer opt({sk::AdamW{}, {.average = average_options{}, .states_in = folder}},
                           flat);
        step_often(flat, opt);
        return weights(*net);
    };
    CHECK(run(dir.path) == run(""));
    CHECK(std::filesystem::is_empty(dir.path));
    CHECK_THROWS_AS(run(dir.path + "/none"), sk::error);
}

TEST_CASE("an optimizer whose states have names that checkpoints cannot use is refused") {
    Net net;
    flat_store flat(*net);
    for (const char* state : {"", "a.b", "ema"})
        CHECK_THROWS_AS(flat_optimizer(idle_optimizer{state}, flat), sk::error);
    CHECK(flat_optimizer(idle_optimizer{"a"}, flat).states().size() == 1);
}

namespace {

enum class tensors { updated_together, updated_one_by_one };

/// Five steps of 60 tensors of very different sizes, matrices and vectors in turns; and what they
/// are then.
std::vector<float> many_tensors(const optimizer_options& options, int shards, tensors how) {
    std::vector<float> out;
    for (int shard = 0; shard < shards; ++shard) {
        torch::manual_seed(5);
        torch::nn::Module module;
        for (int i = 0; i < 30; ++i) {
            module.register_parameter("w" + std::to_string(i), torch::randn({7 + i * 37, 9}));
            module.register_parameter("b" + std::to_string(i), torch::randn({1 + i * 100}));
        }
        // Tensors that are long in the mean are not joined.
        if (how == tensors::updated_one_by_one)
            module.register_parameter("long", torch::ones({1 << 10, 1 << 10}));
        flat_store flat(module, {.shards = shards, .shard = shard});
        flat_optimizer opt(options, flat);
        for (int step = 0; step < 5; ++step) {
            for (const auto& piece : flat.pieces()) {
                auto grads = flat.own_grads(piece).narrow(0, 0, piece.count);
                const auto at = torch::arange(piece.first, piece.first + piece.count);
                grads.copy_(torch::sin(at * (step + 1.0) + double(piece.segment)));
            }
            std::vector<double> present(flat.segments().size(), 1.0);
            if (step == 3) present[11] = 0.0;
            opt.step(1e-2, 1.5, present, /*clip_value=*/0.5);
        }
        for (const auto& piece : flat.pieces()) {
            if (flat.segments()[piece.segment].name == "long") continue;
            const auto part = flat.params_P().narrow(0, piece.flat, piece.count);
            const auto* from = static_cast<const float*>(part.const_data_ptr());
            out.insert(out.end(), from, from + piece.count);
        }
    }
    return out;
}

} // namespace

TEST_CASE("short tensors that are updated together get the bits of an update one by one") {
    const parameter_groups groups{{.match = holds("w7"), .lr_scale = 0.5, .weight_decay = 0.7},
                                  {.match = holds("w2"), .weight_decay = 0.1},
                                  {.match = holds("w3"), .frozen = true}};
    const std::vector<std::pair<any_optimizer, int>> optimizers{
        {any_optimizer(sk::AdamW{.weight_decay = 0.3}), 3},
        {any_optimizer(sk::Lion{.weight_decay = 0.3}), 2},
        {any_optimizer(sk::Adam{.weight_decay = 0.3}), 2},
        {any_optimizer(sk::SGD{.momentum = 0.9, .weight_decay = 0.3}), 2}};
    for (const auto& [how, shards] : optimizers)
        for (const bool grouped : {false, true}) {
            INFO(how.name() << (grouped ? " with groups" : ""));
            optimizer_options options(sk::AdamW{},
                                      {.groups = grouped ? groups : parameter_groups{}});
            options.how = how;
            const auto one_by_one = many_tensors(options, 1, tensors::updated_one_by_one);
            CHECK(many_tensors(options, 1, tensors::updated_together) == one_by_one);
            CHECK(many_tensors(options, shards, tensors::updated_together) == one_by_one);
        }
}
