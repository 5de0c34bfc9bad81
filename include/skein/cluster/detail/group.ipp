// SPDX-License-Identifier: Apache-2.0
#pragma once
// Both ends of the group protocol.

#include <skein/cluster/detail/group_protocol.hpp>
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

SKEIN_INLINE net::connection_options link_options(const group_options& options, std::string name) {
    net::connection_options o;
    o.secret = options.secret;
    o.self.name = std::move(name);
    o.alive = options.alive;
    o.bounds.max_frame = options.max_blob * static_cast<std::size_t>(options.world_size) + 65536;
    return o;
}

/// Where other hosts can reach, everybody could be a rank of a world without a secret.
SKEIN_INLINE void require_secret(const net::address& at, const net::token& secret) {
    if (!secret.empty() || at.is_loopback()) return;
    throw error(errc::permission_denied,
                fmt::format("a group at {} without a token", net::to_string(at)))
        .with_hint("64 zeros are no secret: give all ranks the same random SKEIN_TOKEN");
}

} // namespace detail

// ---- server

struct group_server::member {
    member_info info;
    std::shared_ptr<net::connection> link;
    bool left = false;
};

SKEIN_INLINE group_server::group_server(net::network& via, net::address at, group_options options)
    : options_(std::move(options)), members_(static_cast<std::size_t>(options_.world_size)) {
    detail::require_secret(at, options_.secret);
    listener_ = via.listen(std::move(at));
}

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
        auto first_frame = with_timeout(link->receive(), time_constants::lan().handshake_timeout);
        auto first = co_await first_frame;
        if (!first) co_return;
        auto admitted = admit(link, *first);
        if (!admitted) {
            detail::send(*link, detail::kind::refused, detail::loss_body(-1, admitted.error()));
            auto closed = shield(link->close()); // it has to read why
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
    auto body = wire::decode<detail::join_body>(first.body);
    if (!body) return body.error();
    if (auto why = objection(body->self, body->settings)) return *why;
    auto& place = members_[static_cast<std::size_t>(body->self.rank)];
    place = std::make_unique<member>();
    place->info = std::move(body->self);
    place->link = std::move(link);
    return place.get();
}

/// Why this rank cannot be one of ours; nothing if it can.
SKEIN_INLINE std::optional<error> group_server::objection(const member_info& to,
                                                          const std::vector<setting>& settings) {
    if (to.world_size != options_.world_size) {
        return error(errc::mismatch,
                     fmt::format("rank {} thinks of a world of {}, this group is of {}", to.rank,
                                 to.world_size, options_.world_size))
            .with_hint("two jobs share one address, or were started with different sizes");
    }
    if (to.rank < 0 || to.rank >= options_.world_size) {
        return error(errc::mismatch,
                     fmt::format("rank {} in a world of {}", to.rank, options_.world_size));
    }
    if (to.job != options_.job) {
        return error(errc::mismatch,
                     fmt::format("rank {} is of job '{}', this group is of job '{}'", to.rank,
                                 to.job, options_.job))
            .with_hint("two jobs share one address and one token");
    }
    if (to.attempt != options_.generation) {
        return error(errc::mismatch,
                     fmt::format("rank {} is of attempt {}, this group is of attempt {}", to.rank,
                                 to.attempt, options_.generation))
            .with_hint("a process of an attempt that has failed is still alive");
    }
    const auto& place = members_[static_cast<std::size_t>(to.rank)];
    if (place) {
        return error(errc::already_exists, fmt::format("rank {} is taken by pid {} at {}", to.rank,
                                                       place->info.pid, place->info.host))
            .with_hint("is an earlier run of the job still alive?");
    }
    if (outcome_) return outcome_->failure;
    if (options_.settings.empty()) {
        options_.settings = settings;
        settings_of_ = to.rank;
    }
    if (to.settings == hash_of(options_.settings)) return std::nullopt;
    auto differs = difference(to.rank, settings, settings_of_, options_.settings);
    // It is a rank of this very job: there is no other to wait for.
    if (differs) abort(*differs, to.rank);
    return differs;
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
        auto body = wire::decode<detail::loss_body>(f.body);
        group_outcome how;
        how.culprit = from.info.rank;
        how.reported = true;
        how.failure = body ? std::get<error>(*body) : body.error();
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
    const detail::loss_body body(outcome_->culprit, *outcome_->failure);
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
    detail::require_secret(at, options.secret);
    self.job = options.job;
    self.attempt = options.generation;
    self.settings = hash_of(options.settings);
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
        detail::send(*client->link_, detail::kind::join,
                     detail::join_body{self, std::move(options.settings)});
        while (!client->joined_ && !client->lost_) {
            auto changed = client->changed_.wait();
            co_await changed;
        }
        failure = client->lost_;
    } catch (const error& e) {
        failure = e;
    }
    if (failure) { // one that gives up says so: the others must not wait for it
        auto finished =
            failure->code() == errc::cancelled ? client->fail(*failure) : client->finish();
        auto ended = shield(std::move(finished));
        co_await ended;
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
        auto body = wire::decode<detail::loss_body>(f.body);
        if (!body) throw body.error();
        lose(std::get<0>(*body), std::get<1>(*body));
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
        detail::send(*link_, detail::kind::failed, detail::loss_body(self_.rank, why));
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
