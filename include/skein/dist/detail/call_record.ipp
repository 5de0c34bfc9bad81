// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/dist/call_record.hpp>.

#include <algorithm>

#include <fmt/core.h>

namespace skein::dist {

SKEIN_INLINE detail::signature call_record::add(detail::signature what) {
    const std::lock_guard lock(guard_);
    what.sequence = ++calls_;
    for (const std::uint64_t word : {what.sequence, what.count, what.detail, what.tag,
                                     std::uint64_t{static_cast<std::uint8_t>(what.kind)} << 24 |
                                         std::uint64_t{static_cast<std::uint8_t>(what.type)} << 16 |
                                         std::uint64_t{static_cast<std::uint8_t>(what.op)} << 8 |
                                         std::uint64_t{static_cast<std::uint8_t>(what.into)}})
        hash_.number(word);
    last_.push_back(what);
    if (last_.size() > most) last_.pop_front();
    return what;
}

SKEIN_INLINE std::uint64_t call_record::mark() const {
    const std::lock_guard lock(guard_);
    return hash_.value();
}

SKEIN_INLINE std::vector<detail::signature> call_record::last() const {
    const std::lock_guard lock(guard_);
    return {last_.begin(), last_.end()};
}

SKEIN_INLINE std::optional<error> unlike_calls(
    std::span<const std::vector<detail::signature>> by_rank) {
    if (by_rank.empty()) return std::nullopt;
    const auto call_of = [&](std::size_t rank, std::uint64_t number) {
        const auto& calls = by_rank[rank];
        const auto found = std::ranges::find(calls, number, &detail::signature::sequence);
        return found == calls.end() ? detail::signature{} : *found;
    };
    // From the first call that every rank still has: before it nothing can be said.
    std::uint64_t first = 1, end = 0;
    for (const auto& calls : by_rank) {
        if (calls.empty()) continue;
        first = std::max(first, calls.front().sequence);
        end = std::max(end, calls.back().sequence);
    }
    for (auto number = first; number <= end; ++number) {
        const auto one = call_of(0, number);
        for (std::size_t r = 1; r < by_rank.size(); ++r)
            if (const auto other = call_of(r, number); other != one)
                return detail::mismatch_error(0, one, static_cast<int>(r), other);
    }
    return std::nullopt;
}

} // namespace skein::dist
