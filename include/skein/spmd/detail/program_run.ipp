// SPDX-License-Identifier: Apache-2.0
#pragma once
// One loop, and on it first a job of ranks, then, where they are elastic, the host of their job.

#include <skein/core/loop.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/net/stop_watch.hpp>
#include <skein/proc/children.hpp>
#include <skein/spmd/detail/elastic_run.ipp>
#include <skein/spmd/detail/supervisor.ipp>
#include <skein/spmd/undecided_ranks.hpp>

#include <exception>
#include <memory>
#include <string>
#include <utility>

namespace skein::spmd {

namespace detail {

/// The kernel chooses it, and gives it to nobody else for a while. 0: it has none left.
SKEIN_INLINE int port_nobody_has(net::network& via) {
    try {
        return via.listen(net::address::tcp(net::own_loopback(), 0))->local().port;
    } catch (const error&) {
        return 0;
    }
}

class program_run {
public:
    program_run(net::real_loop& loop, program_run_options options)
        : options_(std::move(options)), loop_(loop), network_(loop), children_(loop),
          output_(options_.output), ranks_(children_, ranks()) {}

    task<supervisor_outcome> run() {
        std::exception_ptr failure;
        supervisor_outcome how;
        try {
            auto running = run_as_it_says();
            how = co_await running;
        } catch (...) {
            failure = std::current_exception();
        }
        auto ending = ranks_.end();
        co_await ending;
        auto written = output_.end();
        co_await written;
        if (failure) std::rethrow_exception(failure);
        co_return how;
    }

private:
    task<supervisor_outcome> run_as_it_says() {
        const net::stop_watch between(loop_,
                                      {.signals = options_.host.takes_signals}); // two supervisors
        auto running = run_as_ranks();
        auto how = co_await running;
        if (!ranks_.are_elastic() || how.stop_signal != 0) co_return how;
        if (options_.output.is_asked())
            throw error(errc::not_supported,
                        "not supported: -r, -t, --log-dir and --local-ranks-filter for a program "
                        "of elastic workers")
                .with_hint("redirect the output of skein run");
        how.stop_signal = between.signal();
        if (how.stop_signal != 0) co_return how;
        elastic_host_run host(loop_, ranks_, options_.host);
        auto hosting = host.run();
        co_return co_await hosting;
    }
    task<supervisor_outcome> run_as_ranks() {
        auto job_of_ranks = std::make_unique<job>(loop_, supervised());
        auto running = job_of_ranks->run();
        co_return co_await running;
    }
    [[nodiscard]] supervisor_options supervised() {
        const auto& host = options_.host;
        supervisor_options how;
        how.workers = host.workers_per_host;
        how.max_failures = host.max_failures;
        how.stop_grace = options_.stop_grace;
        how.silent_grace = options_.silent_grace;
        how.executable =
            host.executable.empty() ? find_program(host.argv.front()) : host.executable;
        how.argv = host.argv;
        how.env = host.env;
        if (!host.host.empty()) how.env.emplace_back("SKEIN_ADVERTISE", host.host);
        how.threads = host.threads;
        how.takes_signals = host.takes_signals;
        how.stop_fd = host.stop_fd;
        how.on_restart = options_.on_restart;
        how.places = [this](loop&, net::network&) { return ranks_.places(); };
        return how;
    }
    [[nodiscard]] undecided_options ranks() {
        undecided_options how;
        how.job = options_.host.job;
        how.max_restarts = options_.host.max_failures;
        how.free_port = [this] { return port_nobody_has(network_); };
        how.reads_output = options_.output.is_asked();
        if (how.reads_output)
            how.on_started = [this](int attempt, int rank, std::shared_ptr<proc::child> from) {
                output_.take(attempt, rank, std::move(from));
            };
        return how;
    }

    program_run_options options_;
    net::real_loop& loop_;
    net::real_network network_;
    proc::local_children children_;
    rank_output output_;
    undecided_ranks ranks_;
};

} // namespace detail

SKEIN_INLINE supervisor_outcome run_program(program_run_options options) {
    detail::check_host_run(options.host);
    loop::refuse_inside("a job of ranks", "start it from main");
    net::real_loop loop;
    detail::program_run work(loop, std::move(options));
    return loop.run(work.run());
}

} // namespace skein::spmd
