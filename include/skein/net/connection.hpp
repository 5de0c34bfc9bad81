// SPDX-License-Identifier: Apache-2.0
#pragma once
// Frames between two authenticated peers over any stream, in order, each at most once.
//
// Writes are coalesced: everything sent in one turn of the loop leaves in one system call. Large
// bodies are scattered and gathered, not copied together. A silent peer is pinged and given up.
//
//     auto t = net::connection::connect(network, to, options);
//     auto c = co_await std::move(t);
//     c->send(7, 0, id, head, body);              // queued, leaves at the end of the turn
//     std::optional<net::frame> f = co_await c->receive();
//     co_await c->close();                         // flushes, then waits for the peer's goodbye

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/core/function.hpp>
#include <skein/core/task.hpp>
#include <skein/net/frame.hpp>
#include <skein/net/limits.hpp>
#include <skein/net/network.hpp>
#include <skein/net/stream.hpp>
#include <skein/net/token.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace skein::net {

/// Who a peer says it is; exchanged in the handshake, after both have proven the token.
struct identity {
    std::string name;
    std::uint64_t build_id = 0;      ///< of the program
    std::uint64_t registry_hash = 0; ///< of its remote functions and message types
    std::int64_t pid = 0;
    std::string host;
    byte_buffer extra; ///< the upper layer's own bytes, at most limits::max_identity in all
};

/// How a connection is made; both sides give one.
struct connection_options {
    token secret;
    identity self;
    limits bounds;
    keep_alive alive;
    bool require_same_build = false; ///< refuse a peer of another build_id or registry_hash
    bool checksum_bodies = true;     ///< CRC32C of bodies we send (headers always have one)
};

/// One end of a connection. Belongs to one loop; share it by shared_ptr. Dropping the last
/// shared_ptr aborts it; close() first for an orderly end.
class connection {
public:
    /// Connects and shakes hands (bounded by limits::handshake_deadline). `via` must outlive it.
    ///   errors  those of network::connect; permission_denied (token), mismatch (version, build),
    ///           malformed (not our protocol), timeout
    static task<std::shared_ptr<connection>> connect(network& via, address to,
                                                     connection_options options);
    /// The other side: shakes hands on an accepted stream.
    static task<std::shared_ptr<connection>> accept(std::unique_ptr<stream> from,
                                                    connection_options options);

    [[nodiscard]] const identity& peer() const noexcept;
    /// "name (pid 7 at host) over tcp:10.0.0.3:6380", for messages.
    [[nodiscard]] std::string peer_name() const;

    /// Queues a frame; small bodies are copied into the outgoing buffer, large ones moved.
    ///   errors  closed (after close), the failure of the connection, too_large
    void send(frame f);
    /// Queues a frame whose body is head followed by body; the bytes are taken before it returns.
    void send(std::uint16_t kind, std::uint16_t flags, std::uint64_t id, byte_span head,
              byte_span body = {});
    /// As send, but without a copy of `body`: it must stay valid until this task ends.
    /// Suspends until the kernel has all of it.
    task<void> send_borrowed(std::uint16_t kind, std::uint16_t flags, std::uint64_t id,
                             byte_span head, byte_span body);
    /// Waits while more than limits::max_send_queue bytes are queued; throws like send.
    task<void> send_ready();
    [[nodiscard]] std::size_t queued_bytes() const noexcept;

    /// The next frame in order; nothing after the peer's orderly close.
    ///   errors  reset, peer_lost (silent), malformed, corrupt, too_large, closed (by us), cancelled
    task<std::optional<frame>> receive();

    /// Instead of receive(): `handler` is called from the read loop for every frame, in order. The
    /// view is valid during the call only. An exception from it aborts the connection.
    void set_handler(unique_function<void(const frame_view&)> handler);
    /// Called once when the connection has ended: nullptr = orderly, else why.
    void set_closed_handler(unique_function<void(const error*)> handler);
    /// Back-pressure towards the peer: stops reading (keep-alive still sees our pings answered).
    void pause_reading() noexcept;
    void resume_reading() noexcept;

    /// Orderly end: flushes, says goodbye, waits for the peer's (at most limits::close_deadline).
    /// Never throws; afterwards the stream is closed and all work of the connection has ended.
    task<void> close();
    /// Ends at once; the peer sees a reset or an end of stream, we see `why`.
    void abort(error why) noexcept;
    /// Waits for the end, whoever caused it.
    task<void> wait_closed();

    [[nodiscard]] bool is_open() const noexcept;
    /// Silent for longer than keep_alive::suspect_after right now.
    [[nodiscard]] bool is_suspect() const noexcept;
    /// Why it ended; nothing while open or after an orderly end.
    [[nodiscard]] const std::optional<error>& failure() const noexcept;
};

} // namespace skein::net
