// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parts of one fit() beside its loop: clocks, what the ranks must have alike, the user's code and
// modes. Used by <skein/train/detail/session_core.ipp> alone.

#include <skein/core/bytes.hpp>
#include <skein/core/clock.hpp>
#include <skein/core/error.hpp>
#include <skein/core/type_name.hpp>
#include <skein/spmd/settings.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/checkpoint.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/detail/session_stages.ipp>
#include <skein/train/loss_scale.hpp>
#include <skein/train/memory_plan.hpp>
#include <skein/train/reporter.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <system_error>
#include <typeinfo>
#include <utility>
#include <vector>

#include <cxxabi.h>
#include <sys/resource.h>

#include <fmt/core.h>

namespace skein::train::detail {

SKEIN_INLINE double seconds_now() { return to_seconds(system_clock().now().time_since_epoch()); }

/// The largest resident size of this process so far.
SKEIN_INLINE double peak_rss_bytes() {
    struct rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_maxrss) * 1024.0;
}

/// Settings of LibTorch for this process that a training changes; as they were when it is over. What
/// the program draws behind a fit() would else be the same behind each.
class process_settings {
public:
    explicit process_settings(const run_config& config) : threads_(at::get_num_threads()) {
        auto generator = at::detail::getDefaultCPUGenerator();
        const std::lock_guard lock(generator.mutex());
        drawn_ = generator.get_state();
        at::set_num_threads(config.scaling.threads > 0 ? config.scaling.threads : 1);
    }
    ~process_settings() { put_back(); }
    process_settings(const process_settings&) = delete;
    process_settings& operator=(const process_settings&) = delete;

    void put_back() noexcept {
        if (!std::exchange(changed_, false)) return;
        try {
            auto generator = at::detail::getDefaultCPUGenerator();
            const std::lock_guard lock(generator.mutex());
            generator.set_state(drawn_);
            at::set_num_threads(threads_);
        } catch (...) { // the state is one that it gave: no memory, at most
        }
    }

private:
    int threads_;
    at::Tensor drawn_;
    bool changed_ = true;
};

// ---- what all ranks must have alike -------------------------------------------------------------

SKEIN_INLINE void add_settings(std::vector<spmd::setting>& to, const char* what,
                               const description& of) {
    to.push_back({what, of.name});
    for (const auto& [name, value] : of.settings) to.push_back({name, value});
}

/// Ranks that differ in one of these would train apart, or wait for each other for ever.
SKEIN_INLINE std::vector<spmd::setting> all_settings(const session_request& request) {
    auto all = settings_of(*request.config);
    const auto steps = static_cast<std::uint64_t>(request.config->max_steps);
    add_settings(all, "optimizer", describe(request.options));
    add_settings(all, "schedule", request.rate.describe(steps));
    add_settings(all, *request.declared);
    for (const auto& rule : request.rules) add_settings(all, "callback", rule);
    if (const auto& look = request.look; look.is_on)
        all.push_back({"look at gradients",
                       fmt::format("{}{}", look.preconditioned ? "preconditioned" : "as they are",
                                   look.differences ? ", with differences" : "")});
    const json described = parse_json(request.described->text()).value();
    for (const auto& [name, value] : described.items())
        all.push_back({"described " + name, dump_json(value)});
    return all;
}

/// The user's settings for config.json, below those of the optimizer and the schedule.
SKEIN_INLINE report::settings described_settings(const session_request& request) {
    report::settings all;
    const auto add = [&](const char* what, const description& of) {
        all.set(what, of.name);
        for (const auto& [name, value] : of.settings)
            all.set(fmt::format("{}: {}", what, name), value);
    };
    add("optimizer", describe(request.options));
    add("schedule", request.rate.describe(static_cast<std::uint64_t>(request.config->max_steps)));
    std::string callbacks;
    for (const auto& rule : request.rules) {
        callbacks += (callbacks.empty() ? "" : ", ") + rule.name;
        for (const auto& [name, value] : rule.settings)
            all.set(fmt::format("{}: {}", rule.name, name), value);
    }
    all.set("callbacks", callbacks);
    all.append(*request.described);
    return all;
}

/// The checksum of some samples, first and last among them, or why there is none: they are drawn
/// anew each time, as by an augmentation that breaks the law of data_source, or cannot be read here.
/// What is drawn from torch's generator changes no training: each step seeds that.
SKEIN_INLINE spmd::setting some_samples(const std::string& name, const sample_range& data) {
    spmd::setting out{"checksum of some " + name + " samples", "none"};
    constexpr std::uint64_t most = 8; // a coin tossed for each falls alike in one of 256 runs
    const auto size = data.samples, count = std::min(size, most);
    if (count == 0) return out;
    std::vector<std::uint64_t> ids;
    for (std::uint64_t i = 0; i + 1 < count; ++i) ids.push_back(i * ((size - 1) / (count - 1)));
    ids.push_back(size - 1);
    try {
        const auto first = data.sum(ids), again = data.sum(ids);
        if (first && first == again) out.value = fmt::format("{:016x}", *first);
    } catch (...) { // everywhere: the step that needs such a sample says so, with its number
        out.value = "none: " + to_error(std::current_exception()).text();
    }
    return out;
}

/// The same for the data.
SKEIN_INLINE std::vector<spmd::setting> data_settings(const input_source& input,
                                                      const std::string& evaluations) {
    return {{"samples",
             input.is_stream() && input.size() == 0 ? "a stream" : fmt::format("{}", input.size())},
            {"data", input.describe()},
            {"evaluation samples", evaluations}};
}

SKEIN_INLINE std::string epochs_text(const run_config& c, const input_source& input) {
    if (c.epochs < 1) return {};
    const char* const lasts[] = {"left out", "a short batch", "carried over"};
    auto text = fmt::format("{} epoch{}", c.epochs, c.epochs == 1 ? "" : "s");
    if (input.size() > 0) {
        const auto batch = static_cast<std::uint64_t>(c.global_batch);
        text += fmt::format(" of {} samples", input.size());
        if (const auto rest = input.size() % batch; rest > 0)
            text += fmt::format(", the last {} of each {}", rest, lasts[static_cast<int>(c.last)]);
    }
    return text;
}

/// The norm of the summed gradients has the same bits on every rank, or the replicas differ.
[[noreturn]] SKEIN_INLINE void come_apart(std::uint64_t step, double least, double most) {
    throw error(errc::mismatch,
                fmt::format("the ranks have come apart at step {}: the gradient norm is {:.17g} "
                            "on one and {:.17g} on another",
                            step, least, most))
        .with_hint("do all hosts have the same kind of processor and the same libraries, and does "
                   "nothing but the trainer write to the parameters?");
}

// ---- the user's code ----------------------------------------------------------------------------

/// Runs the user's code and says where it failed. The same step would fail again, so such an error
/// is a lasting one; but for what the system refused (a file, memory), which is worth another try.
struct user_code {
    int rank;
    std::uint64_t step;

    template <class Call>
    auto run(std::string_view what, Call call) const {
        try {
            return call();
        } catch (const redo_step&) {
            throw;
        } catch (const error& e) {
            // Of the transport, in a hook of the backward pass, or of the user's own choice.
            const bool may_be_ours = what == "the backward pass" && may_be_echo(e.code());
            if (!e.where().empty() || may_be_ours) throw;
            throw error(e).with_where(fmt::format("{} on rank {} at step {}", what, rank, step));
        } catch (const std::exception& e) {
            const auto* system = dynamic_cast<const std::system_error*>(&e);
            const auto* memory = dynamic_cast<const std::bad_alloc*>(&e);
            throw failed(what, type_name(typeid(e)), text_of(e),
                         system != nullptr   ? errc::io
                         : memory != nullptr ? errc::exhausted
                                             : errc::invalid_argument);
        } catch (...) {
            const auto* type = abi::__cxa_current_exception_type();
            throw failed(what, type != nullptr ? type_name(*type) : "something", "no text",
                         errc::invalid_argument);
        }
    }

private:
    [[nodiscard]] error failed(std::string_view what, const std::string& type,
                               std::string_view text, errc code) const {
        auto why =
            error(code, fmt::format("{} threw {} on rank {} at step {}: {}", what, type, rank, step,
                                    text.substr(0, text.find("\nException raised"))));
        if (code == errc::invalid_argument)
            why.with_hint("a restart would come to the same: mend what threw");
        return why;
    }
};

SKEIN_INLINE double require_factor(std::string_view what, double factor) {
    if (factor >= 0 && std::isfinite(factor)) return factor;
    throw error(errc::usage, fmt::format("{} is {}", what, factor))
        .with_hint("a factor is a finite number that is not negative");
}

SKEIN_INLINE void callback_failed(const std::string& what, int rank, std::uint64_t step) {
    user_code{rank, step}.run(what, [] { throw; });
    std::terminate(); // not reached: a handler has something to throw on
}

/// The loss, if it is one number.
SKEIN_INLINE at::Tensor one_number(at::Tensor loss) {
    if (loss.defined() && loss.numel() == 1) return loss;
    std::string shape;
    if (loss.defined())
        for (const auto extent : loss.sizes())
            shape += fmt::format("{}{}", shape.empty() ? "" : ", ", extent);
    throw error(errc::invalid_argument,
                loss.defined()
                    ? fmt::format("the loss must be one number, it has the shape [{}]", shape)
                    : std::string("the loss must be one number, it is no tensor at all"))
        .with_hint("return its mean over the batch, e.g. loss.mean()");
}

/// A loss as the sum over what counts, and how much that is: samples, or what the loss says.
struct loss_sum {
    at::Tensor value;    ///< the tensor to go backward from
    double sum = 0.0;    ///< of this and, added up, of others
    double weight = 0.0; ///< likewise
    bool weighted = false;

    void add(const loss_sum& other) {
        sum += other.sum;
        weight += other.weight;
    }
    [[nodiscard]] double mean() const noexcept { return weight > 0 ? sum / weight : 0.0; }
};

SKEIN_INLINE loss_sum checked_loss(weighted_loss from, std::size_t samples) {
    loss_sum out;
    out.value = one_number(std::move(from.sum));
    out.weighted = from.weight.defined();
    out.weight = static_cast<double>(samples);
    if (out.weighted) {
        if (from.weight.numel() == 1) out.weight = from.weight.item<double>();
        if (from.weight.numel() != 1 || !(out.weight >= 0) || !std::isfinite(out.weight))
            throw error(
                errc::invalid_argument,
                from.weight.numel() == 1
                    ? fmt::format("the weight of a loss is {}", out.weight)
                    : fmt::format("the weight of a loss has {} numbers", from.weight.numel()))
                .with_hint(
                    "return the sum of the losses and the sum of their weights, e.g. of a mask");
    }
    const auto value = out.value.item<double>();
    out.sum = out.weighted ? value : value * out.weight;
    return out;
}

/// Eval mode for all modules while it lives; then each has the mode of its own again.
class eval_modes {
public:
    explicit eval_modes(torch::nn::Module& root) : root_(root), was_(root.is_training()) {
        for (auto& each : root.modules(/*include_self=*/false))
            modules_.emplace_back(each, each->is_training());
        root.eval();
    }
    ~eval_modes() {
        root_.train(was_); // reaches down; children come behind their parents
        for (auto& [each, training] : modules_)
            if (each->is_training() != training) each->train(training);
    }
    eval_modes(const eval_modes&) = delete;
    eval_modes& operator=(const eval_modes&) = delete;

private:
    torch::nn::Module& root_;
    bool was_;
    std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modules_;
};

/// Takes numbers out of a row that travel with it and are no columns, in their order.
[[nodiscard]] SKEIN_INLINE std::vector<double> take_hidden(std::vector<report::metric_value>& row,
                                                           std::string_view prefix) {
    std::vector<double> taken;
    std::erase_if(row, [&](const report::metric_value& m) {
        const bool is_hidden = m.name.starts_with(prefix);
        if (is_hidden) taken.push_back(m.value);
        return is_hidden;
    });
    return taken;
}

// ---- what the ranks find out together -----------------------------------------------------------

SKEIN_INLINE void require_phase(step_phase now, step_phase wanted, const char* call) {
    if (now == wanted) return;
    const char* const names[] = {"idle", "drawn", "computing", "agreed", "applied"};
    throw error(errc::usage,
                fmt::format("{} needs a step that is {}, this one is {}", call,
                            names[static_cast<int>(wanted)], names[static_cast<int>(now)]));
}

/// A number of a checkpoint; JSON has none for what is not finite (a loss that overflowed float16).
[[nodiscard]] SKEIN_INLINE double saved_number(const json& extra, const char* name) {
    const auto found = extra.find(name);
    return found != extra.end() && found->is_number() ? found->get<double>()
                                                      : std::numeric_limits<double>::quiet_NaN();
}

/// The steps that follow a checkpoint are made as those before it.
SKEIN_INLINE void require_same_shards(int saved, const run_config& config,
                                      const std::string& where) {
    if (saved == config.scaling.logical_shards) return;
    throw error(errc::mismatch, fmt::format("the run has {} logical shards, now {} are asked for",
                                            saved, config.scaling.logical_shards))
        .with_where(where)
        .with_hint("go on with scaling.logical_shards as it was (0: none), or give the run another "
                   "name");
}

SKEIN_INLINE void restore_scale(loss_scale& scale, const json& extra) {
    if (extra.contains("loss_scale"))
        scale.restore(extra.at("loss_scale").value("value", scale.value()),
                      extra.at("loss_scale").value("good_steps", std::uint64_t{0}));
}

/// In another generation of the world: all have finished as many steps.
///   state  what of it is still to be done
SKEIN_INLINE void agree_on_step(const context& ctx, std::uint64_t finished, const char* state) {
    const auto all = gather_bytes(ctx, as_bytes(fmt::format("step {}{}", finished, state)));
    for (std::size_t r = 0; r < all.size(); ++r) {
        if (!as_text(all[r]).starts_with("step "))
            throw error(errc::not_supported,
                        fmt::format("not supported: rank {} begins anew in a world where others go "
                                    "on",
                                    r))
                .with_hint("resume all ranks from the last checkpoint");
        if (all[r] != all[0])
            throw error(errc::mismatch, fmt::format("rank 0 comes with {}, rank {} with {}",
                                                    as_text(all[0]), r, as_text(all[r])))
                .with_hint("resume from the last checkpoint");
    }
}

/// Collective: finds the first rank whose loss is broken, then throws on all of them.
///   mine  the loss of this rank
[[noreturn]] SKEIN_INLINE void not_finite(const context& ctx, double mine, const step_info& now) {
    const double none = static_cast<double>(ctx.world_size());
    double culprit = std::isfinite(mine) ? none : static_cast<double>(ctx.rank());
    all_reduce(ctx, std::span(&culprit, 1), dist::reduce_op::min);
    const auto what = culprit < none
                          ? fmt::format("the loss is not finite on rank {}", int(culprit))
                          : fmt::format("the gradient norm is {} (loss {})", now.grad_norm, mine);
    throw error(errc::not_finite, fmt::format("{} at step {}", what, now.step))
        .with_hint(fmt::format("lower the learning rate (now {:g}), warm up longer or clip harder; "
                               "restarting would give the same",
                               now.lr));
}

[[noreturn]] SKEIN_INLINE void always_overflows(const loss_scale& scale, std::uint64_t step) {
    throw error(errc::not_finite,
                fmt::format("the gradients overflowed float16 in {} steps in a row, at last with "
                            "a loss scale of {:g} at step {}",
                            scale.overflows(), scale.value(), step))
        .with_hint("lower the learning rate, or train with precision<bf16>");
}

/// The mean weight of a sample, of losses that are weighted.
///   all  the weight of all ranks
[[nodiscard]] SKEIN_INLINE double weight_per_sample(double all, double global_batch,
                                                    std::uint64_t step) {
    if (all > 0) return all / global_batch;
    throw error(errc::invalid_argument,
                fmt::format("the weights of all losses of step {} add up to {}", step, all))
        .with_hint("is everything masked? leave such samples out of the data");
}

SKEIN_INLINE void restore_callbacks(session_parts& parts, const json& extra,
                                    const std::string& where) {
    if (!extra.contains("callbacks")) return;
    for (const auto& [name, text] : extra.at("callbacks").items()) {
        const auto hex = text.get<std::string>();
        byte_buffer bytes(hex.size() / 2);
        if (!from_hex(hex, bytes))
            throw error(errc::malformed, "the state of a callback is no hexadecimal text")
                .with_where(where);
        parts.restore({name, std::string(as_text(bytes))});
    }
}

/// The averages in place of the weights on every rank, or back. Ranks may share the weights: all
/// are done with the old ones before any is changed.
SKEIN_INLINE void swap_average(const context& ctx, weight_average& average, session_parts& parts) {
    double here = 0.0;
    all_reduce(ctx, std::span(&here, 1), dist::reduce_op::sum);
    average.swap();
    parts.publish();
}

[[nodiscard]] SKEIN_INLINE checkpoint_options checkpoint_options_of(const run_config& config) {
    checkpoint_options options;
    options.keep_last = static_cast<std::size_t>(std::max(1, config.checkpoint.keep_last));
    options.keep_best = static_cast<std::size_t>(std::max(0, config.checkpoint.keep_best.k));
    options.metric = config.checkpoint.keep_best.metric;
    options.keep_every =
        static_cast<std::uint64_t>(std::max<std::int64_t>(0, config.checkpoint.keep_every));
    options.keep_bytes = config.checkpoint.keep_bytes;
    options.lower_is_better = config.checkpoint.keep_best.order == metric_order::lowest;
    return options;
}

/// When the rate is another one than the schedule before a resume had for this step; else empty.
[[nodiscard]] SKEIN_INLINE std::string rate_notice(const json& extra, std::uint64_t step,
                                                   double now) {
    const double before = extra.value("next_lr", now);
    if (!(std::abs(now - before) > 1e-9 * std::abs(before))) return {};
    return fmt::format(
        "the learning rate of step {} is {:g}, by the schedule before it was {:g} (most "
        "schedules depend on the number of steps)",
        step + 1, now, before);
}

/// What the run keeps in memory and computes in, for a person.
SKEIN_INLINE void tell_state(reporter& to, const context& ctx, const run_config& config,
                             session_parts& parts, const flat_optimizer& optimizer) {
    std::vector<at::Tensor> states;
    for (const auto& [name, state] : optimizer.states()) states.push_back(state);
    const auto policy = parts.precision();
    if (const auto where = parts.store().params_P().device(); !where.is_cpu()) {
        const auto text = describe(policy);
        to.note(fmt::format("computes on {}{}", where.str(),
                            text.empty() ? "" : " in " + text + ", updates and saves in float32"));
        return; // the rest is about the host's memory and processor
    }
    const auto shape = shape_of(ctx, config, states_of(optimizer.options()), policy);
    if (const auto text = memory_notice(parts.strategy_name(), parts.store(), states, shape);
        !text.empty())
        to.note(text);
    if (const auto text = describe(policy); !text.empty())
        to.note(fmt::format("computes in {}, updates and saves in float32", text));
    if (const auto text = precision_notice(policy); !text.empty()) to.notice(text);
}

} // namespace skein::train::detail
