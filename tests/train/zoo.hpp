// SPDX-License-Identifier: Apache-2.0
#pragma once
// One small model in all the shapes that make strategies stumble, and a run of it under any of
// them.

#include <skein/train/fsdp.hpp>
#include <skein/train/recompute.hpp>
#include <skein/train/unit.hpp>
#include <skein/train/zero.hpp>

#include <tests/train/train_support.hpp>

#include <mutex>
#include <string>
#include <vector>

namespace train_test {

/// A residual block of any width.
struct CellImpl : torch::nn::Module {
    CellImpl(int width, int hidden) : in(width, hidden), out(hidden, width) {
        register_module("in", in);
        register_module("out", out);
    }
    torch::Tensor forward(const torch::Tensor& x) { return x + out(torch::tanh(in(x))); }
    torch::nn::Linear in, out;
};
TORCH_MODULE_IMPL(Cell, skein::unit<CellImpl>);

/// A block with a block inside.
struct NestImpl : torch::nn::Module {
    NestImpl(int width, int hidden)
        : inner(width, hidden), norm(torch::nn::LayerNormOptions({width})) {
        register_module("inner", inner);
        register_module("norm", norm);
    }
    torch::Tensor forward(const torch::Tensor& x) { return x + inner(norm(x)); }
    Cell inner;
    torch::nn::LayerNorm norm;
};
TORCH_MODULE_IMPL(Nest, skein::unit<NestImpl>);

enum class shape { plain, tied, frozen, unused, twice, nested, uneven };
inline constexpr shape all_shapes[] = {shape::plain, shape::tied,   shape::frozen, shape::unused,
                                       shape::twice, shape::nested, shape::uneven};

struct ZooImpl : torch::nn::Module {
    explicit ZooImpl(shape s)
        : kind(s), width(s == shape::uneven ? 13 : 16), hidden(s == shape::uneven ? 7 : 32),
          embed(8, width), a(width, hidden), b(width, hidden), c(width, hidden),
          nest(width, hidden), head(width, 4) {
        register_module("embed", embed);
        register_module("a", a);
        register_module("b", b);
        if (kind == shape::nested) register_module("nest", nest);
        register_module("c", c);
        register_module("head", head);
        if (kind == shape::tied) b->in->weight = b->in->register_parameter("tied", a->in->weight);
        if (kind == shape::frozen)
            for (auto& p : b->in->parameters()) p.set_requires_grad(false);
    }
    torch::Tensor forward(const torch::Tensor& x, const std::vector<std::uint64_t>& ids) {
        auto h = a(embed(x.to(embed->weight.scalar_type())));
        if (kind == shape::unused) { // a block for some samples only: some ranks leave it out
            std::vector<torch::Tensor> rows;
            for (std::size_t i = 0; i < ids.size(); ++i) {
                const auto row = h.narrow(0, static_cast<std::int64_t>(i), 1);
                rows.push_back(ids[i] % 8 < 3 ? b(row) : row);
            }
            h = torch::cat(rows);
        } else {
            h = b(h);
        }
        if (kind == shape::twice) h = b(c(h));
        if (kind == shape::nested) h = nest(h);
        return head(c(h));
    }
    shape kind;
    int width, hidden;
    torch::nn::Linear embed;
    Cell a, b, c;
    Nest nest;
    torch::nn::Linear head;
};
TORCH_MODULE(Zoo);

inline Zoo make_zoo(shape s) {
    const std::lock_guard lock(model_guard);
    torch::manual_seed(42);
    return Zoo(s);
}

inline const auto zoo_loss = [](auto& m, const sample_batch& b) {
    return torch::nn::functional::cross_entropy(m->forward(b.x, b.ids).to(torch::kFloat), b.y);
};

/// What a run leaves: the weights of every rank, and what all agreed on.
struct zoo_run {
    std::vector<std::vector<float>> weights; ///< by rank
    std::vector<double> losses;              ///< by step
};

struct zoo_options {
    shape kind = shape::plain;
    int world = 1;
    std::string transport = "shm";
    bool adam = true;
    int accumulation = 1;
    int steps = 20;
    int recompute = 0; ///< every so many-th block
};

struct remember_losses {
    std::vector<double>* losses;
    void on_step(const step_info& s) const {
        if (losses != nullptr) losses->push_back(s.loss);
    }
};

/// A run of some steps on 12 samples each.
template <class Strategy>
zoo_run run_zoo(const zoo_options& o) {
    zoo_run out;
    out.weights.resize(static_cast<std::size_t>(o.world));
    run_world(
        o.world,
        [&](context& ctx) {
            auto model = make_zoo(o.kind);
            if (o.recompute > 0) (void)checkpoint_activations(*model, o.recompute);
            auto config = quiet_config("unused");
            config.max_steps = o.steps;
            config.accumulation = o.accumulation;
            config.clip = 0.5;
            sk::Trainer<Strategy, remember_losses> trainer(
                ctx, config, remember_losses{ctx.is_first() ? &out.losses : nullptr});
            const auto options =
                o.adam ? optimizer_options(sk::AdamW{.weight_decay = 0.1})
                       : optimizer_options(sk::SGD{.momentum = 0.9, .weight_decay = 0.1});
            (void)trainer.fit(model, options, constant_rate{.peak = 1e-2}, zoo_loss, numbers{},
                              numbers{.n = 5});
            out.weights[static_cast<std::size_t>(ctx.rank())] = weights(*model);
        },
        o.transport);
    return out;
}

using zoo_cells = skein::auto_wrap<Cell, Nest>;

} // namespace train_test
