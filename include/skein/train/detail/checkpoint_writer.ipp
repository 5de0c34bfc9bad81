// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/checkpoint_writer.hpp>.

#include <skein/core/check.hpp>

#include <exception>
#include <utility>

#include <pthread.h>
#include <signal.h>

namespace skein::train {

SKEIN_INLINE checkpoint_writer::~checkpoint_writer() {
    if (!thread_.joinable()) return;
    {
        const std::lock_guard lock(mutex_);
        leaves_ = true;
        changed_.notify_all();
    }
    thread_.join();
}

SKEIN_INLINE void checkpoint_writer::begin(save_function save) {
    const std::lock_guard lock(mutex_);
    SKEIN_CHECK(!save_ && !outcome_, "a save begins while another one is being made");
    save_ = std::move(save);
    if (thread_.joinable())
        changed_.notify_all();
    else
        thread_ = std::thread([this] { main(); });
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

SKEIN_INLINE void checkpoint_writer::main() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    pthread_setname_np(pthread_self(), "checkpoints");
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return save_ != nullptr || leaves_; });
        if (save_ == nullptr) return;
        lock.unlock(); // save_ is this thread's until it is reset
        std::optional<result<saved_checkpoint>> made;
        try {
            made.emplace(save_());
        } catch (...) {
            made.emplace(to_error(std::current_exception()));
        }
        lock.lock();
        save_ = nullptr;
        outcome_ = std::move(made);
        changed_.notify_all();
    }
}

} // namespace skein::train
