// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/elastic_place.hpp>.

#include <skein/dist/bootstrap.hpp>
#include <skein/dist/comm_thread.hpp>
#include <skein/train/context.hpp>

#include <algorithm>
#include <utility>

namespace skein::train {

SKEIN_INLINE elastic_place::elastic_place(spmd::elastic_world& job, dist::comm_options options)
    : job_(&job), options_(std::move(options)) {}
SKEIN_INLINE elastic_place::~elastic_place() = default;

SKEIN_INLINE void elastic_place::release() noexcept {
    while (!before_.empty()) before_.pop_back();
}

SKEIN_INLINE bool elastic_place::move(context& ctx, spmd::world_end last, const std::string& why) {
    std::unique_ptr<spmd::rendezvous> next;
    try {
        next = job_->next(last, why);
    } catch (...) {
        over_ = true;
        throw;
    }
    if (!next) {
        over_ = true;
        return false;
    }
    if (now_.meeting) before_.push_back(std::move(now_));
    now_ = {};
    now_.meeting = std::move(next);
    if (now_.meeting->world_size() > 1) now_.comm = dist::make_comm_thread(*now_.meeting, options_);
    world_info where;
    where.rank = now_.meeting->rank();
    where.world_size = now_.meeting->world_size();
    where.local_rank = now_.meeting->local_rank();
    where.local_size = now_.meeting->local_size();
    where.attempt =
        std::max(0, now_.meeting->generation() - 1); // what there is already is gone on with
    where.host = now_.meeting->host();
    where.job_id = ctx.job_id();
    ctx.rebind(std::move(where), now_.meeting.get(), now_.comm.get());
    return true;
}

} // namespace skein::train
