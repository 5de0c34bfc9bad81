// SPDX-License-Identifier: Apache-2.0
#pragma once
// A cursor over bytes from outside. Nothing is believed: every step checks what is left.
//
// Steps return false on failure; the first failure is kept with its position, and every step after
// it fails too, so that a decoder may check once at the end. The bytes must outlive the reader and
// every view decoded from it.

#include <skein/core/bytes.hpp>
#include <skein/core/result.hpp>
#include <skein/wire/limits.hpp>

#include <cstring>
#include <optional>
#include <string>
#include <type_traits>

#include <fmt/core.h>

namespace skein::wire {

/// A place in bytes that are owned by somebody else.
class reader {
public:
    explicit reader(byte_span bytes, limits bounds = {}) noexcept
        : begin_(bytes.data()), at_(bytes.data()), end_(bytes.data() + bytes.size()),
          bounds_(bounds) {}

    [[nodiscard]] bool ok() const noexcept { return !error_; }
    [[nodiscard]] std::size_t position() const noexcept {
        return static_cast<std::size_t>(at_ - begin_);
    }
    /// Bytes not read yet; none after a failure.
    [[nodiscard]] std::size_t remaining() const noexcept {
        return static_cast<std::size_t>(end_ - at_);
    }
    [[nodiscard]] byte_span rest() const noexcept { return {at_, remaining()}; }
    [[nodiscard]] const limits& bounds() const noexcept { return bounds_; }

    /// The first failure, or success.
    [[nodiscard]] result<void> status() const {
        if (error_) return *error_;
        return {};
    }
    /// Fails unless everything has been read.
    bool finish() {
        if (remaining() == 0) return ok();
        return fail(errc::malformed, fmt::format("{} bytes left over", remaining()));
    }
    /// Records a failure (the first one counts); always false.
    [[gnu::cold, gnu::noinline]] bool fail(errc code, std::string_view what) {
        if (!error_)
            error_ = error(code, fmt::format("decode failed at byte {} of {}: {}", position(),
                                             end_ - begin_, what));
        at_ = end_;
        return false;
    }
    /// As fail(), for the error of a custom codec.
    [[gnu::cold, gnu::noinline]] bool fail(error e) {
        if (!error_) error_ = std::move(e);
        at_ = end_;
        return false;
    }

    /// The memory of a value: sizeof(T) bytes, little endian.
    template <class T>
        requires std::is_trivially_copyable_v<T>
    bool fixed(T& value) {
        if (remaining() < sizeof(T)) return too_short(sizeof(T));
        std::memcpy(static_cast<void*>(&value), at_, sizeof(T));
        at_ += sizeof(T);
        return true;
    }
    /// A view of the next n bytes.
    bool raw(std::size_t n, byte_span& view) {
        if (remaining() < n) return too_short(n);
        view = byte_span(at_, n);
        at_ += n;
        return true;
    }
    /// A number in groups of seven bits, in its shortest form.
    bool varint(std::uint64_t& value) {
        if (at_ != end_ && (*at_ & std::byte{128}) == std::byte{0}) {
            value = std::to_integer<std::uint64_t>(*at_++);
            return true;
        }
        return long_varint(value);
    }
    /// The number of elements of a container whose elements take at least `least` bytes each:
    /// more of them than the remaining bytes can hold is a failure, found before any allocation.
    bool count(std::size_t least, std::size_t& n) {
        std::uint64_t value = 0;
        if (!varint(value)) return false;
        if (value > remaining() / least || value > bounds_.max_elements)
            return too_many(value, least);
        n = static_cast<std::size_t>(value);
        return true;
    }
    /// Takes n elements of `each` bytes from what the message may use of memory; false if it is
    /// more.
    bool charge(std::size_t n, std::size_t each) {
        if (n > (bounds_.max_memory - charged_) / each) return too_much(n, each);
        charged_ += n * each;
        return true;
    }
    /// Skips the zeros up to a multiple of `alignment`.
    bool align(std::size_t alignment) {
        const std::size_t zeros = (0 - position()) & (alignment - 1);
        if (remaining() < zeros) return too_short(zeros);
        for (std::size_t i = 0; i < zeros; ++i, ++at_)
            if (*at_ != std::byte{0}) return fail(errc::malformed, "padding that is not zero");
        return true;
    }
    /// Goes one level deeper; false at the limit. Each success needs a leave().
    bool enter() {
        if (depth_ >= bounds_.max_depth)
            return fail(errc::too_large,
                        fmt::format("values nest deeper than the limit of {}", bounds_.max_depth));
        ++depth_;
        return true;
    }
    void leave() noexcept { --depth_; }

private:
    [[gnu::cold, gnu::noinline]] bool too_short(std::size_t need) {
        return fail(errc::malformed, fmt::format("{} bytes needed, {} left", need, remaining()));
    }
    [[gnu::cold, gnu::noinline]] bool too_many(std::uint64_t n, std::size_t least) {
        if (n > remaining() / least)
            return fail(errc::malformed,
                        fmt::format("{} elements of at least {} bytes do not fit in "
                                    "the {} bytes that follow",
                                    n, least, remaining()));
        return fail(errc::too_large, fmt::format("{} elements are more than the limit of {}", n,
                                                 bounds_.max_elements));
    }
    [[gnu::cold, gnu::noinline]] bool too_much(std::size_t n, std::size_t each) {
        return fail(errc::too_large,
                    fmt::format("{} elements of {} bytes in memory are more than is left of the "
                                "limit of {}",
                                n, each, bounds_.max_memory));
    }
    [[gnu::noinline]] bool long_varint(std::uint64_t& value) {
        std::uint64_t sum = 0;
        for (unsigned shift = 0; shift < 64; shift += 7) {
            if (at_ == end_) return too_short(1);
            const auto group = std::to_integer<std::uint64_t>(*at_++);
            const std::uint64_t bits = group & 127;
            if (shift == 63 && bits > 1) break;
            sum |= bits << shift;
            if ((group & 128) != 0) continue;
            if (bits == 0 && shift > 0) return fail(errc::malformed, "a number longer than needed");
            value = sum;
            return true;
        }
        return fail(errc::malformed, "a number of more than 64 bits");
    }

    const std::byte* begin_;
    const std::byte* at_;
    const std::byte* end_;
    limits bounds_;
    std::size_t depth_ = 0;
    std::size_t charged_ = 0; ///< of bounds_.max_memory; never above it
    std::optional<error> error_;
};

} // namespace skein::wire
