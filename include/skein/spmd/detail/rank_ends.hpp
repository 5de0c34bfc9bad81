// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the end of a rank means, and what people read of a job that gives up: the same rules and
// words whoever leads it.

#include <skein/core/constants.hpp>
#include <skein/core/error.hpp>
#include <skein/spmd/supervisor.hpp>

#include <csignal>
#include <optional>
#include <string>
#include <utility>

namespace skein::spmd::detail {

/// It would only come again: a wrong command line, output without a reader, a limit on files.
[[nodiscard]] constexpr bool is_lasting_end(int code, int signal) noexcept {
    return code == exit_code::usage || signal == SIGPIPE || signal == SIGXFSZ;
}

/// Of a rank that has ended: "worker 3 (pid 7) was killed by signal 9", and why, if that is known.
[[nodiscard]] inline error loss_of(std::string what, int signal, const std::string& last_words) {
    error why(errc::worker_lost, std::move(what));
    if (!last_words.empty()) why.with_cause(last_words);
    if (signal == SIGPIPE) why.with_cause("nobody reads its output any more");
    return why;
}

/// Behind the hint that it has.
inline void add_hint(error& why, const std::string& hint) {
    why.with_hint(why.hint().empty() ? hint : why.hint() + "; " + hint);
}

/// Of the failure after which a job is not started once more.
///   already   what it has cost: "the job was restarted 3 times already"
inline void give_up(error& why, const std::string& already) {
    add_hint(why, already + "; when it is resumed it goes on from its last checkpoint, if it has "
                            "one");
}

/// The failures of one job, in turn.
class failures_in_turn {
public:
    /// Whether it is that of the attempt before, see comes_again(); then its hint says so.
    [[nodiscard]] bool is_again(error& why) {
        const bool again = before_ && comes_again(*before_, why);
        before_ = why;
        if (again)
            add_hint(why, "it came again at the same step after a restart: not tried once more");
        return again;
    }

private:
    std::optional<error> before_;
};

} // namespace skein::spmd::detail
