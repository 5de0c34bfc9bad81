// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/start_order.hpp.

#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <tuple>
#include <utility>

namespace skein::cluster {

namespace detail {

/// What is on the wire, in its order. A process of one kind has the parts of others empty.
template <class Order, class Driver, class Server, class Rank, class Entry>
[[nodiscard]] auto fields_of(Order& order, Driver& of, Server& server, Rank& rank, Entry& entry) {
    return std::tie(order.lease, order.demand, order.gpus, of.executable, of.program, order.folder,
                    order.name, of.host, of.address, of.port, order.prints, of.env, server.space,
                    entry.job, entry.attempt, entry.command, order.variables, order.package,
                    order.submitted, of.job, rank.rank, rank.node_host, entry.first_line,
                    entry.grace_ms, rank.gpus);
}

} // namespace detail

SKEIN_INLINE const driver_program* start_worker_order::driver() const noexcept {
    if (const auto* const one = std::get_if<worker_process>(&kind)) return &one->of;
    if (const auto* const one = rank()) return &one->of;
    if (const auto* const one = space_server()) return &one->of;
    return nullptr;
}

SKEIN_INLINE const std::string& start_worker_order::job() const noexcept {
    const auto* const of = driver();
    return of != nullptr ? of->job : entry()->job;
}

} // namespace skein::cluster

namespace skein::wire {

SKEIN_INLINE void codec<cluster::start_worker_order>::encode(
    writer& out, const cluster::start_worker_order& order) {
    const cluster::driver_program no_driver;
    const cluster::space_server_process no_server;
    const cluster::rank_process no_rank;
    const cluster::entry_process no_entry;
    const auto or_none = [](const auto* one, const auto& none) -> const auto& {
        return one != nullptr ? *one : none;
    };
    wire::encode(out, cluster::detail::fields_of(order, or_none(order.driver(), no_driver),
                                                 or_none(order.space_server(), no_server),
                                                 or_none(order.rank(), no_rank),
                                                 or_none(order.entry(), no_entry)));
}

SKEIN_INLINE result<void> codec<cluster::start_worker_order>::decode(
    reader& in, cluster::start_worker_order& order) {
    cluster::driver_program of;
    cluster::space_server_process server;
    cluster::rank_process rank;
    cluster::entry_process entry;
    auto fields = cluster::detail::fields_of(order, of, server, rank, entry);
    if (auto read = wire::decode(in, fields); !read) return read;
    if (!server.space.empty())
        order.kind = cluster::space_server_process{std::move(of), std::move(server.space)};
    else if (!entry.job.empty())
        order.kind = std::move(entry);
    else if (rank.rank.is_there())
        order.kind = cluster::rank_process{std::move(of), std::move(rank.rank),
                                           std::move(rank.node_host), std::move(rank.gpus)};
    else
        order.kind = cluster::worker_process{std::move(of)};
    return in.status();
}

} // namespace skein::wire
