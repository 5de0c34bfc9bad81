// SPDX-License-Identifier: Apache-2.0
#pragma once
// The training loop: the same for one process and many, and the only place that knows all parts.
//
// Model, loss and data are the user's and know nothing of the strategy. The trainer deals samples
// to ranks, weights every loss by its share of the global batch (so uneven shares are exact),
// clips, steps, merges metrics, evaluates, saves, resumes, and writes what a person wants to see.
//
//     skein::Trainer<skein::DDP<>> trainer(ctx, config);
//     auto result = trainer.fit(model, skein::AdamW{}, schedule, loss, data, held_out);
//
// Same seed and world size: the same bits, also when a run was interrupted and resumed.

#include <skein/core/type_name.hpp>
#include <skein/metrics/metrics_manager.hpp>
#include <skein/report/metrics.hpp>
#include <skein/report/settings.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/build.hpp>
#include <skein/train/callbacks.hpp>
#include <skein/train/context.hpp>
#include <skein/train/elastic.hpp>
#include <skein/train/evaluation.hpp>
#include <skein/train/input.hpp>
#include <skein/train/memory_plan.hpp>
#include <skein/train/optimizer.hpp>
#include <skein/train/precision.hpp>
#include <skein/train/run_config.hpp>
#include <skein/train/schedule.hpp>
#include <skein/train/session.hpp>
#include <skein/train/strategy.hpp>
#include <skein/train/weights.hpp>

#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace skein::train {

/// What fit() trains: a TORCH_MODULE holder or a pointer to a module.
template <class M>
concept module_holder = requires(M& model) {
    { *model } -> std::convertible_to<torch::nn::Module&>;
};

} // namespace skein::train

#include <skein/train/detail/fit_parts.hpp>

namespace skein {

/// Trains a module under a strategy. One fit() at a time; all ranks call fit() alike.
template <class Strategy, class... Callbacks>
    requires train::strategy<Strategy>
class Trainer {
    static_assert(
        (train::callback<Callbacks> && ...),
        "a callback needs one of on_start, on_agreed, on_step, on_eval, on_checkpoint and "
        "on_end");
    static_assert(train::detail::states_are_apart<Callbacks...>(),
                  "two callbacks of one type that keep a state: checkpoints know states by their "
                  "type; give one a type of its own: struct second : skein::early_stopping { using "
                  "early_stopping::early_stopping; };");

public:
    /// Throws errc::usage when the configuration makes no sense for this world.
    Trainer(train::context& ctx, train::run_config config, Callbacks... callbacks)
        : ctx_(&ctx), config_(std::move(config)), callbacks_(std::move(callbacks)...) {
        if constexpr (train::detail::is_elastic<Strategy>)
            (void)&train::detail::elastic_mark<Strategy>::noted;
        train::detail::begin_training(ctx, config_, train::detail::is_elastic<Strategy>);
        const auto precision = train::detail::precision_used_by<Strategy>();
        if (const auto text = train::describe(precision); !text.empty()) config_.precision = text;
        device_ =
            train::detail::device_of_run(ctx, config_, train::detail::strategy_name_of<Strategy>(),
                                         train::detail::works_on_devices<Strategy>, precision);
    }

    /// What make() returns, a model that may be too large for one rank: under FSDP and Hybrid every
    /// block (skein::unit) is cut up as soon as it is built, and each rank keeps the rows that it
    /// owns. See train/build.hpp. Collective; seed the generator alike on every rank before.
    ///   errors  mismatch when ranks drew different values
    template <class Make>
    [[nodiscard]] auto build(Make make) {
        return train::build_for<Strategy>(*ctx_, std::move(make));
    }
    /// The same with its values from disk, of which each rank reads those that it owns; those that
    /// make() drew count for nothing. Collective: an error of one rank ends the others, too.
    ///   from    as load_weights() takes it: a run or checkpoint, a file, "hf:DIR", or what is open
    ///   map     how the folder's tensors become the module's; empty: they have the same names
    ///   errors  those of load_weights; mismatch when the ranks found other tensors
    template <class Make>
    [[nodiscard]] auto build(Make make, const std::string& from, const train::weight_map& map = {},
                             train::weights_options options = {}) {
        return train::build_filled<Strategy>(
            *ctx_, std::move(make), [&](torch::nn::Module& module) {
                train::detail::load_on_all(*ctx_, module, from, map, options);
            });
    }
    template <class Make>
    [[nodiscard]] auto build(Make make, const train::weight_source& from,
                             const train::weight_map& map = {}, bool strict = true) {
        return train::build_filled<Strategy>(
            *ctx_, std::move(make), [&](torch::nn::Module& module) {
                train::detail::load_on_all(*ctx_, module, from, map, strict);
            });
    }

    /// More settings for the run's config.json: model sizes, names of the data and the like. Ranks
    /// must have them alike, and a resume tells those that are others than before.
    void describe(report::settings settings) { settings_ = std::move(settings); }

    /// A number of this rank for the row of the step that is running (from a callback: of the next
    /// step), merged over ranks by its kind. A rank may leave a name out: it counts for those that
    /// report it. A mean without a weight counts, in a loss or beside a micro-batch in hand, that
    /// batch's samples; elsewhere
    /// 1. With logical shards what is reported while no micro-batch is in hand is rank 0's alone.
    /// The trainer's own names ("loss", "lr", "grad_norm", "val_loss", "step", ...) are refused:
    ///   errc::usage.
    void report(report::metric_kind kind, std::string_view name, double value,
                std::optional<double> weight = {}) {
        reported_.add(kind, name, value, weight);
    }

    /// The metrics of training and of evaluation sets, for every fit() and open() from here on: what
    /// the loss shows its stage, merged over batches and ranks. See metrics/metrics_manager.hpp.
    void measure(metrics_manager declared) { metrics_ = std::move(declared); }

    /// Runs until config.max_steps or config.epochs, a stop request or an error.
    ///   model     a module holder or pointer; its parameters move into a flat store for good. One
    ///             that is in eval mode as a whole is put into training mode; submodules that are
    ///             in eval mode by themselves stay there
    ///   data      samples by number, or a stream (train/input.hpp)
    ///   held_out  evaluation sets, each of which may be empty: data, which is called "val", or
    ///             skein::evaluation(name, data, options)
    ///   errors    usage, not_finite (with step, rank and a way out), mismatch (also of settings
    ///             and data between the ranks), disk errors, and the transport's. What model, loss
    ///             or data throw leaves as invalid_argument with rank, step and type, and is not
    ///             tried again: the same step would throw again. What the system refused
    ///             (std::system_error, std::bad_alloc) is tried again as io and exhausted, and a
    ///             skein::error keeps its code. The other ranks are told before an error leaves
    template <class Model, class Loss, train::train_input Data, train::evaluation_input... HeldOut>
        requires(sizeof...(HeldOut) > 0)
    train::fit_result fit(Model& model, train::optimizer_options options, train::schedule schedule,
                          Loss loss, Data&& data, const HeldOut&... held_out) {
        require_holder<Model>();
        if constexpr (train::module_holder<Model>) { // else the line above is all there is to say
            using batch = train::batch_of<Data>;
            train::detail::require_loss<Loss, Model, batch>();
            auto session = open(model, std::move(options), std::move(schedule));
            (session.evaluate_on(model, loss, held_out), ...);
            if constexpr (train::detail::loss_is_weighted<Loss, Model, batch>())
                session.expect_weights();
            session.begin(train::detail::make_input(data));
            return session.run([&](const void* made, train::stage& here) {
                return train::detail::call_loss(loss, model, *static_cast<const batch*>(made),
                                                here);
            });
        }
    }

    /// Every other call: says at compile time what is wrong with it.
    template <class... Args>
        requires(!train::detail::well_formed_fit<Args...>)
    train::fit_result fit(Args&&...) {
        train::detail::explain_fit<Args...>();
        return {};
    }

    /// The same for a loop of your own: see train/session.hpp. Trainer and model must outlive the
    /// session.
    template <class Model>
    [[nodiscard]] train::session open(Model& model, train::optimizer_options options,
                                      train::schedule schedule) {
        require_holder<Model>();
        using parts = train::detail::parts_of<Strategy, Callbacks...>;
        if (first_states_) // each run begins with its callbacks as they were given
            train::detail::restore_states(callbacks_, *first_states_);
        else
            first_states_ = train::detail::states_of(callbacks_);
        const train::session_request request{.ctx = ctx_,
                                             .config = &config_,
                                             .described = &settings_,
                                             .reported = &reported_,
                                             .declared = &metrics_,
                                             .rules = train::detail::rules_of(callbacks_),
                                             .options = std::move(options),
                                             .rate = std::move(schedule),
                                             .look = train::detail::look_of(callbacks_)};
        return train::session(request, [&] {
            train::detail::move_to_device(*model, device_, request.look);
            if (device_.is_cpu())
                train::detail::refuse_too_large(train::detail::strategy_name_of<Strategy>(), *model,
                                                *ctx_, config_, request.options,
                                                train::detail::precision_used_by<Strategy>());
            return std::make_unique<parts>(*ctx_, *model, callbacks_);
        });
    }

    [[nodiscard]] const train::run_config& config() const noexcept { return config_; }
    /// What the model is trained on, by run_config::device: fit() and open() move it there, and it
    /// stays. The loss moves its batch: `batch.images.to(trainer.device())`.
    [[nodiscard]] at::Device device() const noexcept { return device_; }
    [[nodiscard]] train::context& ctx() noexcept { return *ctx_; }
    template <class C>
    [[nodiscard]] C& callback() noexcept {
        return std::get<C>(callbacks_);
    }

private:
    template <class Model>
    static consteval void require_holder() {
        static_assert(train::module_holder<Model>,
                      "fit() takes a module holder (TORCH_MODULE) or a std::shared_ptr to the "
                      "module, not the module itself");
    }

    train::context* ctx_;
    train::run_config config_;
    at::Device device_ = at::kCPU;
    std::tuple<Callbacks...> callbacks_;
    report::settings settings_;
    report::metric_set reported_{train::detail::taken_names};
    metrics_manager metrics_;
    std::optional<std::vector<train::detail::callback_state>> first_states_;
};

} // namespace skein
