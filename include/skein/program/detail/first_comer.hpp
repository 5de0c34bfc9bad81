// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who is meant to connect to a port of this host, among whoever comes.

#include <skein/core/error.hpp>
#include <skein/core/task.hpp>
#include <skein/net/acceptor.hpp>
#include <skein/net/connection.hpp>

#include <memory>
#include <utility>

namespace skein::program::detail {

inline task<void> hear_one(net::acceptor* door, std::unique_ptr<net::stream> from,
                           net::admission* place, const net::connection_options* how,
                           net::connection::handle* first) {
    auto shaken = net::connection::accept(std::move(from), *how, {}, place);
    auto made = co_await shaken;
    if (*first) co_return;
    place->authenticated();
    *first = std::move(made);
    door->close();
}

/// The first that proves the token; the door is closed behind it.
///   errors  closed: somebody has closed the door before
inline task<net::connection::handle> first_comer(net::acceptor* door, net::connection_options how) {
    net::connection::handle first;
    const auto hear = [&](std::unique_ptr<net::stream> from, net::admission* place) {
        return hear_one(door, std::move(from), place, &how, &first);
    };
    auto serving = door->serve(hear);
    co_await serving;
    if (!first) throw error(errc::closed, "it ended before it was heard");
    co_return first;
}

} // namespace skein::program::detail
