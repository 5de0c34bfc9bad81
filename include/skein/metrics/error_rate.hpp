// SPDX-License-Identifier: Apache-2.0
#pragma once
// How many words, characters or tokens must be changed, left out or put in, in relation to how many
// there should be: word, character and token error rate (source: torchmetrics 1.9,
// functional/text/wer.py, cer.py; Levenshtein's distance).
//
// A stage shows metrics arrays. Texts become arrays of numbers, alike where the words are alike:
//
//     const auto words = words_of(hypotheses, references);
//     stage.update("word_error_rate", words.shown());
//
// Outside of a stage: word_error_rate rate; rate.update(hypotheses, references).

#include <skein/metrics/metric.hpp>
#include <skein/metrics/samples.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace skein::metrics {

/// What fills rows that are shorter than the longest.
inline constexpr std::int64_t no_token = -1;

/// Texts as rows of numbers, which are the same for the same words of one object. Owns them.
class token_rows {
public:
    /// Preds [N, longest] and target [N, longest], filled with no_token.
    [[nodiscard]] samples shown() const noexcept {
        return {.preds = {preds_.data(), {rows_, widths_[0]}},
                .target = {target_.data(), {rows_, widths_[1]}},
                .weight = {}};
    }

private:
    friend token_rows words_of(std::span<const std::string>, std::span<const std::string>);
    friend token_rows characters_of(std::span<const std::string>, std::span<const std::string>);
    using rows = std::vector<std::vector<std::int64_t>>;
    token_rows(const rows& preds, const rows& target);

    std::size_t rows_ = 0, widths_[2] = {};
    std::vector<std::int64_t> preds_, target_;
};

/// Words are what whitespace of Unicode parts. errc::invalid_argument for other numbers of texts, and
/// for bytes that are no UTF-8.
[[nodiscard]] token_rows words_of(std::span<const std::string> hypotheses,
                                  std::span<const std::string> references);
/// Code points, whitespace too.
[[nodiscard]] token_rows characters_of(std::span<const std::string> hypotheses,
                                       std::span<const std::string> references);

/// The fewest insertions, deletions and substitutions that make one of the other.
[[nodiscard]] std::size_t edit_distance(std::span<const std::int64_t> from,
                                        std::span<const std::int64_t> to);

namespace detail {
void add_edits(summed& edits, summed& length, const samples& shown, std::int64_t pad);
} // namespace detail

/// Of rows of tokens: preds int64 [N, any], target int64 [N, any], both filled with pad behind
/// their last token. A weight is one for each row.
///   result  edits / tokens of target; without any NaN, or infinite
struct token_error_rate {
    static constexpr std::string_view name = "token_error_rate";
    std::int64_t pad = no_token;
    summed edits{}, length{};

    void update(const samples& shown) { detail::add_edits(edits, length, shown, pad); }
    [[nodiscard]] double compute() const { return edits[0] / length[0]; }
};

/// Of words_of().
struct word_error_rate {
    static constexpr std::string_view name = "word_error_rate";
    summed edits{}, length{};

    void update(const samples& shown) { detail::add_edits(edits, length, shown, no_token); }
    void update(std::span<const std::string> hypotheses, std::span<const std::string> references) {
        update(words_of(hypotheses, references).shown());
    }
    [[nodiscard]] double compute() const { return edits[0] / length[0]; }
};

/// Of characters_of().
struct char_error_rate {
    static constexpr std::string_view name = "char_error_rate";
    summed edits{}, length{};

    void update(const samples& shown) { detail::add_edits(edits, length, shown, no_token); }
    void update(std::span<const std::string> hypotheses, std::span<const std::string> references) {
        update(characters_of(hypotheses, references).shown());
    }
    [[nodiscard]] double compute() const { return edits[0] / length[0]; }
};

} // namespace skein::metrics

#if SKEIN_HEADER_ONLY
#include <skein/metrics/detail/error_rate.ipp>
#endif
