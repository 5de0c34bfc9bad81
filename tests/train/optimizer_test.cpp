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
    for (const bool adam : {true, false}) {
        const auto options = adam
                                 ? optimizer_options(sk::AdamW{.weight_decay = 0.3})
                                 : optimizer_options(sk::SGD{.momentum = 0.9, .weight_decay = 0.3});
        const auto trained = [&](int shards) {
            std::vector<float> all;
            for (int shard = 0; shard < shards; ++shard) {
                torch::manual_seed(11);
                Net net;
                flat_store flat(*net, {.shards = shards, .shard = shard});
                flat_optimizer opt(options, flat);
                std::int64_t states = 0;
                for (const auto& [name, state] : opt.states()) states += state.numel();
                CHECK(states == flat.owned() * (adam ? 2 : 1));
                for (int step = 0; step < 4; ++step) { // the same gradients at every step
                    flat.expect_gradients();
                    auto other = make_net();
                    class_loss(other, batch).backward();
                    for (std::size_t i = 0; i < flat.segments().size(); ++i)
                        net->parameters()[i].mutable_grad() = other->parameters()[i].grad();
                    flat.settle_gradients();
                    opt.step(1e-2, 3.0);
                }
                for (const auto& piece : flat.pieces()) {
                    const auto part = flat.params_P().narrow(0, piece.flat, piece.count);
                    const auto* from = static_cast<const float*>(part.const_data_ptr());
                    all.insert(all.end(), from, from + piece.count);
                }
            }
            return all;
        };
        const auto whole = trained(1);
        CHECK(whole.size() > 200);
        // With one unit the pieces of all shards, in rank order, are the buffer.
        CHECK(trained(2) == whole);
        CHECK(trained(3) == whole);
    }
}
