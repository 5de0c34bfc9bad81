// SPDX-License-Identifier: Apache-2.0
#pragma once
// The seam between one fit() and the user's types: the loop is no template and is compiled once, what it
// needs of model, loss, data, strategy and callbacks is behind virtual calls.

#include <skein/report/metrics.hpp>
#include <skein/report/settings.hpp>
#include <skein/torch/tensor.hpp>
#include <skein/train/callbacks.hpp>
#include <skein/train/context.hpp>
#include <skein/train/loss.hpp>
#include <skein/train/optimizer.hpp>
#include <skein/train/run_config.hpp>
#include <skein/train/schedule.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace skein::train::detail {

/// The user's types of one fit(): see trainer.hpp for what each of them promises.
class fit_parts {
public:
    using ids = std::span<const std::uint64_t>;

    virtual ~fit_parts();
    [[nodiscard]] virtual torch::nn::Module& module() = 0;
    /// The loss of training or evaluation samples; `metrics` gets what it reports. Its weight is undefined
    /// when it is the mean over the samples.
    [[nodiscard]] virtual weighted_loss loss(ids samples, report::metric_set& metrics) = 0;
    [[nodiscard]] virtual weighted_loss held_out_loss(ids samples, report::metric_set& metrics) = 0;

    [[nodiscard]] virtual bool loss_is_weighted() const = 0;

    [[nodiscard]] virtual std::string strategy_name() const = 0;
    [[nodiscard]] virtual flat_store& store() = 0;
    virtual void begin_step() = 0;
    virtual void begin_micro(bool last) = 0;
    virtual void finish_backward() = 0;
    [[nodiscard]] virtual double squared_norm(double mine) = 0;
    virtual void publish() = 0;
    virtual void sync_buffers() = 0;
    virtual void begin_evaluation() = 0;
    virtual void end_evaluation() = 0;
    virtual void abort(const error& why) noexcept = 0;
    virtual void finish() = 0;

    virtual void tell(const start_info& event) = 0;
    virtual void tell(const step_info& event) = 0;
    virtual void tell(const eval_info& event) = 0;
    virtual void tell(const checkpoint_info& event) = 0;
    virtual void tell(const fit_result& event) = 0;
};

/// Names of the trainer's own numbers, in rows or beside them.
inline constexpr std::string_view taken_names[] = {
    "loss",          "lr",           "grad_norm", "step",     "stop",  "tokens_per_s",
    "samples_per_s", "step_seconds", "event",     "val_loss", "total", "eta_seconds"};

/// What one fit() was asked for. Pointers are not owned.
struct fit_request {
    context* ctx;
    const run_config* config;
    const report::settings* described; ///< the user's part of config.json
    report::metric_set* reported;      ///< what the user reports for the step that is running
    optimizer_options options;
    schedule rate;
    std::uint64_t samples = 0;  ///< of the training data
    std::uint64_t held_out = 0; ///< samples of the evaluation set
};

/// Makes the parts (and with them the strategy), trains, and tells the peers why if an error leaves.
[[nodiscard]] fit_result run_fit(const fit_request& request,
                                 const std::function<std::unique_ptr<fit_parts>()>& make);

/// What a person should know who wants the best checkpoints kept; mostly nothing.
[[nodiscard]] std::string cadence_notice(const run_config& config, std::uint64_t held_out);

/// Checks the configuration and sets this process up for computing.
void begin_training(const context& ctx, const run_config& config);

} // namespace skein::train::detail

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/session.ipp>
#endif
