// SPDX-License-Identifier: Apache-2.0
#pragma once
// The smallest world: virtual time that jumps to the next timer when nothing is ready.
//
// Nothing to do and no timer means that the test hangs: it is ended with a message, unless other
// threads are expected to post (then the loop waits for them for up to a minute).

#include <skein/core/check.hpp>
#include <skein/core/loop.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

namespace skein_test {

class manual_loop final : public skein::loop {
public:
    enum class others { none, may_post };
    explicit manual_loop(others threads = others::none) : threads_(threads) {}

    /// How often poll was called, and how often it was told that it may wait.
    [[nodiscard]] std::uint64_t polls() const noexcept { return polls_; }
    [[nodiscard]] std::uint64_t waits() const noexcept { return waits_; }
    /// How often posts of other threads have woken it.
    [[nodiscard]] std::uint64_t notifies() {
        const std::lock_guard lock(mutex_);
        return notifies_;
    }
    /// Done while it waits for others to post, by who is asked to.
    std::function<void()> while_waiting;
    /// Nanoseconds since the start of the world.
    [[nodiscard]] skein::duration elapsed() const noexcept { return time_.time_since_epoch(); }
    /// Moves the world's clock as if the thread had been busy.
    void spend(skein::duration d) noexcept { time_ += d; }

    using skein::loop::turn;

protected:
    skein::time_point read_clock() noexcept override { return time_; }
    void poll(std::optional<skein::time_point> until, bool may_block) override {
        ++polls_;
        if (!may_block) return;
        ++waits_;
        if (while_waiting) std::exchange(while_waiting, {})();
        std::unique_lock lock(mutex_);
        if (notified_) {
            notified_ = false;
            return;
        }
        if (until) {
            if (*until > time_) time_ = *until;
            return;
        }
        SKEIN_CHECK(threads_ == others::may_post,
                    "nothing is ready and no timer is set: the test would hang");
        SKEIN_CHECK(wake_.wait_for(lock, std::chrono::minutes(1), [this] { return notified_; }),
                    "no other thread posted for a minute: the test hangs");
        notified_ = false;
    }
    void notify() noexcept override {
        const std::lock_guard lock(mutex_);
        notified_ = true;
        ++notifies_;
        wake_.notify_one();
    }

private:
    others threads_;
    skein::time_point time_{};
    std::uint64_t polls_ = 0, waits_ = 0, notifies_ = 0;
    std::mutex mutex_;
    std::condition_variable wake_;
    bool notified_ = false;
};

/// Runs work on a loop of its own.
template <class T>
T run(skein::task<T> work) {
    manual_loop world;
    return world.run(std::move(work));
}

} // namespace skein_test
