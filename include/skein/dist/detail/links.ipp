// SPDX-License-Identifier: Apache-2.0
#pragma once
// How links are opened and accepted.

#include <skein/core/awaitable.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/log.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/acceptor.hpp>
#include <skein/net/dial.hpp>
#include <skein/net/handshake.hpp>
#include <skein/net/network.hpp>
#include <skein/net/options.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::dist {

namespace detail {

/// Who calls, and for which channel: the dist part of an identity.
struct link_card {
    std::uint32_t rank = 0, channel = 0;

    [[nodiscard]] byte_buffer encode() const {
        byte_buffer bytes(8);
        store_le(bytes.data(), rank);
        store_le(bytes.data() + 4, channel);
        return bytes;
    }
    [[nodiscard]] static link_card decode(byte_span bytes) {
        if (bytes.size() != 8)
            throw error(errc::malformed, "the peer does not say which rank it is");
        return {load_le<std::uint32_t>(bytes.data()), load_le<std::uint32_t>(bytes.data() + 4)};
    }
};

} // namespace detail

SKEIN_INLINE links::links(std::shared_ptr<net::network> network,
                          std::unique_ptr<net::listener> listener, int rank,
                          std::vector<net::address> addresses, net::token secret, std::string group)
    : network_(std::move(network)), rank_(rank), addresses_(std::move(addresses)), secret_(secret),
      group_(std::move(group)) {
    net::acceptor_options bounds; // all ranks may come at once, and from one address
    bounds.places += 2 * addresses_.size();
    bounds.places_per_address += 2 * addresses_.size();
    door_ = std::make_unique<net::acceptor>(std::move(listener), bounds);
}
SKEIN_INLINE links::~links() = default;

SKEIN_INLINE void links::start() { tasks_.spawn(serve(this)); }

SKEIN_INLINE task<void> links::serve(links* self) {
    auto serving =
        as_result(self->door_->serve([self](std::unique_ptr<net::stream> s, net::admission* place) {
            return self->greet(std::move(s), place);
        }));
    auto ended = co_await std::move(serving);
    if (ended || self->stopped_ || ended.error().code() == errc::cancelled) co_return;
    logging::warn("dist", "no more links can be accepted", {{"why", ended.error().what()}});
}

SKEIN_INLINE net::connection_options links::as(channel use) const {
    net::connection_options options;
    options.secret = secret_;
    options.self.name = fmt::format("rank {}", rank_);
    options.self.purpose = "collectives of " + group_;
    options.self.extra =
        detail::link_card{static_cast<std::uint32_t>(rank_), static_cast<std::uint32_t>(use)}
            .encode();
    return options;
}

SKEIN_INLINE task<net::stream*> links::to(int peer, channel use, time_point until) {
    const key k{peer, use};
    if (const auto found = outgoing_.find(k); found != outgoing_.end())
        co_return found->second.get();
    if (abandoned_) throw *abandoned_;
    const auto& at = addresses_[static_cast<std::size_t>(peer)];
    net::reconnect_policy policy;
    policy.max_tries = 0;
    policy.until = until;
    policy.worth_another = &net::reconnect_policy::is_no_refusal;
    auto dialing = net::dial_patiently(*network_, at, as(use), policy);
    auto stoppable = as_result(with_cancel(give_up_.token(), std::move(dialing)));
    auto opened = co_await std::move(stoppable);
    if (abandoned_) throw *abandoned_;
    if (!opened) {
        const auto& why = opened.error();
        if (why.code() == errc::cancelled) throw why;
        throw error(why.code(), fmt::format("rank {} cannot reach rank {} at {}", rank_, peer,
                                            net::to_string(at)))
            .with_cause(why.what());
    }
    auto* stream = opened->stream.get();
    outgoing_[k] = std::move(opened->stream);
    co_return stream;
}

SKEIN_INLINE task<net::stream*> links::from(int peer, channel use, time_point until) {
    auto waiting = with_deadline(await_incoming(key{peer, use}), until);
    auto outcome = as_result(std::move(waiting));
    auto came = co_await std::move(outcome);
    if (!came) {
        if (came.error().code() != errc::timeout) throw came.error();
        throw error(errc::timeout,
                    fmt::format("rank {} has not connected to rank {} in time", peer, rank_));
    }
    co_return *came;
}

SKEIN_INLINE task<net::stream*> links::await_incoming(key k) {
    while (!incoming_.contains(k)) {
        if (abandoned_) throw *abandoned_;
        if (stopped_) throw error(errc::closed, "the links of this rank are closed");
        auto change = changed_.wait();
        co_await change;
    }
    auto& found = incoming_.at(k);
    found.taken = true;
    co_return found.stream.get();
}

SKEIN_INLINE void links::abandon(error why) {
    abandoned_ = std::move(why);
    give_up_.request();
    changed_.wake_all();
}

SKEIN_INLINE task<void> links::stop() {
    stopped_ = true;
    if (door_) door_->close();
    tasks_.cancel();
    for (auto& [k, s] : incoming_) s.stream->close();
    for (auto& [k, s] : outgoing_) s->close();
    changed_.wake_all();
    auto joined = as_result(shield(tasks_.join()));
    auto ignored = co_await std::move(joined);
    (void)ignored;
    incoming_.clear();
    outgoing_.clear();
    door_.reset();
}

SKEIN_INLINE task<void> links::greet(std::unique_ptr<net::stream> s, net::admission* place) {
    auto greeting = net::authenticate(*s, net::side::accepting, as(ring), {}, place);
    const net::identity who = co_await std::move(greeting);
    const auto card = detail::link_card::decode(who.extra);
    place->authenticated();
    const key k{static_cast<int>(card.rank), card.channel};
    const auto old = incoming_.find(k);
    const bool in_use = old != incoming_.end() && old->second.taken;
    if (stopped_ || k.peer < 0 || k.peer >= world_size() || in_use) {
        s->close();
        co_return;
    }
    if (old != incoming_.end()) old->second.stream->close(); // a try whose caller gave up
    incoming_[k].stream = std::move(s);
    changed_.wake_all();
}

} // namespace skein::dist
