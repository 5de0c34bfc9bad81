// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a loop without a Trainer says of itself: numbers of all ranks, merged, in the files that a
// Trainer writes.
//
//     void loop(skein::train::context& ctx, skein::run_config run) {
//         skein::train::reports log(ctx, run);
//         for (int epoch = 0; epoch < 10; ++epoch) {
//             const auto now = log.report({{"loss", loss}, {"seen", skein::report::sum(64)}});
//             if (now.at("loss") < 0.1) break;     // the same on every rank
//         }
//     }
//
// Every rank reports alike. A number counts by its kind over all ranks; one without a kind is a
// mean. The call waits for the other ranks and for no disk: a thread of rank 0 writes. A rank that
// does not come is named after config.failure.collective_timeout.

#include <skein/core/error.hpp>
#include <skein/report/metrics.hpp>
#include <skein/train/context.hpp>
#include <skein/train/run_config.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::train {

namespace detail {
class report_writer;
}

/// The numbers of one report, merged; the same on every rank.
class merged_report {
public:
    explicit merged_report(std::vector<report::metric_value> values) : values_(std::move(values)) {}
    /// Throws errc::not_found with the names there are.
    [[nodiscard]] double at(std::string_view name) const;
    [[nodiscard]] const std::vector<report::metric_value>& values() const noexcept {
        return values_;
    }

private:
    std::vector<report::metric_value> values_;
};

/// See above. Not thread-safe; the context must outlive it.
class reports {
public:
    /// Reports that wait for the disk; more are an error.
    static constexpr std::size_t most_waiting = 10'000;

    /// Opens the run's folder. Collective.
    ///   first   reports that were made before: a loop that goes on from a checkpoint of its own.
    ///           Later rows of the folder are dropped
    ///   errors  those of the folder; usage for a config that makes no sense
    reports(context& ctx, const run_config& config, std::uint64_t first = 0);
    reports(const reports&) = delete;
    reports& operator=(const reports&) = delete;
    /// finish(), unless an exception passes by.
    ~reports();

    /// One more report. Collective.
    ///   errors  mismatch when two ranks give a name by other kinds; usage for a name that is given
    ///           twice, or that rows have anyway ("step", "step_seconds"); timeout, with the rank
    ///           that did not come; exhausted beyond most_waiting
    merged_report report(std::initializer_list<report::named_number> numbers);
    /// Reports made, those before included.
    [[nodiscard]] std::uint64_t made() const noexcept;
    /// The run's folder; empty when it writes no files.
    [[nodiscard]] const std::string& path() const noexcept;
    /// Waits until all is written; the run's result is there then. Collective.
    void finish();

private:
    std::unique_ptr<detail::report_writer> writer_;
};

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/reports.ipp>
#endif
