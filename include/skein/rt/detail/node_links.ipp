// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/node.hpp: links to other processes, and what one takes along when it ends.

#include <skein/core/cancel.hpp>
#include <skein/core/check.hpp>
#include <skein/core/sleep.hpp>
#include <skein/rt/detail/node_books.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace skein::rt {

SKEIN_INLINE std::shared_ptr<link> node::attach(std::shared_ptr<net::connection> wire) {
    auto l = std::make_shared<link>();
    l->wire = std::move(wire);
    l->number = ++books_->last_link;
    const auto& peer = l->wire->peer();
    l->who = fmt::format("{} (pid {} at {})", peer.name, peer.pid, peer.host);
    if (const auto hello = wire::decode<detail::worker_hello>(peer.extra))
        l->capacity = std::max<std::uint32_t>(1, hello->cpus);
    const std::weak_ptr<link> weak = l;
    l->wire->set_closed_handler([weak](const error* why) {
        if (const auto here = weak.lock()) {
            here->orderly = why == nullptr;
            if (why != nullptr) here->why = *why;
            here->up = false;
            here->ended.set();
        }
    });
    l->wire->set_handler([this, weak](const net::frame_view& f) {
        if (const auto here = weak.lock()) on_frame(here, f);
    });
    return l;
}

SKEIN_INLINE task<void> node::wait_end(std::shared_ptr<link> l) {
    try {
        co_await l->ended.wait();
    } catch (const error&) { // cancelled
        l->wire->abort(cancelled_error());
        l->up = false;
    }
}

SKEIN_INLINE task<void> node::serve_worker(std::shared_ptr<net::connection> wire, obituary after) {
    SKEIN_CHECK(books_->upstream == nullptr, "a worker cannot have workers of its own");
    auto l = attach(std::move(wire));
    books_->links.push_back(l);
    pump();
    auto ended = wait_end(l);
    co_await ended;

    std::string how = l->orderly ? "it left" : l->why.what();
    if (after) {
        auto asked = after(*l);
        auto sure = shield(std::move(asked));
        auto said = co_await sure;
        if (!said.empty()) how = std::move(said);
    }
    std::erase(books_->links, l);
    lose(*l, how);
    pump();
}

SKEIN_INLINE task<void> node::serve_driver(std::shared_ptr<net::connection> wire) {
    SKEIN_CHECK(books_->links.empty() && books_->upstream == nullptr, "a worker has one driver");
    auto l = attach(std::move(wire));
    books_->upstream = l.get();
    auto ended = wait_end(l);
    co_await ended;

    books_->closing = true;
    books_->calls.cancel();
    try {
        auto joined = books_->calls.join();
        auto sure = shield(std::move(joined));
        co_await sure;
    } catch (...) { // a call's own errors were told to the driver
    }
    lose(*l, "the driver has gone");
    books_->boxes.clear();
    books_->upstream = nullptr;
}

SKEIN_INLINE task<void> node::close() {
    books_->closing = true;
    const error why(errc::closed, "the program ended before the call was done");
    books_->start_workers = {};
    for (auto* line : {&books_->creations, &books_->queue})
        for (auto& call : std::exchange(*line, {}))
            if (!call->is_done()) refuse(*call, why);
    for (std::size_t i = 0; i < books_->slots.size(); ++i) {
        const auto call = books_->slots[i].call;
        if (call && !call->is_done()) call->fail({why, nullptr});
    }
    scope goodbyes;
    auto open = books_->links;
    for (const auto& l : open) goodbyes.spawn(l->wire->close());
    auto joined = goodbyes.join();
    auto sure = shield(std::move(joined));
    co_await sure;
}

namespace detail {

/// What a worker took along, to be told in the error of each call among it.
class loss_report {
public:
    static constexpr const char* runs_again = "runs again";

    void add(const char* state, std::string name) { ++lost_[{state, std::move(name)}]; }
    /// "; lost with it: f(int) x2 (may have run), g() (did not run)": all but one call of that name.
    [[nodiscard]] const std::string& others(const char* state, const std::string& name) {
        constexpr std::size_t shown = 8;
        const key self(state, name);
        auto [at, is_new] = told_.try_emplace(self);
        if (!is_new) return at->second;
        std::size_t listed = 0, left_out = 0;
        for (const auto& [other, all] : lost_) {
            const std::size_t n = all - (other == self ? 1 : 0);
            if (n == 0) continue;
            if (listed == shown) {
                left_out += n;
                continue;
            }
            at->second +=
                fmt::format("{}{}{} ({})", listed++ == 0 ? "; lost with it: " : ", ", other.second,
                            n == 1 ? "" : fmt::format(" x{}", n), other.first);
        }
        if (left_out > 0) at->second += fmt::format(", and {} more", left_out);
        return at->second;
    }

private:
    using key = std::pair<std::string_view, std::string>; // how far it got, its name
    std::map<key, std::size_t> lost_;
    std::map<key, std::string> told_;
};

/// Its cancellation was on the way to the worker that is lost.
SKEIN_INLINE bool is_unwanted(const call_base& call) noexcept {
    return call.rare && call.rare->cancel_requested;
}

} // namespace detail

/// Settles everything that a broken link took along: calls run again, or fail and say how far they got.
SKEIN_INLINE void node::lose(link& l, const std::string& how) {
    if (books_->upstream == nullptr && !books_->closing) ++books_->stats.workers_lost;
    l.up = false;

    // What ran here for that peer ends; what the driver passed on for it is of no use to anybody.
    for (auto& [id, call] : l.running) call.stop.request();
    std::vector<detail::counted<detail::call_base>> orphans;
    for (auto& [id, call] : l.forwarded) orphans.emplace_back(call);
    for (const auto& call : orphans)
        if (!call->is_done()) cancel(*call);

    std::vector<detail::counted<detail::call_base>> again, dead;
    detail::loss_report report;
    for (auto& s : books_->slots) {
        if (!s.call || s.call->on != &l) continue;
        auto call = free_slot(s.call->id);
        if (call->is_done()) continue;
        const bool sent = call->state != detail::phase::queued;
        const bool is_task = call->kind == detail::call_kind::task;
        if (books_->upstream == nullptr && !books_->closing && !detail::is_unwanted(*call) &&
            is_task && (call->retries_left > 0 || (!sent && !call->body.empty()))) {
            if (sent) {
                --call->retries_left;
                ++call->lost_attempts;
            }
            report.add(detail::loss_report::runs_again, call->name());
            again.push_back(std::move(call));
            continue;
        }
        if (call->kind == detail::call_kind::create) books_->actors.erase(call->target);
        if (sent && is_task) ++call->lost_attempts;
        report.add(call->progress(), call->name());
        dead.push_back(std::move(call));
    }
    const std::string summary = fmt::format("{} was lost: {}", l.who, how);

    // The actors are gone before any call fails: what that sets free must not go to the dead link.
    const failure lost{error(errc::worker_lost, summary), nullptr};
    std::vector<std::uint64_t> orphaned;
    std::vector<detail::counted<detail::actor_state>> gone;
    if (books_->upstream == nullptr) {
        for (const auto& [id, entry] : books_->actors)
            if (entry.where != &l && entry.owner == l.number) orphaned.push_back(id);
        std::erase_if(books_->actors, [&](const auto& item) { return item.second.where == &l; });
    }
    for (const auto& [id, lane] : books_->lanes)
        if (lane->on == &l) gone.emplace_back(lane);
    std::sort(gone.begin(), gone.end(), [](auto& a, auto& b) { return a->id < b->id; });
    std::sort(orphaned.begin(), orphaned.end());
    for (const auto& lane : gone) {
        lane->on = nullptr;
        lane->lost = lost;
    }

    for (const auto& call : dead) {
        const auto code = detail::is_unwanted(*call)                       ? errc::cancelled
                          : books_->upstream != nullptr || books_->closing ? errc::closed
                                                                           : errc::worker_lost;
        const auto name = call->name();
        std::string text = fmt::format("{} {}: {}", name, call->progress(), summary);
        if (call->lost_attempts > 1)
            text +=
                fmt::format("; {} attempts were made, each lost its worker", call->lost_attempts);
        text += report.others(call->progress(), name);
        call->fail({error(code, std::move(text)), nullptr});
    }
    for (const auto& lane : gone) fail_lane(*lane);
    for (const auto id : orphaned) {
        auto* where = books_->actors[id].where;
        books_->actors.erase(id);
        if (where == nullptr) continue; // its constructor runs: settle_create() drops it
        --where->actors;
        if (where->wire->is_open()) where->wire->send(detail::message_drop, 0, id, {}, {});
    }
    // Calls that run again go first; before them those that need no free core: a call that holds one
    // may wait for them.
    const auto needs_no_core = [](const auto& c) { return c->nested || c->cpus == 0; };
    std::vector<detail::counted<detail::call_base>> urgent, others;
    for (const auto& call : again) {
        ++books_->stats.retried;
        call->on = nullptr;
        call->state = detail::phase::queued;
        (needs_no_core(call) ? urgent : others).push_back(call);
    }
    const auto behind = std::find_if_not(books_->queue.begin(), books_->queue.end(), needs_no_core);
    books_->queue.insert(behind, others.begin(), others.end());
    books_->queue.insert(books_->queue.begin(), urgent.begin(), urgent.end());
}

} // namespace skein::rt
