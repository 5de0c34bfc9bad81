// SPDX-License-Identifier: Apache-2.0
// Computes metrics over samples from files, in parts, for tests/interop.
//
//   skein_metric_cases CASES ARRAYS   CASES: a JSON list of {metric, options, arrays: {preds, target,
//                                     weight}: {type, shape, at: the byte in ARRAYS}, ranks: for each
//                                     where its batches begin and end}; for error rates `texts` in
//                                     place of arrays. Prints one JSON line per case: shape and
//                                     values as text, or the error.
//   skein_metric_cases --time METRIC CLASSES N   microseconds of an update, the fastest of many
#include <skein/core/clock.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/metrics/classification.hpp>
#include <skein/metrics/confusion_matrix.hpp>
#include <skein/metrics/curves.hpp>
#include <skein/metrics/error_rate.hpp>
#include <skein/metrics/metric_list.hpp>
#include <skein/metrics/perplexity.hpp>
#include <skein/metrics/regression.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

using namespace skein;
using namespace skein::metrics;

namespace {

template <class F>
void set(F& field, const json& to) {
    if constexpr (accumulates<F>)
        throw error(errc::usage, "an array is no option");
    else if constexpr (std::is_enum_v<F>) {
        for (int each = 0; each < 8; ++each)
            if (to_string(static_cast<F>(each)) == to.get<std::string>())
                field = static_cast<F>(each);
        if (to_string(field) != to.get<std::string>()) throw error(errc::usage, to.dump());
    } else if constexpr (requires { field.has_value(); })
        field = to.get<typename F::value_type>();
    else if constexpr (std::is_same_v<F, option_count>)
        field = to.get<std::int64_t>();
    else
        field = to.get<F>();
}

/// The metric with its options by name.
template <class M>
any_metric with_options(const json& options) {
    M made;
    std::size_t known = 0;
    metrics::detail::each_field(made, [&](std::string_view name, auto& field) {
        if (!options.contains(name)) return;
        set(field, options.at(std::string(name)));
        ++known;
    });
    if (known != options.size())
        throw error(errc::usage, fmt::format("{} has not all of {}", M::name, options.dump()));
    return any_metric("it", std::move(made));
}

template <class... M>
any_metric by_name(std::string_view name, const json& options) {
    std::optional<any_metric> made;
    ((name == M::name ? void(made.emplace(with_options<M>(options))) : void()), ...);
    if (!made) throw error(errc::usage, fmt::format("no metric {}", name));
    return *std::move(made);
}

any_metric metric_of(std::string_view name, const json& options) {
    return by_name<accuracy, precision, recall, f1, fbeta, specificity, jaccard, confusion_matrix,
                   auroc, average_precision, exact_auroc, exact_average_precision, mae, mse, rmse,
                   r2, perplexity, token_error_rate, word_error_rate, char_error_rate>(name,
                                                                                       options);
}

/// Rows from to of an array.
array_view rows_of(const json& of, const std::string& arrays, std::size_t from, std::size_t to) {
    auto shape = of.at("shape").get<std::vector<std::size_t>>();
    const auto type = of.at("type").get<std::string>();
    const auto kind = type == "float32"   ? element::float32
                      : type == "float64" ? element::float64
                      : type == "int64"   ? element::int64
                                          : element::boolean;
    std::size_t row = kind == element::boolean ? 1 : kind == element::float32 ? 4 : 8;
    for (std::size_t d = 1; d < shape.size(); ++d) row *= shape[d];
    shape[0] = to - from;
    return {arrays.data() + of.at("at").get<std::size_t>() + from * row, kind, shape};
}

/// As ranks do: each its own batches, reduced and gathered.
score over_ranks(const json& one, const std::string& arrays) {
    const auto made = [&] {
        metric_list list;
        list.add(metric_of(one.at("metric").get<std::string>(), one.at("options")));
        return list;
    };
    auto merged = made();
    packed_state all = merged.pack();
    byte_buffer rows;
    for (const auto& rank : one.at("ranks")) {
        auto mine = made();
        const auto cuts = rank.get<std::vector<std::size_t>>();
        for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
            samples shown;
            if (one.contains("texts")) {
                const auto of = [&](const char* name) {
                    auto lines = one.at("texts").at(name).get<std::vector<std::string>>();
                    const auto at = lines.begin();
                    return std::vector<std::string>(at + std::ptrdiff_t(cuts[i]),
                                                    at + std::ptrdiff_t(cuts[i + 1]));
                };
                const auto made_of =
                    one.at("metric") == "word_error_rate" ? words_of : characters_of;
                mine.update(made_of(of("preds"), of("target")).shown());
                continue;
            }
            const auto part = [&](const char* name) {
                const auto& list = one.at("arrays");
                return list.contains(name) ? rows_of(list.at(name), arrays, cuts[i], cuts[i + 1])
                                           : array_view();
            };
            shown.preds = part("preds");
            shown.target = part("target");
            shown.weight = part("weight");
            mine.update(shown);
        }
        const auto packed = mine.pack();
        for (std::size_t i = 0; i < all.sums.size(); ++i) all.sums[i] += packed.sums[i];
        for (std::size_t i = 0; i < all.maxima.size(); ++i)
            all.maxima[i] = std::max(all.maxima[i], packed.maxima[i]);
        merged.add_rows(packed.rows);
    }
    all.rows.clear();
    merged.add(all);
    return merged.compute()[0];
}

std::string read_whole(const char* path) {
    posix_disk disk;
    const auto bytes = disk.read_whole(path).value();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void run_cases(const char* cases, const char* arrays_path) {
    const auto arrays = read_whole(arrays_path);
    const auto list = json::parse(read_whole(cases));
    for (const auto& one : list) {
        json line;
        try {
            const auto got = over_ranks(one, arrays);
            line["shape"] = got.shape;
            for (const double v : got.values) line["values"].push_back(fmt::format("{}", v));
        } catch (const error& why) {
            line["error"] = why.text();
        }
        fmt::print("{}\n", line.dump());
    }
}

void time_updates(const std::string& name, std::size_t classes, std::size_t n) {
    std::vector<float> scores(n * classes);
    std::vector<std::int64_t> targets(n);
    std::uint32_t state = 1;
    for (auto& each : scores) {
        state = state * 1664525u + 1013904223u;
        each = static_cast<float>(state >> 8) / static_cast<float>(1 << 24);
    }
    for (std::size_t i = 0; i < n; ++i) targets[i] = static_cast<std::int64_t>(i * 7 % classes);
    auto made = metric_of(name, name == "perplexity" || name == "mae" ? json::object()
                                                                      : json{{"classes", classes}});
    std::chrono::nanoseconds best = std::chrono::hours(1);
    for (int i = 0; i < 500; ++i) {
        const auto begin = system_clock().now();
        if (name == "mae")
            made.update({.preds = {scores.data(), {n * classes}},
                         .target = {scores.data(), {n * classes}}});
        else
            made.update({.preds = {scores.data(), {n, classes}}, .target = {targets.data(), {n}}});
        best = std::min(best, std::chrono::nanoseconds(system_clock().now() - begin));
    }
    fmt::print("{:.1f}\n", static_cast<double>(best.count()) / 1e3);
}

} // namespace

int main(int argc, char** argv) {
    try {
        if (argc == 3)
            run_cases(argv[1], argv[2]);
        else if (argc == 5 && std::string_view(argv[1]) == "--time")
            time_updates(argv[2], std::strtoul(argv[3], nullptr, 10),
                         std::strtoul(argv[4], nullptr, 10));
        else
            throw error(errc::usage, "skein_metric_cases CASES ARRAYS");
    } catch (const std::exception& why) {
        fmt::print(stderr, "error: {}\n", why.what());
        return 2;
    }
    return 0;
}
