// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory of the rows that one thread makes at a time: handed out in order, taken back at once.
//
// Row functions allocate pixels and text here; nothing in a row has a destructor. Who runs the
// functions resets the arena when the rows have been copied into their batch.
//
//     data::arena memory;
//     const data::arena_scope scope(memory);          // current() of this thread from here on
//     auto pixels = data::arena::current().array<float>(3 * 224 * 224);

#include <skein/core/config.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

namespace skein::data {

/// Bytes that live until reset(). Not thread-safe: every thread that makes rows has its own.
class arena {
public:
    arena() = default;
    arena(const arena&) = delete;
    arena& operator=(const arena&) = delete;

    /// `size` bytes on a border of 64; what they hold is indeterminate.
    ///   errors  std::bad_alloc
    [[nodiscard]] std::byte* allocate(std::size_t size);

    /// `count` values, indeterminate.
    template <class T>
        requires std::is_trivially_destructible_v<T>
    [[nodiscard]] std::span<T> array(std::size_t count) {
        static_assert(alignof(T) <= alignment);
        return {reinterpret_cast<T*>(allocate(count * sizeof(T))), count};
    }

    /// Takes everything back: what allocate() gave must not be used any more. Memory for the largest
    /// row so far is kept, as one block: rows of that size or less take none from the system.
    void reset() noexcept;

    /// Bytes handed out since the last reset().
    [[nodiscard]] std::size_t used() const noexcept { return used_; }
    /// Bytes taken from the system.
    [[nodiscard]] std::size_t reserved() const noexcept;

    /// The arena of the arena_scope that this thread is in.
    ///   errors  usage: it is in none
    [[nodiscard]] static arena& current();

private:
    friend class arena_scope;
    static constexpr std::size_t alignment = 64, first_block = std::size_t{1} << 20;

    struct release {
        void operator()(std::byte* memory) const noexcept;
    };
    struct block {
        std::unique_ptr<std::byte, release> memory;
        std::size_t size = 0;
    };
    static arena*& of_thread() noexcept;
    /// Rounded up, so that rows that grow little by little do not take a new block each time.
    [[nodiscard]] static std::size_t size_class(std::size_t bytes) noexcept;

    std::vector<block> blocks_;
    std::size_t now_ = 0, at_ = 0; // the next byte: in blocks_[now_], or there is no such block yet
    std::size_t used_ = 0, largest_ = 0; // largest_: class of the largest row
};

/// While it lives, its arena is the current one of this thread.
class arena_scope {
public:
    explicit arena_scope(arena& memory) noexcept;
    arena_scope(const arena_scope&) = delete;
    arena_scope& operator=(const arena_scope&) = delete;
    ~arena_scope();

private:
    arena* outer_;
};

} // namespace skein::data

#if SKEIN_HEADER_ONLY
#include <skein/data/detail/arena.ipp>
#endif
