// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a rank needs to know of its world before it can communicate: who is there, and a way to
// exchange small blobs (addresses, shared-memory names, hashes).
//
// The training layers see only this interface. spmd::joined_group implements it over the control
// connection of a rank; sim::local_world implements it for threads of one process.

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/net/token.hpp>
#include <skein/spmd/loss_listeners.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace skein::spmd {

/// One rank's view of its world. Blocking; called on the compute thread.
class rendezvous {
public:
    rendezvous() = default;
    rendezvous(const rendezvous&) = delete;
    rendezvous& operator=(const rendezvous&) = delete;
    virtual ~rendezvous() = default;

    [[nodiscard]] virtual int rank() const = 0;
    [[nodiscard]] virtual int world_size() const = 0;
    [[nodiscard]] virtual int local_rank() const = 0;
    [[nodiscard]] virtual int local_size() const = 0;
    /// Grows with every restart of the group; messages of an older generation mean nothing.
    [[nodiscard]] virtual int generation() const = 0;
    /// The same text for all ranks of one host.
    [[nodiscard]] virtual std::string host() const = 0;

    /// Gives every rank's blob in rank order. All ranks call it with the same keys in the same
    /// order; a key is used once.
    ///   errors  peer_lost (names the rank), timeout, too_large
    virtual std::vector<byte_buffer> exchange(std::string_view key, byte_span mine) = 0;

    /// The secret of this world, for the connections that ranks make among themselves.
    [[nodiscard]] virtual net::token secret() const = 0;

    /// `lost` is called once, on the control thread, when another rank is lost or fails: abort what
    /// waits for it. It is called here and now if that has happened. Any number may listen, each
    /// until its subscription ends.
    [[nodiscard]] virtual subscription on_lost(loss_listeners::listener lost) = 0;
};

} // namespace skein::spmd
