// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/metrics/error_rate.hpp>.

#include <skein/core/error.hpp>
#include <skein/core/printable.hpp>
#include <skein/metrics/detail/shapes.hpp>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <fmt/core.h>

namespace skein::metrics {

namespace detail {

/// The code point of a character of utf8_length() bytes.
[[nodiscard]] SKEIN_INLINE char32_t code_point(std::string_view character) noexcept {
    const auto byte = [&](std::size_t i) {
        return static_cast<char32_t>(static_cast<unsigned char>(character[i]));
    };
    char32_t out = byte(0);
    if (character.size() > 1) out &= 0x7Fu >> character.size();
    for (std::size_t i = 1; i < character.size(); ++i) out = out << 6 | (byte(i) & 0x3Fu);
    return out;
}

/// As str.split() of Python.
[[nodiscard]] SKEIN_INLINE bool is_space(char32_t c) noexcept {
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

/// Calls it with the characters of a text: their bytes and code point.
template <class Call>
void each_character(std::string_view what, std::size_t i, std::string_view text, Call call) {
    for (std::size_t at = 0; at < text.size();) {
        const auto length = skein::detail::utf8_length(text.substr(at));
        if (length == 0)
            throw error(errc::invalid_argument,
                        fmt::format("{}[{}] is no UTF-8 at byte {}", what, i, at))
                .with_hint("read the text as what it is encoded in");
        const auto character = text.substr(at, length);
        call(character, code_point(character));
        at += length;
    }
}

SKEIN_INLINE void check_pairs(std::span<const std::string> hypotheses,
                              std::span<const std::string> references) {
    if (hypotheses.size() != references.size())
        throw error(errc::invalid_argument, fmt::format("{} hypotheses and {} references",
                                                        hypotheses.size(), references.size()))
            .with_hint("give each hypothesis its reference");
}

using numbers_of_texts = std::vector<std::vector<std::int64_t>>;

[[nodiscard]] SKEIN_INLINE numbers_of_texts
words_in(std::string_view what, std::span<const std::string> texts,
         std::unordered_map<std::string, std::int64_t>& known) {
    numbers_of_texts all(texts.size());
    for (std::size_t i = 0; i < texts.size(); ++i) {
        std::string word;
        const auto end = [&] {
            if (word.empty()) return;
            const auto next = static_cast<std::int64_t>(known.size());
            all[i].push_back(known.try_emplace(std::exchange(word, {}), next).first->second);
        };
        each_character(what, i, texts[i], [&](std::string_view character, char32_t point) {
            if (is_space(point))
                end();
            else
                word += character;
        });
        end();
    }
    return all;
}

[[nodiscard]] SKEIN_INLINE numbers_of_texts characters_in(std::string_view what,
                                                          std::span<const std::string> texts) {
    numbers_of_texts all(texts.size());
    for (std::size_t i = 0; i < texts.size(); ++i)
        each_character(what, i, texts[i], [&](std::string_view, char32_t point) {
            all[i].push_back(static_cast<std::int64_t>(point));
        });
    return all;
}

/// The tokens of a row before the padding.
[[nodiscard]] SKEIN_INLINE std::span<const std::int64_t> tokens_of(const array_view& of,
                                                                   std::size_t row,
                                                                   std::int64_t pad) {
    const auto width = of.extent(1);
    const std::span all(of.int64() + row * width, width);
    const auto end = std::ranges::find(all, pad);
    if (const auto after = std::find_if(end, all.end(), [pad](auto t) { return t != pad; });
        after != all.end())
        throw error(errc::invalid_argument, fmt::format("row {} of {} has {} behind the padding {}",
                                                        row, of.text(), *after, pad))
            .with_hint("fill rows behind their last token");
    return all.first(static_cast<std::size_t>(end - all.begin()));
}

SKEIN_INLINE void add_edits(summed& edits, summed& length, const samples& shown, std::int64_t pad) {
    const auto& [preds, target, weight] = shown;
    const auto is_rows = [](const array_view& of) {
        return of.is_given() && of.type() == element::int64 && of.dimensions() == 2;
    };
    if (!is_rows(preds) || !is_rows(target) || preds.extent(0) != target.extent(0))
        refuse_shapes(shown, "int64 [N, any] and int64 [N, any]",
                      "texts become such rows by words_of() or characters_of()");
    if (weight.is_given() && weight.dimensions() != 1)
        throw error(errc::invalid_argument,
                    fmt::format("weight is {} and target is {}", weight.text(), target.text()))
            .with_hint("give a weight for each row");
    for (std::size_t row = 0; row < target.extent(0); ++row) {
        const double w = weight.is_given() ? weights(shown)[row * target.extent(1)] : 1.0;
        if (w == 0) continue;
        const auto wanted = tokens_of(target, row, pad);
        edits[0] += w * static_cast<double>(edit_distance(tokens_of(preds, row, pad), wanted));
        length[0] += w * static_cast<double>(wanted.size());
    }
}

} // namespace detail

SKEIN_INLINE token_rows::token_rows(const rows& preds, const rows& target) : rows_(preds.size()) {
    const auto fill = [this](const rows& from, std::size_t& width, std::vector<std::int64_t>& to) {
        width = 1; // of texts without any token too
        for (const auto& each : from) width = std::max(width, each.size());
        to.assign(rows_ * width, no_token);
        for (std::size_t i = 0; i < rows_; ++i)
            std::ranges::copy(from[i], to.begin() + static_cast<std::ptrdiff_t>(i * width));
    };
    fill(preds, widths_[0], preds_);
    fill(target, widths_[1], target_);
}

SKEIN_INLINE token_rows words_of(std::span<const std::string> hypotheses,
                                 std::span<const std::string> references) {
    detail::check_pairs(hypotheses, references);
    std::unordered_map<std::string, std::int64_t> known;
    const auto preds = detail::words_in("hypotheses", hypotheses, known);
    return {preds, detail::words_in("references", references, known)};
}

SKEIN_INLINE token_rows characters_of(std::span<const std::string> hypotheses,
                                      std::span<const std::string> references) {
    detail::check_pairs(hypotheses, references);
    return {detail::characters_in("hypotheses", hypotheses),
            detail::characters_in("references", references)};
}

SKEIN_INLINE std::size_t edit_distance(std::span<const std::int64_t> from,
                                       std::span<const std::int64_t> to) {
    while (!from.empty() && !to.empty() && from.front() == to.front())
        from = from.subspan(1), to = to.subspan(1);
    while (!from.empty() && !to.empty() && from.back() == to.back())
        from = from.first(from.size() - 1), to = to.first(to.size() - 1);
    // row[j]: from what was read of `from` to the first j of `to`
    std::vector<std::size_t> row(to.size() + 1);
    for (std::size_t j = 0; j <= to.size(); ++j) row[j] = j;
    for (std::size_t i = 0; i < from.size(); ++i) {
        auto diagonal = std::exchange(row[0], i + 1);
        for (std::size_t j = 0; j < to.size(); ++j) {
            const auto replaced = diagonal + (from[i] == to[j] ? 0 : 1);
            diagonal = row[j + 1];
            row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
        }
    }
    return row[to.size()];
}

} // namespace skein::metrics
