// SPDX-License-Identifier: Apache-2.0
#pragma once
// send and recv between any two ranks of a world, over a link of their own per direction.

#include <skein/core/awaitable.hpp>
#include <skein/dist/detail/ring_frame.ipp>
#include <skein/dist/detail/stream_io.hpp>
#include <skein/dist/links.hpp>

#include <array>

namespace skein::dist::detail {

SKEIN_INLINE error lost_in_message(int peer, const signature& what, const error& why) {
    return error(errc::peer_lost,
                 fmt::format("rank {} failed in {}: {}", peer, describe(what), why.what()));
}

SKEIN_INLINE task<void> send_message(links& net, buffer_view io, int to, signature what,
                                     time_point until) {
    auto opening = net.to(to, links::messages, until);
    auto* link = co_await std::move(opening);
    ring_header h;
    h.what = what;
    std::array<std::byte, ring_header::size> head{};
    h.encode(head.data());
    const std::array<byte_span, 2> batch{byte_span(head), byte_span(io.begin(), io.bytes())};
    auto wrote = as_result(link->write_all(std::span(batch).first(io.count > 0 ? 2 : 1)));
    auto result = co_await std::move(wrote);
    if (!result) {
        if (result.error().code() == errc::cancelled) throw result.error();
        throw lost_in_message(to, what, result.error());
    }
}

SKEIN_INLINE task<void> recv_message(links& net, buffer_view io, int from, signature what,
                                     time_point until) {
    auto waiting = net.from(from, links::messages, until);
    auto* link = co_await std::move(waiting);
    std::array<std::byte, ring_header::size> head{};
    auto got = as_result(read_exact(*link, head));
    auto outcome = co_await std::move(got);
    if (outcome) {
        const auto h = ring_header::decode(head.data()).value();
        if (h.what.count != io.count || h.what.type != io.type) {
            throw error(errc::mismatch, fmt::format("rank {} sent {} x {}, rank {} expects {} x {}",
                                                    from, to_string(h.what.type), h.what.count,
                                                    net.rank(), to_string(io.type), io.count));
        }
        auto rest = as_result(read_exact(*link, mut_byte_span(io.begin(), io.bytes())));
        outcome = co_await std::move(rest);
    }
    if (!outcome) {
        if (outcome.error().code() == errc::cancelled) throw outcome.error();
        throw lost_in_message(from, what, outcome.error());
    }
}

} // namespace skein::dist::detail
