// SPDX-License-Identifier: Apache-2.0
#pragma once
// From a rendezvous to a communicator: who is on which host, addresses, shared segments, connections.
//
//     auto comm = make_comm_thread(world, {});          // one call per rank, on its compute thread
//     comm->all_reduce(view, reduce_op::mean).wait();
//
// automatic: one rank -> stub; all on one host -> shared memory; one per host -> ring; else both.

#include <skein/core/result.hpp>
#include <skein/core/time.hpp>
#include <skein/dist/comm_thread.hpp>
#include <skein/dist/communicator.hpp>
#include <skein/dist/ring.hpp>
#include <skein/dist/shm.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace skein::cluster {
class rendezvous;
}

namespace skein::dist {

enum class comm_kind : std::uint8_t { automatic, shm, ring, hierarchical, stub };

[[nodiscard]] constexpr std::string_view to_string(comm_kind kind) noexcept {
    switch (kind) {
    case comm_kind::automatic: return "automatic";
    case comm_kind::shm: return "shm";
    case comm_kind::ring: return "ring";
    case comm_kind::hierarchical: return "hierarchical";
    case comm_kind::stub: return "stub";
    }
    return "?";
}

/// "automatic", "shm", ...; for command lines and environment variables.
[[nodiscard]] result<comm_kind> parse_comm_kind(std::string_view text);

/// How to make a communicator; the same on every rank, but for `advertise`.
struct comm_options {
    comm_kind kind = comm_kind::automatic;
    collective_options limits;
    shm_options shm;
    ring_options ring;
    /// The name or address under which other hosts reach this one. Empty: loopback when all ranks share
    /// this machine's network, else rendezvous::host().
    std::string advertise;
    duration connect_deadline = std::chrono::seconds(60);
};

/// Makes this rank's communicator on worker's loop; every rank calls it. Blocking, on the compute thread.
///   errors  peer_lost, timeout, refused, permission_denied; not_supported when kind = shm and the ranks
///           do not share a host
[[nodiscard]] any_communicator make_communicator(cluster::rendezvous& world,
                                                 const comm_options& options,
                                                 net::loop_thread& worker);

/// The same with a thread of its own; a lost member (rendezvous::on_lost) aborts it.
[[nodiscard]] std::unique_ptr<comm_thread> make_comm_thread(cluster::rendezvous& world,
                                                            const comm_options& options = {});

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/bootstrap.ipp>
#endif
