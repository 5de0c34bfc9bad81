// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/job_folders.hpp.

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/detail/job_folder.hpp>
#include <skein/cluster/detail/package_message.hpp>
#include <skein/cluster/job_storage.hpp>
#include <skein/cluster/package_store.hpp>
#include <skein/net/offload.hpp>

#include <filesystem>
#include <system_error>
#include <tuple>

namespace skein::cluster::detail {

SKEIN_INLINE task<void> job_folders::open_storage(job_folders* self, job_place* place,
                                                  std::optional<net::token> key) {
    const auto kept = self->storage_;
    if (kept == nullptr) co_return;
    auto opening = net::offload([kept, key, files = self->keys_]() mutable {
        const auto& folder = kept->get().folder;
        return std::pair(folder, key ? files.keep(folder, *key) : nullptr);
    });
    place->in_storage = true;
    std::tie(place->storage, place->key) = co_await opening;
    place->in_storage = false;
}

SKEIN_INLINE task<void> job_folders::enter_folder(job_folders* self, job_place* place,
                                                  std::string folder, std::string package) {
    place->folder = std::move(folder);
    place->has_own_folder = true;
    for (auto at = self->being_laid_.find(place->folder); at != self->being_laid_.end();
         at = self->being_laid_.find(place->folder)) {
        const auto laid = at->second;
        auto waiting = wait_for(laid.get());
        co_await waiting;
    }
    const auto laid = std::make_shared<event>();
    self->being_laid_.emplace(place->folder, laid);
    place->in_storage = true;
    auto making = as_result(make(self, place, std::move(package)));
    const auto made = co_await making;
    self->being_laid_.erase(place->folder);
    laid->set();
    if (!made) throw made.error();
    place->in_storage = false;
}

SKEIN_INLINE task<void> job_folders::make(job_folders* self, job_place* place,
                                          std::string package) {
    if (!package.empty()) {
        auto fetching = fetch_package(self, place, std::move(package));
        co_await fetching;
        co_return;
    }
    auto making = net::offload([folder = place->folder] { make_job_folder(folder); });
    co_await making;
}

/// What is missing of its folder comes from the head, and each file is kept: the next job that has
/// it finds it here. A folder that an attempt before has left is used again: its checkpoints are
/// there.
SKEIN_INLINE task<void> job_folders::fetch_package(job_folders* self, job_place* place,
                                                   std::string package) {
    const auto kept = self->storage_;
    if (kept == nullptr)
        throw error(errc::not_supported, "not supported: this node keeps no files of jobs")
            .with_hint("start its agent with a folder for them: skein join --storage DIR");
    std::error_code none;
    if (std::filesystem::is_directory(place->folder, none)) {
        touch(place->folder);
        co_return;
    }
    auto finding = net::offload([kept, id = package] { return kept->get().packages->find(id); });
    auto manifest = co_await finding;
    if (!manifest) {
        auto asking = as_result(self->source_.find_package({package}));
        const auto found = co_await asking;
        if (!found) {
            place->in_storage = found.error().code() != errc::not_found; // the head has it no more
            throw found.error();
        }
        auto read = read_manifest(found->manifest);
        if (read.id() != package)
            throw error(errc::corrupt, "the head has sent another package than it was asked for");
        manifest = std::move(read);
    }
    auto holding = net::offload([kept, all = *manifest] {
        auto& store = *kept->get().packages;
        auto held_files = std::make_shared<package_pin>(store.pin(all));
        return std::pair(std::move(held_files), store.missing(all));
    });
    const auto held = co_await holding;
    std::map<sha256_digest, std::uint64_t> sizes;
    for (const auto& one : manifest->entries) sizes[one.digest] = one.size;
    for (const auto& digest : held.second) {
        auto fetching = fetch_blob(self, digest, sizes[digest]);
        co_await fetching;
    }
    auto laying = net::offload([kept, all = *manifest, folder = place->folder] {
        make_room_for_jobs(std::filesystem::path(folder).parent_path().string());
        kept->get().packages->lay_out(all, folder);
    });
    co_await laying;
}

SKEIN_INLINE task<void> job_folders::fetch_blob(job_folders* self, sha256_digest digest,
                                                std::uint64_t size) {
    auto beginning = net::offload([kept = self->storage_, digest, size] {
        return std::make_shared<blob_writer>(kept->get().packages->begin(digest, size));
    });
    const auto into = co_await beginning;
    while (into->bytes() < size) {
        auto asking = self->source_.read_blob({to_hex(digest), into->bytes()});
        auto piece = co_await asking;
        if (piece.bytes.empty()) throw error(errc::corrupt, "a file of the job ends too early");
        auto adding = net::offload([into, some = std::move(piece.bytes)] { into->append(some); });
        co_await adding;
    }
    auto ending = net::offload([into] { into->commit(); });
    co_await ending;
}

} // namespace skein::cluster::detail
