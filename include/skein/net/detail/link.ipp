// SPDX-License-Identifier: Apache-2.0
#pragma once
// The machinery of net::link on whatever connection it has: sending, receiving, the end.

#include <skein/core/check.hpp>
#include <skein/core/log.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/detail/link_hello.hpp>
#include <skein/net/detail/link_tables.hpp>

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/core.h>

namespace skein::net {

namespace detail {
inline constexpr std::size_t link_share_bytes = std::size_t{8} << 10; ///< from here on shared
} // namespace detail

SKEIN_INLINE link::~link() = default;

// --- sending ----------------------------------------------------------------------------------

/// Why a message of that size cannot be sent.
[[gnu::cold, gnu::noinline]] SKEIN_INLINE void link::refuse(std::size_t bytes) const {
    if (state_ != state::open) {
        if (failure_) throw *failure_;
        throw error(errc::closed, "the link to " + peer_name_ + " is closed");
    }
    if (bytes > options_.bounds.max_frame)
        throw error(errc::too_large,
                    fmt::format("message of {} bytes to {} is above the limit of {}", bytes,
                                peer_name_, options_.bounds.max_frame))
            .with_hint("send it in pieces or raise limits::max_frame on both sides");
    throw error(errc::exhausted, fmt::format("{} messages of {} bytes wait for {} to confirm them",
                                             window_.messages(), window_.bytes(), peer_name_))
        .with_hint("await send_ready() before more is sent");
}

SKEIN_INLINE void link::check_sendable(std::uint16_t kind, std::size_t bytes) const {
    SKEIN_CHECK(kind < first_link_kind, "kind {:#x} belongs to links and connections", kind);
    if (state_ != state::open || bytes > options_.bounds.max_frame ||
        window_.messages() >= how_.most_messages || window_.bytes() >= how_.most_bytes) [[unlikely]]
        refuse(bytes);
}

/// The connection takes a message now, and nothing waits in front of it.
SKEIN_INLINE bool link::is_direct() const noexcept {
    return connected_ && !window_.has_pending() && connection_->is_open() &&
           connection_->queued_bytes() <= how_.queue_bytes;
}

SKEIN_INLINE void link::send(std::uint16_t kind, std::uint16_t flags, std::uint64_t id,
                             byte_span head, byte_span body) {
    const std::size_t bytes = head.size() + body.size();
    check_sendable(kind, bytes);
    flags &= static_cast<std::uint16_t>(~body_crc_flag);
    if (!resumes_) {
        ++statistics_.messages_out;
        connection_->send(kind, flags, id, head, body);
        return;
    }
    if (bytes >= detail::link_share_bytes) {
        frame f{kind, flags, id, {}};
        f.body.reserve(bytes);
        append(f.body, head);
        append(f.body, body);
        send(std::move(f));
        return;
    }
    ++statistics_.messages_out;
    if (!is_direct()) {
        window_.push(kind, flags, id, head, body);
        push_on();
        return;
    }
    window_.push_handed(kind, flags, id, head, body);
    connection_->send(kind, flags, id, head, body);
}

SKEIN_INLINE void link::send(frame f) {
    check_sendable(f.kind, f.body.size());
    if (resumes_ && f.body.size() < detail::link_share_bytes) {
        send(f.kind, f.flags, f.id, f.body);
        return;
    }
    ++statistics_.messages_out;
    if (!resumes_) {
        connection_->send(std::move(f));
        return;
    }
    window_.push(f.kind, f.flags & static_cast<std::uint16_t>(~body_crc_flag), f.id,
                 std::make_shared<const byte_buffer>(std::move(f.body)));
    push_on();
}

/// Hands the next kept message to the connection.
SKEIN_INLINE void link::hand_out() {
    const auto next = window_.hand_next();
    if (next.large) {
        connection_->send_shared(next.kind, next.flags, next.id, next.large);
    } else {
        connection_->send(next.kind, next.flags, next.id, next.body);
    }
}

/// Hands out what the connection takes now; a task does the rest.
SKEIN_INLINE void link::push_on() {
    const auto takes_more = [&] {
        return connected_ && connection_->is_open() &&
               connection_->queued_bytes() <= how_.queue_bytes;
    };
    if (pumping_ == generation_) return;
    while (window_.has_pending() && takes_more()) hand_out();
    if (!window_.has_pending() || !connected_ || !connection_->is_open()) return;
    pumping_ = generation_;
    spawn(pump(self_, connection_));
}

SKEIN_INLINE task<void> link::pump(core self, connection::handle over) {
    link& l = *self;
    const std::uint64_t mine = l.generation_;
    const auto present = [&] { return l.connected_ && l.connection_ == over; };
    try {
        while (present() && l.window_.has_pending()) {
            auto ready = over->send_ready(l.how_.queue_bytes);
            co_await ready;
            while (present() && over->is_open() && l.window_.has_pending() &&
                   over->queued_bytes() <= l.how_.queue_bytes) {
                l.hand_out();
            }
        }
    } catch (const error&) { // the connection has ended, which is told elsewhere
    }
    if (l.pumping_ == mine) l.pumping_ = 0;
    l.window_change_.wake_all();
}

SKEIN_INLINE std::size_t link::queued_bytes() const noexcept {
    return window_.pending_bytes() + (connected_ ? connection_->queued_bytes() : 0);
}

SKEIN_INLINE void link::flush() noexcept {
    if (connected_) connection_->flush();
}

SKEIN_INLINE task<void> link::send_ready(std::size_t most_queued) {
    const auto keep = self_;
    for (;;) {
        check_sendable(0, 0);
        const bool full =
            window_.messages() > how_.window_messages || window_.bytes() > how_.window_bytes;
        if (!full && queued_bytes() <= most_queued) co_return;
        bool moved = false;
        if (!full && connected_ && !window_.has_pending()) {
            const auto over = connection_;
            try {
                auto ready = over->send_ready(most_queued);
                co_await ready;
                moved = true;
            } catch (const error& e) {
                if (e.code() == errc::cancelled || !resumes_) throw;
            }
        }
        if (moved || state_ != state::open) continue;
        auto change = window_change_.wait();
        co_await change;
    }
}

// --- receiving --------------------------------------------------------------------------------

SKEIN_INLINE void link::on_frame(const frame_view& f) { // the connection's handler holds the link
    try {
        if (f.kind >= first_link_kind) {
            on_own_frame(f);
            return;
        }
        if (got_fin_) throw error(errc::malformed, "a message after the last one");
        ++statistics_.messages_in;
        if (resumes_) count_received(f.body.size());
        deliver(f);
    } catch (...) { // of the handler, too: going on would lose its message
        const error why = to_error(std::current_exception());
        say_goodbye(static_cast<std::uint64_t>(detail::link_verdict::ended), why.text());
        end(why, link_end::here);
    }
}

SKEIN_INLINE void link::count_received(std::size_t bytes) {
    ++received_;
    untold_bytes_ += bytes;
    if (received_ - told_ >= ack_messages_ || untold_bytes_ >= ack_bytes_) {
        acknowledge();
    } else if (!ack_timer_.is_set()) {
        loop_.set_timer(ack_timer_, deadline_after(loop_.now(), how_.ack_after));
    }
}

/// Tells the peer what we have; it leaves with whatever else this turn sends.
SKEIN_INLINE void link::acknowledge() noexcept {
    told_ = received_;
    untold_bytes_ = 0;
    if (!connected_ || !connection_->is_open()) return; // the next hello says it
    try {
        ++statistics_.acks_out;
        connection_->send(detail::link_ack_kind, 0, received_, {});
    } catch (...) {
        break_off(to_error(std::current_exception()));
    }
}

SKEIN_INLINE void link::acknowledge_late() noexcept {
    const auto keep = self_;
    if (resumes_ && told_ != received_) acknowledge();
}

SKEIN_INLINE void link::on_own_frame(const frame_view& f) {
    switch (f.kind) {
    case detail::link_ack_kind:
        if (!resumes_ || !window_.acknowledge(f.id)) {
            throw error(errc::malformed,
                        fmt::format("{} confirms {} messages; {} were sent, {} confirmed",
                                    peer_name_, f.id, window_.pushed(), window_.acknowledged()));
        }
        ++statistics_.acks_in;
        window_change_.wake_all();
        settle();
        return;
    case detail::link_fin_kind:
        if (got_fin_) throw error(errc::malformed, "a link ends twice");
        got_fin_ = true;
        if (resumes_) {
            ++received_;
            acknowledge();
        }
        inbox_.wake_all();
        begin_close();
        settle();
        return;
    case detail::link_goodbye_kind: {
        const std::string why(as_text(f.body.first(std::min<std::size_t>(f.body.size(), 1024))));
        const bool dead = f.id == static_cast<std::uint64_t>(detail::link_verdict::dead);
        end(error(dead ? errc::peer_lost : errc::reset,
                  fmt::format("{} has {}", peer_name_,
                              dead ? "declared this process dead" : "ended the link"))
                .with_cause(why),
            dead ? link_end::declared_dead : link_end::by_peer);
        return;
    }
    default:
        throw error(errc::malformed,
                    fmt::format("unknown link frame {:#x} from {}", f.kind, peer_name_));
    }
}

SKEIN_INLINE void link::deliver(const frame_view& f) {
    if (inbox_.deliver(f) && connected_) connection_->pause_reading();
}

SKEIN_INLINE task<std::optional<frame>> link::receive() {
    const auto keep = self_;
    while (inbox_.is_empty()) {
        if (failure_) throw *failure_;
        if (got_fin_ || state_ == state::ended) co_return std::nullopt;
        auto more = inbox_.wait();
        co_await more;
    }
    std::optional<frame> next(inbox_.take());
    if (inbox_.eases() && connected_) connection_->resume_reading();
    inbox_.wake_next();
    co_return next;
}

SKEIN_INLINE void link::set_handler(unique_function<void(const frame_view&)> handler) {
    const auto keep = self_;
    try {
        inbox_.set_handler(std::move(handler));
    } catch (...) {
        end(to_error(std::current_exception()), link_end::here);
    }
    if (inbox_.eases() && connected_) connection_->resume_reading();
}

SKEIN_INLINE void link::pause_reading() noexcept {
    inbox_.pause();
    if (connected_) connection_->pause_reading();
}

SKEIN_INLINE void link::resume_reading() noexcept {
    if (inbox_.resumes() && connected_) connection_->resume_reading();
}

// --- the end ----------------------------------------------------------------------------------

SKEIN_INLINE void link::begin_close() noexcept {
    if (state_ != state::open) return;
    state_ = state::closing;
    sent_fin_ = true;
    window_change_.wake_all();
    try {
        if (resumes_) {
            window_.push(detail::link_fin_kind, 0, 0, {}, {});
            push_on();
        } else if (connected_) {
            connection_->send(detail::link_fin_kind, 0, 0, {});
        }
    } catch (...) {
        break_off(to_error(std::current_exception()));
    }
}

/// Both sides have said that no more comes, and both have it all.
SKEIN_INLINE bool link::is_concluded() const noexcept {
    return sent_fin_ && got_fin_ && window_.messages() == 0;
}

/// When all is done, the connection is closed; its goodbyes are the end.
SKEIN_INLINE void link::settle() {
    if (state_ != state::closing || finishing_ || !connected_ || !is_concluded()) return;
    finishing_ = true;
    spawn(finish(connection_));
}

SKEIN_INLINE task<void> link::finish(connection::handle over) {
    auto closing = over->close(); // on_connection_end says what came of it
    co_await closing;
}

SKEIN_INLINE task<void> link::close() {
    const auto keep = self_;
    begin_close();
    if (inbox_.is_held()) { // what the peer still sends is not wanted, its goodbye is
        inbox_.discard();
        inbox_.clear();
        if (connected_) connection_->resume_reading();
    }
    const time_span limit =
        options_.bounds.close_deadline +
        (resumes_ ? std::min(how_.resume_within, how_.part_within) : time_span());
    try {
        auto ending = with_timeout(wait_closed(), limit);
        co_await ending;
    } catch (const error& e) {
        const bool cancelled = e.code() == errc::cancelled;
        const auto left = window_.messages();
        end(error(cancelled ? errc::cancelled : errc::timeout,
                  fmt::format("close of the link to {} {}, {} messages were not confirmed",
                              peer_name_, cancelled ? "was cancelled" : "took too long", left)),
            link_end::here);
    }
    try {
        auto joining = shield(tasks_.join());
        co_await joining;
    } catch (const std::exception&) { // the tasks report through end()
    }
}

SKEIN_INLINE void link::say_goodbye(std::uint64_t verdict, const std::string& why) noexcept {
    if (!connected_ || !connection_->is_open()) return;
    try {
        const auto over = connection_;
        over->send(detail::link_goodbye_kind, 0, verdict,
                   as_bytes(std::string_view(why).substr(0, 1024)));
        over->flush();
    } catch (const std::exception&) { // it is a courtesy
    }
}

SKEIN_INLINE void link::abort(error why) noexcept {
    if (state_ == state::ended) return;
    const auto keep = self_;
    say_goodbye(static_cast<std::uint64_t>(detail::link_verdict::ended), why.text());
    end(std::move(why), link_end::here);
}

SKEIN_INLINE void link::declare_dead(std::string why) noexcept {
    if (state_ == state::ended) return;
    const auto keep = self_;
    say_goodbye(static_cast<std::uint64_t>(detail::link_verdict::dead), why);
    end(error(errc::peer_lost, peer_name_ + " was declared dead").with_cause(std::move(why)),
        link_end::declared_dead);
}

SKEIN_INLINE void link::end(std::optional<error> why, link_end how) noexcept {
    if (state_ == state::ended) return;
    const auto keep = self_;
    state_ = state::ended;
    ending_ = how;
    if (why) failure_ = std::move(*why);
    deadline_.cancel();
    ack_timer_.cancel();
    connected_ = false;
    if (connection_) {
        connection_->set_closed_handler(nullptr);
        connection_->abort(failure_ ? *failure_ : error(errc::closed, "the link has ended"));
        loop_.post([last = std::move(connection_)] {}); // it may be calling us
    }
    if (tables_) tables_->leave(*this);
    window_.clear();
    tasks_.cancel();
    window_change_.wake_all();
    inbox_.wake_all();
    ended_.set();
    closed_.tell(failure_ ? &*failure_ : nullptr);
    if (parts_ == 0) release();
}

SKEIN_INLINE void link::set_closed_handler(unique_function<void(const error*)> handler) {
    if (state_ == state::ended) {
        if (handler) handler(failure_ ? &*failure_ : nullptr);
        return;
    }
    closed_.set(std::move(handler));
}

SKEIN_INLINE task<void> link::wait_closed() {
    const auto keep = self_;
    auto ended = ended_.wait();
    co_await ended;
}

/// Runs work as a part of the link, which lives until all of them have ended.
SKEIN_INLINE void link::spawn(task<void> work) {
    if (state_ == state::ended) return;
    ++parts_;
    tasks_.spawn(part(self_, std::move(work)));
}

SKEIN_INLINE task<void> link::part(core self, task<void> work) {
    try {
        co_await work;
    } catch (...) {
        const error why = to_error(std::current_exception());
        if (why.code() != errc::cancelled) self->end(why, link_end::here);
    }
    work = {};
    if (--self->parts_ == 0 && self->state_ == state::ended) self->release();
}

/// The link lets itself go when its scope has seen the end of the last task.
SKEIN_INLINE void link::release() noexcept {
    loop_.post([last = std::move(self_)] {
        if (last) last->inbox_.drop_handler();
    });
}

} // namespace skein::net
