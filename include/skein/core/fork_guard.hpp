// SPDX-License-Identifier: Apache-2.0
#pragma once
// Descriptors that end with their process, also when it has forked: the other end of a socket
// learns at once that the process has died, and a lock is free, whatever a child that a task or a
// driver has forked does.
//
//     fork_guard guard(socket);      // until `guard` ends, before the socket is closed
//
// A child that fork() makes closes them before it goes on. (One that executes another program has
// none of them anyway: they are close-on-exec. One that is made by a bare clone() keeps them until
// then.)

#include <skein/core/config.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <pthread.h>
#include <unistd.h>

namespace skein {

namespace detail {

inline constexpr std::size_t most_guarded = std::size_t{1} << 16;
/// One bit a descriptor.
inline constinit std::array<std::atomic<std::uint64_t>, most_guarded / 64> guarded{};

/// In the child: the only thread there is, and other threads of the parent may have held any lock.
inline void close_guarded() noexcept {
    for (std::size_t i = 0; i < guarded.size(); ++i) {
        const auto bits = guarded[i].exchange(0, std::memory_order_relaxed);
        for (int bit = 0; bits >> bit != 0; ++bit) {
            if ((bits >> bit & 1) != 0) ::close(static_cast<int>(i * 64) + bit);
            if (bit == 63) break;
        }
    }
}

} // namespace detail

/// While it lives no child that fork() makes has this descriptor. It ends before the descriptor is
/// closed.
class fork_guard {
public:
    fork_guard() noexcept = default;
    explicit fork_guard(int fd) noexcept {
        static const bool is_watched =
            ::pthread_atfork(nullptr, nullptr, &detail::close_guarded) == 0;
        if (!is_watched || fd < 0 || static_cast<std::size_t>(fd) >= detail::most_guarded) return;
        fd_ = fd;
        word().fetch_or(bit(), std::memory_order_relaxed);
    }
    fork_guard(fork_guard&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    fork_guard& operator=(fork_guard&& other) noexcept {
        if (this == &other) return *this;
        reset();
        fd_ = std::exchange(other.fd_, -1);
        return *this;
    }
    ~fork_guard() { reset(); }

    /// The descriptor is about to be closed, or is to be had by children from here on.
    void reset() noexcept {
        if (fd_ < 0) return;
        word().fetch_and(~bit(), std::memory_order_relaxed);
        fd_ = -1;
    }

private:
    [[nodiscard]] std::atomic<std::uint64_t>& word() const noexcept {
        return detail::guarded[static_cast<std::size_t>(fd_) / 64];
    }
    [[nodiscard]] std::uint64_t bit() const noexcept {
        return std::uint64_t{1} << (static_cast<unsigned>(fd_) % 64);
    }
    int fd_ = -1;
};

} // namespace skein
