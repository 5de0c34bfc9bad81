// SPDX-License-Identifier: Apache-2.0
#pragma once
// What callbacks with a state share: numbers as words of a text that reads back to the same bits,
// and the number of a row or an evaluation that they watch.

#include <skein/core/error.hpp>
#include <skein/core/fnv.hpp>
#include <skein/core/known_names.hpp>
#include <skein/report/metrics.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/core.h>

namespace skein::train {

/// Where a rule reads the number that it watches.
enum class watched : std::uint8_t {
    evaluations, ///< "val_loss" and what the loss reported, after each evaluation
    steps,       ///< "loss" and what was reported, in the row of each step
};

} // namespace skein::train

namespace skein::train::detail {

// to_chars and from_chars, not {:a} and strtod(): a process may have another decimal point.
[[nodiscard]] inline std::string hexadecimal(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
    char text[64];
    const auto end =
        std::to_chars(text, text + sizeof text, std::abs(value), std::chars_format::hex);
    return (std::signbit(value) ? "-0x" : "0x") + std::string(text, end.ptr);
}

/// The words of a saved state, one after another.
class state_words {
public:
    explicit state_words(std::string_view text) : rest_(text) {}

    /// False when the next word is no such number.
    template <std::integral T>
    [[nodiscard]] bool read(T& to) {
        const auto word = next();
        const auto end = std::from_chars(word.data(), word.data() + word.size(), to);
        return end.ec == std::errc() && end.ptr == word.data() + word.size();
    }
    [[nodiscard]] bool read(double& to) {
        auto word = next();
        const bool negative = word.starts_with('-');
        if (negative) word.remove_prefix(1);
        if (word.starts_with("0x")) word.remove_prefix(2);
        const auto end =
            std::from_chars(word.data(), word.data() + word.size(), to, std::chars_format::hex);
        if (negative) to = -to;
        return end.ec == std::errc() && end.ptr == word.data() + word.size();
    }
    [[nodiscard]] bool empty() const noexcept { return rest_.empty(); }

private:
    std::string_view next() {
        const auto one = rest_.substr(0, rest_.find(' '));
        rest_.remove_prefix(std::min(rest_.size(), one.size() + 1));
        return one;
    }
    std::string_view rest_;
};

/// Tells the states of a rule apart by what it watched: the best of one metric is none of another.
[[nodiscard]] inline std::uint64_t watch_id(std::string_view metric, bool lower_is_better = true,
                                            watched at = watched::steps) noexcept {
    fnv1a hash;
    hash.text(metric);
    hash.byte(lower_is_better ? 1 : 0);
    hash.byte(static_cast<std::uint8_t>(at));
    return hash.value();
}

[[noreturn]] inline void no_state(std::string_view rule, std::string_view saved) {
    throw error(errc::malformed, fmt::format("'{}' is no state of {}", saved, rule));
}

/// The number a rule watches; errc::usage with the names there are when it is not there.
[[nodiscard]] inline double watched_number(const std::vector<report::metric_value>& from,
                                           std::string_view metric, std::string_view rule,
                                           watched where = watched::evaluations) {
    if (const auto* const found = report::find_metric(from, metric)) return *found;
    throw error(errc::usage,
                fmt::format("{}: {} has no '{}'", rule,
                            where == watched::steps ? "the row of a step" : "an evaluation",
                            metric))
        .with_hint(report::names_of(from));
}

/// A metric of training is in the rows where it is due only.
[[nodiscard]] inline bool is_of_training(std::string_view metric) noexcept {
    return metric.starts_with("train_");
}

/// Throws errc::usage for a metric of training that the run has not: it would never come.
inline void require_in_rows(const std::vector<std::string>& training, std::string_view metric,
                            std::string_view rule) {
    if (!is_of_training(metric) || std::ranges::find(training, metric) != training.end()) return;
    throw error(errc::usage, fmt::format("{}: no row of a step has a '{}'", rule, metric))
        .with_hint(training.empty() ? std::string("this run has no metrics of training: give them "
                                                  "to trainer.measure()")
                                    : "metrics of training are " + known_names(training));
}

/// The number of a row that a rule watches; nothing where a metric of training is not due.
///   errors  as watched_number; usage for a metric that is more than one number
template <class Step>
[[nodiscard]] std::optional<double> number_of_row(const Step& s, std::string_view metric,
                                                  std::string_view rule) {
    if (!is_of_training(metric) || report::find_metric(*s.metrics, metric) != nullptr)
        return watched_number(*s.metrics, metric, rule, watched::steps);
    if (s.arrays != nullptr)
        for (const auto& array : *s.arrays)
            if (array.name == metric)
                throw error(errc::usage, fmt::format("{}: '{}' is {} numbers", rule, metric,
                                                     array.values.size()))
                    .with_hint("watch one number, e.g. an average");
    return std::nullopt;
}

/// Whether an evaluation of this set has a number of this name.
[[nodiscard]] inline bool is_of_set(std::string_view metric, std::string_view set) noexcept {
    return metric.size() > set.size() && metric.starts_with(set) && metric[set.size()] == '_';
}

/// Throws errc::usage when none of the evaluation sets can have the number, or there are none: the
/// rule would never decide.
///   start  a start_info
template <class Start>
void require_evaluated(const Start& start, std::string_view metric, std::string_view rule) {
    const auto& sets = start.evaluations;
    bool is_of_one = false;
    for (const auto& set : sets) {
        if (!is_of_set(metric, set)) continue;
        is_of_one = true;
        if (start.numbers.empty() || std::ranges::find(start.open, set) != start.open.end()) return;
    }
    if (is_of_one && std::ranges::find(start.numbers, metric) != start.numbers.end()) return;
    auto why = error(errc::usage, fmt::format("{}: no evaluation has a '{}'", rule, metric));
    if (is_of_one)
        throw std::move(why).with_hint(known_names(start.numbers) +
                                       "; metrics are given to trainer.measure(), and a loss with "
                                       "a third argument may report more");
    if (sets.empty())
        throw std::move(why).with_hint(
            "this run evaluates nothing: give it an evaluation set with samples, or leave the rule "
            "out");
    throw std::move(why).with_hint("its sets are " + known_names(sets) +
                                   "; their numbers are called <set>_<name>");
}

/// Throws errc::usage for an option that makes no sense.
inline void require_option(bool fine, std::string_view rule, const std::string& what,
                           const char* hint) {
    if (!fine) throw error(errc::usage, fmt::format("{}: {}", rule, what)).with_hint(hint);
}

} // namespace skein::train::detail
