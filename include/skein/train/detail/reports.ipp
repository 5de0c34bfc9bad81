// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/reports.hpp>.

#include <skein/core/clock.hpp>
#include <skein/core/log.hpp>
#include <skein/net/offload.hpp>
#include <skein/train/callbacks.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/reporter.hpp>

#include <atomic>
#include <exception>
#include <string_view>

#include <fmt/core.h>

namespace skein::train {
namespace detail {

/// What the rows have besides the numbers of a report.
inline constexpr std::string_view names_in_rows[] = {
    "step",      "event",      "tokens_per_s", "samples_per_s", "step_seconds", "data_s",
    "forward_s", "backward_s", "exposed_s",    "optimizer_s",   "overlap"};

class report_writer {
public:
    report_writer(context& ctx, const run_config& config, std::uint64_t first)
        : ctx_(ctx), config_(checked(config, ctx)), out_(ctx, config_, settings_), made_(first),
          begun_(now()) {
        out_.begin({.rank = ctx.rank(),
                    .world_size = ctx.world_size(),
                    .first_step = first,
                    .run_path = out_.path(),
                    .resumed_from = {},
                    .strategy = {},
                    .epochs = {},
                    .evaluations = {},
                    .numbers = {},
                    .open = {},
                    .training = {}});
        result_.rank = ctx.rank();
        result_.first_step = first;
        result_.val_loss = std::numeric_limits<double>::quiet_NaN();
        last_ = begun_;
    }

    merged_report report(std::initializer_list<report::named_number> numbers) {
        report::metric_set mine{names_in_rows};
        for (const auto& [name, number] : numbers) {
            const auto before = mine.size();
            mine.add(number.kind, name, number.value, number.weight);
            if (mine.size() == before)
                throw error(errc::usage, fmt::format("a report has \"{}\" twice", name))
                    .with_hint("give each number a name of its own");
        }
        ctx_.note_begun();
        auto values = names_.merge(ctx_, {}, mine);
        made_ += 1;
        if (ctx_.is_first()) write(values);
        return merged_report(std::move(values));
    }
    [[nodiscard]] std::uint64_t made() const noexcept { return made_; }
    [[nodiscard]] const std::string& path() const noexcept { return out_.path(); }

    void finish() {
        if (std::exchange(finished_, true)) return;
        pool_.reset(); // all that was submitted is written
        result_.steps = result_.total = made_;
        out_.finish(result_);
        result_.seconds = now() - begun_;
        result_.run_name = out_.name();
        result_.run_path = out_.path();
        leave_screen(ctx_, config_, result_);
    }

private:
    [[nodiscard]] static double now() {
        return to_seconds(system_clock().now().time_since_epoch());
    }
    [[nodiscard]] static const run_config& checked(const run_config& config, const context& ctx) {
        auto plain = config;
        plain.global_batch = std::max<std::int64_t>(config.global_batch, ctx.world_size());
        plain.accumulation = 1; // of no meaning here
        validate(plain, ctx.world_size());
        return config;
    }

    void write(const std::vector<report::metric_value>& values) {
        if (waiting_.fetch_add(1) >= reports::most_waiting)
            throw error(errc::exhausted,
                        fmt::format("{} reports wait for the disk", waiting_.load()))
                .with_where(path())
                .with_hint("does the disk of the run's folder answer? report less often");
        const auto time = now();
        step_info row{.step = made_, .seconds = time - std::exchange(last_, time)};
        if (const auto* loss = report::find_metric(values, "loss")) row.loss = *loss;
        result_.loss = row.loss;
        if (!pool_) pool_.emplace(1);
        pool_->submit([this, row, values]() mutable {
            row.metrics = &values;
            out_.step(row, {});
            waiting_ -= 1;
        });
    }

    context& ctx_;
    run_config config_;
    report::settings settings_;
    reporter out_;
    shared_names names_;
    std::uint64_t made_;
    double begun_, last_ = 0.0;
    bool finished_ = false;
    fit_result result_;
    std::atomic<std::size_t> waiting_{0};
    std::optional<net::offload_pool> pool_; // last: it ends before what it works on
};

} // namespace detail

SKEIN_INLINE double merged_report::at(std::string_view name) const {
    if (const auto* found = report::find_metric(values_, name)) return *found;
    throw error(errc::not_found, fmt::format("the report has no \"{}\"", name))
        .with_hint(report::names_of(values_));
}

SKEIN_INLINE reports::reports(context& ctx, const run_config& config, std::uint64_t first)
    : writer_(std::make_unique<detail::report_writer>(ctx, config, first)) {}
SKEIN_INLINE reports::~reports() {
    if (std::uncaught_exceptions() > 0) return;
    try {
        writer_->finish();
    } catch (...) { // who wants it thrown calls finish()
        logging::warn("train", fmt::format("the end of {} could not be written: {}", path(),
                                           to_error(std::current_exception()).what()));
    }
}
SKEIN_INLINE merged_report reports::report(std::initializer_list<report::named_number> numbers) {
    return writer_->report(numbers);
}
SKEIN_INLINE std::uint64_t reports::made() const noexcept { return writer_->made(); }
SKEIN_INLINE const std::string& reports::path() const noexcept { return writer_->path(); }
SKEIN_INLINE void reports::finish() { writer_->finish(); }

} // namespace skein::train
