// SPDX-License-Identifier: Apache-2.0
#pragma once
// The server of a group, and what both ends have in common.

#include <skein/core/awaitable.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/known_names.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/acceptor.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/network.hpp>
#include <skein/spmd/detail/group_protocol.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include <fmt/format.h>

namespace skein::spmd {
namespace detail {

SKEIN_INLINE net::connection_options link_options(const group_options& options, std::string name) {
    net::connection_options o;
    o.secret = options.secret;
    o.self.name = std::move(name);
    o.self.purpose = "group";
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

struct group_server::member {
    member_info info;
    std::shared_ptr<net::connection> link;
    bool left = false, failed = false;
};

SKEIN_INLINE group_server::group_server(net::network& via, net::address at, group_options options)
    : options_(std::move(options)), members_(static_cast<std::size_t>(options_.world_size)) {
    detail::require_secret(at, options_.secret);
    net::acceptor_options bounds;
    bounds.places = std::max(bounds.places, members_.size());
    bounds.places_per_address = std::max(bounds.places_per_address, members_.size());
    door_ = std::make_unique<net::acceptor>(via, at, bounds);
}

SKEIN_INLINE group_server::~group_server() = default;

SKEIN_INLINE net::address group_server::local() const { return door_->local(); }

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

SKEIN_INLINE bool group_server::has_failed(int rank) const {
    const auto& m = members_[static_cast<std::size_t>(rank)];
    return m && m->failed;
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
    door_->close();
    // Readers end by themselves when their connection is closed here, after the last word is
    // flushed.
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
    std::optional<error> why;
    try {
        auto serving =
            door_->serve([this](std::unique_ptr<net::stream> from, net::admission* place) {
                return serve(std::move(from), place);
            });
        co_await serving;
    } catch (const error& e) {
        why = e;
    }
    if (why && why->code() != errc::cancelled) abort(*why);
}

SKEIN_INLINE task<void> group_server::watch_deadline() {
    constexpr duration patience = time_constants::lan().still_waiting;
    auto left = options_.join_deadline;
    if (left > patience) { // a person would ask what it waits for
        co_await sleep_for(patience);
        if (running_ || outcome_) co_return;
        logging::warn("cluster", fmt::format("still waiting for rank {} of {} to join",
                                             joined(missing(), ", "), options_.world_size));
        left -= patience;
    }
    co_await sleep_for(left);
    if (running_ || outcome_) co_return;
    abort(error(errc::timeout,
                fmt::format("rank {} of {} did not join within {:.3g} s", joined(missing(), ", "),
                            options_.world_size, to_seconds(options_.join_deadline)))
              .with_hint("did all processes start, and can they reach this host?"),
          missing().front());
}

/// One stream: who proves the token and is one of ours gets in. What a stranger fails at, the
/// acceptor says.
SKEIN_INLINE task<void> group_server::serve(std::unique_ptr<net::stream> from,
                                            net::admission* place) {
    auto shaken = net::connection::accept(std::move(from), detail::link_options(options_, "group"),
                                          {}, place);
    auto link = co_await shaken;
    place->authenticated();
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
    auto served = serve_member(std::move(link), *admitted);
    co_await served;
}

SKEIN_INLINE task<void> group_server::serve_member(std::shared_ptr<net::connection> link,
                                                   member* self) {
    std::optional<error> why;
    try {
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
    if (self->left || outcome_) co_return;
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
    body.given = options_.given;
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
        from.left = from.failed = true;
        end(std::move(how));
        return;
    }
    if (f.kind == detail::kind::tell)
        note(from, f);
    else if (f.kind == detail::kind::contribute)
        contribute(from, f);
    else
        throw error(errc::malformed, fmt::format("kind {} means nothing to a group", f.kind));
}

/// Something for the outcome.
SKEIN_INLINE void group_server::note(const member& from, const net::frame& f) {
    auto body = wire::decode<detail::blob_body>(f.body);
    if (!body) throw body.error();
    if (from.info.rank != 0)
        throw error(errc::malformed, fmt::format("rank {} tells '{}', which is for rank 0 to tell",
                                                 from.info.rank, body->key));
    std::size_t bytes = body->key.size() + body->blob.size();
    for (const auto& [key, blob] : told_)
        if (key != body->key) bytes += key.size() + blob.size();
    if (bytes > options_.most_told)
        throw error(errc::too_large, fmt::format("rank 0 tells {} bytes with '{}', the limit is {}",
                                                 bytes, body->key, options_.most_told));
    told_[std::move(body->key)] = std::move(body->blob);
}

SKEIN_INLINE void group_server::contribute(member& from, const net::frame& f) {
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
    outcome_->told = std::move(told_);
    tell_everyone();
    ended_.set();
}

SKEIN_INLINE void group_server::tell_everyone() {
    if (!outcome_->failure) return;
    error why = *outcome_->failure;
    if (options_.failure_is_loss && outcome_->reported)
        why = error(errc::peer_lost, fmt::format("rank {} has failed", outcome_->culprit))
                  .with_cause(why.what());
    const detail::loss_body body(outcome_->culprit, std::move(why));
    for (auto& m : members_) {
        if (m && m->link && !m->left && m->info.rank != outcome_->culprit && m->link->is_open()) {
            detail::send(*m->link, detail::kind::lost, body);
        }
    }
}

} // namespace skein::spmd
