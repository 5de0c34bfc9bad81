// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/run_config.hpp>.

#include <skein/core/error.hpp>
#include <skein/core/this_process.hpp>
#include <skein/report/summary.hpp>
#include <skein/train/device.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <istream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/core.h>

namespace skein::train {

SKEIN_INLINE std::string default_runs_dir() {
    const char* const named = std::getenv("SKEIN_RUNS_DIR");
    return named != nullptr && *named != '\0' ? named : "runs";
}

SKEIN_INLINE worker_range default_workers() {
    worker_range out;
    const char* const named = std::getenv("SKEIN_TRAIN_WORKERS");
    if (named == nullptr || *named == '\0') return out;
    std::istringstream from{std::string(named)};
    return from >> out ? out : worker_range(0);
}

namespace detail {
/// Of a variable; what is no number gives -1.
[[nodiscard]] inline double default_amount(const char* name) {
    const char* const named = std::getenv(name);
    if (named == nullptr || *named == '\0') return 0;
    char* end = nullptr;
    const double value = std::strtod(named, &end);
    return *end == '\0' && std::isfinite(value) ? value : -1;
}
} // namespace detail

SKEIN_INLINE double default_cpus() { return detail::default_amount("SKEIN_TRAIN_CPUS"); }
SKEIN_INLINE double default_gpus() { return detail::default_amount("SKEIN_TRAIN_GPUS"); }

SKEIN_INLINE std::string steps_flag_of(const run_config& config) {
    return config.steps_flag.value_or(config.epochs > 0 ? "" : "--steps");
}

SKEIN_INLINE std::string command_line() {
    std::string out;
    for (const auto& word : own_arguments())
        out += (out.empty() ? "" : " ") + report::shell_word(word);
    return out;
}

SKEIN_INLINE std::string to_string(const worker_range& range) {
    return range.is_fixed() ? fmt::to_string(range.most)
                            : fmt::format("{}:{}", range.least, range.most);
}

SKEIN_INLINE std::istream& operator>>(std::istream& from, worker_range& to) {
    std::string text;
    from >> text;
    const auto colon = text.find(':');
    const auto number = [&](std::string_view part) -> std::optional<int> {
        int value = 0;
        const auto* const end = part.data() + part.size();
        const auto [at, failed] = std::from_chars(part.data(), end, value);
        if (failed != std::errc() || at != end) return std::nullopt;
        return value;
    };
    const std::string_view all = text;
    const auto least = number(all.substr(0, colon));
    const auto most = colon == std::string::npos ? least : number(all.substr(colon + 1));
    if (least && most)
        to = {*least, *most};
    else
        from.setstate(std::ios::failbit);
    return from;
}

SKEIN_INLINE std::uint64_t total_steps(const run_config& config, std::uint64_t samples) {
    if (config.epochs < 1) return static_cast<std::uint64_t>(config.max_steps);
    return sampler({.samples = samples,
                    .batch = static_cast<std::uint64_t>(config.global_batch),
                    .seed = config.seed,
                    .last = config.last})
        .batches_of(static_cast<std::uint64_t>(config.epochs));
}

namespace detail {

[[noreturn]] SKEIN_INLINE void refuse(std::string what, std::string hint) {
    throw error(errc::usage, std::move(what)).with_hint(std::move(hint));
}

SKEIN_INLINE void validate_workers(const worker_range& workers) {
    const auto text = "scaling.workers = " + to_string(workers);
    if (workers.least < 1) refuse(text, "at least 1 worker is needed");
    if (workers.least > workers.most)
        refuse(text, "the fewest come first, then the most: as in {1, 4}");
    if (workers.most > 4096) refuse(text, "at most 4096 run on one host");
}

/// When the run saves and evaluates, and on how much.
SKEIN_INLINE void validate_cadences(const run_config& config) {
    if (config.checkpoint.every < 0)
        refuse(fmt::format("checkpoint.every = {}", config.checkpoint.every),
               "use a number of steps, or 0 for a checkpoint at the end only");
    if (config.checkpoint.keep_every < 0)
        refuse(fmt::format("checkpoint.keep_every = {}", config.checkpoint.keep_every),
               "use a number of steps, or 0 to keep none for its number");
    if (config.checkpoint.keep_best.k < 0)
        refuse(fmt::format("checkpoint.keep_best.k = {}", config.checkpoint.keep_best.k),
               "use a number of checkpoints, or 0 for none");
    if (config.eval_every < 0)
        refuse(fmt::format("eval_every = {}", config.eval_every),
               "use a number of steps, or 0 for an evaluation at the end only");
    if (config.eval_samples < 0 || config.eval_batch < 0)
        refuse(fmt::format("eval_samples = {} and eval_batch = {}", config.eval_samples,
                           config.eval_batch),
               "use numbers of samples, or 0 for all and for the batch of training");
}

/// Every rank has a slice of the batch at least, and every slice a sample.
SKEIN_INLINE void validate_shards(const run_config& config, int world_size) {
    const int shards = config.scaling.logical_shards;
    if (shards == 0) return;
    if (shards < 0 || (shards & (shards - 1)) != 0 || shards > 65536)
        refuse(fmt::format("scaling.logical_shards = {}", shards),
               "use a power of two up to 65536, or 0 for none");
    if (shards < world_size)
        refuse(fmt::format("{} logical shards for {} workers", shards, world_size),
               "use as many shards as the most workers that there will be, or more");
    if (shards > config.global_batch)
        refuse(
            fmt::format("{} logical shards of a batch of {} samples", shards, config.global_batch),
            "use fewer shards or a larger batch");
    if (config.accumulation != 1)
        refuse(
            fmt::format("{} logical shards and an accumulation of {}", shards, config.accumulation),
            "leave accumulation at 1: each shard is a micro-batch of the rank that has it; use "
            "more shards for smaller ones");
}

} // namespace detail

SKEIN_INLINE void validate(const run_config& config, int world_size) {
    using detail::refuse;
    detail::validate_workers(config.scaling.workers);
    for (const auto& [name, value] :
         {std::pair("cpus", config.scaling.cpus), std::pair("gpus", config.scaling.gpus)})
        if (!(value >= 0 && value <= 4096))
            detail::refuse(fmt::format("scaling.{} = {}", name, value),
                           "use how many each rank takes, or 0");
    if (config.scaling.threads < 0 || config.scaling.threads > 1024)
        refuse(fmt::format("scaling.threads = {}", config.scaling.threads),
               "use 0 (one) to 1024 per worker");
    if (config.scaling.gpus > 64 || config.scaling.gpus != std::floor(config.scaling.gpus))
        refuse(fmt::format("scaling.gpus = {}", config.scaling.gpus),
               "use whole gpus, 0 to 64 per worker: two ranks of a training cannot share one");
    if (config.failure.max_failures < 0)
        refuse(fmt::format("failure.max_failures = {}", config.failure.max_failures),
               "restarts before the job gives up: use 0 or more");
    detail::validate_cadences(config);
    if (config.epochs < 0)
        refuse(fmt::format("{} epochs", config.epochs), "use 1 or more, or 0 for max_steps");
    if (config.prefetch_batches < 0 || config.prefetch_batches > 1024)
        refuse(fmt::format("{} batches made ahead", config.prefetch_batches),
               "use 0 (none) to 1024; each takes the memory of a batch");
    if (config.epochs == 0 && config.max_steps < 1)
        refuse(fmt::format("{} steps", config.max_steps), "at least 1 step is needed");
    if (config.accumulation < 1)
        refuse(fmt::format("accumulation of {}", config.accumulation), "use 1 or more");
    if (config.global_batch < 1)
        refuse(fmt::format("a batch of {} samples", config.global_batch), "use 1 or more");
    if (config.global_batch < world_size * config.accumulation)
        refuse(
            fmt::format("a batch of {} samples cannot feed {} workers with {} micro-batches each",
                        config.global_batch, world_size, config.accumulation),
            "use fewer workers or a larger batch");
    detail::validate_shards(config, world_size);
    require_device_kind(config.device);
    if (!(config.clip >= 0))
        refuse(fmt::format("clip of {}", config.clip), "use 0 (off) or a positive norm");
    if (!(config.clip_value >= 0))
        refuse(fmt::format("clip_value of {}", config.clip_value),
               "use 0 (off) or a positive size");
    if (config.precision != "float32")
        throw error(errc::not_supported,
                    fmt::format("not supported: precision {}", config.precision))
            .with_hint("there is float32; what a model computes in is a setting of the strategy: "
                       "precision<bf16> or precision<f16>, as in FSDP<auto_wrap<Block>, "
                       "precision<bf16>>");
    const bool has_control = std::ranges::any_of(
        config.name, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
    if (config.name.empty() || config.name.find('/') != std::string::npos ||
        config.name[0] == '.' || config.name.size() > 200 || has_control)
        refuse(fmt::format("run name '{}'", has_control ? "..." : config.name),
               "use a plain folder name of up to 200 characters");
    if (config.runs_dir.empty()) refuse("no folder for runs", "use . for the current one");
    if (config.resume == resume_mode::latest && !config.checkpoint.enabled)
        refuse("resuming without checkpoints", "they are read and go on being written: leave "
                                               "resume or checkpoint.enabled = false out");
}

} // namespace skein::train
