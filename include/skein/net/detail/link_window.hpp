// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a link has sent and its peer has not confirmed: messages in order, small ones copied one
// behind the other into blocks, large ones shared with the connection that writes them.
//
// Three counts move through it: pushed >= handed (to the present connection) >= acknowledged.

#include <skein/core/bytes.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>

namespace skein::net::detail {

/// The messages of one direction of a link that may have to be sent again.
class link_window {
public:
    using shared_body = std::shared_ptr<const byte_buffer>;

    /// A kept message; `large` is set when its body is shared.
    struct entry {
        std::uint16_t kind = 0, flags = 0;
        std::uint64_t id = 0;
        byte_span body;
        shared_body large;
    };

    /// Appends a message and copies it. The high bit of the flags must be clear.
    void push(std::uint16_t kind, std::uint16_t flags, std::uint64_t id, byte_span head,
              byte_span body);
    /// The same with a body that is kept by reference.
    void push(std::uint16_t kind, std::uint16_t flags, std::uint64_t id, shared_body body);

    /// As the first push, of a message that the caller sends itself; nothing may be pending.
    void push_handed(std::uint16_t kind, std::uint16_t flags, std::uint64_t id, byte_span head,
                     byte_span body) {
        copy(kind, flags, id, head, body);
        ++handed_;
    }
    /// The first message that is not handed; now it is. There must be one; valid until the next
    /// call.
    entry hand_next();
    /// All kept messages are to be handed (to another connection) again.
    void rewind() noexcept;
    /// The peer has the first `count` of all messages. False, and nothing happens, if that cannot
    /// be.
    [[nodiscard]] bool acknowledge(std::uint64_t count) noexcept;
    [[nodiscard]] bool can_acknowledge(std::uint64_t count) const noexcept {
        return count >= acknowledged_ && count <= handed_;
    }
    void clear() noexcept;

    [[nodiscard]] bool has_pending() const noexcept { return handed_ != pushed_; }
    [[nodiscard]] std::uint64_t pushed() const noexcept { return pushed_; }
    [[nodiscard]] std::uint64_t acknowledged() const noexcept { return acknowledged_; }
    /// Messages and bytes (bodies and a small header each) that are kept.
    [[nodiscard]] std::size_t messages() const noexcept {
        return static_cast<std::size_t>(pushed_ - acknowledged_);
    }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    /// Of them, those that are not handed.
    [[nodiscard]] std::size_t pending_bytes() const noexcept { return pending_bytes_; }
    /// Memory it holds.
    [[nodiscard]] std::size_t capacity() const noexcept;

    static constexpr std::size_t header_bytes = 16;

private:
    static constexpr std::size_t block_bytes = std::size_t{16} << 10;
    static constexpr std::uint16_t large_flag = 0x8000;

    struct block {
        std::unique_ptr<std::byte[]> data;
        std::size_t used = 0, capacity = 0; // used: of blocks before the last
    };
    /// A place between two messages.
    struct cursor {
        std::uint64_t block = 0; // counted from the first that there ever was
        std::size_t at = 0;
        std::size_t large = 0; // index into large_
    };
    std::byte* grab(std::size_t n) {
        if (free_ < n) more(n);
        std::byte* const at = end_;
        end_ += n;
        free_ -= n;
        return at;
    }
    void more(std::size_t n);
    std::byte* write(std::uint32_t length, std::uint16_t kind, std::uint16_t flags,
                     std::uint64_t id, std::size_t stored) {
        std::byte* const to = grab(header_bytes + stored);
        store_le(to, length);
        store_le(to + 4, kind);
        store_le(to + 6, flags);
        store_le(to + 8, id);
        return to + header_bytes;
    }
    void copy(std::uint16_t kind, std::uint16_t flags, std::uint64_t id, byte_span head,
              byte_span body) {
        const std::size_t bytes = head.size() + body.size();
        std::byte* const to = write(static_cast<std::uint32_t>(bytes), kind, flags, id, bytes);
        if (!head.empty()) std::memcpy(to, head.data(), head.size());
        if (!body.empty()) std::memcpy(to + head.size(), body.data(), body.size());
        ++pushed_;
        bytes_ += header_bytes + bytes;
    }
    void begin_pending() noexcept;
    [[nodiscard]] std::size_t used(std::size_t index) const noexcept;
    [[nodiscard]] const std::byte* at(cursor& c) const noexcept;
    void drop_blocks() noexcept;

    std::deque<block> blocks_;
    std::uint64_t first_block_ = 0;
    block spare_;
    std::byte* end_ = nullptr; // of what is written in the last block
    std::size_t free_ = 0;     // behind it
    std::deque<shared_body> large_;
    cursor front_, next_; // the oldest message; the first that is not handed, if there is one
    std::uint64_t pushed_ = 0, handed_ = 0, acknowledged_ = 0;
    std::size_t bytes_ = 0, pending_bytes_ = 0;
};

} // namespace skein::net::detail

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/link_window.ipp>
#endif
