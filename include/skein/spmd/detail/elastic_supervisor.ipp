// SPDX-License-Identifier: Apache-2.0
#pragma once
// One job = one coordinator + one keeper + a register, on a loop of their own.

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/random.hpp>
#include <skein/core/scope.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/net/stop_watch.hpp>
#include <skein/proc/children.hpp>
#include <skein/proc/process.hpp>
#include <skein/spmd/memory_register.hpp>

#include <csignal>
#include <exception>
#include <utility>

#include <unistd.h>

#include <fmt/format.h>

namespace skein::spmd {

SKEIN_INLINE void elastic_control::set_target(int workers) {
    const std::lock_guard lock(mutex_);
    wanted_ = workers;
    if (told_) told_(workers);
}
SKEIN_INLINE void elastic_control::begin(std::function<void(int workers)> told) {
    const std::lock_guard lock(mutex_);
    told_ = std::move(told);
    if (wanted_) told_(*wanted_);
}
SKEIN_INLINE void elastic_control::end() {
    const std::lock_guard lock(mutex_);
    told_ = {};
}

namespace detail {

/// Of one host, with its register in its own memory.
class elastic_job {
public:
    elastic_job(net::real_loop& loop, elastic_options options)
        : options_(std::move(options)), loop_(loop), network_(loop), children_(loop),
          keeper_(network_, children_, keeper_options()),
          coordinator_(network_, register_, coordinator_options_of()),
          requests_(loop, {.signals = options_.takes_signals, .fd = options_.stop_fd}) {
        coordinator_.add(keeper_);
    }

    task<supervisor_outcome> run() {
        scope beside;
        beside.spawn(keep());
        beside.spawn(requests_.hear([this](int signal, bool again) {
            if (again) coordinator_.kill_all();
            begin_to_stop(signal);
        }));
        if (options_.control)
            options_.control->begin([this](int workers) {
                loop_.post_from_any_thread([this, workers] { coordinator_.set_target(workers); });
            });
        std::exception_ptr failure;
        supervisor_outcome how;
        try {
            auto running = coordinator_.run();
            how = co_await running;
        } catch (...) {
            failure = std::current_exception();
        }
        if (options_.control) options_.control->end();
        beside.cancel();
        auto joined = shield(as_result(beside.join()));
        (void)co_await joined;
        if (failure) std::rethrow_exception(failure);
        co_return how;
    }

private:
    [[nodiscard]] local_keeper_options keeper_options() const {
        local_keeper_options o;
        o.host = proc::host_name();
        o.places = options_.most;
        o.least = options_.least;
        o.most = options_.most;
        o.job = job_;
        o.door = net::address::abstract_unix(
            fmt::format("@skein-keeper-{}-{:016x}", ::getpid(), system_random().next()));
        o.secret = net::token::generate();
        o.alive = options_.alive;
        o.most_silence = options_.most_silence;
        o.executable = options_.executable;
        o.argv = options_.argv;
        o.env = options_.env;
        o.variables = options_.variables;
        o.threads = options_.threads;
        return o;
    }
    [[nodiscard]] coordinator_options coordinator_options_of() const {
        coordinator_options o;
        o.job = job_;
        o.least = options_.least;
        o.most = options_.most;
        o.start = options_.start;
        o.max_failures = options_.max_failures;
        o.times = options_.times;
        o.groups = net::address::abstract_unix(fmt::format("@skein-{}", ::getpid()));
        o.given = options_.given;
        o.most_told = options_.most_told;
        o.random = &system_random();
        o.say = options_.say;
        o.on_view = options_.on_view;
        o.on_failure = options_.on_failure;
        return o;
    }

    task<void> keep() {
        std::exception_ptr failure;
        try {
            auto keeping = keeper_.run(coordinator_);
            co_await keeping;
        } catch (const error& e) {
            if (e.code() == errc::cancelled) co_return;
            failure = std::current_exception();
        }
        if (!failure) co_return;
        coordinator_.kill_all();
        std::rethrow_exception(failure);
    }
    void begin_to_stop(int signal) {
        const bool first = !std::exchange(stops_, true);
        if (first && options_.on_stop) options_.on_stop();
        coordinator_.stop(signal);
    }

    elastic_options options_;
    net::real_loop& loop_;
    std::string job_ = fmt::format("job-{:016x}", system_random().next());
    net::real_network network_;
    proc::local_children children_;
    memory_register register_;
    local_keeper keeper_;
    elastic_coordinator coordinator_;
    net::stop_watch requests_;
    bool stops_ = false;
};

SKEIN_INLINE void check(const elastic_options& options) {
    if (options.least < 1 || options.least > options.most)
        throw error(
            errc::invalid_argument,
            fmt::format("a job of at least {} and at most {} workers", options.least, options.most))
            .with_hint("at least 1, and not more than at most: 1:4");
    if (options.start != 0 && (options.start < options.least || options.start > options.most))
        throw error(errc::invalid_argument,
                    fmt::format("{} workers at the start of a job of {} to {}", options.start,
                                options.least, options.most));
}

} // namespace detail

SKEIN_INLINE supervisor_outcome supervise_elastic(elastic_options options) {
    detail::check(options);
    loop::refuse_inside("a job of ranks", "start it from main");
    net::real_loop loop;
    detail::elastic_job work(loop, std::move(options));
    return loop.run(work.run());
}

} // namespace skein::spmd
