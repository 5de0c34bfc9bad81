// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of objects/store_book.hpp.

#include <skein/objects/arena.hpp>

#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <utility>

#include <fmt/format.h>

namespace skein::objects {

namespace detail {

[[nodiscard]] inline std::uint64_t whole_pages(std::uint64_t bytes) noexcept {
    return (bytes + arena::page - 1) / arena::page * arena::page;
}

/// Among the gifts of a process: there will be no more. No object has that number.
inline constexpr object_number declined;

[[nodiscard]] SKEIN_INLINE error not_known(process_id by, object_number which, const char* what) {
    return {errc::malformed, fmt::format("process {:x} {} object {}, which it does not hold",
                                         by.value(), what, which.value())};
}

} // namespace detail

SKEIN_INLINE store_book::store_book(std::uint64_t bytes)
    : bytes_(bytes / arena::page * arena::page) {
    if (bytes_ > 0) free_.emplace(0, bytes_);
}

SKEIN_INLINE void store_book::begin(process_id who) { processes_[who].is_seen = true; }

SKEIN_INLINE void store_book::end(process_id who) {
    ended_.insert(who);
    const auto found = processes_.find(who);
    if (found == processes_.end()) return;
    const auto gone = std::move(found->second);
    processes_.erase(found);
    for (const auto& [which, times] : gone.pins)
        if (const auto of = objects_.find(which); of != objects_.end())
            change_pins(of->second, 0, times);
    for (const auto& [which, times] : gone.holds) {
        const auto of = objects_.find(which);
        if (of == objects_.end()) continue;
        if (gone.reads_freely) change_pins(of->second, 0, times);
        drop(which, of->second, times);
    }
}

SKEIN_INLINE bool store_book::fits(std::uint64_t bytes) const noexcept {
    return bytes > 0 && bytes <= bytes_;
}

SKEIN_INLINE std::optional<store_book::grant> store_book::create(process_id by,
                                                                 std::uint64_t bytes) {
    if (!fits(bytes) || has_ended(by)) return std::nullopt;
    const auto whole = detail::whole_pages(bytes);
    const auto at = take_place(object_number(last_ + 1), whole);
    if (!at) return std::nullopt;
    granted_ += whole;
    const object_number number(++last_);
    auto& made = objects_[number];
    made.at = *at;
    made.bytes = bytes;
    made.whole = whole;
    made.maker = by;
    hold(by, number, made);
    return grant{number, *at};
}

SKEIN_INLINE std::optional<std::uint64_t> store_book::take_place(object_number which,
                                                                 std::uint64_t whole) {
    // The first that is large enough: low places are used again, and their pages are there.
    const auto place = std::find_if(free_.begin(), free_.end(),
                                    [&](const auto& range) { return range.second >= whole; });
    if (place == free_.end()) return std::nullopt;
    const auto [at, free_bytes] = *place;
    free_.erase(place);
    if (free_bytes > whole) free_.emplace(at + whole, free_bytes - whole);
    touched_ = std::max(touched_, at + whole);
    used_ += whole;
    placed_.emplace(at, which);
    return at;
}

SKEIN_INLINE result<void> store_book::seal(process_id by, object_number which) {
    const auto found = objects_.find(which);
    if (found == objects_.end() || found->second.is_sealed || found->second.maker != by)
        return detail::not_known(by, which, "seals");
    found->second.is_sealed = true;
    granted_ -= found->second.whole;
    if (found->second.pins != 0) pinned_ += found->second.whole;
    found->second.last_use = ++uses_;
    return {};
}

SKEIN_INLINE result<void> store_book::give(process_id by, object_number which, process_id to,
                                           process_id holder) {
    const auto found = objects_.find(which);
    if (found == objects_.end() || !found->second.is_sealed ||
        held(holder ? holder : by, which) == 0)
        return detail::not_known(by, which, "gives away");
    if (has_ended(to)) return {};
    auto& gifts = processes_[to].gifts[by];
    if (gifts.contains(detail::declined))
        return {}; // its last words come behind the news of its end
    ++gifts[which];
    hold(to, which, found->second);
    return {};
}

SKEIN_INLINE result<void> store_book::take(process_id by, object_number which, process_id from) {
    const auto whose = processes_.find(by);
    if (whose == processes_.end()) return detail::not_known(by, which, "takes");
    auto& gifts = whose->second.gifts;
    const auto giver = gifts.find(from);
    if (giver == gifts.end()) return detail::not_known(by, which, "takes");
    const auto count = giver->second.find(which);
    if (count == giver->second.end()) return detail::not_known(by, which, "takes");
    if (--count->second == 0) giver->second.erase(count);
    if (giver->second.empty()) gifts.erase(giver);
    return {};
}

SKEIN_INLINE void store_book::decline(process_id by, process_id from) {
    if (has_ended(by)) return;
    const auto left = std::exchange(processes_[by].gifts[from], {{detail::declined, 1}});
    for (const auto& [which, times] : left)
        if (which != detail::declined) (void)release(by, which, times);
}

SKEIN_INLINE std::optional<extent> store_book::claim(process_id by, object_number which) {
    const auto found = objects_.find(which);
    if (found == objects_.end() || !found->second.is_sealed || has_ended(by) ||
        found->second.holds == 0)
        return std::nullopt;
    hold(by, which, found->second);
    found->second.last_use = ++uses_;
    return extent{found->second.at, found->second.bytes};
}

SKEIN_INLINE result<void> store_book::release(process_id by, object_number which,
                                              std::uint32_t times) {
    const auto whose = processes_.find(by);
    if (whose == processes_.end()) return detail::not_known(by, which, "releases");
    const auto count = whose->second.holds.find(which);
    if (count == whose->second.holds.end() || times == 0 || times > count->second)
        return detail::not_known(by, which, "releases");
    auto& of = objects_.at(which);
    if (whose->second.reads_freely) change_pins(of, 0, times);
    count->second -= times;
    if (count->second == 0) {
        whose->second.holds.erase(count);
        if (const auto pins = whose->second.pins.find(which); pins != whose->second.pins.end()) {
            change_pins(of, 0, pins->second); // who holds nothing reads nothing
            whose->second.pins.erase(pins);
        }
    }
    drop(which, of, times);
    return {};
}

SKEIN_INLINE void store_book::end_unseen(process_id who) {
    const auto found = processes_.find(who);
    if (found == processes_.end() || !found->second.is_seen) end(who);
}

SKEIN_INLINE std::vector<extent> store_book::take_free_pages() {
    std::vector<extent> all;
    for (const auto& [at, bytes] : free_)
        if (at < touched_) all.push_back({at, std::min(bytes, touched_ - at)});
    if (!all.empty() && all.back().at + all.back().bytes == touched_) touched_ = all.back().at;
    return all;
}

SKEIN_INLINE store_usage store_book::usage() const noexcept {
    store_usage now;
    now.bytes = bytes_;
    now.granted = granted_;
    now.sealed = used_ - granted_;
    now.kept = touched_ > used_ ? touched_ - used_ : 0;
    now.pinned = pinned_;
    now.away = away_;
    now.objects = objects_.size();
    for (const auto& [who, of] : processes_) now.processes += of.is_seen;
    return now;
}

SKEIN_INLINE std::uint32_t store_book::held(process_id by, object_number which) const {
    const auto whose = processes_.find(by);
    if (whose == processes_.end()) return 0;
    const auto count = whose->second.holds.find(which);
    return count == whose->second.holds.end() ? 0 : count->second;
}

SKEIN_INLINE void store_book::hold(process_id by, object_number which, entry& of) {
    auto& who = processes_[by];
    ++who.holds[which];
    ++of.holds;
    if (who.reads_freely) change_pins(of, 1, 0);
}

SKEIN_INLINE void store_book::drop(object_number which, entry& of, std::uint64_t times) {
    of.holds -= times;
    if (of.holds == 0 && of.work == 0) forget(which, of);
}

SKEIN_INLINE void store_book::change_pins(entry& of, std::uint64_t more, std::uint64_t less) {
    const bool was = of.pins != 0;
    of.pins += more;
    of.pins -= less;
    if (!of.is_sealed || was == (of.pins != 0)) return;
    if (was)
        pinned_ -= of.whole;
    else
        pinned_ += of.whole;
}

SKEIN_INLINE void store_book::free_place(entry& of) {
    used_ -= of.whole;
    placed_.erase(of.at);
    free(of.at, of.whole);
    of.has_place = of.is_here = false;
}

SKEIN_INLINE void store_book::forget(object_number which, entry& of) {
    change_pins(of, 0, of.pins);
    if (!of.is_sealed) granted_ -= of.whole;
    if (!of.is_here) away_ -= of.bytes;
    if (of.has_place) free_place(of);
    if (of.has_copy) gone_.push_back(which);
    objects_.erase(which);
}

SKEIN_INLINE void store_book::free(std::uint64_t at, std::uint64_t bytes) {
    auto next = free_.lower_bound(at);
    if (next != free_.begin()) {
        const auto before = std::prev(next);
        if (before->first + before->second == at) {
            at = before->first;
            bytes += before->second;
            free_.erase(before);
        }
    }
    if (next != free_.end() && at + bytes == next->first) {
        bytes += next->second;
        free_.erase(next);
    }
    free_.emplace(at, bytes);
}

// ---- who reads ---------------------------------------------------------------------------------

SKEIN_INLINE void store_book::read_freely(process_id who) {
    auto& whose = processes_[who];
    if (std::exchange(whose.reads_freely, true)) return;
    for (const auto& [which, times] : whose.holds) change_pins(objects_.at(which), times, 0);
}

SKEIN_INLINE result<void> store_book::read_only_what_is_pinned(
    process_id who, const std::vector<object_pins>& these, bool is_last) {
    const auto found = processes_.find(who);
    if (found == processes_.end()) return {};
    auto& whose = found->second;
    for (const auto& one : these) {
        if (!whose.holds.contains(one.which) || one.times == 0)
            return detail::not_known(who, one.which, "reads");
        whose.pins[one.which] += one.times;
        change_pins(objects_.at(one.which), one.times, 0);
    }
    if (is_last && std::exchange(whose.reads_freely, false))
        for (const auto& [which, times] : whose.holds) change_pins(objects_.at(which), 0, times);
    return {};
}

SKEIN_INLINE store_book::presence store_book::find(process_id by, object_number which) const {
    const auto found = objects_.find(which);
    if (found == objects_.end() || !found->second.is_sealed || held(by, which) == 0)
        return presence::gone;
    return found->second.is_here ? presence::here : presence::away;
}

SKEIN_INLINE extent store_book::pin(process_id by, object_number which) {
    auto& of = objects_.at(which);
    ++processes_[by].pins[which];
    change_pins(of, 1, 0);
    of.last_use = ++uses_;
    return {of.at, of.bytes};
}

SKEIN_INLINE result<void> store_book::unpin(process_id by, object_number which,
                                            std::uint32_t times) {
    const auto whose = processes_.find(by);
    if (whose == processes_.end()) return detail::not_known(by, which, "unpins");
    const auto count = whose->second.pins.find(which);
    if (count == whose->second.pins.end() || times == 0 || times > count->second)
        return detail::not_known(by, which, "unpins");
    count->second -= times;
    if (count->second == 0) whose->second.pins.erase(count);
    auto& of = objects_.at(which);
    of.last_use = ++uses_;
    change_pins(of, 0, times);
    return {};
}

SKEIN_INLINE std::vector<std::pair<std::uint64_t, process_id>> store_book::most_pinned() const {
    std::vector<std::pair<std::uint64_t, process_id>> all;
    for (const auto& [who, of] : processes_) {
        std::uint64_t sum = 0;
        for (const auto& [which, times] : of.reads_freely ? of.holds : of.pins)
            sum += objects_.at(which).whole;
        if (sum != 0) all.emplace_back(sum, who);
    }
    std::sort(all.begin(), all.end(), std::greater<>());
    if (all.size() > 3) all.resize(3);
    return all;
}

// ---- files -------------------------------------------------------------------------------------

SKEIN_INLINE void store_book::keep(object_number which) {
    auto& of = objects_.at(which);
    ++of.work;
    change_pins(of, 1, 0);
}

SKEIN_INLINE void store_book::let(object_number which) {
    auto& of = objects_.at(which);
    change_pins(of, 0, 1);
    if (--of.work == 0 && of.holds == 0) forget(which, of);
}

/// A part of the arena: free (then without a number), or of an object.
struct store_book::block {
    std::uint64_t bytes = 0, last_use = 0;
    object_number number;
};

SKEIN_INLINE std::vector<object_number> store_book::least_used(std::uint64_t bytes) const {
    const auto whole = detail::whole_pages(bytes);
    std::deque<block> row;
    std::deque<std::uint64_t> newest;     ///< last uses that no later one in the row exceeds
    std::uint64_t in_row = 0, in_use = 0; ///< bytes, and those of objects
    auto best = std::pair(~std::uint64_t{0}, std::uint64_t{0});
    std::vector<object_number> chosen;
    const auto cut = [&] {
        if (!newest.empty() && newest.front() == row.front().last_use) newest.pop_front();
        in_row -= row.front().bytes;
        if (row.front().number) in_use -= row.front().bytes;
        row.pop_front();
    };
    const auto add = [&](const block& one) {
        row.push_back(one);
        in_row += one.bytes;
        if (one.number) in_use += one.bytes;
        while (!newest.empty() && newest.back() < one.last_use) newest.pop_back();
        newest.push_back(one.last_use);
        while (in_row - row.front().bytes >= whole) cut();
        if (in_row < whole || std::pair(newest.front(), in_use) >= best) return;
        best = {newest.front(), in_use};
        chosen.clear();
        for (const auto& part : row)
            if (part.number) chosen.push_back(part.number);
    };
    auto free = free_.begin();
    for (const auto& [at, number] : placed_) {
        for (; free != free_.end() && free->first < at; ++free) add({free->second, 0, {}});
        const auto& of = objects_.at(number);
        if (of.is_sealed && of.is_here && of.pins == 0) {
            add({of.whole, of.last_use, number});
        } else {
            row.clear();
            newest.clear();
            in_row = in_use = 0;
        }
    }
    for (; free != free_.end(); ++free) add({free->second, 0, {}});
    return chosen;
}

SKEIN_INLINE extent store_book::where(object_number which) const {
    const auto& of = objects_.at(which);
    return {of.at, of.bytes};
}

SKEIN_INLINE bool store_book::has_copy(object_number which) const {
    return objects_.at(which).has_copy;
}

SKEIN_INLINE void store_book::set_copy(object_number which, bool is_there) {
    objects_.at(which).has_copy = is_there;
}

SKEIN_INLINE bool store_book::send_away(object_number which) {
    const auto found = objects_.find(which);
    if (found == objects_.end()) return false;
    auto& of = found->second;
    if (of.pins != 0 || !of.is_here || !of.has_copy) return false;
    free_place(of);
    away_ += of.bytes;
    return true;
}

SKEIN_INLINE std::optional<std::uint64_t> store_book::place(object_number which) {
    auto& of = objects_.at(which);
    const auto at = take_place(which, of.whole);
    if (!at) return std::nullopt;
    of.at = *at;
    of.has_place = true;
    return at;
}

SKEIN_INLINE void store_book::placed(object_number which, bool is_read) {
    auto& of = objects_.at(which);
    if (!is_read) return free_place(of);
    of.is_here = true;
    away_ -= of.bytes;
    of.last_use = ++uses_;
}

SKEIN_INLINE std::vector<object_number> store_book::copies() const {
    std::vector<object_number> all;
    for (const auto& [which, of] : objects_)
        if (of.has_copy && of.is_here) all.push_back(which);
    return all;
}

} // namespace skein::objects
