// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/session.hpp>.

#include <skein/core/error.hpp>
#include <skein/core/printable.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/detail/say_note.hpp>
#include <skein/train/detail/session_core.ipp>
#include <skein/train/detail/session_ends.ipp>
#include <skein/train/detail/session_worlds.ipp>
#include <skein/train/device.hpp>
#include <skein/train/precision.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace skein::train::detail {

SKEIN_INLINE void begin_training(const context& ctx, const run_config& config, bool is_elastic) {
    const auto* const place = ctx.elastic();
    if (place != nullptr && !is_elastic) {
        const int least = place->job().least(), most = place->job().most();
        const auto many =
            least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most);
        throw error(
            errc::usage,
            fmt::format("this process is a worker of an elastic job ({} workers), as `--workers "
                        "LEAST:MOST` starts them, and `skein run` those of a program that has a "
                        "Trainer<Elastic<...>>: one that is lost is replaced. The strategy of this "
                        "Trainer has ranks that never change",
                        many))
            .with_hint(fmt::format("`skein run --nproc-per-node {}`, or the program itself with "
                                   "`--workers {}`; for hosts that come and go `skein run --nnodes "
                                   "1:4`: all ranks start again then; or train with "
                                   "Trainer<Elastic<DDP<>>>. A program that has such a Trainer, "
                                   "too, is elastic: build another one",
                                   most, most));
    }
    validate(config, place != nullptr ? place->job().most() : ctx.world_size());
    keep_freed_memory();
}

/// Ranks exchange what is on their devices, and what is on the host.
[[nodiscard]] SKEIN_INLINE bool carries_both(const context& ctx, dist::device where) {
    const auto* const comm = ctx.comm();
    return comm != nullptr && dist::reaches(*comm, dist::device::cpu()) &&
           dist::reaches(*comm, where);
}

/// Ranks may have a device together: one over NCCL takes buffers of its own alone.
[[nodiscard]] SKEIN_INLINE bool carries_all(const context& ctx) {
    return carries_both(ctx, dist::device::cuda(0)) && carries_both(ctx, dist::device::cuda(1));
}

SKEIN_INLINE std::string only_on_cpu(const asked_of_device& run) {
    if (run.ranks_change) return "ranks that come and go";
    if (!run.strategy_fits) return fmt::format("strategy {}", run.strategy);
    if (run.precision.compute == at::kHalf) return "float16";
    if (run.ranks > 1 && !run.carries_own)
        return fmt::format("{} ranks over {} (communicator = \"host\" carries what is on {})",
                           run.ranks, run.over, run.own);
    // Said by all ranks, also by the first, whose device it is: none is on another one alone.
    if (run.ranks > 1 && !run.carries_all && run.precision.is_mixed())
        return fmt::format("{} over {} (communicator = \"host\" carries it)",
                           describe(run.precision), run.over);
    if (run.ranks > 1 && !run.carries_all && run.gpus > 1)
        return fmt::format("scaling.gpus = {} over {}, where a rank has the device of its number",
                           run.gpus, run.over);
    if (run.logical_shards > 0) return "logical shards";
    return {};
}

SKEIN_INLINE at::Device device_of_run(const context& ctx, const run_config& config,
                                      std::string_view strategy, bool fits,
                                      const precision_policy& policy) {
    if (config.device == "cpu") return at::kCPU;
    const auto there = survey_devices();
    const bool may_share = carries_all(ctx);
    auto chosen = choose_device(config.device, there, ctx.local_size(), may_share);
    if (!chosen.where.is_cpu() && !at::hasCUDA()) { // loaded, and nothing of it is there
        const std::string why = "LibTorch's half for CUDA is there and says that it has none";
        if (config.device == "cuda") throw error(errc::usage, "device cuda: " + why);
        chosen = {dist::device::cpu(), why};
    }
    // gpus of a rank lie side by side in what it sees (docs/jobs.md).
    const int mine = device_of_rank(ctx.local_rank(), static_cast<int>(config.scaling.gpus),
                                    may_share ? there.devices : 0);
    const auto own = dist::device::cuda(static_cast<std::uint8_t>(mine));
    const auto bar =
        only_on_cpu({.strategy = strategy,
                     .strategy_fits = fits,
                     .ranks_change = ctx.elastic() != nullptr,
                     .precision = policy,
                     .ranks = ctx.world_size(),
                     .over = ctx.comm() != nullptr ? ctx.comm()->name() : "no communicator",
                     .own = to_string(own),
                     .carries_own = carries_both(ctx, own),
                     .carries_all = may_share,
                     .gpus = config.scaling.gpus,
                     .logical_shards = config.scaling.logical_shards});
    if (!chosen.where.is_cpu() && !bar.empty()) {
        if (config.device == "cuda")
            throw error(errc::not_supported, fmt::format("not supported: {} on a device", bar))
                .with_hint("train there with Single, or with DDP or FSDP by communicator \"host\" "
                           "(in float32 also, with a device for each rank, \"nccl\"), in float32 "
                           "or bfloat16, or on the CPU");
        chosen = {dist::device::cpu(), fmt::format("not supported on a device: {}", bar)};
    }
    const auto where = chosen.where.is_cpu()
                           ? at::Device(at::kCPU)
                           : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(mine));
    if (config.device == "automatic" && ctx.is_first())
        say_note(config, fmt::format("device {}: {}", where.str(), chosen.why));
    return where;
}

SKEIN_INLINE void move_to_device(torch::nn::Module& module, at::Device where,
                                 const gradient_look& look) {
    if (where.is_cpu()) return;
    if (look.is_on)
        throw error(
            errc::not_supported,
            fmt::format("not supported: a callback that looks at gradients on {}", where.str()))
            .with_hint("leave it out, or train on the CPU");
    module.zero_grad(/*set_to_none=*/true);
    module.to(where);
}

} // namespace skein::train::detail

namespace skein::train {

SKEIN_INLINE session::session(const session_request& request, const detail::make_parts& make)
    : core_(std::make_unique<detail::session_core>(request, make)) {}
SKEIN_INLINE session::~session() = default;
SKEIN_INLINE void session::expect_weights() noexcept { core_->expect_weights(); }
SKEIN_INLINE void session::request_stop() noexcept { core_->ask_stop(action::stop); }
SKEIN_INLINE step_phase session::phase() const noexcept { return core_->phase(); }
SKEIN_INLINE std::uint64_t session::finished() const noexcept { return core_->now().step; }
SKEIN_INLINE double session::micro_loss() const noexcept { return core_->micro_loss(); }
SKEIN_INLINE void session::use_evaluation(std::string name, detail::sample_range data,
                                          const evaluation_options& how, detail::numbered_loss loss,
                                          bool reports) {
    core_->guarded([&] {
        core_->use_evaluation(std::move(name), std::move(data), how, std::move(loss), reports);
    });
}
SKEIN_INLINE train::stage& session::stage() { return core_->training(); }
SKEIN_INLINE void session::report(report::metric_kind kind, std::string_view name, double value,
                                  std::optional<double> weight) {
    core_->guarded([&] { (void)core_->reported().add(kind, name, value, weight); });
}
SKEIN_INLINE void session::begin(std::unique_ptr<detail::input_source> input) {
    core_->guarded([&] { core_->begin(std::move(input)); });
}
SKEIN_INLINE void session::accumulate(std::string_view name, double more) {
    const auto phase = core_->phase();
    if (phase == step_phase::idle && core_->now().sums.is_taken_back()) return; // it comes again
    core_->guarded([&] {
        if (phase != step_phase::drawn && phase != step_phase::computing)
            throw error(errc::usage,
                        fmt::format("'{}' is added to without a step in hand", printable(name)))
                .with_hint("add beside the micro-batches of a step: sums are those of steps");
        if (in_epoch_ && core_->now().sums.drawn_epoch() != in_epoch_)
            throw error(errc::usage,
                        fmt::format("'{}' is added to behind the last step of epoch {}",
                                    printable(name), *in_epoch_))
                .with_hint("add beside the micro-batches of a step: sums are those of steps; what "
                           "an evaluation counts its loss reports (session.evaluate_on)");
        if (name.empty()) throw error(errc::usage, "a sum without a name");
        (void)core_->reported().sum(std::string(detail::sum_prefix) + std::string(name), more);
    });
}
SKEIN_INLINE const std::map<std::string, double>& session::epoch_sums() const noexcept {
    return core_->now().sums.sums();
}
SKEIN_INLINE std::uint64_t session::epoch_of_sums() const noexcept {
    return core_->now().sums.epoch();
}
SKEIN_INLINE std::uint64_t session::current_epoch() const noexcept {
    return core_->now().sums.drawn_epoch().value_or(finished_epochs());
}
SKEIN_INLINE std::uint64_t session::finished_epochs() const noexcept {
    const auto& feeder = core_->now().feeder;
    return feeder ? feeder->epochs_done() : 0;
}
SKEIN_INLINE void session::require_epochs(std::int64_t count) const {
    const auto& config = core_->now().config;
    if (count == config.epochs && count > 0) return;
    throw error(errc::usage,
                fmt::format("{} epochs of a run that is {} long", count,
                            config.epochs > 0 ? fmt::format("{} epochs", config.epochs)
                                              : fmt::format("{} steps", config.max_steps)))
        .with_hint("run_config.epochs says how long a run is, for its schedule, too: give the loop "
                   "the same number");
}
SKEIN_INLINE bool session::draw() {
    return core_->guarded([&] { return core_->draw(); });
}
SKEIN_INLINE const void* session::next_micro() {
    return core_->guarded([&] { return core_->next_micro(); });
}
SKEIN_INLINE void session::backward(const weighted_loss& loss) {
    core_->guarded([&] { core_->backward(loss); });
}
SKEIN_INLINE void session::agree() {
    core_->guarded([&] { core_->agree(); });
}
SKEIN_INLINE void session::apply() {
    core_->guarded([&] { core_->apply(); });
}
SKEIN_INLINE void session::commit() {
    core_->guarded([&] { core_->commit(); });
}
SKEIN_INLINE void session::complete() {
    core_->guarded([&] { core_->complete(); });
}
SKEIN_INLINE void session::redo() {
    core_->guarded([&] { core_->redo(); });
}
SKEIN_INLINE void session::abort(const error& why) noexcept { core_->abort(why); }
SKEIN_INLINE void session::rebind() {
    core_->guarded([&] { core_->rebind(); });
}
SKEIN_INLINE fit_result session::finish() {
    return core_->guarded([&] { return core_->finish(); });
}
SKEIN_INLINE fit_result session::run(const detail::batch_loss& loss) {
    return core_->guarded([&] { return core_->run(loss); });
}

} // namespace skein::train
