// SPDX-License-Identifier: Apache-2.0
#pragma once
// Streams between the ranks of a world, opened when first needed, authenticated by the world's
// token.
//
// Every rank listens once and knows everybody's address. A link has a direction: the rank that
// sends opens it, the rank that receives accepts it, so no two ranks race to open the same one.
// Strangers, and ranks of another world or of another communicator of this one, are turned away.
//
//     auto net = std::make_shared<links>(network, std::move(listener), rank, addresses, secret,
//                                        "w");
//     net->start();
//     // and rank 3: from(rank, links::ring, until)
//     auto opening = net->to(3, links::ring, until);
//     net::stream* s = co_await std::move(opening);

#include <skein/core/cancel.hpp>
#include <skein/core/error.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/core/wait.hpp>
#include <skein/net/address.hpp>
#include <skein/net/token.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace skein::net {
class acceptor;
class admission;
class listener;
class network;
class stream;
struct connection_options;
} // namespace skein::net

namespace skein::dist {

/// One loop. start() before use, stop() before destruction.
class links {
public:
    enum channel : std::uint32_t { ring = 1, messages = 2 };

    /// addresses: by world rank. group: what the links are for, the same on all ranks that meet
    /// here.
    links(std::shared_ptr<net::network> network, std::unique_ptr<net::listener> listener, int rank,
          std::vector<net::address> addresses, net::token secret, std::string group);
    links(const links&) = delete;
    links& operator=(const links&) = delete;
    ~links();

    /// Begins to accept; on the loop's thread.
    void start();

    /// The stream on which this rank sends to a peer. Connects (and tries again) until `until`.
    ///   errors  refused, timeout, permission_denied, mismatch; all name the rank and the address
    task<net::stream*> to(int peer, channel use, time_point until);

    /// The stream on which a peer sends to this rank; waits until the peer has opened it.
    task<net::stream*> from(int peer, channel use, time_point until);

    /// Waiting for links makes no sense any more: every to() and from() throws this.
    void abandon(error why);

    /// Closes all streams at once and ends the accept loop.
    task<void> stop();

    [[nodiscard]] int rank() const noexcept { return rank_; }
    [[nodiscard]] int world_size() const noexcept { return static_cast<int>(addresses_.size()); }

private:
    struct key {
        int peer = 0;
        std::uint32_t channel = 0;
        auto operator<=>(const key&) const = default;
    };
    struct accepted {
        std::unique_ptr<net::stream> stream;
        bool taken = false; ///< from() has given it out
    };

    [[nodiscard]] net::connection_options as(channel use) const;
    task<net::stream*> await_incoming(key k);
    task<void> greet(std::unique_ptr<net::stream> s, net::admission* place);
    static task<void> serve(links* self);

    std::shared_ptr<net::network> network_;
    std::unique_ptr<net::acceptor> door_;
    int rank_;
    std::vector<net::address> addresses_;
    net::token secret_;
    std::string group_;
    std::map<key, accepted> incoming_;
    std::map<key, std::unique_ptr<net::stream>> outgoing_;
    wait_queue changed_;
    bool stopped_ = false;
    std::optional<error> abandoned_;
    cancel_source give_up_; // ends connecting when abandoned
    scope tasks_;
};

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/links.ipp>
#endif
