// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads, swaps and watches of keys, and leases.

#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

namespace skein::spmd::detail {

SKEIN_INLINE etcd_keys::etcd_keys(etcd_options options, std::unique_ptr<etcd_transport> transport)
    : client_(std::move(options), std::move(transport)),
      view_key_(fmt::format("{}/{}/view", client_.options().prefix, client_.options().job)),
      coordinator_key_(
          fmt::format("{}/{}/coordinator", client_.options().prefix, client_.options().job)) {}

SKEIN_INLINE error etcd_keys::unreadable(const std::string& key, const error& why) const {
    return error(errc::mismatch, fmt::format("the key {} holds nothing of skein's", key))
        .with_where(client_.options().endpoints.front())
        .with_cause(why.text())
        .with_hint(why.hint().empty() ? "another program writes there: give the job another prefix"
                                      : why.hint());
}

SKEIN_INLINE stored_view etcd_keys::view_of(const etcd_value& kv) {
    stored_view out;
    if (kv.mod_revision != 0) {
        auto read = read_view(kv.value);
        if (!read) throw unreadable(view_key_, read.error());
        out = std::move(*read);
    }
    if (out.now.generation >= newest_) {
        newest_ = out.now.generation;
    } else if (!std::exchange(said_older_, true)) {
        logging::error(
            "etcd",
            "holds an older view than it did before: was its key deleted, or its data "
            "lost?",
            {{"key", view_key_}, {"generation", out.now.generation}, {"before", newest_}});
    }
    return out;
}

SKEIN_INLINE coordinator_place etcd_keys::place_of(const etcd_value& kv) const {
    if (kv.mod_revision == 0) return {};
    auto read = read_place(kv.value);
    if (!read) throw unreadable(coordinator_key_, read.error());
    return std::move(*read);
}

// ---- one key ------------------------------------------------------------------------------------

SKEIN_INLINE task<etcd_keys::seen> etcd_keys::get(std::string key) {
    auto asking = client_.ask("/v3/kv/range", range_request(key), &read_range);
    auto range = co_await asking;
    co_return seen{std::move(range.kv), range.header.revision};
}

SKEIN_INLINE task<bool> etcd_keys::listen(std::string key, std::int64_t from, judge* is_news,
                                          std::optional<etcd_value>* news) {
    bool ended = false;
    std::exception_ptr failure;
    etcd_line on_line = [&](std::string_view text) {
        auto line = read_watch_line(text);
        ended = !line || line->ended; // compacted, no leader: the key is read again
        if (ended) return false;
        try {
            for (auto& kv : line->now) { // the newest of them
                if ((*is_news)(kv)) *news = std::move(kv);
            }
        } catch (...) {
            failure = std::current_exception();
            return false;
        }
        if (*news) return false;
        return true;
    };
    auto watching =
        client_.watch(watch_request(key, from), &on_line, client_.options().watch_renewal);
    const bool was_watch = co_await watching;
    if (failure) std::rethrow_exception(std::move(failure));
    co_return was_watch && !ended;
}

SKEIN_INLINE task<etcd_value> etcd_keys::await_change(std::string key, judge is_news) {
    auto pauses = etcd_backoff();
    for (;;) {
        auto getting = get(key);
        auto now = co_await getting;
        if (is_news(now.kv)) co_return std::move(now.kv);
        std::optional<etcd_value> news;
        logging::debug(
            "etcd", "waits for news of a key",
            {{"key", key},
             {"holds", now.kv.mod_revision == 0 ? std::string("nothing")
                                                : fmt::format("revision {}", now.kv.mod_revision)},
             {"behind", now.revision}});
        auto listening = listen(key, now.revision + 1, &is_news, &news);
        const bool was_good = co_await listening;
        if (news) co_return std::move(*news);
        if (was_good) {
            pauses.reset();
            continue;
        }
        auto pause = sleep_for(pauses.next(loop::current().random()));
        co_await pause;
    }
}

// ---- views --------------------------------------------------------------------------------------

SKEIN_INLINE task<view> etcd_keys::read() {
    auto getting = get(view_key_);
    const auto now = co_await getting;
    co_return view_of(now.kv).now;
}

SKEIN_INLINE task<view> etcd_keys::watch(std::uint64_t after) {
    judge is_news = [this, after](const etcd_value& kv) {
        return view_of(kv).now.generation > after;
    };
    auto waiting = await_change(view_key_, std::move(is_news));
    const auto kv = co_await waiting;
    co_return view_of(kv).now;
}

SKEIN_INLINE task<swap_result> etcd_keys::compare_and_swap(std::uint64_t generation, view next) {
    if (next.generation != generation + 1)
        throw error(errc::invalid_argument,
                    fmt::format("a view of generation {} cannot follow generation {}",
                                next.generation, generation));
    auto getting = get(view_key_);
    const auto now = co_await getting;
    const auto before = view_of(now.kv);
    if (before.now.generation > generation) co_return swap_result{false, before.now};
    auto& random = loop::current().random();
    stored_view offer{
        std::move(next), fmt::format("{:016x}{:016x}", random.next(), random.next()), {}};
    if (!before.nonce.empty()) offer.before.push_back(before.nonce);
    for (const auto& nonce : before.before) {
        if (offer.before.size() < etcd_views_named) offer.before.push_back(nonce);
    }
    const auto text = write_view(offer);
    if (text.size() > etcd_view_limit)
        throw error(errc::too_large,
                    fmt::format("a view of {} members takes {} bytes, more than the {} of etcd",
                                offer.now.members.size(), text.size(), etcd_view_limit));
    // Made again after a lost answer it fails on its own first try, and reads that back.
    auto asking =
        client_.ask("/v3/kv/txn", swap_request(view_key_, now.kv.mod_revision, text), &read_swap);
    const auto swap = co_await asking;
    const auto after = swap.made ? offer : view_of(swap.now);
    if (!is_by(after, offer.nonce)) co_return swap_result{false, after.now};
    newest_ = std::max(newest_, offer.now.generation);
    co_return swap_result{true, std::move(offer.now)};
}

// ---- the coordinator ----------------------------------------------------------------------------

SKEIN_INLINE task<void> etcd_keys::take_lease() {
    auto dropping = drop_lease();
    co_await dropping;
    // The id is chosen here, so that a grant whose answer was lost can be asked for again.
    const auto id = static_cast<std::int64_t>(loop::current().random().next() >> 2) + 1;
    const auto seconds =
        std::chrono::ceil<std::chrono::seconds>(client_.options().lease_ttl).count();
    lease_ = id;
    ttl_ = seconds;
    try {
        auto asking = client_.ask("/v3/lease/grant", grant_request(id, seconds), &read_grant);
        const auto granted = co_await asking;
        ttl_ = granted.ttl; // etcd's least may be longer
    } catch (const error& e) {
        if (e.code() != errc::already_exists) throw; // granted by a try whose answer was lost
    }
    keeping_ = std::make_unique<scope>();
    keeping_->spawn(keep_lease(id, ttl_));
}

SKEIN_INLINE task<void> etcd_keys::keep_lease(std::int64_t lease, std::int64_t ttl) {
    const auto pause = duration(std::chrono::seconds(ttl)) / 3;
    for (;;) {
        auto sleeping = sleep_for(pause);
        co_await sleeping;
        std::string why = "etcd does not know it any more";
        try {
            const duration timeout = std::min<duration>(pause, client_.options().request_timeout);
            auto asking =
                client_.ask("/v3/lease/keepalive", lease_request(lease), &read_keep_alive, timeout);
            const auto kept = co_await asking;
            if (kept.ttl > 0) continue;
        } catch (const error& e) {
            if (e.code() == errc::cancelled) throw;
            why = e.what();
        }
        logging::warn("etcd", "the coordinator's lease is lost",
                      {{"key", coordinator_key_}, {"ttl_s", ttl}, {"why", why}});
        if (lease_ == lease) lease_ = 0, holds_ = false;
        co_return;
    }
}

SKEIN_INLINE task<void> etcd_keys::stop_keeping() {
    if (!keeping_) co_return;
    auto kept = std::move(keeping_);
    kept->cancel();
    auto joining = kept->join();
    auto shielded = shield(std::move(joining));
    try {
        co_await shielded;
    } catch (const error&) {} // cancelled: as it was asked for
}

SKEIN_INLINE task<void> etcd_keys::drop_lease() {
    auto stopping = stop_keeping();
    co_await stopping;
    holds_ = false;
    if (lease_ == 0) co_return;
    const auto lease = std::exchange(lease_, 0);
    try {
        // It ends by itself after its length: nobody waits longer for etcd's word.
        auto asking = client_.ask("/v3/lease/revoke", lease_request(lease), &read_done);
        auto timed = with_timeout(std::move(asking), std::chrono::seconds(ttl_));
        (void)co_await timed;
    } catch (const error& e) {
        if (e.code() != errc::not_found && e.code() != errc::timeout) throw;
    }
}

SKEIN_INLINE task<void> etcd_keys::resign() {
    auto dropping = drop_lease();
    co_await dropping;
}

SKEIN_INLINE task<void> etcd_keys::close() {
    auto stopping = stop_keeping();
    co_await stopping;
    if (lease_ == 0) co_return;
    auto trying = client_.try_once("/v3/lease/revoke", lease_request(std::exchange(lease_, 0)),
                                   std::chrono::seconds(1));
    co_await trying;
}

SKEIN_INLINE task<bool> etcd_keys::put_place(coordinator_place me, std::int64_t over) {
    const auto lease = lease_;
    if (lease == 0) co_return false; // lost since it was taken
    try {
        auto asking = client_.ask(
            "/v3/kv/txn", swap_request(coordinator_key_, over, write_place(me), lease), &read_swap);
        const auto swap = co_await asking;
        // Not made, and yet there: by a try whose answer was lost.
        co_return swap.made || (swap.now.lease == lease && place_of(swap.now) == me);
    } catch (const error& e) {
        if (e.code() != errc::not_found) throw; // of the lease, that is: it has ended
    }
    co_return false;
}

SKEIN_INLINE task<coordinator_place> etcd_keys::take_place(coordinator_place me) {
    for (;;) {
        auto getting = get(coordinator_key_);
        const auto now = co_await getting;
        auto there = place_of(now.kv);
        const bool is_other = there.id != 0 && there.id != me.id;
        if (!is_other) {
            if (there == me && lease_ != 0 && now.kv.lease == lease_) co_return me;
            if (lease_ == 0 || !keeping_ || keeping_->cancelled()) {
                auto taking = take_lease();
                co_await taking;
            }
            auto putting = put_place(me, now.kv.mod_revision);
            if (co_await putting) co_return me;
        }
        auto dropping = drop_lease(); // somebody else was faster, or it has ended
        co_await dropping;
        if (is_other) co_return there;
    }
}

SKEIN_INLINE task<coordinator_place> etcd_keys::claim(coordinator_place me) {
    if (me.id == 0) throw error(errc::invalid_argument, "a coordinator's id is not 0");
    const auto id = me.id;
    try {
        auto taking = take_place(std::move(me));
        auto is = co_await taking;
        holds_ = is.id == id;
        co_return is;
    } catch (...) {
        // Nobody knows of a place that was perhaps taken: it is let go.
        if (!holds_ && keeping_) keeping_->cancel();
        throw;
    }
}

SKEIN_INLINE task<coordinator_place> etcd_keys::watch_coordinator(coordinator_place known) {
    judge is_news = [this, known = std::move(known)](const etcd_value& kv) {
        return place_of(kv) != known;
    };
    auto waiting = await_change(coordinator_key_, std::move(is_news));
    const auto kv = co_await waiting;
    co_return place_of(kv);
}

} // namespace skein::spmd::detail
