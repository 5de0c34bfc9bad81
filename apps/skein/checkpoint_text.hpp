// SPDX-License-Identifier: Apache-2.0
#pragma once
// What `skein checkpoint` prints: tables for people, the same in a pipe and in every locale, or one
// JSON object for scripts.

#include "status_text.hpp"

#include <skein/core/printable.hpp>
#include <skein/core/units.hpp>
#include <skein/core/with_commas.hpp>
#include <skein/train/manifest.hpp>
#include <skein/train/safetensors.hpp>
#include <skein/train/verify_checkpoint.hpp>
#include <skein/train/weight_compare.hpp>
#include <skein/train/weight_source.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein_program {

namespace train = skein::train;

/// Rows of a table; its columns are as wide as they have to be, the last one has no end.
class text_table {
public:
    explicit text_table(std::vector<std::string> head, std::string_view right = "")
        : right_(right) {
        add(std::move(head));
    }
    void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

    [[nodiscard]] std::string text() const {
        std::vector<std::size_t> widths(rows_.front().size(), 0);
        for (const auto& row : rows_)
            for (std::size_t i = 0; i < row.size(); ++i)
                widths[i] = std::max(widths[i], fmt::formatted_size("{}", row[i]));
        std::string out;
        for (const auto& row : rows_) {
            std::string line;
            for (std::size_t i = 0; i < row.size(); ++i) {
                const auto gap = i == 0 ? "" : "  ";
                if (i < right_.size() && right_[i] == '>')
                    line += fmt::format("{}{:>{}}", gap, row[i], widths[i]);
                else
                    line += fmt::format("{}{:<{}}", gap, row[i], widths[i]);
            }
            line.erase(line.find_last_not_of(' ') + 1);
            out += line + "\n";
        }
        return out;
    }

private:
    std::vector<std::vector<std::string>> rows_;
    std::string right_; // a '>' for each column of numbers
};

/// "[3, 4]"
inline std::string shape_text(const std::vector<std::int64_t>& shape) {
    std::string out = "[";
    for (const auto extent : shape) out += fmt::format("{}{}", out.size() > 1 ? ", " : "", extent);
    return out + "]";
}

/// "F32 [3, 4]"
inline std::string kind_text(const train::source_tensor& t) {
    return t.dtype + " " + shape_text(t.shape);
}

/// Elements and bytes of some tensors.
struct tensor_total {
    std::uint64_t tensors = 0, elements = 0, bytes = 0;

    void add(std::string_view dtype, const std::vector<std::int64_t>& shape) {
        const auto all = train::tensor_bytes(dtype, shape).value();
        ++tensors;
        elements += all / train::dtype_size(dtype).value();
        bytes += all;
    }
};

/// What is shown of a path.
struct shown_weights {
    std::string path{}, kind{};
    train::source_table tensors{};
    std::optional<train::checkpoint_manifest> manifest{}; ///< of one of our checkpoints
};

/// By what they are: weights (and buffers), averages of weights, the optimizer's state.
inline std::vector<std::pair<std::string, tensor_total>> totals_of(const shown_weights& shown) {
    tensor_total weights, averages, optimizer;
    for (const auto& [name, t] : shown.tensors) {
        auto& into = !shown.manifest || name.starts_with("model.") ? weights
                     : name.starts_with("optim.ema.")              ? averages
                                                                   : optimizer;
        into.add(t.dtype, t.shape);
    }
    std::vector<std::pair<std::string, tensor_total>> out{{"weights", weights}};
    if (averages.tensors != 0) out.emplace_back("averages", averages);
    if (shown.manifest) out.emplace_back("optimizer", optimizer);
    return out;
}

/// Empty when the checkpoint does not say it.
inline std::string strategy_of(const train::checkpoint_manifest& manifest) {
    const auto extra =
        skein::parse_json(manifest.extra, {.max_bytes = 256u << 20, .max_depth = 64});
    if (!extra) return {};
    const auto said = skein::json_string(*extra, "strategy");
    return said ? *said : std::string();
}

/// The lines above the table of tensors.
inline std::string manifest_text(const train::checkpoint_manifest& m) {
    std::string out;
    const auto line = [&](std::string_view what, const std::string& said) {
        if (!said.empty()) out += fmt::format("{:<10}  {}\n", what, skein::printable(said));
    };
    line("format", fmt::format("skein-checkpoint-{}, of skein {}", m.version, m.skein_version));
    line("written", date_text(static_cast<std::int64_t>(
                        std::clamp(m.wall_time, 0.0, 1e11)))); // any date() can show
    line("step", fmt::to_string(m.step));
    line("world", count_text(static_cast<std::size_t>(m.world_size), "rank"));
    line("strategy", strategy_of(m));
    std::string metrics;
    for (const auto& [name, value] : m.metrics)
        metrics += fmt::format("{}{} {:.6g}", metrics.empty() ? "" : ", ", name, value);
    line("metrics", metrics);
    std::uint64_t bytes = 0;
    for (const auto& shard : m.shards) bytes += shard.bytes;
    line("shards", fmt::format("{}, {} bytes", count_text(m.shards.size(), "file"),
                               skein::with_commas(bytes)));
    return out;
}

inline std::string show_text(const shown_weights& shown) {
    auto out = skein::printable(shown.path) + ": " + shown.kind + "\n";
    if (shown.manifest) out += manifest_text(*shown.manifest);
    std::vector<std::string> head{"tensor", "type", "shape", "bytes"};
    if (shown.manifest) head.insert(head.begin() + 3, "parts");
    text_table tensors(std::move(head), shown.manifest ? "   >>" : "   >");
    for (const auto& [name, t] : shown.tensors) {
        const auto bytes = train::tensor_bytes(t.dtype, t.shape).value();
        std::vector<std::string> row{skein::printable(name), t.dtype, shape_text(t.shape),
                                     skein::with_commas(bytes)};
        if (shown.manifest)
            row.insert(row.begin() + 3,
                       fmt::to_string(shown.manifest->tensors.at(name).parts.size()));
        tensors.add(std::move(row));
    }
    out += "\n" + tensors.text() + "\n";
    text_table totals({"total", "tensors", "elements", "bytes"}, " >>>");
    for (const auto& [what, total] : totals_of(shown))
        totals.add({what, skein::with_commas(total.tensors), skein::with_commas(total.elements),
                    skein::with_commas(total.bytes)});
    return out + totals.text();
}

inline std::string show_json(const shown_weights& shown) {
    skein::ordered_json out{{"path", shown.path}, {"kind", shown.kind}};
    if (const auto& m = shown.manifest) {
        out["format"] = fmt::format("skein-checkpoint-{}", m->version);
        out["skein"] = m->skein_version;
        out["wall_time"] = m->wall_time;
        out["step"] = m->step;
        out["world_size"] = m->world_size;
        out["strategy"] = strategy_of(*m);
        out["metrics"] = m->metrics;
        auto& shards = out["shards"] = skein::ordered_json::array();
        for (const auto& shard : m->shards)
            shards.push_back({{"name", shard.name}, {"bytes", shard.bytes}});
    }
    auto& tensors = out["tensors"] = skein::ordered_json::object();
    for (const auto& [name, t] : shown.tensors) {
        auto& one = tensors[name];
        one = {{"dtype", t.dtype},
               {"shape", t.shape},
               {"bytes", train::tensor_bytes(t.dtype, t.shape).value()}};
        if (!shown.manifest) continue;
        auto& parts = one["parts"] = skein::ordered_json::array();
        for (const auto& part : shown.manifest->tensors.at(name).parts)
            parts.push_back(
                {{"shard", part.shard}, {"first_row", part.first_row}, {"rows", part.rows}});
    }
    for (const auto& [what, total] : totals_of(shown))
        out["totals"][what] = {
            {"tensors", total.tensors}, {"elements", total.elements}, {"bytes", total.bytes}};
    return skein::dump_json(out, 2) + "\n";
}

/// What was verified of one path.
struct verified_path {
    std::string path{};
    train::verified_checkpoint seen{};
    bool has_checksums = true; ///< false: of what is not ours, headers alone could be looked at
};

/// At most 20 lines for a file, and how many more there are.
inline std::string verified_text(const verified_path& of) {
    const auto& seen = of.seen;
    std::string out;
    std::map<std::string, std::size_t> lines;
    for (const auto& d : seen.damage)
        if (++lines[d.file] <= 20)
            out += fmt::format("{}: {}\n", skein::printable(d.file), skein::printable(d.text));
    for (const auto& [file, count] : lines)
        if (count > 20) out += fmt::format("{}: and {} more\n", skein::printable(file), count - 20);
    const auto path = skein::printable(of.path);
    if (!seen.is_whole())
        return out +
               fmt::format("{}: damaged, in {}\n", path, count_text(seen.damage.size(), "place"));
    if (!of.has_checksums)
        return fmt::format("{}: header, index and sizes agree; there are no checksums\n", path);
    return fmt::format("{}: whole; {}, {} with {} bytes\n", path,
                       count_text(seen.manifest->shards.size(), "shard"),
                       count_text(seen.chunks, "chunk"), skein::with_commas(seen.bytes));
}

inline std::string verified_json(const std::vector<verified_path>& all) {
    auto list = skein::ordered_json::array();
    bool whole = true;
    for (const auto& [path, seen, has_checksums] : all) {
        whole = whole && seen.is_whole();
        auto damage = skein::ordered_json::array();
        for (const auto& d : seen.damage) {
            skein::ordered_json one{{"file", d.file}};
            if (d.chunk) one["chunk"] = *d.chunk;
            one["text"] = d.text;
            damage.push_back(std::move(one));
        }
        list.push_back({{"path", path},
                        {"whole", seen.is_whole()},
                        {"checksums", has_checksums},
                        {"chunks", seen.chunks},
                        {"bytes", seen.bytes},
                        {"damage", std::move(damage)}});
    }
    return skein::dump_json(skein::ordered_json{{"whole", whole}, {"checked", std::move(list)}},
                            2) +
           "\n";
}

inline std::string difference_text(const train::tensor_difference& d, std::string_view first,
                                   std::string_view second) {
    if (d.is_missing())
        return fmt::format("{} in {} alone", kind_text(d.first ? *d.first : *d.second),
                           skein::printable(d.first ? first : second));
    if (d.is_other_kind()) return kind_text(*d.first) + " and " + kind_text(*d.second);
    const auto some = fmt::format("{} of {} elements differ", skein::with_commas(d.count),
                                  skein::with_commas(d.elements));
    if (!d.largest) return some;
    if (std::isinf(*d.largest)) return some + ", some are not finite";
    return fmt::format("{}, by at most {:.6g}", some, *d.largest);
}

inline std::string diff_text(const train::weight_comparison& found, std::string_view first,
                             std::string_view second) {
    const auto all = found.different.size() + found.equal;
    if (found.different.empty())
        return fmt::format("{} equal\n", count_text(all, "tensor") + (all == 1 ? " is" : " are"));
    text_table table({"tensor", "difference"});
    for (const auto& d : found.different)
        table.add({skein::printable(d.name), difference_text(d, first, second)});
    return table.text() +
           fmt::format("\n{} of {} differ\n", found.different.size(), count_text(all, "tensor"));
}

inline std::string diff_json(const train::weight_comparison& found, std::string_view first,
                             std::string_view second) {
    const auto kind = [](const std::optional<train::source_tensor>& t) {
        return t ? skein::ordered_json{{"dtype", t->dtype}, {"shape", t->shape}}
                 : skein::ordered_json();
    };
    auto list = skein::ordered_json::object();
    for (const auto& d : found.different) {
        auto& one = list[d.name];
        one = {{"first", kind(d.first)}, {"second", kind(d.second)}};
        if (d.is_missing() || d.is_other_kind()) continue;
        one["elements"] = d.elements;
        one["differ"] = d.count;
        const bool is_finite = d.largest && std::isfinite(*d.largest);
        one["largest"] = is_finite ? skein::ordered_json(*d.largest) : skein::ordered_json();
    }
    return skein::dump_json(skein::ordered_json{{"first", first},
                                                {"second", second},
                                                {"equal", found.equal},
                                                {"different", std::move(list)}},
                            2) +
           "\n";
}

} // namespace skein_program
