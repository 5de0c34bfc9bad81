// SPDX-License-Identifier: Apache-2.0
#pragma once
// The training loop: the same for one process and many, and the only place that knows all parts.
//
// Model, loss and data are the user's and know nothing of the strategy. The trainer deals samples to
// ranks, weights every loss by its share of the global batch (so uneven shares are exact), clips,
// steps, merges metrics, evaluates, saves, resumes, and writes what a person wants to see.
//
//     skein::Trainer<skein::DDP<>> trainer(ctx, config);
//     auto result = trainer.fit(model, skein::AdamW{.weight_decay = 0.1}, schedule, loss, data, held_out);
//
// Same seed and world size: the same bits, also when a run was interrupted and resumed.

#include <skein/report/metrics.hpp>
#include <skein/report/settings.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/callbacks.hpp>
#include <skein/train/context.hpp>
#include <skein/train/detail/session.hpp>
#include <skein/train/loss.hpp>
#include <skein/train/memory_plan.hpp>
#include <skein/train/optimizer.hpp>
#include <skein/train/run_config.hpp>
#include <skein/train/schedule.hpp>
#include <skein/train/strategy.hpp>

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace skein::train {

/// Samples by number. Laws: batch(ids) depends on ids alone; every id is below size().
template <class D>
concept data_source = requires(const D& data, std::span<const std::uint64_t> ids) {
    { data.size() } -> std::convertible_to<std::uint64_t>;
    data.batch(ids);
};

template <class D>
using batch_of = decltype(std::declval<const D&>().batch(std::span<const std::uint64_t>{}));

/// What fit() trains: a TORCH_MODULE holder or a pointer to a module.
template <class M>
concept module_holder = requires(M& model) {
    { *model } -> std::convertible_to<torch::nn::Module&>;
};

template <class R>
concept loss_value = std::convertible_to<R, at::Tensor> || std::convertible_to<R, weighted_loss>;

/// loss(model, batch) or loss(model, batch, metric_set&): a scalar tensor, the mean over the batch's
/// samples, or a weighted_loss. The second form may report more numbers; evaluation reports them as
/// "val_<name>".
template <class L, class Model, class Batch>
concept loss_function =
    loss_value<std::invoke_result_t<L&, Model&, const Batch&>> ||
    loss_value<std::invoke_result_t<L&, Model&, const Batch&, report::metric_set&>>;

} // namespace skein::train

#include <skein/train/detail/fit_parts.hpp>

namespace skein {

/// Trains a module under a strategy. One fit() at a time; all ranks call fit() alike.
template <class Strategy, class... Callbacks>
    requires train::strategy<Strategy>
class Trainer {
    static_assert((train::callback<Callbacks> && ...),
                  "a callback needs one of on_start, on_step, on_eval, on_checkpoint and on_end");

public:
    /// Throws errc::usage when the configuration makes no sense for this world.
    Trainer(train::context& ctx, train::run_config config, Callbacks... callbacks)
        : ctx_(&ctx), config_(std::move(config)), callbacks_(std::move(callbacks)...) {
        train::detail::begin_training(ctx, config_);
    }

    /// More settings for the run's config.json: model sizes and the like.
    void describe(report::settings settings) { settings_ = std::move(settings); }

    /// A number of this rank for the row of the step that is running (from a callback: of the next
    /// step), merged over ranks by its kind. Every rank must report the same names. The trainer's own
    /// ("loss", "lr", "grad_norm", "val_loss", "step", ...) are refused: errc::usage.
    void report(report::metric_kind kind, std::string_view name, double value,
                double weight = 1.0) {
        reported_.add(kind, name, value, weight);
    }

    /// Runs until config.max_steps, a stop request or an error.
    ///   model     a module holder or pointer; its parameters move into a flat store for good. One that
    ///             is in eval mode as a whole is put into training mode; submodules that are in eval
    ///             mode by themselves stay there
    ///   held_out  the evaluation set; its size may be 0
    ///   errors    usage, not_finite (with step, rank and a way out), mismatch (also of settings and
    ///             data between the ranks), disk errors, and the transport's. What model, loss or data
    ///             throw leaves as invalid_argument with rank, step and type, and is not tried again:
    ///             the same step would throw again. What the system refused (std::system_error,
    ///             std::bad_alloc) is tried again as io and exhausted, and a skein::error keeps its
    ///             code. The other ranks are told before an error leaves
    template <class Model, class Loss, train::data_source Data, train::data_source HeldOut>
    train::fit_result fit(Model& model, train::optimizer_options options, train::schedule schedule,
                          Loss loss, const Data& data, const HeldOut& held_out) {
        static_assert(train::module_holder<Model>,
                      "fit() takes a module holder (TORCH_MODULE) or a std::shared_ptr to the "
                      "module, not the module itself");
        if constexpr (train::module_holder<Model>) { // else the line above is all there is to say
            using parts = train::detail::parts_of<Strategy, Model, Loss, Data, HeldOut,
                                                  std::tuple<Callbacks...>>;
            return train::detail::run_fit(
                {.ctx = ctx_,
                 .config = &config_,
                 .described = &settings_,
                 .reported = &reported_,
                 .options = options,
                 .rate = std::move(schedule),
                 .samples = static_cast<std::uint64_t>(data.size()),
                 .held_out = static_cast<std::uint64_t>(held_out.size())},
                [&] {
                    train::detail::refuse_too_large(train::detail::strategy_name_of<Strategy>(),
                                                    *model, *ctx_, config_, options);
                    return std::make_unique<parts>(*ctx_, model, loss, data, held_out, callbacks_);
                });
        }
    }

    [[nodiscard]] const train::run_config& config() const noexcept { return config_; }
    [[nodiscard]] train::context& ctx() noexcept { return *ctx_; }
    template <class C>
    [[nodiscard]] C& callback() noexcept {
        return std::get<C>(callbacks_);
    }

private:
    train::context* ctx_;
    train::run_config config_;
    std::tuple<Callbacks...> callbacks_;
    report::settings settings_;
    report::metric_set reported_{train::detail::taken_names};
};

} // namespace skein
