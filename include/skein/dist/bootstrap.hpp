// SPDX-License-Identifier: Apache-2.0
#pragma once
// From a rendezvous to a communicator: who is on which host, addresses, shared segments,
// connections.
//
//     auto comm = make_comm_thread(world, {});          // one call per rank, on its compute thread
//     comm->all_reduce(view, reduce_op::mean).wait();
//     auto second = make_comm_thread(world, {.model = "ring", .name = "control"});   // beside it
//
// Which model it is, options.model says (models.hpp).

#include <skein/dist/comm_thread.hpp>
#include <skein/dist/communicator.hpp>
#include <skein/dist/models.hpp>

#include <memory>

namespace skein::spmd {
class rendezvous;
}

namespace skein::dist {

/// Makes this rank's communicator on worker's loop; every rank calls it. Blocking, on the compute
/// thread.
///   errors  peer_lost, timeout, refused, permission_denied; not_supported: the model does not fit
///           these ranks; invalid_argument: no such model
[[nodiscard]] std::unique_ptr<communicator> make_communicator(spmd::rendezvous& world,
                                                              const comm_options& options,
                                                              net::loop_thread& worker);

/// The same with a thread of its own; a lost member (rendezvous::on_lost) aborts it.
[[nodiscard]] std::unique_ptr<comm_thread> make_comm_thread(spmd::rendezvous& world,
                                                            const comm_options& options = {});

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/bootstrap.ipp>
#endif
