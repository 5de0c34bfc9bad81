// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the files of a run are found again when its folder is gone: what stands between a folder on
// some node and who needs it later, on another one.
//
// Files are put by content (SHA-256), each once. A *set* is a manifest (cluster/package.hpp) with a
// name: what an attempt has left behind, a step of a training. It is committed when all of its files
// are there and durable; before that nobody sees it, and from then on it is whole until it is
// removed as a whole.
//
//     run_store& store = ...;                       // of one job
//     auto asking = store.begin(manifest);          // which contents are not there
//     const auto wanted = co_await asking;
//     ...                                           // store.put(), several at a time
//     auto committing = store.commit(set);
//     co_await committing;
//     auto listing = store.list();                  // in another process, on another host
//
// Two are there: a shelf on a disk (cluster/run_shelf.hpp), which a head has and which needs no
// network, and the head's, reached over a link (detail/head_runs.hpp).

#include <skein/core/config.hpp>
#include <skein/cluster/detail/run_messages.hpp>
#include <skein/cluster/package.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/sha256.hpp>
#include <skein/core/task.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace skein::cluster {

/// How much one set may hold. Its bytes are bounded by the store's budget.
[[nodiscard]] inline package_bounds run_bounds() {
    package_bounds out;
    out.bytes = std::uint64_t{1} << 50;
    return out;
}

/// A part of a file that is on its way: pieces of one file come in order and name it by a number.
struct run_piece {
    std::uint64_t file = 0;
    std::uint64_t size = 0, offset = 0;
    byte_buffer bytes;
    bool is_last = false;
    std::string digest; ///< with the last one: 64 hexadecimal digits
};

/// Sets of one job. Belongs to one loop.
class run_store {
public:
    /// Says which contents are missing; those that are there are held until this object ends.
    ///   errors  exhausted: no room; malformed, too_large; those of the way there
    [[nodiscard]] virtual task<set_wanted> begin(package_manifest what) = 0;
    /// Adds a piece. Of one file several may be under way, in order, but the last one is sent when
    /// the others have been taken.
    ///   errors  mismatch: other bytes than the digest says; exhausted, disk_full, io
    [[nodiscard]] virtual task<void> put(run_piece piece) = 0;
    /// The set is there, durable, in the place of one of the same name.
    ///   errors  not_found: not all of its files have come; disk_full, io
    [[nodiscard]] virtual task<void> commit(stored_set what) = 0;
    /// The newest last.
    [[nodiscard]] virtual task<std::vector<stored_set>> list() = 0;
    ///   errors  not_found: it was removed
    [[nodiscard]] virtual task<package_manifest> find(std::string id) = 0;
    /// A piece of a file of a set, at most most_blob_piece; empty behind its end.
    ///   errors  not_found: it was removed; corrupt
    [[nodiscard]] virtual task<byte_buffer> read(std::string id, std::uint32_t entry,
                                                 std::uint64_t offset) = 0;

protected:
    run_store() = default;
    run_store(const run_store&) = default;
    run_store& operator=(const run_store&) = default;
    ~run_store() = default;
};

} // namespace skein::cluster
