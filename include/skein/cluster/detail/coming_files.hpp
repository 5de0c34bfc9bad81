// SPDX-License-Identifier: Apache-2.0
#pragma once
// Files that come over a link in pieces, several pieces under way: written in order on the pool, and
// hashed as they are written. The digest may come with the last piece: who sends reads once.
//
//     auto coming = std::make_shared<coming_files>();
//     auto putting = put_piece(coming, open_store, std::move(piece));   // each in a task of its own
//     co_await putting;

#include <skein/core/config.hpp>
#include <skein/cluster/detail/package_message.hpp>
#include <skein/cluster/package_store.hpp>
#include <skein/cluster/run_store.hpp>
#include <skein/core/error.hpp>
#include <skein/core/mutex.hpp>
#include <skein/core/task.hpp>
#include <skein/net/offload.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster::detail {

inline constexpr std::size_t most_coming = 512; ///< files of one link at a time

/// One of them. `into` is of the pool while `turn` is held.
struct coming_file {
    std::optional<blob_writer> into;
    std::uint64_t expected = 0;
    mutex turn;
    bool has_failed = false;
};

/// Of one link. Belongs to one loop; what it has begun may outlive it.
struct coming_files {
    std::map<std::uint64_t, std::shared_ptr<coming_file>> all;

    /// The file that a piece belongs to, which counts as come.
    ///   errors  malformed, exhausted
    [[nodiscard]] std::shared_ptr<coming_file> file_of(const run_piece& m) {
        if (m.bytes.size() > most_blob_piece || m.offset > m.size ||
            m.bytes.size() > m.size - m.offset)
            throw error(errc::malformed, fmt::format("a piece of {} bytes at {} of {}",
                                                     m.bytes.size(), m.offset, m.size));
        if (m.offset == 0) {
            if (all.size() >= most_coming && !all.contains(m.file))
                throw error(errc::exhausted, fmt::format("{} files at a time", all.size()));
            all[m.file] = std::make_shared<coming_file>();
        }
        const auto found = all.find(m.file);
        if (found == all.end() || found->second->expected != m.offset)
            throw error(
                errc::malformed,
                fmt::format("a piece at {} of a file, which is not the next one", m.offset));
        auto file = found->second;
        file->expected += m.bytes.size();
        if (m.is_last) all.erase(found);
        return file;
    }
};

using store_opener = std::function<package_store&()>; ///< blocks; copies may outlive its maker

/// Adds a piece. A file one of whose pieces has failed takes no more.
///   errors  malformed, exhausted, mismatch, aborted, disk_full, io
inline task<void> put_piece(std::shared_ptr<coming_files> coming, store_opener open, run_piece m) {
    const auto file = coming->file_of(m);
    coming.reset();
    auto turn = co_await file->turn.lock();
    if (std::exchange(file->has_failed, true)) // a cancelled task leaves it so: its work may go on
        throw error(errc::aborted, "an earlier piece of the file was not taken");
    sha256_digest digest{};
    if (m.is_last) digest = read_digest(m.digest);
    auto adding = net::offload([open = std::move(open), file, digest, piece = std::move(m)] {
        if (!file->into) file->into.emplace(open().begin(piece.size));
        file->into->append(piece.bytes);
        if (piece.is_last) file->into->commit(digest);
    });
    co_await adding;
    file->has_failed = false;
}

} // namespace skein::cluster::detail
