// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of proc/detail/starter.hpp.

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/proc/detail/starter.hpp>

#include <algorithm>
#include <csignal>
#include <system_error>

#include <pthread.h>

namespace skein::proc::detail {

SKEIN_INLINE starter::starter() {
    // Signals are for the program's own threads.
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    std::optional<error> failed;
    try {
        thread_ = std::thread([this] { main(); });
    } catch (const std::system_error& e) {
        failed = error(errc::io, "cannot start a thread to start processes").with_cause(e.what());
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (failed) throw *failed;
}

SKEIN_INLINE starter::~starter() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
}

SKEIN_INLINE void starter::submit(std::shared_ptr<start_order> order) {
    {
        const std::lock_guard lock(mutex_);
        waiting_.push_back(std::move(order));
    }
    wake_.notify_one();
}

SKEIN_INLINE bool starter::take_back(const start_order& order) {
    const std::lock_guard lock(mutex_);
    return std::erase_if(waiting_, [&](const auto& w) { return w.get() == &order; }) != 0;
}

SKEIN_INLINE void starter::main() {
    ::pthread_setname_np(::pthread_self(), "skein-starter");
    while (true) {
        std::shared_ptr<start_order> order;
        {
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
            if (waiting_.empty()) return;
            order = std::move(waiting_.front());
            waiting_.pop_front();
        }
        try {
            order->started = order->attempt.run();
        } catch (...) {
            order->failed = to_error(std::current_exception());
        }
        auto& home = order->home;
        home.post_from_any_thread([order = std::move(order)] { order->done.set(); });
    }
}

SKEIN_INLINE task<void> until_done(start_order* order) {
    auto done = order->done.wait();
    co_await done;
}

SKEIN_INLINE task<child_process> start_process(std::shared_ptr<starter> by, process_options how) {
    const auto order = std::make_shared<start_order>(std::move(how), loop::current());
    by->submit(order);
    auto waiting = as_result(until_done(order.get()));
    const auto waited = co_await waiting;
    if (!waited) { // cancelled
        if (by->take_back(*order)) throw waited.error();
        order->attempt.give_up();
        auto ending = shield(until_done(order.get()));
        co_await ending;
        order->started = {}; // it may have been too late: then this kills it
        throw waited.error();
    }
    if (order->failed) throw *order->failed;
    co_return std::move(order->started);
}

} // namespace skein::proc::detail
