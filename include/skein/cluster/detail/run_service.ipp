// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of cluster/detail/run_service.hpp.

#include <skein/cluster/detail/hello_checks.hpp>
#include <skein/cluster/detail/package_message.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/error.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/offload.hpp>
#include <skein/wire/encode.hpp>

#include <chrono>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster::detail {

inline constexpr std::size_t most_set_text = 1024; ///< of a set's name, and of its trouble

SKEIN_INLINE run_shelf& shelf_in_storage::get() {
    if (storage_ == nullptr)
        throw error(errc::not_supported, "not supported: this head keeps no files of jobs")
            .with_hint("start it with a folder for them: skein head --storage DIR");
    const std::lock_guard held(mutex_);
    if (shelf_ == nullptr)
        shelf_ = std::make_unique<run_shelf>(storage_->get().folder + "/results", budget_);
    return *shelf_;
}

SKEIN_INLINE run_shelf* shelf_in_storage::if_open() {
    const std::lock_guard held(mutex_);
    return shelf_.get();
}

SKEIN_INLINE std::string run_service::key_of(const submitted_job& job) {
    return fmt::format("{}-{:x}", job.what.id, job.submitted);
}

SKEIN_INLINE task<set_wanted> run_service::offer(shelf_ptr shelf,
                                                 std::shared_ptr<run_uploads> uploads, offer_set m,
                                                 tidier tidies) {
    struct answer {
        set_wanted wanted;
        package_pin pin;
    };
    auto working = net::offload([shelf, tidies = std::move(tidies), text = std::move(m.manifest)] {
        const auto manifest = read_set(text);
        auto& files = shelf->get().files();
        tidies(shelf->get()); // what jobs held that have ended since may have to go for this one
        answer out;
        out.pin = files.pin(manifest);
        out.wanted.id = out.pin.id();
        for (const auto& digest : files.missing(manifest))
            out.wanted.missing.push_back(to_hex(digest));
        return out;
    });
    auto done = co_await working;
    uploads->pins[m.lease] = std::move(done.pin);
    co_return std::move(done.wanted);
}

SKEIN_INLINE task<piece_taken> run_service::put(shelf_ptr shelf,
                                                std::shared_ptr<run_uploads> uploads,
                                                put_run_piece m) {
    run_piece piece;
    piece.file = m.file;
    piece.size = m.size;
    piece.offset = m.offset;
    piece.bytes = std::move(m.bytes);
    piece.is_last = m.is_last;
    piece.digest = std::move(m.digest);
    store_opener open = [shelf]() -> package_store& { return shelf->get().files(); };
    auto putting = put_piece(uploads->coming, std::move(open), std::move(piece));
    uploads.reset();
    co_await putting;
    co_return piece_taken();
}

SKEIN_INLINE task<set_committed> run_service::commit(shelf_ptr shelf,
                                                     std::shared_ptr<run_uploads> uploads,
                                                     std::string key, commit_set m) {
    auto working = net::offload([shelf, key = std::move(key), what = std::move(m.what),
                                 run = std::move(m.run), keeps = std::move(m.keeps)] {
        shelf->get().commit(key, what, true);
        if (!run.empty()) shelf->get().keep_steps(key, run, keeps);
    });
    co_await working;
    uploads->pins.erase(m.lease);
    co_return set_committed();
}

SKEIN_INLINE task<set_list> run_service::list(shelf_ptr shelf, job_info now, std::string key) {
    set_list out;
    out.now = std::move(now);
    if (!shelf->is_there()) co_return out;
    auto looking = net::offload([shelf, key] { return shelf->get().sets_of(key); });
    out.sets = co_await looking;
    co_return out;
}

SKEIN_INLINE task<set_found> run_service::find(shelf_ptr shelf, std::string key, std::string id) {
    auto reading = net::offload([shelf, key, id] {
        auto& on = shelf->get();
        const auto found =
            on.has_set(key, id) ? on.files().find(id) : std::optional<package_manifest>();
        if (!found) throw error(errc::not_found, std::string(set_is_gone));
        return wire::encode(*found);
    });
    set_found out;
    out.manifest = co_await reading;
    co_return out;
}

SKEIN_INLINE task<blob_piece> run_service::read(shelf_ptr shelf, std::string key, ask_run_piece m) {
    auto reading = net::offload([shelf, key, asked = std::move(m)] {
        auto& on = shelf->get();
        if (!on.has_set(key, asked.id)) throw error(errc::not_found, std::string(set_is_gone));
        const auto digest = on.digest_of(asked.id, asked.entry);
        return on.files().read(digest, asked.offset, most_blob_piece);
    });
    blob_piece out;
    out.bytes = co_await reading;
    co_return out;
}

[[nodiscard]] inline bool runs_still(const run_service::attempt_of& who, const lease_name& lease) {
    try {
        (void)who(lease);
        return true;
    } catch (const error&) {
        return false;
    }
}

SKEIN_INLINE void run_service::serve_nodes(net::request_service& service,
                                           const std::weak_ptr<run_uploads>& uploads,
                                           const attempt_of& who) const {
    const auto here = [uploads](const net::caller& from) {
        auto of_link = uploads.lock();
        if (of_link == nullptr) throw error(errc::closed, from.peer + " has gone");
        return of_link;
    };
    service.on<offer_set, set_wanted>([shelf = shelf_, book = &book_, here,
                                       who](offer_set m, const net::caller& from) {
        (void)who(m.lease);
        auto of_link = here(from);
        std::erase_if(of_link->pins, [&](const auto& one) { return !runs_still(who, one.first); });
        return offer(shelf, std::move(of_link), std::move(m), tidier_of(*book));
    });
    service.on<put_run_piece, piece_taken>(
        [shelf = shelf_, here](put_run_piece m, const net::caller& from) {
            auto of_link = here(from);
            if (of_link->pins.empty())
                throw error(errc::malformed, from.peer + " sends files that it has not offered");
            return put(shelf, std::move(of_link), std::move(m));
        });
    service.on<commit_set, set_committed>(
        [on = &loop_, shelf = shelf_, here, who](commit_set m, const net::caller& from) {
            const auto of = who(m.lease);
            auto& what = m.what;
            check_text("the name of a set", what.name, most_set_text);
            check_text("the name of a run", m.run, most_set_text);
            if (m.keeps.size() > run_shelf::most_sets) m.keeps.resize(run_shelf::most_sets);
            if (what.trouble.size() > most_set_text) what.trouble.resize(most_set_text);
            what.node = of.node;
            what.attempt = of.job->attempt;
            what.when = unix_ms(*on);
            what.files = what.bytes = 0;
            auto key = key_of(*of.job);
            return commit(shelf, here(from), std::move(key), std::move(m));
        });
}

SKEIN_INLINE void run_service::serve_tools(net::request_service& service) const {
    auto* const book = &book_;
    service.on<ask_sets, set_list>([shelf = shelf_, book](ask_sets m, const net::caller& who) {
        check_version(m.version, who.peer);
        const auto job = book->called(m.job);
        return list(shelf, book->info_of(*job), key_of(*job));
    });
    service.on<ask_set, set_found>([shelf = shelf_, book](ask_set m, const net::caller&) {
        return find(shelf, key_of(*book->called(m.job)), std::move(m.id));
    });
    service.on<ask_run_piece, blob_piece>(
        [shelf = shelf_, book](ask_run_piece m, const net::caller&) {
            auto key = key_of(*book->called(m.job));
            return read(shelf, std::move(key), std::move(m));
        });
}

SKEIN_INLINE task<std::vector<stored_set>> run_service::sets_of(std::string id) const {
    const auto job = book_.called(id);
    auto listing = list(shelf_, {}, key_of(*job));
    auto all = co_await listing;
    co_return std::move(all.sets);
}

/// Jobs that nobody knows any more take no room; those that have ended give way to others.
SKEIN_INLINE run_service::tidier run_service::tidier_of(const job_book& book) {
    std::set<std::string> known, open;
    for (const auto& [id, job] : book.all()) {
        known.insert(key_of(*job));
        if (!is_over(job->state)) open.insert(key_of(*job));
    }
    return [known = std::move(known), open = std::move(open),
            as_of = run_shelf::now()](run_shelf& shelf) {
        shelf.keep([&](const std::string& key) { return open.contains(key); },
                   [&](const std::string& key) { return known.contains(key); }, as_of);
    };
}

SKEIN_INLINE task<void> run_service::tidy_up(run_service* self) {
    for (std::uint64_t seen = 0;;) {
        co_await sleep_for(std::chrono::seconds(1));
        if (self->book_.changes() == seen || self->shelf_->if_open() == nullptr) continue;
        seen = self->book_.changes();
        auto working = net::offload(
            [shelf = self->shelf_, tidies = tidier_of(self->book_)] { tidies(shelf->get()); });
        auto done = as_result(std::move(working));
        if (const auto kept = co_await done; !kept && kept.error().code() == errc::cancelled)
            throw kept.error();
    }
}

} // namespace skein::cluster::detail
