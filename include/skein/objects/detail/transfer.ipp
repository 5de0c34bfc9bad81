// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of objects/transfer.hpp.

#include <skein/core/awaitable.hpp>
#include <skein/core/backoff.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/dial.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace skein::objects {

SKEIN_INLINE net::connection_options chunk_connection(const net::token& secret,
                                                      std::uint64_t store) {
    net::connection_options how;
    how.secret = secret;
    how.self.name = "store";
    how.self.purpose = "skein-object-bytes-1";
    how.self.extra = wire::encode(chunk_hello{store});
    how.bounds.max_frame = std::size_t{2} * chunk_bytes;
    return how;
}

/// Which parts of an object have not come.
class byte_source::missing_chunks {
public:
    explicit missing_chunks(extent part) : part_(part) {
        const auto many = (part.bytes + chunk_bytes - 1) / chunk_bytes;
        for (std::uint64_t n = 0; n < many; ++n) left_.push_back(many - 1 - n);
    }
    [[nodiscard]] bool empty() const noexcept { return left_.empty() && asked_.empty(); }
    [[nodiscard]] bool may_ask() const noexcept {
        return !left_.empty() && asked_.size() < most_asked;
    }
    [[nodiscard]] std::uint64_t ask() {
        const auto n = left_.back();
        left_.pop_back();
        asked_.push_back(n);
        return n;
    }
    /// False: it was not asked for.
    [[nodiscard]] bool came(std::uint64_t n) { return std::erase(asked_, n) == 1; }
    /// The connection has broken.
    void ask_again() {
        left_.insert(left_.end(), asked_.rbegin(), asked_.rend());
        asked_.clear();
    }
    [[nodiscard]] std::uint64_t size_of(std::uint64_t n) const noexcept {
        return std::min(chunk_bytes, part_.bytes - n * chunk_bytes);
    }
    /// In the object.
    [[nodiscard]] std::uint64_t place_of(std::uint64_t n) const noexcept {
        return part_.at + n * chunk_bytes;
    }

private:
    extent part_;
    std::vector<std::uint64_t> left_, asked_; // the next one is the last of left_
};

SKEIN_INLINE byte_source::byte_source(net::network& via, net::address at, net::token secret,
                                      std::uint64_t self, std::function<bool()> may_come_back)
    : via_(via), at_(std::move(at)), secret_(secret), self_(self),
      may_come_back_(std::move(may_come_back)), turns_(most_at_once) {}
SKEIN_INLINE byte_source::~byte_source() {
    for (const auto& wire : idle_)
        wire->abort(error(errc::closed, "no objects are fetched any more"));
}

SKEIN_INLINE task<void> byte_source::close() {
    const auto all = std::exchange(idle_, {});
    for (const auto& wire : all) {
        wire->abort(error(errc::closed, "no objects are fetched any more"));
        auto closing = wire->close();
        co_await closing;
    }
}

SKEIN_INLINE task<net::connection::handle> byte_source::connection() {
    while (!idle_.empty()) {
        auto wire = std::move(idle_.back());
        idle_.pop_back();
        if (wire->is_open()) co_return wire;
    }
    for (;;) {
        net::reconnect_policy how;
        how.max_tries = 0;
        how.until = deadline_after(loop::current().exact_now(), duration(gone_after));
        auto connecting =
            as_result(net::connect_patiently(via_, at_, chunk_connection(secret_, self_), how));
        auto made = co_await connecting;
        if (made) co_return std::move(*made);
        const auto& why = made.error();
        if (why.code() == errc::cancelled || !may_come_back_ || !may_come_back_()) throw why;
        co_await sleep_for(std::chrono::milliseconds(500)); // perhaps it was refused at once
    }
}

SKEIN_INLINE void byte_source::keep(net::connection::handle wire) {
    if (wire->is_open() && idle_.size() < most_at_once) idle_.push_back(std::move(wire));
}

SKEIN_INLINE task<void> byte_source::fetch_over(net::connection* wire, object_number which,
                                                missing_chunks* missing, writer* write) {
    while (!missing->empty()) {
        while (missing->may_ask()) {
            const auto n = missing->ask();
            const auto body =
                wire::encode(chunk_ask{which, missing->place_of(n), missing->size_of(n)});
            wire->send(static_cast<std::uint16_t>(chunk_kind::ask), 0, n, body);
        }
        auto receiving = wire->receive();
        auto got = co_await receiving;
        if (!got)
            throw error(errc::reset, "the store that has the object has closed its connection");
        if (got->kind == static_cast<std::uint16_t>(chunk_kind::none))
            throw error(errc::not_found, std::string(as_text(got->body)));
        if (got->kind != static_cast<std::uint16_t>(chunk_kind::piece) || !missing->came(got->id) ||
            got->body.size() != missing->size_of(got->id))
            throw error(errc::malformed,
                        fmt::format("a chunk of object {} that was not asked for", which.value()));
        (*write)(missing->place_of(got->id), got->body);
    }
}

SKEIN_INLINE task<void> byte_source::fetch(object_number which, extent part, writer write) {
    co_await turns_.acquire();
    const semaphore_permit mine(turns_);
    missing_chunks missing(part);
    backoff pauses(std::chrono::milliseconds(20), std::chrono::milliseconds(500));
    for (int breaks = 0;; ++breaks) {
        auto connecting = connection();
        auto wire = co_await connecting;
        auto coming = as_result(fetch_over(wire.get(), which, &missing, &write));
        const auto came = co_await coming;
        if (came) {
            keep(std::move(wire));
            co_return;
        }
        const auto code = came.error().code();
        wire->abort(error(errc::closed, "the object is not fetched any more"));
        const bool is_break = code == errc::reset || code == errc::closed ||
                              code == errc::peer_lost || code == errc::corrupt;
        if (!is_break || breaks == 100) throw came.error();
        missing.ask_again();
        co_await sleep_for(pauses.next());
    }
}

SKEIN_INLINE task<void> serve_chunks(net::connection::handle wire,
                                     std::function<std::optional<held_bytes>(object_number)> find) {
    try {
        for (;;) {
            auto receiving = wire->receive();
            const auto got = co_await receiving;
            if (!got) co_return;
            const auto asked = wire::decode<chunk_ask>(got->body);
            if (got->kind != static_cast<std::uint16_t>(chunk_kind::ask) || !asked ||
                asked->bytes == 0 || asked->bytes > chunk_bytes)
                throw error(errc::malformed, "a store asks for what is no chunk");
            const auto there = find(asked->which);
            if (!there) {
                const auto why = fmt::format("object {} is gone: nobody holds it any more",
                                             asked->which.value());
                wire->send(static_cast<std::uint16_t>(chunk_kind::none), 0, got->id, as_bytes(why));
                continue;
            }
            const auto size = there->bytes.size();
            if (asked->at > size || asked->bytes > size - asked->at)
                throw error(errc::malformed, "a store asks for more than an object has");
            const auto part = there->bytes.subspan(static_cast<std::size_t>(asked->at),
                                                   static_cast<std::size_t>(asked->bytes));
            auto sending = wire->send_borrowed(static_cast<std::uint16_t>(chunk_kind::piece), 0,
                                               got->id, {}, part);
            co_await sending;
        }
    } catch (const error& e) {
        wire->abort(e);
        if (e.code() == errc::cancelled) throw;
    }
}

} // namespace skein::objects
