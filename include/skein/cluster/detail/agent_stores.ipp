// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/agent_stores.hpp.

#include <skein/core/error.hpp>
#include <skein/core/log.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

namespace skein::cluster::detail {

/// Without room for its objects a program reads those of other nodes, and makes none here.
SKEIN_INLINE std::unique_ptr<objects::local_store> agent_stores::open(
    const net::token& secret) const {
    constexpr auto least = objects::arena::page;
    const objects::store_on_node among{secret, node_};
    try {
        return std::make_unique<objects::local_store>(std::max(*bytes_, least), among);
    } catch (const error& e) {
        if (*bytes_ <= least) throw;
        logging::warn("agent", "there is no memory for the objects of a program",
                      {{"why", e.what()}, {"then", "its large values travel in messages"}});
        return std::make_unique<objects::local_store>(least, among);
    }
}

SKEIN_INLINE byte_buffer agent_stores::join(std::uint64_t driver, const net::token& secret,
                                            proc::child_options& child, objects::child_link& link) {
    if (!bytes_) return {};
    try {
        auto& of = programs_[driver];
        if (!of.store) {
            auto store = open(secret);
            store->start();
            of.store = std::move(store);
        }
        link = of.store->link_for_child();
        child.files = std::exchange(link.files, {}); // its end is its own
        ++of.processes;
        return to_buffer(of.store->secret().bytes());
    } catch (const error& e) {
        logging::warn("agent", "there is no store for a program",
                      {{"why", e.what()}, {"then", "its large values travel in messages"}});
        return {};
    }
}

SKEIN_INLINE std::uint64_t agent_stores::number_of(std::uint64_t driver) const {
    const auto found = programs_.find(driver);
    return found != programs_.end() && found->second.store ? found->second.store->number() : 0;
}

SKEIN_INLINE task<void> agent_stores::leave(std::uint64_t driver, objects::child_link link,
                                            event* stopping) {
    const auto found = programs_.find(driver);
    if (link.ours && found != programs_.end()) --found->second.processes;
    link.has_ended();
    return end_unused(this, driver, stopping);
}

SKEIN_INLINE task<void> agent_stores::end_unused(agent_stores* self, std::uint64_t driver,
                                                 event* stopping) {
    for (;;) {
        const auto found = self->programs_.find(driver);
        if (found == self->programs_.end() || found->second.processes != 0) co_return;
        const auto& store = found->second.store;
        if (stopping->is_set() || !store || !store->is_needed()) {
            self->programs_.erase(found);
            co_return;
        }
        auto woken = stopping->wait_for(std::chrono::milliseconds(500));
        co_await woken;
    }
}

} // namespace skein::cluster::detail
