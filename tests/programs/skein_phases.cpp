// SPDX-License-Identifier: Apache-2.0
// A small training run for tests: with dropout, and with a rank that gets a signal in a chosen
// phase of a step.
//
//     skein_phases --strategy fsdp --workers 2 --communicator ring --runs DIR --run NAME
//                  [--fault gather|reduce|apply --signal 9] [--dropout 0.3] [--accumulate 2] [--weights FILE]
//
// Rank 1 sends the signal to itself, at the step in the middle of its first attempt: in the forward
// of its second block, when the others wait for the gather behind it; in the backward pass, when
// they wait for a sum; in the optimizer, when they wait for new parameters.

#include <skein/train/ddp.hpp>
#include <skein/train/fsdp.hpp>
#include <skein/train/launch.hpp>
#include <skein/train/single.hpp>
#include <skein/train/trainer.hpp>
#include <skein/train/unit.hpp>
#include <skein/train/zero.hpp>

#include <CLI/CLI.hpp>

#include <ATen/record_function.h>

#include <csignal>
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace train = skein::train;

struct settings {
    skein::run_config run;
    std::string fault, weights;
    int signal = SIGKILL;
    double dropout = 0.0;
};

/// What every part of the program asks before it goes on.
struct fault {
    bool armed = false; // in the step in the middle, on the rank it is for
    std::string where;
    int signal = 0;
    void at(std::string_view place) const {
        if (armed && where == place) (void)std::raise(signal);
    }
};
fault the_fault;

struct BlockImpl : torch::nn::Module {
    explicit BlockImpl(double drop) : drop(drop), in(16, 48), out(48, 16) {
        register_module("in", in);
        register_module("out", out);
    }
    torch::Tensor forward(const torch::Tensor& x) {
        const auto y = torch::dropout(torch::tanh(in(x)), drop, is_training());
        return x + out(y);
    }
    double drop;
    torch::nn::Linear in, out;
};
TORCH_MODULE_IMPL(Block, skein::unit<BlockImpl>);

struct ModelImpl : torch::nn::Module {
    explicit ModelImpl(double drop) : head(16, 4) {
        for (int i = 0; i < 4; ++i) blocks->push_back(Block(drop));
        register_module("blocks", blocks);
        register_module("head", head);
    }
    torch::Tensor forward(torch::Tensor x) {
        for (std::size_t i = 0; i < blocks->size(); ++i) {
            x = blocks[i]->as<Block>()->forward(x);
            if (i != 1) continue;
            the_fault.at("gather");
            if (x.requires_grad())
                x.register_hook([](const at::Tensor& g) {
                    the_fault.at("reduce");
                    return g;
                });
        }
        return head(x);
    }
    torch::nn::ModuleList blocks;
    torch::nn::Linear head;
};
TORCH_MODULE(Model);

struct sample_batch {
    torch::Tensor x, y;
};
struct samples {
    std::uint64_t n;
    [[nodiscard]] std::uint64_t size() const noexcept { return n; }
    [[nodiscard]] sample_batch batch(std::span<const std::uint64_t> ids) const {
        const auto rows = static_cast<std::int64_t>(ids.size());
        sample_batch out{torch::empty({rows, 16}), torch::empty({rows}, torch::kLong)};
        auto* x = out.x.mutable_data_ptr<float>();
        auto* y = out.y.mutable_data_ptr<std::int64_t>();
        for (const auto id : ids) {
            for (std::uint64_t j = 0; j < 16; ++j)
                *x++ = static_cast<float>((id * 37 + j * 11 + id * id * 3) % 101) / 50.0f - 1.0f;
            *y++ = static_cast<std::int64_t>((id * 7 + id / 3) % 4);
        }
        return out;
    }
};

struct arm_fault {
    std::uint64_t step; ///< the fault comes in the one behind it
    bool here;
    void on_step(const train::step_info& s) const { the_fault.armed = here && s.step == step; }
};

/// LibTorch tells of its kernels: the optimizer's is where parameters change.
std::unique_ptr<at::ObserverContext> entered(const at::RecordFunction& call) {
    if (std::string_view(call.name()).find("_fused_") != std::string_view::npos)
        the_fault.at("apply");
    return nullptr;
}

template <class Strategy>
void train_model(train::context& ctx, const settings& s) {
    const bool faulty = !s.fault.empty() && ctx.attempt() == 0 && ctx.rank() == 1;
    the_fault = {.armed = false, .where = s.fault, .signal = s.signal};
    if (faulty && s.fault == "apply") at::addGlobalCallback(at::RecordFunctionCallback(entered));
    torch::manual_seed(s.run.seed);
    Model model(s.dropout);
    const auto loss = [](Model& m, const sample_batch& b) {
        return torch::nn::functional::cross_entropy(m->forward(b.x), b.y);
    };
    skein::Trainer<Strategy, arm_fault> trainer(
        ctx, s.run, arm_fault{static_cast<std::uint64_t>(s.run.max_steps / 2), faulty});
    (void)trainer.fit(model, skein::AdamW{.weight_decay = 0.1}, train::constant_rate{.peak = 1e-2},
                      loss, samples{64}, samples{8});
    if (!ctx.is_first() || s.weights.empty()) return;
    std::ofstream out(s.weights, std::ios::binary);
    for (const auto& p : model->parameters()) {
        const auto flat = p.detach().contiguous();
        out.write(static_cast<const char*>(flat.const_data_ptr()),
                  static_cast<std::streamsize>(flat.nbytes()));
    }
}

using by_block = skein::auto_wrap<Block>;
const std::map<std::string, std::function<void(train::context&, const settings&)>> strategies{
    {"single", train_model<skein::Single>},
    {"ddp", train_model<skein::DDP<>>},
    {"zero1", train_model<skein::Zero1<by_block>>},
    {"zero2", train_model<skein::Zero2<by_block>>},
    {"fsdp", train_model<skein::FSDP<by_block>>},
    {"hybrid", train_model<skein::Hybrid<by_block>>},
};

} // namespace

int main(int argc, char** argv) {
    settings s;
    std::string strategy = "fsdp";
    s.run.max_steps = 20;
    s.run.global_batch = 12;
    s.run.eval_every = 10;
    s.run.checkpoint.every = 4;
    s.run.output = train::output_mode::plain;
    CLI::App app("A training run for tests.");
    app.add_option("--strategy", strategy)->check(CLI::IsMember(strategies));
    app.add_option("--workers", s.run.scaling.workers);
    app.add_option("--communicator", s.run.communicator);
    app.add_option("--accumulate", s.run.accumulation);
    app.add_option("--runs", s.run.runs_dir);
    app.add_option("--run", s.run.name);
    app.add_option("--fault", s.fault)->check(CLI::IsMember({"gather", "reduce", "apply"}));
    app.add_option("--signal", s.signal);
    app.add_option("--dropout", s.dropout);
    app.add_option("--weights", s.weights);
    CLI11_PARSE(app, argc, argv);
    return train::launch(s.run, [&](train::context& ctx) { strategies.at(strategy)(ctx, s); });
}
