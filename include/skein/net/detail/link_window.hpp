// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a link has sent and its peer has not confirmed: messages in order, small ones copied one behind the
// other into blocks, large ones shared with the connection that writes them.
//
// Three counts move through it: pushed >= handed (to the present connection) >= acknowledged.

#include <skein/core/bytes.hpp>

#include <cstddef>
#include <cstdint>
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

    /// The caller has sent all messages that are there itself.
    void all_handed() noexcept;
    /// The first message that is not handed; now it is. There must be one; valid until the next call.
    entry hand_next();
    /// All kept messages are to be handed (to another connection) again.
    void rewind() noexcept;
    /// The peer has the first `count` of all messages. False, and nothing happens, if that cannot be.
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
    static constexpr std::size_t block_bytes = std::size_t{64} << 10;
    static constexpr std::uint16_t large_flag = 0x8000;

    struct block {
        std::unique_ptr<std::byte[]> data;
        std::size_t used = 0, capacity = 0;
    };
    /// A place between two messages.
    struct cursor {
        std::uint64_t block = 0; // counted from the first that there ever was
        std::size_t at = 0;
        std::size_t large = 0; // index into large_
    };
    struct header {
        std::uint32_t length = 0;
        std::uint16_t kind = 0, flags = 0;
        std::uint64_t id = 0;
    };

    std::byte* grab(std::size_t n);
    std::byte* write(const header& h, std::size_t stored);
    [[nodiscard]] const std::byte* at(cursor& c) const noexcept;
    static header read(const std::byte* from) noexcept;
    void count(std::size_t body) noexcept;
    void drop_blocks() noexcept;

    std::deque<block> blocks_;
    std::uint64_t first_block_ = 0;
    block spare_;
    std::deque<shared_body> large_;
    cursor front_, next_; // the oldest message; the first that is not handed
    std::uint64_t pushed_ = 0, handed_ = 0, acknowledged_ = 0;
    std::size_t bytes_ = 0, pending_bytes_ = 0;
};

} // namespace skein::net::detail

#if SKEIN_HEADER_ONLY
#include <skein/net/detail/link_window.ipp>
#endif
