// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finding the memory that a buffer lies in, and its end.

#include <skein/core/check.hpp>
#include <skein/dist/buffer.hpp>

#include <functional>
#include <utility>

namespace skein::dist {

SKEIN_INLINE void detail::memory_table::add(const group_memory& memory, std::uint16_t id) {
    const std::lock_guard lock(guard_);
    begins_.emplace(memory.data(), entry{&memory, id});
}

SKEIN_INLINE void detail::memory_table::remove(const std::byte* begin) noexcept {
    const std::lock_guard lock(guard_);
    begins_.erase(begin);
}

SKEIN_INLINE detail::memory_place detail::memory_table::find(const buffer_view& view) const {
    if (view.count == 0) return {};
    const std::lock_guard lock(guard_);
    auto behind = begins_.upper_bound(view.begin());
    if (behind == begins_.begin()) return {};
    const auto& [begin, found] = *std::prev(behind);
    const auto offset = static_cast<std::size_t>(view.begin() - begin);
    if (offset >= found.memory->bytes()) return {};
    SKEIN_CHECK(view.bytes() <= found.memory->bytes() - offset,
                "a buffer of {} bytes at byte {} of {} bytes of group memory", view.bytes(), offset,
                found.memory->bytes());
    return {.memory = found.memory, .id = found.id, .input = false, .offset = offset};
}

SKEIN_INLINE group_memory::group_memory(std::size_t bytes, memory_kind kind, bool everywhere,
                                        std::vector<shared_memory> maps, std::size_t mine)
    : bytes_(bytes), kind_(kind), everywhere_(everywhere), maps_(std::move(maps)), mine_(mine) {}

SKEIN_INLINE group_memory::~group_memory() {
    if (listed_) listed_->remove(data());
}

SKEIN_INLINE std::shared_ptr<group_memory> group_memory::alone(std::size_t bytes, memory_kind kind,
                                                               bool everywhere) {
    std::vector<shared_memory> one;
    one.push_back(shared_memory::create_private(bytes));
    return std::shared_ptr<group_memory>(
        new group_memory(bytes, kind, everywhere, std::move(one), 0));
}

} // namespace skein::dist
