// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/explain.hpp>.

#include <skein/core/units.hpp>

#include <fmt/format.h>

namespace skein::data {

SKEIN_INLINE std::string explanation::text() const {
    auto out = fmt::format("{} samples{}", samples, is_shuffled ? ", shuffled" : "");
    out += global_batch > 0 ? fmt::format(", in batches of {}\n", global_batch) : "\n";
    double here = 0, all = 0, size = 0;
    for (std::size_t i = 0; i < stages.size(); ++i) {
        const auto& stage = stages[i];
        const auto rows = static_cast<double>(std::max<std::uint64_t>(1, stage.rows_in));
        const auto seconds = stage.seconds / rows;
        size = stage.bytes / static_cast<double>(std::max<std::uint64_t>(1, stage.rows_out));
        all += seconds;
        if (!stage.is_shipped) here += seconds;
        auto name = stage.name;
        if (name.size() > 44) name = name.substr(0, 41) + "...";
        out +=
            fmt::format("  {:<44} {:>10}  {:>10}", name, cost_seconds(seconds), cost_bytes(size));
        if (stage.stands_for > 1) out += fmt::format("  {} folded into one", stage.stands_for);
        if (stage.is_filter) out += fmt::format("  keeps {} of {}", stage.rows_out, stage.rows_in);
        out += '\n';
        const bool is_border = where.most > 0 && stage.is_shipped &&
                               (i + 1 == stages.size() || !stages[i + 1].is_shipped);
        if (is_border)
            out += fmt::format("  on({} helper{}{}): a row of {} travels\n", where.most,
                               where.most == 1 ? "" : "s", where.on.empty() ? "" : ", " + where.on,
                               cost_bytes(size));
    }
    out += fmt::format("  {:<44} {:>10}  {:>10}\n", "a row, on one core", cost_seconds(all),
                       cost_bytes(size));
    if (where.most > 0)
        out +=
            fmt::format("  {:<44} {:>10}\n", "of it on the rank, with helpers", cost_seconds(here));
    return out;
}

} // namespace skein::data
