// SPDX-License-Identifier: Apache-2.0
#pragma once
// A worker from its start to its end, and its connection.

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/endpoint.hpp>
#include <skein/net/network.hpp>
#include <skein/proc/children.hpp>
#include <skein/spmd/detail/elastic_protocol.hpp>
#include <skein/spmd/detail/supervisor.ipp>
#include <skein/spmd/environment.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/wire/encode.hpp>

#include <exception>
#include <map>
#include <utility>

#include <fmt/format.h>

namespace skein::spmd {

struct local_keeper::worker {
    std::uint64_t id = 0;
    std::unique_ptr<proc::child> process;
    std::shared_ptr<net::connection> link;
    std::weak_ptr<net::requests> way;                          ///< over it
    std::vector<std::pair<std::uint16_t, byte_buffer>> unsaid; ///< before there was a way
    event unlinked;                                            ///< what it said has been read
    bool was_linked = false;                                   ///< there was a way
    bool kill_asked = false;
    bool was_silent = false;
    duration silent{}; ///< for so long, when it was looked at
    time_span limit{}; ///< of that
    bool has_ended = false;
};

namespace detail {

SKEIN_INLINE net::connection_options keeper_link(const local_keeper_options& of) {
    net::connection_options o;
    o.secret = of.secret;
    o.self.name = "keeper";
    o.self.purpose = purpose_of_members;
    o.alive = of.alive;
    o.bounds.max_frame = most_member_message;
    return o;
}

/// There is no status: its node is lost, or it was never started there.
///   has_come  it was heard
SKEIN_INLINE void tell_lost(const proc::child_end& end, worker_end& told, bool has_come) {
    told.code = -1;
    told.is_moved = end.is_moved;
    told.was_seen = end.is_moved || (end.was_asked && !has_come);
    if (!told.was_silent) told.how = "is lost: " + end.lost;
    if (has_come || end.was_asked) return;
    told.how = "could not be started";
    told.was_seen = true;
    told.not_started = error(end.is_lasting ? errc::not_found : errc::worker_lost, end.lost);
}

} // namespace detail

SKEIN_INLINE local_keeper::local_keeper(net::network& via, proc::children& on,
                                        local_keeper_options options)
    : options_(std::move(options)), children_(on),
      silence_(options_.alive.dead_after, options_.most_silence) {
    net::acceptor_options bounds;
    const auto places = static_cast<std::size_t>(options_.places) + 8;
    bounds.places = std::max(bounds.places, places);
    bounds.places_per_address = std::max(bounds.places_per_address, places);
    door_ =
        std::make_unique<net::endpoint>(via, options_.door, detail::keeper_link(options_), bounds);
}

SKEIN_INLINE local_keeper::~local_keeper() = default;

SKEIN_INLINE task<void> local_keeper::run(keeper_listener& to) {
    to_ = &to;
    tasks_.spawn(learn_silence());
    std::exception_ptr failure;
    try {
        auto serving = serve();
        co_await serving;
    } catch (...) {
        failure = std::current_exception();
    }
    tasks_.cancel();
    auto joined = shield(as_result(tasks_.join()));
    (void)co_await joined;
    workers_.clear(); // kills and reaps what still runs
    if (failure) std::rethrow_exception(failure);
}

SKEIN_INLINE task<void> local_keeper::serve() {
    auto serving = door_->serve(
        [this](std::shared_ptr<net::connection> link) { return serve_one(std::move(link)); });
    co_await serving;
}

SKEIN_INLINE std::shared_ptr<local_keeper::worker> local_keeper::let_in(
    const detail::member_hello& hello, std::shared_ptr<net::connection> link) {
    const auto found = workers_.find(hello.id);
    if (found == workers_.end() || found->second->link || found->second->has_ended)
        throw error(errc::permission_denied,
                    fmt::format("pid {} says it is worker {}, which is none of ours or connected "
                                "already",
                                hello.pid, hello.id));
    const auto& from = found->second;
    // It was faster than that news, or of another host, where it alone knows its number.
    if (!from->process || from->process->pid() == 0) to_->worker_started(hello.id, hello.pid);
    from->link = std::move(link);
    from->limit = silence_.limit(loop::current().now());
    from->link->allow_silence(from->limit, from->limit);
    return from;
}

SKEIN_INLINE task<void> local_keeper::serve_one(std::shared_ptr<net::connection> link) {
    std::shared_ptr<worker> from;
    event said;
    net::requests::handle way;
    const auto connect = [&] {
        from->way = way;
        from->was_linked = true;
        for (auto& [number, body] : std::exchange(from->unsaid, {}))
            tell(from->id, number, std::move(body));
        if (held_)
            tell(from->id, detail::member_hold::number, wire::encode(detail::member_hold{true}));
        said.set();
    };
    const auto service = std::make_shared<net::request_service>();
    service->on_tell_at_once<detail::member_hello>([&](const detail::member_hello& hello) {
        from = let_in(hello, link);
        if (way) connect();
    });
    for (const auto number : {detail::member_ask::number, detail::member_leave::number,
                              detail::member_fail::number, detail::member_done::number})
        service->add(number, "word of a worker", {}, [&, number](byte_span body) {
            if (!from) throw error(errc::malformed, "a worker says hello first");
            to_->worker_said(from->id, number, body);
            return byte_buffer();
        });
    way = net::requests::over(link, service, detail::in_order(detail::most_member_message));
    way->set_closed_handler([&](const error*) { said.set(); });
    if (from) connect(); // its words came before
    auto hello = said.wait_for(time_constants::lan().handshake_timeout);
    (void)co_await hello;
    if (!from) throw link->failure().value_or(error(errc::malformed, "a worker says hello first"));
    auto hearing = as_result(link->wait_closed());
    const auto heard = co_await hearing;
    from->unlinked.set();
    // Silent, or it speaks nonsense: it may be alive, and hold what others wait for.
    if (heard && link->failure() && !from->has_ended) {
        from->was_silent = link->failure()->code() == errc::peer_lost;
        kill(from->id);
    }
    auto closing = shield(way->close());
    co_await closing;
}

/// What this host is able to, from its own delays and those of the workers that came back.
SKEIN_INLINE task<void> local_keeper::learn_silence() {
    const duration period = duration(options_.alive.ping_after) / 2;
    for (;;) {
        const auto due = loop::current().now() + period;
        auto pause = sleep_for(period);
        co_await pause;
        look_at_silence(loop::current().now() - due);
    }
}

SKEIN_INLINE void local_keeper::look_at_silence(duration late) {
    const auto now = loop::current().now();
    silence_.saw(late, now);
    // What was said while this process waited may be unread.
    const bool is_late = late > duration(options_.alive.ping_after);
    for (const auto& [id, w] : workers_) {
        if (!w->link || !w->link->is_open()) continue;
        const auto silent = w->link->silence();
        if (silent < w->silent && !is_late) silence_.saw(w->silent, now); // it has come back
        w->silent = silent;
    }
    const auto limit = silence_.limit(now);
    for (const auto& [id, w] : workers_) {
        if (!w->link || !w->link->is_open()) continue;
        w->limit = limit;
        w->link->allow_silence(limit, limit);
    }
}

SKEIN_INLINE bool local_keeper::places_later() const noexcept {
    return children_.are_placed_later();
}

SKEIN_INLINE void local_keeper::keep_place(std::uint64_t id, const std::string& why) {
    const auto found = workers_.find(id);
    if (found != workers_.end() && found->second->process) found->second->process->keep_place(why);
}

SKEIN_INLINE void local_keeper::start(std::uint64_t id) {
    auto self = std::make_shared<worker>();
    self->id = id;
    workers_[id] = self;
    tasks_.spawn(live(std::move(self)));
}

SKEIN_INLINE void local_keeper::kill(std::uint64_t id) {
    const auto found = workers_.find(id);
    if (found == workers_.end() || found->second->has_ended) return;
    auto& w = *found->second;
    w.kill_asked = true;
    if (w.process) w.process->kill();
    // Its node may be out of reach, and it is not: without us it ends.
    if (places_later() && w.link && w.link->is_open())
        w.link->abort(error(errc::aborted, "this worker is not wanted any more"));
}

SKEIN_INLINE void local_keeper::tell(std::uint64_t id, std::uint16_t kind, byte_buffer body) {
    if (kind == detail::member_begin::number)
        if (auto told = wire::decode<detail::member_begin>(body);
            told && told->now.generation > newest_.generation)
            newest_ = std::move(told->now);
    const auto found = workers_.find(id);
    if (found == workers_.end()) return;
    auto& to = *found->second;
    const auto way = to.way.lock();
    if (!to.link || !to.link->is_open()) return;
    if (!way) {
        if (!to.was_linked) to.unsaid.emplace_back(kind, std::move(body));
        return;
    }
    try {
        way->tell_raw(kind, std::move(body), 0);
    } catch (const error& full) { // this worker is lost, and not the job
        to.link->abort(full);
    }
}

SKEIN_INLINE std::vector<view_member> local_keeper::running() const {
    std::vector<view_member> all;
    for (const auto& [id, w] : workers_) {
        if (w->has_ended || !w->process) continue;
        all.push_back(view_member{id, options_.host, options_.id, w->process->pid()});
    }
    return all;
}

SKEIN_INLINE void local_keeper::kill_all() {
    for (const auto& [id, w] : workers_) kill(id);
}

SKEIN_INLINE void local_keeper::hold(bool on) {
    if (std::exchange(held_, on) == on) return;
    for (const auto& [id, w] : workers_)
        tell(id, detail::member_hold::number, wire::encode(detail::member_hold{on}));
}

SKEIN_INLINE task<void> local_keeper::begin(std::shared_ptr<worker> self) {
    std::map<std::string, std::string> mine{
        {elastic_variable, net::to_string(door_->local())},
        {elastic_id_variable, std::to_string(self->id)},
        {elastic_workers_variable, fmt::format("{}:{}", options_.least, options_.most)},
        {"SKEIN_JOB_ID", options_.job},
        {token_variable, options_.secret.to_hex()}};
    auto what = detail::child_of(options_, fmt::format("worker {}", self->id), std::move(mine));
    if (places_later())
        what.on_place = [this, of = std::weak_ptr<worker>(self)](const proc::place_news& news) {
            if (const auto it = of.lock(); it && !it->has_ended) to_->worker_place(it->id, news);
        };
    auto starting = children_.start(std::move(what));
    self->process = co_await starting;
    if (self->kill_asked) self->process->kill();
}

SKEIN_INLINE task<void> local_keeper::live(std::shared_ptr<worker> self) {
    worker_end told;
    std::optional<error> failed;
    try {
        auto starting = begin(self);
        co_await starting;
    } catch (const error& e) {
        failed = e;
    }
    if (failed) {
        if (failed->code() == errc::cancelled) co_return;
        told.how = "could not be started";
        told.not_started = std::move(failed);
    } else {
        to_->worker_started(self->id, self->process->pid());
        auto ended = self->process->ended();
        const auto end = co_await ended;
        told.code = end.status.code();
        told.signal = end.status.signal();
        told.how = self->was_silent ? fmt::format("was silent for {:.3g} s, the limit of this host "
                                                  "now, and was killed for that",
                                                  to_seconds(self->limit))
                                    : end.status.describe();
        told.last_words = end.last_words;
        told.was_silent = self->was_silent;
        if (!end.lost.empty()) detail::tell_lost(end, told, self->was_linked);
        if (self->link) { // its last frames, which are in the socket
            auto read = as_result(self->unlinked.wait_for(time_constants::lan().last_word));
            (void)co_await read;
        }
    }
    self->has_ended = true;
    workers_.erase(self->id);
    to_->worker_ended(self->id, told);
}

} // namespace skein::spmd
