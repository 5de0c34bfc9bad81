// SPDX-License-Identifier: Apache-2.0
// A GPT-2 that Python has saved: read, compared, trained on by several workers, and given back.
//
//     150_pytorch_round_trip FOLDER --logits logits.safetensors      what it says before training
//     150_pytorch_round_trip FOLDER --workers 2 --steps 10           trains under FSDP and saves
//     150_pytorch_round_trip FOLDER --workers 2 --steps 15 --resume  goes on from there
//     150_pytorch_round_trip FOLDER --export trained                 for from_pretrained() of Python
//
// FOLDER is what save_pretrained() of transformers wrote: config.json and safetensors. Checkpoints
// are in runs/round_trip; plain PyTorch reads them (docs/checkpoints.md). The data is drawn by
// number, so that a program in Python can train on the same: all samples are one batch.

#include <skein/models/gpt2.hpp>
#include <skein/train.hpp>

#include <CLI/CLI.hpp>

#include <fmt/core.h>

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

namespace {

namespace models = skein::models;

/// Tokens of sample i, at place t: (31 i + 7 t + i t) mod V.
class samples {
public:
    struct tokens {
        torch::Tensor inputs_BT, targets_BT;
    };
    explicit samples(const models::gpt2_options& o) : options_(o) {}

    std::uint64_t size() const { return 8; }
    tokens batch(std::span<const std::uint64_t> ids) const {
        const auto B = static_cast<std::int64_t>(ids.size());
        auto all = torch::empty({B, options_.context + 1}, torch::kLong);
        for (std::int64_t b = 0; b < B; ++b)
            for (std::int64_t t = 0; t <= options_.context; ++t) {
                const auto i = static_cast<std::int64_t>(ids[static_cast<std::size_t>(b)]);
                all[b][t] = (31 * i + 7 * t + i * t) % options_.vocabulary;
            }
        return {all.slice(1, 0, options_.context), all.slice(1, 1)};
    }

private:
    models::gpt2_options options_;
};

/// Writes what the model answers to all samples.
void write_logits(const models::gpt2_options& sizes, const std::string& folder,
                  const std::string& path) {
    torch::NoGradGuard no_grad;
    // [load]
    models::GPT2 net(sizes);
    skein::train::load_weights(*net, "hf:" + folder, models::maps::gpt2());
    net->eval();
    // [/load]
    const samples data(sizes);
    const std::uint64_t ids[] = {0, 1, 2, 3, 4, 5, 6, 7};
    const auto logits_BTV = net(data.batch(ids).inputs_BT).contiguous();
    const skein::train::tensor_view view{"logits", "F32", logits_BTV.sizes().vec(),
                                         skein::train::bytes_of(logits_BTV)};
    const auto plan = skein::train::plan_safetensors(std::span(&view, 1)).value();
    skein::byte_buffer bytes;
    skein::train::write_safetensors(plan, [&](skein::byte_span part) {
        bytes.insert(bytes.end(), part.begin(), part.end());
        return skein::result<void>();
    }).value();
    skein::posix_disk().replace(path, bytes).value();
    fmt::print("{} parameters, logits in {}\n", models::parameter_count(sizes), path);
}

/// Gives the run's newest weights as a folder that from_pretrained() of transformers reads.
void export_run(const models::gpt2_options& sizes, const std::string& run,
                const std::string& into) {
    // [export]
    const auto written = skein::train::export_safetensors(
        run, into, {.map = models::maps::gpt2(), .config = models::gpt2_config(sizes)});
    // [/export]
    fmt::print("{} bytes of tensors in {}\n", written.bytes, written.path);
}

/// What one rank does.
void train(skein::train::context& ctx, const skein::run_config& run,
           const models::gpt2_options& sizes, const std::string& folder) {
    // [train]
    using strategy = skein::FSDP<skein::auto_wrap<models::GPT2Block>>;
    skein::Trainer<strategy> trainer(ctx, run);
    auto net = trainer.build([&] { return models::GPT2(sizes); }, "hf:" + folder,
                             models::maps::gpt2()); // each rank reads the rows that it owns
    const auto loss = [](models::GPT2& model, const samples::tokens& b) {
        return torch::nn::functional::cross_entropy(model(b.inputs_BT).flatten(0, 1),
                                                    b.targets_BT.flatten());
    };
    const samples data(sizes);
    const auto result = trainer.fit(net, skein::AdamW{.weight_decay = 0.1},
                                    skein::train::constant_rate{1e-3}, loss, data, data);
    // [/train]
    if (ctx.is_first())
        fmt::print("{} of {} steps, loss {:.6f}, saved in {}/{}/checkpoints\n", result.steps,
                   run.max_steps, result.loss, run.runs_dir, result.run_name);
}

} // namespace

int main(int argc, char** argv) {
    std::string folder, logits, into;
    bool resume = false;
    skein::run_config run{.name = "round_trip", .max_steps = 10, .global_batch = 8};
    run.scaling.workers = 2;
    run.clip = 0; // as torch.optim does it alone
    run.eval_every = 0;
    run.checkpoint.every = 5;
    run.output = skein::train::output_mode::plain;

    CLI::App app("Trains a GPT-2 on that Python has saved.");
    app.add_option("folder", folder, "what save_pretrained() wrote")->required();
    app.add_option("--logits", logits, "write what it says to a file, and train nothing");
    app.add_option("--export", into, "give the run's newest weights to a new folder of this name");
    app.add_option("--workers", run.scaling.workers, "processes that train together");
    app.add_option("--steps", run.max_steps, "optimizer steps");
    app.add_option("--runs", run.runs_dir, "folder that holds the runs");
    app.add_flag("--resume", resume, "go on from the newest checkpoint");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& stop) {
        return app.exit(stop) == 0 ? 0 : 2;
    }
    if (resume) run.resume = skein::train::resume_mode::latest;
    run.command = skein::train::command_line();
    run.name_flag = ""; // its runs have one name
    try {
        skein::posix_disk here;
        const auto sizes = models::read_gpt2_config(here, folder);
        if (!logits.empty()) {
            write_logits(sizes, folder, logits);
            return 0;
        }
        if (!into.empty()) {
            export_run(sizes, run.runs_dir + "/" + run.name, into);
            return 0;
        }
        return skein::train::launch(
            run, [&](skein::train::context& ctx) { train(ctx, run, sizes, folder); });
    } catch (const skein::error& why) {
        fmt::print(stderr, "error: {}\n", why.what());
        return skein::train::exit_code_of(why);
    }
}
