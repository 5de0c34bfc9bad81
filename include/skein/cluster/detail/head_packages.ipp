// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: folders that jobs bring, from who submits them to the
// nodes that run them. All that touches the disk runs on the pool.

#include <skein/cluster/detail/head_state.hpp>
#include <skein/cluster/detail/package_message.hpp>
#include <skein/cluster/job_storage.hpp>
#include <skein/cluster/package_store.hpp>
#include <skein/net/offload.hpp>

#include <memory>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

SKEIN_INLINE std::shared_ptr<job_storage> head::state::need_packages() const {
    if (how.storage != nullptr) return how.storage;
    throw error(errc::not_supported, "not supported: this head keeps no files of jobs")
        .with_hint("start it with a folder for them: skein head --storage DIR");
}

/// What of it is not here? It is held until who offers it has gone.
SKEIN_INLINE task<package_wanted> head::state::on_offer(state* self, session_ptr s,
                                                        offer_package m) {
    struct answer {
        package_wanted wanted;
        package_pin pin;
    };
    auto working = net::offload([kept = self->need_packages(), text = std::move(m.manifest)] {
        const auto manifest = detail::read_manifest(text);
        answer out;
        out.pin = kept->get().packages->pin(manifest);
        out.wanted.id = out.pin.id();
        for (const auto& digest : kept->get().packages->missing(manifest))
            out.wanted.missing.push_back(to_hex(digest));
        return out;
    });
    auto done = co_await working;
    if (s->uploads.pins.size() >= detail::most_offers)
        throw error(errc::exhausted, fmt::format("{} folders over one link", detail::most_offers));
    s->uploads.pins.push_back(std::move(done.pin));
    co_return std::move(done.wanted);
}

/// One piece after the other; each is asked for when the one before is kept.
SKEIN_INLINE task<blob_taken> head::state::on_blob(state* self, session_ptr s, put_blob m) {
    auto& writers = s->uploads.writers;
    const auto digest = detail::read_digest(m.digest);
    if (m.offset == 0) {
        if (writers.size() >= detail::most_uploads && !writers.contains(m.digest))
            throw error(errc::exhausted, fmt::format("{} files at a time", writers.size()));
        writers[m.digest] = std::make_shared<detail::head_upload>();
    }
    const auto found = writers.find(m.digest);
    if (found == writers.end() || found->second->is_busy || found->second->bytes != m.offset)
        throw error(errc::malformed,
                    fmt::format("a piece at {} of a file, which is not the next one", m.offset));
    const auto upload = found->second;
    upload->is_busy = true;
    upload->bytes += m.bytes.size();
    if (m.is_last) writers.erase(found);
    auto adding = net::offload([kept = self->need_packages(), digest, upload, size = m.size,
                                bytes = std::move(m.bytes), ends = m.is_last] {
        if (!upload->into) upload->into.emplace(kept->get().packages->begin(digest, size));
        upload->into->append(bytes);
        if (ends) upload->into->commit();
    });
    co_await adding;
    upload->is_busy = false;
    co_return blob_taken();
}

SKEIN_INLINE void head::state::serve_packages(net::request_service& of, const session_ptr& s) {
    const std::weak_ptr<detail::head_session> weak = s;
    const auto here = [weak](const net::caller& who) {
        auto session = weak.lock();
        if (session == nullptr) throw error(errc::closed, who.peer + " has gone");
        return session;
    };
    of.on<offer_package, package_wanted>(
        [this, here](offer_package m, const net::caller& who) -> task<package_wanted> {
            detail::check_version(m.version, who.peer);
            return on_offer(this, here(who), std::move(m));
        });
    of.on<put_blob, blob_taken>([this, here](put_blob m, const net::caller& who) {
        return on_blob(this, here(who), std::move(m));
    });
    of.on<ask_package, package_found>([this](ask_package m, const net::caller&) {
        return [](std::shared_ptr<job_storage> kept, std::string id) -> task<package_found> {
            auto reading = net::offload([kept, id] {
                const auto found = kept->get().packages->find(id);
                if (!found)
                    throw error(errc::not_found, fmt::format("the head has no package {}", id))
                        .with_hint("submit the job again: its files have been removed");
                return wire::encode(*found);
            });
            package_found out;
            out.manifest = co_await reading;
            co_return out;
        }(need_packages(), std::move(m.id));
    });
    of.on<ask_blob, blob_piece>([this](ask_blob m, const net::caller&) {
        return [](std::shared_ptr<job_storage> kept, ask_blob asked) -> task<blob_piece> {
            const auto digest = detail::read_digest(asked.digest);
            auto reading = net::offload([kept, digest, offset = asked.offset] {
                return kept->get().packages->read(digest, offset, most_blob_piece);
            });
            blob_piece out;
            out.bytes = co_await reading;
            co_return out;
        }(need_packages(), std::move(m));
    });
}

/// Holds the files of a job as long as it may start.
SKEIN_INLINE task<void> head::state::hold_package(state* self, const job_request* what,
                                                  package_pin* into) {
    if (what->package.empty()) co_return;
    auto holding = net::offload([kept = self->need_packages(), id = what->package] {
        const auto found = kept->get().packages->find(id);
        if (!found)
            throw error(errc::not_found, fmt::format("the head has no package {}", id))
                .with_hint("offer it first: skein job submit --working-dir does");
        if (const auto missing = kept->get().packages->missing(*found); !missing.empty())
            throw error(errc::not_found,
                        fmt::format("{} files of package {} are not here", missing.size(), id));
        return kept->get().packages->pin(id);
    });
    *into = co_await holding;
}

} // namespace skein::cluster
