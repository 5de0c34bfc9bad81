// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the communicators of one process over NCCL share: the libraries, one lock around them, and
// one end.
//
// When one communicator fails, all are aborted, in one group call: aborted one after the other they
// wait for each other's kernels.

#include <skein/core/error.hpp>
#include <skein/dist/cuda_runtime.hpp>
#include <skein/dist/device_math.hpp>
#include <skein/dist/nccl.hpp>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace skein::dist {

/// The libraries of a process and its communicators over them. Any thread.
class nccl_domain {
public:
    /// math may be null: then what needs it is refused.
    nccl_domain(cuda_runtime cuda, nccl_library nccl, std::shared_ptr<device_math> math = {});
    nccl_domain(const nccl_domain&) = delete;
    nccl_domain& operator=(const nccl_domain&) = delete;

    /// One communicator of the process. Its fields are the domain's, behind the lock.
    struct member {
        nccl_comm comm = nullptr; ///< null: not yet, or not any more
        int device = 0;
        std::optional<error> failed;
    };

    [[nodiscard]] const cuda_runtime& cuda() const noexcept { return cuda_; }
    [[nodiscard]] const nccl_library& nccl() const noexcept { return nccl_; }
    [[nodiscard]] device_math* math() const noexcept { return math_.get(); }

    /// Throws the domain's error, if it has failed.
    [[nodiscard]] std::shared_ptr<member> enter(int device);
    void leave(const std::shared_ptr<member>& who) noexcept;
    /// Calls NCCL for a member with its device as the thread's, while nobody else does.
    ///   call    gives a nccl_result, of (nccl_library, member)
    ///   errors  the member's, when it has failed
    template <class Call>
    nccl_result with(member& who, Call call) {
        const std::lock_guard lock(guard_);
        if (who.failed) throw *who.failed;
        (void)cuda_.set_device(who.device);
        return call(nccl_, who);
    }
    /// The error of a member; none: it goes on.
    [[nodiscard]] std::optional<error> failure(const member& who) const;
    /// Aborts the communicators of all members. The first error is that of all, and of those who
    /// enter later.
    void abort_all(const error& why) noexcept;

private:
    const cuda_runtime cuda_;
    const nccl_library nccl_;
    const std::shared_ptr<device_math> math_;
    mutable std::mutex guard_; // the fields below, and NCCL
    std::vector<std::shared_ptr<member>> members_;
    std::optional<error> failed_;
};

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/nccl_domain.ipp>
#endif
