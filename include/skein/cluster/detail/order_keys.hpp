// SPDX-License-Identifier: Apache-2.0
#pragma once
// The keys of what a node starts. A node that has the cluster's token derives them; to one with a
// node key the head sends them along, sealed with that.
//
//     seal_keys(order, how.secret, session->key);        // the head, before it sends the order
//     driver_secret(how.secret, order);                  // the agent: of the driver and its workers
//     process_key(how.secret, order);                    // of the job's attempt, or the space server

#include <skein/core/config.hpp>
#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/detail/start_order.hpp>
#include <skein/core/bytes.hpp>
#include <skein/net/token.hpp>

#include <cstdint>
#include <optional>
#include <string_view>

namespace skein::cluster::detail {

/// XOR with HMAC-SHA256(by, what, number): the same call opens it. `what` and `number` belong to one
/// secret for ever.
///   secret  32 bytes
[[nodiscard]] byte_buffer sealed(const net::token& by, std::string_view what, std::uint64_t number,
                                 byte_span secret);

/// Which key the process has that reaches the cluster: that of its job's attempt, of its namespace;
/// the cluster's token stands for none.
[[nodiscard]] net::key_name key_of_process(const start_worker_order& order);
/// Adds what a node with the key `node` cannot derive.
void seal_keys(start_worker_order& order, const net::token& cluster, const net::key_name& node);

/// What the driver and its workers share.
///   errors  malformed: the order has no secret for this node's key
[[nodiscard]] net::token driver_secret(const net::token& mine, const start_worker_order& order);
/// The key of key_of_process(); nothing: it is none.
///   errors  malformed
[[nodiscard]] std::optional<net::token> process_key(const net::token& mine,
                                                    const start_worker_order& order);

/// The secret of a space server and its space clients.
[[nodiscard]] inline net::token space_secret(const net::token& cluster, std::uint64_t server) {
    return job_secret(cluster.derive({net::key_kind::space_server, server}), server);
}
inline constexpr std::string_view sealed_space = "space server for a driver";

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/order_keys.ipp>
#endif
