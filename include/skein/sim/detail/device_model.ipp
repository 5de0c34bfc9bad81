// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of a model behind its lock, and what tests ask of it.

#include <skein/core/config.hpp>
#include <skein/sim/detail/modelled_memory.hpp>
#include <skein/sim/detail/modelled_nccl.hpp>
#include <skein/sim/detail/modelled_streams.hpp>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace skein::sim {

struct device_model::state {
    explicit state(const device_model_options& o)
        : options(o), memory(o.devices, o.bytes_each), streams(o.devices, memory, o.seed),
          nccl(streams, memory, o.nccl_version) {}

    /// Something has changed for those who wait.
    void changed() { came.notify_all(); }
    /// Runs work of all streams until `done`. False: it cannot come.
    template <class Done>
    bool drive(std::unique_lock<std::mutex>& lock, Done done) {
        constexpr auto minute = std::chrono::minutes(1);
        while (!done()) {
            if (streams.run_one()) {
                changed();
                continue;
            }
            if (done()) break;
            if (options.is_one_thread || came.wait_for(lock, minute) == std::cv_status::timeout) {
                memory.complain("the host waits for work that cannot end");
                return false;
            }
        }
        return true;
    }
    /// What runs beside a caller that only asks: a little, or nothing.
    void run_a_little() {
        for (auto n = streams.random().below(4); n > 0 && streams.run_one(); --n) changed();
    }
    void touch(const std::string& what, const std::vector<device_bytes>& of,
               std::vector<detail::touched_bytes>& to) {
        for (const auto& b : of) {
            if (b.bytes > 0 && memory.is_pageable(b.at))
                memory.complain(what + " of pageable memory waits for the device");
            to.push_back({b.at, b.bytes, b.writes});
        }
    }
    bool submit(dist::cuda_stream on, const std::string& what, const std::vector<device_bytes>& of,
                std::function<void()> work) {
        const int stream = streams.index_of(on);
        if (stream < 0) {
            memory.complain(what + " on a stream that is not there");
            return false;
        }
        std::vector<detail::touched_bytes> touches;
        touch(what, of, touches);
        streams.submit(stream, what, touches, std::move(work));
        changed();
        return true;
    }

    std::mutex guard; // all of it
    std::condition_variable came;
    device_model_options options;
    detail::modelled_memory memory;
    detail::modelled_streams streams;
    detail::modelled_nccl nccl;
};

SKEIN_INLINE device_model::device_model(device_model_options options)
    : state_(std::make_shared<state>(options)) {}
SKEIN_INLINE device_model::~device_model() = default;

SKEIN_INLINE void device_model::launch(dist::cuda_stream on, const std::string& what,
                                       const std::vector<device_bytes>& of,
                                       std::function<void()> work) const {
    const std::lock_guard lock(state_->guard);
    (void)state_->submit(on, what, of, std::move(work));
}
SKEIN_INLINE void device_model::host_touches(device_bytes of, const std::string& what) const {
    const std::lock_guard lock(state_->guard);
    state_->streams.host_touches({of.at, of.bytes, of.writes}, what);
}

SKEIN_INLINE void device_model::fail(int device, dist::nccl_result with) const {
    const std::lock_guard lock(state_->guard);
    state_->nccl.trouble(device, {.state = with, .hangs = true});
    state_->changed();
}
SKEIN_INLINE void device_model::hang(int device) const {
    const std::lock_guard lock(state_->guard);
    state_->nccl.trouble(device, {.state = dist::nccl_result::success, .hangs = true});
}
SKEIN_INLINE void device_model::pause(int device) const {
    const std::lock_guard lock(state_->guard);
    state_->streams.stop(device, true);
}
SKEIN_INLINE void device_model::resume(int device) const {
    const std::lock_guard lock(state_->guard);
    state_->streams.stop(device, false);
    state_->changed();
}

SKEIN_INLINE bool device_model::run_one() const {
    const std::lock_guard lock(state_->guard);
    const bool ran = state_->streams.run_one();
    if (ran) state_->changed();
    return ran;
}
SKEIN_INLINE std::size_t device_model::pending() const {
    const std::lock_guard lock(state_->guard);
    return state_->streams.pending();
}
SKEIN_INLINE std::vector<std::string> device_model::complaints() const {
    const std::lock_guard lock(state_->guard);
    return state_->memory.complaints();
}

} // namespace skein::sim
