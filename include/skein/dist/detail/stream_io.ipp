// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whole reads and writes on a stream.

#include <skein/core/error.hpp>
#include <skein/net/stream.hpp>

#include <span>
#include <utility>

namespace skein::dist::detail {

SKEIN_INLINE task<void> read_exact(net::stream& from, mut_byte_span into) {
    std::size_t have = 0;
    while (have < into.size()) {
        auto some = from.read_some(into.subspan(have));
        const std::size_t n = co_await std::move(some);
        if (n == 0) {
            throw error(have == 0 ? errc::closed : errc::reset, "the peer closed the connection");
        }
        have += n;
    }
}

SKEIN_INLINE task<void> write_exact(net::stream& to, byte_span bytes) {
    auto all = to.write_all(std::span<const byte_span>(&bytes, 1));
    co_await std::move(all);
}

} // namespace skein::dist::detail
