// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory of a communicator: what lies in it is reduced and gathered where it is, without copies
// into slots in between.
//
// Inside a host every rank has the memory of all its neighbours mapped. A reduction reads the peers
// in place, a gather copies straight from them, and in common memory a gather copies nothing. Where
// a model cannot do that (a ring, one rank) the memory is private, and everything works as well.
//
//     auto grads = comm.allocate(bytes, memory_kind::own);          // on all ranks
//     const std::span v(reinterpret_cast<float*>(grads->data()), bytes / sizeof(float));
//     comm.all_reduce(view_of(v), reduce_op::mean).wait();          // in place
//
// Buffers of one collective lie at the same place of the same memory on all ranks, or on all ranks
// in other memory, else all get errc::mismatch.

#include <skein/dist/shared_memory.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace skein::dist {

struct buffer_view;
class shm_communicator;
class group_memory;

/// Whose memory allocate() gives.
enum class memory_kind : std::uint8_t {
    own,   ///< every rank has its own; the ranks of its host have it mapped too
    common ///< one memory for all ranks of a host
};

namespace detail {

/// Where a buffer lies in the memory of a communicator; memory is null elsewhere.
struct memory_place {
    const group_memory* memory = nullptr;
    std::uint16_t id = 0; ///< which of the communicator's, the same on all ranks
    bool input = false;   ///< of a gather: it is where `in` lies, not `out`
    std::size_t offset = 0;

    /// Of a signature; 0 elsewhere.
    [[nodiscard]] std::uint64_t word() const noexcept {
        return std::uint64_t{id} << 48 | std::uint64_t{input} << 47 | offset;
    }
};

/// The memory that one rank has from one communicator, by address. Any thread.
class memory_table {
public:
    void add(const group_memory& memory, std::uint16_t id);
    void remove(const std::byte* begin) noexcept;
    /// A view that begins inside and ends outside is a bug of the caller.
    [[nodiscard]] memory_place find(const buffer_view& view) const;

private:
    struct entry {
        const group_memory* memory;
        std::uint16_t id;
    };
    mutable std::mutex guard_;
    std::map<const std::byte*, entry> begins_;
};

} // namespace detail

/// From communicator::allocate(). Zero when fresh; pages cost memory when they are first touched.
/// Unmaps at the end, which is no collective: peers keep what they have mapped.
class group_memory {
public:
    group_memory(const group_memory&) = delete;
    group_memory& operator=(const group_memory&) = delete;
    ~group_memory();

    [[nodiscard]] std::byte* data() const noexcept { return maps_[mine_].data(); }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] memory_kind kind() const noexcept { return kind_; }
    /// Every rank of the group has mapped it (common: all see the same bytes).
    [[nodiscard]] bool everywhere() const noexcept { return everywhere_; }

    /// Of this rank alone.
    ///   errors  exhausted, io
    [[nodiscard]] static std::shared_ptr<group_memory> alone(std::size_t bytes, memory_kind kind,
                                                             bool everywhere);

private:
    friend class shm_communicator;
    group_memory(std::size_t bytes, memory_kind kind, bool everywhere,
                 std::vector<shared_memory> maps, std::size_t mine);
    /// That of a rank, as this process has it mapped.
    [[nodiscard]] std::byte* of(int rank) const noexcept {
        return kind_ == memory_kind::common ? data() : maps_[static_cast<std::size_t>(rank)].data();
    }

    std::size_t bytes_;
    memory_kind kind_;
    bool everywhere_;
    std::vector<shared_memory> maps_; // own: of every rank; common, alone: one
    std::size_t mine_;
    std::shared_ptr<detail::memory_table> listed_; // where it is to be taken out
};

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/group_memory.ipp>
#endif
