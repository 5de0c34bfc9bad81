// SPDX-License-Identifier: Apache-2.0
#pragma once
// Copies between the memory of one device and pinned memory of the host, for one operation at a
// time.
//
// They run on a stream of their own, behind what is on the work stream when they are put there.

#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/dist/buffer.hpp>
#include <skein/dist/cuda_runtime.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace skein::dist::detail {

/// A buffer of an operation, and where its bytes are on the host meanwhile.
struct pinned_part {
    buffer_view of;   ///< the caller's
    buffer_view host; ///< pinned; the caller's own where that is the host's
};

/// Of one device. On its loop's thread.
class pinned_lane {
public:
    /// work: a stream of the device; null: its default one.
    pinned_lane(const cuda_runtime& cuda, int device, cuda_stream work);
    pinned_lane(const pinned_lane&) = delete;
    pinned_lane& operator=(const pinned_lane&) = delete;
    /// Where copies are in flight, what they use is left to the end of the process.
    ~pinned_lane();

    [[nodiscard]] int device() const noexcept { return device_; }
    /// Pinned memory for one operation; what an earlier one had is void.
    ///   errors  exhausted; timeout: copies of an earlier operation, which gave up, are in flight
    [[nodiscard]] std::byte* room(std::size_t bytes);
    /// Copies to the host, then back, and ends when the host knows that they are done. bring() comes
    /// first, with no parts where nothing is read: it puts both behind the work stream.
    ///   errors  timeout: the device did not do it by then; those of cuda_check()
    task<void> bring(std::vector<pinned_part> parts, time_point until);
    task<void> take(std::vector<pinned_part> parts, time_point until);
    /// Ends when nothing is in flight, or at `until`.
    task<void> idle(time_point until);

private:
    void copy(const pinned_part& part, bool to_host);
    void end();
    task<void> reached(time_point until);
    void use_device() const;

    const cuda_runtime& cuda_;
    const int device_;
    const cuda_stream work_;
    cuda_stream stream_ = nullptr;
    cuda_event ready_ = nullptr, done_ = nullptr;
    void* memory_ = nullptr;
    std::size_t bytes_ = 0;
};

} // namespace skein::dist::detail

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/pinned_lane.ipp>
#endif
