// SPDX-License-Identifier: Apache-2.0
#pragma once
// Calls, their answers, and the two lanes of a link.

#include <skein/core/check.hpp>
#include <skein/core/log.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/detail/request_entry.hpp>
#include <skein/net/detail/request_head.hpp>

#include <algorithm>
#include <bit>
#include <exception>
#include <utility>

#include <fmt/core.h>

namespace skein::net {

namespace detail {

template <class Below>
class request_wire_over final : public request_wire {
public:
    explicit request_wire_over(std::shared_ptr<Below> below) : below_(std::move(below)) {}
    void send(std::uint16_t kind, std::uint16_t flags, std::uint64_t id, byte_span head,
              byte_span body) override {
        below_->send(kind, flags, id, head, body);
    }
    task<void> send_ready(std::size_t most_queued) override {
        return below_->send_ready(most_queued);
    }
    void set_handler(unique_function<void(const frame_view&)> handler) override {
        below_->set_handler(std::move(handler));
    }
    void set_closed_handler(unique_function<void(const error*)> handler) override {
        below_->set_closed_handler(std::move(handler));
    }
    task<void> close() override { return below_->close(); }
    void abort(error why) noexcept override { below_->abort(std::move(why)); }
    [[nodiscard]] std::size_t queued_bytes() const noexcept override {
        return below_->queued_bytes();
    }
    [[nodiscard]] const std::string& peer_name() const noexcept override {
        return below_->peer_name();
    }
    [[nodiscard]] std::uint64_t peer_incarnation() const noexcept override {
        if constexpr (std::is_same_v<Below, link>) return below_->peer_incarnation();
        return 0;
    }

private:
    std::shared_ptr<Below> below_;
};

[[nodiscard]] inline std::optional<time_point> deadline_of(const request_head& head,
                                                           time_point now) {
    if (head.deadline_us == 0) return std::nullopt;
    const auto most = std::uint64_t{1} << 50;
    return deadline_after(now, std::chrono::microseconds(
                                   static_cast<std::int64_t>(std::min(head.deadline_us, most))));
}

} // namespace detail

/// One call that waits; lives in the frame of call_raw.
struct requests::pending {
    event done;
    std::optional<byte_buffer> reply;
    std::optional<error> failure;

    static task<void> wait(pending* self) {
        auto answered = self->done.wait();
        co_await answered;
    }
};

SKEIN_INLINE requests::requests(std::unique_ptr<detail::request_wire> below,
                                std::shared_ptr<request_service> service, request_options options)
    : loop_(loop::current()), below_(std::move(below)), service_(std::move(service)),
      options_(options),
      budget_(service_ ? service_->budget_
                       : std::make_shared<request_budget>(request_budget::most_by_default())),
      held_(budget_->share_of(below_->peer_incarnation())) {
    options_.control_bytes = std::min(options_.control_bytes, detail::most_control_bytes);
    options_.chunk_bytes =
        std::clamp<std::size_t>(options_.chunk_bytes, 1024, detail::most_chunk_bytes);
}
SKEIN_INLINE requests::~requests() = default;

SKEIN_INLINE requests::handle requests::over(link::handle below,
                                             std::shared_ptr<request_service> service,
                                             request_options options) {
    return start(std::make_unique<detail::request_wire_over<link>>(std::move(below)),
                 std::move(service), options);
}
SKEIN_INLINE requests::handle requests::over(connection::handle below,
                                             std::shared_ptr<request_service> service,
                                             request_options options) {
    return start(std::make_unique<detail::request_wire_over<connection>>(std::move(below)),
                 std::move(service), options);
}

SKEIN_INLINE requests::handle requests::start(std::unique_ptr<detail::request_wire> below,
                                              std::shared_ptr<request_service> service,
                                              request_options options) {
    const core made(new requests(std::move(below), std::move(service), options));
    made->self_ = made;
    requests* const raw = made.get();
    raw->below_->set_closed_handler([made](const error* why) { made->on_end(why); });
    if (!raw->ended_) raw->below_->set_handler([made](const frame_view& f) { made->on_frame(f); });
    return handle(raw, [made](requests* r) {
        r->closed_.set(nullptr);
        r->abort(error(errc::closed, "the request layer was dropped without close()"));
    });
}

// --- calling ----------------------------------------------------------------------------------

SKEIN_INLINE void requests::check_open() const {
    if (open_) return;
    if (failure_) throw *failure_;
    throw error(errc::closed, "the link to " + peer_name() + " is closed");
}

SKEIN_INLINE task<byte_buffer> requests::call_raw(std::uint16_t number, byte_buffer body,
                                                  request_call_options how) {
    const core keep = self_;
    check_open();
    std::optional<mutex::guard> turn;
    const std::size_t bytes = detail::request_head::bytes + body.size();
    if (bytes > options_.control_bytes && (call_line_.is_locked() || !may_call(bytes))) {
        const auto begin = loop_.exact_now();
        auto waiting = wait_to_call(this, bytes);
        auto limited =
            how.deadline ? with_timeout(std::move(waiting), *how.deadline) : std::move(waiting);
        turn.emplace(co_await limited);
        if (how.deadline) *how.deadline -= loop_.exact_now() - begin;
    }
    detail::request_head head;
    head.number = number;
    head.generation = how.generation;
    if (how.deadline) {
        head.deadline_us = static_cast<std::uint64_t>(std::max<std::int64_t>(
            1, std::chrono::duration_cast<std::chrono::microseconds>(*how.deadline).count()));
    }
    if (how.key != nullptr) {
        if (how.key->asked_) head.flags |= detail::request_head::repeat;
        head.client = how.key->keys().client();
        head.key = how.key->number();
        head.done_below = how.key->keys().done_below();
    }
    byte_buffer whole(detail::request_head::bytes);
    head.encode(whole.data());
    append(whole, body);
    body = byte_buffer();

    pending mine;
    const std::uint64_t id = ++last_call_;
    struct place {
        requests& r;
        std::uint64_t id;
        ~place() { r.calls_.erase(id); }
    } const place{*this, id};
    calls_.emplace(id, &mine);
    send(detail::request_kind, id, std::move(whole));
    turn.reset();
    if (how.key != nullptr) how.key->asked_ = true;
    std::optional<error> gave_up;
    try {
        auto answered = pending::wait(&mine);
        auto limited =
            how.deadline ? with_timeout(std::move(answered), *how.deadline) : std::move(answered);
        co_await limited;
    } catch (const error& e) {
        gave_up = e;
    }
    if (gave_up && !mine.done.is_set()) {
        drop_transfer(id);
        if (open_) send(detail::cancel_kind, id, {});
        throw *gave_up;
    }
    if (mine.failure) throw *mine.failure;
    co_return std::move(*mine.reply);
}

SKEIN_INLINE void requests::tell_raw(std::uint16_t number, byte_buffer body,
                                     std::uint64_t generation) {
    check_open();
    const std::size_t bytes = detail::request_head::bytes + body.size();
    if (bytes > options_.control_bytes && (call_line_.is_locked() || !may_call(bytes))) {
        throw error(errc::exhausted,
                    fmt::format("a message of {} bytes: {} bytes of large ones wait for {}, "
                                "call_bytes is {}",
                                bytes, call_bytes_, peer_name(), options_.call_bytes))
            .with_hint("call() waits for room, tell() does not");
    }
    detail::request_head head;
    head.number = number;
    head.flags = detail::request_head::one_way;
    head.generation = generation;
    byte_buffer whole(detail::request_head::bytes);
    head.encode(whole.data());
    append(whole, body);
    send(detail::request_kind, ++last_call_, std::move(whole));
}

// --- being called -----------------------------------------------------------------------------

/// Memory follows what has come. What is over the budget is refused at once, and its call fails;
/// the link goes on.
SKEIN_INLINE void requests::keep_piece(byte_span piece) {
    assembly& a = *arriving_;
    a.came += piece.size();
    if (a.refused) return;
    const auto full = over_budget(&request_load::assembling_bytes, piece.size(), false);
    if (!full) {
        append(a.body, piece);
        if (a.held.amount() == 0) a.held = hold(&request_load::assembling_bytes, 0);
        a.held.add(piece.size());
        return;
    }
    a.held.drop();
    a.body = byte_buffer();
    a.refused = true;
    const error why(full->code(), fmt::format("a message of {} bytes: {}", a.total, full->text()));
    if (a.kind == detail::request_kind) {
        refuse(a.id, false, why);
        return;
    }
    const auto found = calls_.find(a.id);
    if (found == calls_.end() || found->second->done.is_set()) return;
    found->second->failure = why;
    found->second->done.set();
}

SKEIN_INLINE void requests::on_frame(const frame_view& f) {
    const core keep = self_;
    switch (f.kind) {
    case detail::chunk_kind:
        if (f.body.size() > detail::most_chunk_bytes + detail::chunk_head_bytes) break;
        on_chunk(f);
        return;
    case detail::request_kind:
    case detail::reply_kind:
    case detail::failure_kind:
    case detail::cancel_kind:
        if (f.body.size() > detail::most_control_bytes) break;
        on_message(f.kind, f.id, f.take_body());
        return;
    default:
        throw error(errc::malformed, fmt::format("a frame of kind {:#x} between requests", f.kind))
            .with_hint("the peer does not speak in requests");
    }
    throw error(errc::too_large, fmt::format("a frame of kind {:#x} with {} bytes from {}", f.kind,
                                             f.body.size(), peer_name()))
        .with_hint("large messages come in chunks");
}

SKEIN_INLINE void requests::on_message(std::uint16_t kind, std::uint64_t id, byte_buffer body) {
    switch (kind) {
    case detail::request_kind: on_request(id, std::move(body)); return;
    case detail::reply_kind: on_answer(id, true, std::move(body)); return;
    case detail::failure_kind: on_answer(id, false, std::move(body)); return;
    case detail::cancel_kind: {
        const auto found = running_.find(id);
        if (found == running_.end()) return;
        found->second.stop.request();
        if (const auto once = found->second.once) {
            running_.erase(found); // nobody answers it any more
            once->leave(this, id);
        }
        return;
    }
    default: throw error(errc::malformed, fmt::format("a large message of kind {:#x}", kind));
    }
}

SKEIN_INLINE void requests::on_answer(std::uint64_t id, bool good, byte_buffer body) {
    const auto found = calls_.find(id);
    if (found == calls_.end()) { // it was given up, or never made
        if (id > last_call_)
            throw error(errc::malformed, "an answer to a call that was never made");
        return;
    }
    pending& p = *found->second;
    if (p.done.is_set()) throw error(errc::malformed, "a second answer to one call");
    if (good) {
        p.reply = std::move(body);
    } else {
        error told(errc::unknown, "");
        const auto read = wire::decode(body, told);
        p.failure = read ? told
                         : error(errc::malformed,
                                 "the error of a call to " + peer_name() + " does not decode")
                               .with_cause(read.error().what());
    }
    p.done.set();
}

SKEIN_INLINE void requests::refuse(std::uint64_t id, bool one_way, const error& why) {
    if (one_way) {
        tell_unheard("message refused", why);
        return;
    }
    send(detail::failure_kind, id, wire::encode(why));
}

namespace detail {
[[nodiscard]] inline error not_handled(std::uint16_t number) {
    return error(errc::not_supported, fmt::format("message {} is not handled here", number))
        .with_hint("the peer is of another version, or in another role");
}
} // namespace detail

/// Keys are the caller's own: those of the peer's incarnation, or of the first name on a plain
/// connection.
SKEIN_INLINE bool requests::speaks_for(std::uint64_t client) noexcept {
    const auto known = below_->peer_incarnation();
    if (known != 0) return client == known;
    if (named_ == 0) named_ = client;
    return client != 0 && client == named_;
}

SKEIN_INLINE void requests::on_request(std::uint64_t id, byte_buffer body) {
    if (!open_) return; // it closes: whoever the handlers are of may be about to go
    if (body.size() < detail::request_head::bytes)
        throw error(errc::malformed, fmt::format("a request of {} bytes", body.size()));
    const auto head = detail::request_head::decode(body.data());
    const bool one_way = (head.flags & detail::request_head::one_way) != 0;
    if (running_.contains(id)) throw error(errc::malformed, "two requests with one number");
    const auto shut_out = service_ ? service_->judge(head.number, body) : std::nullopt;
    if (shut_out) return refuse(id, one_way, *shut_out);
    const auto found =
        service_ ? service_->handlers_.find(head.number) : decltype(service_->handlers_.end()){};
    if (!service_ || found == service_->handlers_.end())
        return refuse(id, one_way, detail::not_handled(head.number));
    if (head.generation != 0 && head.generation < service_->generation_) {
        refuse(id, one_way,
               error(errc::aborted,
                     fmt::format("{} of generation {} comes too late, {} is current",
                                 found->second.name, head.generation, service_->generation_)));
        return;
    }
    if (found->second.at_once) return run_at_once(id, head, body, found->second.at_once);
    if (head.key != 0 && !one_way && !speaks_for(head.client)) {
        const error why(
            errc::permission_denied,
            fmt::format("a key of client {:#x} on the link of {}", head.client, peer_name()));
        tell_unheard("request in another name", why);
        refuse(id, one_way, why);
        return;
    }
    const bool keyed = head.key != 0 && !one_way;
    auto full = over_budget_to_run(body.size() - detail::request_head::bytes);
    const bool crowded = running_.size() >= options_.peer.running; // repeats of one key, too
    if (!full && crowded)
        full =
            net::over_budget(&request_load::running, 1, options_.peer,
                             request_load{.running = running_.size()}, false, peer_name(), false);
    if (full && (!keyed || crowded)) {
        refuse(id, one_way, *full);
        return;
    }
    caller who;
    who.peer = peer_name();
    who.incarnation = below_->peer_incarnation();
    who.generation = head.generation;
    who.deadline = detail::deadline_of(head, loop_.exact_now());
    body.erase(body.begin(), body.begin() + detail::request_head::bytes);
    const auto stop = running_[id].stop.token();
    if (keyed) { // what runs or has run already needs no budget
        auto once = service_->start_or_join(head, std::move(body), std::move(who),
                                            &found->second.run, {self_, id}, std::move(full));
        if (once) running_[id].once = std::move(once);
        return;
    }
    auto place = place_of(body.size());
    spawn(run(self_, id, std::move(body), std::move(who), one_way, &found->second.run, stop,
              std::move(place)));
}

SKEIN_INLINE void requests::run_at_once(std::uint64_t id, const detail::request_head& head,
                                        byte_span body, request_service::plain_handler& handler) {
    const auto service = service_; // the handler is its
    body = body.subspan(detail::request_head::bytes);
    if ((head.flags & detail::request_head::one_way) != 0) {
        (void)handler(body);
        return;
    }
    detail::request_outcome outcome;
    try {
        if (head.key != 0)
            throw error(errc::not_supported, "a call with a key, of what is answered at once");
        outcome.bytes = handler(body);
        outcome.good = true;
    } catch (...) {
        outcome.bytes = wire::encode(to_error(std::current_exception(), errc::remote_exception));
    }
    answer(id, outcome);
}

SKEIN_INLINE task<void> requests::run(core self, std::uint64_t id, byte_buffer body, caller who,
                                      bool one_way, request_service::raw_handler* handler,
                                      cancel_token stop, detail::request_place place) {
    const auto service = self->service_; // the handler is its
    auto running = detail::outcome_of(handler, std::move(body), std::move(who), std::move(stop));
    const auto outcome = co_await running;
    place = {};
    if (!one_way) {
        self->answer(id, outcome);
        co_return;
    }
    self->running_.erase(id);
    if (outcome.good) co_return;
    error why(errc::unknown, "");
    (void)wire::decode(outcome.bytes, why).has_value();
    self->tell_unheard("message failed", why);
}

/// Nobody waits for an answer to a one-way message, so the log is told: of the first ones, then of
/// ever fewer, for how many there are is up to the peer.
SKEIN_INLINE void requests::tell_unheard(const char* what, const error& why) {
    constexpr std::uint64_t all_of_the_first = 8;
    if (++unheard_ > all_of_the_first && !std::has_single_bit(unheard_)) return;
    logging::warn("net", what, {{"peer", peer_name()}, {"why", why.what()}, {"so_far", unheard_}});
}

SKEIN_INLINE void requests::answer(std::uint64_t id,
                                   const detail::request_outcome& outcome) noexcept {
    running_.erase(id);
    if (!open_) return;
    try {
        if (outcome.bytes.size() > options_.control_bytes)
            if (const auto full =
                    over_budget(&request_load::reply_bytes, outcome.bytes.size(), true))
                return send(detail::failure_kind, id, wire::encode(*full));
        send(outcome.good ? detail::reply_kind : detail::failure_kind, id, outcome.bytes);
    } catch (const error& e) {
        if (e.code() != errc::too_large) { // what cannot be answered must not be waited for
            abort(e);
            return;
        }
        try {
            send(detail::failure_kind, id, wire::encode(e));
        } catch (const std::exception& again) {
            abort(error(errc::internal, text_of(again)));
        }
    }
}

// --- the end ----------------------------------------------------------------------------------

SKEIN_INLINE const std::string& requests::peer_name() const noexcept { return below_->peer_name(); }

SKEIN_INLINE void requests::on_end(const error* why) noexcept {
    if (std::exchange(ended_, true)) return;
    const core keep = self_;
    open_ = false;
    if (why != nullptr) failure_ = *why;
    const error told =
        failure_ ? *failure_ : error(errc::closed, "the link to " + peer_name() + " was closed");
    for (auto& [id, p] : calls_) {
        if (p->done.is_set()) continue;
        p->failure = told;
        p->done.set();
    }
    // Calls with a key go on when the link broke: their caller may ask again on another one.
    running_.clear();
    bulk_.clear();
    bulk_bytes_ = call_bytes_ = 0;
    call_ended_.wake_all();
    drop_arriving();
    tasks_.cancel();
    closed_.tell(failure_ ? &*failure_ : nullptr);
    if (parts_ == 0) release();
}

SKEIN_INLINE void requests::set_closed_handler(unique_function<void(const error*)> handler) {
    if (ended_) {
        if (handler) handler(failure_ ? &*failure_ : nullptr);
        return;
    }
    closed_.set(std::move(handler));
}

SKEIN_INLINE void requests::abort(error why) noexcept {
    const core keep = self_;
    open_ = false;
    below_->abort(std::move(why));
}

SKEIN_INLINE task<void> requests::close() {
    const core keep = self_;
    open_ = false;
    tasks_.cancel();
    auto closing = below_->close();
    co_await closing;
    try {
        auto joining = shield(tasks_.join());
        co_await joining;
    } catch (const std::exception&) { // the tasks report elsewhere
    }
}

SKEIN_INLINE void requests::spawn(task<void> work) {
    if (ended_) return;
    ++parts_;
    tasks_.spawn(part(self_, std::move(work)));
}

SKEIN_INLINE task<void> requests::part(core self, task<void> work) {
    try {
        co_await work;
    } catch (...) {
        const error why = to_error(std::current_exception());
        if (why.code() != errc::cancelled) self->abort(why);
    }
    work = {};
    if (--self->parts_ == 0 && self->ended_) self->release();
}

SKEIN_INLINE void requests::release() noexcept {
    loop_.post([last = std::move(self_)] {});
}

} // namespace skein::net
