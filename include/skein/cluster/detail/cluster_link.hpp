// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the links of a cluster have in common.

#include <skein/core/error.hpp>
#include <skein/core/event.hpp>
#include <skein/core/race.hpp>
#include <skein/core/sha256.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/link.hpp>
#include <skein/net/options.hpp>
#include <skein/net/requests.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster::detail {

/// What all ends of a cluster's links say.
[[nodiscard]] inline net::connection_options cluster_link(const net::token& secret,
                                                          std::string name, std::string host,
                                                          std::int64_t pid) {
    net::connection_options o;
    o.secret = secret;
    o.self.name = std::move(name);
    o.self.host = std::move(host);
    o.self.pid = pid;
    o.self.purpose = "cluster";
    o.bounds.max_frame = std::size_t{4} << 20;
    return o;
}

/// What its request layers bound: a hello of thousands of leases is large, and all of these are
/// told in one turn.
[[nodiscard]] inline net::request_options cluster_requests() {
    net::request_options o;
    o.most_message = std::size_t{16} << 20;
    o.peer.running = std::size_t{1} << 17;
    o.peer.request_bytes = o.peer.reply_bytes = o.call_bytes = std::size_t{64} << 20;
    return o;
}

/// What all peers of a cluster may have in progress here.
[[nodiscard]] inline std::shared_ptr<net::request_budget> cluster_budget() {
    auto most = net::request_budget::most_by_default();
    most.running = std::size_t{1} << 20;
    return std::make_shared<net::request_budget>(most);
}

/// The secret of a driver and its workers: derived, so that it never travels.
[[nodiscard]] inline net::token job_secret(const net::token& cluster, std::uint64_t driver) {
    constexpr std::string_view label = "skein driver and workers";
    const auto digest =
        hmac_sha256(cluster.bytes(), as_bytes(label), std::as_bytes(std::span(&driver, 1)));
    return net::token::from_hex(to_hex(digest)).value();
}

/// Where a driver listens for what its nodes start: on this host alone if the head does, at the
/// address by which they reach that, be it 127.0.0.1 or ::1.
[[nodiscard]] inline net::address driver_door(bool this_host_only, const net::address& head,
                                              std::uint16_t port) {
    if (!this_host_only) return net::address::any(port);
    return net::address::tcp(head.is_loopback() ? head.host : net::own_loopback(), port);
}

/// The secret of a training's group, of each attempt another: derived from the driver's.
[[nodiscard]] inline net::token group_secret(const net::token& driver, std::uint32_t attempt) {
    constexpr std::string_view label = "skein group of ranks";
    const auto digest =
        hmac_sha256(driver.bytes(), as_bytes(label), std::as_bytes(std::span(&attempt, 1)));
    return net::token::from_hex(to_hex(digest)).value();
}

/// A rank that was asked to stop is killed after so long, whatever its training wants.
inline constexpr duration most_stop_grace = std::chrono::hours(1);
/// And after so long if that is because there is no head any more.
inline constexpr duration orphan_stop_grace = std::chrono::seconds(5);

/// What to do when a program does not start on a node.
inline constexpr std::string_view start_hint =
    "the program must be there, under the same path and of the same build, on every node, with "
    "the libraries that it needs";

inline constexpr std::string_view folder_hint =
    "make the folder on every node, or say with .on which nodes have it";

/// And when it has ended before its driver saw it.
inline constexpr std::string_view ended_hint = "it ended before it had reached this program: see "
                                               "what its node printed, and whether nodes reach "
                                               "the ports of this host";

/// Nobody answers there, as far as one can tell from here; otherwise somebody has said no.
[[nodiscard]] constexpr bool is_no_answer(errc code) noexcept {
    switch (code) {
    case errc::permission_denied:
    case errc::mismatch:
    case errc::already_exists:
    case errc::invalid_argument: return false;
    default: return true;
    }
}

/// Dialling the head again would only fail again.
[[nodiscard]] constexpr bool is_final(errc code) noexcept {
    switch (code) {
    case errc::permission_denied:
    case errc::mismatch:
    case errc::already_exists:
    case errc::invalid_argument:
    case errc::malformed:
    case errc::not_supported: return true;
    default: return false;
    }
}

/// Why no link to the head came about, or lasts, with what to do.
[[nodiscard]] inline error no_cluster(const net::address& head, const error& why,
                                      std::string hint) {
    const auto what = is_no_answer(why.code()) ? "no cluster at" : "the head at";
    return error(why.code(), fmt::format("{} {}: {}", what, to_string(head), why.text()))
        .with_cause(why.cause())
        .with_hint(std::move(hint));
}

/// The same for a driver.
[[nodiscard]] inline error no_cluster_for_driver(const net::address& head, const error& why) {
    const bool is_plain = why.code() == errc::refused || why.hint().empty();
    return no_cluster(head, why,
                      is_plain ? "skein head starts one, skein status looks at it" : why.hint());
}

inline task<void> wait_for(event* e) { co_await e->wait(); }

inline task<void> wait_closed(net::link::handle l) {
    auto closed = l->wait_closed();
    co_await closed;
}

/// Waits for the end of the link, or for `stop`; throws why it failed.
inline task<void> wait_end(net::link::handle l, event* stop) {
    auto either = race(wait_closed(l), wait_for(stop));
    (void)co_await either;
    if (!stop->is_set() && l->failure()) throw *l->failure();
}

} // namespace skein::cluster::detail
