// SPDX-License-Identifier: Apache-2.0
#pragma once
// One rank's end of the group protocol.

#include <skein/core/cancel.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/loop.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/dial.hpp>
#include <skein/net/network.hpp>
#include <skein/spmd/detail/group_protocol.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace skein::spmd {

namespace detail {

SKEIN_INLINE bool is_worth_another_while_up(errc code) noexcept {
    return code != errc::refused && net::reconnect_policy::is_no_refusal(code);
}

/// Until somebody is there: rank 0 may be started later, its name may not be known yet.
SKEIN_INLINE task<std::shared_ptr<net::connection>> reach_group(net::network* via, net::address at,
                                                                int rank, group_options options) {
    net::reconnect_policy often;
    often.max_tries = 0;
    often.until = deadline_after(loop::current().now(), options.join_deadline);
    often.first_delay = time_constants::lan().join_first;
    often.most_delay = time_constants::lan().join_most;
    often.worth_another =
        options.is_up ? &is_worth_another_while_up : &net::reconnect_policy::is_no_refusal;
    auto reaching = net::connect_patiently(
        *via, at, link_options(options, fmt::format("rank {}", rank)), often);
    std::optional<error> why;
    try {
        auto link = co_await reaching;
        co_return link;
    } catch (const error& e) {
        why = e;
    }
    if (!often.worth_another(why->code())) throw *why;
    throw error(errc::timeout,
                fmt::format("rank {} could not reach its group at {} within {:.3g} s", rank,
                            net::to_string(at), to_seconds(options.join_deadline)))
        .with_cause(why->cause().empty() ? why->text() : why->cause())
        .with_hint("is rank 0 running, and can this host reach it?");
}

SKEIN_INLINE error server_closed() {
    return error(errc::peer_lost, "the group's server closed the connection")
        .with_hint("the supervisor or rank 0 has ended");
}

} // namespace detail

SKEIN_INLINE task<std::unique_ptr<group_client>> group_client::join(net::network& via,
                                                                    net::address at,
                                                                    member_info self,
                                                                    group_options options,
                                                                    lost_callback lost) {
    detail::require_secret(at, options.secret);
    self.job = options.job;
    self.attempt = options.generation;
    self.settings = hash_of(options.settings);
    std::unique_ptr<group_client> client(new group_client);
    client->self_ = self;
    client->on_lost_ = std::move(lost);
    auto reached = detail::reach_group(&via, std::move(at), self.rank, options);
    client->link_ = co_await reached;
    client->reader_.spawn(client->read_all());
    std::optional<error> failure;
    try {
        if (client->may_send())
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
    if (!failure) co_return client;
    // One that gives up says so: the others must not wait for it.
    auto finished = failure->code() == errc::cancelled ? client->fail(*failure) : client->finish();
    auto ended = shield(std::move(finished));
    co_await ended;
    throw *failure;
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
        if (!leaving_) lose(-1, detail::server_closed());
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
        given_ = std::move(body->given);
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

/// A link that the other end has closed is none of this rank's doing: read_all() comes to its end, and
/// to the reason that the server may have given before it.
SKEIN_INLINE bool group_client::may_send() const noexcept { return link_->is_open() || leaving_; }

SKEIN_INLINE task<std::vector<byte_buffer>> group_client::exchange(std::string key,
                                                                   byte_buffer mine) {
    if (lost_) throw *lost_;
    detail::blob_body body;
    body.key = key;
    body.blob = std::move(mine);
    if (may_send()) detail::send(*link_, detail::kind::contribute, body);
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

SKEIN_INLINE void group_client::tell(std::string key, byte_buffer what) {
    if (self_.rank != 0)
        throw error(errc::usage, fmt::format("rank {} tells '{}', which is for rank 0 to tell",
                                             self_.rank, key));
    if (lost_) throw *lost_;
    if (!may_send()) throw detail::server_closed();
    detail::blob_body body;
    body.key = std::move(key);
    body.blob = std::move(what);
    detail::send(*link_, detail::kind::tell, body);
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

SKEIN_INLINE task<void> group_client::drop() {
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

} // namespace skein::spmd
