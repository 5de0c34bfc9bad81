// SPDX-License-Identifier: Apache-2.0
#pragma once
// One attempt = one group server + N children. It ends when the group has ended and every child is
// gone.

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/check.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/event.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/random.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/net/stop_watch.hpp>
#include <skein/proc/children.hpp>
#include <skein/spmd/detail/rank_ends.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <unistd.h>

#include <fmt/format.h>

namespace skein::spmd::detail {

/// A rank as a child. What it is told goes through a pipe: nothing of it is in its environment, so
/// nothing of it reaches what it starts.
SKEIN_INLINE proc::child_options child_of(const rank_program& program, std::string name,
                                          std::map<std::string, std::string> told) {
    proc::child_options how;
    for (const auto& [variable, value] : program.variables) told.try_emplace(variable, value);
    how.role = rank_role;
    how.name = std::move(name);
    how.message = wire::encode(told);
    how.socket = false;
    how.executable = program.executable;
    how.argv = program.argv;
    how.env = program.env;
    how.threads = program.threads;
    return how;
}

/// One job of N ranks.
class job {
public:
    job(net::real_loop& loop, supervisor_options options)
        : options_(std::move(options)), network_(loop),
          requests_(loop, {.signals = options_.takes_signals, .fd = options_.stop_fd}) {
        if (options_.children)
            children_ = options_.children(loop, network_);
        else
            children_ = std::make_shared<proc::local_children>(loop);
        if (options_.share) job_id_ = options_.share->job;
    }
    /// Of a share of several hosts, the first one's: serves the group of all.
    void serve(std::unique_ptr<group_server> group) { server_ = std::move(group); }
    /// As a first signal, and as a second one.
    void stop(int signal) { begin_to_stop(signal); }
    void kill() {
        kill_now_ = true;
        begin_to_stop(SIGTERM);
    }
    /// The world is lost for a reason elsewhere. Once the ranks have started.
    void break_off(const error& why) {
        if (!broken_off_) broken_off_ = why;
        if (current_ != nullptr) end_broken(*current_);
    }

    task<supervisor_outcome> run() {
        scope watching;
        watching.spawn(requests_.hear([this](int signal, bool again) {
            if (again) kill_now_ = true;
            begin_to_stop(signal);
        }));
        children_->on_leave([this](const std::string& why) { begin_to_move(why); });
        std::exception_ptr failure;
        try {
            auto attempts = run_attempts();
            co_await attempts;
        } catch (...) {
            failure = std::current_exception();
        }
        auto closing = as_result(children_->close());
        (void)co_await closing; // whatever is wrong there, how the ranks ended is known
        watching.cancel();
        auto joined = shield(watching.join());
        co_await joined;
        if (failure) std::rethrow_exception(failure);
        outcome_.stop_signal = stop_signal_;
        co_return outcome_;
    }

private:
    /// For a last word that is on its way, or for the kernel to clear a dead process away.
    static constexpr auto moment = time_constants::lan().last_word;

    struct rank_process {
        std::unique_ptr<proc::child> process;
        bool running = false;
        bool killed_by_us = false;
        bool was_asked = false;   ///< to end
        bool is_done = false;     ///< ended with 0, and by itself
        int code = 0;             ///< of a bad end, as a shell says it
        std::optional<error> why; ///< of a bad end
    };
    struct attempt {
        int number = 0;
        bool meets = true; ///< false: as far as anybody knows, each rank is any program
        std::unique_ptr<group_server> server; ///< null: another host serves it
        std::vector<rank_process> ranks;
        std::optional<group_outcome> group; ///< how the group ended
        event changed;                      ///< a rank or the group has ended

        [[nodiscard]] bool any_running() const {
            for (const auto& r : ranks) {
                if (r.running) return true;
            }
            return false;
        }
    };

    task<void> run_attempts() {
        auto opened = until_stopped(children_->open());
        if (auto open = co_await opened; !open) {
            outcome_.failure = open.error();
            lasting_ = true;
            co_return;
        }
        failures_in_turn failures;
        for (int number = 0;; ++number) {
            auto attempted = run_attempt(number);
            outcome_.failure = co_await attempted;
            auto& failure = outcome_.failure;
            outcome_.is_lasting = failure && (lasting_ || is_lasting(failure->code()));
            const auto moved = std::exchange(moves_for_, {});
            if (!failure && is_done_) co_return; // who leaves as asked ends with 143
            if (!moved.empty() && stop_signal_ == 0 && !outcome_.is_lasting) {
                failure.reset(); // it has left its places: the next one has others
                last_failure_ = moved.substr(0, 1000);
                continue;
            }
            if (!failure || stop_signal_ != 0 || outcome_.is_lasting) co_return;
            if (failures.is_again(*failure)) co_return;
            if (outcome_.restarts >= options_.max_failures) {
                if (number > 0)
                    give_up(*failure, fmt::format("the job was restarted {} time{} already", number,
                                                  number == 1 ? "" : "s"));
                co_return;
            }
            ++outcome_.restarts;
            last_failure_ = failure->text().substr(0, 1000);
            if (options_.on_failure)
                options_.on_failure(*failure, outcome_.restarts, options_.max_failures);
            auto pausing = as_result(stop_.wait_for(options_.times.pause(outcome_.restarts)));
            (void)co_await pausing;
            if (stop_signal_ != 0) co_return;
        }
    }

    /// What takes as long as it takes, until a person stops it.
    template <class T>
    task<result<T>> until_stopped(task<T> what) {
        auto stoppable = as_result(with_cancel(stopping_.token(), std::move(what)));
        co_return co_await stoppable;
    }

    /// Gives nothing when every rank has left in order.
    task<std::optional<error>> run_attempt(int number) {
        auto reserving = until_stopped(children_->reserve(options_.workers));
        auto where = co_await reserving;
        if (!where && stop_signal_ != 0)
            co_return error(errc::cancelled, "stopped before there was room for the workers");
        lasting_ = lasting_ || !where;
        if (!where) co_return where.error();
        auto run = run_attempt_in(number, std::move(*where));
        auto how = co_await run;
        children_->release();
        co_return how;
    }

    task<std::optional<error>> run_attempt_in(int number, std::vector<proc::child_place> where) {
        attempt now;
        is_done_ = false;
        now.number = number;
        now.meets = !options_.until_met;
        group_options group;
        group.world_size = options_.workers;
        group.generation = number;
        group.job = job_id_;
        auto door = children_->door();
        group.secret = options_.share ? options_.share->secret : door.secret;
        group.join_deadline = options_.join_deadline;
        group.alive = options_.alive;
        group.given = options_.given;
        group.most_told = options_.most_told;
        if (!options_.share)
            now.server = std::make_unique<group_server>(network_, door.at, group);
        else
            now.server = std::move(server_);
        const auto at = options_.share ? options_.share->group : now.server->local();

        scope watching;
        watching.spawn(watch_group(&now));
        std::optional<error> failed;
        outcome_.culprit = -1;
        outcome_.culprit_code = 0;
        outcome_.is_elsewhere = false;
        current_ = &now;
        now.ranks.resize(static_cast<std::size_t>(options_.workers));
        for (int r = 0; r < options_.workers && !failed && (now.meets || !now.group); ++r) {
            try {
                if (broken_off_) throw error(*broken_off_);
                if (stop_signal_ != 0 || !moves_for_.empty())
                    throw error(errc::cancelled, "stopped while the workers were starting");
                auto starting =
                    start_rank(&now, r, where[static_cast<std::size_t>(r)], at, group.secret);
                co_await starting;
                watching.spawn(watch_rank(&now, r));
            } catch (const error& e) {
                failed = e;
                if (now.meets && now.server) now.server->abort(e);
                if ((!now.meets || !now.server) && !now.group) now.group = group_outcome{e};
            }
            if (!now.meets && now.group) ask_all_to_end(now);
            co_await yield(); // early ranks knock already, a person may press Ctrl-C
        }
        auto over = until_over(&now);
        co_await over;
        current_ = nullptr;
        if (!now.meets || !now.server) watching.cancel(); // nobody has met here
        auto joined = shield(watching.join());
        co_await joined;
        for (auto& [key, blob] : now.group->told) outcome_.told[key] = std::move(blob);
        if (failed) co_return failed;
        is_done_ = std::all_of(now.ranks.begin(), now.ranks.end(),
                               [](const rank_process& r) { return r.is_done; });
        co_return verdict(now);
    }

    task<void> start_rank(attempt* now, int rank, proc::child_place where, net::address at,
                          net::token secret) {
        const auto& share = options_.share;
        std::map<std::string, std::string> told{
            {"SKEIN_RANK", std::to_string(in_world(rank))},
            {"SKEIN_WORLD_SIZE", std::to_string(share ? share->world_size : options_.workers)},
            {"SKEIN_LOCAL_RANK", std::to_string(where.local_rank)},
            {"SKEIN_LOCAL_SIZE", std::to_string(where.local_size)},
            {"SKEIN_ATTEMPT", std::to_string(share ? share->attempt : now->number)},
            {"SKEIN_JOB_ID", job_id_},
            {group_variable, net::to_string(at)},
            {token_variable, secret.to_hex()}};
        if (!last_failure_.empty()) told["SKEIN_LAST_FAILURE"] = last_failure_;
        auto what = child_of(options_, fmt::format("worker {}", rank), std::move(told));
        what.stop_grace = options_.times.stop_grace;
        auto starting = children_->start(std::move(what));
        auto& place = now->ranks[static_cast<std::size_t>(rank)];
        place.process = co_await starting;
        place.running = true;
    }

    /// Whoever has ended before the others met was no rank of theirs.
    task<void> until_they_meet(attempt* now) {
        auto meeting = options_.until_met();
        co_await meeting;
        now->meets = true;
        if (now->group) co_return; // it was over before
        if (!now->server) co_return;
        for (std::size_t r = 0; r < now->ranks.size(); ++r) {
            const int rank = in_world(static_cast<int>(r));
            if (now->ranks[r].process && !now->ranks[r].running)
                now->server->abort(exited_early(rank), rank);
        }
    }
    task<void> watch_group(attempt* now) {
        if (!now->meets) {
            auto meeting = until_they_meet(now);
            co_await meeting;
            if (now->group || !now->server) co_return;
        }
        group_outcome how;
        try {
            auto run = now->server->run();
            how = co_await run;
        } catch (const error& e) {
            how.failure = e;
        }
        if (how.culprit >= 0) {
            how.culprit -= in_world(0);
            if (how.culprit < 0 || how.culprit >= options_.workers) {
                how.culprit = -1;
                outcome_.is_elsewhere = true;
            }
        }
        now->group = std::move(how);
        now->changed.set();
    }
    /// What has been told from elsewhere; a group of this host tells its ranks.
    static void end_group(attempt& now, error why) {
        if (now.group) return;
        if (now.meets && now.server) return now.server->abort(std::move(why));
        group_outcome how;
        how.failure = std::move(why);
        how.reported = true;
        now.group = std::move(how);
        if (!now.meets) ask_all_to_end(now);
        now.changed.set();
    }
    void end_broken(attempt& now) { end_group(now, *broken_off_); }
    /// The number that a rank of this host has among all.
    [[nodiscard]] int in_world(int rank) const {
        return rank + (options_.share ? options_.share->first_rank : 0);
    }

    /// "worker 3 (pid 7)", "worker 3 on n2", "rank 3 (pid 7 at n2)"
    [[nodiscard]] std::string name_of(const proc::child& rank) const {
        if (rank.pid() == 0) return rank.name();
        return fmt::format("{} (pid {}{})", rank.name(), rank.pid(),
                           options_.share ? " at " + options_.share->host : std::string());
    }
    [[nodiscard]] static error exited_early(int rank) {
        return error(errc::worker_lost,
                     fmt::format("worker {} exited before the job was done", rank))
            .with_hint("it must return from its training function, not call exit()");
    }

    task<void> watch_rank(attempt* now, int rank) {
        auto& self = now->ranks[static_cast<std::size_t>(rank)];
        auto ended = self.process->ended();
        const auto end = co_await ended;
        const auto& status = end.status;
        // What a program that was stopped in order returns; one that was still starting dies of the
        // signal.
        const int stop = stop_asked(); // maybe before our loop has read it
        const auto is_stop = [&](int signal) {
            return status.code() == 128 + signal || status.signal() == signal;
        };
        // Elsewhere every stop comes as SIGTERM.
        const bool as_asked =
            stop != 0 && (end.lost.empty() ? is_stop(stop) || is_stop(SIGTERM) : end.was_asked);
        const bool is_bad = !status.success() || !end.lost.empty();
        self.is_done = !is_bad && !self.was_asked;
        if (is_bad && !self.killed_by_us) // else the code is our own
            self.code = status.signal() != 0 ? 128 + status.signal() : status.code();
        if (!now->meets) self.killed_by_us = self.killed_by_us || stop != 0 || now->group;
        if (is_bad && !as_asked && !self.killed_by_us) {
            self.why =
                loss_of(fmt::format("{} {}", name_of(*self.process),
                                    end.lost.empty() ? status.describe() : "is lost: " + end.lost),
                        status.signal(), end.last_words);
            lasting_ = lasting_ || end.is_lasting || is_lasting_end(status.code(), status.signal());
        }
        if (!now->meets || !now->server) {
            if (self.why) end_all_for(now, rank);
            self.running = false;
            now->changed.set();
            co_return;
        }
        // What it said last may still be on its way through the socket: that is the better reason.
        if (!now->group) {
            auto word = as_result(now->changed.wait_for(moment));
            (void)co_await word;
        }
        const bool early = !now->server->has_left(in_world(rank)) && !self.killed_by_us;
        if (early && !is_bad) self.why = exited_early(in_world(rank));
        if (!now->group && !now->server->has_left(in_world(rank))) {
            auto why = self.why ? *self.why
                       : as_asked && (status.signal() != 0 || end.was_asked)
                           ? error(errc::cancelled,
                                   fmt::format("worker {} was still starting", in_world(rank)))
                           : exited_early(in_world(rank));
            now->server->abort(std::move(why), in_world(rank));
        }
        self.running = false;
        now->changed.set();
    }

    /// A rank has failed, and no group here says so: the others of any program are asked to end,
    /// those of a training hear it from the host that serves their group.
    void end_all_for(attempt* now, int rank) {
        if (now->group && now->meets) return;
        group_outcome how;
        how.failure = now->ranks[static_cast<std::size_t>(rank)].why;
        how.culprit = rank;
        now->group = std::move(how);
        if (!now->meets) ask_all_to_end(*now);
    }
    /// Each once, also those that were still starting when it was the turn of the others.
    static void ask_all_to_end(attempt& now) {
        for (auto& r : now.ranks)
            if (r.running && !std::exchange(r.was_asked, true)) r.process->signal_group(SIGTERM);
    }

    /// Until the group has ended and all ranks are gone; kills those that outstay their grace.
    task<void> until_over(attempt* now) {
        std::optional<time_point> limit, silent_limit;
        bool has_failed = false;
        while (now->any_running() || !now->group) {
            if (!now->any_running() && (!now->meets || !now->server)) {
                if (!now->group) now->group = group_outcome{};
                break;
            }
            const auto time = loop::current().now();
            if (!has_failed && now->group && now->group->failure) { // also while they are stopping
                has_failed = true;
                limit = std::min(
                    limit.value_or(time_point::max()),
                    time + (now->meets ? options_.times.crash_grace : options_.times.silent_grace));
                // A rank that fell silent will not leave; one that has died is mostly reaped by then.
                if (!now->group->reported) silent_limit = time + moment;
            }
            if (has_failed) tell_of_failure(*now);
            if (silent_limit && time >= *silent_limit) {
                silent_limit.reset();
                if (now->group->culprit >= 0)
                    kill(now->ranks[static_cast<std::size_t>(now->group->culprit)]);
            }
            // After a good end the ranks may go on working, as long as nobody asks them to stop.
            const int ending = asks_with();
            if (!limit && ending != 0)
                limit =
                    time + (now->meets ? options_.times.stop_grace : options_.times.silent_grace);
            if (ending != 0 && !told_to_stop_) {
                told_to_stop_ = true;
                if (!now->meets) ask_all_to_end(*now);
                for (auto& r : now->ranks)
                    if (now->meets && r.running) r.process->signal(ending);
            }
            now->changed.reset();
            if (kill_now_ || (limit && time >= *limit)) {
                kill_all(*now);
                limit.reset();
                kill_now_ = false;
                if (!now->group && now->meets)
                    end_group(*now, error(errc::timeout, "the ranks did not stop in time"));
            }
            const auto until = std::min(silent_limit.value_or(time_point::max()),
                                        limit.value_or(time + std::chrono::hours(1)));
            auto change = as_result(now->changed.wait_until(until));
            (void)co_await change;
        }
        told_to_stop_ = false;
    }
    /// As soon as the culprit's end is known, if it is one of ours.
    void tell_of_failure(const attempt& now) {
        if (!options_.on_failing || broken_off_ || asks_with() != 0) return;
        const int culprit = now.group->culprit;
        if (culprit >= 0 && !now.group->reported &&
            now.ranks[static_cast<std::size_t>(culprit)].running)
            return;
        auto how = outcome_;
        how.failure = verdict(now);
        how.culprit = outcome_.culprit;
        how.culprit_code = outcome_.culprit_code;
        how.is_lasting = lasting_ || is_lasting(how.failure->code());
        std::exchange(options_.on_failing, {})(how);
    }
    static void kill_all(attempt& now) {
        for (auto& r : now.ranks) kill(r);
    }
    /// One that the kernel takes apart already, which may last on a busy host, ends by what came
    /// before.
    static void kill(rank_process& r) {
        if (!r.running) return;
        const bool is_dying = !r.process->running() || r.process->look().is_ending;
        r.killed_by_us = r.killed_by_us || !is_dying;
        r.process->kill();
    }

    /// The best account of what went wrong.
    [[nodiscard]] std::optional<error> verdict(const attempt& now) {
        const auto& group = *now.group;
        if (!group.failure) {
            for (std::size_t r = 0; r < now.ranks.size(); ++r) {
                if (!now.ranks[r].why) continue; // else it failed after its training was done
                outcome_.culprit = static_cast<int>(r);
                outcome_.culprit_code = now.ranks[r].code;
                return now.ranks[r].why;
            }
            return std::nullopt;
        }
        outcome_.culprit = group.culprit;
        if (group.culprit >= 0)
            outcome_.culprit_code = now.ranks[static_cast<std::size_t>(group.culprit)].code;
        if (!group.reported && group.culprit >= 0) {
            const auto& r = now.ranks[static_cast<std::size_t>(group.culprit)];
            if (r.why) return r.why;
        }
        return group.failure;
    }

    void begin_to_stop(int signal) {
        const bool first = stop_signal_ == 0;
        if (first) stop_signal_ = signal;
        if (first && options_.on_stop) options_.on_stop();
        stop_.set();
        stopping_.request();
        if (current_ != nullptr) current_->changed.set();
    }
    /// The ranks of this attempt leave their places, as if they were asked to stop, and those of the
    /// next one have others.
    void begin_to_move(const std::string& why) {
        if (current_ == nullptr || stop_signal_ != 0 || !moves_for_.empty()) return;
        moves_for_ = why.empty() ? "its places are asked back" : why;
        if (options_.say)
            options_.say(moves_for_ + ": the ranks save at the next step, and start elsewhere");
        current_->changed.set();
    }
    /// What the ranks are asked to end with, or 0.
    [[nodiscard]] int asks_with() const {
        return stop_signal_ != 0 ? stop_signal_ : moves_for_.empty() ? 0 : SIGTERM;
    }
    /// The same, as soon as it has come.
    [[nodiscard]] int stop_asked() const {
        const int signal = requests_.signal();
        return signal != 0 ? signal : asks_with();
    }

    supervisor_options options_;
    std::string job_id_ = fmt::format("job-{:016x}", system_random().next());
    net::real_network network_;
    std::shared_ptr<proc::children> children_;
    net::stop_watch requests_;
    supervisor_outcome outcome_;
    std::string last_failure_; ///< of the attempt before; empty: this is the first
    std::string moves_for_;    ///< why this attempt leaves its places; empty: it does not
    attempt* current_ = nullptr;
    int stop_signal_ = 0;
    bool told_to_stop_ = false;
    bool kill_now_ = false;
    bool is_done_ = false;                 ///< all ranks of the last attempt have ended with 0
    bool lasting_ = false;                 ///< a rank ended in a way that would only come again
    std::unique_ptr<group_server> server_; ///< of a share, until its attempt
    std::optional<error> broken_off_;
    event stop_;
    cancel_source stopping_; ///< the same, for what waits for others
};

} // namespace skein::spmd::detail

namespace skein::spmd {

SKEIN_INLINE supervisor_outcome supervise(supervisor_options options) {
    SKEIN_CHECK(options.workers > 0, "a job of {} workers", options.workers);
    loop::refuse_inside("a job of ranks", "start it from main");
    net::real_loop loop;
    detail::job work(loop, std::move(options));
    return loop.run(work.run());
}

} // namespace skein::spmd
