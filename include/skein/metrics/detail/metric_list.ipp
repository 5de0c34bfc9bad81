// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/metrics/metric_list.hpp>.

#include <skein/core/known_names.hpp>
#include <skein/report/metrics.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <cstring>

#include <fmt/core.h>

namespace skein::metrics {

namespace detail {

/// A list in a checkpoint.
struct saved_list {
    std::vector<std::pair<std::string, std::string>> layout{};
    std::vector<double> sums{}, maxima{};
    byte_buffer rows{};
};

/// An error of one metric says which one it is.
template <class Call>
void named(const any_metric& of, Call call) {
    try {
        call();
    } catch (const error& why) {
        if (!why.where().empty()) throw;
        throw error(why).with_where(fmt::format("metric \"{}\"", of.name()));
    }
}

[[nodiscard]] SKEIN_INLINE error other_sizes(std::size_t here, std::size_t there) {
    return error(errc::mismatch,
                 fmt::format("metrics of {} numbers cannot be merged with metrics of {}", here,
                             there))
        .with_hint("give every rank the same metrics with the same options");
}

} // namespace detail

SKEIN_INLINE metric_list& metric_list::add(any_metric made) {
    report::require_metric_name(made.name());
    for (const auto& each : metrics_)
        if (each.name() == made.name())
            throw error(errc::already_exists,
                        fmt::format("two metrics of a stage are called \"{}\"", made.name()))
                .with_hint("give one of them a name of its own: named(\"top5\", accuracy{...})");
    metrics_.push_back(std::move(made));
    std::size_t bytes = 0;
    for (auto& each : metrics_)
        for (const auto& state : each.states()) bytes += state.values.size_bytes();
    if (bytes > most_bytes) {
        const auto name = metrics_.back().name();
        metrics_.pop_back();
        throw error(errc::usage, fmt::format("the metrics of a stage would take {} MiB with "
                                             "\"{}\", more than {} MiB",
                                             bytes >> 20, name, most_bytes >> 20))
            .with_hint("use fewer classes or thresholds");
    }
    return *this;
}

SKEIN_INLINE std::vector<std::string> metric_list::names() const {
    std::vector<std::string> all;
    for (const auto& each : metrics_) all.push_back(each.name());
    return all;
}

SKEIN_INLINE void metric_list::update(const samples& shown) {
    for (auto& each : metrics_) detail::named(each, [&] { each.update(shown); });
    updates_ += 1;
}

SKEIN_INLINE void metric_list::update(std::string_view name, const samples& shown) {
    for (auto& each : metrics_) {
        if (each.name() != name) continue;
        detail::named(each, [&] { each.update(shown); });
        updates_ += 1;
        return;
    }
    throw error(errc::usage, fmt::format("no metric of this stage is called \"{}\"", name))
        .with_hint(known_names(names()));
}

SKEIN_INLINE void metric_list::clear() noexcept {
    for (auto& each : metrics_)
        for (auto& state : each.states()) {
            const double none = state.kind == merge_kind::max   ? largest::none
                                : state.kind == merge_kind::min ? smallest::none
                                                                : summed::none;
            std::ranges::fill(state.values, none);
            if (state.rows != nullptr) state.rows->clear();
        }
    updates_ = 0;
}

SKEIN_INLINE void metric_list::mark(list_mark& at) {
    at.fixed.clear();
    at.rows.clear();
    at.updates = updates_;
    for (auto& each : metrics_)
        for (const auto& state : each.states()) {
            at.fixed.insert(at.fixed.end(), state.values.begin(), state.values.end());
            if (state.rows != nullptr) at.rows.push_back(state.rows->rows());
        }
}

SKEIN_INLINE void metric_list::go_back(const list_mark& to) {
    const double* from = to.fixed.data();
    auto rows = to.rows.begin();
    for (auto& each : metrics_)
        for (auto& state : each.states()) {
            std::copy_n(from, state.values.size(), state.values.begin());
            from += state.values.size();
            if (state.rows != nullptr) state.rows->truncate(*rows++);
        }
    updates_ = to.updates;
}

SKEIN_INLINE std::vector<std::pair<std::string, std::string>> metric_list::layout() {
    std::vector<std::pair<std::string, std::string>> all;
    for (auto& each : metrics_) {
        auto text = each.describe();
        for (const auto& state : each.states())
            text += fmt::format("; {} {}[{}]", state.name, to_string(state.kind),
                                state.rows != nullptr ? state.rows->width() : state.values.size());
        all.emplace_back(each.name(), std::move(text));
    }
    return all;
}

SKEIN_INLINE packed_state metric_list::pack() {
    packed_state out;
    out.sums.push_back(updates_);
    for (auto& each : metrics_)
        for (const auto& state : each.states()) {
            const auto values = state.values;
            switch (state.kind) {
            case merge_kind::sum:
                out.sums.insert(out.sums.end(), values.begin(), values.end());
                break;
            case merge_kind::max:
                out.maxima.insert(out.maxima.end(), values.begin(), values.end());
                break;
            case merge_kind::min:
                for (const double v : values) out.maxima.push_back(-v);
                break;
            case merge_kind::rows: {
                std::byte count[8];
                store_le<std::uint64_t>(count, state.rows->rows());
                append(out.rows, count);
                append(out.rows, std::as_bytes(state.rows->values()));
                break;
            }
            }
        }
    return out;
}

SKEIN_INLINE bool metric_list::has_rows() {
    for (auto& each : metrics_)
        for (const auto& state : each.states())
            if (state.rows != nullptr) return true;
    return false;
}

SKEIN_INLINE void metric_list::add(const packed_state& more) {
    std::size_t sums = 1, maxima = 0;
    for (auto& each : metrics_)
        for (const auto& state : each.states())
            (state.kind == merge_kind::sum ? sums : maxima) += state.values.size();
    if (sums != more.sums.size()) throw detail::other_sizes(sums, more.sums.size());
    if (maxima != more.maxima.size()) throw detail::other_sizes(maxima, more.maxima.size());
    const double *sum = more.sums.data() + 1, *most = more.maxima.data();
    for (auto& each : metrics_)
        for (auto& state : each.states())
            for (double& v : state.values) {
                if (state.kind == merge_kind::sum) v += *sum++;
                if (state.kind == merge_kind::max) v = std::max(v, *most++);
                if (state.kind == merge_kind::min) v = std::min(v, -*most++);
            }
    updates_ += more.sums[0];
    if (!more.rows.empty()) add_rows(more.rows);
}

SKEIN_INLINE void metric_list::add_rows(byte_span rows) {
    const auto broken = [](const char* what) {
        return error(errc::malformed, fmt::format("rows of metrics {}", what))
            .with_hint("do all ranks run the same program?");
    };
    for (auto& each : metrics_)
        for (auto& state : each.states()) {
            if (state.rows == nullptr) continue;
            if (rows.size() < 8) throw broken("end before the count of an array");
            const auto count = load_le<std::uint64_t>(rows.data());
            rows = rows.subspan(8);
            const auto each_row = state.rows->width() * sizeof(float);
            if (count > rows.size() / each_row) throw broken("are fewer than their count says");
            std::vector<float> values(static_cast<std::size_t>(count) * state.rows->width());
            if (!values.empty())
                std::memcpy(values.data(), rows.data(), values.size() * sizeof(float));
            state.rows->push(std::span<const float>(values));
            rows = rows.subspan(values.size() * sizeof(float));
        }
    if (!rows.empty()) throw broken("go on behind the last array");
}

SKEIN_INLINE std::vector<score> metric_list::compute() const {
    std::vector<score> all;
    for (const auto& each : metrics_)
        detail::named(each, [&] {
            auto made = each.compute();
            std::size_t size = 1;
            for (const auto extent : made.shape) size *= extent;
            if (size != made.values.size())
                throw error(errc::usage, fmt::format("compute() gives {} numbers for a shape of {}",
                                                     made.values.size(), size))
                    .with_hint("score(rows, columns, values) takes rows * columns values");
            all.push_back(std::move(made));
        });
    return all;
}

SKEIN_INLINE byte_buffer metric_list::save() {
    auto packed = pack();
    const detail::saved_list all{.layout = layout(),
                                 .sums = std::move(packed.sums),
                                 .maxima = std::move(packed.maxima),
                                 .rows = std::move(packed.rows)};
    return wire::encode(all);
}

SKEIN_INLINE void metric_list::restore(byte_span saved) {
    auto read = wire::decode<detail::saved_list>(saved);
    if (!read)
        throw error(errc::malformed, "saved metrics cannot be read")
            .with_cause(read.error().text());
    const auto mine = layout();
    if (read->layout != mine) {
        const auto text = [](const auto& of) {
            std::string all;
            for (const auto& [name, what] : of)
                all += fmt::format("{}{} ({})", all.empty() ? "" : ", ", name, what);
            return all.empty() ? std::string("none") : all;
        };
        throw error(errc::mismatch, fmt::format("the metrics were saved as {}, now they are {}",
                                                text(read->layout), text(mine)))
            .with_hint("go on with the metrics that the run was started with, or another run name");
    }
    clear();
    add(packed_state{.sums = std::move(read->sums),
                     .maxima = std::move(read->maxima),
                     .rows = std::move(read->rows)});
}

} // namespace skein::metrics
