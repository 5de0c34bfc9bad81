// SPDX-License-Identifier: Apache-2.0
#pragma once
// SIGINT and SIGTERM as a request to end in order: the first one is taken down, the second one ends
// the process as if nobody had asked for it.
//
//     skein::stop_signals stops;
//     while (!stops.asked().load()) step();
//     return stops.exit_code();          // 0, or 130 or 143 as a shell would say
//
// A loop waits for stops.fd() to become readable. The handler acts at once, also while the program's own
// code keeps the loop busy, so that a second Ctrl-C always works.

#include <skein/core/unique_fd.hpp>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <tuple>

#include <unistd.h>

namespace skein {

/// Takes the two signals over while it lives; then the handlers before it are back. One inside another
/// works, the inner one hears. Made and destroyed by one thread; signals may reach any.
class stop_signals {
public:
    stop_signals() {
        std::tie(read_, write_) = make_pipe();
        before_target_ = target().exchange(write_.get());
        before_asked_ = asked_flag().exchange(false);
        before_number_ = number().exchange(0);
        struct sigaction how{};
        how.sa_handler = &on_signal;
        how.sa_flags = SA_RESTART;
        ::sigaction(SIGINT, &how, &before_int_);
        ::sigaction(SIGTERM, &how, &before_term_);
    }
    stop_signals(const stop_signals&) = delete;
    stop_signals& operator=(const stop_signals&) = delete;
    ~stop_signals() {
        ::sigaction(SIGINT, &before_int_, nullptr);
        ::sigaction(SIGTERM, &before_term_, nullptr);
        target().store(before_target_);
        asked_flag().store(before_asked_);
        number().store(before_number_);
    }

    /// Readable from the first signal on; nobody has to read it.
    [[nodiscard]] int fd() const noexcept { return read_.get(); }
    /// True from the first signal on. For code that looks now and then.
    [[nodiscard]] const std::atomic<bool>& asked() const noexcept { return asked_flag(); }
    /// The signal that came first, or 0.
    [[nodiscard]] int which() const noexcept { return number().load(); }
    /// 0, or 128 + the signal.
    [[nodiscard]] int exit_code() const noexcept { return which() == 0 ? 0 : 128 + which(); }

private:
    // What a handler may touch: nothing of the object, which another thread may be destroying.
    static std::atomic<int>& target() noexcept {
        static constinit std::atomic<int> fd{-1};
        return fd;
    }
    static std::atomic<bool>& asked_flag() noexcept {
        static constinit std::atomic<bool> value{false};
        return value;
    }
    static std::atomic<int>& number() noexcept {
        static constinit std::atomic<int> value{0};
        return value;
    }
    static void on_signal(int signal) {
        const int saved = errno;
        ::signal(SIGINT, SIG_DFL); // the second one may be the other
        ::signal(SIGTERM, SIG_DFL);
        number().store(signal);
        asked_flag().store(true);
        const char byte = 0;
        [[maybe_unused]] const auto n = ::write(target().load(), &byte, 1);
        errno = saved;
    }
    static_assert(std::atomic<int>::is_always_lock_free &&
                  std::atomic<bool>::is_always_lock_free); // or a handler must not touch them

    unique_fd read_, write_;
    int before_target_ = -1, before_number_ = 0;
    bool before_asked_ = false;
    struct sigaction before_int_{}, before_term_{};
};

} // namespace skein
