// SPDX-License-Identifier: Apache-2.0
#pragma once
// A growing buffer that values are encoded into.
//
// The positions that padding refers to count from the first byte of the buffer, so a message and
// what is appended to it later by the same writer are read back by one reader. What a reader with
// the usual bounds would refuse is refused here, where whoever gave the value still hears it.
//
//     wire::writer out;
//     wire::encode(out, header);
//     wire::encode(out, body);
//     byte_buffer message = std::move(out).take();

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/wire/limits.hpp>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include <fmt/core.h>

namespace skein::wire {

/// Owns the bytes it has written until take().
class writer {
public:
    writer() = default;
    /// For readers with other bounds.
    explicit writer(const limits& bounds) : bounds_(bounds) {}
    /// Continues after what is in the buffer.
    explicit writer(byte_buffer start) : buffer_(std::move(start)), size_(buffer_.size()) {}
    writer(const writer&) = delete;
    writer& operator=(const writer&) = delete;

    /// Bytes written so far.
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] byte_span bytes() const noexcept { return byte_span(buffer_.data(), size_); }
    /// Gives the buffer away; the writer is empty afterwards.
    [[nodiscard]] byte_buffer take() && {
        charged_ = 0;
        buffer_.resize(std::exchange(size_, 0));
        return std::move(buffer_);
    }
    /// Makes space for `bytes` more.
    void reserve(std::size_t bytes) { buffer_.reserve(size_ + bytes); }
    /// Starts anew and keeps the memory, unless it is that of a rare large message.
    void clear() noexcept {
        size_ = charged_ = 0;
        if (buffer_.capacity() > kept_bytes) buffer_ = byte_buffer();
    }
    static constexpr std::size_t kept_bytes = std::size_t{1} << 20;
    /// The memory it holds.
    [[nodiscard]] std::size_t capacity() const noexcept { return buffer_.capacity(); }

    /// Counts n elements of `each` bytes in memory, as their reader will.
    ///   errors  too_large: more than limits::max_memory in one message
    void charge(std::size_t n, std::size_t each) {
        if (n > (bounds_.max_memory - charged_) / each) refuse_much(n, each);
        charged_ += n * each;
    }
    /// A container, optional or variant whose values are being written, as their reader counts
    /// them.
    ///   errors  too_large: deeper than limits::max_depth
    class level {
    public:
        explicit level(writer& in) : in_(in) {
            if (in.depth_ >= in.bounds_.max_depth) in.refuse_deep();
            ++in.depth_;
        }
        level(const level&) = delete;
        level& operator=(const level&) = delete;
        ~level() { --in_.depth_; }

    private:
        writer& in_;
    };

    /// Appends bytes as they are.
    void raw(byte_span bytes) {
        if (buffer_.size() - size_ < bytes.size()) {
            if (bytes.size() >= 4096) { // a large piece: let the vector copy without clearing first
                buffer_.resize(size_);
                buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
                size_ = buffer_.size();
                return;
            }
            grow(bytes.size());
        }
        if (!bytes.empty()) std::memcpy(buffer_.data() + size_, bytes.data(), bytes.size());
        size_ += bytes.size();
    }
    /// Appends so many bytes for the caller to fill in; they are there until more is appended.
    [[nodiscard]] std::byte* extend(std::size_t bytes) {
        if (buffer_.size() - size_ < bytes) grow(bytes);
        return buffer_.data() + std::exchange(size_, size_ + bytes);
    }
    /// Appends the memory of a value: sizeof(T) bytes, little endian.
    template <class T>
        requires std::is_trivially_copyable_v<T>
    void fixed(const T& value) {
        if (buffer_.size() - size_ < sizeof(T)) grow(sizeof(T));
        std::memcpy(buffer_.data() + size_, &value, sizeof(T));
        size_ += sizeof(T);
    }
    /// Appends a number in groups of seven bits, the lowest first: one byte below 128.
    void varint(std::uint64_t value) {
        if (buffer_.size() - size_ < 10) grow(10);
        std::byte* to = buffer_.data() + size_;
        std::byte* const start = to;
        for (; value >= 128; value >>= 7) *to++ = static_cast<std::byte>(value | 128);
        *to++ = static_cast<std::byte>(value);
        size_ += static_cast<std::size_t>(to - start);
    }
    /// Appends zeros up to a multiple of `alignment` (a power of two).
    void align(std::size_t alignment) {
        const std::size_t zeros = (0 - size_) & (alignment - 1);
        if (zeros == 0) return;
        if (buffer_.size() - size_ < zeros) grow(zeros);
        std::memset(buffer_.data() + size_, 0, zeros);
        size_ += zeros;
    }

    /// Replaces one byte of what was written by f(byte).
    template <class F>
    void change(std::size_t at, F f) {
        buffer_.at(at) = f(buffer_.at(at));
    }

private:
    /// Memory doubles; what may be written to grows by a page at most, because it is cleared.
    [[gnu::noinline]] void grow(std::size_t bytes) {
        const auto wanted = size_ + bytes;
        if (wanted > buffer_.capacity())
            buffer_.reserve(std::max({std::size_t{192}, wanted, buffer_.capacity() * 2}));
        const auto step = std::clamp<std::size_t>(size_, 192, 4096);
        buffer_.resize(std::max(wanted, std::min(buffer_.capacity(), size_ + step)));
    }

    [[noreturn, gnu::cold, gnu::noinline]] void refuse_much(std::size_t n, std::size_t each) const {
        throw error(errc::too_large,
                    fmt::format("{} elements of {} bytes in memory are more than is left of the "
                                "limit of {}, which who reads them has",
                                n, each, bounds_.max_memory))
            .with_hint("send it in parts, or as fewer and larger elements: text and vectors of "
                       "numbers do not count");
    }
    [[noreturn, gnu::cold, gnu::noinline]] void refuse_deep() const {
        throw error(errc::too_large,
                    fmt::format("values nest deeper than the limit of {}, which who reads them has",
                                bounds_.max_depth))
            .with_hint("send trees and lists as a vector of nodes that name each other by index");
    }

    limits bounds_;
    std::size_t depth_ = 0;
    std::size_t charged_ = 0;
    byte_buffer buffer_; // size() is what may be written to, not what has been written
    std::size_t size_ = 0;
};

} // namespace skein::wire
