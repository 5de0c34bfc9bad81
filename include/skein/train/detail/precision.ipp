// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/precision.hpp>.

#include <skein/torch/torch.hpp>

#include <fmt/core.h>

#if defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace skein::train {

namespace detail {

[[nodiscard]] SKEIN_INLINE const char* name_of(at::ScalarType type) {
    return type == at::kBFloat16 ? "bfloat16" : type == at::kHalf ? "float16" : "float32";
}

/// Whether the processor multiplies bfloat16 numbers itself.
[[nodiscard]] SKEIN_INLINE bool has_bf16_instructions() {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512bf16") != 0;
#elif defined(__linux__) && defined(__aarch64__)
    constexpr unsigned long hwcap2_bf16 = 1ul << 14;
    return (::getauxval(AT_HWCAP2) & hwcap2_bf16) != 0;
#else
    return false;
#endif
}

} // namespace detail

SKEIN_INLINE std::string describe(const precision_policy& policy) {
    if (!policy.is_mixed()) return {};
    return fmt::format("{}, sums in {}{}", detail::name_of(policy.compute),
                       detail::name_of(policy.reduce),
                       policy.keeps_f32 ? ", some modules in float32" : "");
}

SKEIN_INLINE std::string precision_notice(const precision_policy& policy) {
    if (policy.compute == at::kHalf)
        return "float16 on a processor is several times slower than float32; bfloat16 needs no "
               "loss "
               "scaling either";
    if (policy.compute == at::kBFloat16 && !detail::has_bf16_instructions())
        return "this processor has no bfloat16 instructions: the run needs less memory than in "
               "float32, and more time";
    return {};
}

} // namespace skein::train
