// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/context.hpp>.

#include <skein/core/check.hpp>
#include <skein/core/constants.hpp>
#include <skein/dist/bootstrap.hpp>
#include <skein/dist/comm_thread.hpp>
#include <skein/dist/models.hpp>

#include <algorithm>
#include <utility>

#include <fmt/core.h>

namespace skein::train {

namespace detail {

SKEIN_INLINE void check_place(const world_info& where, const dist::comm_thread* comm) {
    SKEIN_CHECK(where.world_size >= 1, "world size {} < 1", where.world_size);
    SKEIN_CHECK(where.rank >= 0 && where.rank < where.world_size, "rank {} of {}", where.rank,
                where.world_size);
    SKEIN_CHECK(comm != nullptr || where.world_size == 1,
                "a world of {} ranks needs a communicator", where.world_size);
}

} // namespace detail

SKEIN_INLINE context::context(world_info where, spmd::rendezvous* world, dist::comm_thread* comm)
    : where_(std::move(where)), world_(world), comm_(comm) {
    detail::check_place(where_, comm_);
}

SKEIN_INLINE void context::rebind(world_info where, spmd::rendezvous* world,
                                  dist::comm_thread* comm) {
    detail::check_place(where, comm);
    std::erase_if(before_rebind_, [](const auto& each) { return each.expired(); });
    for (const auto& each : before_rebind_)
        if (const auto told = each.lock()) (*told)();
    control_.reset();
    groups_ = 0; // who joins later counts from the same number
    world_ = world;
    comm_ = comm;
    where_ = std::move(where);
}

SKEIN_INLINE std::shared_ptr<void> context::before_rebind(std::function<void()> told) const {
    auto kept = std::make_shared<std::function<void()>>(std::move(told));
    before_rebind_.push_back(kept);
    return kept;
}

SKEIN_INLINE dist::comm_thread* context::control() const {
    if (world_ == nullptr) return comm_;
    if (!control_ && where_.world_size > 1) {
        auto options = group_options("control");
        // Words, not tensors; and who writes a checkpoint may keep the others waiting.
        options.shm.chunk_bytes = std::min(options.shm.chunk_bytes, options.shm.small_bytes);
        options.limits.deadline =
            std::max<duration>(options.limits.deadline, time_constants::lan().checkpoint_timeout);
        control_ = dist::make_comm_thread(*world_, options);
    }
    return control_.get();
}

SKEIN_INLINE void context::watch_calls(
    const std::shared_ptr<const dist::call_record>& record) const {
    if (record) calls_.push_back(record);
}

SKEIN_INLINE std::vector<std::shared_ptr<const dist::call_record>> context::watched_calls() const {
    std::vector<std::shared_ptr<const dist::call_record>> all;
    if (comm_ != nullptr)
        if (auto of_world = dist::calls_of(*comm_)) all.push_back(std::move(of_world));
    std::erase_if(calls_, [](const auto& each) { return each.expired(); });
    for (const auto& each : calls_)
        if (auto held = each.lock()) all.push_back(std::move(held));
    return all;
}

SKEIN_INLINE void context::abort(const error& why) const noexcept {
    if (comm_ != nullptr) comm_->abort(why);
    if (control_) control_->abort(why);
}

SKEIN_INLINE void context::use_options(const dist::comm_options& options) {
    options_ = std::make_shared<const dist::comm_options>(options);
}

SKEIN_INLINE dist::comm_options context::group_options(const std::string& what) const {
    auto options = options_ ? *options_ : dist::comm_options{};
    // Of the runs in one world each has a communicator of its own name.
    const auto of = options.name == dist::comm_options{}.name ? what : options.name + "-" + what;
    options.name = fmt::format("{}-{}", of, groups_++);
    return options;
}

} // namespace skein::train
