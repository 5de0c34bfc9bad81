// SPDX-License-Identifier: Apache-2.0
#pragma once
// The optimizer of a run over a flat store: a few fused kernel calls per step instead of several
// per parameter.
//
// Neighbouring parameters that take the same update form one run; the optimizer's kernel walks the
// runs once, reading and writing every element once, with clipping by norm folded in as a gradient
// scale. Vectors (biases, norms) are not decayed unless asked for.
//
//     flat_optimizer opt(AdamW{.weight_decay = 0.1}, strategy.store());
//     opt.step(lr, clip_scale(norm, 1.0));

#include <skein/torch/tensor.hpp>
#include <skein/train/flat.hpp>
#include <skein/train/optimizers.hpp>
#include <skein/train/parameter_groups.hpp>
#include <skein/train/weight_average.hpp>

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace skein::train {

/// What may be asked for beside the optimizer.
struct optimizer_extras {
    parameter_groups groups{};
    std::optional<average_options> average{}; ///< of the weights, in use beside them
    /// Folder for the optimizer's states in mapped files, which the kernel may write out when
    /// memory is short; empty: ordinary memory. See make_file_buffer().
    std::string states_in{};
};

/// An optimizer of any kind, and the extras: AdamW{...}, or {AdamW{...}, {.groups = ...}}.
struct optimizer_options {
    template <class O>
        requires(!std::same_as<std::remove_cvref_t<O>, optimizer_options>) &&
                    optimizer<std::remove_cvref_t<O>>
    optimizer_options(O&& optimizer, optimizer_extras extras = {})
        : how(std::forward<O>(optimizer)), more(std::move(extras)) {}

    any_optimizer how;
    optimizer_extras more{};
};

/// The settings that all ranks must have alike, but for what the groups match: see
/// flat_optimizer::effect_hash().
[[nodiscard]] description describe(const optimizer_options& options);

/// The global norm of the gradients, and what it means for the step.
struct gradient_norm {
    double norm = 0.0;
    double scale = 1.0; ///< gradients are divided by it
};

/// As torch's clip_grad_norm_: gradients longer than `limit` are brought to that length; 0 = never.
[[nodiscard]] inline gradient_norm clip_to(double norm, double limit) noexcept {
    if (limit <= 0 || !(norm + 1e-6 > limit)) return {norm, 1.0};
    return {norm, (norm + 1e-6) / limit};
}

/// The optimizer of one rank over what it owns of a store, which must outlive it.
class flat_optimizer {
public:
    /// Throws errc::usage for settings or groups that make no sense, and what make_file_buffer()
    /// throws.
    flat_optimizer(optimizer_options options, flat_store& store);

    /// One update from the owned gradients, which are divided by grad_scale first. What is left in
    /// them has no meaning.
    ///   present     by segment of the store: 0 where no rank had a gradient. Such a parameter is
    ///               left as it is, decay and state too, as torch.optim does with a grad of None;
    ///               empty: all had
    ///   clip_value  gradients are brought into [-clip_value, clip_value] once they are divided, as
    ///               by torch's clip_grad_value_; 0 = never
    void step(double lr, double grad_scale = 1.0, std::span<const double> present = {},
              double clip_value = 0.0);

    /// After flat_store::move_gradients().
    void rebind();

    [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }
    void set_steps(std::uint64_t finished) noexcept { steps_ = finished; }
    /// By segment: in how many of the steps it was left out. Empty: none ever was.
    [[nodiscard]] const std::vector<std::uint64_t>& left_out() const noexcept { return left_out_; }
    void set_left_out(std::vector<std::uint64_t> steps);
    [[nodiscard]] std::string name() const { return options_.how.name(); }
    [[nodiscard]] const optimizer_options& options() const noexcept { return options_; }
    /// State buffers by name, store.owned() elements each, in the owned layout: for checkpoints.
    /// The average of the weights is one of them, "ema".
    [[nodiscard]] const std::vector<std::pair<std::string, at::Tensor>>& states() const noexcept {
        return states_;
    }
    /// Of rate, decay and freezing of every parameter: equal on all ranks, or their groups differ.
    [[nodiscard]] std::uint64_t effect_hash() const;

    /// The average of the weights, when asked for.
    [[nodiscard]] weight_average* average() noexcept { return average_ ? &*average_ : nullptr; }

private:
    /// Elements amid a group whose decay is another.
    struct patch {
        std::int64_t begin, size; // in the group's only run
        std::int64_t at;          // in the copy
    };
    /// Patches of one decay, which are updated in a copy, side by side.
    struct aside {
        double weight_decay;
        std::vector<patch> patches{};
        std::int64_t size = 0; // of all
        update_runs copies{};  // one run
    };
    static constexpr std::int64_t stretch = 1 << 18; // elements of a group with others

    /// Neighbours that take the same update, as one long tensor each; but for those set aside.
    struct group {
        update_effect effect;
        std::uint64_t left_out = 0;
        update_runs runs{};
        std::vector<aside> others{};
    };

    void require_works_on(at::Device where) const;
    [[nodiscard]] std::vector<update_effect> make_effects() const;
    [[nodiscard]] std::vector<group> make_groups(std::span<const double> present);
    [[nodiscard]] bool joins_decays() const;
    void join(std::vector<group>& groups, std::span<const owned_piece> run);
    void set_aside(group& from);
    void push(group& to, const owned_piece& run) const;
    static void copy(const update_runs& run, const aside& part, bool back);
    void update(const group& g, double lr, double grad_scale, double clip_value) const;

    optimizer_options options_;
    flat_store* store_;
    std::vector<update_effect> effects_; // by segment
    bool joins_ = false;                 // runs go across parameters of different decay
    std::size_t own_states_ = 0;         // of the optimizer; further ones are not its business
    std::vector<std::pair<std::string, at::Tensor>> states_;
    std::optional<weight_average> average_;
    std::vector<group> groups_; // while no parameter is or was left out
    at::Tensor copies_;         // for what groups set aside, one group at a time
    std::vector<std::uint64_t> left_out_;
    std::uint64_t steps_ = 0;
};

} // namespace skein::train

namespace skein {
using train::optimizer_extras;
}

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/optimizer.ipp>
#endif
