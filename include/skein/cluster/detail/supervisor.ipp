// SPDX-License-Identifier: Apache-2.0
#pragma once
// One attempt = one group server + N children. It ends when the group has ended and every child is gone.

#include <skein/cluster/meeting.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/check.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/event.hpp>
#include <skein/core/random.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/stop_signals.hpp>
#include <skein/core/this_process.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/readable_fd.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/rt/process.hpp>
#include <skein/rt/process_wait.hpp>

#include <algorithm>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <unistd.h>

#include <fmt/format.h>

namespace skein::cluster::detail {

SKEIN_INLINE task<void> wait_until_set(event* e) {
    auto waited = e->wait();
    co_await waited;
}

/// One job of N ranks on this host.
class job {
public:
    job(net::real_loop& loop, supervisor_options options)
        : options_(std::move(options)), loop_(loop), network_(loop),
          signals_(second_signal::is_counted) {
        if (options_.argv.empty()) options_.argv = own_arguments();
        if (options_.argv.empty()) options_.argv.emplace_back("skein");
    }

    task<supervisor_outcome> run() {
        scope watching;
        watching.spawn(watch_signals());
        std::exception_ptr failure;
        try {
            auto attempts = run_attempts();
            co_await attempts;
        } catch (...) {
            failure = std::current_exception();
        }
        watching.cancel();
        auto joined = shield(watching.join());
        co_await joined;
        if (failure) std::rethrow_exception(failure);
        outcome_.stop_signal = stop_signal_;
        co_return outcome_;
    }

private:
    /// For a last word that is on its way, or for the kernel to clear a dead process away.
    static constexpr auto moment = std::chrono::milliseconds(50);

    struct rank_process {
        rt::child_process process;
        bool running = false;
        bool killed_by_us = false;
        std::optional<error> why; ///< of a bad end
    };
    struct attempt {
        std::unique_ptr<group_server> server;
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
        auto pause = options_.backoff;
        for (int number = 0;; ++number) {
            auto attempted = run_attempt(number);
            outcome_.failure = co_await attempted;
            auto& failure = outcome_.failure;
            if (!failure || stop_signal_ != 0 || lasting_ || is_lasting(failure->code())) co_return;
            if (number >= options_.max_failures) {
                if (number > 0) {
                    auto hint =
                        fmt::format("the job was restarted {} time{} already; --resume goes on "
                                    "from its last checkpoint, if it has one",
                                    number, number == 1 ? "" : "s");
                    if (!failure->hint().empty()) hint = failure->hint() + "; " + hint;
                    failure->with_hint(std::move(hint));
                }
                co_return;
            }
            ++outcome_.restarts;
            if (options_.on_restart)
                options_.on_restart(*failure, outcome_.restarts, options_.max_failures);
            auto pausing = as_result(with_timeout(wait_until_set(&stop_), pause));
            (void)co_await pausing;
            if (stop_signal_ != 0) co_return;
            pause *= 2;
        }
    }

    /// Gives nothing when every rank has left in order.
    task<std::optional<error>> run_attempt(int number) {
        attempt now;
        group_options group;
        group.world_size = options_.workers;
        group.generation = number;
        group.job = job_id_;
        group.secret = net::token::generate();
        group.join_deadline = options_.join_deadline;
        group.alive = options_.alive;
        const auto name =
            fmt::format("@skein-{}-{}-{:016x}", ::getpid(), number, system_random().next());
        now.server =
            std::make_unique<group_server>(network_, net::address::abstract_unix(name), group);
        const auto at = now.server->local();

        scope watching;
        watching.spawn(watch_group(&now));
        std::optional<error> failed;
        current_ = &now;
        now.ranks.resize(static_cast<std::size_t>(options_.workers));
        for (int r = 0; r < options_.workers && !failed; ++r) {
            try {
                if (stop_signal_ != 0)
                    throw error(errc::cancelled, "stopped while the workers were starting");
                start_rank(now, r, number, at, group.secret);
                watching.spawn(watch_rank(&now, r));
            } catch (const error& e) {
                failed = e;
                now.server->abort(e);
            }
            co_await yield(); // early ranks knock already, a person may press Ctrl-C
        }
        auto over = until_over(&now);
        co_await over;
        current_ = nullptr;
        auto joined = watching.join();
        co_await joined;
        if (failed) co_return failed;
        co_return verdict(now);
    }

    void start_rank(attempt& now, int rank, int number, const net::address& at,
                    const net::token& secret) {
        rt::process_options how;
        how.argv = options_.argv;
        how.executable = options_.executable;
        how.env = options_.env;
        const auto add = [&](const char* key, std::string value) {
            how.env.emplace_back(key, std::move(value));
        };
        add("SKEIN_RANK", std::to_string(rank));
        add("SKEIN_WORLD_SIZE", std::to_string(options_.workers));
        add("SKEIN_LOCAL_RANK", std::to_string(rank));
        add("SKEIN_LOCAL_SIZE", std::to_string(options_.workers));
        add("SKEIN_ATTEMPT", std::to_string(number));
        add("SKEIN_JOB_ID", job_id_);
        add(group_variable, net::to_string(at));
        add(token_variable, secret.to_hex());
        how.own_group = true; // Ctrl-C is for the supervisor, which passes it on in order
        auto& place = now.ranks[static_cast<std::size_t>(rank)];
        place.process = rt::child_process::spawn(std::move(how));
        place.running = true;
    }

    task<void> watch_group(attempt* now) {
        group_outcome how;
        try {
            auto run = now->server->run();
            how = co_await run;
        } catch (const error& e) {
            how.failure = e;
        }
        now->group = std::move(how);
        now->changed.set();
    }

    task<void> watch_rank(attempt* now, int rank) {
        auto& self = now->ranks[static_cast<std::size_t>(rank)];
        auto waited = rt::wait(loop_, self.process);
        const auto status = co_await waited;
        // What a program that was stopped in order returns.
        const bool as_asked = stop_signal_ != 0 && status.code() == 128 + stop_signal_;
        if (!status.success() && !as_asked && !self.killed_by_us) {
            self.why = error(errc::worker_lost, fmt::format("worker {} (pid {}) {}", rank,
                                                            self.process.pid(), status.describe()));
            if (const auto words = self.process.last_words(); !words.empty())
                self.why->with_cause(words);
            // Refused before it joined, output without a reader, a limit on files: so again next time.
            lasting_ = lasting_ || status.code() == exit_code::usage ||
                       status.signal() == SIGPIPE || status.signal() == SIGXFSZ;
        }
        // What it said last may still be on its way through the socket: that is the better reason.
        if (!now->group) {
            auto word = as_result(with_timeout(wait_until_set(&now->changed), moment));
            (void)co_await word;
        }
        if (!now->group && !now->server->has_left(rank)) {
            now->server->abort(
                self.why ? *self.why
                         : error(errc::worker_lost,
                                 fmt::format("worker {} exited before the job was done", rank))
                               .with_hint("it must return from launch(), not call exit()"),
                rank);
        }
        self.running = false;
        now->changed.set();
    }

    /// Until the group has ended and all ranks are gone; kills those that outstay their grace.
    task<void> until_over(attempt* now) {
        std::optional<time_point> limit, silent_limit;
        bool has_failed = false;
        while (now->any_running() || !now->group) {
            const auto time = loop::current().now();
            if (!has_failed && now->group && now->group->failure) { // also while they are stopping
                has_failed = true;
                limit = std::min(limit.value_or(time_point::max()), time + options_.crash_grace);
                // A rank that fell silent will not leave; a dead one is reaped within the moment.
                if (!now->group->reported) silent_limit = time + moment;
            }
            if (silent_limit && time >= *silent_limit) {
                silent_limit.reset();
                if (now->group->culprit >= 0)
                    kill(now->ranks[static_cast<std::size_t>(now->group->culprit)]);
            }
            // After a good end the ranks may go on working, as long as nobody asks them to stop.
            if (!limit && stop_signal_ != 0) limit = time + options_.stop_grace;
            if (stop_signal_ != 0 && !told_to_stop_) {
                told_to_stop_ = true;
                for (auto& r : now->ranks) {
                    if (r.running) r.process.kill(stop_signal_);
                }
            }
            now->changed.reset();
            if (kill_now_ || (limit && time >= *limit)) {
                kill_all(*now);
                limit.reset();
                kill_now_ = false;
                if (!now->group)
                    now->server->abort(error(errc::timeout, "the ranks did not stop in time"));
            }
            const auto until = std::min(silent_limit.value_or(time_point::max()),
                                        limit.value_or(time + std::chrono::hours(1)));
            auto change = as_result(with_deadline(wait_until_set(&now->changed), until));
            (void)co_await change;
        }
        told_to_stop_ = false;
    }
    static void kill_all(attempt& now) {
        for (auto& r : now.ranks) kill(r);
    }
    static void kill(rank_process& r) {
        if (!r.running) return;
        r.killed_by_us = true;
        r.process.kill_group(SIGKILL);
    }

    /// The best account of what went wrong.
    [[nodiscard]] static std::optional<error> verdict(const attempt& now) {
        const auto& group = *now.group;
        if (!group.failure) {
            for (const auto& r : now.ranks) {
                if (r.why) return r.why; // it failed after its training was done
            }
            return std::nullopt;
        }
        if (!group.reported && group.culprit >= 0) {
            const auto& r = now.ranks[static_cast<std::size_t>(group.culprit)];
            if (r.why) return r.why;
        }
        return group.failure;
    }

    task<void> watch_signals() {
        for (;;) {
            auto asked = net::wait_readable(loop_, signals_.fd());
            co_await asked;
            char read[16];
            [[maybe_unused]] const auto n = ::read(signals_.fd(), read, sizeof read);
            if (signals_.count() > 1) kill_now_ = true;
            const bool first = stop_signal_ == 0;
            if (first) stop_signal_ = signals_.which();
            if (first && options_.on_stop) options_.on_stop();
            stop_.set();
            if (current_ != nullptr) current_->changed.set();
        }
    }

    supervisor_options options_;
    net::real_loop& loop_;
    std::string job_id_ = fmt::format("job-{:016x}", system_random().next());
    net::real_network network_;
    stop_signals signals_;
    supervisor_outcome outcome_;
    attempt* current_ = nullptr;
    int stop_signal_ = 0;
    bool told_to_stop_ = false;
    bool kill_now_ = false;
    bool lasting_ = false; ///< a rank ended in a way that would only come again
    event stop_;
};

} // namespace skein::cluster::detail

namespace skein::cluster {

SKEIN_INLINE supervisor_outcome supervise(supervisor_options options) {
    SKEIN_CHECK(options.workers > 0, "a job of {} workers", options.workers);
    net::real_loop loop;
    detail::job work(loop, std::move(options));
    return loop.run(work.run());
}

} // namespace skein::cluster
