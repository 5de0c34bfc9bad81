// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/order_keys.hpp.

#include <skein/core/check.hpp>
#include <skein/core/error.hpp>
#include <skein/core/sha256.hpp>

#include <span>
#include <utility>

namespace skein::cluster::detail {

SKEIN_INLINE byte_buffer sealed(const net::token& by, std::string_view what, std::uint64_t number,
                                byte_span secret) {
    SKEIN_CHECK(secret.size() == net::token::size, "a secret of {} bytes", secret.size());
    const auto stream = hmac_sha256(by.bytes(), as_bytes("skein/1 sealed"), as_bytes(what),
                                    std::as_bytes(std::span(&number, 1)));
    auto out = to_buffer(secret);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] ^= stream[i];
    return out;
}

SKEIN_INLINE net::key_name key_of_process(const start_worker_order& order) {
    if (order.space_server() != nullptr) return {net::key_kind::space_server, order.lease.driver};
    if (order.entry() != nullptr) return {net::key_kind::attempt, order.lease.driver};
    if (order.keys.attempt == 0) return {};
    return {net::key_kind::attempt, order.keys.attempt};
}

inline constexpr std::string_view sealed_driver = "driver and workers",
                                  sealed_process = "key of a process";

SKEIN_INLINE void seal_keys(start_worker_order& order, const net::token& cluster,
                            const net::key_name& node) {
    if (node.kind == net::key_kind::cluster) return;
    const auto by = cluster.derive(node);
    const auto of_process = key_of_process(order);
    if (order.entry() == nullptr && order.space_server() == nullptr) {
        const auto driver = job_secret(cluster.derive(order.keys.driver), order.lease.driver);
        order.keys.sealed_secret = sealed(by, sealed_driver, order.lease.driver, driver.bytes());
    }
    if (of_process.kind != net::key_kind::cluster)
        order.keys.sealed_key =
            sealed(by, sealed_process, of_process.number, cluster.derive(of_process).bytes());
}

/// What was sealed for this node.
[[nodiscard]] inline byte_buffer opened(const net::token& mine, std::string_view what,
                                        std::uint64_t number, const byte_buffer& from) {
    if (from.size() == net::token::size) return sealed(mine, what, number, from);
    throw error(errc::malformed, "the head has sent no key for what this node is to start")
        .with_hint("use one release of skein for head and nodes");
}

SKEIN_INLINE net::token driver_secret(const net::token& mine, const start_worker_order& order) {
    const auto driver = order.lease.driver;
    if (!mine.is_derived()) return job_secret(mine.derive(order.keys.driver), driver);
    return net::token::of_bytes({}, opened(mine, sealed_driver, driver, order.keys.sealed_secret));
}

SKEIN_INLINE std::optional<net::token> process_key(const net::token& mine,
                                                   const start_worker_order& order) {
    const auto name = key_of_process(order);
    if (name.kind == net::key_kind::cluster) return std::nullopt;
    if (!mine.is_derived()) return mine.derive(name);
    return net::token::of_bytes(name,
                                opened(mine, sealed_process, name.number, order.keys.sealed_key));
}

} // namespace skein::cluster::detail
