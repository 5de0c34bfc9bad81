// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of net/request_budget.hpp.

#include <algorithm>

#include <fmt/core.h>

namespace skein::net {

SKEIN_INLINE std::shared_ptr<request_load> request_budget::share_of(std::uint64_t incarnation) {
    if (incarnation == 0) return std::make_shared<request_load>();
    auto& slot = peers_[incarnation];
    auto known = slot.lock();
    if (known == nullptr) slot = known = std::make_shared<request_load>();
    if (peers_.size() < sweep_at_) return known;
    std::erase_if(peers_, [](const auto& p) { return p.second.expired(); });
    sweep_at_ = std::max<std::size_t>(64, 2 * peers_.size());
    return known;
}

namespace detail {

/// How one kind of load is called.
struct load_words {
    std::string_view what, bound;
};

[[nodiscard]] inline load_words words_of(request_hold::field what) noexcept {
    if (what == &request_load::running) return {"requests that run", "running"};
    if (what == &request_load::request_bytes) return {"bytes of requests", "request_bytes"};
    if (what == &request_load::assembling_bytes)
        return {"bytes of large messages that arrive", "assembling_bytes"};
    return {"bytes of replies that wait to be read", "reply_bytes"};
}

} // namespace detail

SKEIN_INLINE std::optional<error> over_budget(request_hold::field what, std::size_t amount,
                                              const request_load& most, const request_load& held,
                                              bool of_all, std::string_view peer, bool alone) {
    const std::size_t now = held.*what, bound = most.*what;
    if (amount <= bound && now <= bound - amount) return std::nullopt;
    if (alone && now == 0) return std::nullopt;
    const auto words = detail::words_of(what);
    return error(errc::exhausted,
                 fmt::format("no room for {} more of {}: {} {} are held for {}, {} {} is {}",
                             amount, peer, now, words.what, of_all ? "all peers" : "it",
                             of_all ? "the bound of all" : "its bound", words.bound, bound))
        .with_hint("ask again when replies have come, and read them");
}

} // namespace skein::net
