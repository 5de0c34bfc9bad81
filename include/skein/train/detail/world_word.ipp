// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/detail/world_word.hpp>.

#include <skein/core/error.hpp>

#include <algorithm>
#include <tuple>

#include <fmt/core.h>

namespace skein::train::detail {

/// What keeps a rank out of the run of another one; empty if nothing does.
[[nodiscard]] SKEIN_INLINE std::string objection(std::size_t rank, const world_word& to,
                                                 std::size_t of, const world_word& run) {
    if (const auto differs = spmd::difference(static_cast<int>(rank), to.settings,
                                              static_cast<int>(of), run.settings))
        return differs->text();
    if (to.model != run.model)
        return fmt::format("rank {} has another model or optimizer than rank {}", rank, of);
    return {};
}

SKEIN_INLINE world_plan plan_world(const std::vector<world_word>& all) {
    const auto place = [](const world_word& w) {
        return std::tuple(w.has_state, w.has_state ? w.applied : 0,
                          w.has_state ? w.end : step_end::decide, w.has_state ? w.told : 0,
                          !w.is_torn);
    };
    const auto best = std::ranges::max_element(all, {}, place); // the first of equals
    const auto of = static_cast<std::size_t>(best - all.begin());
    if (best->is_torn && !best->has_state) throw state_lost{};
    world_plan plan{.gives = std::vector<bool>(all.size(), false),
                    .begins = !best->has_state,
                    .first = static_cast<int>(of)};
    for (std::size_t r = 0; r < all.size(); ++r) {
        auto why = objection(r, all[r], of, *best);
        if (why.empty()) {
            plan.gives[r] = plan.begins ? r == of : place(all[r]) == place(*best);
            continue;
        }
        if (all[r].has_state) throw error(errc::mismatch, why);
        if (plan.refused) continue;
        plan.refused = r;
        plan.why = std::move(why);
    }
    return plan;
}

} // namespace skein::train::detail
