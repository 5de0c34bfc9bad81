// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of objects/store_book.hpp.

#include <skein/objects/arena.hpp>

#include <algorithm>
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
    const auto holds = std::move(found->second.holds);
    processes_.erase(found);
    for (const auto& [which, times] : holds)
        if (const auto of = objects_.find(which); of != objects_.end())
            drop(which, of->second, times);
}

SKEIN_INLINE bool store_book::fits(std::uint64_t bytes) const noexcept {
    return bytes > 0 && bytes <= bytes_;
}

SKEIN_INLINE std::optional<store_book::grant> store_book::create(process_id by,
                                                                 std::uint64_t bytes) {
    if (!fits(bytes) || has_ended(by)) return std::nullopt;
    const auto whole = detail::whole_pages(bytes);
    // The first that is large enough: low places are used again, and their pages are there.
    const auto place = std::find_if(free_.begin(), free_.end(),
                                    [&](const auto& range) { return range.second >= whole; });
    if (place == free_.end()) return std::nullopt;
    const auto [at, free_bytes] = *place;
    free_.erase(place);
    if (free_bytes > whole) free_.emplace(at + whole, free_bytes - whole);
    touched_ = std::max(touched_, at + whole);
    used_ += whole;
    granted_ += whole;
    const object_number number(++last_);
    auto& made = objects_[number];
    made = {at, bytes, whole, false, by, 0};
    hold(by, number, made);
    return grant{number, at};
}

SKEIN_INLINE result<void> store_book::seal(process_id by, object_number which) {
    const auto found = objects_.find(which);
    if (found == objects_.end() || found->second.is_sealed || found->second.maker != by)
        return detail::not_known(by, which, "seals");
    found->second.is_sealed = true;
    granted_ -= found->second.whole;
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
    if (found == objects_.end() || !found->second.is_sealed || has_ended(by)) return std::nullopt;
    hold(by, which, found->second);
    return extent{found->second.at, found->second.bytes};
}

SKEIN_INLINE result<void> store_book::release(process_id by, object_number which,
                                              std::uint32_t times) {
    const auto whose = processes_.find(by);
    if (whose == processes_.end()) return detail::not_known(by, which, "releases");
    const auto count = whose->second.holds.find(which);
    if (count == whose->second.holds.end() || times == 0 || times > count->second)
        return detail::not_known(by, which, "releases");
    count->second -= times;
    if (count->second == 0) whose->second.holds.erase(count);
    drop(which, objects_.at(which), times);
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
    ++processes_[by].holds[which];
    ++of.holds;
}

SKEIN_INLINE void store_book::drop(object_number which, entry& of, std::uint64_t times) {
    of.holds -= times;
    if (of.holds != 0) return;
    used_ -= of.whole;
    if (!of.is_sealed) granted_ -= of.whole;
    free(of.at, of.whole);
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

} // namespace skein::objects
