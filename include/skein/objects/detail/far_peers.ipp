// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of objects/far_objects.hpp: what other stores ask for, and their ends.

#include <skein/core/error.hpp>
#include <skein/core/units.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace skein::objects {

SKEIN_INLINE void far_objects::serve_peer(net::request_service& service, store_peer& one) {
    const auto from = one.counts_as;
    const auto store = one.where.store;
    service.on_at_once<hold_request, hold_reply>(
        [this, from](const hold_request& what) { return hold_for(from, what); });
    service.on_at_once<give_for_request, done_reply>([this, from](const give_for_request& what) {
        give_for(from, what);
        return done_reply();
    });
    service.on_tell_at_once<take_for_note>([this, from, store](const take_for_note& what) {
        take_for(from, what);
        peers_.at(store)->tell(taken_note());
    });
    service.on_tell_at_once<taken_note>([this, store](const taken_note&) {
        auto& told = debts_[store].told;
        if (!told.empty()) told.pop_front();
    });
    service.on_tell_at_once<let_go_note>(
        [this, from](const let_go_note& what) { let_go_of(from, what); });
    service.on_tell_at_once<give_back_note>(
        [this](const give_back_note& what) { take_back(what); });
    service.on_tell_at_once<declined_note>([this](const declined_note& what) {
        store_.book_.decline(what.by, what.from);
        store_.changed();
    });
    service.on_tell_at_once<ended_note>([this](const ended_note& what) {
        store_.ended(what.process);
        told_.forget(what.process);
        store_.changed();
    });
}

/// What was taken without a link, and is still held here, is held at its home from now on, if it is
/// there; the rest is let go of.
SKEIN_INLINE void far_objects::peer_came(store_peer& one) {
    const auto store = one.where.store;
    store_.book_.begin(one.counts_as);
    auto& its = debts_[store];
    for (auto& note : std::exchange(its.owed, {})) {
        let_go_note rest;
        for (const auto which : note.which) {
            const auto held = entries_.find({store, which});
            if (held != entries_.end())
                ++held->second->registered;
            else
                rest.all.push_back({which, 1, 0});
        }
        its.told.push_back(note);
        one.tell(note);
        if (!rest.all.empty()) one.tell(rest);
    }
    for (const auto& note : std::exchange(its.undone, {})) one.tell(note);
    for (const auto& note : told_.declined) one.tell(note);
    for (const auto& end : told_.ended) one.tell(end.what);
}

SKEIN_INLINE void far_objects::greet(net::requests& process) {
    reached_note what;
    what.stores = peers_.reached();
    try {
        process.tell(what);
    } catch (const error&) { // it ends
    }
}

SKEIN_INLINE void far_objects::reach_changed() {
    if (is_closed_) return;
    for (const auto& one : std::vector(store_.links_)) greet(*one.link);
}

SKEIN_INLINE error far_objects::lost_with(const object_name& name, const store_peer& home,
                                          const error& why) {
    return error(errc::object_lost,
                 fmt::format(
                     "object {} of {} is lost: {}", name.number.value(), binary_bytes(name.bytes),
                     home.lost ? home.lost->text()
                               : fmt::format("the store of {} cannot be reached: {}",
                                             home.where.node.empty() ? "its node" : home.where.node,
                                             why.text())))
        .with_hint("it is not computed again: call its function again");
}

SKEIN_INLINE void far_objects::peer_lost(store_peer& one) {
    store_.book_.end(one.counts_as);
    auto& its = debts_[one.where.store];
    its.owed.insert(its.owed.end(), its.told.begin(), its.told.end());
    its.told.clear();
    for (const auto& [key, held] : entries_) {
        if (key.store != one.where.store) continue;
        held->registered = 0;
        held->is_orphan = held->copy.has_value();
        if (!held->coming) continue;
        held->coming->why = lost_with(held->name, one, *one.lost);
        held->coming->stop.request();
    }
    if (!is_closed_) store_.changed();
}

SKEIN_INLINE bool far_objects::is_needed() const {
    return (peers_.has_hub() || peers_.awaits_hub()) && store_.book_.usage().sealed != 0;
}

SKEIN_INLINE std::optional<held_bytes> far_objects::bytes_of(object_number which) {
    const auto place = store_.book_.claim(self_, which);
    if (!place) return std::nullopt;
    struct hold_of_reader {
        hold_of_reader(far_objects& f, object_number n) noexcept : far(f), number(n) {}
        hold_of_reader(const hold_of_reader&) = delete;
        hold_of_reader& operator=(const hold_of_reader&) = delete;
        ~hold_of_reader() {
            (void)far.store_.book_.release(far.self_, number, 1);
            if (!far.is_closed_) far.store_.changed();
        }
        far_objects& far;
        object_number number;
    };
    auto hold = std::make_shared<hold_of_reader>(*this, which);
    return held_bytes{store_.memory_.view(place->at, place->bytes), std::move(hold)};
}

SKEIN_INLINE hold_reply far_objects::hold_for(process_id from, const hold_request& what) {
    hold_reply out;
    for (const auto which : what.which) {
        const auto place = store_.book_.claim(from, which);
        out.bytes.push_back(place ? place->bytes : 0);
    }
    return out;
}

/// The store that says so counts itself as one that holds, also where the process has ended meanwhile
/// and its gift with it.
SKEIN_INLINE void far_objects::take_for(process_id from, const take_for_note& what) {
    auto& book = store_.book_;
    for (const auto which : what.which) {
        const bool is_taken = book.take(what.by, which, what.from).has_value();
        (void)book.claim(from, which);
        if (is_taken) (void)book.release(what.by, which, 1);
    }
}

SKEIN_INLINE void far_objects::let_go_of(process_id from, const let_go_note& what) {
    for (const auto& one : what.all) {
        // Fewer where it has taken what was gone.
        const auto times = std::min(one.times, store_.book_.held(from, one.which));
        if (times != 0) (void)store_.book_.release(from, one.which, times);
    }
    store_.changed();
}

SKEIN_INLINE void far_objects::give_for(process_id from, const give_for_request& what) {
    if (!what.to) throw error(errc::malformed, "objects are given to nobody");
    if (what.to_store != 0 && what.to_store != store_.number_ && !peers_.at(what.to_store)->link)
        throw error(errc::object_lost, "the store of who is to have an object has no link with it");
    give_back_note before;
    before.by = what.by;
    before.to = what.to;
    for (const auto which : what.which) {
        const auto given = store_.book_.give(what.by, which, what.to, from);
        if (!given) take_back(before); // all or none
        if (!given) throw given.error();
        before.which.push_back(which);
    }
}

SKEIN_INLINE void far_objects::take_back(const give_back_note& what) {
    for (const auto which : what.which)
        if (store_.book_.take(what.to, which, what.by))
            (void)store_.book_.release(what.to, which, 1);
    store_.changed();
}

} // namespace skein::objects
