// SPDX-License-Identifier: Apache-2.0
#pragma once
// holds, borrows: the count of who holds handles to a thing that lives elsewhere: an actor, a
// placement group, whatever else has an id.
//
// A thing has one owner (the driver), which ends it when nobody holds it. Every other process is a
// holder, and counts with the owner: each time that the owner has told it of a handle, or was told
// by it, both add one. A holder whose last handle is gone gives all of that back at once. So a
// handle that is on its way to a holder is never lost to a release that crosses it: the release has
// the smaller number, and the owner keeps the difference.
//
//     holds<actor_id> held;                  // the owner's side
//     held.add(worker, thing);               // a reply with a handle leaves for it
//     if (!held.give_back(worker, thing, 1)) ...;              // more than it has: it lies
//     if (!held.is_held(thing)) ...;                           // the thing may end
//
//     borrows<actor_id> borrowed;            // a holder's side
//     borrowed.borrow(thing);                // its first handle here, in the arguments of a call
//     for (auto id : borrowed.tell()) ...;   // before the reply: the owner is to count these
//     if (auto times = borrowed.let_go(thing); times > 0) ...; // the last handle is gone
//
// States of a thing at a holder:
//
//     unknown --borrow()--> borrowed --tell()--> counted --let_go()--> unknown
//        |                     |    \--hold()-----^  ^
//        |                     \--let_go()--> unknown|
//        \------------hold(), lend()-----------------/
//
// Who calls these sends the messages, and ends the things: what is to be done is in the results.

#include <skein/core/ids.hpp>
#include <skein/rt/detail/peer_id.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace skein::rt {

namespace detail {

/// The owner's side: which process holds which thing, and how often it was told so. The handles of
/// the owner's own process are not counted here.
template <class Id>
class holds {
public:
    /// A handle to the thing is told to that process, or by it. is_lent: the handle came to it in
    /// the arguments of a call.
    void add(peer_id holder, Id thing, bool is_lent = false) {
        auto& all = things_[thing];
        auto found = find(all, holder);
        if (found == all.end()) {
            ++counts_[holder];
            found = all.insert(all.end(), {holder, 0, false});
        }
        ++found->times;
        found->is_lent = found->is_lent || is_lent;
    }
    /// That process gives handles back. False: it has not so many, and nothing changes.
    [[nodiscard]] bool give_back(peer_id holder, Id thing, std::uint32_t times) {
        const auto at = things_.find(thing);
        if (at == things_.end()) return false;
        const auto found = find(at->second, holder);
        if (found == at->second.end() || found->times < times) return false;
        found->times -= times;
        if (found->times > 0) return true;
        at->second.erase(found);
        if (at->second.empty()) things_.erase(at);
        count_down(holder);
        return true;
    }
    /// The thing has ended: what processes still give back of it is unknown from now on.
    void forget(Id thing) {
        const auto at = things_.find(thing);
        if (at == things_.end()) return;
        for (const auto& one : at->second) count_down(one.by);
        things_.erase(at);
    }
    /// A process is lost, with all its handles. Gives the things that nobody holds any more, in
    /// order.
    [[nodiscard]] std::vector<Id> lose(peer_id holder) {
        return lose_some(holder, [](const entry&) { return true; });
    }
    /// The same, but handles that were lent to it count until lose(): an actor that lived there and
    /// is made again elsewhere has them again.
    [[nodiscard]] std::vector<Id> lose_but_lent(peer_id holder) {
        return lose_some(holder, [](const entry& one) { return !one.is_lent; });
    }

    [[nodiscard]] bool is_held(Id thing) const { return things_.contains(thing); }
    /// Some process holds the thing besides that one.
    [[nodiscard]] bool is_held_besides(peer_id holder, Id thing) const {
        const auto at = things_.find(thing);
        return at != things_.end() && (at->second.size() > 1 || at->second.front().by != holder);
    }
    [[nodiscard]] bool is_held_by(peer_id holder, Id thing) const {
        const auto at = things_.find(thing);
        return at != things_.end() &&
               std::any_of(at->second.begin(), at->second.end(),
                           [&](const entry& one) { return one.by == holder; });
    }
    /// The number of things that a process holds.
    [[nodiscard]] std::size_t count(peer_id holder) const {
        const auto at = counts_.find(holder);
        return at == counts_.end() ? 0 : at->second;
    }

private:
    struct entry {
        peer_id by;
        std::uint32_t times = 0; ///< at least 1
        bool is_lent = false;
    };
    using entries = std::vector<entry>;

    [[nodiscard]] static typename entries::iterator find(entries& all, peer_id holder) {
        return std::find_if(all.begin(), all.end(), [&](auto& one) { return one.by == holder; });
    }
    void count_down(peer_id holder) {
        const auto at = counts_.find(holder);
        if (--at->second == 0) counts_.erase(at);
    }
    template <class IsOver>
    [[nodiscard]] std::vector<Id> lose_some(peer_id holder, IsOver is_over) {
        std::vector<Id> unheld;
        auto left = count(holder);
        for (auto at = things_.begin(); at != things_.end() && left > 0;) {
            auto& all = at->second;
            const auto found = find(all, holder);
            if (found != all.end()) --left;
            if (found != all.end() && is_over(*found)) {
                all.erase(found);
                count_down(holder);
            }
            if (!all.empty()) {
                ++at;
                continue;
            }
            unheld.push_back(at->first);
            at = things_.erase(at);
        }
        std::sort(unheld.begin(), unheld.end());
        return unheld;
    }

    std::unordered_map<Id, entries> things_;          ///< that somebody holds
    std::unordered_map<peer_id, std::size_t> counts_; ///< of the entries, by who holds
};

/// A holder's side: the things to which there are handles in this process, and how often their
/// owner knows of that.
template <class Id>
class borrows {
public:
    /// The first handle to the thing is here. It came in a call: who made that holds the thing
    /// until the answer, and the owner does not know of the handle.
    void borrow(Id thing) { untold_.insert(thing); }
    /// A handle is here that the owner has counted.
    void hold(Id thing) {
        untold_.erase(thing);
        ++counted_[thing].times;
    }
    /// A handle has come in a call, and the owner is told of that at once, as often as the thing
    /// comes anew. False: it was told before.
    [[nodiscard]] bool lend(Id thing) {
        untold_.erase(thing);
        auto& known = counted_[thing];
        if (std::exchange(known.is_lent, true)) return false;
        ++known.times;
        return true;
    }
    /// Some handles are here that the owner does not know of.
    [[nodiscard]] bool has_untold() const noexcept { return !untold_.empty(); }
    /// Gives the things of those handles, in order: the owner is to be told once of each.
    [[nodiscard]] std::vector<Id> tell() {
        std::vector<Id> all(untold_.begin(), untold_.end());
        untold_.clear();
        std::sort(all.begin(), all.end());
        for (const auto thing : all) ++counted_[thing].times;
        return all;
    }
    /// The last handle to the thing is gone. Gives how often the owner knows of it, which gets just
    /// that back.
    [[nodiscard]] std::uint32_t let_go(Id thing) {
        const auto at = counted_.find(thing);
        if (at == counted_.end()) {
            untold_.erase(thing);
            return 0;
        }
        const auto times = at->second.times;
        counted_.erase(at);
        return times;
    }
    /// The owner knows of handles here.
    [[nodiscard]] bool is_counted(Id thing) const { return counted_.contains(thing); }

private:
    struct entry {
        std::uint32_t times = 0; ///< at least 1
        bool is_lent = false;
    };
    std::unordered_map<Id, entry> counted_;
    std::unordered_set<Id> untold_;
};

/// Processes that are lost, and the actors of theirs that are made again: until all of them are
/// back, or ended, the handles that they have again elsewhere count as held by the lost process.
class late_holders {
public:
    void await(peer_id lost, std::vector<actor_id> actors) { waits_[lost] = std::move(actors); }
    [[nodiscard]] bool contains(peer_id lost) const { return waits_.contains(lost); }
    /// An actor is back, or ended. Gives the processes of which no other is awaited: what they held
    /// is over now.
    [[nodiscard]] std::vector<peer_id> settle(actor_id actor) {
        std::vector<peer_id> over;
        for (auto& [lost, awaited] : waits_) {
            std::erase(awaited, actor);
            if (awaited.empty()) over.push_back(lost);
        }
        for (const auto lost : over) waits_.erase(lost);
        return over;
    }

private:
    std::map<peer_id, std::vector<actor_id>> waits_;
};

/// Things to which handles are in the result that is being encoded: who gets the result holds them.
/// Kept: a handle to a thing of another namespace, which has a count of its own.
template <class Id, class Kept>
class lent_handles {
public:
    /// A result begins.
    void clear() noexcept {
        known_.clear();
        foreign_.clear();
    }
    void add(Id thing) {
        if (std::find(known_.begin(), known_.end(), thing) == known_.end()) known_.push_back(thing);
    }
    void add_foreign(Kept handle) { foreign_.push_back(std::move(handle)); }
    [[nodiscard]] bool empty() const noexcept { return known_.empty() && foreign_.empty(); }
    /// Each once, in the order of the result.
    [[nodiscard]] const std::vector<Id>& known() const noexcept { return known_; }
    [[nodiscard]] const std::vector<Kept>& foreign() const noexcept { return foreign_; }

private:
    std::vector<Id> known_;
    std::vector<Kept> foreign_;
};

} // namespace detail
} // namespace skein::rt
