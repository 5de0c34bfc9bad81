// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the ranks of a new world tell each other first, and what follows from it for all alike.

#include <skein/spmd/settings.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace skein::train::detail {

/// What is still to be done of the step that was applied last.
enum class step_end : std::uint8_t {
    decide,  ///< metrics that are due, callbacks; then the rest
    report,  ///< evaluation, files, checkpoint
    nothing, ///< the next step may come
};

/// One rank, as it comes into a new world.
struct world_word {
    bool has_state = false; ///< it was in a world that worked
    bool is_torn = false;   ///< it had begun to take a copy that was cut off
    std::uint64_t applied = 0;
    step_end end = step_end::nothing; ///< of that step
    std::uint64_t told = 0; ///< of the events of that step, to the callbacks: they may have decided
    std::string model;      ///< a hash of its layout, and the optimizer
    std::vector<spmd::setting> settings;
};

/// What all ranks make of the words.
struct world_plan {
    /// By rank: the others take a copy from these. Of a world where nobody has state, the first
    /// rank: the run begins.
    std::vector<bool> gives;
    bool begins = false;
    int first = 0;                        ///< of those that give
    std::optional<std::size_t> refused{}; ///< a rank that cannot be one of this run
    std::string why{};                    ///< it is refused
};

/// Nobody has a whole state any more: each of these processes ends, and others go on from the last
/// checkpoint. No error that another world mends.
struct state_lost {};

/// The furthest applied step wins; of the ranks that have applied it, those that are furthest with
/// its end. A rank without state that differs from those with it is refused.
///   errors  mismatch: ranks with state differ; state_lost
[[nodiscard]] world_plan plan_world(const std::vector<world_word>& all);

} // namespace skein::train::detail

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/world_word.ipp>
#endif
