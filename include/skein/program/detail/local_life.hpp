// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of program/local_workers.hpp: what the pool knows of one worker, and of those
// for one demand.

#include <skein/core/bytes.hpp>
#include <skein/core/log.hpp>
#include <skein/core/time.hpp>
#include <skein/net/acceptor.hpp>
#include <skein/net/connection.hpp>
#include <skein/objects/local_store.hpp>
#include <skein/proc/children.hpp>
#include <skein/proc/claims.hpp>
#include <skein/rt/worker_source.hpp>
#include <skein/sched/demands.hpp>
#include <skein/sched/resources.hpp>
#include <skein/sched/scheduler.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace skein::program::detail {

/// A worker from its start to its end, as its tasks see it.
struct local_life {
    std::string name;
    std::unique_ptr<net::acceptor> door; ///< over TCP: where it connects
    std::unique_ptr<proc::child> process;
    proc::claims page; ///< shared with it
    std::shared_ptr<net::connection> wire;
    std::uint16_t cpus = 0;
    rt::worker_info info;
    std::vector<std::pair<std::string, std::string>> env;
    std::string folder;          ///< empty: that of the program's start
    sched::gpu_set gpus;         ///< that it sees
    sched::request_id in_bundle; ///< what it holds of a placement group
    bool is_unwanted = false;    ///< it was killed on purpose
    objects::child_link store;   ///< of its process

    /// It inherits the files of the store; gives the secret.
    [[nodiscard]] byte_buffer join_store(objects::local_store& at, proc::child_options& how) {
        store = at.link_for_child();
        how.files = store.files;
        store.files.clear(); // its end is its own
        return to_buffer(at.secret().bytes());
    }
};
/// One line on a death that nobody wanted. Its calls run again, or fail, and say so themselves.
inline void say_lost(const local_life& one, const proc::child_end& end) {
    auto how = end.status.describe();
    if (!end.last_words.empty()) how += ": " + end.last_words;
    logging::warn("rt", "a worker was lost",
                  {{"worker", one.name},
                   {"pid", one.process->pid()},
                   {"how", how},
                   {"then", "calls that may run again do"}});
}

/// Workers for one demand.
struct own_workers {
    rt::worker_demand what;
    std::size_t alive = 0;   ///< that run or are being started
    sched::request_id asked; ///< waits for room on the host
    time_point idle_since{}; ///< since when `what` is as it is
    int failures = 0;        ///< starts, in a row
    bool leaving = false;    ///< one is being retired
};
/// Of a request with that tag.
[[nodiscard]] inline sched::demand_id demand_of(std::uint64_t tag) noexcept {
    return sched::demand_id(static_cast<std::uint16_t>(tag));
}

} // namespace skein::program::detail
