// SPDX-License-Identifier: Apache-2.0
#pragma once
// The keeper of a namespace: the driver of the actors that outlive the program which made them.
//
//     cluster::keeper_options how;                   // of a process that an agent has started
//     how.order = wire::decode<cluster::keeper_order>(boot.message).value();
//     cluster::keeper k(loop, network, how);
//     auto serving = k.serve();                      // until stop(), the cluster's end, or nobody needs it any more
//     co_await serving;
//
// The head starts it when a program asks for a namespace that has none, from that program's executable: both must know
// the same functions. It runs nothing of the program. Programs are its guests (rt::runtime::visit), and each of its
// actors has a worker process of its own. docs/design/0018-detached-actors.md

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

/// The boot message of a keeper.
struct keeper_order {
    byte_buffer token{};           ///< of the cluster: it is a driver
    std::string head{};            ///< as the agent reaches it
    std::string space{};           ///< the namespace
    std::uint64_t incarnation = 0; ///< by which the head knows it
    std::uint64_t node = 0;        ///< that of its agent
    std::string executable{}, program{}, folder{};
};

/// Which namespace, and as which process.
struct keeper_options {
    keeper_order order{};
    std::string host{};
    std::int64_t pid = 0;
    net::address listen{}; ///< where workers and guests connect; see leased_workers_options
    time_constants times{};
};

/// Belongs to one loop. Its serve() must have ended before it is destroyed.
class keeper {
public:
    /// All of them must outlive it.
    ///   errors  malformed: the order is none
    keeper(loop& on, net::network& via, keeper_options how);
    keeper(const keeper&) = delete;
    keeper& operator=(const keeper&) = delete;
    ~keeper();

    /// Joins the head and keeps the namespace. Returns after stop(), when the cluster has ended or does not count on
    /// it any more, and when it has had neither actors nor guests for time_constants::keeper_idle.
    [[nodiscard]] task<void> serve();
    void stop() noexcept;

    /// Actors of the namespace, and programs that are connected.
    [[nodiscard]] std::size_t actors() const noexcept;
    [[nodiscard]] std::size_t guests() const noexcept;

private:
    struct books; // in detail/keeper.ipp
    std::unique_ptr<books> books_;
};

/// The life of this process, which was started as rt::keeper_role. Gives the exit code.
[[nodiscard]] int run_keeper();

} // namespace skein::cluster

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/keeper.ipp>
#endif
