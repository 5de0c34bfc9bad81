// SPDX-License-Identifier: Apache-2.0
#pragma once
// The head's storage as a run store, over a link: for a node that sends what an attempt leaves
// behind, and for tools that fetch it.
//
//     head_runs store(asker{way}, "mnist");            // a tool; begin(), put(), commit() are a node's
//     head_runs store(&link, "mnist", order.lease);
//
// A set goes in three steps, of which each may be done again: what is missing is asked for, sent,
// and committed.

#include <skein/cluster/detail/file_sender.hpp>
#include <skein/cluster/detail/package_message.hpp>
#include <skein/cluster/detail/run_messages.hpp>
#include <skein/cluster/run_store.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/sha256.hpp>
#include <skein/core/task.hpp>
#include <skein/net/requests.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace skein::cluster::detail {

/// Asks over one link.
struct link_asker {
    net::requests::handle way;
    template <class Reply, class M>
    [[nodiscard]] task<Reply> ask(M m) const {
        return way->template call<Reply>(std::move(m));
    }
};

/// Asker: has `task<Reply> ask<Reply>(M)`; a pointer to one, which must outlive this.
template <class Asker>
class head_runs final : public run_store {
public:
    head_runs(Asker* way, std::string job, lease_name lease = {})
        : way_(way), job_(std::move(job)), lease_(lease) {}

    /// With the next commit(): of a run's steps only these and the two newest are kept.
    void keep_of_run(const std::string& run, std::vector<std::string> keeps) {
        run_ = run + "/";
        keeps_ = std::move(keeps);
    }

    [[nodiscard]] task<set_wanted> begin(package_manifest what) override {
        offer_set m;
        m.lease = lease_;
        m.manifest = wire::encode(what);
        return way_->template ask<set_wanted>(std::move(m));
    }
    [[nodiscard]] task<void> put(run_piece piece) override {
        put_run_piece m;
        m.file = piece.file;
        m.size = piece.size;
        m.offset = piece.offset;
        m.bytes = std::move(piece.bytes);
        m.is_last = piece.is_last;
        m.digest = std::move(piece.digest);
        return drop(way_->template ask<piece_taken>(std::move(m)));
    }
    [[nodiscard]] task<void> commit(stored_set what) override {
        commit_set m;
        m.lease = lease_;
        m.what = std::move(what);
        m.run = run_;
        m.keeps = keeps_;
        return drop(way_->template ask<set_committed>(std::move(m)));
    }
    [[nodiscard]] task<std::vector<stored_set>> list() override {
        ask_sets m;
        m.job = job_;
        return sets_of(way_->template ask<set_list>(std::move(m)));
    }
    [[nodiscard]] task<package_manifest> find(std::string id) override {
        ask_set m;
        m.job = job_;
        m.id = id;
        return manifest_of(way_->template ask<set_found>(std::move(m)), std::move(id));
    }
    [[nodiscard]] task<byte_buffer> read(std::string id, std::uint32_t entry,
                                         std::uint64_t offset) override {
        ask_run_piece m;
        m.job = job_;
        m.id = std::move(id);
        m.entry = entry;
        m.offset = offset;
        return bytes_of(way_->template ask<blob_piece>(std::move(m)));
    }

private:
    template <class Reply>
    static task<void> drop(task<Reply> asking) {
        (void)co_await asking;
    }
    static task<std::vector<stored_set>> sets_of(task<set_list> asking) {
        auto said = co_await asking;
        co_return std::move(said.sets);
    }
    static task<package_manifest> manifest_of(task<set_found> asking, std::string id) {
        const auto said = co_await asking;
        auto out = read_set(said.manifest);
        if (out.id() != id)
            throw error(errc::corrupt,
                        "the head has sent another list of files than it was asked for");
        co_return out;
    }
    static task<byte_buffer> bytes_of(task<blob_piece> asking) {
        auto said = co_await asking;
        co_return std::move(said.bytes);
    }

    Asker* way_;
    std::string job_;
    lease_name lease_;
    std::string run_;
    std::vector<std::string> keeps_;
};

/// Sends what a store lacks of files that lie in a folder.
///   errors  those of run_store and source_file; mismatch, aborted: a file has changed
inline task<void> send_set_files(run_store* to, std::string folder, const package_manifest* files,
                                 std::vector<std::string> missing) {
    std::map<std::string, const package_entry*> by_digest;
    for (const auto& one : files->entries) by_digest.emplace(to_hex(one.digest), &one);
    file_sender sender([to](run_piece m) { return to->put(std::move(m)); });
    std::unique_ptr<error> why;
    for (const auto& digest : missing) {
        const auto found = by_digest.find(digest);
        if (found == by_digest.end()) continue;
        file_sender::opener open = [folder, path = found->second->path] {
            return std::make_shared<source_file>(folder, path);
        };
        auto sending = as_result(sender.send(std::move(open)));
        const auto sent = co_await sending;
        if (!sent) why = std::make_unique<error>(sent.error());
        if (sent && to_hex(sent->digest) != digest)
            why = std::make_unique<error>(errc::aborted, found->second->path + " has changed");
        if (why) break;
    }
    auto finishing = as_result(sender.finish());
    const auto finished = co_await finishing;
    if (!finished) throw finished.error();
    if (why) throw *why;
}

/// The whole of it: a set that lies in a folder is in the store, whatever of it was there.
inline task<void> send_set(run_store* to, std::string folder, package_manifest files,
                           stored_set what) {
    auto beginning = to->begin(files);
    auto wanted = co_await beginning;
    what.id = wanted.id;
    auto sending = send_set_files(to, std::move(folder), &files, std::move(wanted.missing));
    co_await sending;
    auto committing = to->commit(std::move(what));
    co_await committing;
}

} // namespace skein::cluster::detail
