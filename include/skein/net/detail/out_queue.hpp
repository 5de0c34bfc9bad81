// SPDX-License-Identifier: Apache-2.0
#pragma once
// The outgoing bytes of a connection: small pieces are copied one behind the other into a buffer,
// large ones stay where they are and are gathered by the system call.

#include <skein/core/bytes.hpp>

#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace skein::net::detail {

/// Bytes that grow without being zeroed first.
class raw_buffer {
public:
    raw_buffer() = default;
    raw_buffer(raw_buffer&& other) noexcept
        : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)),
          capacity_(std::exchange(other.capacity_, 0)) {}
    raw_buffer& operator=(raw_buffer&& other) noexcept {
        data_ = std::move(other.data_);
        size_ = std::exchange(other.size_, 0);
        capacity_ = std::exchange(other.capacity_, 0);
        return *this;
    }

    /// Room for n more bytes at the end; the caller fills it.
    std::byte* grab(std::size_t n) {
        if (capacity_ - size_ < n) grow(n);
        std::byte* const at = data_.get() + size_;
        size_ += n;
        return at;
    }
    void append(byte_span bytes) {
        if (!bytes.empty()) std::memcpy(grab(bytes.size()), bytes.data(), bytes.size());
    }
    [[nodiscard]] byte_span view() const noexcept { return {data_.get(), size_}; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
    void clear() noexcept { size_ = 0; }

private:
    void grow(std::size_t n);
    std::unique_ptr<std::byte[]> data_;
    std::size_t size_ = 0, capacity_ = 0;
};

/// A queue of bytes in pieces. The last piece is open: small writes go there.
class out_queue {
public:
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] bool empty() const noexcept { return bytes_ == 0; }
    /// Memory it holds, without what is borrowed.
    [[nodiscard]] std::size_t capacity() const noexcept;

    /// Room in the open piece.
    std::byte* grab(std::size_t n) {
        bytes_ += n;
        return open_.grab(n);
    }
    void copy(byte_span bytes) {
        bytes_ += bytes.size();
        open_.append(bytes);
    }
    /// A large piece of its own.
    void move(byte_buffer bytes);
    /// A piece that others hold, too.
    void share(std::shared_ptr<const byte_buffer> bytes);
    /// A piece that the caller keeps alive until it is written.
    void borrow(byte_span bytes);

    /// Copies what is left of a borrowed last piece, so that the lender may go.
    void own_last();

    /// Views of all pieces, in order.
    void views(std::vector<byte_span>& into) const;
    /// True when all bytes lie in the open piece; then open() is all there is.
    [[nodiscard]] bool simple() const noexcept { return pieces_.empty(); }
    [[nodiscard]] byte_span open() const noexcept { return open_.view().subspan(skip_); }

    /// Forgets the first n bytes, which were written.
    void consume(std::size_t n) noexcept;

    void clear() noexcept;

private:
    struct piece {
        byte_buffer owned;
        raw_buffer small;
        std::shared_ptr<const byte_buffer> shared;
        byte_span view;
    };
    static constexpr std::size_t keep_bytes = std::size_t{1} << 20;

    void seal();

    std::deque<piece> pieces_;
    raw_buffer open_;
    std::size_t skip_ = 0; // written bytes at the front of open_
    std::size_t bytes_ = 0;
};

} // namespace skein::net::detail

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/out_queue.ipp>
#endif
