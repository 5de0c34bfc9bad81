// SPDX-License-Identifier: Apache-2.0
#pragma once
// The end of all communicators of a process.

#include <utility>

namespace skein::dist {

SKEIN_INLINE nccl_domain::nccl_domain(cuda_runtime cuda, nccl_library nccl,
                                      std::shared_ptr<device_math> math)
    : cuda_(std::move(cuda)), nccl_(std::move(nccl)), math_(std::move(math)) {}

SKEIN_INLINE std::shared_ptr<nccl_domain::member> nccl_domain::enter(int device) {
    const std::lock_guard lock(guard_);
    // A failed domain has nothing left of its own: a new generation may begin.
    if (failed_ && members_.empty()) failed_.reset();
    if (failed_) throw *failed_;
    auto made = std::make_shared<member>();
    made->device = device;
    members_.push_back(made);
    return made;
}

SKEIN_INLINE void nccl_domain::leave(const std::shared_ptr<member>& who) noexcept {
    const std::lock_guard lock(guard_);
    std::erase(members_, who);
}

SKEIN_INLINE std::optional<error> nccl_domain::failure(const member& who) const {
    const std::lock_guard lock(guard_);
    return who.failed;
}

SKEIN_INLINE void nccl_domain::abort_all(const error& why) noexcept {
    const std::lock_guard lock(guard_);
    if (failed_) return;
    failed_ = why;
    const bool is_grouped = nccl_.group_start() == nccl_result::success;
    for (const auto& m : members_) {
        m->failed = why;
        const nccl_comm comm = std::exchange(m->comm, nullptr);
        if (comm == nullptr) continue;
        (void)cuda_.set_device(m->device);
        (void)nccl_.abort(comm);
    }
    if (is_grouped) (void)nccl_.group_end();
}

} // namespace skein::dist
