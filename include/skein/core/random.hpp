// SPDX-License-Identifier: Apache-2.0
#pragma once
// Randomness as a parameter: protocol code asks a random_source and never the system.
//
// The real world hands out system_random() (the kernel's generator, good for secrets); simulated
// worlds and tests hand out seeded_random, so that a failing run can be replayed from its seed.

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/core/philox.hpp>

#include <cerrno>
#include <cstring>

#include <sys/random.h>

namespace skein {

/// Uniform random bits. Not thread-safe unless the source says so.
class random_source {
public:
    virtual ~random_source() = default;

    /// 64 uniform bits.
    virtual std::uint64_t next() = 0;

    /// Fills the bytes with uniform bits.
    virtual void fill(mut_byte_span into) {
        while (!into.empty()) {
            std::byte word[8];
            store_le(word, next());
            const std::size_t n = into.size() < 8 ? into.size() : 8;
            std::memcpy(into.data(), word, n);
            into = into.subspan(n);
        }
    }
    /// Uniform in [0, bound) without bias; bound > 0.
    std::uint64_t below(std::uint64_t bound) {
        return detail::below([this] { return next(); }, bound);
    }
    /// Uniform in [0, 1).
    double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
};

/// The same sequence for the same seed, on every machine.
class seeded_random final : public random_source {
public:
    explicit seeded_random(std::uint64_t seed, std::uint64_t stream = 0) noexcept
        : stream_(seed, stream) {}
    std::uint64_t next() override { return stream_.next(); }

private:
    philox_stream stream_;
};

namespace detail {
class kernel_random final : public random_source {
public:
    std::uint64_t next() override {
        std::byte word[8];
        fill(word);
        return load_le<std::uint64_t>(word);
    }
    void fill(mut_byte_span into) override {
        while (!into.empty()) {
            const ssize_t n = ::getrandom(into.data(), into.size(), 0);
            if (n < 0) {
                if (errno == EINTR) continue;
                throw error(errc::io, std::string("getrandom failed: ") + std::strerror(errno));
            }
            into = into.subspan(static_cast<std::size_t>(n));
        }
    }
};
} // namespace detail

/// The kernel's generator: unpredictable, fit for secrets, thread-safe.
[[nodiscard]] inline random_source& system_random() noexcept {
    static detail::kernel_random source;
    return source;
}

} // namespace skein
