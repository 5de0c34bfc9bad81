// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/dist/detail/pinned_lane.hpp>.

#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/dist/detail/look_pauses.hpp>

#include <utility>

#include <fmt/core.h>

namespace skein::dist::detail {

SKEIN_INLINE pinned_lane::pinned_lane(const cuda_runtime& cuda, int device, cuda_stream work)
    : cuda_(cuda), device_(device), work_(work) {
    use_device();
    cuda_check(cuda_, cuda_.stream_create(&stream_, cuda_stream_non_blocking), "a stream");
    try {
        cuda_check(cuda_, cuda_.event_create(&ready_, cuda_event_disable_timing), "an event");
        cuda_check(cuda_, cuda_.event_create(&done_, cuda_event_disable_timing), "an event");
    } catch (...) {
        if (ready_ != nullptr) (void)cuda_.event_destroy(ready_);
        (void)cuda_.stream_destroy(stream_);
        throw;
    }
}

SKEIN_INLINE pinned_lane::~pinned_lane() {
    (void)cuda_.set_device(device_);
    if (cuda_.stream_query(stream_) == cuda_result::not_ready) return;
    if (memory_ != nullptr) (void)cuda_.release_host(memory_);
    (void)cuda_.event_destroy(ready_);
    (void)cuda_.event_destroy(done_);
    (void)cuda_.stream_destroy(stream_);
}

SKEIN_INLINE void pinned_lane::use_device() const {
    cuda_check(cuda_, cuda_.set_device(device_), fmt::format("cuda:{} current", device_));
}

SKEIN_INLINE std::byte* pinned_lane::room(std::size_t bytes) {
    if (memory_ != nullptr) {
        use_device();
        if (cuda_.stream_query(stream_) == cuda_result::not_ready) // an operation gave up on them
            throw error(
                errc::timeout,
                fmt::format("copies of an earlier collective are still in flight on cuda:{}",
                            device_))
                .with_hint("the device is busy or stuck; nvidia-smi shows who works on it");
    }
    if (bytes > bytes_) {
        use_device();
        if (memory_ != nullptr) (void)cuda_.release_host(std::exchange(memory_, nullptr));
        bytes_ = 0;
        cuda_check(cuda_, cuda_.allocate_host(&memory_, bytes, cuda_host_alloc_portable),
                   fmt::format("{} bytes of pinned memory", bytes));
        bytes_ = bytes;
    }
    return static_cast<std::byte*>(memory_);
}

SKEIN_INLINE void pinned_lane::copy(const pinned_part& part, bool to_host) {
    if (part.of.where.is_cpu() || part.of.bytes() == 0) return;
    void* const to = to_host ? part.host.data : part.of.data;
    const void* const from = to_host ? part.of.data : part.host.data;
    cuda_check(cuda_,
               cuda_.copy_async(to, from, part.of.bytes(),
                                to_host ? cuda_copy::device_to_host : cuda_copy::host_to_device,
                                stream_),
               fmt::format("a copy of {} bytes", part.of.bytes()));
}

/// What is put on the work stream from here on is behind the copies, too.
SKEIN_INLINE void pinned_lane::end() {
    cuda_check(cuda_, cuda_.event_record(done_, stream_), "an event");
    cuda_check(cuda_, cuda_.stream_wait_event(work_, done_, 0), "a wait for a copy");
}

SKEIN_INLINE task<void> pinned_lane::bring(std::vector<pinned_part> parts, time_point until) {
    use_device();
    cuda_check(cuda_, cuda_.event_record(ready_, work_), "an event on the work stream");
    cuda_check(cuda_, cuda_.stream_wait_event(stream_, ready_, 0), "a wait for the work stream");
    if (parts.empty()) co_return; // what take() writes is behind what the work stream reads there
    for (const auto& part : parts) copy(part, /*to_host=*/true);
    end();
    auto reaching = reached(until);
    co_await std::move(reaching);
}

SKEIN_INLINE task<void> pinned_lane::take(std::vector<pinned_part> parts, time_point until) {
    use_device();
    for (const auto& part : parts) copy(part, /*to_host=*/false);
    end();
    auto reaching = reached(until);
    co_await std::move(reaching);
}

SKEIN_INLINE task<void> pinned_lane::reached(time_point until) {
    look_pauses pauses;
    for (;;) {
        use_device();
        const cuda_result state = cuda_.event_query(done_);
        if (state == cuda_result::success) co_return;
        if (state != cuda_result::not_ready) cuda_check(cuda_, state, "a copy");
        if (loop::current().exact_now() >= until)
            throw error(errc::timeout,
                        fmt::format("copies of cuda:{} did not end by the deadline of the "
                                    "collective",
                                    device_))
                .with_hint("the device is busy or stuck; nvidia-smi shows who works on it");
        const duration pause = pauses.next();
        if (pause > duration::zero()) co_await sleep_for(pause);
    }
}

SKEIN_INLINE task<void> pinned_lane::idle(time_point until) {
    look_pauses pauses;
    while (loop::current().exact_now() < until) {
        (void)cuda_.set_device(device_);
        if (cuda_.stream_query(stream_) != cuda_result::not_ready) co_return;
        const duration pause = pauses.next();
        if (pause > duration::zero()) co_await sleep_for(pause);
    }
}

} // namespace skein::dist::detail
