// SPDX-License-Identifier: Apache-2.0
// Trains a GPT-2 that Python has saved, for tests/interop/torch_dcp_test.py.
//
//     skein_round_trip FOLDER --strategy hybrid --optimizer sgd --workers 3 --steps 20 --runs RUNS
//
// Checkpoints of steps 10, 20, ... are kept in RUNS/round_trip. The data is that of
// examples/150_pytorch_round_trip: drawn by number, one batch.

#include <skein/models/gpt2.hpp>
#include <skein/train.hpp>

#include <CLI/CLI.hpp>

#include <fmt/core.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace {

namespace models = skein::models;
using by_block = skein::auto_wrap<models::GPT2Block>;

/// Tokens of sample i, at place t: (31 i + 7 t + i t) mod V.
class samples {
public:
    struct tokens {
        torch::Tensor inputs_BT, targets_BT;
    };
    explicit samples(const models::gpt2_options& o) : options_(o) {}

    std::uint64_t size() const { return 8; }
    tokens batch(std::span<const std::uint64_t> ids) const {
        const std::vector<std::int64_t> numbers(ids.begin(), ids.end());
        const auto i = torch::tensor(numbers, torch::kLong).unsqueeze(1);
        const auto t = torch::arange(options_.context + 1);
        const auto all = (31 * i + 7 * t + i * t).remainder(options_.vocabulary);
        return {all.slice(1, 0, options_.context), all.slice(1, 1)};
    }

private:
    models::gpt2_options options_;
};

struct settings {
    std::string folder, strategy = "fsdp", optimizer = "adamw";
    double rate = 1e-3;
    skein::run_config run{.name = "round_trip", .max_steps = 20, .global_batch = 8};
};

template <class Strategy>
void train(skein::train::context& ctx, const settings& s, const models::gpt2_options& sizes) {
    skein::Trainer<Strategy> trainer(ctx, s.run);
    auto net =
        trainer.build([&] { return models::GPT2(sizes); }, "hf:" + s.folder, models::maps::gpt2());
    const auto loss = [](models::GPT2& model, const samples::tokens& b) {
        return torch::nn::functional::cross_entropy(model(b.inputs_BT).flatten(0, 1),
                                                    b.targets_BT.flatten());
    };
    const samples data(sizes);
    skein::train::optimizer_options options = skein::AdamW{.weight_decay = 0.1};
    if (s.optimizer == "sgd") options = skein::SGD{.momentum = 0.9, .weight_decay = 0.1};
    (void)trainer.fit(net, options, skein::train::constant_rate{s.rate}, loss, data, data);
}

using train_function = void (*)(skein::train::context&, const settings&,
                                const models::gpt2_options&);
const std::map<std::string, train_function> strategies = {
    {"fsdp", train<skein::FSDP<by_block>>}, {"hybrid", train<skein::Hybrid<by_block>>}};

} // namespace

int main(int argc, char** argv) {
    settings s;
    s.run.scaling.workers = 2;
    s.run.clip = 0; // as torch.optim does it alone
    s.run.eval_every = 0;
    s.run.checkpoint.every = 10;
    s.run.checkpoint.keep_last = 10;
    s.run.output = skein::train::output_mode::plain;

    CLI::App app("Trains a GPT-2 that Python has saved.");
    app.add_option("folder", s.folder)->required();
    app.add_option("--strategy", s.strategy)->check(CLI::IsMember(strategies));
    app.add_option("--optimizer", s.optimizer)->check(CLI::IsMember({"adamw", "sgd"}));
    app.add_option("--rate", s.rate);
    app.add_option("--workers", s.run.scaling.workers);
    app.add_option("--steps", s.run.max_steps);
    app.add_option("--runs", s.run.runs_dir);
    CLI11_PARSE(app, argc, argv);
    try {
        skein::posix_disk here;
        const auto sizes = models::read_gpt2_config(here, s.folder);
        return skein::train::launch(
            s.run, [&](skein::train::context& ctx) { strategies.at(s.strategy)(ctx, s, sizes); });
    } catch (const skein::error& why) {
        fmt::print(stderr, "error: {}\n", why.what());
        return skein::train::exit_code_of(why);
    }
}
