// SPDX-License-Identifier: Apache-2.0
#pragma once
// Places, who has to leave them, and the loop that fills them.

#include <skein/core/error.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/core.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <unistd.h>

namespace skein::net {
namespace detail {

SKEIN_INLINE std::string share_of(const std::string& host) {
    std::array<unsigned char, 16> raw{};
    if (::inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), raw.data()) != 1) return host;
    constexpr std::array<unsigned char, 12> mapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    if (std::equal(mapped.begin(), mapped.end(), raw.begin())) {
        return fmt::format("{}.{}.{}.{}", raw[12], raw[13], raw[14], raw[15]);
    }
    return std::string(raw.begin(), raw.begin() + 8);
}

SKEIN_INLINE std::size_t places_for_strangers() {
    constexpr std::size_t least = 16;
    rlimit most{};
    if (::getrlimit(RLIMIT_NOFILE, &most) != 0 || most.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
    return std::max<std::size_t>(least, most.rlim_cur / 4);
}

SKEIN_INLINE task<void> wait_in(wait_queue* line) {
    auto turn = line->wait();
    co_await turn;
}

} // namespace detail

// --- one place --------------------------------------------------------------------------------

SKEIN_INLINE admission::limit::limit(admission& a) noexcept
    : timer_node([](timer_node& t) { static_cast<limit&>(t).place.overdue(); }), place(a) {}

SKEIN_INLINE admission::admission(acceptor& door, std::string from)
    : door_(&door), from_(std::move(from)), since_(loop::current().now()) {
    door.silent_.push_back(*this);
    ++door.waiting_;
    if (!door.options_.deadline) return;
    due_ = deadline_after(since_, *door.options_.deadline);
    loop::current().set_timer(limit_, due_);
}
SKEIN_INLINE admission::~admission() { door_->leave(*this); }

SKEIN_INLINE void admission::authenticated() noexcept {
    if (authenticated_ || dropped_) return;
    authenticated_ = true;
    ++door_->authenticated_;
    door_->leave(*this);
}

SKEIN_INLINE void admission::greeted() noexcept {
    if (greeted_ || !is_linked()) return;
    greeted_ = true;
    since_ = loop::current().now();
    unlink();
    door_->greeted_.push_back(*this);
    door_->freed_.wake_one(); // who waits for a place may have to wait for another one
}

/// A loop that comes late has computed meanwhile: what the peer has said is heard first.
SKEIN_INLINE void admission::overdue() noexcept {
    const duration grace = door_->options_.grace_to_prove;
    const auto now = loop::current().exact_now();
    if (now - due_ <= grace) return drop("it did not prove who it is in time");
    due_ = deadline_after(now, grace);
    loop::current().set_timer(limit_, due_);
}

/// Ends the handler; the place is free at once.
SKEIN_INLINE void admission::drop(const char* why) noexcept {
    dropped_ = true;
    why_dropped_ = why;
    door_->leave(*this);
    stop_.request();
}

// --- the acceptor -----------------------------------------------------------------------------

/// One line per kind of trouble and time, with the number of those that got none.
struct acceptor::refusals {
    struct kind {
        time_point told{};
        std::uint64_t more = 0;
    };
    std::map<std::pair<std::string_view, errc>, kind> kinds;

    void tell(std::string_view what, const std::string& peer, const error& why) {
        const auto now = loop::current().now();
        const auto [at, fresh] = kinds.try_emplace({what, why.code()});
        auto& k = at->second;
        if (!fresh && now - k.told < time_constants::lan().refusal_line) {
            ++k.more;
            return;
        }
        k.told = now;
        if (k.more == 0) {
            logging::warn("net", what, {{"peer", peer}, {"why", why.what()}});
        } else {
            logging::warn("net", what,
                          {{"peer", peer}, {"why", why.what()}, {"more_since", k.more}});
        }
        k.more = 0;
    }
    void tell_rest() {
        for (auto& [key, k] : kinds) {
            if (k.more == 0) continue;
            logging::warn(
                "net", key.first,
                {{"more_since", std::exchange(k.more, 0)}, {"kind", to_string(key.second)}});
        }
    }
};

SKEIN_INLINE acceptor::acceptor(network& via, const address& at, acceptor_options options)
    : acceptor(via.listen(at), options) {}
SKEIN_INLINE acceptor::acceptor(std::unique_ptr<listener> on, acceptor_options options)
    : options_(options), listener_(std::move(on)), log_(std::make_unique<refusals>()) {
    if (listener_->local().kind == scheme::sim) return; // no descriptors
    const auto most = detail::places_for_strangers();
    if (options_.places <= most) return;
    options_.places = most;
    options_.places_per_address = std::min(options_.places_per_address, most / 2);
}
SKEIN_INLINE acceptor::~acceptor() = default;

SKEIN_INLINE task<void> acceptor::serve(handler serve_one) {
    handler_ = std::move(serve_one);
    return with_scope(&acceptor::accept_loop, this);
}

SKEIN_INLINE void acceptor::close() noexcept {
    closed_ = true;
    listener_->close();
    while (admission* const stranger = first_to_go(nullptr)) stranger->drop(nullptr);
}

SKEIN_INLINE void acceptor::leave(admission& a) noexcept {
    if (!a.is_linked()) return;
    a.unlink();
    a.limit_.cancel();
    --waiting_;
    freed_.wake_one();
}

SKEIN_INLINE std::size_t acceptor::count(const std::string& from) noexcept {
    std::size_t n = 0;
    const auto add = [&](admission& a) { n += a.from_ == from ? 1 : 0; };
    silent_.for_each(add);
    greeted_.for_each(add);
    return n;
}

/// The oldest of those that have said nothing, else of all; of one address if given.
SKEIN_INLINE admission* acceptor::first_to_go(const std::string* from) noexcept {
    admission* found = nullptr;
    const auto look = [&](admission& a) {
        if (from != nullptr && a.from_ != *from) return true;
        found = &a;
        return false;
    };
    silent_.for_each_while(look);
    if (found == nullptr) greeted_.for_each_while(look);
    return found;
}

SKEIN_INLINE time_point acceptor::grace_of(const admission& a) const noexcept {
    return deadline_after(a.since_, a.greeted_ ? options_.grace_to_prove : options_.grace);
}

/// Waits until there is a place for a stream from there; who has had its time has to go. What it
/// has said while this thread computed is heard before.
SKEIN_INLINE task<void> acceptor::wait_for_place(std::string from) {
    constexpr int turns_of_the_loop = 8;
    for (int heard = 0;;) {
        const bool share_used = !from.empty() && count(from) >= options_.places_per_address;
        if (!share_used && waiting_ < options_.places) co_return;
        admission* const first = first_to_go(share_used ? &from : nullptr);
        if (first == nullptr) co_return; // no places at all: the first one gets in all the same
        const auto until = grace_of(*first);
        if (loop::current().now() >= until) {
            if (++heard <= turns_of_the_loop)
                co_await yield();
            else
                first->drop("another stream needed its place");
            continue;
        }
        try {
            auto freed = with_deadline(detail::wait_in(&freed_), until);
            co_await freed;
        } catch (const error& e) {
            if (e.code() != errc::timeout) throw;
        }
    }
}

/// True when a stranger from another user was turned away.
SKEIN_INLINE bool acceptor::is_foreign(stream& from) {
    if (!options_.same_user_only) return false;
    const auto user = from.peer_user();
    if (!user || *user == ::geteuid()) return false;
    ++refused_;
    log_->tell(
        "connection refused", from.peer_name(),
        error(errc::permission_denied,
              fmt::format("it is a process of user {}, this one is of {}", *user, ::geteuid())));
    return true;
}

/// After a failed accept: throws what cannot be got over, says how long to wait for the rest. A
/// stranger that has had its time gives its descriptor back.
SKEIN_INLINE duration acceptor::after_failure(const error& fault) {
    if (fault.code() == errc::invalid_argument || fault.code() == errc::not_supported) throw fault;
    // Out of descriptors or memory, a network that is down, a firewall's no, or a stream that broke
    // before it was taken: go on later.
    log_->tell("accept failed", to_string(local()), fault);
    const duration pause = time_constants::lan().accept_pause;
    admission* const first = fault.code() == errc::exhausted ? first_to_go(nullptr) : nullptr;
    if (first == nullptr) return pause;
    const auto left = grace_of(*first) - loop::current().now();
    if (left > duration::zero()) return std::min(left, pause);
    first->drop("its descriptor was needed");
    return options_.grace; // till then it is this process's own, whose files may need one
}

SKEIN_INLINE task<void> acceptor::accept_loop(scope& children, acceptor* self) {
    auto* cancel = co_await skein::detail::current_cancel{};
    for (;;) {
        std::unique_ptr<stream> next;
        std::optional<error> fault;
        try {
            auto accepting = self->listener_->accept();
            next = co_await accepting;
        } catch (const error& e) {
            fault = e;
        }
        if (fault) {
            if (fault->code() == errc::closed) break;
            if (fault->code() == errc::cancelled && cancel != nullptr && cancel->requested()) {
                self->log_->tell_rest();
                throw *fault;
            }
            auto pause = sleep_for(self->after_failure(*fault));
            co_await pause;
            continue;
        }
        if (self->is_foreign(*next)) continue;
        std::string from = detail::share_of(next->peer_host());
        auto free = self->wait_for_place(from);
        co_await free;
        if (self->closed_) continue;
        std::unique_ptr<admission> place(new admission(*self, std::move(from)));
        children.spawn(one(self, std::move(next), std::move(place)));
    }
    self->log_->tell_rest();
}

SKEIN_INLINE task<void> acceptor::one(acceptor* self, std::unique_ptr<stream> from,
                                      std::unique_ptr<admission> place) {
    auto* cancel = co_await skein::detail::current_cancel{};
    const std::string peer = from->peer_name();
    std::optional<error> fault;
    try {
        auto serving =
            with_cancel(place->stop_.token(), self->handler_(std::move(from), place.get()));
        co_await serving;
    } catch (...) {
        fault = to_error(std::current_exception());
    }
    const bool known = place->is_authenticated();
    const bool dropped = place->dropped_;
    const char* const why = place->why_dropped_;
    place.reset();
    if (fault && fault->code() == errc::cancelled && cancel != nullptr && cancel->requested())
        throw *fault;
    if (known) {
        if (fault)
            logging::warn("net", "connection failed", {{"peer", peer}, {"why", fault->what()}});
        co_return;
    }
    ++self->refused_;
    if (dropped && why == nullptr) co_return; // the door was closed: nothing is wrong with the peer
    if (dropped) fault = error(errc::exhausted, why);
    if (fault) self->log_->tell("connection refused", peer, *fault);
}

} // namespace skein::net
