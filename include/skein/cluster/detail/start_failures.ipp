// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/start_failures.hpp.

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/core/backoff.hpp>
#include <skein/core/log.hpp>

#include <bit>

#include <fmt/format.h>

namespace skein::cluster::detail {

SKEIN_INLINE std::string failed_start_text(const std::string& node) {
    return fmt::format("a worker did not start{}{}: ", node.empty() ? "" : " on ", node);
}

SKEIN_INLINE std::uint64_t start_failures::count(const std::string& reason) {
    const bool is_counted = reasons_.size() < most_reasons || reasons_.contains(reason);
    return ++reasons_[is_counted ? reason : std::string()];
}

SKEIN_INLINE after_failed_start start_failures::failed(const failed_start& one, bool any_worker,
                                                       time_point now) {
    if (++in_a_row_ == 1) first_ = now;
    const auto reason = failed_start_text(one.node) + one.how;
    const bool no_folder = one.how.find("change to its folder") != one.how.npos;
    const auto hint = no_folder ? folder_hint : one.has_run ? ended_hint : start_hint;
    const auto times = count(reason);
    if (std::has_single_bit(times))
        logging::warn("cluster", reason, {{"times", times}, {"hint", hint}});
    constexpr int most_failures = 3;
    after_failed_start out;
    if (!any_worker && in_a_row_ >= most_failures && now >= deadline_after(first_, start_within_))
        out.gives_up = error(errc::worker_lost, reason).with_hint(std::string(hint));
    else
        out.pause = pause_after(in_a_row_ + 1, first_pause_, start_within_ / 4);
    return out;
}

SKEIN_INLINE void start_failures::on_other_node(const std::string& node, const std::string& how) {
    const auto reason =
        fmt::format("{} could not start a worker, another node is asked: {}", node, how);
    if (std::has_single_bit(count(reason))) logging::warn("cluster", reason);
}

SKEIN_INLINE void start_failures::came(const std::string& node) {
    in_a_row_ = 0;
    const auto of_node = failed_start_text(node);
    std::erase_if(reasons_, [&](const auto& one) { return one.first.starts_with(of_node); });
}

} // namespace skein::cluster::detail
