// SPDX-License-Identifier: Apache-2.0
#pragma once
// The thread behind a loop_thread.

#include <pthread.h>
#include <signal.h>

namespace skein::net {
namespace detail {

SKEIN_INLINE task<void> run_until_stopped(event* stop, scope* tasks) {
    auto stopped = stop->wait();
    co_await stopped;
    tasks->cancel();
    auto joined = tasks->join();
    co_await joined;
}

} // namespace detail

SKEIN_INLINE loop_thread::loop_thread(std::string name) {
    outcome<void> ready;
    thread_ = std::thread([this, name = std::move(name), &ready] { main(name, ready); });
    std::unique_lock lock(ready.mutex);
    ready.ended.wait(lock, [&] { return ready.done; });
}

SKEIN_INLINE loop_thread::~loop_thread() {
    SKEIN_CHECK(std::this_thread::get_id() != thread_.get_id(),
                "a loop_thread is destroyed on its own thread");
    loop_->post_from_any_thread([this] { stop_->set(); });
    thread_.join();
}

SKEIN_INLINE void loop_thread::main(const std::string& name, outcome<void>& ready) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
    real_loop here;
    event stop;
    scope tasks;
    loop_ = &here;
    stop_ = &stop;
    tasks_ = &tasks;
    {
        const std::lock_guard lock(ready.mutex); // to the end: who finds it done destroys it
        ready.done = true;
        ready.ended.notify_one();
    }
    here.run(detail::run_until_stopped(&stop, &tasks));
}

} // namespace skein::net
