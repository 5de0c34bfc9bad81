// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a net::link gets its connections: the first one, and another after each break. Comes after
// detail/link.ipp.

#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/dial.hpp>
#include <skein/net/handshake.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include <fmt/core.h>

namespace skein::net {

namespace detail {

SKEIN_INLINE std::uint64_t draw_number(random_source& random) {
    for (;;) {
        if (const auto n = random.next()) return n;
    }
}

/// A connection that has lived for less broke soon.
SKEIN_INLINE duration short_life(duration resume_within) noexcept {
    return std::min<duration>(resume_within, time_constants::lan().stalled_after) / 8;
}

} // namespace detail

SKEIN_INLINE link::link(connection_options options, link_options how, bool dialling)
    : loop_(loop::current()), options_(std::move(options)), how_(how), dialling_(dialling),
      ours_(how.incarnation != 0 ? how.incarnation : detail::draw_number(loop_.random())),
      inbox_(options_.bounds.max_receive_queue) {}

SKEIN_INLINE link::handle link::handle_of(core made) {
    link* const raw = made.get();
    return handle(raw, [made = std::move(made)](link* l) {
        l->closed_.set(nullptr);
        l->abort(error(errc::closed, "the link was dropped without close()"));
    });
}

/// What is known after the first greeting.
SKEIN_INLINE void link::begin(const identity& peer, std::string name, std::uint64_t incarnation,
                              bool resumes, std::uint64_t window_messages,
                              std::uint64_t window_bytes) {
    answered_ = true;
    peer_ = peer;
    peer_name_ = std::move(name);
    theirs_ = incarnation;
    resumes_ = resumes;
    // The peer must hear of its messages long before its window is full.
    ack_messages_ = std::clamp<std::uint64_t>(window_messages / 4, 1, how_.ack_messages);
    ack_bytes_ =
        static_cast<std::size_t>(std::clamp<std::uint64_t>(window_bytes / 4, 1, how_.ack_bytes));
}

// --- the dialling side ------------------------------------------------------------------------

SKEIN_INLINE task<link::handle> link::connect(network& via, address to, connection_options options,
                                              link_options how) {
    const core made(new link(std::move(options), how, true));
    made->via_ = &via;
    made->to_ = std::move(to);
    made->number_ = detail::draw_number(made->loop_.random());
    made->peer_name_ = to_string(made->to_);
    made->self_ = made;
    const handle out = handle_of(made); // a failure drops it
    auto dialing = made->dial_first(made);
    co_await dialing;
    co_return out;
}

SKEIN_INLINE task<void> link::dial_first(core self) {
    const auto& policy = how_.first;
    for (int tries = 1;; ++tries) {
        std::optional<error> fault;
        try {
            auto once =
                dial_once(self, policy.connect_timeout + options_.bounds.handshake_deadline);
            co_await once;
            co_return;
        } catch (const error& e) {
            fault = e;
        }
        const auto pause = policy.delay(tries, loop_.random());
        const bool no_more = policy.max_tries != 0 && tries >= policy.max_tries;
        if (no_more || state_ == state::ended || !policy.worth_another(fault->code()) ||
            deadline_after(loop_.now(), pause) >= policy.until) {
            throw *fault;
        }
        auto sleeping = sleep_for(pause);
        co_await sleeping;
    }
}

SKEIN_INLINE detail::link_hello link::hello() const {
    detail::link_hello h;
    h.from = ours_;
    h.to = theirs_ != 0 ? theirs_ : how_.expect;
    h.number = number_;
    h.generation = generation_;
    h.received = received_;
    h.window_messages = how_.window_messages;
    h.window_bytes = how_.window_bytes;
    h.fresh = !answered_;
    return h;
}

/// Dials, says hello, and takes the answer.
SKEIN_INLINE task<void> link::dial_once(core self, duration limit) {
    link& l = *self;
    const auto until = deadline_after(l.loop_.now(), limit);
    ++l.generation_;
    auto dialing = with_deadline(
        detail::dial_once(l.via_, &l.to_, &l.options_, l.how_.first.connect_timeout), until);
    auto made = co_await dialing;
    const bool local = made.stream->is_local();
    const auto over = connection::over(std::move(made.stream), l.options_, std::move(made.peer));
    auto h = l.hello();
    h.resume = l.answered_ ? l.resumes_
                           : l.how_.resume == resume_mode::on ||
                                 (l.how_.resume == resume_mode::automatic && !local);
    over->send(detail::link_hello_kind, 0, 0, wire::encode(h));
    auto waiting = with_deadline(over->receive(), until);
    const auto first = co_await waiting;
    if (!first) throw error(errc::reset, over->peer_name() + " said goodbye instead of hello");
    auto answer = detail::read_greeting<detail::link_answer>(*first);
    if (!answer) {
        over->abort(answer.error());
        throw answer.error();
    }
    l.take_answer(*answer, over);
}

namespace detail {

/// What an answer means for the link that asked.
SKEIN_INLINE link_end end_of(link_verdict v) noexcept {
    switch (v) {
    case link_verdict::restarted: return link_end::restarted;
    case link_verdict::forgotten: return link_end::forgotten;
    case link_verdict::closed:
    case link_verdict::ended: return link_end::by_peer;
    case link_verdict::dead: return link_end::declared_dead;
    case link_verdict::no_place:
    case link_verdict::not_allowed: return link_end::refused;
    case link_verdict::good:
    case link_verdict::stale: break;
    }
    return link_end::none;
}

SKEIN_INLINE error error_of(const link_answer& a, const std::string& peer) {
    const auto make = [&](errc code, std::string_view text) {
        error e(code, fmt::format("{} {}", peer, text));
        if (!a.why.empty()) e.with_cause(a.why);
        return e;
    };
    switch (static_cast<link_verdict>(a.verdict)) {
    case link_verdict::stale: return make(errc::reset, "knows a newer connection of this link");
    case link_verdict::restarted:
        return make(errc::peer_lost, "is another process than before: the one we knew has ended")
            .with_hint("it was started again, or another program listens there now");
    case link_verdict::forgotten:
        return make(errc::peer_lost, "has forgotten the link")
            .with_hint("it waited for us for as long as its options say, then it gave us up");
    case link_verdict::closed: return make(errc::reset, "has closed the link");
    case link_verdict::ended: return make(errc::reset, "has ended the link");
    case link_verdict::dead: return make(errc::peer_lost, "has declared this process dead");
    case link_verdict::no_place: return make(errc::exhausted, "has no place for another link");
    default: return make(errc::refused, "refuses the link");
    }
}

} // namespace detail

SKEIN_INLINE void link::take_answer(const detail::link_answer& a, connection::handle over) {
    if (state_ == state::ended) throw error(errc::closed, "the link has ended");
    const auto verdict = static_cast<detail::link_verdict>(a.verdict);
    const bool good = verdict == detail::link_verdict::good;
    const bool other = answered_ && a.incarnation != theirs_;
    generation_ = std::max(generation_, a.generation);
    // The peer may have ended the link in order before we heard of it.
    if (verdict == detail::link_verdict::closed && answered_ && !other &&
        window_.acknowledge(a.received) && is_concluded()) {
        end(std::nullopt, link_end::orderly);
        return;
    }
    if (!good || other) {
        detail::link_answer told = a;
        if (other) told.verdict = static_cast<std::uint8_t>(detail::link_verdict::restarted);
        const error why = detail::error_of(told, over->peer_name());
        const auto how = detail::end_of(static_cast<detail::link_verdict>(told.verdict));
        over->abort(why);
        if (how != link_end::none && answered_) {
            is_concluded() ? end(std::nullopt, link_end::orderly) : end(why, how);
        }
        throw why;
    }
    if (!window_.can_acknowledge(a.received)) {
        error why(errc::malformed,
                  fmt::format("{} has {} messages of a link; {} were sent, {} confirmed",
                              over->peer_name(), a.received, window_.pushed(),
                              window_.acknowledged()));
        over->abort(why);
        end(why, link_end::refused);
        throw why;
    }
    if (!answered_) {
        begin(over->peer(), over->peer_name(), a.incarnation, a.resume, a.window_messages,
              a.window_bytes);
    }
    attach(std::move(over), a.received);
}

SKEIN_INLINE task<void> link::dial_again(core self) {
    link& l = *self;
    reconnect_policy pauses = l.how_.first;
    pauses.most_delay =
        std::min<duration>(pauses.most_delay, detail::short_life(l.how_.resume_within));
    bool was_connected = true;
    std::optional<time_point> refused_since;
    for (int tries = 1; l.state_ != state::ended && !l.connected_; ++tries) {
        if (std::exchange(was_connected, false) && l.short_lived_ > 1) { // it breaks what it takes
            auto rest = sleep_for(pauses.delay(l.short_lived_ - 1, l.loop_.random()));
            co_await rest;
            if (l.state_ == state::ended) break;
        }
        std::optional<error> fault;
        try {
            auto once = dial_once(self, l.how_.attempt_timeout);
            co_await once;
            if (l.connected_) break;
            was_connected = true;
            continue;
        } catch (const error& e) {
            fault = e;
        }
        if (l.state_ == state::ended) break;
        if (fault->code() == errc::permission_denied || fault->code() == errc::mismatch) {
            l.end(error(errc::peer_lost, "another process answers for " + l.peer_name_)
                      .with_cause(fault->what()),
                  link_end::restarted);
            break;
        }
        if (fault->code() != errc::refused)
            refused_since.reset();
        else if (!refused_since)
            refused_since = l.loop_.now();
        else if (l.loop_.now() - *refused_since >= l.how_.refused_within) {
            l.end(error(errc::peer_lost, fmt::format("nobody listens at {} any more: {} has ended",
                                                     to_string(l.to_), l.peer_name_))
                      .with_cause(fault->what()),
                  link_end::deadline);
            break;
        }
        l.break_ = *fault;
        auto pause = sleep_for(pauses.delay(tries, l.loop_.random()));
        co_await pause;
    }
    l.dialing_again_ = false;
}

// --- both sides -------------------------------------------------------------------------------

/// From now on the link lives on this connection; the one before, if it lives, is cut off.
SKEIN_INLINE void link::attach(connection::handle over, std::uint64_t peer_has) {
    const auto keep = self_;
    if (connection_) {
        connection_->set_closed_handler(nullptr);
        connection_->abort(error(errc::reset, "a newer connection has taken its place"));
        loop_.post([last = std::move(connection_)] {});
    }
    deadline_.cancel();
    connection_ = std::move(over);
    peer_host_ = connection_->peer_host();
    connected_ = true;
    attached_ = loop_.exact_now();
    finishing_ = false;
    if (break_) {
        ++statistics_.resumes;
        logging::debug("net", "link resumed",
                       {{"peer", peer_name_}, {"breaks", statistics_.breaks}});
    }
    break_.reset();
    told_ = received_; // the greeting has said it
    untold_bytes_ = 0;
    if (resumes_) {
        const bool sound = window_.acknowledge(peer_has);
        SKEIN_CHECK(sound, "{} of {} messages", peer_has, window_.pushed());
        window_.rewind();
        statistics_.sent_again += window_.messages();
    }
    const std::uint64_t mine = generation_;
    if (inbox_.is_held()) connection_->pause_reading();
    const auto now = connection_; // a handler may end or replace it
    now->set_closed_handler(
        [self = keep, mine](const error* why) { self->on_connection_end(mine, why); });
    now->set_handler([self = keep, mine](const frame_view& f) {
        if (self->connected_ && self->generation_ == mine) self->on_frame(f);
    });
    if (!connected_ || connection_ != now) return;
    push_on();
    window_change_.wake_all();
    settle();
}

SKEIN_INLINE void link::on_connection_end(std::uint64_t generation, const error* why) noexcept {
    if (generation != generation_ || !connected_ || state_ == state::ended) return;
    break_off(why != nullptr ? *why
                             : error(errc::reset, peer_name_ + " has closed the connection"));
}

/// The connection is gone. Whoever has everything ends; the others wait for a new one.
SKEIN_INLINE void link::break_off(error why) noexcept {
    if (state_ == state::ended || !connected_) return;
    const auto keep = self_;
    const bool clean = connection_->failure() == std::nullopt && !connection_->is_open();
    connected_ = false;
    finishing_ = false;
    if (is_concluded() && (clean || !resumes_ || !dialling_)) {
        end(std::nullopt, link_end::orderly);
        return;
    }
    if (!resumes_) {
        end(std::move(why), link_end::broken);
        return;
    }
    ++statistics_.breaks;
    logging::debug("net", "link broken", {{"peer", peer_name_}, {"why", why.what()}});
    const bool soon = loop_.exact_now() - attached_ < detail::short_life(how_.resume_within);
    short_lived_ = soon ? std::min(short_lived_ + 1, 64) : 0;
    connection_->set_closed_handler(nullptr);
    connection_->abort(why);
    break_ = std::move(why);
    loop_.set_timer(deadline_, deadline_after(loop_.exact_now(), how_.resume_within));
    window_change_.wake_all();
    if (dialling_) {
        if (!std::exchange(dialing_again_, true)) spawn(dial_again(self_));
    } else if (!tables_ || !tables_->wait_for(*this)) {
        end(error(errc::peer_lost, "the connection to " + peer_name_ + " broke")
                .with_cause(break_->what()),
            link_end::broken);
    }
}

SKEIN_INLINE void link::come_back_too_late() noexcept {
    const auto keep = self_;
    if (is_concluded()) {
        end(std::nullopt, link_end::orderly);
        return;
    }
    error why(errc::peer_lost, fmt::format("{} did not come back within {:.3g} s", peer_name_,
                                           to_seconds(how_.resume_within)));
    if (break_) why.with_cause(break_->what());
    why.with_hint("its process or host is gone, or the network between is");
    end(std::move(why), link_end::deadline);
}

} // namespace skein::net
