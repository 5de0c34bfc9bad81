// SPDX-License-Identifier: Apache-2.0
#pragma once
// Streams between the ranks of a world, opened when first needed, authenticated by the world's token.
//
// Every rank listens once and knows everybody's address. A link has a direction: the rank that sends
// opens it, the rank that receives accepts it, so no two ranks race to open the same one.
//
//     auto net = std::make_shared<links>(network, std::move(listener), rank, addresses, secret);
//     net->start();
//     auto opening = net->to(3, links::ring, until); // rank 3 awaits net->from(rank, ring, until)
//     net::stream* s = co_await std::move(opening);

#include <skein/core/awaitable.hpp>
#include <skein/core/event.hpp>
#include <skein/core/log.hpp>
#include <skein/core/random.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/dist/detail/link_hello.hpp>
#include <skein/net/network.hpp>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace skein::dist {

/// One loop. start() before use, stop() before destruction.
class links {
public:
    enum channel : std::uint32_t { ring = 1, messages = 2 };

    /// addresses: by world rank. nonces: random bytes, the simulated world gives a seeded source.
    links(std::shared_ptr<net::network> network, std::unique_ptr<net::listener> listener, int rank,
          std::vector<net::address> addresses, net::token secret,
          random_source& nonces = system_random())
        : network_(std::move(network)), listener_(std::move(listener)), rank_(rank),
          addresses_(std::move(addresses)), secret_(secret), nonces_(nonces) {}

    /// Begins to accept; on the loop's thread.
    void start() { tasks_.spawn(accept_loop()); }

    /// The stream on which this rank sends to a peer. Connects (and tries again) until `until`.
    ///   errors  refused, timeout, permission_denied, mismatch; all name the rank and the address
    task<net::stream*> to(int peer, channel use, time_point until) {
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

    /// The stream on which a peer sends to this rank; waits until the peer has opened it.
    task<net::stream*> from(int peer, channel use, time_point until) {
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

    /// Waiting for links makes no sense any more: every to() and from() throws this.
    void abandon(error why) {
        abandoned_ = std::move(why);
        changed_.wake_all();
    }

    /// Closes all streams at once and ends the accept loop.
    task<void> stop() {
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

    [[nodiscard]] int rank() const noexcept { return rank_; }
    [[nodiscard]] int world_size() const noexcept { return static_cast<int>(addresses_.size()); }

private:
    using key = std::pair<int, std::uint32_t>;

    std::array<std::byte, 32> nonce() {
        std::array<std::byte, 32> n{};
        nonces_.fill(n);
        return n;
    }

    task<std::unique_ptr<net::stream>> open(int peer, channel use) {
        duration pause = std::chrono::milliseconds(5);
        last_failure_.reset();
        for (;;) {
            if (abandoned_) throw *abandoned_;
            auto attempt = as_result(open_once(peer, use));
            auto opened = co_await std::move(attempt);
            if (opened) co_return std::move(*opened);
            const errc code = opened.error().code();
            if (code == errc::cancelled || code == errc::permission_denied ||
                code == errc::mismatch) {
                throw opened.error();
            }
            last_failure_ = opened.error(); // not there yet, or the connection broke: again
            auto nap = sleep_for(pause);
            co_await nap;
            pause = std::min<duration>(pause * 2, std::chrono::milliseconds(500));
        }
    }
    task<std::unique_ptr<net::stream>> open_once(int peer, channel use) {
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

    task<net::stream*> await_incoming(key k) {
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

    task<void> accept_loop() {
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
    task<void> greet(std::unique_ptr<net::stream> s) {
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

    static constexpr duration hello_deadline = std::chrono::seconds(5);

    std::shared_ptr<net::network> network_;
    std::unique_ptr<net::listener> listener_;
    int rank_;
    std::vector<net::address> addresses_;
    net::token secret_;
    random_source& nonces_;
    std::optional<error> last_failure_; // of the last try to connect, for the message
    struct accepted {
        std::unique_ptr<net::stream> stream;
        bool taken = false; ///< from() has given it out
    };
    std::map<key, accepted> incoming_;
    std::map<key, std::unique_ptr<net::stream>> outgoing_;
    wait_queue changed_;
    bool stopped_ = false;
    std::optional<error> abandoned_;
    scope tasks_;
};

} // namespace skein::dist
