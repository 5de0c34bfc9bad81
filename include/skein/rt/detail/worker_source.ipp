// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of rt/worker_source.hpp.

#include <skein/core/error.hpp>
#include <skein/net/address.hpp>

#include <fmt/format.h>

namespace skein::rt {

SKEIN_INLINE net::address space_place::where() const {
    if (address.empty()) return net::address::tcp(host.empty() ? head_host : host, port);
    auto read = net::address::parse(address);
    if (!read) throw read.error();
    return *read;
}

SKEIN_INLINE task<space_place> worker_source::find_space(std::string space, std::uint64_t) {
    throw error(errc::not_supported,
                fmt::format("not supported: namespace \"{}\" on this host alone: a detached actor "
                            "needs a cluster that outlives its program",
                            space))
        .with_hint("start one with skein head and skein join, and run the program with --address");
    co_return space_place();
}

SKEIN_INLINE bool worker_source::want_beside(const net::channel&) { return false; }

} // namespace skein::rt
