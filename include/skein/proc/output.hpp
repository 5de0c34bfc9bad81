// SPDX-License-Identifier: Apache-2.0
#pragma once
// What workers print, on its way to the output of their driver: whole lines, in order for each
// worker, and in bounded memory. Where lines come faster than they are taken the oldest are left
// out, and counted by their numbers.
//
//     proc::line_queue said;                                    // of one worker
//     scope.spawn(proc::read_lines(child, &said, on_more));     // until it has ended
//     proc::worker_lines some{"worker-3", "node-2"};
//     some.lines = said.take(60'000);
//
//     // a thread: no loop waits for a terminal
//     proc::output_printer printer;
//     auto printed = printer.print({some});                   // (worker-3, node-2) text
//     co_await printed;

#include <skein/core/config.hpp>
#include <skein/core/task.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::proc {

class child;

/// A line that a process has written, without its end.
struct output_line {
    bool is_error = false; ///< to its standard error
    std::string text{};
};

/// Lines of one worker, in the order in which they were read.
struct worker_lines {
    std::string worker{}, node{}; ///< "worker-3"; "node-2", empty: this host
    std::uint64_t left_out = 0;   ///< lines before these that nobody will see
    std::vector<output_line> lines{};
};

/// Where lines go: what prints them, and suspends until it has.
using print_lines = std::function<task<void>(std::vector<worker_lines>)>;

/// The lines of one process that nobody has taken yet. Numbers begin with 1 and count both of its
/// outputs.
class line_queue {
public:
    /// A longer line is cut into lines of this length.
    static constexpr std::size_t most_line = std::size_t{16} << 10;
    /// What a line takes beside its text.
    static constexpr std::size_t line_cost = 16;

    /// Above `most` bytes the oldest lines are left out.
    explicit line_queue(std::size_t most = std::size_t{256} << 10) noexcept : most_(most) {}

    /// Bytes as the process has written them; the part behind the last line end waits for the rest.
    void add(bool is_error, std::string_view bytes);
    /// There is no rest: what has no line end is a line, too.
    void end();

    /// Called with each line and its number when it comes, before any is left out.
    void on_line(std::function<void(std::uint64_t, const output_line&)> does) {
        does_ = std::move(does);
    }

    [[nodiscard]] bool empty() const noexcept { return lines_.empty(); }
    /// The number of the line that take() gives first.
    [[nodiscard]] std::uint64_t next() const noexcept { return total_ + 1 - lines_.size(); }
    /// All lines so far, with those that were left out or taken.
    [[nodiscard]] std::uint64_t total() const noexcept { return total_; }
    /// The oldest lines, at most so many bytes, line_cost included; at least one, if there is one.
    [[nodiscard]] std::vector<output_line> take(std::size_t most_bytes);
    /// What take() gave last, from the line of this number on, did not arrive: it is given again,
    /// unless lines after it have been left out meanwhile.
    void put_back(std::uint64_t first, std::vector<output_line> lines);
    /// The last three lines of its standard error, cut to be part of a message, taken or not;
    /// empty: there are none.
    [[nodiscard]] std::string last_errors() const;

private:
    void push(bool is_error, std::string text);

    std::size_t most_, bytes_ = 0;
    std::uint64_t total_ = 0;
    std::deque<output_line> lines_;
    std::deque<std::string> errors_;     ///< the last ones
    std::array<std::string, 2> unended_; ///< output, error
    std::function<void(std::uint64_t, const output_line&)> does_;
};

/// Reads both outputs of a child until it has ended and all is read, however fast they come.
///   from, into  must outlive the task
///   on_more     called after each piece
///   errors      cancelled
[[nodiscard]] task<void> read_lines(child* from, line_queue* into, std::function<void()> on_more);

/// Reads what a child prints and gives it to `print`, until it has ended and all is printed.
///   from, print  must outlive the task
///   errors       cancelled; those of `print`
[[nodiscard]] task<void> pass_lines_on(child* from, std::string worker, const print_lines* print);

/// How lines of workers look.
struct output_style {
    bool prefix = true;                                     ///< "(worker-3, node-2) "
    bool colour_on_output = false, colour_on_error = false; ///< of the prefix
};

/// A piece of text for one of the two outputs.
struct output_text {
    bool is_error = false;
    std::string text{}; ///< whole lines
};
/// The text that is printed for these lines.
[[nodiscard]] std::vector<output_text> format_lines(const std::vector<worker_lines>& all,
                                                    const output_style& how);

/// Prints on this process's output and error, on a thread of its own, so that a terminal or pipe
/// that is not read holds up nobody but who waits for print(). What this process prints itself
/// through `stdout` and `stderr` is not mixed into lines. Where an output is gone, what is for it
/// is dropped.
class output_printer {
public:
    ///   prefix  see output_style; it has colour where that is a terminal and NO_COLOR is not set
    ///   errors  io: no thread
    explicit output_printer(bool prefix = true, std::FILE* output = stdout,
                            std::FILE* error = stderr);
    output_printer(const output_printer&) = delete;
    output_printer& operator=(const output_printer&) = delete;
    /// What has not been printed is dropped. The loops of all print() must still be there.
    ~output_printer();

    /// Suspends until they are printed; in the order of the calls.
    ///   errors  cancelled: they are printed all the same
    [[nodiscard]] task<void> print(std::vector<worker_lines> what);

private:
    struct parts; // in detail/output_printer.ipp
    const std::shared_ptr<parts> parts_;
};

/// print_lines of an output_printer that lives as long as this or a copy of it.
[[nodiscard]] print_lines print_to_standard_files(bool prefix);

} // namespace skein::proc

#if SKEIN_HEADER_ONLY
#include <skein/proc/detail/output.ipp>
#include <skein/proc/detail/output_printer.ipp>
#endif
