// SPDX-License-Identifier: Apache-2.0
#pragma once
// The reader of metrics.csv: a line with the names of columns, then a row of cells for each report
// of a training. Who writes it is run_dir, or any loop that people have written by themselves.
//
//     const metrics_table table(text);                     // all rows
//     table.names();                                       // {"step", "loss", "lr"}
//     number_of(table.cells(0)[1]);                        // the loss of the first row
//
//     const last_values last(text);                        // the end of a long table
//     last.of(column::loss);                               // however the loop calls it

#include <skein/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace skein::report {

/// The table's file in the folder of a run.
inline constexpr const char* metrics_file = "metrics.csv";

/// Names of the columns that say how far a training has come. The first name of each is skein's
/// own, others stand in the tables of other loops.
namespace column {
inline constexpr std::string_view step[] = {"step"};
inline constexpr std::string_view epoch[] = {"epoch"}; ///< passes over the data that are finished
inline constexpr std::string_view steps[] = {"steps", "total_steps", "max_steps"};
inline constexpr std::string_view epochs[] = {"epochs", "total_epochs", "max_epochs"};
inline constexpr std::string_view loss[] = {"loss", "train_loss"};
inline constexpr std::string_view learning_rate[] = {"lr", "learning_rate"};
inline constexpr std::string_view samples_per_s[] = {"samples_per_s"};
inline constexpr std::string_view tokens_per_s[] = {"tokens_per_s"};
inline constexpr std::string_view steps_per_s[] = {"steps_per_s"};
inline constexpr std::string_view step_seconds[] = {"step_s", "step_seconds"};
inline constexpr std::string_view ranks[] = {"world_size", "workers", "ranks"};
} // namespace column

/// The number in a cell; nothing: the cell is empty or a text.
[[nodiscard]] std::optional<double> number_of(std::string_view cell);
/// The step with which a row begins; nothing: it begins with something else.
[[nodiscard]] std::optional<std::uint64_t> step_of(std::string_view row);

/// What a last line without an end is, which its writer may not have finished.
enum class torn_line : bool { left_out, row };

/// All of a table. The text must outlive it.
class metrics_table {
public:
    explicit metrics_table(std::string_view text, torn_line last = torn_line::left_out);

    /// Empty: the text has no line.
    [[nodiscard]] const std::vector<std::string>& names() const noexcept { return names_; }
    [[nodiscard]] bool begins_with_step() const { return !names_.empty() && names_[0] == "step"; }
    [[nodiscard]] std::size_t size() const noexcept { return rows_.size(); }
    /// The text of a row, without its end.
    [[nodiscard]] std::string_view row(std::size_t at) const { return rows_.at(at); }
    [[nodiscard]] const std::vector<std::string_view>& rows() const noexcept { return rows_; }
    /// A row may have more cells than there are names, or fewer.
    [[nodiscard]] std::vector<std::string> cells(std::size_t at) const;

private:
    std::vector<std::string> names_;
    std::vector<std::string_view> rows_;
};

/// The last number in each column. Reads the first line and the last rows alone, so that a long
/// table costs no more than a short one.
class last_values {
public:
    /// A report need not have all columns: how many rows are read for each.
    static constexpr std::size_t most_rows = 64;

    explicit last_values(std::string_view text);
    /// Of the first of these names that has a column with a number; nothing: none has.
    [[nodiscard]] std::optional<double> of(std::span<const std::string_view> names) const;

private:
    std::vector<std::string> names_;
    std::vector<std::optional<double>> values_; // by column
};

namespace detail {
/// The lines of a text that have an end, without it.
[[nodiscard]] std::vector<std::string_view> whole_lines(std::string_view text);
} // namespace detail

} // namespace skein::report

#if SKEIN_HEADER_ONLY
#include <skein/report/detail/metrics_table.ipp>
#endif
