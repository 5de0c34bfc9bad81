// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a rank and its helpers say to each other, and both without the type of the rows.

#include <skein/core/bytes.hpp>
#include <skein/core/task.hpp>
#include <skein/data/detail/rows.hpp>
#include <skein/data/helpers.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace skein::data::detail {

/// Rows that a helper is to make.
struct rows_request {
    std::uint64_t seed = 0, epoch = 0;
    std::vector<std::uint64_t> samples;
    byte_buffer places; ///< of the samples, encoded one after the other
};

/// What became of one row.
enum class row_fate : std::uint8_t {
    made,    ///< its values are in the answer
    dropped, ///< a filter left it out
    bad,     ///< its function threw
    away     ///< this host has not what it reads
};

/// A row that could not be made, and why.
struct bad_row {
    std::uint64_t sample = 0;
    error why{errc::unknown, ""};
    /// It is of another shape than the first row that this rank happened to make: leaving it out
    /// would leave out others on another rank.
    bool is_unlike = false;
};

struct rows_answer {
    std::vector<row_fate> fates;
    std::vector<bad_row> bad;      ///< of rows that are bad or away, in their order
    byte_buffer rows;              ///< those that were made, one after the other
    std::uint64_t nanoseconds = 0; ///< that making them took there
};

/// A helper that was made.
class row_helper {
public:
    virtual ~row_helper() = default;
    /// Makes rows. Resumes the caller on its loop.
    ///   errors  those of a call of an actor
    [[nodiscard]] virtual task<rows_answer> make(rows_request wanted) = 0;
    /// For people.
    [[nodiscard]] virtual std::string name() const = 0;
};

/// A pipeline without its types. Thread-safe: nothing in it changes.
class row_program {
public:
    virtual ~row_program() = default;
    /// Samples of an epoch, before filters.
    [[nodiscard]] virtual std::uint64_t size() const = 0;
    /// The sample at a place of an epoch's order.
    [[nodiscard]] virtual std::uint64_t sample_at(std::uint64_t seed, std::uint64_t epoch,
                                                  std::uint64_t place) const = 0;
    /// How the source calls a sample, for messages: "cat/1.jpg". Empty: by its number alone.
    [[nodiscard]] virtual std::string name_of(std::uint64_t) const { return {}; }
    /// How a step of a row is called, as row_place numbers them: "map(decode)".
    [[nodiscard]] virtual std::string step_name(std::uint32_t) const { return {}; }
    /// What a pipeline is, in one line: equal texts give equal rows.
    [[nodiscard]] virtual std::string describe() const = 0;
    /// Makes a row in the current arena, which the cells refer to.
    ///   result  false: a filter left it out
    ///   errors  what its functions throw
    [[nodiscard]] virtual bool make(std::uint64_t seed, std::uint64_t epoch, std::uint64_t sample,
                                    cells& out) const = 0;

    /// What of it runs on helpers.
    [[nodiscard]] virtual helpers wanted() const { return {}; }
    /// The places of samples, for a request.
    [[nodiscard]] virtual byte_buffer locate(const std::vector<std::uint64_t>&) const { return {}; }
    /// Reads the next row of an answer and does what is left to do with it.
    ///   result  as of make()
    ///   errors  malformed; what its functions throw
    [[nodiscard]] virtual bool finish(wire::reader&, std::uint64_t seed, std::uint64_t epoch,
                                      std::uint64_t sample, cells&) const;
    /// Makes a helper; on a loop of a runtime.
    ///   errors  those of making an actor
    [[nodiscard]] virtual task<std::unique_ptr<row_helper>> make_helper() const;
};

} // namespace skein::data::detail

#if SKEIN_HEADER_ONLY
#include <skein/data/detail/row_messages.ipp>
#endif
