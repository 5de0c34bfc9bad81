// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/detail/row_program.hpp>.

#include <skein/core/printable.hpp>
#include <skein/rt/runtime_context.hpp>

#include <fmt/core.h>

namespace skein::data::detail {

SKEIN_INLINE std::string name_of_this_process() {
    // Of the runtime, not of the system: what a simulated helper answers must not be longer on a
    // machine whose process ids have one more digit.
    const auto here = runtime_context();
    return fmt::format("{}@{}", here.pid, here.host);
}

SKEIN_INLINE std::string text_of_sample(std::uint64_t sample, const row_program& program) {
    auto text = fmt::format("sample {}", sample);
    if (const auto name = program.name_of(sample); !name.empty())
        text += fmt::format(" ({})", printable(name));
    return text;
}

SKEIN_INLINE error error_of_row(std::exception_ptr failure, std::uint64_t sample,
                                const row_program& program) {
    auto why = error_of_throw(std::move(failure));
    auto where = text_of_sample(sample, program);
    if (!why.where().empty()) where += ", " + why.where();
    return std::move(why).with_where(std::move(where));
}

SKEIN_INLINE rows_answer make_rows(
    const rows_request& wanted,
    unique_function<row_fate(std::uint64_t, std::uint64_t, wire::reader&, wire::writer&)> make) {
    static thread_local arena memory; // its blocks serve the next request, too
    const arena_scope scope(memory);
    rows_answer answer;
    wire::writer out;
    wire::reader places(wanted.places);
    for (std::uint64_t i = 0; i < wanted.samples.size(); ++i) {
        const auto sample = wanted.samples[i];
        const auto before = out.size();
        memory.reset();
        try {
            answer.fates.push_back(make(i, sample, places, out));
            // Rows are much alike; without this every few of them would be copied once more.
            if (before == 0) out.reserve(out.size() * (wanted.samples.size() - i - 1));
        } catch (const not_here& e) {
            answer.fates.push_back(row_fate::away);
            answer.bad.push_back({sample, to_error(e.why, errc::io)});
        } catch (...) {
            // Half a row may be written: no operator writes, but write_row of a large one may
            // throw.
            if (out.size() != before) throw;
            auto why = error_of_throw(std::current_exception());
            // What this host is short of another one may have.
            const bool is_short = why.code() == errc::exhausted;
            answer.fates.push_back(is_short ? row_fate::away : row_fate::bad);
            answer.bad.push_back({sample, std::move(why)});
        }
    }
    answer.rows = std::move(out).take();
    return answer;
}

} // namespace skein::data::detail
