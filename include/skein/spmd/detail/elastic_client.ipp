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
    o.self.purpose = purpose_of_members;
    o.self.pid = options_.pid;
    o.bounds.max_frame = most_member_message;
    // One that is stopped for a while is not lost: its death closes the socket, and the kernel ends
    // this process.
    o.alive = {net::keep_alive_mode::on, time_constants::lan().group_heartbeat,
               time_constants::lan().suspect_after, std::chrono::hours(24 * 365)};
    net::reconnect_policy often;
    often.until = deadline_after(loop::current().now(), time_constants::lan().rendezvous_timeout);
    often.max_tries = 0;
    auto connecting = net::connect_patiently(network_, options_.door, o, often);
    link_ = co_await connecting;
    way_ = net::requests::over(link_, words(), in_order(most_member_message));
    way_->set_closed_handler([this](const error* why) { lose_link(why); });
    say(member_hello{options_.id, options_.pid});
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

/// What the supervisor says.
SKEIN_INLINE std::shared_ptr<net::request_service> elastic_client::words() {
    auto all = std::make_shared<net::request_service>();
    all->on_tell_at_once<member_begin>([this](member_begin told) {
        heard_begin(std::move(told));
        tell_news();
    });
    all->on_tell_at_once<member_wish>([this](const member_wish& told) {
        wishes_.change = told.change;
        if (told.stop_signal != 0) wishes_.stop_signal = told.stop_signal;
        tell_news();
    });
    all->on_tell_at_once<member_hold>([this](const member_hold& told) {
        const std::lock_guard lock(wishes_.mutex);
        wishes_.held = told.on;
        wishes_.changed.notify_all();
    });
    all->on_tell_at_once<member_end>([this](member_end told) {
        end_ = std::move(told);
        if (!end_->in_order) break_world(-1, end_->why);
        tell_news();
    });
    return all;
}

SKEIN_INLINE void elastic_client::heard_begin(member_begin told) {
    if (told.rank < 0 || static_cast<std::size_t>(told.rank) >= told.now.members.size())
        throw error(errc::malformed,
                    fmt::format("rank {} in a world of {}", told.rank, told.now.members.size()));
    wishes_.change = false;
    const int lost = told.lost_rank;
    const error why(errc::peer_lost, told.now.why.empty() ? "the world has changed" : told.now.why);
    newest_ = std::move(told);
    break_world(lost, why);
}

SKEIN_INLINE void elastic_client::tell_news() {
    changed_.wake_all();
    if (options_.on_news) options_.on_news();
}

/// Whoever still works in the newest world must not wait there.
SKEIN_INLINE void elastic_client::break_world(int rank, const error& why) {
    if (place_) place_->losses.tell(rank, why);
}

SKEIN_INLINE void elastic_client::lose_link(const error* why) {
    lost_.emplace(errc::peer_lost, "the supervisor is gone");
    if (why != nullptr) lost_->with_cause(why->what());
    break_world(-1, *lost_);
    tell_news();
}

SKEIN_INLINE task<std::shared_ptr<elastic_place>> elastic_client::next(world_end last,
                                                                       std::string why) {
    old_ = std::move(place_);
    std::uint64_t had = old_ ? old_->begin.now.generation : 0;
    const auto first = old_ ? last : world_end::none;
    say(member_ask{static_cast<std::uint8_t>(first), had, options_.settings,
                   clipped(std::move(why))});
    for (;;) {
        // Not sooner: others may not have paused yet, and would take it for a loss.
        if (old_ && (end_ || lost_ || last == world_end::broken ||
                     (newest_ && newest_->now.generation > had)))
            tasks_.spawn(drop(std::move(old_)));
        if (end_) {
            if (end_->in_order) co_return nullptr;
            const auto& reason = end_->why;
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
            if (end_ && !end_->in_order) break_world(-1, end_->why);
            if (lost_) break_world(-1, *lost_);
            co_return into;
        }
        if (has_joined.error().code() == errc::cancelled && leaves_) throw has_joined.error();
        // It has not formed: somebody was lost. The supervisor makes the next one.
        say(member_ask{static_cast<std::uint8_t>(world_end::broken), had, options_.settings,
                       clipped(has_joined.error().what())});
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
    auto at = net::address::parse(begin.now.group).value();
    if (at.host == "*") at.host = options_.door.host;
    auto joining = as_result(with_cancel(
        stop.token(),
        group_client::join(network_, at, self, how,
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
    say(member_leave{clipped(why)});
}

SKEIN_INLINE task<void> elastic_client::leave() {
    leaves_ = true;
    const auto from = std::move(place_);
    if (from) say(member_done{from->begin.now.generation});
    if (!from || !from->client) co_return;
    auto client = std::move(from->client);
    auto left = client->leave();
    co_await left;
}

SKEIN_INLINE task<void> elastic_client::fail(error why) {
    leaves_ = true;
    why = clipped(why);
    const auto from = std::move(place_);
    say(member_fail{why});
    if (!from || !from->client) co_return;
    auto client = std::move(from->client);
    auto failed = client->fail(std::move(why));
    co_await failed;
}

SKEIN_INLINE task<void> elastic_client::close() {
    leaves_ = true;
    for (auto* which : {&place_, &old_})
        if (*which) tasks_.spawn(drop(std::move(*which)));
    if (way_) {
        way_->set_closed_handler(nullptr);
        auto closed = shield(way_->close());
        co_await closed;
    }
    tasks_.cancel();
    auto joined = shield(as_result(tasks_.join()));
    (void)co_await joined;
}

} // namespace skein::spmd::detail
