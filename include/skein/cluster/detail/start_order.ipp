// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/start_order.hpp.

#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <utility>

namespace skein::cluster {

namespace detail {

/// An order on the wire.
struct flat_start_order {
    lease_name lease;
    std::string demand;
    std::uint64_t gpus = 0;
    std::string executable, program, folder, name, driver_host, driver_address;
    std::uint16_t driver_port = 0;
    bool prints = false;
    std::string env, space, job;
    std::uint32_t attempt = 0;
    std::vector<std::string> command, variables;
    std::string package;
    std::int64_t submitted = 0;
    std::string of_job;
    rank_order rank;
    std::string node_host;
    std::uint64_t first_line = 1, grace_ms = 0;
};

} // namespace detail

SKEIN_INLINE const driver_program* start_worker_order::driver() const noexcept {
    if (const auto* const one = std::get_if<worker_start>(&kind)) return &one->of;
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
    cluster::detail::flat_start_order flat;
    flat.lease = order.lease;
    flat.demand = order.demand;
    flat.gpus = order.gpus;
    flat.folder = order.folder;
    flat.name = order.name;
    flat.prints = order.prints;
    flat.variables = order.variables;
    flat.package = order.package;
    flat.submitted = order.submitted;
    if (const auto* const of = order.driver()) {
        flat.executable = of->executable;
        flat.program = of->program;
        flat.driver_host = of->host;
        flat.driver_address = of->address;
        flat.driver_port = of->port;
        flat.env = of->env;
        flat.of_job = of->job;
    }
    if (const auto* const one = order.space_server()) flat.space = one->space;
    if (const auto* const one = order.rank()) {
        flat.rank = one->rank;
        flat.node_host = one->node_host;
    }
    if (const auto* const one = order.entry()) {
        flat.job = one->job;
        flat.attempt = one->attempt;
        flat.command = one->command;
        flat.first_line = one->first_line;
        flat.grace_ms = one->grace_ms;
    }
    wire::encode(out, flat);
}

SKEIN_INLINE result<void> codec<cluster::start_worker_order>::decode(
    reader& in, cluster::start_worker_order& order) {
    cluster::detail::flat_start_order flat;
    if (!detail::read(in, flat)) return in.status();
    order.lease = flat.lease;
    order.demand = std::move(flat.demand);
    order.gpus = flat.gpus;
    order.folder = std::move(flat.folder);
    order.name = std::move(flat.name);
    order.prints = flat.prints;
    order.variables = std::move(flat.variables);
    order.package = std::move(flat.package);
    order.submitted = flat.submitted;
    cluster::driver_program of{
        std::move(flat.executable),     std::move(flat.program), std::move(flat.driver_host),
        std::move(flat.driver_address), flat.driver_port,        std::move(flat.env),
        std::move(flat.of_job)};
    if (!flat.space.empty())
        order.kind = cluster::space_server_start{std::move(of), std::move(flat.space)};
    else if (!flat.job.empty())
        order.kind = cluster::entry_start{std::move(flat.job), flat.attempt,
                                          std::move(flat.command), flat.first_line, flat.grace_ms};
    else if (flat.rank.is_there())
        order.kind =
            cluster::rank_start{std::move(of), std::move(flat.rank), std::move(flat.node_host)};
    else
        order.kind = cluster::worker_start{std::move(of)};
    return in.status();
}

} // namespace skein::wire
