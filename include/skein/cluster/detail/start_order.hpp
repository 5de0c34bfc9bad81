// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an agent is to start: a worker, a rank or the space server of a driver, or the entry process
// of a job.
//
//     start_worker_order order;
//     order.kind = entry_process{"train-1", 1, {"python", "train.py"}};
//     if (const auto* const entry = order.entry()) ...

#include <skein/core/config.hpp>
#include <skein/cluster/detail/lease_messages.hpp>
#include <skein/wire/codec.hpp>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace skein::cluster {

/// Of a driver: what is started of it, and where it listens.
struct driver_program {
    std::string executable, program; ///< argv[0]
    /// Empty host: it runs on the head's host, which each node knows by another address, so that
    /// the agent takes the one under which it has reached the head.
    std::string host, address; ///< the address: instead of host and port
    std::uint16_t port = 0;
    std::string env; ///< see want_lease; its folder is that of the order
    /// It came out of this job: package and variables of the order are that one's, and a path that
    /// is not absolute begins in its folder. Empty: out of none.
    std::string job;
};

struct worker_process {
    driver_program of;
};

struct rank_process {
    driver_program of;
    rank_order rank;
    /// By which the head sees the node, so that ranks of other nodes may reach this one there;
    /// empty: it is on the head's host, see driver_program.
    std::string node_host;
    /// Bits of sched::gpu_set of the bundles of its group on its node, in their order, which is that
    /// of local ranks; none: it has no gpu, or no group.
    std::vector<std::uint64_t> gpus;
};

struct space_server_process {
    driver_program of;
    std::string space; ///< the namespace
};

struct entry_process {
    std::string job;
    std::uint32_t attempt = 0;
    std::vector<std::string> command;
    std::uint64_t first_line = 1; ///< of this attempt, in that job
    std::uint64_t grace_ms = 0;   ///< see job_request
};

/// An agent is to start a process.
struct start_worker_order {
    static constexpr std::uint16_t number = 11;
    lease_name lease;
    std::string demand;
    std::uint64_t gpus = 0;
    std::string folder, name;           ///< "worker-3"
    bool prints = false;                ///< see driver_hello
    std::vector<std::string> variables; ///< "NAME=value", of the job
    std::string package;                ///< the folder that it runs in, see package.hpp
    std::int64_t submitted = 0;         ///< the job, in milliseconds since 1970
    std::variant<worker_process, rank_process, space_server_process, entry_process> kind;

    [[nodiscard]] const rank_process* rank() const noexcept {
        return std::get_if<rank_process>(&kind);
    }
    [[nodiscard]] const space_server_process* space_server() const noexcept {
        return std::get_if<space_server_process>(&kind);
    }
    [[nodiscard]] const entry_process* entry() const noexcept {
        return std::get_if<entry_process>(&kind);
    }
    /// nullptr: it is an entry process, which may be anything.
    [[nodiscard]] const driver_program* driver() const noexcept;
    /// Whose entry process it is, or out of which its driver came; empty: none.
    [[nodiscard]] const std::string& job() const noexcept;
};

} // namespace skein::cluster

/// All fields of all kinds in a row, those of other kinds empty.
template <>
struct skein::wire::codec<skein::cluster::start_worker_order> {
    static void encode(writer& out, const cluster::start_worker_order& order);
    static result<void> decode(reader& in, cluster::start_worker_order& order);
};

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/start_order.ipp>
#endif
