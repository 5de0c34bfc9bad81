// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a worker and its driver meet: what the worker is told when it starts, and how both shake
// hands.

#include <skein/core/config.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/function.hpp>
#include <skein/core/time.hpp>
#include <skein/net/channel.hpp>
#include <skein/net/link.hpp>
#include <skein/net/options.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace skein::objects {
class store_client;
}

namespace skein::rt {

class runtime;

/// What a worker is asked for when it is started, see proc::take_boot().
inline constexpr const char* worker_role = "worker";

/// The boot message of a worker.
struct worker_order {
    byte_buffer token{};   ///< net::token::size bytes
    std::string address{}; ///< where to connect; empty: the inherited socket is the link
    std::uint16_t cpus = 1;
    bool direct = true;   ///< it calls actors on other workers without the driver, and is called so
    bool resumes = false; ///< the driver awaits a link, which survives broken connections
    bool is_read = false; ///< somebody reads what it prints: by lines
    std::string head_host{}; ///< of its cluster, as its agent reaches it
    bool is_shared = false;  ///< tasks with different numbers of cpus take turns there
    byte_buffer store{}; ///< the secret of its node's store, whose files it inherits; empty: none
    std::uint64_t store_number = 0; ///< of that store, where there are others
};

/// What one side says to the other.
struct worker_link {
    net::token secret{};
    std::uint16_t cpus = 0;     ///< of the worker; the driver says 0
    bool in_memory = false;     ///< a socket pair: bytes need no checksum
    bool shares_memory = false; ///< the driver gave it a page
    /// For the other side to load its program, or to compute.
    time_span start = duration::zero();
};

/// The options of the connection between them, for both sides.
[[nodiscard]] net::connection_options worker_connection(const runtime& self,
                                                        const worker_link& how);
/// How two processes live through a broken connection between hosts: for how long each waits for
/// the other, which may compute. It is dead before that when an agent or the head says so, or when
/// nobody listens there any more.
[[nodiscard]] net::link_options worker_links(const runtime& self, duration resume_within);
/// The secret of a space server and its space clients for a worker, which knows `by`, that of its
/// driver; and back. It travels so over links that are not encrypted.
[[nodiscard]] byte_buffer seal_secret(const net::token& by, std::uint64_t space_server,
                                      byte_span secret);
/// How space clients begin their names.
inline constexpr std::string_view space_client_name = "client-";
/// The store of its node, for the large values in calls of this process. start: of a driver, has the
/// store begin, and gives where it listens for those of other nodes; empty: there are none.
void use_store(runtime& self, std::shared_ptr<objects::store_client> store,
               unique_function<std::string()> start = {});
/// Which store this process is about to use(), of several on the nodes of a program. Before the first
/// link: others learn it from hello().
void tell_store_number(runtime& self, std::uint64_t number);
/// Worker: the driver at the other end has a store that those of its nodes may meet.
[[nodiscard]] bool has_store_for_nodes(const net::channel& driver);
/// Worker: it is about to use the store of its driver.
void want_store(net::channel& driver);
/// Where a worker can be dialled from another host, by what it has said of itself; nothing:
/// nowhere.
[[nodiscard]] std::optional<net::address> door_of(const net::channel& worker);

} // namespace skein::rt

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/worker_link.ipp>
#endif
