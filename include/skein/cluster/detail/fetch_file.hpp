// SPDX-License-Identifier: Apache-2.0
#pragma once
// Brings one file of a set out of a run store into a folder, from where a cut has left it.
//
//     auto fetching = fetch_file(&store, folder, set.id, 3, files.entries[3]);
//     const auto came = co_await fetching;         // bytes; the file is there, whole

#include <skein/core/config.hpp>
#include <skein/cluster/detail/fetched_files.hpp>
#include <skein/cluster/package.hpp>
#include <skein/cluster/run_store.hpp>
#include <skein/core/error.hpp>
#include <skein/core/task.hpp>
#include <skein/net/offload.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace skein::cluster::detail {

/// Gives the bytes that came. What fails leaves the part that is there for the next try.
///   from, told  must outlive it
///   told        of the bytes that were there already, then of each piece; nullptr: nobody is
///   errors      those of run_store::read and fetched_file; corrupt: it ends too early
inline task<std::uint64_t> fetch_file(run_store* from, std::shared_ptr<fetched_folder> to,
                                      std::string id, std::uint32_t number, package_entry entry,
                                      const std::function<void(std::uint64_t)>* told = nullptr) {
    auto beginning =
        net::offload([to, entry] { return std::make_shared<fetched_file>(to->begin(entry)); });
    const auto file = co_await beginning;
    const auto had = file->bytes();
    if (told != nullptr) (*told)(had);
    while (file->bytes() < entry.size) {
        auto asking = from->read(id, number, file->bytes());
        auto piece = co_await asking;
        if (piece.empty()) throw error(errc::corrupt, entry.path + " ends too early at the head");
        const auto came = piece.size();
        auto adding = net::offload([file, some = std::move(piece)] { file->append(some); });
        co_await adding;
        if (told != nullptr) (*told)(came);
    }
    auto ending = net::offload([file] { file->commit(); });
    co_await ending;
    co_return entry.size - had;
}

} // namespace skein::cluster::detail
