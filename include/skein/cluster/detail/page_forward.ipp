// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/page_forward.hpp.

#include <skein/cluster/detail/ask_head.hpp>
#include <skein/cluster/detail/forward_messages.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/error.hpp>
#include <skein/core/log.hpp>
#include <skein/core/race.hpp>
#include <skein/core/scope.hpp>
#include <skein/net/network.hpp>
#include <skein/net/stream.hpp>

#include <array>
#include <utility>

namespace skein::cluster {

namespace detail {

inline constexpr std::size_t forward_piece = std::size_t{32} << 10;

inline task<void> forward_up(net::requests::handle way, std::shared_ptr<net::stream> browser,
                             std::uint32_t number) {
    byte_buffer piece(forward_piece);
    for (;;) {
        auto reading = browser->read_some(piece);
        const auto n = co_await reading;
        forward_bytes m;
        m.forward = number;
        m.bytes.assign(piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(n));
        m.ends = n == 0;
        auto sending = way->call<forward_taken>(std::move(m));
        (void)co_await sending;
        if (n == 0) co_return;
    }
}

inline task<void> forward_down(net::requests::handle way, std::shared_ptr<net::stream> browser,
                               std::uint32_t number) {
    for (;;) {
        take_forwarded m;
        m.forward = number;
        auto asking = way->call<forwarded>(m);
        const auto said = co_await asking;
        if (said.bytes.empty()) {
            browser->close_send();
            co_return;
        }
        const std::array<byte_span, 1> batch{byte_span(said.bytes)};
        auto writing = browser->write_all(batch);
        co_await writing;
    }
}

/// The page has the last word: who has heard it is not waited for.
inline task<void> forward_both(net::requests::handle way, std::shared_ptr<net::stream> browser) {
    auto opening = way->call<forward_opened>(open_forward());
    const auto opened = co_await opening;
    scope up;
    up.spawn(forward_up(way, browser, opened.forward));
    auto down = as_result(forward_down(way, browser, opened.forward));
    const auto done = co_await down;
    up.cancel();
    auto ended = as_result(up.join());
    (void)co_await ended;
    if (!done) throw done.error();
}

} // namespace detail

SKEIN_INLINE page_forward::page_forward(net::network& via, tool_options how, std::uint16_t port)
    : network_(via), how_(std::move(how)) {
    const auto at = [](std::uint16_t number) {
        return net::address::tcp(net::own_loopback(), number);
    };
    try {
        door_ = network_.listen(at(port));
    } catch (const error&) {
        if (port == 0) throw;
        door_ = network_.listen(at(0));
    }
}
SKEIN_INLINE page_forward::~page_forward() = default;
SKEIN_INLINE net::address page_forward::local() const { return door_->local(); }
SKEIN_INLINE task<void> page_forward::serve() { return serve_each(this); }
SKEIN_INLINE void page_forward::stop() noexcept {
    stopping_.request();
    door_->close();
}

SKEIN_INLINE task<void> page_forward::serve_each(page_forward* self) {
    scope all;
    std::exception_ptr failure;
    try {
        for (;;) {
            auto accepting = with_cancel(self->stopping_.token(), self->door_->accept());
            std::shared_ptr<net::stream> browser = co_await accepting;
            all.spawn(with_cancel(self->stopping_.token(), serve_one(self, std::move(browser))));
        }
    } catch (const error& why) {
        const bool is_asked = self->stopping_.requested();
        if (!is_asked) failure = std::current_exception();
    }
    all.cancel();
    auto ending = as_result(shield(all.join()));
    (void)co_await ending;
    if (failure) std::rethrow_exception(failure);
}

SKEIN_INLINE task<void> page_forward::serve_one(page_forward* self,
                                                std::shared_ptr<net::stream> browser) {
    auto reaching = as_result(detail::reach_head_once(&self->network_, self->how_));
    const auto way = co_await reaching;
    if (!way) {
        if (way.error().code() == errc::cancelled) co_return;
        logging::warn("dashboard", "the head is not reached", {{"why", way.error().text()}});
        co_return;
    }
    auto forwarding = as_result(detail::forward_both(*way, browser));
    const auto done = co_await forwarding;
    browser->close();
    if (!done && done.error().code() == errc::not_supported)
        logging::warn("dashboard", done.error().text());
    auto closing = as_result(shield((*way)->close()));
    (void)co_await closing;
}

} // namespace skein::cluster
