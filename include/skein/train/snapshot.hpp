// SPDX-License-Identifier: Apache-2.0
#pragma once
// A checkpoint's state in memory of its own, so that it can be written while training goes on.
//
// Tensors of a checkpoint_state are views of what training works on. take() copies those that this
// rank writes, and everything else by value: what it has then is of one moment, whatever the run
// does meanwhile. The memory stays from one take to the next. What lies on a device comes to the
// host here and nowhere else: a checkpoint of it is written from a snapshot.
//
//     snapshot copy;
//     copy.reserve(snapshot::bytes_of(state, rank, size));   // once; throws when there is none
//     copy.take(state, rank, size);                          // between two steps
//     saver.save(copy.state());                              // on another thread
//
// States: empty; taken (after take(), until the next one). Tensors that another rank writes keep
// their type, shape and size, by which the ranks deal them out, over pages that nobody can read.

#include <skein/train/checkpoint.hpp>

#include <cstddef>
#include <utility>

namespace skein::train {

namespace detail {

/// Anonymous memory of whole pages, given back to the system at once.
class mapped_pages {
public:
    mapped_pages() = default;
    ///   readable  false: address space without memory
    ///   errors    exhausted
    mapped_pages(std::size_t bytes, bool readable);
    mapped_pages(mapped_pages&& other) noexcept
        : begin_(std::exchange(other.begin_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    mapped_pages& operator=(mapped_pages&& other) noexcept {
        std::swap(begin_, other.begin_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~mapped_pages();

    [[nodiscard]] std::byte* data() const noexcept { return begin_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

private:
    std::byte* begin_ = nullptr;
    std::size_t size_ = 0;
};

} // namespace detail

class snapshot {
public:
    /// Memory that take() needs for the same tensors.
    [[nodiscard]] static std::size_t bytes_of(const checkpoint_state& state, int rank,
                                              int world_size);

    /// The host cannot read all of it: a checkpointer takes a snapshot of it, not itself.
    [[nodiscard]] static bool must_copy(const checkpoint_state& state) noexcept;

    /// Room for so many bytes, all of it there now. Less than there is changes nothing.
    ///   errors  exhausted; then there is as much as before
    void reserve(std::size_t bytes);
    /// Gives the memory back; what was taken is gone.
    void release() noexcept;
    /// Copies what rank `rank` of so many writes of the state, which may change as soon as this
    /// returns. What was taken before is gone. Waits for the copies of what is on a device.
    ///   errors  exhausted, when it takes more room than there is and gets none; what a tensor's
    ///           fetch throws. Then it has nothing
    void take(const checkpoint_state& from, int rank, int world_size);

    /// What was taken last. Valid until the next take(), and while this lives.
    [[nodiscard]] const checkpoint_state& state() const noexcept { return state_; }
    [[nodiscard]] std::size_t capacity() const noexcept { return memory_.size(); }

private:
    detail::mapped_pages memory_, absent_; // the latter stands for what others write
    checkpoint_state state_;
};

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/snapshot.ipp>
#endif
