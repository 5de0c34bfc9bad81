// SPDX-License-Identifier: Apache-2.0
#pragma once
// The seam between a session and the user's types: the loop is no template and is compiled once,
// what it needs of strategy, model, loss, data and callbacks is behind virtual calls. Included by
// <skein/train/session.hpp> only, after its concepts.

namespace skein::train {

/// What a session was asked for. Pointers are not owned.
struct session_request {
    context* ctx;
    const run_config* config;
    const report::settings* described; ///< the user's part of config.json
    report::metric_set* reported;      ///< what the user reports for the step that is running
    const metrics_manager* declared;   ///< its metrics
    std::vector<description> rules;    ///< its callbacks
    optimizer_options options;
    schedule rate;
    gradient_look look{.is_on = false}; ///< what the callbacks want to see
};

} // namespace skein::train

namespace skein::train::detail {

/// In a handler, of what a callback threw: throws it as an error that says who, where and when. As
/// what model, loss and data throw it lasts; a skein::error keeps its code.
///   what  "on_eval of thrower"
[[noreturn]] void callback_failed(const std::string& what, int rank, std::uint64_t step);

/// What a callback multiplies by, if it is a finite number of at least 0.
///   errors  usage, with the number
[[nodiscard]] double require_factor(std::string_view what, double factor);

/// State of a callback, by the name of its type.
struct callback_state {
    std::string name, state;
};

/// What one callback decided.
struct made_decision {
    std::string rule;
    step_plan from, to; ///< equal when it is about something else
    bool stops = false;
    std::string why;
};
/// What the callbacks decide, in their order: each sees what those before it decided.
struct decisions {
    step_plan plan;
    action wanted = action::go_on;
    std::vector<made_decision> made{};
};

/// Strategy, module and callbacks of one session.
class session_parts {
public:
    virtual ~session_parts() = default;
    [[nodiscard]] virtual torch::nn::Module& module() = 0;

    [[nodiscard]] virtual std::string strategy_name() const = 0;
    [[nodiscard]] virtual precision_policy precision() const = 0;
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
    virtual void rebind() = 0;
    /// Throws errc::not_supported when the strategy has no logical shards.
    virtual void sum_by_shards(int shards) = 0;
    /// From now on a gradient that comes in pieces comes to its place as a whole.
    ///   result  places are empty behind each pass: they are apart as it is
    virtual bool wait_for_pieces() = 0;

    virtual void tell(const start_info& event) = 0;
    virtual void tell(const step_info& event, decisions& to) = 0;
    virtual void tell(const eval_info& event, decisions& to) = 0;
    /// Whether a callback has on_agreed.
    [[nodiscard]] virtual bool judges() const = 0;
    /// The strongest of their verdicts, of the first that has it.
    ///   rule  its name
    [[nodiscard]] virtual ruling judge(const step_info& event, std::string& rule) = 0;
    /// Whether a callback may change the plan, and whether the samples of a step.
    [[nodiscard]] virtual bool plans() const = 0;
    [[nodiscard]] virtual bool changes_batch() const = 0;
    /// Factors of the callbacks on the rate of a step, multiplied; 1 where none gives one.
    [[nodiscard]] virtual double rate(const rate_info& info) const = 0;
    /// What a step of so many times the first batch is worth; none where no callback measures it.
    [[nodiscard]] virtual std::function<double(double scale)> gain() const = 0;
    /// The words of all callbacks, one behind another: what rank 0 says, zeros of the others.
    virtual void ask_word(bool is_first, std::vector<double>& word) = 0;
    /// What they decide for a world, in their order; from to.plan.
    virtual void tell(const world_change& event, decisions& to) = 0;
    virtual void tell(const checkpoint_info& event) = 0;
    virtual void tell(const fit_result& event) = 0;
    /// Why a callback wants the end, as it says; or empty.
    [[nodiscard]] virtual std::string stop_reason() const = 0;
    [[nodiscard]] virtual std::vector<callback_state> states() const = 0;
    virtual void restore(const callback_state& saved) = 0;
};

using make_parts = std::function<std::unique_ptr<session_parts>()>;
/// The loss of a batch behind the pointer; `here` gets what it reports. Its weight is undefined
/// when it is the mean over the samples.
using batch_loss = std::function<weighted_loss(const void* batch, stage& here)>;
/// Of a batch of an evaluation, which may lack samples that cannot be made.
struct evaluated_loss {
    weighted_loss loss;
    std::uint64_t samples = 0; ///< that it is of
};
/// The same of samples by number.
///   result  nothing when none of them could be made
using numbered_loss =
    std::function<std::optional<evaluated_loss>(std::span<const std::uint64_t>, stage& here)>;

template <class Loss, class Model, class Batch>
consteval void require_loss() {
    static_assert(
        loss_function<Loss, Model, Batch>,
        "the loss must be callable as loss(model, batch), loss(model, batch, metric_set&) or "
        "loss(model, batch, stage&) and return a scalar tensor or a skein::weighted_loss");
}

template <class Loss, class Model, class Batch>
inline constexpr bool loss_reports = std::invocable<Loss&, Model&, const Batch&, stage&>;

template <class Loss, class Model, class Batch>
[[nodiscard]] consteval bool loss_is_weighted() {
    if constexpr (loss_reports<Loss, Model, Batch>)
        return std::convertible_to<std::invoke_result_t<Loss&, Model&, const Batch&, stage&>,
                                   weighted_loss>;
    else
        return std::convertible_to<std::invoke_result_t<Loss&, Model&, const Batch&>,
                                   weighted_loss>;
}

template <class Loss, class Model, class Batch>
[[nodiscard]] weighted_loss call_loss(Loss& loss, Model& model, const Batch& batch, stage& here) {
    const auto value = [&] {
        if constexpr (loss_reports<Loss, Model, Batch>)
            return loss(model, batch, here);
        else
            return loss(model, batch);
    };
    if constexpr (loss_is_weighted<Loss, Model, Batch>())
        return value();
    else
        return {value(), {}};
}

/// With which names begin that travel in a row and are not in it.
inline constexpr std::string_view squares_prefix = "gradient_squares/";
inline constexpr std::string_view word_prefix = "word/"; ///< of a word of rank 0

/// Names of the trainer's own numbers, in rows or beside them; what ends in a slash begins them.
inline constexpr std::string_view taken_names[] = {
    "loss",          "lr",           "grad_norm",  "step",      "stop",        "tokens_per_s",
    "samples_per_s", "step_seconds", "event",      "val_loss",  "total",       "eta_seconds",
    "data_s",        "forward_s",    "backward_s", "exposed_s", "optimizer_s", "overlap",
    "loss_scale",    "global_batch", "world",      "run_s",     "worker_s",    "worker_kinds",
    "unix_s",        squares_prefix, word_prefix};

class session_core;

/// Checks the configuration and sets this process up for training.
///   is_elastic  the strategy bears that ranks change
///   errors      usage: of an elastic job, and the strategy is not
void begin_training(const context& ctx, const run_config& config, bool is_elastic);

/// What a run asks of a device.
struct asked_of_device {
    std::string_view strategy; ///< its name
    bool strategy_fits = true; ///< it works on devices
    bool ranks_change = false; ///< of an elastic job
    precision_policy precision{};
    int ranks = 1;
    std::string over{};      ///< name of what the ranks exchange by
    std::string own{};       ///< name of this rank's device
    bool carries_own = true; ///< that takes what is on the host and on this rank's device
    bool carries_all = true; ///< and on each other device
    double gpus = 0;         ///< of each rank
    int logical_shards = 0;
};
/// What of it works on the CPU alone, for a person; empty: nothing.
[[nodiscard]] std::string only_on_cpu(const asked_of_device& run);

/// What the run computes on, by run_config::device; rank 0 says it where that is "automatic".
///   strategy  its name; fits: it works on devices
///   errors    those of choose_device(); not_supported, by name, for what works on the CPU alone
[[nodiscard]] at::Device device_of_run(const context& ctx, const run_config& config,
                                       std::string_view strategy, bool fits,
                                       const precision_policy& policy);
/// The whole module is there from now on; its gradients, of a time before the training, are gone.
///   look    what callbacks want to see of gradients, which is not supported on a device
void move_to_device(torch::nn::Module& module, at::Device where, const gradient_look& look);

} // namespace skein::train::detail
