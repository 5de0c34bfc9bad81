// SPDX-License-Identifier: Apache-2.0
#pragma once
// byte_line: small messages that wait, one behind the other in blocks: first in, first out. What
// has waited for long is in no cache, and is read again in the order in which it lies in memory.
//
//     line.push(message);
//     // who takes it knows how long it is
//     mut_byte_span first = line.take(size_of_the_first);
//
// Blocks grow with the line, so that thousands of short lines cost little, and clear() gives all of
// them back.

#include <skein/core/bytes.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

namespace skein {

/// A queue of bytes that are taken in the pieces in which they came.
class byte_line {
public:
    /// Of a piece.
    static constexpr std::size_t most_bytes = 1024;

    void push(byte_span piece) {
        if (blocks_.empty() || spare_ < piece.size()) more(piece.size());
        auto& last = blocks_.back();
        std::memcpy(last.data.get() + (last.size - spare_), piece.data(), piece.size());
        spare_ -= piece.size();
    }
    /// The first piece, which is of that size. It stays until the next call of push(), take() or
    /// clear().
    [[nodiscard]] mut_byte_span take(std::size_t bytes) {
        // Where it did not fit when it came, it is not now.
        if (blocks_.front().size - at_ < bytes) {
            blocks_.erase(blocks_.begin());
            at_ = 0;
        }
        const mut_byte_span piece(blocks_.front().data.get() + at_, bytes);
        at_ += bytes;
        return piece;
    }
    /// What is some pieces further on is going to be taken soon.
    void look_ahead() const noexcept {
        constexpr std::size_t far = 256;
        if (!blocks_.empty() && blocks_.front().size - at_ > far)
            __builtin_prefetch(blocks_.front().data.get() + at_ + far);
    }
    /// Nothing waits any more: gives the memory back.
    void clear() noexcept {
        blocks_.clear();
        at_ = spare_ = 0;
    }
    /// Memory that it holds.
    [[nodiscard]] std::size_t capacity() const noexcept {
        std::size_t sum = 0;
        for (const auto& one : blocks_) sum += one.size;
        return sum;
    }

private:
    static constexpr std::size_t first_block = 256, largest_block = std::size_t{16} << 10;

    struct block {
        std::unique_ptr<std::byte[]> data;
        std::size_t size = 0;
    };
    [[gnu::noinline]] void more(std::size_t bytes) {
        const std::size_t grown = blocks_.empty() ? first_block : 2 * blocks_.back().size;
        const std::size_t size = std::max(std::min(grown, largest_block), bytes);
        blocks_.push_back({std::make_unique_for_overwrite<std::byte[]>(size), size});
        spare_ = size;
    }

    std::vector<block> blocks_;
    std::size_t at_ = 0;    ///< of the first piece, in the first block
    std::size_t spare_ = 0; ///< behind the last piece, in the last block
};

} // namespace skein
