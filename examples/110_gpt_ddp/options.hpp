// SPDX-License-Identifier: Apache-2.0
#pragma once
// The command line of the GPT examples.

#include "gpt.hpp"
#include "text.hpp"

#include <skein/core/error.hpp>
#include <skein/train/optimizer.hpp>
#include <skein/train/run_config.hpp>

#include <CLI/CLI.hpp>

#include <fmt/core.h>

#include <functional>
#include <optional>
#include <string>

namespace gpt {

struct program_options {
    std::string text;
    std::size_t max_mib = 64;
    model_options model;
    skein::run_config run;
    int recompute = 0; ///< every so many-th block computes its activations again
    std::string
        offload; ///< where the blocks' activations wait: a folder, "bf16", or empty for nowhere
    double lr = 3e-3;
    std::int64_t warmup = 50;
    std::string schedule = "cosine";
    bool sgd = false;
    double momentum = 0.9;
    double weight_decay = 0.1;
    std::int64_t sample_bytes = 400;
    std::string prompt; ///< empty: "template <" for C++ headers, else a line of the held-out text
    bool empty_prompt = false; ///< one was given, and it is empty

    [[nodiscard]] skein::train::optimizer_options optimizer() const {
        if (sgd)
            return skein::SGD{.momentum = momentum, .nesterov = momentum > 0, .weight_decay = 0.0};
        return skein::AdamW{.beta2 = 0.99, .weight_decay = weight_decay};
    }
};

/// Fills `o` from the command line; the exit code when the program should end now (help, mistake).
///   more  adds options of the program's own
inline std::optional<int> parse(int argc, char** argv, program_options& o,
                                const std::function<void(CLI::App&)>& more = {}) {
    o.run.name = "gpt";
    o.run.max_steps = 600;
    o.run.global_batch = 32;
    o.run.eval_every = 100;
    o.run.eval_samples = 256;
    o.run.checkpoint.every = 100;
    bool quiet = false, json = false, plain = false, resume = false, no_checkpoints = false;
    bool beside = false;

    CLI::App app("Trains a byte-level GPT on any text file or folder and lets it write.");
    app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    app.option_defaults()->always_capture_default();
    app.add_option("--text", o.text,
                   "file or folder to learn from (default: the C++ library headers)");
    app.add_option("--max-mib", o.max_mib, "read at most so many MiB of it");
    app.add_option("--workers,--nproc", o.run.scaling.workers, "processes that train together");
    app.add_option("--steps", o.run.max_steps, "optimizer steps");
    app.add_option("--batch", o.run.global_batch, "samples per step, over all workers");
    app.add_option("--accumulate", o.run.accumulation, "micro-batches per step and worker");
    app.add_option("--context", o.model.context, "bytes the model sees at once");
    app.add_option("--layers", o.model.layers, "transformer blocks");
    app.add_option("--heads", o.model.heads, "attention heads per block");
    app.add_option("--dim", o.model.dim, "width of the model");
    app.add_option("--lr", o.lr, "highest learning rate");
    app.add_option("--warmup", o.warmup, "steps of warm-up");
    app.add_option("--schedule", o.schedule, "constant, cosine, linear, step or wsd");
    app.add_option("--weight-decay", o.weight_decay, "of AdamW, for matrices");
    app.add_flag("--sgd", o.sgd, "SGD with Nesterov momentum in place of AdamW");
    app.add_option("--momentum", o.momentum, "of --sgd");
    app.add_option("--clip", o.run.clip, "highest gradient norm, 0 for none");
    app.add_option("--seed", o.run.seed, "of the initial weights and the data order");
    app.add_option("--threads", o.run.scaling.threads, "compute threads per worker (0: one)");
    app.add_option("--eval-every", o.run.eval_every, "steps between evaluations");
    app.add_option("--eval-samples", o.run.eval_samples,
                   "held-out samples per evaluation, 0 for all");
    app.add_option("--checkpoint-every", o.run.checkpoint.every, "steps between checkpoints");
    app.add_option("--keep-bytes", o.run.checkpoint.keep_bytes,
                   "that the run's checkpoints may take, as 20GB (0: any); the newest stays")
        ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
        ->transform(CLI::Validator( // before that one, which takes -1 for a very large number
            [](std::string& given) {
                return given.starts_with('-') ? std::string("use 0 or more") : std::string();
            },
            ""));
    app.add_flag("--no-checkpoints", no_checkpoints, "write none");
    auto* const saves = app.add_flag("--checkpoint-async,!--checkpoint-blocking", beside,
                                     "write them while training goes on, or before it does "
                                     "(default: by the cores)");
    app.add_option("--max-failures", o.run.failure.max_failures, "restarts after lost workers");
    app.add_option("--communicator", o.run.communicator,
                   "automatic, shm, ring, hierarchical or host; 120_gpt_fsdp has nccl, too");
    app.add_option("--device", o.run.device,
                   "cpu, cuda, or automatic, which says what it takes and why");
    app.add_option("--run", o.run.name, "name of the run's folder");
    app.add_option("--runs", o.run.runs_dir, "folder that holds the runs");
    app.add_flag("--resume", resume, "go on from the run's newest checkpoint");
    app.add_option("--sample", o.sample_bytes, "bytes to write at the end");
    auto* prompt = app.add_option("--prompt", o.prompt,
                                  "what they go on from (default: a line of the held-out text)");
    app.add_flag("--plain", plain, "plain lines, no live line");
    app.add_flag("--quiet", quiet, "only errors");
    app.add_flag("--json", json, "one JSON object per line");
    if (more) more(app);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& stop) {
        return app.exit(stop) == 0 ? 0 : 2;
    }

    if (plain) o.run.output = skein::train::output_mode::plain;
    if (json) o.run.output = skein::train::output_mode::json;
    if (quiet) o.run.output = skein::train::output_mode::quiet;
    if (resume) o.run.resume = skein::train::resume_mode::latest;
    o.run.checkpoint.enabled = !no_checkpoints;
    if (saves->count() > 0) o.run.checkpoint.asynchronous = beside;
    o.run.tokens_per_sample = o.model.context;
    o.run.command = skein::train::command_line();
    o.empty_prompt = prompt->count() > 0 && o.prompt.empty();
    return std::nullopt;
}

/// What the parser cannot see. Throws errc::usage.
inline void check(program_options& o) {
    const auto refuse = [](std::string what, std::string hint) {
        throw skein::error(skein::errc::usage, std::move(what)).with_hint(std::move(hint));
    };
    const auto& m = o.model;
    if (m.context < 1 || m.layers < 1 || m.heads < 1 || m.dim < 1)
        refuse(fmt::format("context {}, layers {}, heads {}, dim {}", m.context, m.layers, m.heads,
                           m.dim),
               "each must be at least 1");
    if (m.dim % m.heads != 0)
        refuse(fmt::format("dim {} cannot be cut into {} heads", m.dim, m.heads), "use a multiple");
    if (o.sample_bytes < 0)
        refuse(fmt::format("a sample of {} bytes", o.sample_bytes), "use 0 or more");
    if (o.warmup < 0) refuse(fmt::format("warm-up of {} steps", o.warmup), "use 0 or more");
    if (o.max_mib < 1) refuse("at most 0 MiB of text", "use 1 or more");
    if (o.empty_prompt) refuse("an empty prompt", "give at least one byte with --prompt");
    if (o.text.empty()) {
        o.text = default_text();
        if (o.prompt.empty()) o.prompt = "template <";
    }
    if (o.text.empty())
        refuse("no C++ headers below /usr/include/c++ to learn from",
               "give a file or folder with --text");
    skein::train::validate(o.run, o.run.scaling.workers.most);
}

} // namespace gpt
