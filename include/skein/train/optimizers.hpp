// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an optimizer is, and those that come with skein: AdamW, Adam, SGD, Adagrad and Lion.
//
// An optimizer is a struct of settings that names its states and updates runs of owned memory. One
// of a user's own is written as those below are, works under every strategy and is saved in
// checkpoints:
//
//     struct sign_descent {
//         double weight_decay = 0.0;
//         static constexpr std::string_view name = "sign_descent";
//         std::vector<optimizer_state> states() const { return {}; }
//         void describe(description& to) const { to.add("weight decay", weight_decay); }
//         void update(const update_runs& runs, const update_values& v) const {
//             runs.for_each([&](const run_part& r) {
//                 for (std::size_t i = 0; i < r.params.size(); ++i)
//                     r.params[i] -= float(v.lr) * float((r.grads[i] > 0) - (r.grads[i] < 0));
//             });
//         }
//     };

#include <skein/torch/tensor.hpp>
#include <skein/train/description.hpp>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::train {

// P elements of a run

/// A state of an optimizer: one float32 number per parameter element.
struct optimizer_state {
    std::string name;     ///< in checkpoints: optim.<name>.<parameter>
    double initial = 0.0; ///< of every element before the first step
};

/// Neighbouring elements of one run, and their states in the order of states().
struct run_part {
    std::span<float> params, grads;
    std::vector<std::span<float>> states;
};

/// Runs of memory that take the same update: neighbouring parameters as one long tensor each. All
/// are float32, contiguous, on one device (the CPU, unless the optimizer says that it works on
/// others), begin at a multiple of 64 bytes and are a multiple of 16
/// elements long; padding between parameters has the value and the gradient zero and must keep the
/// value.
struct update_runs {
    std::vector<at::Tensor> params, grads;       ///< by run, P each
    std::vector<std::vector<at::Tensor>> states; ///< by state, then by run

    /// Calls work with consecutive parts of all runs, on all compute threads.
    ///   errors  not_supported for runs that are not in the host's memory
    void for_each(const std::function<void(const run_part&)>& work) const;
    /// One more run; of as many states as those before.
    ///   grads  undefined where there are none
    void push(at::Tensor params_P, at::Tensor grads_P, std::vector<at::Tensor> states_P);

private:
    /// Where it lies, beside the tensors: their own bookkeeping is spread over memory.
    struct place {
        float *params, *grads;
        std::int64_t size;
    };
    std::vector<place> places_;
    std::vector<float*> state_places_; // of the first run, then of the second
};

/// The numbers of one update.
struct update_values {
    std::uint64_t step = 1; ///< of these parameters, from 1; steps that left them out do not count
    double lr = 0.0;
    double weight_decay = 0.0; ///< 0 for what is not decayed
    double grad_scale = 1.0;   ///< gradients are divided by it first
};

/// Where an optimizer keeps the mean of squared gradients that it divides by.
struct squares_mean {
    std::string state;  ///< its name in states(), of zeros before the first step
    double decay = 0.0; ///< per step; the divisor is sqrt(mean / (1 - decay^steps)) + eps
    double eps = 0.0;
};

/// Laws:
///  1. What update() does to an element depends on that element of the parameters, gradients and
///     states and on the values alone: however a strategy cuts the parameters, the bits are the
///     same.
///  2. describe() names every setting that changes the update; the ranks compare them.
///  3. What it leaves in the gradients does not matter.
/// Optional members: `weight_decay` and `decay_vectors` (what update_values::weight_decay is made
/// of; without the second, parameters of fewer than 2 dimensions are not decayed), check(), which
/// throws errc::usage for settings that make no sense, `squares_mean mean_of_squares() const`, and
/// `static constexpr bool works_on_devices`: update() uses the tensors alone, wherever they are.
template <class O>
concept optimizer =
    std::copy_constructible<O> &&
    requires(const O& o, description& to, const update_runs& runs, const update_values& values) {
        { O::name } -> std::convertible_to<std::string_view>;
        { o.states() } -> std::convertible_to<std::vector<optimizer_state>>;
        o.describe(to);
        o.update(runs, values);
    };

} // namespace skein::train

namespace skein {

/// Adam with decoupled weight decay. The learning rate comes from the schedule.
///   source: Loshchilov and Hutter 2019 (arXiv 1711.05101); ATen native/FusedAdam.cpp
struct AdamW {
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0.01;
    bool decay_vectors = false; ///< also decay parameters of fewer than 2 dimensions

    static constexpr std::string_view name = "adamw";
    static constexpr bool works_on_devices = true; ///< never run on one: docs/gpu.md
    [[nodiscard]] std::vector<train::optimizer_state> states() const;
    [[nodiscard]] train::squares_mean mean_of_squares() const { return {"exp_avg_sq", beta2, eps}; }
    void check() const;
    void describe(train::description& to) const;
    void update(const train::update_runs& runs, const train::update_values& values) const;
};

/// Adam, its weight decay added to the gradient.
///   source: Kingma and Ba 2015 (arXiv 1412.6980); torch.optim.Adam
struct Adam {
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0.0;
    bool decay_vectors = false;

    static constexpr std::string_view name = "adam";
    static constexpr bool works_on_devices = true; ///< never run on one: docs/gpu.md
    [[nodiscard]] std::vector<train::optimizer_state> states() const;
    [[nodiscard]] train::squares_mean mean_of_squares() const { return {"exp_avg_sq", beta2, eps}; }
    void check() const;
    void describe(train::description& to) const;
    void update(const train::update_runs& runs, const train::update_values& values) const;
};

/// Stochastic gradient descent, its weight decay added to the gradient.
///   source: torch.optim.SGD; ATen native/FusedSGD.cpp
struct SGD {
    double momentum = 0.0;
    bool nesterov = false;
    double weight_decay = 0.0;
    bool decay_vectors = false;

    static constexpr std::string_view name = "sgd";
    static constexpr bool works_on_devices = true; ///< never run on one: docs/gpu.md
    [[nodiscard]] std::vector<train::optimizer_state> states() const;
    void check() const;
    void describe(train::description& to) const;
    void update(const train::update_runs& runs, const train::update_values& values) const;
};

/// Rates that fall with the sum of the squared gradients; weight decay added to the gradient.
///   rate of step t = lr / (1 + (t - 1) * lr_decay)
///   source: Duchi et al. 2011 (JMLR 12); torch.optim.Adagrad
struct Adagrad {
    double lr_decay = 0.0;
    double eps = 1e-10;
    double initial_sum = 0.0; ///< of the squares
    double weight_decay = 0.0;
    bool decay_vectors = false;

    static constexpr std::string_view name = "adagrad";
    [[nodiscard]] std::vector<train::optimizer_state> states() const;
    void check() const;
    void describe(train::description& to) const;
    void update(const train::update_runs& runs, const train::update_values& values) const;
};

/// The sign of a mean of momentum and gradient, with decoupled weight decay; half of Adam's state.
/// Rates are 3 to 10 times smaller than AdamW's, weight decays as much larger.
///   p -= lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * p)
///   m = beta2 * m + (1 - beta2) * g
///   source: Chen et al. 2023 (arXiv 2302.06675) algorithm 2
struct Lion {
    double beta1 = 0.9;
    double beta2 = 0.99;
    double weight_decay = 0.0;
    bool decay_vectors = false;

    static constexpr std::string_view name = "lion";
    [[nodiscard]] std::vector<train::optimizer_state> states() const;
    void check() const;
    void describe(train::description& to) const;
    void update(const train::update_runs& runs, const train::update_values& values) const;
};

} // namespace skein

namespace skein::train {

/// Any optimizer, as a value.
class any_optimizer {
public:
    template <class O>
        requires(!std::same_as<std::remove_cvref_t<O>, any_optimizer>) &&
                optimizer<std::remove_cvref_t<O>>
    explicit any_optimizer(O&& how)
        : held_(std::make_shared<const model<std::remove_cvref_t<O>>>(std::forward<O>(how))) {}

    [[nodiscard]] std::string name() const { return held_->name(); }
    [[nodiscard]] std::vector<optimizer_state> states() const { return held_->states(); }
    /// Nothing where it has none.
    [[nodiscard]] std::optional<squares_mean> mean_of_squares() const {
        return held_->mean_of_squares();
    }
    /// The name is that of the optimizer.
    [[nodiscard]] description describe() const;
    void check() const { held_->check(); }
    /// Of a parameter with so many dimensions.
    [[nodiscard]] double weight_decay(std::size_t dims) const { return held_->weight_decay(dims); }
    void update(const update_runs& runs, const update_values& values) const {
        held_->update(runs, values);
    }
    /// What it updates may be on a device.
    [[nodiscard]] bool works_on_devices() const { return held_->works_on_devices(); }

private:
    struct base {
        virtual ~base() = default;
        [[nodiscard]] virtual std::string name() const = 0;
        [[nodiscard]] virtual std::vector<optimizer_state> states() const = 0;
        [[nodiscard]] virtual std::optional<squares_mean> mean_of_squares() const = 0;
        virtual void describe(description& to) const = 0;
        virtual void check() const = 0;
        [[nodiscard]] virtual double weight_decay(std::size_t dims) const = 0;
        virtual void update(const update_runs& runs, const update_values& values) const = 0;
        [[nodiscard]] virtual bool works_on_devices() const = 0;
    };
    template <class O>
    struct model final : base {
        explicit model(O from) : how(std::move(from)) {}
        [[nodiscard]] std::string name() const override {
            return std::string(std::string_view(O::name));
        }
        [[nodiscard]] std::vector<optimizer_state> states() const override { return how.states(); }
        [[nodiscard]] std::optional<squares_mean> mean_of_squares() const override {
            if constexpr (requires { how.mean_of_squares(); }) return how.mean_of_squares();
            return std::nullopt;
        }
        void describe(description& to) const override { how.describe(to); }
        void check() const override {
            if constexpr (requires { how.check(); }) how.check();
        }
        [[nodiscard]] double weight_decay(std::size_t dims) const override {
            bool decays = dims >= 2;
            if constexpr (requires { how.decay_vectors; }) decays = decays || how.decay_vectors;
            if constexpr (requires { how.weight_decay; })
                return decays ? how.weight_decay : 0.0;
            else
                return 0.0;
        }
        void update(const update_runs& runs, const update_values& values) const override {
            how.update(runs, values);
        }
        [[nodiscard]] bool works_on_devices() const override {
            if constexpr (requires { O::works_on_devices; }) return O::works_on_devices;
            return false;
        }
        O how;
    };

    std::shared_ptr<const base> held_;
};

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/optimizers.ipp>
#endif
