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
    o.self.purpose = of.coordinator.are_hosts ? purpose_of_hosts : "elastic-host-2";
    o.alive = of.alive;
    o.bounds.max_frame = most_keeper_message;
    return o;
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

SKEIN_INLINE keeper_scale scale(const keeper_door& door, keeper_scale asked) {
    const auto& o = door.options->coordinator;
    if (!asked.job.empty() && asked.job != door.options->job)
        throw error(errc::mismatch,
                    fmt::format("this is job '{}', not '{}'", door.options->job, asked.job));
    door.coordinator->set_target(asked.target);
    return {door.options->job, door.coordinator->target(), o.least, o.most};
}

SKEIN_INLINE std::string text_of(const keeper_scale& said) {
    return fmt::format("job {} wants {} workers now ({} to {} are possible)", said.job, said.target,
                       said.least, said.most);
}

SKEIN_INLINE keeper_welcome remote_keeper::let_in(keeper_hello hello) {
    auto& job = *door_.coordinator;
    const auto& o = *door_.options;
    if (is_known) throw error(errc::already_exists, "this supervisor has said hello");
    if (const auto no = objection(hello, door_)) {
        if (o.say) o.say(fmt::format("a host was refused: {}", no->text()));
        throw *no;
    }
    if (door_.on_newer && hello.newest.generation > job.newest().generation) {
        door_.on_newer(hello.newest);
        const error why(errc::aborted, "another host knows a newer view"); // it comes again
        link_.abort(why);
        throw why;
    }
    // It is back before its old link was found to be broken.
    for (auto* other : door_.there)
        if (other->id() == hello.id)
            other->way->abort(error(errc::reset, "its supervisor has come again"));
    hello_ = std::move(hello);
    keeper_welcome welcome;
    welcome.is_spare = has_places_enough(door_);
    welcome.kept = job.add(*this, hello_.running);
    door_.there.push_back(this);
    if (o.say)
        o.say(fmt::format("host {} has come{}{}{}", host(),
                          o.coordinator.are_hosts ? "" : fmt::format(", with {} places", places()),
                          welcome.is_spare ? "; " : "",
                          welcome.is_spare ? spare_text(o.coordinator, "it") : ""));
    is_known = true;
    news.set();
    return welcome;
}

SKEIN_INLINE void remote_keeper::check_known() const {
    if (!is_known) throw error(errc::malformed, "a supervisor says hello first");
}

SKEIN_INLINE std::shared_ptr<net::request_service> remote_keeper::words() {
    auto all = std::make_shared<net::request_service>();
    auto& job = *door_.coordinator;
    all->on_at_once<keeper_hello, keeper_welcome>(
        [this](keeper_hello m) { return let_in(std::move(m)); });
    all->on_at_once<keeper_scale, keeper_scale>(
        [this](keeper_scale m) { return scale(door_, std::move(m)); });
    all->on_tell_at_once<keeper_started>([this, &job](keeper_started m) {
        check_known();
        job.worker_started(m.worker, m.pid);
    });
    all->on_tell_at_once<keeper_frame>([this, &job](const keeper_frame& m) {
        check_known();
        job.worker_said(m.worker, m.kind, m.body);
    });
    all->on_tell_at_once<keeper_ended>([this, &job](const keeper_ended& m) {
        check_known();
        job.worker_ended(m.worker, m.how);
    });
    all->on_tell_at_once<member_leave>([this, &job](const member_leave& m) {
        check_known();
        job.drain(*this, m.why);
    });
    return all;
}

SKEIN_INLINE task<void> serve_keeper(keeper_door* door, std::shared_ptr<net::connection> link) {
    remote_keeper keeper(*door, *link);
    keeper.use(net::requests::over(link, keeper.words(), in_order(most_keeper_message)));
    keeper.way->set_closed_handler([&](const error*) { keeper.news.set(); });
    // Whoever is refused, and a tool, close it.
    auto coming = as_result(keeper.news.wait_for(time_constants::lan().handshake_timeout));
    const auto came = co_await coming;
    if (keeper.is_known) {
        auto hearing = as_result(link->wait_closed());
        const auto heard = co_await hearing;
        const auto lost = heard ? link->failure() : std::optional(heard.error());
        const auto why = lost.value_or(error(errc::closed, "its supervisor has left"));
        std::erase(door->there, &keeper);
        door->coordinator->lose(keeper, why);
        if (door->options->say && (lost || !door->options->coordinator.are_hosts))
            door->options->say(fmt::format("host {} is gone: {}", keeper.host(), why.what()));
    }
    auto closed = shield(keeper.way->close());
    co_await closed;
    if (std::erase(door->there, &keeper) > 0) // its hello came with the end
        door->coordinator->lose(keeper, error(errc::closed, "its supervisor came too late"));
    if (!came) throw came.error();
}

// ---- the other end ------------------------------------------------------------------------------

SKEIN_INLINE task<followed> follower::follow(net::network* via, net::address at) {
    auto connecting = with_timeout(net::connection::connect(*via, at, host_link(options_)),
                                   time_constants::lan().reconnect_most);
    auto link = co_await connecting;
    followed how;
    event ended;
    way_ = net::requests::over(link, orders(&how, &ended), in_order(most_keeper_message));
    link_ = std::move(link);
    const auto way = way_;
    way->set_closed_handler([&](const error* why) {
        if (why != nullptr && !how.is_over) how.why = *why;
        ended.set();
    });
    auto obeying = as_result(obey(way, &how, &ended));
    const auto obeyed = co_await obeying;
    link_.reset();
    way_.reset();
    auto closed = shield(way->close());
    co_await closed;
    if (!obeyed) throw obeyed.error();
    co_return how;
}

SKEIN_INLINE task<void> follower::obey(net::requests::handle way, followed* how, event* ended) {
    keeper_hello hello;
    hello.id = keeper_.id();
    hello.host = options_.host;
    hello.job = options_.job;
    hello.places = keeper_.places();
    hello.least = options_.coordinator.least;
    hello.most = options_.coordinator.most;
    hello.running = keeper_.running();
    hello.newest = keeper_.newest();
    const auto had = hello.running;
    auto greeting = as_result(way->call<keeper_welcome>(std::move(hello)));
    const auto welcome = co_await greeting;
    if (!welcome) {
        if (welcome.error().code() == errc::cancelled) throw welcome.error();
        if (!link_->is_open()) co_return; // that says why
        how->is_over = true;
        how->why = welcome.error();
        co_return;
    }
    for (const auto& one : had) // orders may have come before this is read
        if (std::find(welcome->kept.begin(), welcome->kept.end(), one.id) == welcome->kept.end())
            keeper_.kill(one.id);
    keeper_.hold(false);
    if (welcome->is_spare && options_.say)
        options_.say(spare_text(options_.coordinator, "this host"));
    if (leaves_) leave(*leaves_);
    auto waiting = ended->wait();
    co_await waiting;
}

SKEIN_INLINE std::shared_ptr<net::request_service> follower::orders(followed* how, event* ended) {
    auto all = std::make_shared<net::request_service>();
    all->on_tell_at_once<keeper_start>([this](keeper_start m) { keeper_.start(m.worker); });
    all->on_tell_at_once<keeper_kill>([this](keeper_kill m) { keeper_.kill(m.worker); });
    all->on_tell_at_once<keeper_frame>(
        [this](keeper_frame m) { keeper_.tell(m.worker, m.kind, std::move(m.body)); });
    all->on_tell_at_once<keeper_over>([how, ended](const keeper_over& m) {
        how->is_over = true;
        how->in_order = m.in_order;
        how->stop_signal = m.signal;
        if (!m.in_order) how->why = m.why;
        ended->set();
    });
    return all;
}

SKEIN_INLINE void follower::leave(const std::string& why) {
    leaves_ = why;
    say(member_leave{why});
}
SKEIN_INLINE void follower::worker_started(std::uint64_t worker, std::int64_t pid) {
    say(keeper_started{worker, pid});
}
SKEIN_INLINE void follower::worker_said(std::uint64_t worker, std::uint16_t kind, byte_span body) {
    say(keeper_frame{worker, kind, to_buffer(body)});
}
SKEIN_INLINE void follower::worker_ended(std::uint64_t worker, const worker_end& how) {
    say(keeper_ended{worker, how});
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
    auto way = net::requests::over(std::move(link));
    auto asking = as_result(
        with_timeout(way->call<detail::keeper_scale>(detail::keeper_scale{std::move(job), workers}),
                     time_constants::lan().handshake_timeout));
    const auto said = co_await asking;
    auto closed = shield(way->close());
    co_await closed;
    if (!said) throw said.error();
    co_return detail::text_of(*said);
}

} // namespace skein::spmd
