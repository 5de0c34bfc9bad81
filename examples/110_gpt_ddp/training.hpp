// SPDX-License-Identifier: Apache-2.0
#pragma once
// What one rank of the GPT examples does, under any strategy.

#include "options.hpp"

#include <skein/report/progress.hpp>
#include <skein/report/summary.hpp>
#include <skein/train/launch.hpp>
#include <skein/train/offload.hpp>
#include <skein/train/recompute.hpp>
#include <skein/train/reporter.hpp>
#include <skein/train/trainer.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

namespace gpt {

/// What one rank does. The trainer shares out the work; nothing here asks which rank it is until
/// there is something to print.
template <class Strategy>
void train(skein::train::context& ctx, const program_options& o, const split_text& parts) {
    const windows data(parts.train, o.model.context), held_out(parts.held_out, o.model.context);

    using skein::train::output_mode;
    if (ctx.is_first() && ctx.attempt() == 0 && o.run.output != output_mode::quiet &&
        o.run.output != output_mode::json)
        fmt::print(stderr, "text {}: {} to learn from, {} held out\n", o.text,
                   skein::report::human_bytes(static_cast<double>(parts.train.size())),
                   skein::report::human_bytes(static_cast<double>(parts.held_out.size())));

    skein::Trainer<Strategy> trainer(ctx, o.run);
    torch::manual_seed(o.run.seed);
    auto model = trainer.build([&] { return GPT(o.model); }); // what a rank owns of it, under FSDP
    if (o.recompute > 0) (void)skein::train::checkpoint_activations(*model, o.recompute);
    if (!o.offload.empty())
        (void)skein::train::offload_activations(
            *model, o.offload == "bf16" ? skein::train::offload_as_bf16()
                                        : skein::train::offload_to_file(o.offload));
    // [device]
    const auto loss = [on = trainer.device()](GPT& m, const text_batch& b) {
        return next_byte_loss(m, b.inputs_BT.to(on), b.targets_BT.to(on));
    };
    // [/device]
    const auto total = static_cast<std::uint64_t>(o.run.max_steps);
    const auto warmup = std::min<std::uint64_t>(static_cast<std::uint64_t>(o.warmup), total / 2);
    const auto schedule =
        skein::train::make_schedule(
            o.schedule, {.peak = o.lr, .floor = o.lr / 10, .warmup = warmup, .total = total})
            .value();

    trainer.describe({{"text", o.text},
                      {"context", o.model.context},
                      {"layers", o.model.layers},
                      {"heads", o.model.heads},
                      {"dim", o.model.dim},
                      {"lr", o.lr}});
    const auto result = trainer.fit(model, o.optimizer(), schedule, loss, data, held_out);

    if (!ctx.is_first()) return;
    auto summary = skein::train::summarize(ctx, o.run, result);
    summary.results.push_back({"bigram", bigram_nats(parts.train, parts.held_out)});
    if (!trainer.device().is_cpu()) model->to(torch::kCPU); // where it writes
    const bool say = o.run.output != output_mode::quiet;
    const auto written = o.sample_bytes > 0 && say
                             ? printable(sample(model, o.prompt, o.sample_bytes, 0.8, o.run.seed))
                             : std::string();
    if (o.run.output == output_mode::json) {
        summary.texts = {{"sample", written}};
        fmt::print("{}\n", skein::report::summary_json(summary));
    } else if (say) {
        if (!written.empty())
            fmt::print("it writes, from \"{}\" on:\n\n{}\n\n", printable(o.prompt), written);
        fmt::print("{}", skein::report::summary_text(summary));
    }
    std::fflush(stdout);
}

/// main() of the examples: one clear line for a mistake before any worker starts.
///   body  what a rank does: body(ctx, options, text)
template <class Body>
int run_program(program_options& options, Body body) {
    split_text parts;
    try {
        check(options);
        const auto text = read_text(options.text, options.max_mib << 20);
        parts = split(text, options.model.context, options.text);
        if (options.prompt.empty()) options.prompt = opening(parts.held_out);
    } catch (const skein::error& mistake) {
        fmt::print(stderr, "error: {}\n", mistake.what());
        return skein::train::exit_code_of(mistake);
    }
    return skein::train::launch(options.run,
                                [&](skein::train::context& ctx) { body(ctx, options, parts); });
}

} // namespace gpt
