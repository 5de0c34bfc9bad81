// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ordered bytes between two peers, and the place where new ones arrive: the seam of both worlds.
//
// Protocol code sees only these two interfaces; real sockets (real_network) and the simulated
// network (sim::network) implement them. Calls belong to the thread of the owning loop.
// At most one read and one write may be under way at a time.

#include <skein/core/bytes.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/net/address.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace skein::net {

/// A connected byte stream.
class stream {
public:
    stream() = default;
    stream(const stream&) = delete;
    stream& operator=(const stream&) = delete;
    virtual ~stream() = default;

    /// Waits for at least one byte; `into` must stay valid until then.
    ///   result  bytes read, 0 = the peer closed its side (or `into` is empty)
    ///   errors  reset, closed (by us), cancelled (no byte is lost)
    virtual task<std::size_t> read_some(mut_byte_span into) = 0;

    /// Writes all parts in order; returns when the kernel has all of it.
    ///   batch   the array and the bytes it names must stay valid until then
    ///   errors  reset, closed, cancelled (an unknown prefix may have been sent)
    virtual task<void> write_all(std::span<const byte_span> batch) = 0;

    /// What can be read without waiting: bytes read, 0 = the peer closed, nullopt = would wait.
    virtual std::optional<std::size_t> try_read(mut_byte_span into) = 0;

    /// Writes what fits without waiting: bytes taken from the front of the batch, 0 = would wait.
    virtual std::size_t try_write(std::span<const byte_span> batch) = 0;

    /// Tells the peer that no more bytes follow; reading goes on.
    virtual void close_send() noexcept = 0;

    /// Ends both directions; a waiting read or write throws closed. May be called again.
    virtual void close() noexcept = 0;

    /// Who is at the other end, for messages.
    [[nodiscard]] virtual std::string peer_name() const = 0;

    /// The host at the other end as a numeric address, as the network tells; empty on this host's
    /// own (Unix) sockets.
    [[nodiscard]] virtual std::string peer_host() const { return {}; }

    /// The user at the other end of a Unix socket, as the kernel tells; nothing elsewhere.
    [[nodiscard]] virtual std::optional<std::uint32_t> peer_user() const { return std::nullopt; }

    /// For how long the peer's host has confirmed nothing while bytes that were sent wait for that;
    /// 0: none wait, or the kernel does not tell. A process that reads nothing does not matter: its
    /// kernel answers.
    [[nodiscard]] virtual duration unconfirmed() const noexcept { return duration(0); }

    /// True when the kernel reports the death of the peer (Unix sockets): no pings needed.
    [[nodiscard]] virtual bool is_local() const noexcept { return false; }
};

/// A place that accepts streams.
class listener {
public:
    listener() = default;
    listener(const listener&) = delete;
    listener& operator=(const listener&) = delete;
    virtual ~listener() = default;

    /// Waits for the next stream; throws closed after close().
    virtual task<std::unique_ptr<stream>> accept() = 0;

    /// The bound address, with the real port where 0 was asked for.
    [[nodiscard]] virtual address local() const = 0;

    /// Stops listening; a waiting accept throws closed.
    virtual void close() noexcept = 0;
};

} // namespace skein::net
