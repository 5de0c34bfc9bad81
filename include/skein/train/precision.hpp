// SPDX-License-Identifier: Apache-2.0
#pragma once
// Mixed precision: a model that computes in 16 bits, trained in float32.
//
//     FSDP<auto_wrap<Block>, precision<bf16>>              gradients are summed in float32
//     FSDP<auto_wrap<Block>, precision<bf16, bf16>>        and in bfloat16: half the traffic
//     DDP<bucket<>, precision<bf16>, keep_f32<torch::nn::BatchNorm2d>>
//
// What the optimizer updates is a float32 master copy of the rows that a rank owns; the parameters
// that the model sees are a 16-bit view of all rows, filled by one cast after every step.
// Checkpoints hold the masters, so a run goes on in any precision. After fit() the module has its
// float32 values.
//
// A block that is skein::unit casts the floating-point tensors it is called with; what reaches
// other layers the model casts itself (x.to(weight.dtype())). Take the loss of float32:
// logits.to(torch::kFloat).
//
//   source: Micikevicius et al. 2018 (arXiv 1710.03740); bfloat16: Kalamkar et al. 2019
//   (arXiv 1905.12322); the split into parameters and reductions as in
//   torch.distributed.fsdp.MixedPrecisionPolicy

#include <skein/torch/tensor.hpp>
#include <skein/train/module_type.hpp>

#include <functional>
#include <string>
#include <type_traits>

namespace skein {

// Element types of parameters and sums.
/// IEEE single, the type of masters and optimizer states.
struct f32 {
    static constexpr at::ScalarType type = at::kFloat;
};
/// bfloat16: the exponents of float32 with eight bits of precision. It needs no loss scale.
struct bf16 {
    static constexpr at::ScalarType type = at::kBFloat16;
};
/// IEEE half: five bits of exponent, so small gradients vanish unless the loss is scaled up. The
/// trainer does that by itself (train::loss_scale).
struct f16 {
    static constexpr at::ScalarType type = at::kHalf;
};

namespace train {

/// What a strategy computes and sums in.
struct precision_policy {
    at::ScalarType compute = at::kFloat; ///< of parameters and activations
    at::ScalarType reduce = at::kFloat;  ///< of gradients, while ranks and micro-batches are added
    /// Modules whose parameters stay float32; none: no module.
    std::function<bool(const torch::nn::Module&)> keeps_f32 = {};

    [[nodiscard]] bool is_mixed() const noexcept { return compute != at::kFloat; }
};

/// "bfloat16, sums in float32"; empty when everything is float32.
[[nodiscard]] std::string describe(const precision_policy& policy);

/// What a person should know of this type on this processor; mostly nothing.
[[nodiscard]] std::string precision_notice(const precision_policy& policy);

/// One of precision<> and keep_f32<>.
template <class S>
concept precision_setting = requires(precision_policy& policy) { S::set_precision(policy); };

/// The policy of some settings, of which others are passed over.
template <class... Settings>
[[nodiscard]] precision_policy precision_of() {
    precision_policy policy;
    const auto set = [&]<class S>(std::type_identity<S>) {
        if constexpr (precision_setting<S>) S::set_precision(policy);
    };
    (set(std::type_identity<Settings>{}), ...);
    return policy;
}

} // namespace train

/// Parameters and activations in Compute, gradients added up in Reduce: f32 or the same.
template <class Compute, class Reduce = f32>
struct precision {
    static_assert(std::is_same_v<Compute, f32> || std::is_same_v<Compute, bf16> ||
                      std::is_same_v<Compute, f16>,
                  "precision<> takes f32, bf16 or f16");
    static_assert(std::is_same_v<Reduce, f32> || std::is_same_v<Reduce, Compute>,
                  "gradients are summed in f32 or in the type that they are computed in");
    static void set_precision(train::precision_policy& policy) {
        policy.compute = Compute::type;
        policy.reduce = Reduce::type;
    }
};

/// Parameters of modules of these types (holders or classes) stay float32: norms that keep
/// statistics, a head that has to be exact. They are never dropped between uses.
template <class... Modules>
struct keep_f32 {
    static void set_precision(train::precision_policy& policy) {
        policy.keeps_f32 = [](const torch::nn::Module& m) {
            return train::detail::is_any_of<Modules...>(m);
        };
    }
};

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/precision.ipp>
#endif
