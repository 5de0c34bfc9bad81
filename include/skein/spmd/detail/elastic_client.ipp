// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of elastic_client.hpp.

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/dial.hpp>
#include <skein/net/network.hpp>
#include <skein/spmd/detail/elastic_client.hpp>

#include <utility>

#include <fmt/format.h>

namespace skein::spmd::detail {

SKEIN_INLINE elastic_client::elastic_client(net::network& via, elastic_client_options options,
                                            elastic_wishes& wishes)
    : network_(via), options_(std::move(options)), wishes_(wishes) {}
SKEIN_INLINE elastic_client::~elastic_client() = default;

SKEIN_INLINE task<void> elastic_client::connect() {
    net::connection_options o;
    o.secret = options_.secret;
    o.self.name = fmt::format("worker {}", options_.id);
    o.self.purpose = "elastic";
    o.self.pid = options_.pid;
    o.bounds.max_frame = most_member_frame;
    // One that is stopped for a while is not lost: its death closes the socket, and the kernel ends
    // this process.
    o.alive = {net::keep_alive_mode::on, time_constants::lan().group_heartbeat,
               time_constants::lan().suspect_after, std::chrono::hours(24 * 365)};
    net::reconnect_policy often;
    often.until = deadline_after(loop::current().now(), time_constants::lan().rendezvous_timeout);
    often.max_tries = 0;
    auto connecting = net::connect_patiently(network_, options_.door, o, often);
    link_ = co_await connecting;
    say(*link_, member_kind::hello, member_hello{options_.id, options_.pid});
    tasks_.spawn(read_all());
    tasks_.spawn(watch_silence());
}

/// A supervisor that is silent cannot say that it has lost the coordinator.
SKEIN_INLINE task<void> elastic_client::watch_silence() {
    while (link_->is_open()) {
        auto pause = sleep_for(time_constants::lan().group_heartbeat);
        co_await pause;
        const std::lock_guard lock(wishes_.mutex);
        if (std::exchange(wishes_.is_silent, link_->is_suspect()) != wishes_.is_silent)
            wishes_.changed.notify_all();
    }
}

SKEIN_INLINE task<void> elastic_client::read_all() {
    std::optional<error> why;
    try {
        for (;;) {
            auto next = link_->receive();
            auto f = co_await next;
            if (!f) break;
            handle(*f);
        }
    } catch (const error& e) {
        why = e;
    }
    if (why && why->code() == errc::cancelled) co_return;
    error lost(errc::peer_lost, "the supervisor is gone");
    if (why) lost.with_cause(why->what());
    lose_link(std::move(lost));
}

SKEIN_INLINE void elastic_client::handle(const net::frame& f) {
    switch (f.kind) {
    case member_kind::begin: {
        auto told = wire::decode<member_begin>(f.body);
        if (!told) throw told.error();
        const auto rank = static_cast<std::size_t>(told->rank);
        if (told->rank < 0 || rank >= told->now.members.size())
            throw error(errc::malformed, fmt::format("rank {} in a world of {}", told->rank,
                                                     told->now.members.size()));
        wishes_.change = false;
        const int lost = told->lost_rank;
        const error why(errc::peer_lost,
                        told->now.why.empty() ? "the world has changed" : told->now.why);
        newest_ = std::move(*told);
        break_world(lost, why);
        break;
    }
    case member_kind::wish: {
        const auto told = wire::decode<member_wish>(f.body);
        if (!told) throw told.error();
        wishes_.change = told->change;
        if (told->stop_signal != 0) wishes_.stop_signal = told->stop_signal;
        break;
    }
    case member_kind::hold: {
        const auto told = wire::decode<member_hold>(f.body);
        if (!told) throw told.error();
        const std::lock_guard lock(wishes_.mutex);
        wishes_.held = told->on;
        wishes_.changed.notify_all();
        break;
    }
    case member_kind::end: {
        auto told = wire::decode<member_end>(f.body);
        if (!told) throw told.error();
        end_ = std::move(*told);
        if (!std::get<0>(*end_)) break_world(-1, std::get<1>(*end_));
        break;
    }
    default: throw error(errc::malformed, fmt::format("kind {} means nothing to a rank", f.kind));
    }
    changed_.wake_all();
    if (options_.on_news) options_.on_news();
}

/// Whoever still works in the newest world must not wait there.
SKEIN_INLINE void elastic_client::break_world(int rank, const error& why) {
    if (place_) place_->losses.tell(rank, why);
}

SKEIN_INLINE void elastic_client::lose_link(error why) {
    if (!lost_) lost_ = std::move(why);
    break_world(-1, *lost_);
    changed_.wake_all();
    if (options_.on_news) options_.on_news();
}

SKEIN_INLINE task<std::shared_ptr<elastic_place>> elastic_client::next(world_end last,
                                                                       std::string why) {
    old_ = std::move(place_);
    std::uint64_t had = old_ ? old_->begin.now.generation : 0;
    if (link_->is_open()) {
        member_ask asking;
        asking.last = static_cast<std::uint8_t>(old_ ? last : world_end::none);
        asking.generation = had;
        asking.settings = options_.settings;
        asking.why = clipped(std::move(why));
        say(*link_, member_kind::ask, asking);
    }
    for (;;) {
        // Not sooner: others may not have paused yet, and would take it for a loss.
        if (old_ && (end_ || lost_ || last == world_end::broken ||
                     (newest_ && newest_->now.generation > had)))
            tasks_.spawn(drop(std::move(old_)));
        if (end_) {
            if (std::get<0>(*end_)) co_return nullptr;
            const auto& reason = std::get<1>(*end_);
            if (reason.code() == errc::mismatch || reason.code() == errc::cancelled) throw reason;
            throw error(errc::aborted, "the job ends").with_cause(reason.what());
        }
        if (lost_) throw *lost_;
        if (!newest_ || newest_->now.generation <= had) {
            auto changed = changed_.wait();
            co_await changed;
            continue;
        }
        auto into = std::make_shared<elastic_place>();
        into->begin = *newest_;
        had = newest_->now.generation;
        auto joining = as_result(join(into));
        const auto has_joined = co_await joining;
        if (has_joined) {
            place_ = into;
            // What has come meanwhile.
            if (newest_->now.generation > had)
                break_world(newest_->lost_rank, error(errc::peer_lost, newest_->now.why));
            if (end_ && !std::get<0>(*end_)) break_world(-1, std::get<1>(*end_));
            if (lost_) break_world(-1, *lost_);
            co_return into;
        }
        if (has_joined.error().code() == errc::cancelled && leaves_) throw has_joined.error();
        // It has not formed: somebody was lost. The supervisor makes the next one.
        if (link_->is_open()) {
            member_ask asking;
            asking.last = static_cast<std::uint8_t>(world_end::broken);
            asking.settings = options_.settings;
            asking.generation = had;
            asking.why = clipped(has_joined.error().what());
            say(*link_, member_kind::ask, asking);
        }
    }
}

SKEIN_INLINE task<void> elastic_client::until_useless(std::uint64_t generation,
                                                      cancel_source stop) {
    while (!lost_ && !end_ && newest_->now.generation == generation) {
        auto changed = changed_.wait();
        co_await changed;
    }
    stop.request();
}

/// The group of a view, unless news comes that makes it useless.
SKEIN_INLINE task<void> elastic_client::join(std::shared_ptr<elastic_place> into) {
    const auto& begin = into->begin;
    const auto& mine = begin.now.members[static_cast<std::size_t>(begin.rank)];
    member_info self;
    self.rank = begin.rank;
    self.world_size = static_cast<int>(begin.now.members.size());
    self.host = mine.host;
    self.pid = options_.pid;
    self.local_size = 0;
    for (std::size_t r = 0; r < begin.now.members.size(); ++r) {
        if (begin.now.members[r].host != mine.host) continue;
        if (static_cast<int>(r) < begin.rank) ++self.local_rank;
        ++self.local_size;
    }
    group_options how;
    how.world_size = self.world_size;
    how.generation = static_cast<int>(begin.now.generation);
    how.job = begin.job;
    how.secret = net::token::from_hex(begin.secret).value();
    how.join_deadline = options_.join_deadline;
    how.is_up = true;
    how.alive.mode = net::keep_alive_mode::automatic;
    auto* const losses = &into->losses;
    cancel_source stop;
    scope watching;
    watching.spawn(until_useless(begin.now.generation, stop));
    auto joining = as_result(with_cancel(
        stop.token(),
        group_client::join(network_, net::address::parse(begin.now.group).value(), self, how,
                           [losses](int rank, const error& why) { losses->tell(rank, why); })));
    auto joined = co_await joining;
    watching.cancel();
    auto watched = shield(as_result(watching.join()));
    (void)co_await watched;
    into->client = std::move(joined).value(); // or throws
    into->members = into->client->members();
    into->given = into->client->given();
}

/// In the background: the server may have nothing to say any more.
SKEIN_INLINE task<void> elastic_client::drop(std::shared_ptr<elastic_place> which) {
    auto client = std::move(which->client);
    if (!client) co_return;
    auto dropped = shield(client->drop());
    co_await dropped;
}

SKEIN_INLINE void elastic_client::ask_to_leave(const std::string& why) {
    if (!link_ || !link_->is_open()) return;
    say(*link_, member_kind::leave, member_leave{clipped(why)});
}

SKEIN_INLINE task<void> elastic_client::leave() {
    leaves_ = true;
    const auto from = std::move(place_);
    if (from && link_->is_open())
        say(*link_, member_kind::done, member_done{from->begin.now.generation});
    if (!from || !from->client) co_return;
    auto client = std::move(from->client);
    auto left = client->leave();
    co_await left;
}

SKEIN_INLINE task<void> elastic_client::fail(error why) {
    leaves_ = true;
    why = clipped(why);
    const auto from = std::move(place_);
    if (link_->is_open()) say(*link_, member_kind::fail, member_fail(why));
    if (!from || !from->client) co_return;
    auto client = std::move(from->client);
    auto failed = client->fail(std::move(why));
    co_await failed;
}

SKEIN_INLINE task<void> elastic_client::close() {
    leaves_ = true;
    for (auto* which : {&place_, &old_})
        if (*which) tasks_.spawn(drop(std::move(*which)));
    if (link_) {
        auto closed = shield(link_->close());
        co_await closed;
    }
    tasks_.cancel();
    auto joined = shield(as_result(tasks_.join()));
    (void)co_await joined;
}

} // namespace skein::spmd::detail
