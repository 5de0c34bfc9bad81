// SPDX-License-Identifier: Apache-2.0
#pragma once
// One question to a head, over a link of its own: what tools are made of.

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/tools.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/error.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/time.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/link.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/net/requests.hpp>
#include <skein/proc/process.hpp>

#include <chrono>
#include <utility>

#include <unistd.h>

#include <fmt/format.h>

namespace skein::cluster::detail {

/// How long a tool looks for a head that does not answer.
class head_patience {
public:
    explicit head_patience(const tool_options& how)
        : how_(how), begin_(loop::current().now()), until_(deadline_after(begin_, how.patience)) {}
    head_patience(const head_patience&) = delete;
    head_patience& operator=(const head_patience&) = delete;

    /// Another attempt is worth it: nobody has said no, and there is time.
    [[nodiscard]] bool goes_on(const error& why) { return is_away(why.code()) && has_time(why); }
    /// Whether there is time for another attempt, whatever the last one said.
    [[nodiscard]] bool has_time(const error& why) {
        const auto now = loop::current().now();
        if (now >= until_) return false;
        if (now - begin_ >= std::chrono::seconds(1) && !std::exchange(is_told_, true) &&
            how_.on_wait)
            how_.on_wait(why, how_.patience);
        return true;
    }
    [[nodiscard]] static task<void> pause() { co_await sleep_for(std::chrono::milliseconds(200)); }

private:
    /// Whether an error says that no head was reached; others are a head's refusal.
    [[nodiscard]] static bool is_away(errc code) noexcept {
        switch (code) {
        case errc::refused:
        case errc::reset:
        case errc::closed:
        case errc::aborted:
        case errc::peer_lost:
        case errc::timeout: return true;
        default: return false;
        }
    }
    const tool_options& how_;
    time_point begin_, until_;
    bool is_told_ = false;
};

/// A link to the head, for one question or several.
inline task<net::requests::handle> reach_head_once(net::network* via, tool_options how) {
    net::link_options once;
    once.resume = net::resume_mode::off;
    auto link = cluster_link(how.secret, how.name, how.host.empty() ? proc::host_name() : how.host,
                             how.pid == 0 ? ::getpid() : how.pid);
    auto dialing = as_result(with_timeout(
        net::link::connect(*via, how.head, std::move(link), std::move(once)), how.within));
    auto linked = co_await dialing;
    if (!linked && linked.error().code() == errc::cancelled) throw linked.error();
    if (!linked) {
        const auto& why = linked.error();
        throw no_cluster(how.head, why,
                         !why.hint().empty()
                             ? why.hint()
                             : "start one with skein head, or name another address");
    }
    co_return net::requests::over(std::move(*linked));
}

/// The same, for as long as tool_options::patience says.
inline task<net::requests::handle> reach_head(net::network* via, tool_options how) {
    head_patience patience(how);
    for (;;) {
        auto reaching = as_result(reach_head_once(via, how));
        auto way = co_await reaching;
        if (way) co_return std::move(*way);
        if (!patience.goes_on(way.error())) throw way.error();
        auto pausing = head_patience::pause();
        co_await pausing;
    }
}

/// One question over one link. `asked` is set as soon as the question may have reached the head.
template <class Reply, class M>
task<Reply> ask_head_once(net::network* via, tool_options how, M what, bool* asked) {
    auto reaching = reach_head_once(via, how);
    const auto way = co_await reaching;
    *asked = true;
    auto asking = as_result(with_timeout(way->template call<Reply>(std::move(what)), how.within));
    auto reply = co_await asking;
    auto closing = shield(way->close());
    co_await closing;
    if (!reply) throw reply.error();
    co_return std::move(*reply);
}

/// One question to a head. With patience it may be sent twice; a message that has a field `again`
/// says so the second time.
template <class Reply, class M>
task<Reply> ask_head(net::network* via, tool_options how, M what) {
    head_patience patience(how);
    bool may_be_heard = false;
    for (;;) {
        if constexpr (requires { what.again; }) what.again = may_be_heard;
        auto asking = as_result(ask_head_once<Reply>(via, how, what, &may_be_heard));
        auto reply = co_await asking;
        if (reply) co_return std::move(*reply);
        if (!patience.goes_on(reply.error())) throw reply.error();
        auto pausing = head_patience::pause();
        co_await pausing;
    }
}

/// Runs one of the tasks on a loop of its own.
template <class Ask>
auto ask_now(Ask ask) {
    net::real_loop loop;
    net::real_network network(loop);
    return loop.run(ask(network));
}

} // namespace skein::cluster::detail
