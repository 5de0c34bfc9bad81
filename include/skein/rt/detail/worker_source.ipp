// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of rt/worker_source.hpp.

#include <skein/core/error.hpp>
#include <skein/net/address.hpp>

#include <charconv>
#include <system_error>

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

SKEIN_INLINE sched::constraint where_labelled(const std::string& label) {
    if (label.empty()) return {};
    return label == spread_label ? sched::constraint::spread() : sched::constraint::labelled(label);
}

SKEIN_INLINE std::string group_label(std::uint64_t group, int bundle) {
    return bundle < 0 ? fmt::format("@{}", group) : fmt::format("@{}/{}", group, bundle);
}

SKEIN_INLINE bool parse_group_label(std::string_view label, std::uint64_t& group, int& bundle) {
    if (!label.starts_with('@')) return false;
    const auto* const last = label.data() + label.size();
    auto [at, bad] = std::from_chars(label.data() + 1, last, group);
    if (bad != std::errc() || group == 0) return false;
    bundle = -1;
    if (at == last) return true;
    if (*at != '/') return false;
    const auto [end, none] = std::from_chars(at + 1, last, bundle);
    return none == std::errc() && end == last && bundle >= 0;
}

} // namespace skein::rt
