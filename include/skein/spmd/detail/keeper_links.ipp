// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of keeper_links.hpp.

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/dial.hpp>
#include <skein/net/network.hpp>
#include <skein/spmd/detail/elastic_parts.hpp>
#include <skein/spmd/detail/keeper_links.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::spmd::detail {

SKEIN_INLINE net::connection_options host_link(const elastic_host_options& of) {
    net::connection_options o;
    o.secret = of.secret;
    o.self.name = of.host;
    o.self.host = of.host;
    o.self.purpose = of.coordinator.are_hosts ? purpose_of_hosts : "elastic-host";
    o.alive = of.alive;
    o.bounds.max_frame = most_keeper_frame;
    return o;
}

SKEIN_INLINE void say_over(net::connection& to, bool in_order, int signal, const error& why) {
    if (to.is_open()) say(to, keeper_kind::over, keeper_over(in_order, signal, why));
}

SKEIN_INLINE void remote_keeper::start(std::uint64_t worker) {
    if (link_->is_open()) say(*link_, keeper_kind::start, keeper_order{worker});
}
SKEIN_INLINE void remote_keeper::kill(std::uint64_t worker) {
    if (link_->is_open()) say(*link_, keeper_kind::kill, keeper_order{worker});
}
SKEIN_INLINE void remote_keeper::tell(std::uint64_t worker, std::uint16_t kind, byte_buffer body) {
    if (!link_->is_open()) return;
    keeper_frame f;
    f.worker = worker;
    f.kind = kind;
    f.body = std::move(body);
    say(*link_, keeper_kind::tell, f);
}

SKEIN_INLINE void remote_keeper::turn_out(const error& why) {
    if (!std::exchange(told_over, true)) say_over(*link_, false, 0, why);
}

// ---- the coordinator's end ----------------------------------------------------------------------

/// Why this host can have no part in the job; nothing if it can.
SKEIN_INLINE std::optional<error> objection(const keeper_hello& of, const keeper_door& door) {
    const auto& o = door.options->coordinator;
    if (of.job != door.options->job)
        return error(errc::mismatch, fmt::format("host {} is of job '{}', this is job '{}'",
                                                 of.host, of.job, door.options->job));
    if (of.least != o.least || of.most != o.most)
        return error(errc::mismatch,
                     fmt::format("host {} has a job of {} to {} {}, here it is one of {} to {}",
                                 of.host, of.least, of.most, o.are_hosts ? "hosts" : "workers",
                                 o.least, o.most))
            .with_hint("start it with the same --nnodes and --nproc-per-node on all hosts");
    if (of.places < 1 || of.places > 4096)
        return error(errc::invalid_argument,
                     fmt::format("host {} has {} places", of.host, of.places));
    return std::nullopt;
}

/// The hosts that are there have places for all that may ever be wanted.
SKEIN_INLINE bool has_places_enough(const keeper_door& door) {
    int all = door.options->keeper.places;
    for (const auto* one : door.there) all += one->places();
    return all >= door.options->coordinator.most;
}
/// Of a host that others do not need now.
SKEIN_INLINE std::string spare_text(const coordinator_options& of, std::string_view who) {
    return fmt::format("the job has places for its {} {}{}: {} waits until one of them is free",
                       of.most, of.are_hosts ? "host" : "worker", of.most == 1 ? "" : "s", who);
}

SKEIN_INLINE void heard(elastic_coordinator& job, remote_keeper& from, const net::frame& f) {
    if (f.kind == keeper_kind::started) {
        const auto told = wire::decode<keeper_started>(f.body);
        if (!told) throw told.error();
        return job.worker_started(told->worker, told->pid);
    }
    if (f.kind == keeper_kind::said) {
        const auto told = wire::decode<keeper_frame>(f.body);
        if (!told) throw told.error();
        return job.worker_said(told->worker, told->kind, told->body);
    }
    if (f.kind == keeper_kind::leaves) {
        const auto told = wire::decode<member_leave>(f.body);
        if (!told) throw told.error();
        return job.drain(from, told->why);
    }
    if (f.kind != keeper_kind::ended)
        throw error(errc::malformed, fmt::format("kind {} means nothing to a coordinator", f.kind));
    const auto told = wire::decode<keeper_ended>(f.body);
    if (!told) throw told.error();
    worker_end how;
    how.code = told->code;
    how.signal = told->signal;
    how.how = told->how;
    how.last_words = told->last_words;
    how.was_silent = told->was_silent;
    if (!told->not_started.empty() && !told->not_started.front())
        how.not_started = told->not_started.front().error();
    job.worker_ended(told->worker, how);
}

SKEIN_INLINE void answer_scale(keeper_door* door, net::connection& to, const net::frame& f) {
    auto asked = wire::decode<keeper_scale>(f.body);
    if (!asked) throw asked.error();
    const auto& o = door->options->coordinator;
    if (!asked->job.empty() && asked->job != door->options->job) {
        const error why(errc::mismatch,
                        fmt::format("this is job '{}', not '{}'", door->options->job, asked->job));
        return say_over(to, false, 0, why);
    }
    door->coordinator->set_target(asked->target);
    asked->job = door->options->job;
    asked->target = door->coordinator->target();
    asked->least = o.least;
    asked->most = o.most;
    say(to, keeper_kind::scaled, *asked);
}

SKEIN_INLINE task<void> read_keeper(keeper_door* door, remote_keeper* from) {
    for (;;) {
        auto next = from->link().receive();
        auto f = co_await next;
        if (!f) co_return;
        heard(*door->coordinator, *from, *f);
    }
}

SKEIN_INLINE task<void> serve_keeper(keeper_door* door, std::shared_ptr<net::connection> link) {
    auto first_frame = with_timeout(link->receive(), time_constants::lan().handshake_timeout);
    auto first = co_await first_frame;
    if (!first) co_return;
    if (first->kind == keeper_kind::scale) {
        answer_scale(door, *link, *first);
        auto closed = shield(link->close());
        co_await closed;
        co_return;
    }
    auto hello = wire::decode<keeper_hello>(first->body);
    if (!hello) throw hello.error();
    if (const auto no = objection(*hello, *door)) {
        if (door->options->say)
            door->options->say(fmt::format("a host was refused: {}", no->text()));
        say_over(*link, false, 0, *no);
        auto closed = shield(link->close());
        co_await closed;
        co_return;
    }
    if (door->on_newer && hello->newest.generation > door->coordinator->newest().generation) {
        door->on_newer(hello->newest); // its link ends, and it comes again
        co_return;
    }
    // It is back before its old link was found to be broken.
    for (auto* other : door->there)
        if (other->id() == hello->id)
            other->link().abort(error(errc::reset, "its supervisor has come again"));
    remote_keeper keeper(link, *hello);
    keeper_welcome welcome;
    welcome.job = door->options->coordinator.job;
    welcome.is_spare = has_places_enough(*door);
    welcome.kept = door->coordinator->add(keeper, hello->running);
    say(*link, keeper_kind::welcome, welcome);
    door->there.push_back(&keeper);
    if (door->options->say) {
        const auto& job = door->options->coordinator;
        door->options->say(fmt::format(
            "host {} has come{}{}{}", keeper.host(),
            job.are_hosts ? "" : fmt::format(", with {} places", keeper.places()),
            welcome.is_spare ? "; " : "", welcome.is_spare ? spare_text(job, "it") : ""));
    }
    auto reading = as_result(read_keeper(door, &keeper));
    const auto read = co_await reading;
    std::erase(door->there, &keeper);
    const error why = read ? error(errc::closed, "its supervisor has left") : read.error();
    door->coordinator->lose(keeper, why);
    if (door->options->say && !(read && door->options->coordinator.are_hosts))
        door->options->say(fmt::format("host {} is gone: {}", keeper.host(), why.what()));
}

// ---- the other end ------------------------------------------------------------------------------

SKEIN_INLINE task<followed> follower::follow(net::network* via, net::address at) {
    auto connecting = with_timeout(net::connection::connect(*via, at, host_link(options_)),
                                   time_constants::lan().reconnect_most);
    auto link = co_await connecting;
    keeper_hello hello;
    hello.id = keeper_.id();
    hello.host = options_.host;
    hello.job = options_.job;
    hello.places = keeper_.places();
    hello.least = options_.coordinator.least;
    hello.most = options_.coordinator.most;
    hello.running = keeper_.running();
    hello.newest = keeper_.newest();
    say(*link, keeper_kind::hello, hello);
    link_ = link;
    followed how;
    try {
        for (;;) {
            auto next = link->receive();
            auto f = co_await next;
            if (!f) break;
            if (auto over = handle(*f)) {
                how = std::move(*over);
                break;
            }
        }
    } catch (const error& e) {
        how.why = e;
    }
    link_.reset();
    auto closed = shield(link->close());
    co_await closed;
    if (how.why && how.why->code() == errc::cancelled) throw *how.why;
    co_return how;
}

SKEIN_INLINE std::optional<followed> follower::handle(const net::frame& f) {
    if (f.kind == keeper_kind::welcome) {
        const auto told = wire::decode<keeper_welcome>(f.body);
        if (!told) throw told.error();
        for (const auto& one : keeper_.running())
            if (std::find(told->kept.begin(), told->kept.end(), one.id) == told->kept.end())
                keeper_.kill(one.id);
        keeper_.hold(false);
        if (told->is_spare && options_.say)
            options_.say(spare_text(options_.coordinator, "this host"));
        if (leaves_) leave(*leaves_);
        return std::nullopt;
    }
    if (f.kind == keeper_kind::over) {
        auto told = wire::decode<keeper_over>(f.body);
        if (!told) throw told.error();
        followed how;
        how.is_over = true;
        how.in_order = std::get<0>(*told);
        how.stop_signal = std::get<1>(*told);
        if (!how.in_order) how.why = std::get<2>(*told);
        return how;
    }
    if (f.kind == keeper_kind::tell) {
        auto told = wire::decode<keeper_frame>(f.body);
        if (!told) throw told.error();
        keeper_.tell(told->worker, told->kind, std::move(told->body));
        return std::nullopt;
    }
    const auto told = wire::decode<keeper_order>(f.body);
    if (!told) throw told.error();
    if (f.kind == keeper_kind::start)
        keeper_.start(told->worker);
    else if (f.kind == keeper_kind::kill)
        keeper_.kill(told->worker);
    else
        throw error(errc::malformed, fmt::format("kind {} means nothing to a supervisor", f.kind));
    return std::nullopt;
}

SKEIN_INLINE void follower::leave(const std::string& why) {
    leaves_ = why;
    if (link_ && link_->is_open()) say(*link_, keeper_kind::leaves, member_leave{why});
}
SKEIN_INLINE void follower::worker_started(std::uint64_t worker, std::int64_t pid) {
    if (link_ && link_->is_open()) say(*link_, keeper_kind::started, keeper_started{worker, pid});
}
SKEIN_INLINE void follower::worker_said(std::uint64_t worker, std::uint16_t kind, byte_span body) {
    if (!link_ || !link_->is_open()) return;
    keeper_frame f;
    f.worker = worker;
    f.kind = kind;
    f.body = to_buffer(body);
    say(*link_, keeper_kind::said, f);
}
SKEIN_INLINE void follower::worker_ended(std::uint64_t worker, const worker_end& how) {
    if (!link_ || !link_->is_open()) return;
    keeper_ended told;
    told.worker = worker;
    told.code = how.code;
    told.signal = how.signal;
    told.how = how.how;
    told.last_words = how.last_words;
    told.was_silent = how.was_silent;
    if (how.not_started) told.not_started.emplace_back(*how.not_started);
    say(*link_, keeper_kind::ended, told);
}

} // namespace skein::spmd::detail

namespace skein::spmd {

SKEIN_INLINE task<std::string> ask_to_scale(net::network& via, net::address endpoint,
                                            net::token secret, std::string job, int workers) {
    elastic_host_options o;
    o.secret = secret;
    o.host = "skein scale";
    auto connecting = with_timeout(net::connection::connect(via, endpoint, detail::host_link(o)),
                                   time_constants::lan().connect_timeout);
    auto link = co_await connecting;
    detail::keeper_scale asking;
    asking.job = std::move(job);
    asking.target = workers;
    detail::say(*link, detail::keeper_kind::scale, asking);
    auto answering = with_timeout(link->receive(), time_constants::lan().handshake_timeout);
    auto answer = co_await answering;
    auto closed = shield(link->close());
    co_await closed;
    if (!answer) throw error(errc::closed, "the coordinator has closed the link");
    if (answer->kind == detail::keeper_kind::over) {
        auto no = wire::decode<detail::keeper_over>(answer->body);
        if (!no) throw no.error();
        throw std::get<2>(*no);
    }
    const auto said = wire::decode<detail::keeper_scale>(answer->body);
    if (!said) throw said.error();
    co_return fmt::format("job {} wants {} workers now ({} to {} are possible)", said->job,
                          said->target, said->least, said->most);
}

} // namespace skein::spmd
