// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/checkpoint_writer.hpp>.

#include <skein/core/check.hpp>
#include <skein/net/loop_thread.hpp>

#include <exception>
#include <utility>

namespace skein::train {

SKEIN_INLINE checkpoint_writer::checkpoint_writer() = default;
SKEIN_INLINE checkpoint_writer::~checkpoint_writer() { wait(); }

SKEIN_INLINE void checkpoint_writer::begin(save_function save) {
    if (!thread_) thread_ = std::make_unique<net::loop_thread>("checkpoints");
    {
        const std::lock_guard lock(mutex_);
        SKEIN_CHECK(!save_ && !outcome_, "a save begins while another one is being made");
        save_ = std::move(save);
    }
    thread_->loop().post_from_any_thread([this] { make(); });
}

SKEIN_INLINE bool checkpoint_writer::is_writing() const {
    const std::lock_guard lock(mutex_);
    return save_ != nullptr;
}

SKEIN_INLINE bool checkpoint_writer::has_ended() const {
    const std::lock_guard lock(mutex_);
    return outcome_.has_value();
}

SKEIN_INLINE bool checkpoint_writer::has_failed() const {
    const std::lock_guard lock(mutex_);
    return outcome_.has_value() && !outcome_->has_value();
}

SKEIN_INLINE void checkpoint_writer::wait() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return save_ == nullptr; });
}

SKEIN_INLINE bool checkpoint_writer::wait_for(duration most) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, most, [&] { return save_ == nullptr; });
}

SKEIN_INLINE result<saved_checkpoint> checkpoint_writer::take() {
    const std::lock_guard lock(mutex_);
    SKEIN_CHECK(outcome_.has_value(), "no save has ended");
    auto out = std::move(*outcome_);
    outcome_.reset();
    return out;
}

SKEIN_INLINE void checkpoint_writer::make() {
    std::optional<result<saved_checkpoint>> made;
    try {
        made.emplace(save_()); // this thread's until it is reset
    } catch (...) {
        made.emplace(to_error(std::current_exception()));
    }
    const std::lock_guard lock(mutex_);
    save_ = nullptr;
    outcome_ = std::move(made);
    changed_.notify_all();
}

} // namespace skein::train
