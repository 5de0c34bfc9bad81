// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/head_link.hpp.

#include <skein/core/backoff.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/log.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/network.hpp>
#include <skein/wire/decode.hpp>

#include <algorithm>
#include <exception>

#include <fmt/format.h>

namespace skein::cluster::detail {

SKEIN_INLINE head_link::head_link(loop& on, net::network& via, head_link_options how,
                                  event* stopping)
    : on_loop_(on), network_(via), how_(std::move(how)), stopping_(stopping),
      alone_since_(on.now()) {}
SKEIN_INLINE head_link::~head_link() = default;

SKEIN_INLINE head_notice head_link::notice() const {
    if (below_ == nullptr) return {};
    const auto read = wire::decode<head_notice>(below_->peer().extra);
    return read ? *read : head_notice{};
}

/// A head whose place another one has taken, with the same log, may not know that yet: its orders
/// are not for us.
SKEIN_INLINE void head_link::check_generation() {
    const auto told = notice();
    if (told.state != 0 && told.state == newest_.state && told.generation < newest_.generation)
        throw error(errc::aborted,
                    fmt::format("the head at {} is of generation {}, one of generation {} was "
                                "here before",
                                to_string(how_.head), told.generation, newest_.generation))
            .with_hint("a newer head has taken its place: end the older one");
    if (told.state != 0) newest_ = told;
}

SKEIN_INLINE task<void> head_link::keep_telling(head_link* self) {
    scope beside;
    beside.spawn(say_mute(self));
    std::exception_ptr failure;
    try {
        auto joining = keep_joined(self);
        co_await joining;
    } catch (...) {
        failure = std::current_exception();
    }
    beside.cancel();
    auto silent = as_result(shield(beside.join()));
    (void)co_await silent;
    if (failure) std::rethrow_exception(failure);
}

/// Also while the first attempt waits for a host that does not answer at all.
SKEIN_INLINE task<void> head_link::say_mute(head_link* self) {
    co_await sleep_for(mute_after);
    const auto& how = self->how_;
    if (self->ever_ || self->stopping_->is_set()) co_return;
    const auto& why = self->last_fault_;
    logging::at(how.news, how.speaks_as, "no head answers there (yet, or any more); it is tried on",
                {{"head", to_string(how.head)},
                 {"why", why.empty() ? "nothing has come back so far" : why},
                 {"for", how.join_within}});
}

SKEIN_INLINE task<void> head_link::keep_joined(head_link* self) {
    auto& how = self->how_;
    self->alone_since_ = self->on_loop_.now();
    const auto last = deadline_after(self->alone_since_, how.join_within);
    backoff pauses(how.times.reconnect_first, how.times.reconnect_most);
    bool ever = false;
    for (int tries = 1; !self->stopping_->is_set(); ++tries) {
        std::optional<error> fault;
        try {
            auto linked = one_link(self);
            co_await linked;
        } catch (const error& e) {
            fault = e;
        }
        const bool was_joined = std::exchange(self->welcomed_, false);
        if (was_joined) {
            ever = true;
            pauses.reset();
        }
        if (self->stopping_->is_set() || !fault) co_return;
        const auto code = fault->code();
        if (code == errc::cancelled || (is_final(code) && !self->is_no_word(code))) throw *fault;
        const auto now = self->on_loop_.now();
        if (!ever && now >= last) // the fault tells of the last try alone
            throw error(code, fmt::format("{} ({} in {:.3g} s)", fault->text(),
                                          tries == 1 ? "1 try" : fmt::format("{} tries", tries),
                                          to_seconds(now - self->alone_since_)))
                .with_cause(fault->cause())
                .with_hint(fault->hint());
        self->last_fault_ = fault->what();
        if (was_joined) self->is_away_ = true;
        if (how.on_away) how.on_away(*fault, was_joined);
        if (ever && is_final(code)) self->say_stranger(*fault);
        auto woken = self->stopping_->wait_for(pauses.next());
        co_await woken;
    }
}

/// A port is no name: while the head is away anybody may listen there, and what was joined waits
/// for its head. Of a head, which has proven the token, two answers count for good: those that are
/// about this node.
SKEIN_INLINE bool head_link::is_no_word(errc code) const noexcept {
    if (!ever_) return false;
    return !is_proven_ || (code != errc::already_exists && code != errc::invalid_argument);
}

/// Once for each kind of answer, until the head is back.
SKEIN_INLINE void head_link::say_stranger(const error& why) {
    if (!strangers_.insert(why.code()).second) return;
    logging::at(how_.news, how_.speaks_as,
                "something else answers at the head's address: nothing is taken from it, and it is "
                "tried until the head is back",
                {{"head", to_string(how_.head)}, {"why", why.what()}});
}

SKEIN_INLINE void head_link::say_back() {
    strangers_.clear();
    if (!std::exchange(is_away_, false)) return;
    logging::at(how_.news, how_.speaks_as, "the head is back",
                {{"head", to_string(how_.head)}, {"after", on_loop_.now() - alone_since_}});
}

/// Says hello. Who is stopped meanwhile gives the answer a moment: workers may have come before it,
/// and what became of the calls there cannot be told without it.
SKEIN_INLINE task<void> head_link::greet(head_link* self) {
    scope saying;
    event done;
    std::exception_ptr failure;
    saying.spawn(say_hello(self, &failure, &done));
    auto hearing = as_result(wait_for(&done));
    const auto heard = co_await hearing;
    if (!heard && self->stopping_->is_set()) {
        auto longer = as_result(shield(done.wait_for(self->how_.times.suspect_after)));
        (void)co_await longer;
    }
    if (!done.is_set()) saying.cancel();
    auto said = as_result(shield(saying.join()));
    (void)co_await said;
    if (failure) std::rethrow_exception(failure);
    if (!heard) throw heard.error();
}

SKEIN_INLINE task<void> head_link::say_hello(head_link* self, std::exception_ptr* failure,
                                             event* done) {
    try {
        auto saying = self->how_.say_hello();
        co_await saying;
    } catch (...) {
        *failure = std::current_exception();
    }
    done->set();
}

/// One link to the head, from the dial to its end.
SKEIN_INLINE task<void> head_link::one_link(head_link* self) {
    auto& how = self->how_;
    self->is_proven_ = false;
    net::link_options link;
    link.incarnation = how.incarnation;
    auto dialing = with_timeout(
        net::link::connect(self->network_, how.head,
                           cluster_link(how.secret, how.name, how.host, how.pid), link),
        how.times.connect_timeout + how.times.handshake_timeout);
    self->below_ = co_await dialing;
    self->is_proven_ = true;
    self->service_ = how.make_service();
    self->way_ = net::requests::over(self->below_, self->service_, cluster_requests());
    std::exception_ptr failure;
    try {
        self->check_generation();
        auto greeting = greet(self);
        co_await greeting;
        auto ended = wait_end(self->below_, self->stopping_);
        co_await ended;
    } catch (const error& e) {
        // One that ends says goodbye also to those that it has not answered.
        const bool has_ended =
            e.code() == errc::closed && self->below_->ending() == net::link_end::orderly;
        // Who is stopped and then cancelled may hear of both at once: it has things to tell yet.
        const bool is_stopped =
            e.code() == errc::cancelled && self->stopping_->is_set() && self->joined_;
        if (!has_ended && !is_stopped) failure = std::current_exception();
    } catch (...) {
        failure = std::current_exception();
    }
    if (failure && how.abandons && !self->stopping_->is_set()) self->abandon();
    if (self->stopping_->is_set() && !failure) co_return; // its owner says goodbye
    auto parted = shield(part_from(self));
    co_await parted;
    if (failure) std::rethrow_exception(failure);
}

SKEIN_INLINE task<void> head_link::part_from(head_link* self) {
    if (std::exchange(self->joined_, false)) self->alone_since_ = self->on_loop_.now();
    self->below_.reset();
    const auto last = std::exchange(self->way_, nullptr);
    if (last == nullptr) co_return;
    const auto served = std::exchange(self->service_, nullptr);
    auto closing = last->close();
    co_await closing;
    auto done = served->close();
    co_await done;
}

} // namespace skein::cluster::detail
