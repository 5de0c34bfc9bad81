// SPDX-License-Identifier: Apache-2.0
#pragma once
// One loop, and on it first a job of ranks, or one of hosts with ranks, then, where they are elastic,
// the host of their job.

#include <skein/core/loop.hpp>
#include <skein/core/this_process.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/net/stop_watch.hpp>
#include <skein/proc/children.hpp>
#include <skein/spmd/detail/elastic_run.ipp>
#include <skein/spmd/detail/host_member.hpp>
#include <skein/spmd/detail/supervisor.ipp>
#include <skein/spmd/undecided_ranks.hpp>

#include <exception>
#include <memory>
#include <string>
#include <utility>

namespace skein::spmd {

namespace detail {

/// The kernel chooses it, and gives it to nobody else for a while. 0: it has none left.
SKEIN_INLINE int port_nobody_has(net::network& via, const net::address& at) {
    try {
        return via.listen(at)->local().port;
    } catch (const error&) {
        return 0;
    }
}

/// "waits at a:29400 for 1 to 4 hosts"
SKEIN_INLINE std::string waits_at(const net::address& at, std::pair<int, int> hosts) {
    auto port = net::to_string(at);
    if (port.starts_with("tcp:")) port.erase(0, 4);
    return fmt::format("waits at {} for {}{} host{}", port,
                       hosts.first == hosts.second ? "" : fmt::format("{} to ", hosts.first),
                       hosts.second, hosts.second == 1 ? "" : "s");
}

class program_run final : private host_ranks {
public:
    program_run(net::real_loop& loop, program_run_options options)
        : options_(std::move(options)), loop_(loop), network_(loop), children_(loop),
          output_(options_.output) {
        if (is_of_hosts() && options_.host.host.empty()) options_.host.host = proc::host_name();
    }

    task<supervisor_outcome> run() {
        std::exception_ptr failure;
        supervisor_outcome how;
        try {
            auto running = run_as_it_says();
            how = co_await running;
        } catch (...) {
            failure = std::current_exception();
        }
        if (ranks_) {
            auto ending = ranks_->end();
            co_await ending;
        }
        auto written = output_.end();
        co_await written;
        if (failure) std::rethrow_exception(failure);
        co_return how;
    }

private:
    [[nodiscard]] bool is_of_hosts() const {
        return options_.host.hosts.second > 1 || options_.host.make_register;
    }
    task<supervisor_outcome> run_as_it_says() {
        const auto& named = options_.host.executable;
        program_ = named.empty() ? find_program(options_.host.argv.front()) : named;
        const net::stop_watch between(loop_,
                                      {.signals = options_.host.takes_signals}); // two supervisors
        if (is_of_hosts() && shows_elastic(program_)) {
            refuse_output();
            auto meeting = run_elastic_at_once();
            co_return co_await meeting;
        }
        auto running = is_of_hosts() ? run_on_hosts() : run_as_ranks();
        auto how = co_await running;
        if (!ranks_ || !ranks_->are_elastic() || how.failure || how.stop_signal != 0) co_return how;
        refuse_output();
        if (options_.host.make_register)
            throw error(errc::not_supported, "not supported: elastic workers on several hosts that "
                                             "a script has started, with their views in etcd")
                .with_hint("name the program itself, not the script: its file shows what it is");
        how.stop_signal = between.signal();
        if (how.stop_signal != 0) co_return how;
        auto going_on = run_elastic(*ranks_);
        co_return co_await going_on;
    }
    /// Elastic workers have no rank that a file could have its name from.
    void refuse_output() const {
        if (!options_.output.is_asked()) return;
        throw error(errc::not_supported, "not supported: -r, -t, --log-dir and "
                                         "--local-ranks-filter for a program of elastic workers")
            .with_hint("redirect the output of skein run");
    }
    task<supervisor_outcome> run_elastic_at_once() {
        auto running = as_result(run_elastic(children_));
        auto how = co_await running;
        if (!how && how.error().text().find(purpose_of_hosts) != std::string::npos)
            throw error(errc::mismatch,
                        fmt::format("the program of this host has elastic workers, and the hosts "
                                    "at {} run one whose ranks all start again",
                                    net::to_string(options_.host.endpoint)))
                .with_hint("start the same program on all hosts");
        co_return std::move(how).value();
    }
    task<supervisor_outcome> run_elastic(proc::children& on) {
        elastic_host_run host(loop_, on, options_.host);
        auto hosting = host.run();
        co_return co_await hosting;
    }

    // ---- one host ------------------------------------------------------------------------------

    task<supervisor_outcome> run_as_ranks() {
        ranks_ = std::make_shared<undecided_ranks>(children_, ranks());
        auto how = supervised();
        how.on_failure = options_.on_restart;
        auto job_of_ranks = std::make_unique<job>(loop_, std::move(how));
        auto running = job_of_ranks->run();
        co_return co_await running;
    }
    [[nodiscard]] supervisor_options supervised() {
        const auto& host = options_.host;
        supervisor_options how;
        static_cast<supervision&>(how) = host;
        how.workers = host.workers_per_host;
        how.executable = program_;
        if (!host.host.empty()) how.env.emplace_back("SKEIN_ADVERTISE", host.host);
        how.children = [this](loop&, net::network&) { return ranks_; };
        how.until_met = [this] { return ranks_->until_met(); };
        return how;
    }
    [[nodiscard]] undecided_options ranks(std::optional<host_share> share = {}) {
        undecided_options how;
        how.job = options_.host.job;
        how.max_restarts = options_.host.max_failures;
        how.free_port = [this] {
            return port_nobody_has(network_, net::address::tcp(net::own_loopback(), 0));
        };
        how.reads_output = options_.output.is_asked();
        if (how.reads_output)
            how.on_started = [this, first = share ? share->first_rank : 0,
                              start = share ? share->attempt : 0](
                                 int attempt, int rank, std::shared_ptr<proc::child> from) {
                output_.take(start + attempt, rank, first + rank, std::move(from));
            };
        how.share = std::move(share);
        return how;
    }

    // ---- several -------------------------------------------------------------------------------

    task<supervisor_outcome> run_on_hosts() {
        const auto& host = options_.host;
        host_member_options how;
        static_cast<job_rules&>(how) = host;
        how.link.host = host.host;
        host_members members(network_, *this, std::move(how));
        elastic_host_run meeting(loop_, members, hosts());
        auto running = as_result(meeting.run());
        auto outcome = co_await running;
        auto ending = members.end();
        co_await ending;
        if (!outcome && outcome.error().code() == errc::mismatch && !ranks_) {
            // Others are there for another purpose. They may be of the same program, which they know
            // to be elastic by now: a script may have started it.
            auto as_elastic = run_elastic(children_);
            co_return co_await as_elastic;
        }
        if (!outcome) throw outcome.error();
        if (outcome->failure) outcome->culprit_code = members.code();
        co_return std::move(*outcome);
    }
    /// The job of hosts, each of which is one worker.
    [[nodiscard]] elastic_run_options hosts() const {
        auto how = options_.host;
        how.are_hosts = true;
        how.workers_per_host = 1;
        how.executable = "-"; // nothing is started
        how.on_view = {};
        how.on_failure = {};
        if (how.say && !how.make_register)
            how.on_listening = [say = how.say, hosts = how.hosts](const net::address& at) {
                say(waits_at(at, hosts));
            };
        // Ranks that lose a host start again: it is given longer than one whose workers go on.
        if (how.silence <= time_span{}) how.silence = std::chrono::seconds(5);
        how.times.pause_limit = how.meet_limit;
        // The ranks are killed first, by their own supervisor.
        how.times.stop_grace =
            time_span(duration(std::max(how.times.stop_grace, how.times.silent_grace)) +
                      std::chrono::seconds(10));
        how.times.ask_limit =
            std::max(how.times.ask_limit,
                     time_span(duration(how.times.stop_grace) + std::chrono::seconds(30)));
        return how;
    }
    /// Where this host listens for others.
    [[nodiscard]] net::address door() const {
        const auto at = net::address::tcp(options_.host.host, 0);
        return at.is_loopback() ? at : net::address::any(0);
    }

    host_offer offer() override {
        host_offer mine;
        mine.host = options_.host.host;
        mine.machine = boot_id();
        mine.ranks = options_.host.workers_per_host;
        mine.master_port = port_nobody_has(network_, door());
        return mine;
    }
    net::address serve(const host_share& of) override {
        group_options group;
        group.world_size = of.world_size;
        group.generation = of.attempt;
        group.job = of.job;
        group.secret = of.secret;
        group.join_deadline = supervisor_options().join_deadline;
        server_ = std::make_unique<group_server>(network_, door(), group);
        return server_->local();
    }
    task<host_end> run(host_share of, std::function<void(const host_end&)> failing) override {
        auto how = supervised();
        how.share = of;
        how.max_failures = 0;
        how.on_failure = {};
        how.takes_signals = false;
        how.stop_fd = -1;
        how.on_failing = [this, failing = std::move(failing)](const supervisor_outcome& so_far) {
            failing(end_of(so_far));
        };
        ranks_ = std::make_shared<undecided_ranks>(children_, ranks(std::move(of)));
        job_ = std::make_unique<job>(loop_, std::move(how));
        job_->serve(std::move(server_));
        auto running = as_result(job_->run());
        auto outcome = co_await running;
        job_.reset();
        if (!ranks_->are_elastic()) {
            auto ending = ranks_->end();
            co_await ending;
        }
        if (!outcome) throw outcome.error();
        co_return end_of(*outcome);
    }
    [[nodiscard]] host_end end_of(const supervisor_outcome& so_far) const {
        host_end how;
        how.failure = so_far.failure;
        how.is_lasting = so_far.is_lasting;
        how.code = so_far.culprit_code;
        constexpr int signalled = 128;
        // A training that stops, or has lost a rank elsewhere, ends so.
        how.is_echo = so_far.is_elsewhere || how.code == signalled + SIGTERM ||
                      how.code == signalled + SIGINT ||
                      (ranks_->have_met() && how.code == exit_code::failed);
        how.is_elastic = ranks_->are_elastic();
        return how;
    }
    void stop(int signal) override {
        if (job_) job_->stop(signal);
    }
    void break_off(const error& why) override {
        if (job_) job_->break_off(why);
    }
    void kill() override {
        if (job_) job_->kill();
    }

    program_run_options options_;
    net::real_loop& loop_;
    net::real_network network_;
    proc::local_children children_;
    rank_output output_;
    std::string program_;
    std::shared_ptr<undecided_ranks> ranks_; ///< of the newest attempt of several hosts
    std::unique_ptr<group_server> server_;   ///< of several hosts, for the next attempt
    std::unique_ptr<job> job_;               ///< of several hosts, while it runs
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
