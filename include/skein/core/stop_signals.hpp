// SPDX-License-Identifier: Apache-2.0
#pragma once
// SIGINT and SIGTERM as a request to end in order: the first one is taken down, the second one ends
// the process as if nobody had asked for it, or is counted where there is more to end than one
// process.
//
//     skein::stop_signals stops;
//     while (!stops.asked().load()) step();
//     return stops.exit_code();          // 0, or 130 or 143 as a shell would say
//
// A loop waits for stops.fd() to become readable. The handler acts at once, also while the
// program's own code keeps the loop busy, so that a second Ctrl-C always works.

#include <skein/core/unique_fd.hpp>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <tuple>

#include <unistd.h>

namespace skein {

/// What the second signal does.
enum class second_signal : bool {
    ends_the_process, ///< also while the program's own code keeps everything busy
    is_counted,
};

/// What the end of the terminal does (SIGHUP).
enum class hang_up : bool {
    is_left_alone, ///< it does what it did before
    asks_to_end,   ///< as SIGTERM, unless it is ignored, as nohup has it; more of it are not heard
};

/// Takes the two signals over while it lives; then the handlers before it are back. One inside
/// another works, the inner one hears. Made and destroyed by one thread; signals may reach any.
class stop_signals {
public:
    explicit stop_signals(second_signal second = second_signal::ends_the_process,
                          hang_up at_hang_up = hang_up::is_left_alone) {
        std::tie(read_, write_) = make_pipe();
        before_target_ = target().exchange(write_.get());
        before_asked_ = asked_flag().exchange(false);
        before_number_ = number().exchange(0);
        before_count_ = counter().exchange(0);
        before_counts_ = counts().exchange(second == second_signal::is_counted);
        struct sigaction how{};
        how.sa_handler = &on_signal;
        how.sa_flags = SA_RESTART;
        ::sigaction(SIGINT, &how, &before_int_);
        ::sigaction(SIGTERM, &how, &before_term_);
        ::sigaction(SIGHUP, nullptr, &before_hup_);
        takes_hup_ = at_hang_up == hang_up::asks_to_end && before_hup_.sa_handler != SIG_IGN;
        if (takes_hup_) ::sigaction(SIGHUP, &how, nullptr);
    }
    stop_signals(const stop_signals&) = delete;
    stop_signals& operator=(const stop_signals&) = delete;
    ~stop_signals() {
        ::sigaction(SIGINT, &before_int_, nullptr);
        ::sigaction(SIGTERM, &before_term_, nullptr);
        if (takes_hup_) ::sigaction(SIGHUP, &before_hup_, nullptr);
        target().store(before_target_);
        asked_flag().store(before_asked_);
        number().store(before_number_);
        counter().store(before_count_);
        counts().store(before_counts_);
    }

    /// Nobody in this process has taken SIGINT or SIGTERM over.
    [[nodiscard]] static bool are_free() noexcept {
        if (target().load() != -1) return false; // the first signal puts SIG_DFL back
        for (const int signal : {SIGINT, SIGTERM}) {
            struct sigaction now{};
            ::sigaction(signal, nullptr, &now);
            if ((now.sa_flags & SA_SIGINFO) != 0) return false;
            if (now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN) return false;
        }
        return true;
    }

    /// Readable from the first signal on; nobody has to read it. One byte for each signal.
    [[nodiscard]] int fd() const noexcept { return read_.get(); }
    /// True from the first signal on. For code that looks now and then.
    [[nodiscard]] const std::atomic<bool>& asked() const noexcept { return asked_flag(); }
    /// The signal that came first, or 0.
    [[nodiscard]] int which() const noexcept { return number().load(); }
    /// How many have come; at most 1 where the second one ends the process.
    [[nodiscard]] int count() const noexcept { return counter().load(); }
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
    static std::atomic<int>& counter() noexcept {
        static constinit std::atomic<int> value{0};
        return value;
    }
    static std::atomic<bool>& counts() noexcept {
        static constinit std::atomic<bool> value{false};
        return value;
    }
    static void on_signal(int signal) {
        const int saved = errno;
        // A terminal that closes says so twice, by its shell and by itself: that is one request.
        if (signal == SIGHUP && counter().load() != 0) return;
        if (!counts().load()) {
            ::signal(SIGINT, SIG_DFL); // the second one may be the other
            ::signal(SIGTERM, SIG_DFL);
        }
        if (counter().fetch_add(1) == 0) number().store(signal);
        asked_flag().store(true);
        const char byte = 0;
        [[maybe_unused]] const auto n = ::write(target().load(), &byte, 1);
        errno = saved;
    }
    static_assert(std::atomic<int>::is_always_lock_free &&
                  std::atomic<bool>::is_always_lock_free); // or a handler must not touch them

    unique_fd read_, write_;
    int before_target_ = -1, before_number_ = 0, before_count_ = 0;
    bool before_asked_ = false, before_counts_ = false, takes_hup_ = false;
    struct sigaction before_int_{}, before_term_{}, before_hup_{};
};

} // namespace skein
