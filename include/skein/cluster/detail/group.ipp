// SPDX-License-Identifier: Apache-2.0
#pragma once
// Frames and state of the group protocol. Bodies are wire-encoded aggregates.

#include <skein/core/awaitable.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/network.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace skein::cluster {
namespace detail {

/// Kinds of frames; client to server unless said.
namespace kind {
inline constexpr std::uint16_t join = 0x0101;       ///< join_body
inline constexpr std::uint16_t contribute = 0x0102; ///< blob_body
inline constexpr std::uint16_t leave = 0x0103;      ///< empty
inline constexpr std::uint16_t failed = 0x0104;     ///< failed_body
inline constexpr std::uint16_t refused = 0x0181;    ///< server: failed_body
inline constexpr std::uint16_t formed = 0x0182;     ///< server: formed_body
inline constexpr std::uint16_t gathered = 0x0183;   ///< server: gathered_body
inline constexpr std::uint16_t lost = 0x0184;       ///< server: failed_body
} // namespace kind

struct failed_body {
    std::int32_t rank = -1;
    std::uint16_t code = 0;
    std::string text;
    std::string hint;
};
struct formed_body {
    std::int32_t generation = 0;
    std::vector<member_info> members;
};
struct blob_body {
    std::string key;
    byte_buffer blob;
};
struct gathered_body {
    std::string key;
    std::vector<byte_buffer> blobs;
};

SKEIN_INLINE failed_body to_body(int rank, const error& why) {
    failed_body body;
    body.rank = rank;
    body.code = static_cast<std::uint16_t>(why.code());
    body.text = why.text();
    if (!why.where().empty()) body.text = why.where() + ": " + body.text;
    if (!why.cause().empty()) body.text += ": " + why.cause();
    body.hint = why.hint();
    return body;
}
SKEIN_INLINE error to_error(const failed_body& body) {
    error e(static_cast<errc>(body.code), body.text);
    if (!body.hint.empty()) e.with_hint(body.hint);
    return e;
}

template <class Body>
void send(net::connection& link, std::uint16_t kind, const Body& body) {
    net::frame f;
    f.kind = kind;
    f.body = wire::encode(body);
    link.send(std::move(f));
}

SKEIN_INLINE net::connection_options link_options(const group_options& options, std::string name) {
    net::connection_options o;
    o.secret = options.secret;
    o.self.name = std::move(name);
    o.alive = options.alive;
    o.bounds.max_frame = options.max_blob * static_cast<std::size_t>(options.world_size) + 65536;
    return o;
}

} // namespace detail

// ---- server

struct group_server::member {
    member_info info;
    std::shared_ptr<net::connection> link;
    bool left = false;
};

SKEIN_INLINE group_server::group_server(net::network& via, net::address at, group_options options)
    : options_(std::move(options)), listener_(via.listen(std::move(at))),
      members_(static_cast<std::size_t>(options_.world_size)) {}

SKEIN_INLINE group_server::~group_server() = default;

SKEIN_INLINE net::address group_server::local() const { return listener_->local(); }

SKEIN_INLINE std::vector<int> group_server::missing() const {
    std::vector<int> ranks;
    for (std::size_t r = 0; r < members_.size(); ++r) {
        if (!members_[r]) ranks.push_back(static_cast<int>(r));
    }
    return ranks;
}

SKEIN_INLINE bool group_server::has_left(int rank) const {
    const auto& m = members_[static_cast<std::size_t>(rank)];
    return m && m->left;
}

SKEIN_INLINE task<group_outcome> group_server::run() {
    children_.spawn(accept_all());
    children_.spawn(watch_deadline());
    std::exception_ptr stopped;
    try {
        auto ended = ended_.wait();
        co_await ended;
    } catch (...) {
        stopped = std::current_exception(); // the caller is cancelled: clean up all the same
    }
    listener_->close();
    // Readers end by themselves when their connection is closed here, after the last word is flushed.
    for (auto& m : members_) {
        if (!m || !m->link) continue;
        auto closed = shield(m->link->close());
        co_await closed;
    }
    children_.cancel();
    auto joined = shield(children_.join());
    co_await joined;
    if (stopped) std::rethrow_exception(stopped);
    co_return *outcome_;
}

SKEIN_INLINE void group_server::abort(error why, int culprit) {
    group_outcome how;
    how.failure = std::move(why);
    how.culprit = culprit;
    end(std::move(how));
}

SKEIN_INLINE task<void> group_server::accept_all() {
    for (;;) {
        std::unique_ptr<net::stream> from;
        try {
            auto next = listener_->accept();
            from = co_await next;
        } catch (const error& e) {
            if (e.code() == errc::closed || e.code() == errc::cancelled) co_return;
            throw;
        }
        // A stranger's connection must not cost more than a handshake, and not end the group.
        if (children_.size() < members_.size() + 64) children_.spawn(serve(std::move(from)));
    }
}

SKEIN_INLINE task<void> group_server::watch_deadline() {
    constexpr duration patience = std::chrono::seconds(10);
    auto left = options_.join_deadline;
    if (left > patience) { // a person would ask what it waits for
        co_await sleep_for(patience);
        if (running_ || outcome_) co_return;
        logging::warn("cluster", fmt::format("still waiting for rank {} of {} to join",
                                             fmt::join(missing(), ", "), options_.world_size));
        left -= patience;
    }
    co_await sleep_for(left);
    if (running_ || outcome_) co_return;
    abort(error(errc::timeout, fmt::format("rank {} of {} did not join within {:.3g} s",
                                           fmt::join(missing(), ", "), options_.world_size,
                                           to_seconds(options_.join_deadline)))
              .with_hint("did all processes start, and can they reach this host?"),
          missing().front());
}

SKEIN_INLINE task<void> group_server::serve(std::unique_ptr<net::stream> from) {
    std::shared_ptr<net::connection> link;
    member* self = nullptr;
    std::optional<error> why;
    try {
        auto shaken =
            net::connection::accept(std::move(from), detail::link_options(options_, "group"));
        link = co_await shaken;
        auto first_frame = with_timeout(link->receive(), std::chrono::seconds(5));
        auto first = co_await first_frame;
        if (!first) co_return;
        auto admitted = admit(link, *first);
        if (!admitted) {
            detail::send(*link, detail::kind::refused, detail::to_body(-1, admitted.error()));
            auto closed = link->close();
            co_await closed;
            co_return;
        }
        self = *admitted;
        start_if_complete();
        for (;;) {
            auto next = link->receive();
            auto f = co_await next;
            if (!f) break;
            handle(*self, *f);
        }
    } catch (const error& e) {
        why = e;
    }
    // A stranger that fails the handshake is nobody's loss.
    if (self == nullptr || self->left || outcome_) co_return;
    group_outcome how;
    how.culprit = self->info.rank;
    how.failure =
        error(errc::peer_lost, fmt::format("rank {} (pid {} at {}) is gone", self->info.rank,
                                           self->info.pid, self->info.host))
            .with_cause(why ? why->text() : "it closed its connection without leaving");
    end(std::move(how));
}

SKEIN_INLINE result<group_server::member*> group_server::admit(
    std::shared_ptr<net::connection> link, const net::frame& first) {
    if (first.kind != detail::kind::join) {
        return error(errc::malformed,
                     fmt::format("a group expects join first, got kind {}", first.kind));
    }
    auto info = wire::decode<member_info>(first.body);
    if (!info) return info.error();
    if (info->world_size != options_.world_size) {
        return error(errc::mismatch,
                     fmt::format("rank {} thinks of a world of {}, this group is of {}", info->rank,
                                 info->world_size, options_.world_size))
            .with_hint("two jobs share one address, or were started with different sizes");
    }
    if (info->rank < 0 || info->rank >= options_.world_size) {
        return error(errc::mismatch,
                     fmt::format("rank {} in a world of {}", info->rank, options_.world_size));
    }
    auto& place = members_[static_cast<std::size_t>(info->rank)];
    if (place) {
        return error(errc::already_exists,
                     fmt::format("rank {} is taken by pid {} at {}", info->rank, place->info.pid,
                                 place->info.host))
            .with_hint("is an earlier run of the job still alive?");
    }
    if (outcome_) return *outcome_->failure;
    place = std::make_unique<member>();
    place->info = std::move(*info);
    place->link = std::move(link);
    return place.get();
}

SKEIN_INLINE void group_server::start_if_complete() {
    if (running_ || outcome_ || !missing().empty()) return;
    running_ = true;
    detail::formed_body body;
    body.generation = options_.generation;
    for (auto& m : members_) body.members.push_back(m->info);
    // A link that has just broken is its own member's fault; its serve() says so.
    for (auto& m : members_) {
        if (m->link->is_open()) detail::send(*m->link, detail::kind::formed, body);
    }
}

SKEIN_INLINE void group_server::handle(member& from, const net::frame& f) {
    if (f.kind == detail::kind::leave) {
        from.left = true;
        const bool all = std::all_of(members_.begin(), members_.end(),
                                     [](const auto& m) { return m && m->left; });
        if (all) end({});
        return;
    }
    if (f.kind == detail::kind::failed) {
        auto body = wire::decode<detail::failed_body>(f.body);
        group_outcome how;
        how.culprit = from.info.rank;
        how.reported = true;
        how.failure = body ? detail::to_error(*body) : body.error();
        from.left = true;
        end(std::move(how));
        return;
    }
    if (f.kind != detail::kind::contribute) {
        throw error(errc::malformed, fmt::format("kind {} means nothing to a group", f.kind));
    }
    auto body = wire::decode<detail::blob_body>(f.body);
    if (!body) throw body.error();
    if (body->blob.size() > options_.max_blob) {
        throw error(errc::too_large,
                    fmt::format("rank {} gives {} bytes for '{}', the limit is {}", from.info.rank,
                                body->blob.size(), body->key, options_.max_blob));
    }
    auto& blobs = exchanges_[body->key];
    blobs.resize(members_.size());
    auto& mine = blobs[static_cast<std::size_t>(from.info.rank)];
    if (mine) throw error(errc::mismatch, fmt::format("'{}' was exchanged twice", body->key));
    mine = std::move(body->blob);
    if (!std::all_of(blobs.begin(), blobs.end(), [](const auto& b) { return b.has_value(); }))
        return;

    detail::gathered_body all;
    all.key = body->key;
    for (auto& b : blobs) all.blobs.push_back(std::move(*b));
    exchanges_.erase(body->key);
    for (auto& m : members_) {
        if (!m->left && m->link->is_open()) detail::send(*m->link, detail::kind::gathered, all);
    }
}

SKEIN_INLINE void group_server::end(group_outcome how) {
    if (outcome_) return;
    outcome_ = std::move(how);
    tell_everyone();
    ended_.set();
}

SKEIN_INLINE void group_server::tell_everyone() {
    if (!outcome_->failure) return;
    const auto body = detail::to_body(outcome_->culprit, *outcome_->failure);
    for (auto& m : members_) {
        if (m && m->link && !m->left && m->info.rank != outcome_->culprit && m->link->is_open()) {
            detail::send(*m->link, detail::kind::lost, body);
        }
    }
}

// ---- client

SKEIN_INLINE task<std::unique_ptr<group_client>> group_client::join(net::network& via,
                                                                    net::address at,
                                                                    member_info self,
                                                                    group_options options,
                                                                    lost_callback lost) {
    const auto until = skein::deadline_after(loop::current().now(), options.join_deadline);
    std::unique_ptr<group_client> client(new group_client);
    client->self_ = self;
    client->on_lost_ = std::move(lost);
    const auto link_options = detail::link_options(options, fmt::format("rank {}", self.rank));
    duration pause = std::chrono::milliseconds(5);
    for (;;) {
        std::optional<error> why;
        try {
            auto connected = with_deadline(net::connection::connect(via, at, link_options), until);
            client->link_ = co_await connected;
            break;
        } catch (const error& e) {
            const bool later = e.code() == errc::refused || e.code() == errc::not_found ||
                               e.code() == errc::reset || e.code() == errc::closed;
            if (!later || loop::current().now() + pause >= until) {
                if (!later) throw;
                throw error(errc::timeout,
                            fmt::format("rank {} could not reach its group at {} within "
                                        "{:.3g} s",
                                        self.rank, net::to_string(at),
                                        to_seconds(options.join_deadline)))
                    .with_cause(e.text())
                    .with_hint("is rank 0 running, and can this host reach it?");
            }
        }
        co_await sleep_for(pause);
        pause = std::min<duration>(pause * 2, std::chrono::milliseconds(250));
    }
    client->reader_.spawn(client->read_all());
    std::optional<error> failure;
    try {
        detail::send(*client->link_, detail::kind::join, self);
        while (!client->joined_ && !client->lost_) {
            auto changed = client->changed_.wait();
            co_await changed;
        }
        failure = client->lost_;
    } catch (const error& e) {
        failure = e;
    }
    if (failure) {
        auto finished = shield(client->finish());
        co_await finished;
        throw *failure;
    }
    co_return client;
}

SKEIN_INLINE group_client::~group_client() = default;

SKEIN_INLINE task<void> group_client::read_all() {
    try {
        for (;;) {
            auto next = link_->receive();
            auto f = co_await next;
            if (!f) break;
            handle(*f);
        }
        if (!leaving_) {
            lose(-1, error(errc::peer_lost, "the group's server closed the connection")
                         .with_hint("the supervisor or rank 0 has ended"));
        }
    } catch (const error& e) {
        if (!leaving_)
            lose(-1, error(errc::peer_lost, "the group's server is gone").with_cause(e.text()));
    }
    changed_.wake_all();
}

SKEIN_INLINE void group_client::handle(const net::frame& f) {
    switch (f.kind) {
    case detail::kind::formed: {
        auto body = wire::decode<detail::formed_body>(f.body);
        if (!body) throw body.error();
        members_ = std::move(body->members);
        generation_ = body->generation;
        joined_ = true;
        break;
    }
    case detail::kind::gathered: {
        auto body = wire::decode<detail::gathered_body>(f.body);
        if (!body) throw body.error();
        gathered_[body->key] = std::move(body->blobs);
        break;
    }
    case detail::kind::refused:
    case detail::kind::lost: {
        auto body = wire::decode<detail::failed_body>(f.body);
        if (!body) throw body.error();
        lose(body->rank, detail::to_error(*body));
        break;
    }
    default: throw error(errc::malformed, fmt::format("kind {} means nothing to a rank", f.kind));
    }
    changed_.wake_all();
}

SKEIN_INLINE void group_client::lose(int rank, error why) {
    if (lost_) return;
    lost_ = std::move(why);
    if (joined_ && on_lost_) on_lost_(rank, *lost_);
    changed_.wake_all();
}

SKEIN_INLINE task<std::vector<byte_buffer>> group_client::exchange(std::string key,
                                                                   byte_buffer mine) {
    if (lost_) throw *lost_;
    detail::blob_body body;
    body.key = key;
    body.blob = std::move(mine);
    detail::send(*link_, detail::kind::contribute, body);
    for (;;) {
        if (auto found = gathered_.find(key); found != gathered_.end()) {
            auto blobs = std::move(found->second);
            gathered_.erase(found);
            co_return blobs;
        }
        if (lost_) throw *lost_;
        auto changed = changed_.wait();
        co_await changed;
    }
}

SKEIN_INLINE task<void> group_client::leave() {
    leaving_ = true;
    if (!lost_ && link_->is_open()) {
        net::frame f;
        f.kind = detail::kind::leave;
        link_->send(std::move(f));
    }
    auto finished = shield(finish());
    co_await finished;
}

SKEIN_INLINE task<void> group_client::fail(error why) {
    leaving_ = true;
    if (!lost_ && link_->is_open()) {
        detail::send(*link_, detail::kind::failed, detail::to_body(self_.rank, why));
    }
    auto finished = shield(finish());
    co_await finished;
}

SKEIN_INLINE task<void> group_client::finish() {
    leaving_ = true;
    auto closed = link_->close();
    co_await closed;
    reader_.cancel();
    auto joined = reader_.join();
    co_await joined;
}

} // namespace skein::cluster
