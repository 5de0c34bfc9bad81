// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a model's parameters are grouped into units: by the type of its blocks, by size, or into
// buckets.
//
//     FSDP<auto_wrap<Block>>          each Block is a unit, what is left is the root
//     FSDP<auto_wrap_size<1 << 20>>   runs of parameters of at least a million elements
//     DDP<bucket<1, 25>>              runs of 25 MiB, the last to be registered in a first one of 1
//                                     MiB
//
//   source: auto-wrap policies as in PyTorch's FSDP (size_based_auto_wrap_policy,
//   ModuleWrapPolicy); bucket sizes as in its reducer

#include <skein/torch/tensor.hpp>
#include <skein/train/flat.hpp>
#include <skein/train/module_type.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <vector>

namespace skein {

namespace train {

/// The plan of a store: see store_options::plan.
using plan_function =
    std::function<unit_plan(torch::nn::Module&, const std::vector<plan_parameter>&)>;

namespace detail {

/// One unit per module that `is_block` says yes to, the innermost where they are nested; what
/// belongs to none or to several (tied) is the root.
///   wanted  for the error: what was looked for
///   errors  invalid_argument when there is none; it lists the types that there are
[[nodiscard]] unit_plan plan_blocks(torch::nn::Module& root,
                                    const std::vector<plan_parameter>& parameters,
                                    const std::function<bool(const torch::nn::Module&)>& is_block,
                                    const std::vector<const std::type_info*>& wanted);

/// Runs of neighbours in order of registration, each as soon as it has so many elements.
[[nodiscard]] unit_plan plan_runs(const std::vector<plan_parameter>& parameters,
                                  std::int64_t elements);

/// Runs counted from the last parameter, whose gradient is ready first.
[[nodiscard]] unit_plan plan_buckets(const std::vector<plan_parameter>& parameters,
                                     std::size_t first_bytes, std::size_t bytes);

} // namespace detail
} // namespace train

/// How gradients are cut for sending. The first bucket is small so that sending starts early.
template <std::size_t FirstMiB = 1, std::size_t MiB = 25>
struct bucket {
    static constexpr std::size_t first_bytes = FirstMiB << 20;
    static constexpr std::size_t bytes = MiB << 20;
};

/// Every module of one of these types is a unit: holders (TORCH_MODULE) or module classes.
template <class... Blocks>
struct auto_wrap {
    static_assert(sizeof...(Blocks) > 0, "auto_wrap<Block...> needs the types of the blocks");

    [[nodiscard]] static bool is_block(const torch::nn::Module& m) {
        return train::detail::is_any_of<Blocks...>(m);
    }

    [[nodiscard]] static train::unit_plan plan(
        torch::nn::Module& root, const std::vector<train::plan_parameter>& parameters) {
        return train::detail::plan_blocks(
            root, parameters, is_block,
            {&typeid(typename train::detail::module_type<Blocks>::type)...});
    }
};

/// Runs of parameters with at least so many elements each.
template <std::int64_t Elements>
struct auto_wrap_size {
    static_assert(Elements > 0);

    [[nodiscard]] static train::unit_plan plan(
        torch::nn::Module& /*root*/, const std::vector<train::plan_parameter>& parameters) {
        return train::detail::plan_runs(parameters, Elements);
    }
};

/// Groups parameters into units. Laws: a pure function of the model; every parameter has a unit.
template <class W>
concept wrap_policy =
    requires(torch::nn::Module& root, const std::vector<train::plan_parameter>& parameters) {
        { W::plan(root, parameters) } -> std::same_as<train::unit_plan>;
    } || requires {
        { W::first_bytes } -> std::convertible_to<std::size_t>;
        { W::bytes } -> std::convertible_to<std::size_t>;
    };

namespace train::detail {
/// A policy as a function.
template <wrap_policy W>
[[nodiscard]] plan_function plan_of() {
    if constexpr (requires { W::bytes; })
        return [](torch::nn::Module&, const std::vector<plan_parameter>& parameters) {
            return plan_buckets(parameters, W::first_bytes, W::bytes);
        };
    else
        return [](torch::nn::Module& root, const std::vector<plan_parameter>& parameters) {
            return W::plan(root, parameters);
        };
}
} // namespace train::detail

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/wrap.ipp>
#endif
