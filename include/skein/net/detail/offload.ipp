// SPDX-License-Identifier: Apache-2.0
#pragma once
// The threads of an offload_pool.

#include <skein/core/available_cores.hpp>
#include <skein/core/check.hpp>
#include <skein/core/error.hpp>
#include <skein/core/sleep.hpp>

#include <algorithm>
#include <exception>
#include <string>

#include <pthread.h>
#include <signal.h>

namespace skein::net {

SKEIN_INLINE offload_pool::offload_pool(unsigned threads) {
    SKEIN_CHECK(threads > 0, "an offload pool needs a thread");
    try {
        for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { main(); });
    } catch (const std::exception& e) { // no destructor would join those that have begun
        const auto begun = threads_.size();
        stop();
        throw error(errc::exhausted, "thread " + std::to_string(begun + 1) + " of " +
                                         std::to_string(threads) + " cannot be started")
            .with_cause(e.what())
            .with_hint("take fewer threads, or raise the limits (ulimit -u, ulimit -v, pids.max)");
    }
}

SKEIN_INLINE offload_pool::~offload_pool() { stop(); }

SKEIN_INLINE void offload_pool::stop() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    for (auto& t : threads_) t.join();
}

SKEIN_INLINE void offload_pool::submit(unique_function<void()> work) {
    {
        const std::lock_guard lock(mutex_);
        queue_.push_back(std::move(work));
    }
    wake_.notify_one();
}

SKEIN_INLINE offload_pool& offload_pool::shared() {
    static offload_pool pool(static_cast<unsigned>(std::max(2, available_cores())));
    return pool;
}

SKEIN_INLINE void offload_pool::main() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (queue_.empty()) return;
        auto work = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        work();
        work = nullptr;
        lock.lock();
    }
}

SKEIN_INLINE task<void> detail::pause(duration length) {
    auto sleeping = sleep_for(length);
    co_await sleeping;
}

} // namespace skein::net
