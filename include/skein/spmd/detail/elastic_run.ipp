// SPDX-License-Identifier: Apache-2.0
#pragma once
// The real loop of one host, its signals, and its notices.

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/known_names.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/random.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/net/stop_watch.hpp>
#include <skein/proc/children.hpp>
#include <skein/proc/process.hpp>
#include <skein/spmd/elastic_host.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include <unistd.h>

#include <fmt/format.h>

namespace skein::spmd {

namespace detail {

/// As a shell finds it.
SKEIN_INLINE std::string find_program(const std::string& name) {
    const auto can_run = [](const std::string& path) {
        std::error_code ignored;
        return !std::filesystem::is_directory(path, ignored) && ::access(path.c_str(), X_OK) == 0;
    };
    if (name.find('/') != std::string::npos) {
        if (can_run(name)) return std::filesystem::absolute(name).string();
        throw error(errc::not_found, fmt::format("{}: {}", name, std::strerror(errno)))
            .with_hint("name a program that this host can run");
    }
    const char* const path = std::getenv("PATH");
    std::string_view rest = path != nullptr ? path : "/usr/bin:/bin";
    for (;;) {
        const auto colon = rest.find(':');
        const std::string folder(rest.substr(0, colon));
        const auto here = (folder.empty() ? std::string(".") : folder) + "/" + name;
        if (can_run(here)) return here;
        if (colon == std::string_view::npos) break;
        rest.remove_prefix(colon + 1);
    }
    throw error(errc::not_found, fmt::format("no program {} in PATH", name))
        .with_hint("name its path, as ./" + name);
}

/// In the names of the sockets at which jobs without an endpoint are asked; the process follows.
inline constexpr std::string_view job_door = "job";

/// What run_elastic_host() holds on its loop.
class elastic_host_run {
public:
    /// `on`: where its workers start; outlives it.
    elastic_host_run(net::real_loop& loop, proc::children& on, elastic_run_options options)
        : options_(std::move(options)), loop_(loop), network_(loop), children_(on) {}

    task<supervisor_outcome> run() {
        scope beside;
        net::stop_watch requests(loop_,
                                 {.signals = options_.takes_signals, .fd = options_.stop_fd});
        beside.spawn(requests.hear([this](int signal, bool again) { hear_stop(signal, again); }));
        std::exception_ptr failure;
        supervisor_outcome how;
        try {
            auto living = live(&beside);
            how = co_await living;
        } catch (...) {
            failure = std::current_exception();
        }
        children_.set_scaler({});
        children_.release();
        auto closing = as_result(shield(children_.close()));
        (void)co_await closing; // whatever is wrong there, how the workers ended is known
        beside.cancel();
        auto joined = shield(as_result(beside.join()));
        (void)co_await joined;
        host_.reset();
        register_.reset();
        if (failure) std::rethrow_exception(failure);
        co_return how;
    }

private:
    task<supervisor_outcome> live(scope* beside) {
        auto opening = as_result(with_cancel(stopped_.token(), children_.open()));
        const auto opened = co_await opening;
        if (signal_ != 0) co_return stopped();
        if (!opened) throw opened.error();
        if (children_.are_placed_later() && options_.least > 1) {
            auto reserving =
                as_result(with_cancel(stopped_.token(), children_.reserve(options_.least)));
            const auto places = co_await reserving;
            if (signal_ != 0) co_return stopped();
            if (!places) throw places.error();
        }
        if (options_.make_register) register_ = options_.make_register();
        host_ = std::make_unique<elastic_host>(network_, children_, register_.get(), host_of());
        children_.set_scaler([this](int workers) { return host_->scale(workers); });
        if (options_.notices.are_there()) beside->spawn(watch_notices());
        auto running = host_->run();
        co_return co_await running;
    }
    [[nodiscard]] supervisor_outcome stopped() const {
        supervisor_outcome how;
        how.stop_signal = signal_;
        return how;
    }
    void hear_stop(int signal, bool again) {
        if (std::exchange(signal_, signal) == 0 && options_.on_stop) options_.on_stop();
        stopped_.request();
        if (!host_) return;
        if (again) host_->kill_all();
        host_->stop(signal);
    }
    [[nodiscard]] elastic_host_options host_of() const {
        const bool is_alone = options_.endpoint.host.empty() && !options_.make_register;
        elastic_host_options o;
        o.job = options_.job.empty() ? fmt::format("job-{:016x}", system_random().next())
                                     : options_.job;
        o.endpoint = is_alone ? own_door(job_door) : options_.endpoint;
        o.secret = is_alone && options_.secret.empty() ? net::token::generate() : options_.secret;
        o.host = options_.host.empty() ? proc::host_name() : options_.host;
        o.say = options_.say;
        o.meet_limit = options_.meet_limit;
        o.back_limit = options_.back_limit;
        o.on_listening = options_.on_listening;
        auto& k = o.keeper;
        static_cast<rank_program&>(k) = options_;
        if (k.executable.empty()) k.executable = find_program(options_.argv.front());
        // Where other hosts reach the ranks of this one.
        if (!options_.host.empty()) k.env.emplace_back("SKEIN_ADVERTISE", options_.host);
        k.id = system_random().next() | 1;
        k.host = o.host;
        k.places = std::max(options_.workers_per_host, options_.most);
        k.least = options_.hosts.first * options_.workers_per_host;
        k.most = options_.hosts.second * options_.workers_per_host;
        if (options_.most != 0)
            std::tie(k.least, k.most) = std::pair(options_.least, options_.most);
        k.job = o.job;
        k.door = own_door("keeper");
        k.secret = net::token::generate();
        if (children_.are_placed_later()) place_later(o);
        set_silence(o);
        auto& c = o.coordinator;
        static_cast<job_rules&>(c) = options_;
        c.job = o.job;
        c.are_hosts = options_.are_hosts;
        c.least = k.least;
        c.most = k.most;
        c.start = options_.start;
        // Who was cut off has to know it before a world without it begins.
        c.times.lease = std::max(c.times.lease, time_span(duration(options_.silence) * 3));
        c.random = &system_random();
        return o;
    }
    /// Workers of other hosts come to this process.
    void place_later(elastic_host_options& o) const {
        const auto door = children_.door();
        o.keeper.door = door.at;
        o.keeper.secret = door.secret;
        o.keeper.places *= 2; // others come for those that leave
        o.coordinator.groups = net::address::make(door.at.kind, door.at.host, 0);
        o.coordinator.advertise = "*";
    }
    [[nodiscard]] static net::address own_door(std::string_view what) {
        return net::address::abstract_unix(
            fmt::format("@skein-{}-{}-{:016x}", what, ::getpid(), system_random().next()));
    }
    void set_silence(elastic_host_options& o) const {
        if (options_.silence <= time_span{}) return;
        for (auto* alive : {&o.alive, &o.keeper.alive})
            alive->suspect_after = alive->dead_after = options_.silence;
        o.keeper.most_silence = options_.silence;
    }
    task<void> watch_notices() {
        auto waiting = until_leave_notice(network_, options_.notices);
        const auto why = co_await waiting;
        host_->leave(why);
    }

    elastic_run_options options_;
    net::real_loop& loop_;
    net::real_network network_;
    proc::children& children_;
    cancel_source stopped_;
    int signal_ = 0;
    std::unique_ptr<view_register> register_;
    std::unique_ptr<elastic_host> host_;
};

SKEIN_INLINE task<std::string> scale_on_loop(net::network* via, net::address endpoint,
                                             net::token secret, std::string job, int workers) {
    auto asking = ask_to_scale(*via, std::move(endpoint), secret, std::move(job), workers);
    co_return co_await asking;
}

SKEIN_INLINE task<std::string> scale_by_register(
    net::network* via, const std::function<std::unique_ptr<view_register>()>* make_register,
    net::token secret, std::string job, int workers) {
    const auto where = (*make_register)();
    auto looking =
        with_timeout(where->watch_coordinator({}), time_constants::lan().connect_timeout);
    const auto coordinator = co_await looking;
    auto asking = ask_to_scale(*via, net::address::parse(coordinator.address).value(), secret,
                               std::move(job), workers);
    co_return co_await asking;
}

SKEIN_INLINE void check_host_run(const elastic_run_options& options) {
    if (options.argv.empty() && options.executable.empty())
        throw error(errc::invalid_argument, "no program to run");
    if (options.hosts.first < 1 || options.hosts.first > options.hosts.second)
        throw error(errc::invalid_argument, fmt::format("a job of at least {} and at most {} hosts",
                                                        options.hosts.first, options.hosts.second))
            .with_hint("at least 1, and not more than at most: 1:4");
    if (options.workers_per_host < 1)
        throw error(errc::invalid_argument,
                    fmt::format("{} workers on each host", options.workers_per_host));
    const auto& [least, most, start] = std::tie(options.least, options.most, options.start);
    if (most != 0 && (least < 1 || least > most))
        throw error(errc::invalid_argument,
                    fmt::format("a job of at least {} and at most {} workers", least, most))
            .with_hint("at least 1, and not more than at most: 1:4");
    if (most != 0 && start != 0 && (start < least || start > most))
        throw error(
            errc::invalid_argument,
            fmt::format("{} workers at the start of a job of {} to {}", start, least, most));
    check_leave_notices(options.notices);
}

} // namespace detail

SKEIN_INLINE supervisor_outcome run_elastic_host(elastic_run_options options) {
    detail::check_host_run(options);
    loop::refuse_inside("a job of ranks", "start it from main");
    net::real_loop loop;
    net::real_network network(loop);
    std::shared_ptr<proc::children> children;
    if (options.children)
        children = options.children(loop, network);
    else
        children = std::make_shared<proc::local_children>(loop);
    detail::elastic_host_run work(loop, *children, std::move(options));
    return loop.run(work.run());
}

SKEIN_INLINE std::string scale_elastic_job(const net::address& endpoint, const net::token& secret,
                                           const std::string& job, int workers) {
    net::real_loop loop;
    net::real_network network(loop);
    return loop.run(detail::scale_on_loop(&network, endpoint, secret, job, workers));
}

SKEIN_INLINE net::address door_of_job(std::int64_t pid) {
    const auto begin = fmt::format("@skein-{}-", detail::job_door);
    std::vector<std::string> others;
    std::ifstream sockets("/proc/net/unix"); // the kernel's names, of this network namespace
    for (std::string line; std::getline(sockets, line);) {
        const auto at = line.find(begin);
        if (at == std::string::npos) continue;
        const auto name = line.substr(at);
        const auto end = name.find('-', begin.size());
        if (name.find('-', end + 1) != std::string::npos) continue; // the group of one of its views
        const auto whose = name.substr(begin.size(), end - begin.size());
        if (whose == std::to_string(pid)) return net::address::abstract_unix(name);
        if (std::find(others.begin(), others.end(), whose) == others.end()) others.push_back(whose);
    }
    throw error(errc::not_found,
                fmt::format("process {} of this host leads no elastic job of this host alone", pid))
        .with_hint(others.empty() ? std::string("name the program that was started with --workers "
                                                "LEAST:MOST, and none of its ranks")
                                  : "those that do: " + joined(others, ", "));
}

SKEIN_INLINE std::string scale_elastic_job(
    const std::function<std::unique_ptr<view_register>()>& make_register, const net::token& secret,
    const std::string& job, int workers) {
    net::real_loop loop;
    net::real_network network(loop);
    return loop.run(detail::scale_by_register(&network, &make_register, secret, job, workers));
}

} // namespace skein::spmd
