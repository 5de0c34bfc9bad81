// SPDX-License-Identifier: Apache-2.0
#pragma once
// The laws of a strategy (train/strategy.hpp), as a suite that every strategy runs:
//
//     TEST_CASE("...") { train_test::strategy_laws<sk::DDP<>>({1, 2, 3}); }

#include <skein/train/sampler.hpp>
#include <skein/train/unit.hpp>

#include <tests/train/train_support.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cmath>
#include <mutex>
#include <vector>

namespace train_test {

/// A block, marked so that it can be gathered.
struct BranchImpl : torch::nn::Module {
    BranchImpl() : in(8, 4), out(4, 4) {
        register_module("in", in);
        register_module("out", out);
    }
    torch::Tensor forward(const torch::Tensor& x) { return out(torch::tanh(in(x))); }
    torch::nn::Linear in, out;
};
TORCH_MODULE_IMPL(Branch, skein::unit<BranchImpl>);

/// Two branches of which a sample uses one, so that ranks and whole batches leave parameters
/// unused.
struct ForkImpl : torch::nn::Module {
    ForkImpl() : scale(register_parameter("scale", torch::ones({8}))) {
        register_module("left", left);
        register_module("right", right);
        register_module("never", never);
    }
    torch::Tensor scale;
    Branch left, right, never;
};
TORCH_MODULE(Fork);

inline at::Tensor fork_loss(Fork& m, std::span<const std::uint64_t> ids) {
    at::Tensor sum = torch::zeros({});
    for (const auto id : ids) {
        const auto b = numbers{}.batch(std::vector<std::uint64_t>{id});
        const auto x = b.x * m->scale;
        sum = sum + (id < 6 ? m->left(x) : m->right(x)).pow(2).mean();
    }
    return sum / static_cast<double>(ids.size());
}

/// What one step of a strategy leaves.
struct law_step {
    std::vector<float> gradients; ///< what each rank owns of them, put together, by parameter
    std::vector<std::vector<float>> parameters; ///< by rank, in order of registration
    std::vector<double> norms;                  ///< by rank: squared, of the whole model
};

/// Gradients that a rank owns, in their places among all parameters in order of registration.
inline void put_own_gradients(flat_store& store, std::vector<float>& all) {
    std::vector<std::int64_t> starts(store.segments().size() + 1, 0);
    for (const auto& s : store.segments()) starts[s.registered + 1] = s.count;
    for (std::size_t i = 1; i < starts.size(); ++i) starts[i] += starts[i - 1];
    all.resize(static_cast<std::size_t>(starts.back()));
    for (const auto& piece : store.pieces()) {
        const auto part = store.own_grads(piece);
        const auto* from = static_cast<const float*>(part.const_data_ptr());
        const auto& s = store.segments()[piece.segment];
        std::copy(from, from + piece.count, all.begin() + starts[s.registered] + piece.first);
    }
}

/// One step on 12 samples in `micro` parts.
template <class Strategy>
law_step one_law_step(int world, int micro, const std::string& transport) {
    law_step out;
    out.parameters.resize(static_cast<std::size_t>(world));
    out.norms.resize(static_cast<std::size_t>(world));
    std::mutex guard; // the default generator is shared by the ranks' threads
    run_world(
        world,
        [&](context& ctx) {
            at::set_num_threads(1);
            Fork model = [&] {
                const std::lock_guard lock(guard);
                torch::manual_seed(5);
                return Fork();
            }();
            Strategy s(ctx, *model);
            s.begin_step();
            const auto [first, last] = rank_range(12, ctx.rank(), ctx.world_size());
            for (int m = 0; m < micro; ++m) {
                const auto [a, b] = rank_range(last - first, m, micro);
                std::vector<std::uint64_t> ids;
                for (auto i = first + a; i < first + b; ++i) ids.push_back(i);
                s.begin_micro(m + 1 == micro);
                if (ids.empty()) continue;
                auto l = fork_loss(model, ids);
                l.backward(at::full_like(l, static_cast<double>(ids.size()) / 12.0));
            }
            s.finish_backward();
            const auto rank = static_cast<std::size_t>(ctx.rank());
            {
                const std::lock_guard lock(guard);
                put_own_gradients(s.store(), out.gradients);
            }
            out.norms[rank] = s.squared_norm(s.store().own_squared_norm()); // law 4
            double everybody = 1;
            all_reduce(ctx, std::span(&everybody, 1), sk::dist::reduce_op::sum); // law 6
            {
                at::NoGradGuard no_grad;
                for (const auto& piece : s.store().pieces())
                    s.store()
                        .params_P()
                        .narrow(0, piece.flat, piece.padded)
                        .sub_(s.store().own_grads(piece));
            }
            s.publish();
            s.finish(); // law 8
            out.parameters[rank] = weights(*model);
        },
        transport);
    return out;
}

/// Laws 1 to 4 for worlds of these sizes. Law 5 is about transports: tests/dist.
template <class Strategy>
void strategy_laws(std::vector<int> worlds, const std::string& transport = "shm") {
    Fork oracle = [] {
        torch::manual_seed(5);
        return Fork();
    }();
    const std::vector<std::uint64_t> all{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    fork_loss(oracle, all).backward();
    std::vector<float> wanted;
    double square = 0;
    for (const auto& p : oracle->parameters()) {
        const auto g = p.grad().defined() ? p.grad().contiguous() : torch::zeros_like(p);
        const auto* from = static_cast<const float*>(g.const_data_ptr());
        wanted.insert(wanted.end(), from, from + g.numel());
    }
    for (const float g : wanted) square += double(g) * double(g);

    for (const int world : worlds)
        for (const int micro : {1, 3}) {
            INFO("world " << world << ", micro-batches " << micro);
            const auto once = one_law_step<Strategy>(world, micro, transport);
            const auto again = one_law_step<Strategy>(world, micro, transport);
            CHECK(relative_error(once.gradients, wanted) < 1e-6); // law 1
            CHECK(once.gradients == again.gradients);             // law 2
            CHECK(once.parameters == again.parameters);
            for (const auto& parameters : once.parameters) CHECK(parameters == once.parameters[0]);
            for (const double norm : once.norms) CHECK(std::abs(norm / square - 1) < 1e-5);
        }
}

} // namespace train_test
