// SPDX-License-Identifier: Apache-2.0
#pragma once
// agent_stores: the stores of programs on one node, each on a thread of its own. One is there while its
// program has workers here, and after that as long as others hold what it has and its driver is there,
// or may come back: see objects::far_objects::is_needed().
//
//     boot.store = stores.join(driver, secret, child, link);        // before the process starts
//     ...
//     auto leaving = stores.leave(driver, std::move(link), &stopping);     // when it has ended

#include <skein/core/bytes.hpp>
#include <skein/core/event.hpp>
#include <skein/core/task.hpp>
#include <skein/net/token.hpp>
#include <skein/objects/local_store.hpp>
#include <skein/proc/children.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace skein::cluster::detail {

class agent_stores {
public:
    ///   bytes  of each; 0: they have no room; nothing: there are none
    ///   node   for people
    agent_stores(std::optional<std::uint64_t> bytes, std::string node)
        : bytes_(bytes), node_(std::move(node)) {}

    /// The child inherits the files of the store of its driver's program; gives the secret. Empty:
    /// there is none.
    ///   secret  of that program
    [[nodiscard]] byte_buffer join(std::uint64_t driver, const net::token& secret,
                                   proc::child_options& child, objects::child_link& link);
    /// Of the store of its program; 0: there is none.
    [[nodiscard]] std::uint64_t number_of(std::uint64_t driver) const;
    /// That process has ended. Suspends until its store has, or another process uses it.
    [[nodiscard]] task<void> leave(std::uint64_t driver, objects::child_link link, event* stopping);

private:
    struct program {
        std::unique_ptr<objects::local_store> store;
        std::size_t processes = 0;
    };
    [[nodiscard]] std::unique_ptr<objects::local_store> open(const net::token& secret) const;
    static task<void> end_unused(agent_stores* self, std::uint64_t driver, event* stopping);

    std::optional<std::uint64_t> bytes_;
    std::string node_;
    std::map<std::uint64_t, program> programs_; ///< by their drivers
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/agent_stores.ipp>
#endif
