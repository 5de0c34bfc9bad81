// SPDX-License-Identifier: Apache-2.0
#pragma once
// Handlers, and the memory of calls that must not run twice.

#include <skein/core/check.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/detail/request_entry.hpp>
#include <skein/net/detail/request_head.hpp>

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/core.h>

namespace skein::net {

/// The calls of one client: those with the lowest keys go first.
struct request_service::client {
    std::map<std::uint64_t, entry_ptr> calls;
    std::uint64_t floor = 0; ///< keys below are forgotten
    std::size_t bytes = 0;   ///< of the outcomes that are kept
    bool unsure = false;     ///< it may have been here before, and been forgotten

    void forget(std::map<std::uint64_t, entry_ptr>::iterator at) noexcept {
        if (at->second->kept) bytes -= at->second->outcome.bytes.size();
        floor = std::max(floor, at->first + 1);
        calls.erase(at);
    }
};

SKEIN_INLINE request_service::request_service() : request_service(bounds()) {}
SKEIN_INLINE request_service::request_service(bounds b)
    : request_service(b, std::make_shared<request_budget>(b.all)) {}
SKEIN_INLINE request_service::request_service(bounds b, std::shared_ptr<request_budget> budget)
    : bounds_(b), budget_(std::move(budget)) {}
SKEIN_INLINE request_service::~request_service() = default;

SKEIN_INLINE void request_service::add(std::uint16_t number, std::string_view name,
                                       raw_handler handler, plain_handler at_once) {
    const auto [at, fresh] = handlers_.try_emplace(
        number, named_handler{std::string(name), std::move(handler), std::move(at_once)});
    SKEIN_CHECK(fresh, "message {} ({}) has a handler: {}", number, name, at->second.name);
}

SKEIN_INLINE std::optional<error> request_service::judge(std::uint16_t number,
                                                         byte_buffer& request) {
    if (!gate_) return std::nullopt;
    constexpr auto head = detail::request_head::bytes;
    try {
        const auto instead = gate_(number, byte_span(request).subspan(head));
        if (!instead) return std::nullopt;
        request.resize(head);
        append(request, *instead);
        return std::nullopt;
    } catch (const error& why) {
        return why;
    }
}

SKEIN_INLINE std::size_t request_service::remembered() const noexcept {
    std::size_t n = 0;
    for (const auto& [number, c] : clients_) n += c->calls.size();
    return n;
}

SKEIN_INLINE request_service::client& request_service::client_of(std::uint64_t number) {
    auto& slot = clients_[number];
    if (slot) return *slot;
    slot = std::make_unique<client>();
    client& made = *slot;
    made.unsure = forgot_;
    client_order_.push_back(number);
    const auto is_idle = [&](std::uint64_t n) {
        const auto& calls = clients_.at(n)->calls;
        return n != number && std::all_of(calls.begin(), calls.end(),
                                          [](const auto& c) { return c.second->done; });
    };
    if (client_order_.size() > bounds_.clients) { // the oldest that runs nothing is forgotten
        const auto old = std::find_if(client_order_.begin(), client_order_.end(), is_idle);
        if (old != client_order_.end()) {
            forgot_ = true;
            clients_.erase(*old);
            client_order_.erase(old);
        }
    }
    return made;
}

/// Forgets outcomes until the bounds hold; what runs stays.
SKEIN_INLINE void request_service::trim(client& c) noexcept {
    auto at = c.calls.begin();
    while (at != c.calls.end() && (c.calls.size() > bounds_.keys_per_client)) {
        const auto next = std::next(at);
        if (at->second->done) c.forget(at);
        at = next;
    }
    for (at = c.calls.begin(); at != c.calls.end() && c.bytes > bounds_.bytes_per_client; ++at) {
        auto& e = *at->second;
        if (!e.done || !e.kept) continue;
        c.bytes -= e.outcome.bytes.size();
        e.outcome.bytes = byte_buffer();
        e.kept = false;
    }
}

SKEIN_INLINE request_service::entry_ptr request_service::start_or_join(
    const detail::request_head& head, byte_buffer body, caller who, raw_handler* handler,
    waiting_caller from, std::optional<error> full) {
    const auto core = from.first.lock();
    const auto answer_with = [&](const error& why) {
        detail::request_outcome out;
        out.bytes = wire::encode(why);
        core->answer(from.second, out);
        return entry_ptr();
    };
    const auto answer_error = [&](errc code, std::string text) {
        return answer_with(error(code, std::move(text)));
    };
    const bool repeat = (head.flags & detail::request_head::repeat) != 0;
    const auto refuse_repeat = [&] {
        return answer_error(errc::aborted,
                            fmt::format("call {} may have run: what ran for this client has been "
                                        "forgotten",
                                        head.key));
    };
    if (repeat && forgot_ && !clients_.contains(head.client)) return refuse_repeat();
    client& c = client_of(head.client);
    while (!c.calls.empty() && c.calls.begin()->first < head.done_below &&
           c.calls.begin()->second->done) {
        c.forget(c.calls.begin());
    }
    if (const auto found = c.calls.find(head.key); found != c.calls.end()) {
        ++repeats_;
        const auto e = found->second;
        if (!e->done) {
            e->waiting.push_back(std::move(from));
            return e;
        }
        if (!e->kept) {
            return answer_error(
                errc::already_exists,
                fmt::format("call {} has run, its answer is not kept any more", head.key));
        }
        core->answer(from.second, e->outcome);
        return nullptr;
    }
    if (head.key < c.floor) {
        return answer_error(errc::exhausted,
                            fmt::format("call {} may have run: what is remembered begins at {}",
                                        head.key, c.floor));
    }
    if (repeat && c.unsure) return refuse_repeat();
    if (full) return answer_with(*full);
    auto e = std::make_shared<detail::request_entry>();
    e->key = head.key;
    e->waiting.push_back(std::move(from));
    c.calls.emplace(head.key, e);
    trim(c);
    auto place = core->place_of(body.size());
    tasks_.spawn(
        run_once(this, head.client, e, std::move(body), std::move(who), handler, std::move(place)));
    return e;
}

SKEIN_INLINE task<void> request_service::run_once(request_service* self, std::uint64_t client,
                                                  entry_ptr e, byte_buffer body, caller who,
                                                  raw_handler* handler,
                                                  detail::request_place place) {
    auto running = detail::outcome_of(handler, std::move(body), std::move(who), e->stop.token());
    e->outcome = co_await running;
    place = {};
    e->done = true;
    const auto waiting = std::exchange(e->waiting, {});
    for (const auto& [from, call] : waiting) {
        if (const auto there = from.lock()) there->answer(call, e->outcome);
    }
    const auto found = self->clients_.find(client);
    if (found == self->clients_.end()) co_return;
    auto& calls = found->second->calls;
    if (const auto at = calls.find(e->key); at != calls.end() && at->second == e) {
        found->second->bytes += e->outcome.bytes.size();
        self->trim(*found->second);
    }
}

SKEIN_INLINE task<void> request_service::close() {
    tasks_.cancel();
    try {
        auto joining = shield(tasks_.join());
        co_await joining;
    } catch (const std::exception&) { // outcomes hold the errors
    }
}

namespace detail {

SKEIN_INLINE void request_entry::leave(const requests* who, std::uint64_t call) noexcept {
    std::erase_if(waiting, [&](const request_service::waiting_caller& w) {
        return w.second == call && w.first.lock().get() == who;
    });
    if (waiting.empty()) stop.request();
}

/// Runs a handler; its outcome as bytes.
SKEIN_INLINE task<request_outcome> outcome_of(request_service::raw_handler* handler,
                                              byte_buffer body, caller who, cancel_token stop) {
    request_outcome out;
    try {
        const auto deadline = who.deadline;
        auto work = with_cancel(std::move(stop), (*handler)(std::move(body), std::move(who)));
        auto limited = deadline ? with_deadline(std::move(work), *deadline) : std::move(work);
        out.bytes = co_await limited;
        out.good = true;
    } catch (...) {
        out.bytes = wire::encode(to_error(std::current_exception(), errc::remote_exception));
    }
    co_return out;
}

} // namespace detail
} // namespace skein::net
