// SPDX-License-Identifier: Apache-2.0
#pragma once
// mutex: mutual exclusion between tasks of one loop, first come first served. For state that must
// stay consistent across awaits; a thread is never blocked.
//
//     auto held = co_await m.lock();

#include <skein/core/wait.hpp>

#include <utility>

namespace skein {

/// A lock that tasks of one loop wait for; no thread is blocked. Neither copyable nor movable.
class mutex {
public:
    mutex() noexcept = default;
    mutex(const mutex&) = delete;
    mutex& operator=(const mutex&) = delete;

    /// Holds the lock until destroyed.
    class [[nodiscard]] guard {
    public:
        explicit guard(mutex& m) noexcept : mutex_(&m) {}
        guard(guard&& other) noexcept : mutex_(std::exchange(other.mutex_, nullptr)) {}
        guard& operator=(guard&& other) noexcept {
            if (this != &other) {
                unlock();
                mutex_ = std::exchange(other.mutex_, nullptr);
            }
            return *this;
        }
        ~guard() { unlock(); }
        /// Gives the lock to the first who waits; that task is resumed by the loop, not in this
        /// call.
        void unlock() noexcept {
            if (auto* m = std::exchange(mutex_, nullptr)) m->release();
        }

    private:
        mutex* mutex_;
    };

    class awaiter : public wait_queue::awaiter {
    public:
        explicit awaiter(mutex& m) noexcept : wait_queue::awaiter(m.waiting_, true), mutex_(m) {}
        bool await_ready() noexcept { return mutex_.try_acquire(); }
        guard await_resume() {
            throw_if_cancelled();
            return guard(mutex_);
        }

    private:
        mutex& mutex_;
    };
    /// Suspends until the lock is this task's; resumed by the loop. Throws cancelled; then the lock
    /// is not taken.
    [[nodiscard]] awaiter lock() noexcept { return awaiter(*this); }
    [[nodiscard]] bool is_locked() const noexcept { return locked_; }

private:
    bool try_acquire() noexcept { return !std::exchange(locked_, true); }
    void release() noexcept {
        if (!waiting_.wake_one()) locked_ = false; // else the lock passes on, still locked
    }

    bool locked_ = false;
    wait_queue waiting_;
};

} // namespace skein
