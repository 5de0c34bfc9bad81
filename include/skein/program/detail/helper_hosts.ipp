// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of program/helper_hosts.hpp.

#include <skein/cluster/access.hpp>
#include <skein/cluster/agent.hpp>
#include <skein/cluster/detail/serve_role.hpp>
#include <skein/cluster/head.hpp>
#include <skein/core/error.hpp>
#include <skein/core/log.hpp>
#include <skein/core/scope.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/proc/children.hpp>
#include <skein/proc/process.hpp>
#include <skein/proc/standard_files.hpp>
#include <skein/program/detail/job_node.hpp>
#include <skein/program/job.hpp>
#include <skein/spmd/environment.hpp>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include <unistd.h>

#include <fmt/format.h>

namespace skein::program {

namespace detail {

SKEIN_INLINE std::string& default_head() noexcept {
    static std::string address;
    return address;
}

/// How long a host that helps looks for a head.
SKEIN_INLINE std::chrono::seconds helper_patience() {
    const auto text = spmd::process_environment()("SKEIN_HELPER_WAIT").value_or("600");
    int seconds = 0;
    const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (bad != std::errc() || end != text.data() + text.size() || seconds < 1 || seconds > 86'400)
        throw error(
            errc::invalid_argument,
            fmt::format("SKEIN_HELPER_WAIT='{}' is no number of seconds from 1 to 86400", text));
    return std::chrono::seconds(seconds);
}

/// This host as a node.
SKEIN_INLINE cluster::agent_options node_that_helps(const spmd::launch_environment& where) {
    auto o = node_of_job(where, cluster::find_or_make_token(""));
    o.head = head_of_helpers(where);
    o.name = where.host;
    o.labels = {"role=" + where.group};
    o.join_within = o.orphan_grace = helper_patience();
    o.news = logging::level::info;
    o.on_joined = [at = to_string(o.head)](const std::string& name) {
        logging::info("agent", "helps the ranks, until their job is over",
                      {{"node", name}, {"head", at}});
    };
    return o;
}

} // namespace detail

SKEIN_INLINE net::address head_of_helpers(const spmd::launch_environment& where) {
    const int port = where.master_port + 1;
    if (port < 2 || port > 65535)
        throw error(errc::invalid_argument,
                    fmt::format("{} launch: no usable port for the head of the hosts that help "
                                "({}, the one behind that of the ranks)",
                                where.source, port))
            .with_hint("set SKEIN_MASTER_PORT to a port below 65535, the same on all hosts");
    return net::address::tcp(where.master_host, static_cast<std::uint16_t>(port));
}

/// The head belongs to the loop of the thread.
struct helped_job::parts {
    struct head_half {
        explicit head_half(net::real_loop& on) : network(on) {}
        net::real_network network;
        std::optional<cluster::head> serves;
        scope life;
    };

    net::loop_thread thread{"skein-head"};
    std::unique_ptr<head_half> of_head;

    static task<void> start(parts* self, cluster::head_options how) {
        auto& on = self->thread.loop();
        auto half = std::make_unique<head_half>(on);
        half->serves.emplace(on, half->network, std::move(how));
        half->life.spawn(half->serves->serve());
        self->of_head = std::move(half);
        co_return;
    }
    /// is_over: nodes are told.
    static task<void> end(parts* self, bool is_over) {
        if (!self->of_head) co_return;
        if (is_over)
            self->of_head->serves->stop();
        else
            self->of_head->life.cancel();
        auto ended = as_result(self->of_head->life.join());
        (void)co_await ended;
        self->of_head.reset();
    }
};

SKEIN_INLINE helped_job::helped_job(const spmd::launch_environment& where) {
    const auto at = head_of_helpers(where);
    detail::enter_job(); // before there are threads
    if (where.rank == 0) {
        cluster::head_options o;
        o.listen = at;
        if (!at.is_loopback()) o.listen.host = "*"; // whichever of IPv6 and IPv4 the others come by
        o.secret = cluster::find_or_make_token("");
        o.host = proc::host_name();
        o.pid = ::getpid();
        o.news = logging::level::debug; // nodes say it themselves
        parts_ = std::make_unique<parts>();
        parts_->thread.run([&] { return parts::start(parts_.get(), std::move(o)); });
    }
    detail::default_head() = to_string(at);
}

SKEIN_INLINE helped_job::~helped_job() {
    detail::default_head().clear();
    if (parts_) parts_->thread.run([this] { return parts::end(parts_.get(), false); });
}

SKEIN_INLINE void helped_job::end() {
    if (parts_) parts_->thread.run([this] { return parts::end(parts_.get(), true); });
}

SKEIN_INLINE const std::string& helped_job::head_here() noexcept { return detail::default_head(); }

SKEIN_INLINE int run_helper_host(const spmd::launch_environment& where) {
    if (std::getenv(in_job_variable) != nullptr)
        throw error(errc::not_supported,
                    fmt::format("not supported: a training that a process on host {} starts, which "
                                "helps (group {})",
                                where.host, where.group))
            .with_hint("start it on a host that trains");
    proc::open_standard_files();
    proc::outlive_readers();
    proc::name_process("agent");
    auto how = detail::node_that_helps(where);
    const auto at = to_string(how.head);
    detail::enter_job();
    logging::info("agent", "this host helps: it looks for the head in rank 0's process",
                  {{"group", where.group}, {"head", at}, {"for", how.join_within}});
    net::real_loop loop;
    net::real_network network(loop);
    proc::local_children children(loop);
    cluster::agent a(loop, network, children, std::move(how));
    try {
        return loop.run(cluster::detail::serve_role(&loop, &a));
    } catch (const error& why) {
        if (why.code() == errc::cancelled) throw;
        throw error(why.code(), fmt::format("host {} (group {}) cannot help: {}", where.host,
                                            where.group, why.text()))
            .with_cause(why.cause())
            .with_hint(
                why.code() == errc::permission_denied
                    ? "all hosts need the same token: set SKEIN_TOKEN to the same 64 hexadecimal "
                      "digits for all of them"
                : why.code() == errc::peer_lost
                    ? "rank 0 has ended without a word and was not started again in time "
                      "(SKEIN_HELPER_WAIT); see what it said"
                    : fmt::format("see what rank 0 says, whose head is at {}: its program comes to "
                                  "launch(), and this host reaches that port",
                                  at));
    }
}

} // namespace skein::program
