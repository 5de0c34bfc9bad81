// SPDX-License-Identifier: Apache-2.0
#pragma once
// A job that was submitted to a head, and the lines of it that are kept. Each attempt is a lease of
// a driver that nobody is: its number is drawn, and the head itself asks for room, takes what is
// printed, and hears of the end. So an attempt is placed, held and ended as a worker is.

#include <skein/cluster/detail/job_messages.hpp>
#include <skein/cluster/job_progress.hpp>
#include <skein/cluster/package_store.hpp>
#include <skein/core/time.hpp>
#include <skein/core/wait.hpp>
#include <skein/proc/output.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::cluster::detail {

inline constexpr std::size_t most_open_jobs = 10'000;
inline constexpr std::size_t most_ended_jobs = 1000;
inline constexpr std::size_t most_ended_bytes = std::size_t{256} << 20; ///< that these printed
inline constexpr std::size_t most_command_bytes = 64 << 10; ///< arguments and environment
inline constexpr std::size_t most_job_id = 64;
inline constexpr std::size_t most_label_bytes = 256; ///< of a node that a job or a lease asks for
inline constexpr std::size_t most_followed = std::size_t{256} << 10; ///< bytes of one answer
inline constexpr std::size_t most_known_attempts = 100; ///< of a job, for who asks for one
inline constexpr std::uint64_t entry_lease = 1;         ///< its number, in each attempt

/// The lines of a job that are kept: the last MiB of them, by number.
class kept_lines {
public:
    static constexpr std::size_t most_bytes = std::size_t{1} << 20;
    struct run {
        std::uint64_t first = 1; ///< its number
        std::vector<proc::output_line> lines;
    };

    void add(proc::output_line line) {
        bytes_ += line.text.size() + cost;
        lines_.emplace_back(++total_, std::move(line));
        while (bytes_ > most_bytes && lines_.size() > 1) {
            bytes_ -= lines_.front().second.text.size() + cost;
            lines_.pop_front();
        }
    }
    /// Drops all lines that are kept; later lines are numbered on from them.
    void drop() noexcept {
        left_out_ += lines_.size();
        lines_ = {};
        bytes_ = 0;
    }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    /// Counts lines that were lost on their way: they have numbers, and cannot be read.
    void skip(std::uint64_t count) noexcept {
        total_ += count;
        left_out_ += count;
    }
    /// Lines of another head's time.
    void begin_at(std::uint64_t total) noexcept { total_ = total; }
    /// The number of the last one; they begin with 1.
    [[nodiscard]] std::uint64_t total() const noexcept { return total_; }
    [[nodiscard]] std::uint64_t left_out() const noexcept { return left_out_; }
    /// Lines from that number on, or from the first that is kept, up to the first gap.
    [[nodiscard]] run from(std::uint64_t number, std::size_t bytes) const {
        run out;
        auto at = std::lower_bound(lines_.begin(), lines_.end(), number,
                                   [](const auto& l, std::uint64_t n) { return l.first < n; });
        out.first = at == lines_.end() ? std::max(number, total_ + 1) : at->first;
        for (; at != lines_.end() && at->first == out.first + out.lines.size(); ++at) {
            const auto takes = at->second.text.size() + proc::line_queue::line_cost;
            if (!out.lines.empty() && takes > bytes) break;
            bytes -= takes < bytes ? takes : bytes;
            out.lines.push_back(at->second);
        }
        return out;
    }
    /// The last ones, at most so many, cut to be part of a message.
    [[nodiscard]] std::vector<std::string> last(std::size_t count) const {
        std::vector<std::string> out;
        for (auto at = lines_.size() - std::min(count, lines_.size()); at < lines_.size(); ++at)
            out.push_back(lines_[at].second.text.substr(0, 512));
        return out;
    }

private:
    using numbered = std::pair<std::uint64_t, proc::output_line>;
    static constexpr std::size_t cost = sizeof(numbered); ///< of a line, beside its text
    std::deque<numbered> lines_;
    std::size_t bytes_ = 0;
    std::uint64_t total_ = 0, left_out_ = 0;
};

/// How fast a table grows, by the moments at which its rows came: the table has no times.
class row_pace {
public:
    void came(time_point now, const std::optional<double>& step) {
        if (!step || (!seen_.empty() && *step <= seen_.back().second)) return;
        seen_.emplace_back(now, *step);
        while (seen_.size() > 16) seen_.pop_front();
    }
    void begin_anew() noexcept { seen_.clear(); }
    /// Nothing: it has grown once alone.
    [[nodiscard]] std::optional<double> steps_per_s() const {
        if (seen_.size() < 2) return std::nullopt;
        const auto& [first, from] = seen_.front();
        const auto& [last, to] = seen_.back();
        const auto seconds = to_seconds(last - first);
        return seconds > 0 ? std::optional((to - from) / seconds) : std::nullopt;
    }

private:
    std::deque<std::pair<time_point, double>> seen_;
};

inline constexpr std::size_t most_past_attempts = 100;

/// What a training says of itself; empty: nothing yet.
struct training_word {
    std::string text;
    std::uint32_t worlds = 0; ///< as it says there, see job_progress
    std::string last_change;
    std::string workers; ///< "3 of 1:4": of those that come and go

    void hear(std::string said) {
        job_progress now;
        add_told(now, said);
        text = std::move(said);
        worlds = now.worlds;
        last_change = std::move(now.last_change);
        workers = now.range.empty() || !now.ranks
                      ? std::string()
                      : fmt::format("{:.0f} of {}", *now.ranks, now.range);
    }
};

/// A job, from its submission until it is forgotten.
struct submitted_job {
    std::uint64_t number = 0; ///< in the order in which they came
    job_request what;
    job_state state = job_state::pending;
    /// What others are told: an end, once the log has it. It would be another one, if the head died
    /// before that.
    job_state shown = job_state::pending;
    std::string reason, node;
    std::uint32_t attempt = 0;
    std::uint32_t not_counted = 0; ///< attempts that are none of its retries
    std::uint32_t not_started = 0; ///< nodes that could not start it, in a row: no attempts
    std::int64_t pid = 0;          ///< of its entry process, on its node
    std::uint64_t lease_of = 0;    ///< the newest attempt's driver
    std::uint64_t placed_on = 0;   ///< the incarnation of its node
    std::int32_t exit_code = -1, signal = 0;
    std::int64_t submitted = 0, started = 0, ended = 0; ///< milliseconds since 1970

    time_point since{};         ///< in this state, by this head's clock
    time_point pending_since{}; ///< or since the first node that could not start it
    time_point retry_at{};      ///< retrying, or pending without a lease
    /// It was told to end: what it is then, and why.
    bool is_stopping = false;
    job_state stops_as = job_state::stopped; ///< retrying: see is_moving()
    std::string stops_for;

    package_pin files; ///< as long as it is not over
    kept_lines said;
    std::uint64_t next_line = 1;    ///< of this attempt's process
    std::uint64_t lines_before = 0; ///< of the attempts before
    /// The first line of each attempt that began under this head, the last ones.
    std::map<std::uint32_t, std::uint64_t> begins;
    std::vector<std::string> last_lines;
    std::string run, rows;          ///< metrics.csv of its newest training, as far as it has come
    std::uint64_t rows_edition = 0; ///< how often it began anew
    std::string folder;             ///< of that training, on its node
    training_word told;
    std::map<int, std::string> rank_nodes; ///< of this attempt: nodes by rank, as they were started
    row_pace pace;
    std::deque<past_attempt> failed; ///< the newest ones, at most most_past_attempts
    wait_queue news;                 ///< lines, or another state
};

/// Its attempt is told to end so that the next one begins on another node.
[[nodiscard]] inline bool is_moving(const submitted_job& job) noexcept {
    return job.is_stopping && job.stops_as == job_state::retrying;
}

/// What is to be said of some of them, by id.
using texts_by_job = std::map<std::string, std::string>;

} // namespace skein::cluster::detail
