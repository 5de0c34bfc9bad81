// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a collective is for: which unit, which phase, which step.
//
// All ranks have to give the same tag to the same collective. Two ranks that reduce different units
// of one size would otherwise add unlike things without a word; with tags both get errc::mismatch.
//
//     constexpr collective_tag tag{.unit = 3, .phase = tag_phase::reduce, .step = 12};
//     // in errors: "reduce of unit 3 at step 12"
//     comm.all_reduce(grads, reduce_op::mean, tag);

#include <skein/core/check.hpp>

#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/core.h>

namespace skein::dist {

/// What part of a training step, or of what is around it, a collective is.
enum class tag_phase : std::uint8_t { none, gather, reduce, publish, row, buffers, save };

[[nodiscard]] constexpr std::string_view to_string(tag_phase phase) noexcept {
    switch (phase) {
    case tag_phase::none: return "none";
    case tag_phase::gather: return "gather";
    case tag_phase::reduce: return "reduce";
    case tag_phase::publish: return "publish";
    case tag_phase::row: return "row";
    case tag_phase::buffers: return "buffers";
    case tag_phase::save: return "save";
    }
    return "?";
}

/// Ranks compare the lower 32 bits of the step.
struct collective_tag {
    std::uint32_t unit = 0; ///< below 2^24
    tag_phase phase = tag_phase::none;
    std::uint64_t step = 0;

    friend constexpr bool operator==(collective_tag, collective_tag) = default;

    /// As ranks send it: 8 bits of the phase, 24 of the unit, 32 of the step.
    [[nodiscard]] std::uint64_t pack() const {
        SKEIN_CHECK(unit < (1u << 24), "unit {} of a collective's tag", unit);
        return std::uint64_t{static_cast<std::uint8_t>(phase)} << 56 | std::uint64_t{unit} << 32 |
               (step & 0xffffffffu);
    }
    [[nodiscard]] static constexpr collective_tag unpack(std::uint64_t packed) noexcept {
        return {.unit = static_cast<std::uint32_t>(packed >> 32) & 0xffffffu,
                .phase = static_cast<tag_phase>(packed >> 56),
                .step = packed & 0xffffffffu};
    }
};

/// "reduce of unit 3 at step 12"; "no tag" for the default one.
[[nodiscard]] inline std::string to_string(collective_tag tag) {
    if (tag == collective_tag{}) return "no tag";
    return fmt::format("{} of unit {} at step {}", to_string(tag.phase), tag.unit, tag.step);
}

} // namespace skein::dist
