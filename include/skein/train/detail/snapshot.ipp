// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/snapshot.hpp>.

#include <skein/core/error.hpp>
#include <skein/train/detail/checkpoint_table.ipp>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include <fmt/core.h>

namespace skein::train {

namespace detail {

SKEIN_INLINE mapped_pages::mapped_pages(std::size_t bytes, bool readable) {
    if (bytes == 0) return;
    const int access = readable ? PROT_READ | PROT_WRITE : PROT_NONE;
    const int kind = MAP_PRIVATE | MAP_ANONYMOUS | (readable ? 0 : MAP_NORESERVE);
    void* const got = ::mmap(nullptr, bytes, access, kind, -1, 0);
    if (got == MAP_FAILED)
        throw error(errc::exhausted, fmt::format("no memory for a copy of {} bytes", bytes));
    begin_ = static_cast<std::byte*>(got);
    size_ = bytes;
    if (readable) (void)::madvise(begin_, size_, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
    // A copy that is waited for does not wait for pages, too. Where the kernel cannot, it does.
    if (readable) (void)::madvise(begin_, size_, MADV_POPULATE_WRITE);
#endif
}

SKEIN_INLINE mapped_pages::~mapped_pages() {
    if (begin_ != nullptr) ::munmap(begin_, size_);
}

/// Where a tensor begins in a snapshot: as memory is moved best.
inline constexpr std::size_t snapshot_alignment = 64;

[[nodiscard]] SKEIN_INLINE std::size_t room_of(const tensor_part& t) {
    return (t.bytes.size() + snapshot_alignment - 1) / snapshot_alignment * snapshot_alignment;
}

/// By tensor: this rank writes it, or some rows of it.
[[nodiscard]] SKEIN_INLINE std::vector<bool> written_here(const checkpoint_state& state, int rank,
                                                          int world_size) {
    const auto owner = deal_tensors(state.tensors, world_size);
    std::vector<bool> mine(owner.size());
    for (std::size_t i = 0; i < owner.size(); ++i)
        mine[i] = owner[i] == -1 ? !state.tensors[i].bytes.empty() : owner[i] == rank;
    return mine;
}

} // namespace detail

SKEIN_INLINE std::size_t snapshot::bytes_of(const checkpoint_state& state, int rank,
                                            int world_size) {
    const auto mine = detail::written_here(state, rank, world_size);
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < mine.size(); ++i)
        if (mine[i]) bytes += detail::room_of(state.tensors[i]);
    return bytes;
}

SKEIN_INLINE bool snapshot::must_copy(const checkpoint_state& state) noexcept {
    return std::ranges::any_of(state.tensors,
                               [](const tensor_part& t) { return static_cast<bool>(t.fetch); });
}

SKEIN_INLINE void snapshot::reserve(std::size_t bytes) {
    if (bytes <= memory_.size()) return;
    state_ = {};
    auto larger = detail::mapped_pages(bytes, /*readable=*/true);
    memory_ = std::move(larger);
}

SKEIN_INLINE void snapshot::release() noexcept {
    state_ = {};
    memory_ = {};
    absent_ = {};
}

SKEIN_INLINE void snapshot::take(const checkpoint_state& from, int rank, int world_size) {
    const auto mine = detail::written_here(from, rank, world_size);
    std::size_t bytes = 0, absent = 0;
    for (std::size_t i = 0; i < mine.size(); ++i) {
        const auto& t = from.tensors[i];
        if (mine[i])
            bytes += detail::room_of(t);
        else
            absent = std::max(absent, t.bytes.size());
    }
    reserve(bytes);
    if (absent > absent_.size()) absent_ = detail::mapped_pages(absent, /*readable=*/false);
    auto copied = from; // state_ once all is copied: a fetch may throw
    state_ = {};
    std::byte* to = memory_.data();
    for (std::size_t i = 0; i < mine.size(); ++i) {
        auto& view = copied.tensors[i].bytes;
        const auto fetch = std::exchange(copied.tensors[i].fetch, {});
        if (!mine[i]) {
            view = {absent_.data(), view.size()};
            continue;
        }
        if (fetch)
            fetch({to, view.size()});
        else if (!view.empty())
            std::memcpy(to, view.data(), view.size());
        const auto room = detail::room_of(copied.tensors[i]);
        view = {to, view.size()};
        to += room;
    }
    state_ = std::move(copied);
}

} // namespace skein::train
