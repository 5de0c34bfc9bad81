// SPDX-License-Identifier: Apache-2.0
#pragma once
// The two lanes of a link, and what of its peer is taken here.

#include <skein/core/timeout.hpp>
#include <skein/net/detail/request_head.hpp>

#include <algorithm>
#include <utility>

#include <fmt/core.h>

namespace skein::net {

/// Small messages go at once; large ones wait in a lane of their own.
SKEIN_INLINE void requests::send(std::uint16_t kind, std::uint64_t id, byte_buffer body) {
    if (body.size() > options_.most_message) {
        throw error(errc::too_large,
                    fmt::format("message of {} bytes to {} is above the limit of {}", body.size(),
                                peer_name(), options_.most_message));
    }
    if (body.size() > options_.control_bytes) return send_large(kind, id, std::move(body));
    const std::size_t unread = below_->queued_bytes();
    if (unread > options_.unread_bytes && kind != detail::cancel_kind) {
        throw error(errc::exhausted,
                    fmt::format("{} bytes wait for {}, which does not read, unread_bytes is {}",
                                unread, peer_name(), options_.unread_bytes));
    }
    below_->send(kind, 0, id, body, {});
}

SKEIN_INLINE void requests::send_large(std::uint16_t kind, std::uint64_t id, byte_buffer body) {
    const std::size_t n = body.size();
    transfer t{kind, id, std::move(body), 0};
    bulk_bytes_ += n;
    if (kind == detail::request_kind) {
        call_bytes_ += n;
    } else {
        t.held = hold(&request_load::reply_bytes, n);
    }
    bulk_.push_back(std::move(t));
    if (!std::exchange(bulk_runs_, true)) spawn(bulk_lane(self_));
}

// --- budget -----------------------------------------------------------------------------------

SKEIN_INLINE request_hold requests::hold(request_hold::field what, std::size_t amount) const {
    request_hold h(budget_, held_, what);
    h.add(amount);
    return h;
}

SKEIN_INLINE std::optional<error> requests::over_budget(request_hold::field what,
                                                        std::size_t amount, bool alone) const {
    auto full = net::over_budget(what, amount, options_.peer, *held_, false, peer_name(), alone);
    if (full) return full;
    return net::over_budget(what, amount, budget_->most(), budget_->held(), true, peer_name(),
                            alone);
}

/// Why no more handler may run for the peer; a peer that does not read its replies gets no more of
/// them.
SKEIN_INLINE std::optional<error> requests::over_budget_to_run(std::size_t bytes) const {
    if (auto full = over_budget(&request_load::running, 1, false)) return full;
    if (auto full = over_budget(&request_load::request_bytes, bytes, true)) return full;
    return over_budget(&request_load::reply_bytes, 1, true);
}

SKEIN_INLINE detail::request_place requests::place_of(std::size_t bytes) const {
    return {hold(&request_load::running, 1), hold(&request_load::request_bytes, bytes)};
}

SKEIN_INLINE bool requests::may_call(std::size_t bytes) const noexcept {
    return call_bytes_ == 0 ||
           (bytes <= options_.call_bytes && call_bytes_ <= options_.call_bytes - bytes);
}

/// Calls with large messages leave in the order in which they came: the first waits for earlier
/// ones to end, the others for it.
SKEIN_INLINE task<mutex::guard> requests::wait_to_call(requests* self, std::size_t bytes) {
    auto turn = self->call_line_.lock();
    auto mine = co_await turn;
    while (self->open_ && !self->may_call(bytes)) {
        auto freed = self->call_ended_.wait();
        co_await freed;
    }
    self->check_open();
    co_return mine;
}

SKEIN_INLINE void requests::forget_call_bytes(std::size_t bytes) noexcept {
    call_bytes_ -= bytes;
    call_ended_.wake_all();
}

// --- the lane of large messages ---------------------------------------------------------------

/// A large message whose call was given up: what has not left, does not.
SKEIN_INLINE void requests::drop_transfer(std::uint64_t id) noexcept {
    const auto found = std::find_if(bulk_.begin(), bulk_.end(), [&](const transfer& t) {
        return t.id == id && t.kind == detail::request_kind;
    });
    if (found == bulk_.end()) return;
    bulk_bytes_ -= found->body.size() - found->at;
    forget_call_bytes(found->body.size());
    if (found->at == 0) {
        bulk_.erase(found);
        return;
    }
    found->body = byte_buffer(); // the lane says that it is dropped
    found->kind = 0;
}

/// One chunk at a time, and only when the one before has gone to the kernel: so a small message
/// never waits for more than that.
SKEIN_INLINE task<void> requests::bulk_lane(core self) {
    requests& r = *self;
    try {
        while (r.open_ && !r.bulk_.empty()) {
            auto ready = r.below_->send_ready(r.options_.chunk_bytes / 2);
            co_await ready;
            if (r.open_ && !r.bulk_.empty()) r.send_chunk();
        }
    } catch (const error& e) { // the end of the link is told elsewhere
        if (r.open_ && e.code() != errc::cancelled && e.code() != errc::closed) throw;
    }
    r.bulk_runs_ = false;
}

SKEIN_INLINE void requests::send_chunk() {
    transfer& t = bulk_.front();
    if (t.kind == 0) {
        below_->send(detail::chunk_kind, detail::dropped_chunk, t.id, {}, {});
        bulk_.pop_front();
        return;
    }
    std::byte head[detail::chunk_head_bytes];
    std::uint16_t flags = 0;
    if (t.at == 0) {
        flags |= detail::first_chunk;
        store_le(head, t.kind);
        store_le(head + 2, t.id);
        store_le(head + 10, static_cast<std::uint64_t>(t.body.size()));
    }
    const std::size_t n = std::min(options_.chunk_bytes, t.body.size() - t.at);
    const auto piece = byte_span(t.body).subspan(t.at, n);
    t.at += n;
    bulk_bytes_ -= n;
    if (t.at == t.body.size()) flags |= detail::last_chunk;
    const bool first = (flags & detail::first_chunk) != 0;
    below_->send(detail::chunk_kind, flags, t.id, first ? byte_span(head) : byte_span(), piece);
    if ((flags & detail::last_chunk) == 0) return;
    if (t.kind == detail::request_kind) forget_call_bytes(t.body.size());
    bulk_.pop_front();
}

SKEIN_INLINE void requests::on_chunk(const frame_view& f) {
    byte_span body = f.body;
    if ((f.flags & detail::first_chunk) != 0) {
        if (arriving_ || body.size() < detail::chunk_head_bytes) {
            throw error(errc::malformed, "a large message begins inside another one");
        }
        assembly a;
        a.kind = load_le<std::uint16_t>(body.data());
        a.id = load_le<std::uint64_t>(body.data() + 2);
        a.total = load_le<std::uint64_t>(body.data() + 10);
        if (a.total > options_.most_message) {
            throw error(errc::too_large,
                        fmt::format("message of {} bytes from {} is above the limit of {}", a.total,
                                    peer_name(), options_.most_message));
        }
        arriving_ = std::move(a);
        body = body.subspan(detail::chunk_head_bytes);
    }
    if (!arriving_) throw error(errc::malformed, "a chunk of no message");
    if ((f.flags & detail::dropped_chunk) != 0) {
        drop_arriving();
        return;
    }
    if (body.size() > arriving_->total - arriving_->came) {
        throw error(errc::malformed, "a large message is longer than it said");
    }
    keep_piece(body);
    if ((f.flags & detail::last_chunk) == 0) return;
    if (arriving_->came != arriving_->total) {
        throw error(errc::malformed, "a large message is shorter than it said");
    }
    const auto kind = arriving_->kind;
    const auto id = arriving_->id;
    const bool refused = arriving_->refused;
    byte_buffer whole;
    whole.swap(arriving_->body);
    arriving_.reset();
    if (!refused) on_message(kind, id, std::move(whole));
}

SKEIN_INLINE void requests::drop_arriving() noexcept { arriving_.reset(); }

} // namespace skein::net
