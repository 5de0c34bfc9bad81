// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of cluster/detail/package_service.hpp.

#include <skein/cluster/detail/hello_checks.hpp>
#include <skein/cluster/detail/package_message.hpp>
#include <skein/core/error.hpp>
#include <skein/net/offload.hpp>
#include <skein/wire/encode.hpp>

#include <utility>

#include <fmt/format.h>

namespace skein::cluster::detail {

///   errors  not_supported: there is none
[[nodiscard]] inline std::shared_ptr<job_storage> need(std::shared_ptr<job_storage> storage) {
    if (storage != nullptr) return storage;
    throw error(errc::not_supported, "not supported: this head keeps no files of jobs")
        .with_hint("start it with a folder for them: skein head --storage DIR");
}

/// Says what of a folder is not here. The folder is held until who offers it has gone.
SKEIN_INLINE task<package_wanted> package_service::offer(std::shared_ptr<job_storage> storage,
                                                         std::shared_ptr<package_uploads> uploads,
                                                         offer_package m) {
    struct answer {
        package_wanted wanted;
        package_pin pin;
    };
    auto working = net::offload([kept = need(storage), text = std::move(m.manifest)] {
        const auto manifest = read_manifest(text);
        answer out;
        out.pin = kept->get().packages->pin(manifest);
        out.wanted.id = out.pin.id();
        for (const auto& digest : kept->get().packages->missing(manifest))
            out.wanted.missing.push_back(to_hex(digest));
        return out;
    });
    auto done = co_await working;
    if (uploads->pins.size() >= most_offers)
        throw error(errc::exhausted, fmt::format("{} folders over one link", most_offers));
    uploads->pins.push_back(std::move(done.pin));
    co_return std::move(done.wanted);
}

/// One piece after the other; each is asked for when the one before is kept.
SKEIN_INLINE task<blob_taken> package_service::put(std::shared_ptr<job_storage> storage,
                                                   std::shared_ptr<package_uploads> uploads,
                                                   put_blob m) {
    auto& writers = uploads->writers;
    const auto digest = read_digest(m.digest);
    if (m.offset == 0) {
        if (writers.size() >= most_uploads && !writers.contains(m.digest))
            throw error(errc::exhausted, fmt::format("{} files at a time", writers.size()));
        writers[m.digest] = std::make_shared<package_upload>();
    }
    const auto found = writers.find(m.digest);
    if (found == writers.end() || found->second->is_busy || found->second->bytes != m.offset)
        throw error(errc::malformed,
                    fmt::format("a piece at {} of a file, which is not the next one", m.offset));
    const auto upload = found->second;
    upload->is_busy = true;
    upload->bytes += m.bytes.size();
    if (m.is_last) writers.erase(found);
    auto adding = net::offload([kept = need(storage), digest, upload, size = m.size,
                                bytes = std::move(m.bytes), ends = m.is_last] {
        if (!upload->into) upload->into.emplace(kept->get().packages->begin(digest, size));
        upload->into->append(bytes);
        if (ends) upload->into->commit();
    });
    co_await adding;
    upload->is_busy = false;
    co_return blob_taken();
}

SKEIN_INLINE task<piece_taken> package_service::put_piece_of(
    std::shared_ptr<job_storage> storage, std::shared_ptr<package_uploads> uploads,
    put_package_piece m) {
    run_piece piece;
    piece.file = m.file;
    piece.size = m.size;
    piece.offset = m.offset;
    piece.bytes = std::move(m.bytes);
    piece.is_last = m.is_last;
    piece.digest = std::move(m.digest);
    store_opener open = [kept = need(std::move(storage))]() -> package_store& {
        return *kept->get().packages;
    };
    auto putting = put_piece(uploads->coming, std::move(open), std::move(piece));
    uploads.reset();
    co_await putting;
    co_return piece_taken();
}

inline constexpr std::size_t most_asked_sizes = 100'000;

SKEIN_INLINE task<sizes_found> package_service::find_sizes(std::shared_ptr<job_storage> storage,
                                                           ask_sizes m) {
    if (m.sizes.size() > most_asked_sizes)
        throw error(errc::too_large, fmt::format("{} sizes at once", m.sizes.size()));
    auto looking = net::offload([kept = need(storage), sizes = std::move(m.sizes)] {
        return kept->get().packages->sizes_here(sizes);
    });
    sizes_found out;
    out.sizes = co_await looking;
    co_return out;
}

SKEIN_INLINE task<package_found> package_service::find(std::shared_ptr<job_storage> storage,
                                                       std::string package) {
    auto reading = net::offload([kept = need(storage), id = package] {
        const auto found = kept->get().packages->find(id);
        if (!found)
            throw error(errc::not_found, fmt::format("the head has no package {}", id))
                .with_hint("submit the job again: its files have been removed");
        return wire::encode(*found);
    });
    package_found out;
    out.manifest = co_await reading;
    co_return out;
}

SKEIN_INLINE task<blob_piece> package_service::read(std::shared_ptr<job_storage> storage,
                                                    ask_blob m) {
    const auto digest = read_digest(m.digest);
    auto reading = net::offload([kept = need(storage), digest, offset = m.offset] {
        return kept->get().packages->read(digest, offset, most_blob_piece);
    });
    blob_piece out;
    out.bytes = co_await reading;
    co_return out;
}

SKEIN_INLINE void package_service::serve(net::request_service& service,
                                         const std::weak_ptr<package_uploads>& uploads) const {
    const auto here = [uploads](const net::caller& who) {
        auto of_link = uploads.lock();
        if (of_link == nullptr) throw error(errc::closed, who.peer + " has gone");
        return of_link;
    };
    service.on<offer_package, package_wanted>(
        [storage = storage_, here](offer_package m, const net::caller& who) {
            check_version(m.version, who.peer);
            return offer(storage, here(who), std::move(m));
        });
    service.on<put_blob, blob_taken>(
        [storage = storage_, here](put_blob m, const net::caller& who) {
            return put(storage, here(who), std::move(m));
        });
    service.on<put_package_piece, piece_taken>(
        [storage = storage_, here](put_package_piece m, const net::caller& who) {
            return put_piece_of(storage, here(who), std::move(m));
        });
    service.on<ask_sizes, sizes_found>([storage = storage_](ask_sizes m, const net::caller& who) {
        check_version(m.version, who.peer);
        return find_sizes(storage, std::move(m));
    });
    service.on<ask_package, package_found>([storage = storage_](ask_package m, const net::caller&) {
        return find(need(storage), std::move(m.id));
    });
    service.on<ask_blob, blob_piece>([storage = storage_](ask_blob m, const net::caller&) {
        return read(need(storage), std::move(m));
    });
}

SKEIN_INLINE task<package_pin> package_service::hold_in(std::shared_ptr<job_storage> storage,
                                                        std::string package) {
    if (package.empty()) co_return package_pin();
    auto holding = net::offload([kept = need(storage), id = package] {
        const auto found = kept->get().packages->find(id);
        if (!found)
            throw error(errc::not_found, fmt::format("the head has no package {}", id))
                .with_hint("offer it first: skein job submit --working-dir does");
        if (const auto missing = kept->get().packages->missing(*found); !missing.empty())
            throw error(errc::not_found,
                        fmt::format("{} files of package {} are not here", missing.size(), id));
        return kept->get().packages->pin(id);
    });
    auto held = co_await holding;
    co_return held;
}

SKEIN_INLINE package_pin package_service::hold_if_here(const std::string& package) const {
    if (storage_ == nullptr || package.empty()) return {};
    auto& kept = *storage_->get().packages;
    return kept.find(package) ? kept.pin(package) : package_pin();
}

} // namespace skein::cluster::detail
