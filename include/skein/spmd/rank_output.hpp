// SPDX-License-Identifier: Apache-2.0
#pragma once
// What ranks print, on its way to files and to the terminal: a file for each rank and attempt,
// lines with the name of their rank.
//
//     rank_output_options how;
//     how.folder = "logs/j1";                     // logs/j1/attempt_0/1/stderr.log
//     how.redirect = [](int) { return rank_output_options::all; };
//     rank_output written(how);                   // makes the folder
//     written.take(0, 1, 1, child);               // attempt 0, rank 1 of this host and of all
//     auto ending = written.end();                // until all of them have ended
//
// The first file that cannot be written any more is said, at the end how many there were, and the
// ranks go on without them. A terminal
// that nobody reads holds up the ranks, as it does without all this, and nobody else.

#include <skein/core/config.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/proc/children.hpp>
#include <skein/proc/output.hpp>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace skein::spmd {

/// Which of both outputs, as bits, of each rank. Ranks are those of this host, from 0 on; files and
/// lines have the number that a rank has among those of all hosts.
struct rank_output_options {
    static constexpr int standard_output = 1, standard_error = 2, all = 3;

    std::string folder{};                    ///< of the job
    std::function<int(int rank)> redirect{}; ///< to a file alone
    std::function<int(int rank)> tee{};      ///< to a file and to the terminal
    std::function<bool(int rank)> shown{};   ///< ranks that print to the terminal; empty: all
    std::function<void(const std::string&)> say{};

    [[nodiscard]] bool is_asked() const noexcept { return writes_files() || shown; }
    [[nodiscard]] bool writes_files() const noexcept { return redirect || tee; }
    /// Of one output, by the rank's number among all; whether or not there is one.
    [[nodiscard]] std::string file(int attempt, int number, bool is_error) const;
    [[nodiscard]] bool has_file(int rank, bool is_error) const;
    [[nodiscard]] bool is_shown(int rank, bool is_error) const;
};

/// Lives on one loop; end() before its end.
class rank_output {
public:
    ///   errors  not_found, permission_denied, disk_full, io: the folder cannot be made
    explicit rank_output(rank_output_options options);

    /// Reads until the rank has ended. Its child was started with reads_output.
    ///   number  of the rank among those of all hosts
    void take(int attempt, int rank, int number, std::shared_ptr<proc::child> from);
    /// Suspends until all is written that the ranks have printed. Once.
    [[nodiscard]] task<void> end();

private:
    struct stream;
    task<void> pass_on(std::shared_ptr<stream> from);
    void keep(stream& of, std::string_view bytes);

    rank_output_options options_;
    std::unique_ptr<proc::output_printer> printer_; ///< where something is shown
    int cut_off_ = 0; ///< files that could not be written to their end
    scope passing_;
};

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/rank_output.ipp>
#endif
