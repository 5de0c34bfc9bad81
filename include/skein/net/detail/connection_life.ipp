// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a net::connection begins and ends; comes after detail/connection.ipp.

#include <skein/core/log.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/handshake.hpp>

#include <exception>
#include <utility>

#include <fmt/core.h>

namespace skein::net {

SKEIN_INLINE connection::~connection() = default;

// --- making one -------------------------------------------------------------------------------

SKEIN_INLINE task<connection::handle> connection::connect(network& via, address to,
                                                          connection_options options) {
    auto dialing = dial(via, std::move(to), options);
    auto made = co_await dialing;
    co_return over(std::move(made.stream), std::move(options), std::move(made.peer));
}

SKEIN_INLINE task<connection::handle> connection::accept(std::unique_ptr<stream> from,
                                                         connection_options options,
                                                         byte_buffer first, admission* place) {
    auto greeting = authenticate(*from, side::accepting, options, std::move(first), place);
    identity peer = co_await greeting;
    co_return over(std::move(from), std::move(options), std::move(peer));
}

SKEIN_INLINE connection::connection(std::unique_ptr<stream> over, connection_options options,
                                    identity peer)
    : loop_(loop::current()), stream_(std::move(over)), options_(std::move(options)),
      peer_(std::move(peer)), peer_name_(to_string(peer_) + " over " + stream_->peer_name()),
      peer_host_(stream_->peer_host()), local_(stream_->is_local()), in_(detail::read_buffer_bytes),
      inbox_(options_.bounds.max_receive_queue), last_heard_(loop_.now()),
      last_taken_(loop_.now()) {
    const auto& alive = options_.alive;
    const bool on = alive.mode == keep_alive_mode::on ||
                    (alive.mode == keep_alive_mode::automatic && !stream_->is_local());
    if (on) {
        timer_due_ = deadline_after(last_heard_, alive.ping_after);
        loop_.set_timer(timer_, timer_due_);
    }
}

SKEIN_INLINE connection::handle connection::over(std::unique_ptr<stream> authenticated,
                                                 connection_options options, identity peer) {
    std::shared_ptr<connection> core(
        new connection(std::move(authenticated), std::move(options), std::move(peer)));
    core->self_ = core;
    core->parts_ = 2;
    core->tasks_.spawn(read_loop(core));
    core->tasks_.spawn(write_loop(core));
    // What users hold: when the last of them lets go, the connection ends.
    return handle(core.get(), [core](connection* c) {
        c->closed_.set(nullptr);
        c->end(error(errc::closed, "the connection was dropped without close()"));
    });
}

// --- life and end -----------------------------------------------------------------------------

SKEIN_INLINE void connection::begin_goodbye() noexcept {
    if (state_ != state::open) return;
    state_ = state::closing;
    send_control(goodbye);
    sent_goodbye_ = true;
    drained_.wake_all();
}

/// Both sides have said goodbye and all our bytes are out: the orderly end.
SKEIN_INLINE void connection::maybe_finished() noexcept {
    if (got_goodbye_ && sent_goodbye_ && is_drained()) end(std::nullopt);
}

SKEIN_INLINE void connection::end(std::optional<error> why) noexcept {
    if (state_ == state::ended) return;
    const auto keep = self_;
    state_ = state::ended;
    if (why) failure_ = std::move(*why);
    timer_.cancel();
    idle_.cancel();
    hook_.unlink();
    if (stream_) {
        if (!failure_) stream_->close_send();
        stream_->close();
    }
    out_.clear();
    wake_writer_.set();
    resumed_.set();
    drained_.wake_all();
    inbox_.wake_all();
    ended_.set();
    closed_.tell(failure_ ? &*failure_ : nullptr);
}

SKEIN_INLINE void connection::set_closed_handler(unique_function<void(const error*)> handler) {
    if (state_ == state::ended) {
        if (handler) handler(failure_ ? &*failure_ : nullptr);
        return;
    }
    closed_.set(std::move(handler));
}

/// The last loop to end lets the stream go at once (the world may end before the next turn), and
/// the connection itself when the scope has seen the end of its child.
SKEIN_INLINE void connection::part_ended() noexcept {
    if (--parts_ > 0) return;
    stream_.reset();
    loop_.post([last = std::move(self_)] { last->inbox_.drop_handler(); });
}

SKEIN_INLINE task<void> connection::wait_closed() {
    const auto keep = self_;
    auto ended = ended_.wait();
    co_await ended;
}

SKEIN_INLINE task<void> connection::close() {
    const auto keep = self_;
    begin_goodbye();
    if (inbox_.is_held()) { // what the peer still sends is not wanted, its goodbye is
        inbox_.discard();
        resumed_.set();
    }
    try {
        auto ending = with_timeout(wait_closed(), options_.bounds.close_deadline);
        co_await ending;
    } catch (const error& e) {
        if (e.code() == errc::cancelled) {
            end(error(errc::cancelled,
                      "close of the connection to " + peer_name_ + " was cancelled"));
        } else {
            logging::debug("net", "no goodbye in time", {{"peer", peer_name_}});
            end(std::nullopt);
        }
    }
    try {
        auto joining = shield(tasks_.join());
        co_await joining;
    } catch (const std::exception&) { // the loops report through end()
    }
}

/// Whether the peer is given up: too long silent, or, while we do not listen, too long without
/// taking a byte of what waits for it.
SKEIN_INLINE std::optional<error> connection::judge(time_point now) {
    const auto& alive = options_.alive;
    // If this process itself was stopped or busy, the peer's words may wait in our buffers.
    const bool late = now - timer_due_ > alive.ping_after;
    if (inbox_.is_held() || late) last_heard_ = now;
    if (late || is_drained() || written_total_ != std::exchange(written_at_tick_, written_total_))
        last_taken_ = now;
    const duration silence = now - last_heard_;
    if (silence >= alive.dead_after) {
        return error(errc::peer_lost,
                     fmt::format("{} is silent for {:.2f} s", peer_name_, to_seconds(silence)))
            .with_hint("its host is down, cut off, or its process is stopped");
    }
    if (inbox_.is_held() && now - last_taken_ >= alive.stalled_after) {
        return error(errc::peer_lost,
                     fmt::format("{} has taken none of {} bytes for {:.2f} s", peer_name_,
                                 queued_bytes(), to_seconds(now - last_taken_)))
            .with_hint("its host is down, its process is stopped, or it has ceased to read");
    }
    suspect_ = silence >= alive.suspect_after;
    if (alive.unconfirmed_after == duration::max()) return std::nullopt;
    // What is sent after a pause waits for a moment, too: a second look, and a third.
    const bool stuck = !late && stream_->unconfirmed() >= alive.ping_after;
    unconfirmed_ticks_ = stuck ? unconfirmed_ticks_ + 1 : 0;
    if (stuck && alive.ping_after * unconfirmed_ticks_ >= alive.unconfirmed_after) {
        return error(errc::peer_lost, fmt::format("{}: its host has confirmed nothing for {:.0f} s",
                                                  peer_name_, to_seconds(stream_->unconfirmed())))
            .with_hint("its host is down or cut off, or something between has forgotten us");
    }
    return std::nullopt;
}

SKEIN_INLINE void connection::on_timer() {
    const auto keep = self_;
    const auto& alive = options_.alive;
    const auto now = loop_.now();
    if (auto why = judge(now)) {
        end(std::move(*why));
        return;
    }
    // A side that said nothing for a period gives a sign of life: its peer may be busy sending, and
    // a ping would wait behind all of that.
    const bool mute = queued_total_ == queued_at_tick_ && is_drained();
    if (now - last_heard_ >= alive.ping_after && !inbox_.is_held()) {
        send_control(ping);
    } else if (mute) {
        send_control(pong);
    }
    queued_at_tick_ = queued_total_;
    timer_due_ = deadline_after(now, alive.ping_after);
    loop_.set_timer(timer_, timer_due_);
}

} // namespace skein::net
