// SPDX-License-Identifier: Apache-2.0
#pragma once
// The machinery of net::connection: sending and receiving.
//
// Two loops run while a connection lives: read_loop, and write_loop, which sleeps unless the
// kernel's buffer is full. Both hold the connection; the last that ends lets the stream go and
// gives up self_.

#include <skein/core/constants.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/detail/traffic.hpp>

#include <algorithm>
#include <cstring>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::net {

namespace detail {
inline constexpr std::size_t read_buffer_bytes = std::size_t{128} << 10;
inline constexpr std::size_t large_body_bytes = 32768;   ///< from here on read in place
inline constexpr std::size_t first_allocation = 4 << 20; ///< for a body not yet arrived
inline constexpr std::size_t eager_flush_bytes = std::size_t{256} << 10;
/// Of small frames: the peer works on the first ones while the rest are written.
inline constexpr std::size_t small_flush_bytes = std::size_t{16} << 10;
inline constexpr std::size_t direct_write_bytes = std::size_t{64} << 10;
inline constexpr std::size_t write_step_bytes = std::size_t{1} << 20;  ///< progress is seen in
inline constexpr std::size_t kept_body_bytes = std::size_t{128} << 10; ///< of a connection at rest
} // namespace detail

// --- sending ----------------------------------------------------------------------------------

// What is said when something cannot be sent stays out of the way of what can: then that is
// inlined, and a header stays in registers. Passed on in memory it costs more than its checksum: it
// is written in pieces and read as a whole, and such a read waits until the pieces have reached the
// cache.

[[gnu::cold, gnu::noinline]] SKEIN_INLINE void connection::refuse_ended() const {
    if (failure_) throw *failure_;
    throw error(errc::closed, "connection to " + peer_name_ + " is closed");
}

[[gnu::cold, gnu::noinline]] SKEIN_INLINE void connection::refuse_large(std::size_t bytes) const {
    throw error(errc::too_large, fmt::format("frame of {} bytes to {} is above the limit of {}",
                                             bytes, peer_name_, options_.bounds.max_frame))
        .with_hint("send it in pieces or raise limits::max_frame on both sides");
}

SKEIN_INLINE void connection::check_sendable() const {
    if (state_ != state::open) [[unlikely]]
        refuse_ended();
}

SKEIN_INLINE frame_header connection::header_for(std::uint16_t kind, std::uint16_t flags,
                                                 std::uint64_t id, byte_span head,
                                                 byte_span body) const {
    const std::size_t bytes = head.size() + body.size();
    if (bytes > options_.bounds.max_frame || bytes > 0xffffffffu) [[unlikely]]
        refuse_large(bytes);
    frame_header h;
    h.length = static_cast<std::uint32_t>(bytes);
    h.kind = kind;
    h.flags = flags & static_cast<std::uint16_t>(~body_crc_flag);
    h.id = id;
    if (options_.checksum_bodies && bytes > 0) {
        h.flags |= body_crc_flag;
        h.body_crc = crc32c(body, head.empty() ? 0 : crc32c(head));
    }
    return h;
}

SKEIN_INLINE void connection::send(std::uint16_t kind, std::uint16_t flags, std::uint64_t id,
                                   byte_span head, byte_span body) {
    check_sendable();
    const auto h = header_for(kind, flags, id, head, body);
    ++statistics_.frames_out;
    detail::traffic().messages_out.add();
    queued_total_ += frame_header::bytes + h.length;
    if (body.size() >= detail::direct_write_bytes && !blocked_) {
        // The kernel copies a large body straight from the caller; only what it refuses is kept.
        h.encode(out_.grab(frame_header::bytes));
        out_.copy(head);
        out_.borrow(body);
        flush();
        if (blocked_) out_.own_last();
        return;
    }
    std::byte* to = out_.grab(frame_header::bytes + h.length);
    h.encode(to);
    to += frame_header::bytes;
    if (!head.empty()) std::memcpy(to, head.data(), head.size());
    if (!body.empty()) std::memcpy(to + head.size(), body.data(), body.size());
    if (out_.bytes() >= detail::small_flush_bytes) {
        flush();
    } else {
        request_flush();
    }
}

SKEIN_INLINE void connection::send(frame f) {
    if (f.body.size() < limit::gather_bytes) {
        send(f.kind, f.flags, f.id, f.body);
        return;
    }
    check_sendable();
    const auto h = header_for(f.kind, f.flags, f.id, f.body, {});
    ++statistics_.frames_out;
    detail::traffic().messages_out.add();
    queued_total_ += frame_header::bytes + h.length;
    h.encode(out_.grab(frame_header::bytes));
    out_.move(std::move(f.body));
    if (out_.bytes() >= detail::eager_flush_bytes) {
        flush();
    } else {
        request_flush();
    }
}

SKEIN_INLINE void connection::send_shared(std::uint16_t kind, std::uint16_t flags, std::uint64_t id,
                                          std::shared_ptr<const byte_buffer> body) {
    check_sendable();
    const auto h = header_for(kind, flags, id, *body, {});
    ++statistics_.frames_out;
    detail::traffic().messages_out.add();
    queued_total_ += frame_header::bytes + h.length;
    h.encode(out_.grab(frame_header::bytes));
    out_.share(std::move(body));
    if (out_.bytes() >= detail::eager_flush_bytes) {
        flush();
    } else {
        request_flush();
    }
}

SKEIN_INLINE task<void> connection::send_borrowed(std::uint16_t kind, std::uint16_t flags,
                                                  std::uint64_t id, byte_span head,
                                                  byte_span body) {
    check_sendable();
    const auto keep = self_;
    const auto h = header_for(kind, flags, id, head, body);
    ++statistics_.frames_out;
    detail::traffic().messages_out.add();
    h.encode(out_.grab(frame_header::bytes));
    out_.copy(head);
    out_.borrow(body);
    queued_total_ += frame_header::bytes + h.length;
    const std::uint64_t mine = queued_total_;
    flush();
    try {
        while (written_total_ < mine && state_ != state::ended) {
            auto more = drained_.wait();
            co_await more;
        }
    } catch (...) {
        end(error(errc::aborted, "a frame to " + peer_name_ + " was cut by cancellation"));
        throw;
    }
    if (written_total_ < mine) check_sendable();
}

SKEIN_INLINE task<void> connection::send_ready(std::size_t most_queued) {
    const auto keep = self_;
    while (queued_bytes() > most_queued && state_ == state::open) {
        auto more = drained_.wait();
        co_await more;
    }
    check_sendable();
}

/// Writes what the kernel takes; the rest is the write loop's.
SKEIN_INLINE void connection::flush() noexcept {
    // The write loop cannot take over while a function keeps the loop.
    const bool is_taken = blocked_ && (in_flight_ > 0 || !loop_.is_occupied());
    if (is_taken || out_.empty() || state_ == state::ended) return;
    try {
        std::size_t written = 0;
        const std::size_t asked = out_.bytes();
        if (out_.simple()) {
            const byte_span all = out_.open();
            written = stream_->try_write(std::span<const byte_span>(&all, 1));
        } else {
            thread_local std::vector<byte_span> parts;
            out_.views(parts);
            written = stream_->try_write(parts);
        }
        out_.consume(written);
        ++statistics_.flushes;
        if (written < asked) {
            blocked_ = true;
            wake_writer_.set();
        }
        progress(written);
    } catch (...) {
        end(to_error(std::current_exception()));
    }
}

SKEIN_INLINE void connection::progress(std::size_t written) noexcept {
    statistics_.bytes_out += written;
    detail::traffic().bytes_out.add(written);
    written_total_ += written;
    if (!drained_.empty()) drained_.wake_all();
    if (sent_goodbye_) maybe_finished();
}

/// Writes all; in steps when the peer is judged by its progress.
SKEIN_INLINE task<void> connection::write_pieces(connection* self,
                                                 const std::vector<byte_span>* parts) {
    const std::size_t most = self->timer_.is_set() ? detail::write_step_bytes : SIZE_MAX;
    std::vector<byte_span> step;
    std::size_t at = 0, offset = 0;
    while (at < parts->size() && self->state_ != state::ended) {
        step.clear();
        std::size_t bytes = 0;
        while (at < parts->size() && bytes < most) {
            const auto rest = (*parts)[at].subspan(offset);
            const auto piece = rest.first(std::min(rest.size(), most - bytes));
            step.push_back(piece);
            bytes += piece.size();
            offset += piece.size();
            if (piece.size() == rest.size()) {
                ++at;
                offset = 0;
            }
        }
        auto writing = self->stream_->write_all(step);
        co_await writing;
        ++self->statistics_.flushes;
        self->in_flight_ -= bytes;
        self->progress(bytes);
    }
}

SKEIN_INLINE task<void> connection::write_loop(std::shared_ptr<connection> self) {
    connection& c = *self;
    try {
        std::vector<byte_span> parts;
        while (c.state_ != state::ended) {
            auto wanted = c.wake_writer_.wait();
            co_await wanted;
            c.wake_writer_.reset();
            while (!c.out_.empty() && c.state_ != state::ended) {
                detail::out_queue taken = std::exchange(c.out_, detail::out_queue());
                taken.views(parts);
                c.in_flight_ = taken.bytes();
                auto writing = write_pieces(&c, &parts);
                co_await writing;
            }
            c.blocked_ = false;
        }
    } catch (...) {
        c.end(to_error(std::current_exception()));
    }
    c.in_flight_ = 0;
    c.part_ended();
}

SKEIN_INLINE void connection::send_control(control kind) noexcept {
    if (state_ == state::ended || sent_goodbye_) return;
    frame_header h;
    h.kind = kind;
    h.encode(out_.grab(frame_header::bytes));
    queued_total_ += frame_header::bytes;
    request_flush();
}

// --- receiving --------------------------------------------------------------------------------

SKEIN_INLINE task<void> connection::read_loop(std::shared_ptr<connection> self) {
    connection& c = *self;
    try {
        std::size_t since_yield = 0;
        while (c.state_ != state::ended) {
            if (c.inbox_.is_held()) {
                c.resumed_.reset();
                auto resumed = c.resumed_.wait();
                co_await resumed;
                c.parse();
                continue;
            }
            if (c.large_) {
                since_yield += c.large_->length;
                auto body = c.read_large();
                co_await body;
            } else {
                if (c.begin_ == c.end_) {
                    c.begin_ = c.end_ = 0;
                } else if (c.in_.size() - c.end_ < detail::large_body_bytes) {
                    std::memmove(c.in_.data(), c.in_.data() + c.begin_, c.end_ - c.begin_);
                    c.end_ -= c.begin_;
                    c.begin_ = 0;
                }
                auto reading = c.stream_->read_some(mut_byte_span(c.in_).subspan(c.end_));
                const std::size_t got = co_await reading;
                if (got == 0) {
                    if (c.got_goodbye_ || c.sent_goodbye_) {
                        c.end(std::nullopt);
                    } else {
                        c.end(error(errc::reset,
                                    "connection to " + c.peer_name_ + " ended without a goodbye")
                                  .with_hint("the process there ended or was killed"));
                    }
                    break;
                }
                c.end_ += got;
                c.statistics_.bytes_in += got;
                detail::traffic().bytes_in.add(got);
                since_yield += got;
                c.last_heard_ = c.loop_.now();
                c.suspect_ = false;
                c.parse();
            }
            if (since_yield >= detail::eager_flush_bytes) { // others get their turn, replies leave
                since_yield = 0;
                auto others = yield();
                co_await others;
            }
        }
    } catch (...) {
        c.end(to_error(std::current_exception()));
    }
    c.part_ended();
}

/// Hands out the whole frames in in_; prepares for a large one.
SKEIN_INLINE bool connection::parse() {
    while (state_ != state::ended && !inbox_.is_held()) {
        const std::size_t have = end_ - begin_;
        if (have < frame_header::bytes) return false;
        frame_header h;
        if (const auto fault = h.read(in_.data() + begin_, options_.bounds.max_frame)) {
            throw error(fault->code(), fault->text() + " from " + peer_name_)
                .with_hint(fault->hint());
        }
        const std::size_t here = have - frame_header::bytes;
        if (here < h.length) {
            if (h.length < detail::large_body_bytes) return false;
            begin_ +=
                frame_header::bytes; // the body gets a buffer of its own, filled by read_large
            if (const auto first = std::min<std::size_t>(h.length, detail::first_allocation);
                large_body_.size() < first) {
                large_body_.resize(first);
            }
            std::memcpy(large_body_.data(), in_.data() + begin_, here);
            large_have_ = here;
            begin_ = end_ = 0;
            large_ = h;
            return false;
        }
        const auto body = byte_span(in_).subspan(begin_ + frame_header::bytes, h.length);
        begin_ += frame_header::bytes + h.length;
        deliver(h, body, nullptr);
    }
    return true;
}

/// Reads the rest of a large body straight to its place. Memory follows what has arrived.
SKEIN_INLINE task<void> connection::read_large() {
    const frame_header h = *large_;
    while (large_have_ < h.length) {
        if (large_have_ == large_body_.size()) {
            large_body_.resize(std::min<std::size_t>(h.length, 2 * large_have_));
        }
        const std::size_t until = std::min<std::size_t>(h.length, large_body_.size());
        auto reading = stream_->read_some(
            mut_byte_span(large_body_).subspan(large_have_, until - large_have_));
        const std::size_t got = co_await reading;
        if (got == 0) {
            throw error(errc::reset,
                        fmt::format("connection to {} ended inside a frame ({} of {} bytes)",
                                    peer_name_, large_have_, h.length));
        }
        large_have_ += got;
        statistics_.bytes_in += got;
        detail::traffic().bytes_in.add(got);
        last_heard_ = loop_.now();
        suspect_ = false;
    }
    large_.reset();
    large_body_.resize(h.length);
    deliver(h, large_body_, &large_body_);
    if (large_body_.capacity() > 2 * detail::first_allocation) {
        large_body_ = byte_buffer();
    } else if (large_body_.capacity() > detail::kept_body_bytes && state_ != state::ended) {
        loop_.set_timer(idle_, deadline_after(loop_.now(), options_.alive.ping_after));
    }
}

SKEIN_INLINE std::size_t connection::buffer_bytes() const noexcept {
    return out_.capacity() + in_flight_ + in_.capacity() + large_body_.capacity();
}

SKEIN_INLINE void connection::give_back() noexcept {
    if (!large_) large_body_ = byte_buffer();
}

SKEIN_INLINE void connection::deliver(const frame_header& h, byte_span body, byte_buffer* owned) {
    if (!h.accepts(body)) {
        throw error(errc::corrupt,
                    fmt::format("body of frame {} (kind {}, {} bytes) from {} has a wrong "
                                "checksum",
                                h.id, h.kind, h.length, peer_name_));
    }
    if (h.kind >= first_reserved_kind) {
        on_control(h.kind);
        return;
    }
    if (got_goodbye_) throw error(errc::malformed, "a frame after the goodbye from " + peer_name_);
    ++statistics_.frames_in;
    detail::traffic().messages_in.add();
    frame_view view;
    view.kind = h.kind;
    view.flags = h.flags & static_cast<std::uint16_t>(~body_crc_flag);
    view.id = h.id;
    view.body = body;
    view.owned = owned;
    (void)inbox_.deliver(view);
}

SKEIN_INLINE task<std::optional<frame>> connection::receive() {
    const auto keep = self_;
    while (inbox_.is_empty()) {
        if (state_ == state::ended) {
            if (failure_) throw *failure_;
            co_return std::nullopt;
        }
        if (got_goodbye_) co_return std::nullopt;
        auto more = inbox_.wait();
        co_await more;
    }
    std::optional<frame> next(inbox_.take());
    if (inbox_.eases()) resumed_.set();
    inbox_.wake_next();
    co_return next;
}

SKEIN_INLINE void connection::set_handler(unique_function<void(const frame_view&)> handler) {
    const auto keep = self_;
    try {
        inbox_.set_handler(std::move(handler));
    } catch (...) {
        end(to_error(std::current_exception()));
    }
    if (inbox_.eases()) resumed_.set();
}

SKEIN_INLINE void connection::resume_reading() noexcept {
    if (inbox_.resumes()) resumed_.set();
}

SKEIN_INLINE void connection::on_control(std::uint16_t kind) {
    switch (kind) {
    case ping: // bytes that are under way say as much as a pong, and pings must not fill our queue
        if (is_drained()) send_control(pong);
        return;
    case pong: return;
    case goodbye:
        got_goodbye_ = true;
        inbox_.wake_all();
        begin_goodbye();
        maybe_finished();
        return;
    default:
        throw error(errc::malformed,
                    fmt::format("unknown control frame {:#x} from {}", kind, peer_name_));
    }
}

} // namespace skein::net
