// SPDX-License-Identifier: Apache-2.0
#pragma once
// The accept loop of everything that listens, hardened against strangers.
//
//     net::acceptor door(network, net::address::tcp("127.0.0.1", 0));
//     auto serving = door.serve([](std::unique_ptr<net::stream> s, net::admission* place) {
//         // once the peer is known: place->authenticated()
//         return talk(std::move(s), place);
//     });
//
// A stream takes a place until its handler says that the peer has proven who it is. Places are
// bounded, in all and per remote address, and take no more than a quarter of the descriptors that
// the process may have: the rest is for those who have proven who they are. When none is free the
// oldest unauthenticated stream goes, first of those that have said nothing (a peer that is one
// says hello at once), so that idle strangers cost nothing. On Unix sockets another user's streams
// are dropped at once. A handler may look at the first bytes before it decides which protocol it
// speaks.

#include <skein/core/cancel.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/error.hpp>
#include <skein/core/function.hpp>
#include <skein/core/intrusive_list.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/time.hpp>
#include <skein/core/wait.hpp>
#include <skein/net/address.hpp>
#include <skein/net/network.hpp>
#include <skein/net/stream.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace skein::net {

class acceptor;

namespace detail {
/// Who shares places: an IPv4 address, a /64 of IPv6 (one customer has all of it), or the text
/// itself.
[[nodiscard]] std::string share_of(const std::string& host);
/// How many descriptors of this process strangers may have.
[[nodiscard]] std::size_t places_for_strangers();
} // namespace detail

/// Bounds of an acceptor.
struct acceptor_options {
    std::size_t places = 64;             ///< streams that are not authenticated yet
    std::size_t places_per_address = 32; ///< of them, from one remote address (one /64 of IPv6)
    bool same_user_only = true;          ///< Unix sockets: drop streams of other users
    /// Until authenticated(); then the handler is cancelled. Nothing: the handler has its own
    /// limit. Of an endpoint it counts where it is shorter than the limit of its handshakes.
    std::optional<time_span> deadline = time_constants::lan().handshake_timeout;
    /// No stream is dropped for the sake of another one before it has had this long to say hello,
    time_span grace = time_constants::lan().accept_grace;
    /// and then this long to prove who it is.
    time_span grace_to_prove = time_constants::lan().accept_proof_grace;
};

/// One stream's place among those that are not authenticated. Lives as long as its handler runs.
class admission : public list_node<admission> {
public:
    /// The peer has proven who it is: its place goes to the next one, nobody drops it any more.
    void authenticated() noexcept;
    /// Its first message is here, whole and of our protocol: those that have said nothing go before
    /// it.
    void greeted() noexcept;
    [[nodiscard]] bool is_authenticated() const noexcept { return authenticated_; }

    admission(const admission&) = delete;
    admission& operator=(const admission&) = delete;
    ~admission();

private:
    friend class acceptor;
    admission(acceptor& door, std::string from);
    void drop(const char* why) noexcept;
    void overdue() noexcept;

    struct limit : timer_node {
        explicit limit(admission& a) noexcept;
        admission& place;
    };
    acceptor* door_;
    std::string from_;
    time_point since_, due_;
    limit limit_{*this};
    cancel_source stop_;
    const char* why_dropped_ = nullptr; ///< nothing: the door was closed
    bool authenticated_ = false, greeted_ = false, dropped_ = false;
};

/// Listens and accepts until it is closed or cancelled.
class acceptor {
public:
    using handler = unique_function<task<void>(std::unique_ptr<stream>, admission*)>;

    /// Binds at once.
    ///   errors  those of network::listen
    acceptor(network& via, const address& at, acceptor_options options = {});
    /// On a listener that is there already.
    explicit acceptor(std::unique_ptr<listener> on, acceptor_options options = {});
    acceptor(const acceptor&) = delete;
    acceptor& operator=(const acceptor&) = delete;
    ~acceptor();

    [[nodiscard]] address local() const { return listener_->local(); }

    /// Accepts until close(). Every stream gets a task of `serve_one` in the scope of this call; an
    /// error of one is logged and ends that one only. A failed accept (no descriptors, no memory, a
    /// firewall's no) is logged and tried again after a pause. Returns when all tasks have ended.
    ///   errors  cancelled (then the tasks are cancelled too); what a listener cannot get over
    ///           (invalid_argument, not_supported)
    [[nodiscard]] task<void> serve(handler serve_one);

    /// Stops accepting, and ends the streams whose peers have not proven who they are: who ends
    /// waits for no stranger. Those that are authenticated go on.
    void close() noexcept;

    /// Streams that ended before they were authenticated, and those that were.
    [[nodiscard]] std::uint64_t refused() const noexcept { return refused_; }
    [[nodiscard]] std::uint64_t authenticated() const noexcept { return authenticated_; }
    /// Places that are taken.
    [[nodiscard]] std::size_t waiting() const noexcept { return waiting_; }

private:
    friend class admission;
    struct refusals;

    static task<void> accept_loop(scope& children, acceptor* self);
    static task<void> one(acceptor* self, std::unique_ptr<stream> from,
                          std::unique_ptr<admission> place);
    [[nodiscard]] bool is_foreign(stream& from);
    [[nodiscard]] duration after_failure(const error& fault);
    task<void> wait_for_place(std::string from);
    [[nodiscard]] time_point grace_of(const admission& a) const noexcept;
    admission* first_to_go(const std::string* from) noexcept;
    [[nodiscard]] std::size_t count(const std::string& from) noexcept;
    void leave(admission& a) noexcept;

    acceptor_options options_;
    std::unique_ptr<listener> listener_;
    handler handler_;
    intrusive_list<admission, admission> silent_, greeted_; // the oldest first
    std::size_t waiting_ = 0;
    wait_queue freed_;
    std::uint64_t refused_ = 0, authenticated_ = 0;
    bool closed_ = false;
    std::unique_ptr<refusals> log_;
};

} // namespace skein::net

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/acceptor.ipp>
#endif
