// SPDX-License-Identifier: Apache-2.0
#pragma once
// The space server of a namespace: the driver of the actors that outlive the program which made
// them.
//
//     // of a process that an agent has started
//     cluster::space_server_options how;
//     how.order = wire::decode<cluster::space_server_order>(boot.message).value();
//     cluster::space server k(loop, network, how);
//     // until stop(), the cluster's end, or nobody needs it any more
//     auto serving = k.serve();
//     co_await serving;
//
// The head starts it when a program asks for a namespace that has none, from that program's
// executable: both must know the same functions. It runs nothing of the program. Programs are its
// space clients (rt::runtime::visit), and each of its actors has a worker process of its own.
// docs/design/0018-detached-actors.md

#include <skein/core/config.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/task.hpp>
#include <skein/net/address.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace skein {
class loop;
}

namespace skein::net {
class network;
}

namespace skein::cluster {

/// The boot message of a space server.
struct space_server_order {
    byte_buffer key{};             ///< of its namespace, by which the head takes it in
    std::string head{};            ///< as the agent reaches it
    std::string space{};           ///< the namespace
    std::uint64_t incarnation = 0; ///< by which the head knows it
    std::uint64_t node = 0;        ///< that of its agent
    std::string executable{}, program{}, folder{};
};

/// Which namespace, and as which process.
struct space_server_options {
    space_server_order order{};
    std::string host{};
    std::int64_t pid = 0;
    net::address listen{}; ///< where workers and space clients connect; see leased_workers_options
    time_constants times{};
};

/// Belongs to one loop. Its serve() must have ended before it is destroyed.
class space_server {
public:
    /// All of them must outlive it.
    ///   errors  malformed: the order is none
    space_server(loop& on, net::network& via, space_server_options how);
    space_server(const space_server&) = delete;
    space_server& operator=(const space_server&) = delete;
    ~space_server();

    /// Joins the head and keeps the namespace. Returns after stop(), when the cluster has ended or
    /// does not count on it any more, and when it has had neither actors nor space clients for
    /// time_constants::space_server_idle.
    [[nodiscard]] task<void> serve();
    void stop() noexcept;

    /// Actors of the namespace, and programs that are connected.
    [[nodiscard]] std::size_t actors() const noexcept;
    [[nodiscard]] std::size_t space_clients() const noexcept;

private:
    struct state; // in detail/space server.ipp
    std::unique_ptr<state> state_;
};

/// The life of this process, which was started as rt::space_server_role. Gives the exit code.
[[nodiscard]] int run_space_server();

} // namespace skein::cluster

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/space_server.ipp>
#endif
