// SPDX-License-Identifier: Apache-2.0
#pragma once
// The requests of a scheduler: 48 bytes each, in chunks that come and go, so that a million of them
// need no copy and leave nothing behind. A queue, and the requests that hold room on a place, are
// chains through them.

#include <skein/sched/detail/place_tree.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

namespace skein::sched::detail {

enum class request_state : std::uint8_t { free, queued, running, waiting, resuming };

struct request_entry {
    std::uint64_t tag = 0;
    std::uint64_t order = 0; ///< of its submission, in this scheduler
    std::uint64_t gpus = 0;
    std::uint32_t generation = 0;
    std::uint32_t queue = no_index;
    std::uint32_t next = no_index, prev = no_index; ///< in its queue, or among those on its place
    std::uint32_t place = no_index;
    request_state state = request_state::free;
    bool for_life = false, leaving = false;
};
static_assert(sizeof(request_entry) == 48);

class request_table {
public:
    [[nodiscard]] request_entry& operator[](std::uint32_t index) noexcept {
        return chunks_[index / per_chunk].entries[index % per_chunk];
    }
    [[nodiscard]] const request_entry& operator[](std::uint32_t index) const noexcept {
        return chunks_[index / per_chunk].entries[index % per_chunk];
    }

    /// An entry whose fields are those of a new one, but for its generation.
    [[nodiscard]] std::uint32_t take() {
        if (open_.empty()) add_chunk();
        const auto number = *open_.begin();
        auto& c = chunks_[number];
        if (!c.entries) fill(c);
        const auto at = c.first_free;
        auto& e = c.entries[at];
        c.first_free = e.next;
        if (++c.used == per_chunk) open_.erase(number);
        const auto generation = e.generation;
        e = {};
        e.generation = generation;
        ++size_;
        return number * per_chunk + at;
    }
    void free(std::uint32_t index) {
        const auto number = index / per_chunk;
        auto& c = chunks_[number];
        auto& e = c.entries[index % per_chunk];
        e.state = request_state::free;
        ++e.generation;
        c.last_generation = std::max(c.last_generation, e.generation);
        e.next = c.first_free;
        c.first_free = index % per_chunk;
        if (c.used-- == per_chunk) open_.insert(number);
        --size_;
        // The last empty chunk stays, or a lone request would allocate each time.
        if (c.used == 0 && number != *open_.begin()) c.entries.reset();
    }

    [[nodiscard]] std::uint64_t id(std::uint32_t index) const noexcept {
        return std::uint64_t{(*this)[index].generation} << 32 | index;
    }
    /// The entry of an id, no_index if it is gone or was none.
    [[nodiscard]] std::uint32_t find(std::uint64_t id) const noexcept {
        const auto index = static_cast<std::uint32_t>(id);
        const auto number = index / per_chunk;
        if (number >= chunks_.size() || !chunks_[number].entries) return no_index;
        const auto& e = (*this)[index];
        return e.state != request_state::free && e.generation == id >> 32 ? index : no_index;
    }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] std::size_t bytes() const noexcept {
        std::size_t n = chunks_.capacity() * sizeof(chunk);
        for (const auto& c : chunks_)
            if (c.entries) n += per_chunk * sizeof(request_entry);
        return n;
    }

private:
    static constexpr std::uint32_t per_chunk = 1024;
    struct chunk {
        std::unique_ptr<request_entry[]> entries;
        std::uint32_t used = 0, first_free = 0;
        std::uint32_t last_generation = 1; ///< ids begin above those that a dropped chunk gave
    };

    void add_chunk() {
        open_.insert(static_cast<std::uint32_t>(chunks_.size()));
        chunks_.emplace_back();
    }
    static void fill(chunk& c) {
        c.entries = std::make_unique<request_entry[]>(per_chunk);
        for (std::uint32_t i = 0; i < per_chunk; ++i) {
            c.entries[i].generation = c.last_generation;
            c.entries[i].next = i + 1 < per_chunk ? i + 1 : no_index;
        }
        c.first_free = 0;
    }

    std::vector<chunk> chunks_;
    std::set<std::uint32_t> open_; ///< chunks with a free entry
    std::size_t size_ = 0;
};

} // namespace skein::sched::detail
