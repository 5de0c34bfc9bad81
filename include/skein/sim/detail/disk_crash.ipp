// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a crash of the simulated disk leaves; comes after detail/disk.ipp.

#include <skein/core/error.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace skein::sim {

SKEIN_INLINE void disk::crash() {
    const std::lock_guard lock(mutex_);
    ++life_;
    power_ = failing_ = UINT64_MAX;
    settle(crash_mode::mixed, random_);
}

SKEIN_INLINE std::unique_ptr<disk> disk::crash(crash_mode mode, std::uint64_t seed) const {
    const std::lock_guard lock(mutex_);
    auto after = std::make_unique<disk>();
    std::map<const inode*, inode_ptr> copies;
    const auto copy = [&](inode_ptr& node) {
        if (!node) return;
        auto& made = copies[node.get()];
        if (!made) made = std::make_shared<inode>(*node);
        node = made;
    };
    after->now_ = now_;
    after->durable_ = durable_;
    after->journal_ = journal_;
    for (auto& [path, node] : after->now_.files) copy(node);
    for (auto& [path, node] : after->durable_.files) copy(node);
    for (auto& s : after->journal_) copy(s.name.target);
    seeded_random random(seed);
    after->settle(mode, random);
    return after;
}

SKEIN_INLINE void disk::settle(crash_mode mode, random_source& random) {
    settle_names(mode, random);
    // Files in the order of their names; a file that has two names is done once.
    for (auto& [path, node] : now_.files) {
        if (mode == crash_mode::all_written) node->durable = node->now;
        if (mode == crash_mode::mixed)
            for (const auto& c : node->unsynced) settle_write(*node, c, random);
        node->unsynced.clear();
        node->now = node->durable;
    }
}

SKEIN_INLINE void disk::settle_names(crash_mode mode, random_source& random) {
    if (mode == crash_mode::all_written) {
        durable_ = now_;
    } else if (mode == crash_mode::mixed) {
        // Nothing is promised about the order: a journal keeps it, other file systems do not.
        const bool in_order = random.below(2) == 0;
        const std::uint64_t kept = random.below(journal_.size() + 1);
        for (std::uint64_t i = 0; i < journal_.size(); ++i) {
            if (in_order ? i >= kept : random.below(2) == 0) continue;
            durable_.apply(journal_[i]);
        }
        // What lies in a folder that did not survive is gone with it.
        std::erase_if(durable_.folders, [&](const std::string& path) {
            for (auto above = parent_path(path); above != "." && above != "/";
                 above = parent_path(above))
                if (!durable_.folders.contains(above)) return true;
            return false;
        });
        std::erase_if(durable_.files, [&](const auto& entry) {
            return !durable_.folders.contains(parent_path(entry.first));
        });
    }
    journal_.clear();
    now_ = durable_;
}

/// Every unsynced write has its own fate.
SKEIN_INLINE void disk::settle_write(inode& node, const change& c, random_source& random) {
    switch (random.below(4)) {
    case 0: count(fault::disk_lost); break;
    case 1:
        count(fault::disk_torn);
        apply(node.durable, c, static_cast<std::size_t>(random.below(c.bytes.size() + 1)));
        break;
    case 2: { // the size arrived, the pages did not
        count(fault::disk_torn);
        change hole = c;
        std::fill(hole.bytes.begin(), hole.bytes.end(), std::byte{0});
        apply(node.durable, hole, hole.bytes.size());
        break;
    }
    default: apply(node.durable, c, c.bytes.size()); break;
    }
}

} // namespace skein::sim
