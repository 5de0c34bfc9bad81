// SPDX-License-Identifier: Apache-2.0
#pragma once
// One connection: read, judge, answer, again.

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/error.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/metric_registry.hpp>
#include <skein/core/one_more.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/acceptor.hpp>
#include <skein/net/detail/http_client.hpp>

#include <array>
#include <exception>
#include <string>
#include <utility>

#include <fmt/core.h>

namespace skein::net {
namespace detail {

/// Few codes: each is a number of its own.
inline void count_answer(int status) {
    metric_registry::process()
        .counter("skein_http_requests_total", "Requests that were answered, by status code.",
                 {{"code", std::to_string(status)}})
        .add();
}

SKEIN_INLINE task<http_answer> give(http_answer what) { co_return what; }

/// On every response. What a script of ours may load, and nobody may frame.
SKEIN_INLINE void add_guards(wire::http_pairs& to) {
    to.emplace_back("Content-Security-Policy",
                    "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
                    "form-action 'none'; object-src 'none'");
    to.emplace_back("X-Content-Type-Options", "nosniff");
    to.emplace_back("X-Frame-Options", "DENY");
    to.emplace_back("Referrer-Policy", "no-referrer");
    to.emplace_back("Cross-Origin-Resource-Policy", "same-origin");
    to.emplace_back("Cross-Origin-Opener-Policy", "same-origin");
    to.emplace_back("Cache-Control", "no-store");
}

/// One event on the wire; lines of its data are lines of the stream.
SKEIN_INLINE std::string event_text(const http_event& e) {
    std::string out;
    const auto field = [&](std::string_view name, std::string_view value) {
        out += name;
        for (const char c : value) out += c == '\n' || c == '\r' || c == '\0' ? ' ' : c;
        out += '\n';
    };
    if (!e.id.empty()) field("id: ", e.id);
    if (!e.kind.empty()) field("event: ", e.kind);
    for (std::string_view left = e.data;;) {
        const auto end = left.find('\n');
        field("data: ", left.substr(0, end));
        if (end == std::string_view::npos) break;
        left.remove_prefix(end + 1);
    }
    return out + '\n';
}

/// The end of a stream of events, as an error for with_scope.
SKEIN_INLINE error over() { return error(errc::closed, "the stream of events is over"); }

/// Nothing more may come from who reads events; its end ends the stream.
SKEIN_INLINE task<void> watch_for_end(stream* from) {
    constexpr std::size_t most = 64 << 10;
    std::array<std::byte, 512> into{};
    for (std::size_t all = 0; all < most;) {
        auto reading = from->read_some(into);
        const auto n = co_await reading;
        if (n == 0) break;
        all += n;
    }
    throw over();
}

/// Lets the client read the last response before the stream ends: bytes of it that nobody has read
/// would make its kernel drop that.
SKEIN_INLINE task<void> drain(stream* from, mut_byte_span into) {
    constexpr std::size_t most = 4 << 20;
    for (std::size_t all = 0; all < most;) {
        auto reading = from->read_some(into);
        const auto n = co_await reading;
        if (n == 0) co_return;
        all += n;
    }
}

SKEIN_INLINE task<void> wait_in_line(wait_queue* line) {
    auto turn = line->wait();
    co_await turn;
}

SKEIN_INLINE bool is_of_client(const error& fault) {
    return fault.code() == errc::reset || fault.code() == errc::closed ||
           fault.code() == errc::timeout || fault.code() == errc::io;
}

} // namespace detail

SKEIN_INLINE http_server::http_server(http_router routes, http_server_options how)
    : how_(std::move(how)), routes_(std::move(routes)),
      places_(std::make_unique<detail::http_places>(how_.most_connections, how_.kept_to_change,
                                                    how_.most_streams)) {
    if (!detail::is_cookie_name(how_.cluster))
        throw error(errc::invalid_argument,
                    "the cluster id " + how_.cluster + " cannot be part of a cookie's name");
    detail::check_key(how_.keys.view, "view");
    detail::check_key(how_.keys.submit, "submit");
    cookie_name_ = how_.cluster.empty() ? "skein" : "skein_" + how_.cluster;
    routes_.add("GET", "/healthz", http_right::open, [](http_call) {
        wire::http_response ok;
        ok.type = "text/plain; charset=utf-8";
        ok.body = "ok\n";
        return detail::give(http_answer(std::move(ok)));
    });
    routes_.add("GET", "/login", http_right::open,
                [this](http_call c) { return detail::give(http_answer(log_in(c.request))); });
}
SKEIN_INLINE http_server::~http_server() = default;
SKEIN_INLINE std::size_t http_server::connections() const noexcept { return places_->taken(); }

SKEIN_INLINE task<void> http_server::serve(std::unique_ptr<stream> with, byte_buffer first,
                                           admission* place) {
    auto peer = peer_of(*with);
    return serve(std::move(with), std::move(first), std::move(peer), place);
}

SKEIN_INLINE task<void> http_server::serve(std::unique_ptr<stream> with, byte_buffer first,
                                           http_peer peer, admission* place) {
    client c(*this, std::move(with), std::move(peer), place);
    const bool fits = place != nullptr || places_->count(c.here); // by the door, or by us
    c.parser.feed(first);
    try {
        auto talking = with_cancel(c.here.token(), fits ? talk(&c) : say_full(&c));
        co_await talking;
        if (!c.gone) {
            c.with->close_send();
            auto draining =
                with_timeout(detail::drain(c.with.get(), c.into), std::chrono::seconds(1));
            co_await draining;
        }
    } catch (const error& fault) {
        if (!c.here.has_gone() && !detail::is_of_client(fault)) throw;
    }
}

SKEIN_INLINE task<void> http_server::say_full(client* c) {
    auto& self = c->server;
    ++self.refused_;
    c->open = false;
    auto why = detail::refusal(503, errc::exhausted,
                               fmt::format("{} clients are connected", self.places_->taken()),
                               "close some pages of the dashboard, or try again");
    auto telling = respond(c, std::move(why), false);
    co_await telling;
}

/// A burst of requests is answered soon: few wait for that, and for a short time.
SKEIN_INLINE task<bool> http_server::take_place(client* c, http_right right) {
    constexpr std::size_t most_waiting = 64;
    auto& places = *c->server.places_;
    if (places.take(c->here, right)) co_return true;
    if (places.waiting >= most_waiting) co_return false;
    const one_more here(places.waiting);
    const auto until = deadline_after(loop::current().now(), c->server.how_.place_within);
    for (bool late = false; !late;) {
        auto waiting = as_result(with_deadline(detail::wait_in_line(&places.changed), until));
        const auto woken = co_await waiting;
        if (!woken && woken.error().code() != errc::timeout) throw woken.error();
        if (places.take(c->here, right)) co_return true;
        late = !woken;
    }
    co_return false;
}

SKEIN_INLINE task<void> http_server::talk(client* c) {
    while (c->open) {
        auto answering = one_request(c);
        co_await answering;
        c->fresh = false;
    }
}

SKEIN_INLINE task<void> http_server::one_request(client* c) {
    if (!c->fresh) c->does(detail::http_doing::resting);
    auto header = read_until(c, wire::http_stage::header);
    if (!co_await header) co_return;
    c->does(detail::http_doing::answering);
    if (c->place != nullptr) c->place->greeted();
    auto v = c->server.judge(c->parser.request(), c->peer);
    if (v.has_key && c->place != nullptr) {
        c->place->authenticated();
        auto placing = take_place(c, v.right);
        if (!co_await placing) {
            auto telling = say_full(c);
            co_await telling;
            co_return;
        }
    }
    const bool asked_to_keep = c->parser.request().keep_alive;
    if (v.reply) {
        c->server.refused_ += v.is_refusal ? 1 : 0;
        const auto stage = c->parser.advance();
        const bool whole = stage && *stage == wire::http_stage::complete;
        if (whole) (void)c->parser.take();
        const bool keep = asked_to_keep && whole && (v.has_key || !v.is_refusal);
        auto telling = respond(c, std::move(*v.reply), keep, v.is_head);
        co_await telling;
        co_return;
    }
    const auto stage = c->parser.advance();
    if (stage && *stage == wire::http_stage::more && c->parser.request().expects_continue) {
        auto telling = send(c, "HTTP/1.1 100 Continue\r\n\r\n", {});
        co_await telling;
    }
    auto body = read_until(c, wire::http_stage::complete);
    if (!co_await body) co_return;
    auto answering = answer_call(c, std::move(v.to), v.right);
    co_await answering;
}

/// Reads until the request is so far; false: it will not be, and that was said.
SKEIN_INLINE task<bool> http_server::read_until(client* c, wire::http_stage wanted) {
    const auto& how = c->server.how_;
    const bool header = wanted == wire::http_stage::header;
    std::optional<time_point> until;
    for (;;) {
        const auto stage = c->parser.advance();
        if (!stage) {
            ++c->server.refused_;
            auto telling =
                respond(c, wire::error_response(stage.error(), c->parser.status()), false);
            co_await telling;
            co_return false;
        }
        if (*stage == wanted) co_return true;
        const auto now = loop::current().now();
        const bool idle = c->parser.is_idle();
        if (!idle && !until)
            until = deadline_after(now, header ? how.header_within : how.body_within);
        const auto limit =
            until ? *until : deadline_after(now, c->fresh ? how.header_within : how.idle);
        std::size_t got = 0;
        bool late = false;
        try {
            auto reading = with_deadline(c->with->read_some(c->into), limit);
            got = co_await reading;
        } catch (const error& e) {
            if (e.code() != errc::timeout) throw;
            late = true;
        }
        if (got > 0) {
            c->parser.feed(byte_span(c->into).first(got));
            continue;
        }
        c->open = false;
        if (!late || idle) co_return false;
        ++c->server.refused_;
        auto why = detail::refusal(408, errc::timeout, "the rest of the request did not come",
                                   "send it at once");
        auto telling = respond(c, std::move(why), false);
        co_await telling;
        co_return false;
    }
}

SKEIN_INLINE task<void> http_server::answer_call(client* c, http_router::match to,
                                                 http_right right) {
    auto* cancel = co_await skein::detail::current_cancel{};
    http_call call;
    call.request = c->parser.take();
    call.parts = std::move(to.parts);
    call.peer = c->peer;
    call.right = right;
    const bool keep = call.request.keep_alive;
    const auto* seen = call.request.header("last-event-id");
    std::string last_id = seen != nullptr ? *seen : std::string();
    ++c->server.answered_;
    auto turn = c->server.turns_.wait(static_cast<std::size_t>(right));
    co_await turn;
    http_answer answer;
    std::optional<error> fault;
    try {
        auto working = with_timeout((*to.handler)(std::move(call)), c->server.how_.answer_within);
        answer = co_await working;
    } catch (...) {
        fault = to_error(std::current_exception(), errc::internal);
    }
    if (fault && fault->code() == errc::cancelled && cancel != nullptr && cancel->requested())
        throw *fault;
    if (fault) answer.response = wire::error_response(*fault);
    if (!fault && answer.events) {
        auto streaming = stream_events(c, std::move(answer), std::move(last_id));
        co_await streaming;
        co_return;
    }
    auto telling = respond(c, std::move(answer.response), keep);
    co_await telling;
}

SKEIN_INLINE task<void> http_server::respond(client* c, wire::http_response answer, bool keep_alive,
                                             bool is_head) {
    detail::count_answer(answer.status);
    detail::add_guards(answer.headers);
    const bool no_body = is_head || answer.status == 204 || answer.status == 304;
    const std::size_t bytes = answer.body.size();
    c->open = keep_alive;
    auto head = wire::head_of(answer, keep_alive, no_body ? nullptr : &bytes);
    auto sending = send(c, std::move(head), no_body ? std::string() : std::move(answer.body));
    co_await sending;
}

SKEIN_INLINE task<void> http_server::send(client* c, std::string head, std::string body) {
    const std::array<byte_span, 2> batch = {as_bytes(head), as_bytes(body)};
    const auto parts = std::span<const byte_span>(batch).first(body.empty() ? 1 : 2);
    c->gone = true; // unless all of it went
    const auto before = c->here.does(detail::http_doing::writing, loop::current().now());
    auto writing = with_timeout(c->with->write_all(parts), c->server.how_.write_within);
    co_await writing;
    c->does(before);
    c->gone = false;
}

// --- events -----------------------------------------------------------------------------------

SKEIN_INLINE task<void> http_server::event_loop(scope& children, client* c, http_events* source,
                                                std::string last_id) {
    children.spawn(detail::watch_for_end(c->with.get()));
    const auto beat = c->server.how_.heartbeat;
    for (;;) {
        std::optional<http_event> next;
        std::optional<error> fault;
        const auto until = deadline_after(loop::current().now(), beat);
        try {
            auto asking = with_deadline((*source)(last_id), until);
            next = co_await asking;
        } catch (const error& e) {
            fault = e;
        }
        const bool silent =
            fault && fault->code() == errc::timeout && loop::current().now() >= until;
        if (fault && fault->code() == errc::cancelled) throw *fault;
        if (fault && !silent) next = http_event(wire::json_of(*fault), {}, "fault");
        if (next && !next->id.empty()) last_id = next->id;
        if (silent || next) {
            auto sending = send(c, silent ? ": still here\n\n" : detail::event_text(*next), {});
            co_await sending;
        }
        if (!silent && (!next || fault)) throw detail::over();
        co_await yield(); // a source that always has one must not keep the loop
    }
}

SKEIN_INLINE task<void> http_server::stream_events(client* c, http_answer answer,
                                                   std::string last_id) {
    c->open = false;
    c->server.places_->streams(c->here);
    answer.response.status = 200;
    detail::count_answer(200);
    answer.response.type = "text/event-stream";
    detail::add_guards(answer.response.headers);
    auto head = wire::head_of(answer.response, false, nullptr);
    auto sending = send(c, std::move(head), "retry: 2000\n\n");
    co_await sending;
    auto streaming = with_scope(&http_server::event_loop, c, &answer.events, std::move(last_id));
    co_await streaming;
}

} // namespace skein::net
