// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of rt/worker_link.hpp.

#include <skein/core/config.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/sha256.hpp>
#include <skein/objects/store_client.hpp>
#include <skein/proc/build_id.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/rt/detail/replies.hpp>
#include <skein/rt/registry.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <limits>
#include <utility>

namespace skein::rt {

SKEIN_INLINE net::connection_options worker_connection(const runtime& self,
                                                       const worker_link& how) {
    const detail::process_name& who = self.name();
    net::connection_options o;
    o.secret = how.secret;
    o.self.name = who.name;
    o.self.build_id = proc::build_id();
    o.self.registry_hash = registry::instance().hash();
    o.self.pid = who.pid;
    o.self.host = who.host;
    auto hello = self.hello();
    hello.cpus = how.cpus;
    hello.shares_memory = how.shares_memory;
    o.self.extra = wire::encode(hello);
    o.require_same_build = true;
    // Loading the program is part of it, on one side, and a driver that computes, on the other. A
    // worker that dies or a driver that leaves is seen at once.
    o.bounds.handshake_deadline = how.start;
    // The worker executes on its loop: silence means work. Its death closes the socket. Between
    // hosts each side says something now and then, for the kernel to tell whether the other end is
    // there still.
    constexpr auto for_ever = duration::max();
    o.alive = {how.in_memory ? net::keep_alive_mode::off : net::keep_alive_mode::automatic,
               time_constants::lan().idle_probe,
               for_ever,
               for_ever,
               for_ever,
               time_constants::lan().unconfirmed_after};
    o.checksum_bodies = !how.in_memory; // a socket pair moves bytes from memory to memory
    return o;
}

SKEIN_INLINE net::link_options worker_links(const runtime& self, duration resume_within) {
    constexpr auto times = time_constants::lan();
    net::link_options o;
    o.incarnation = self.incarnation();
    o.resume_within = resume_within;
    o.refused_within = times.worker_refused;
    o.attempt_timeout = times.connect_timeout;
    // Calls and replies cannot wait in a handler: they stay here, as they would in a connection's
    // queue.
    o.most_messages = o.most_bytes = std::numeric_limits<std::size_t>::max();
    return o;
}

SKEIN_INLINE byte_buffer seal_secret(const net::token& by, std::uint64_t space_server,
                                     byte_span secret) {
    constexpr std::string_view label = "skein namespace for workers";
    const auto key =
        hmac_sha256(by.bytes(), as_bytes(label), std::as_bytes(std::span(&space_server, 1)));
    auto out = to_buffer(secret);
    for (std::size_t i = 0; i < out.size() && i < key.size(); ++i) out[i] ^= key[i];
    return out;
}

SKEIN_INLINE void use_store(runtime& self, std::shared_ptr<objects::store_client> store,
                            unique_function<std::string()> start) {
    auto& answers = self.answers();
    if (!start) store->set_lost_handler([&answers](const error& why) { answers.lost_store(why); });
    answers.objects().use(std::move(store), std::move(start));
}

SKEIN_INLINE void tell_store_number(runtime& self, std::uint64_t number) {
    self.answers().objects().set_store_number(number);
}

SKEIN_INLINE bool has_store_for_nodes(const net::channel& driver) {
    const auto hello = wire::decode<detail::worker_hello>(driver.peer().extra);
    return hello && hello->has_store;
}

SKEIN_INLINE void want_store(net::channel& driver) {
    if (driver.is_open()) driver.send(detail::message_store, 0, 0, {});
}

SKEIN_INLINE std::optional<net::address> door_of(const net::channel& worker) {
    const auto hello = wire::decode<detail::worker_hello>(worker.peer().extra);
    if (!hello) return std::nullopt;
    auto at = net::address::parse(hello->far_address);
    if (!at) return std::nullopt;
    if (at->kind == net::scheme::tcp && at->host == "*") at->host = worker.peer_host();
    if (at->host.empty()) return std::nullopt;
    return *at;
}

} // namespace skein::rt
