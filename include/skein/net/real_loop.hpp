// SPDX-License-Identifier: Apache-2.0
#pragma once
// The real world's loop: Asio's io_context behind skein::loop.
//
//     net::real_loop loop;
//     int code = loop.run(app(loop));
//
// One thread runs it (concurrency hint 1). Any Asio object made on context() can be used in its
// tasks with skein::use_task.

#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/asio.hpp>

#include <chrono>
#include <optional>

namespace skein::net {

/// A loop over system time and sockets.
class real_loop final : public loop {
public:
    real_loop() : loop(system_now()), work_(context_.get_executor()) {}

    /// Lets work that was aborted but not awaited (connections whose last owner let go) end: runs until
    /// nothing has happened for a while. Must not be called while the loop runs.
    ~real_loop() override {
        if (try_current() == nullptr) run(settle(&context_));
    }

    [[nodiscard]] asio::io_context& context() noexcept { return context_; }

protected:
    time_point read_clock() noexcept override { return system_now(); }

    void poll(std::optional<time_point> until, bool may_block) override {
        // One handler at a time: what it wakes runs before the next, and Asio asks the kernel only
        // when none is left.
        if (!may_block) {
            context_.poll_one();
        } else if (!until) {
            context_.run_one();
        } else {
            context_.run_one_until(
                std::chrono::steady_clock::time_point(until->time_since_epoch()));
        }
    }

    void notify() noexcept override {
        asio::post(context_, [] {});
    }

private:
    static time_point system_now() noexcept {
        return time_point(std::chrono::duration_cast<duration>(
            std::chrono::steady_clock::now().time_since_epoch()));
    }
    static task<void> settle(asio::io_context* io) {
        for (int idle = 0, n = 0; idle < 16 && n < 10'000; ++n) {
            idle = io->poll() != 0 ? 0 : idle + 1;
            auto others = yield();
            co_await others;
        }
    }

    asio::io_context context_{1};
    asio::executor_work_guard<asio::io_context::executor_type> work_;
};

} // namespace skein::net
