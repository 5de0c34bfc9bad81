// SPDX-License-Identifier: Apache-2.0
#pragma once
// How links are opened and accepted.

#include <skein/core/awaitable.hpp>
#include <skein/core/log.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/dist/detail/link_hello.ipp>
#include <skein/net/network.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::dist {

SKEIN_INLINE links::links(std::shared_ptr<net::network> network,
                          std::unique_ptr<net::listener> listener, int rank,
                          std::vector<net::address> addresses, net::token secret,
                          random_source& nonces)
    : network_(std::move(network)), listener_(std::move(listener)), rank_(rank),
      addresses_(std::move(addresses)), secret_(secret), nonces_(nonces) {}

SKEIN_INLINE links::~links() = default;

SKEIN_INLINE void links::start() { tasks_.spawn(accept_loop()); }

SKEIN_INLINE task<net::stream*> links::to(int peer, channel use, time_point until) {
    const key k{peer, use};
    if (const auto found = outgoing_.find(k); found != outgoing_.end())
        co_return found->second.get();
    auto opening = with_deadline(open(peer, use), until);
    auto outcome = as_result(std::move(opening));
    auto opened = co_await std::move(outcome);
    if (!opened) {
        const auto& why = opened.error();
        if (abandoned_) throw *abandoned_;
        if (why.code() == errc::cancelled) throw why;
        throw error(why.code(),
                    fmt::format("rank {} cannot reach rank {} at {}", rank_, peer,
                                net::to_string(addresses_[static_cast<std::size_t>(peer)])))
            .with_cause(last_failure_ ? last_failure_->what() : why.what());
    }
    auto* stream = opened->get();
    outgoing_[k] = std::move(*opened);
    co_return stream;
}

SKEIN_INLINE task<net::stream*> links::from(int peer, channel use, time_point until) {
    const key k{peer, use};
    auto waiting = with_deadline(await_incoming(k), until);
    auto outcome = as_result(std::move(waiting));
    auto came = co_await std::move(outcome);
    if (!came) {
        if (came.error().code() != errc::timeout) throw came.error();
        throw error(errc::timeout,
                    fmt::format("rank {} has not connected to rank {} in time", peer, rank_));
    }
    co_return *came;
}

SKEIN_INLINE void links::abandon(error why) {
    abandoned_ = std::move(why);
    changed_.wake_all();
}

SKEIN_INLINE task<void> links::stop() {
    stopped_ = true;
    if (listener_) listener_->close();
    tasks_.cancel();
    for (auto& [k, s] : incoming_) s.stream->close();
    for (auto& [k, s] : outgoing_) s->close();
    changed_.wake_all();
    auto joined = as_result(shield(tasks_.join()));
    auto ignored = co_await std::move(joined);
    (void)ignored;
    incoming_.clear();
    outgoing_.clear();
    listener_.reset();
}

SKEIN_INLINE std::array<std::byte, 32> links::nonce() {
    std::array<std::byte, 32> n{};
    nonces_.fill(n);
    return n;
}

SKEIN_INLINE task<std::unique_ptr<net::stream>> links::open(int peer, channel use) {
    duration pause = std::chrono::milliseconds(5);
    last_failure_.reset();
    for (;;) {
        if (abandoned_) throw *abandoned_;
        auto attempt = as_result(open_once(peer, use));
        auto opened = co_await std::move(attempt);
        if (opened) co_return std::move(*opened);
        const errc code = opened.error().code();
        if (code == errc::cancelled || code == errc::permission_denied || code == errc::mismatch) {
            throw opened.error();
        }
        last_failure_ = opened.error(); // not there yet, or the connection broke: again
        auto nap = sleep_for(pause);
        co_await nap;
        pause = std::min<duration>(pause * 2, std::chrono::milliseconds(500));
    }
}

SKEIN_INLINE task<std::unique_ptr<net::stream>> links::open_once(int peer, channel use) {
    auto connecting = network_->connect(addresses_[static_cast<std::size_t>(peer)]);
    auto stream = co_await std::move(connecting);
    detail::link_hello hello;
    hello.rank = static_cast<std::uint32_t>(rank_);
    hello.channel = use;
    hello.nonce = nonce();
    auto greeting = with_timeout(detail::call_hello(*stream, secret_, hello), hello_deadline);
    co_await std::move(greeting);
    co_return std::move(stream);
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

SKEIN_INLINE task<void> links::accept_loop() {
    for (;;) {
        auto next = as_result(listener_->accept());
        auto came = co_await std::move(next);
        if (!came) {
            if (stopped_ || came.error().code() == errc::closed ||
                came.error().code() == errc::cancelled) {
                co_return;
            }
            auto nap = sleep_for(std::chrono::milliseconds(10)); // out of descriptors, say
            co_await nap;
            continue;
        }
        // Strangers must not cost more than this many handshakes; a rank that is dropped comes again.
        if (tasks_.size() < 2 * addresses_.size() + 64) tasks_.spawn(greet(std::move(*came)));
    }
}

SKEIN_INLINE task<void> links::greet(std::unique_ptr<net::stream> s) {
    auto hello = with_timeout(detail::accept_hello(*s, secret_, nonce()), hello_deadline);
    auto outcome = as_result(std::move(hello));
    auto who = co_await std::move(outcome);
    if (!who) {
        if (who.error().code() != errc::cancelled) {
            logging::warn("dist", "a connection was refused",
                          {{"peer", s->peer_name()}, {"why", who.error().what()}});
        }
        s->close();
        co_return;
    }
    const key k{static_cast<int>(who->rank), who->channel};
    const auto old = incoming_.find(k);
    const bool in_use = old != incoming_.end() && old->second.taken;
    if (stopped_ || k.first < 0 || k.first >= world_size() || in_use) {
        s->close();
        co_return;
    }
    if (old != incoming_.end()) old->second.stream->close(); // a try whose caller gave up
    incoming_[k].stream = std::move(s);
    changed_.wake_all();
}

} // namespace skein::dist
