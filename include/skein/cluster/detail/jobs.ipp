// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/jobs.hpp.

#include <skein/cluster/detail/ask_head.hpp>
#include <skein/cluster/detail/file_sender.hpp>
#include <skein/cluster/detail/source_file.hpp>
#include <skein/cluster/digest_cache.hpp>
#include <skein/cluster/package_scan.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/offload.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::cluster {

SKEIN_INLINE std::string_view to_string(job_state state) noexcept {
    constexpr std::array<std::string_view, 7> names{"PENDING",   "STARTING", "RUNNING", "RETRYING",
                                                    "SUCCEEDED", "FAILED",   "STOPPED"};
    const auto at = static_cast<std::size_t>(state);
    return at < names.size() ? names[at] : "UNKNOWN";
}

namespace detail {

inline task<submit_reply> submit_patiently(net::network* via, tool_options how, job_request what) {
    submit_job asked;
    asked.what = std::move(what);
    if (asked.what.id.empty() && how.patience > duration(0)) // so that it can be asked again
        asked.what.id = fmt::format("job_{:016x}", loop::current().random().next());
    auto asking = ask_head<submit_reply>(via, std::move(how), std::move(asked));
    co_return co_await asking;
}

} // namespace detail

SKEIN_INLINE task<submit_reply> ask_to_submit(net::network& via, tool_options how,
                                              job_request what) {
    return detail::submit_patiently(&via, std::move(how), std::move(what));
}
SKEIN_INLINE task<job_list> ask_for_jobs(net::network& via, tool_options how, std::string id) {
    ask_jobs asked;
    asked.id = std::move(id);
    return detail::ask_head<job_list>(&via, std::move(how), std::move(asked));
}
SKEIN_INLINE task<job_lines> ask_for_lines(net::network& via, tool_options how, std::string id,
                                           std::uint64_t from, std::uint8_t known, time_span most) {
    follow_job asked;
    asked.id = std::move(id);
    asked.from = from;
    asked.known = known;
    asked.wait_ms = static_cast<std::uint32_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(duration(most)).count());
    how.within = how.within + most;
    return detail::ask_head<job_lines>(&via, std::move(how), std::move(asked));
}
SKEIN_INLINE task<job_log> ask_for_log(net::network& via, tool_options how, std::string id,
                                       log_question which) {
    ask_log asked;
    asked.id = std::move(id);
    asked.attempt = which.attempt;
    asked.from = which.from;
    asked.tail = which.tail;
    how.within = how.within + std::chrono::seconds(10); // nodes are asked
    return detail::ask_head<job_log>(&via, std::move(how), std::move(asked));
}
SKEIN_INLINE task<stop_job_reply> ask_to_stop_job(net::network& via, tool_options how,
                                                  std::string id, bool forget) {
    stop_job asked;
    asked.id = std::move(id);
    asked.forget = forget;
    return detail::ask_head<stop_job_reply>(&via, std::move(how), std::move(asked));
}

namespace detail {

using lines_reader = std::function<void(const job_lines&)>;

/// What came between two heads: the first has had it from its node, and did not tell it.
inline task<void> fill_gap(net::requests::handle way, follow_job* asked, const job_lines* next,
                           const lines_reader* each, time_span within) {
    while (asked->from < next->first) {
        ask_log what;
        what.id = asked->id;
        what.from = asked->from;
        auto asking = as_result(with_timeout(way->template call<job_log>(std::move(what)),
                                             within + std::chrono::seconds(10)));
        auto found = co_await asking;
        if (!found && found.error().code() != errc::timeout) throw found.error();
        if (!found || found->lines.empty() || found->first >= next->first) co_return;
        job_lines some;
        some.now = next->now;
        some.first = found->first;
        some.lines = std::move(found->lines);
        if (some.first + some.lines.size() > next->first)
            some.lines.resize(next->first - some.first);
        (*each)(some);
        asked->from = some.first + some.lines.size();
    }
}

/// Over one link, until the job has ended; `asked` says where it goes on.
inline task<job_info> follow_over(net::requests::handle way, follow_job* asked,
                                  const lines_reader* each, time_span within) {
    bool may_have_missed = asked->known != follow_job().known; // it has followed another head
    for (;;) {
        auto asking = with_timeout(way->template call<job_lines>(*asked),
                                   within + std::chrono::milliseconds(asked->wait_ms));
        const auto said = co_await asking;
        if (may_have_missed) {
            auto filling = fill_gap(way, asked, &said, each, within);
            co_await filling;
            may_have_missed = said.lines.empty() && !said.is_all;
        }
        (*each)(said);
        asked->from = said.first + said.lines.size();
        asked->attempt = said.now.attempt;
        asked->known = said.now.state;
        if (said.is_all) co_return said.now;
    }
}

} // namespace detail

SKEIN_INLINE task<job_info> follow_to_end(net::network& via, tool_options how, std::string id,
                                          std::uint64_t from,
                                          std::function<void(const job_lines&)> each,
                                          time_span patience) {
    std::exception_ptr own;
    const detail::lines_reader guarded = [&](const job_lines& said) {
        try {
            each(said);
        } catch (...) {
            own = std::current_exception();
            throw;
        }
    };
    follow_job asked;
    asked.id = std::move(id);
    asked.from = from;
    asked.wait_ms = 10'000;
    auto lost = how; // the head was there, and is not any more
    lost.patience = patience;
    std::optional<detail::head_patience> looking;
    bool was_there = false;
    for (;;) {
        std::optional<error> why;
        auto reaching = as_result(was_there ? detail::reach_head_once(&via, how)
                                            : detail::reach_head(&via, how));
        auto way = co_await reaching;
        if (way) {
            auto following = as_result(detail::follow_over(*way, &asked, &guarded, how.within));
            auto ended = co_await following;
            was_there = was_there || asked.known != follow_job().known;
            auto closing = as_result(shield((*way)->close()));
            (void)co_await closing;
            if (ended) co_return *ended;
            if (own) std::rethrow_exception(own); // no fault of the head's
            why = ended.error();
            if (asked.known != follow_job().known) looking.reset();
        } else {
            why = way.error();
        }
        const bool is_lost = detail::is_no_answer(why->code()) && why->code() != errc::not_found &&
                             why->code() != errc::cancelled;
        if (!was_there || !is_lost) throw *why;
        if (!looking) looking.emplace(lost);
        if (!looking->has_time(*why)) throw *why;
        co_await sleep_for(std::chrono::milliseconds(250));
    }
}

namespace detail {

/// A folder on its way over one link.
struct folder_sending {
    net::requests::handle way;
    std::string folder;
    package_manifest files;
    digest_cache* known = nullptr;
    std::function<void(std::uint64_t, std::uint64_t)> told;
    std::uint64_t sent = 0, all = 0;

    [[nodiscard]] static bool is_unknown(const package_entry& e) noexcept {
        return e.kind == static_cast<std::uint8_t>(entry_kind::file) && e.size > 0 &&
               e.digest == sha256_digest{};
    }
    void learn(const file_sender::sent& what, std::int64_t read_at) const {
        if (known != nullptr) known->learn(what.status, what.digest, read_at);
    }
};

inline task<void> put_over(net::requests::handle way, run_piece piece) {
    put_package_piece m;
    m.file = piece.file;
    m.size = piece.size;
    m.offset = piece.offset;
    m.bytes = std::move(piece.bytes);
    m.is_last = piece.is_last;
    m.digest = std::move(piece.digest);
    auto putting = way->template call<piece_taken>(std::move(m));
    (void)co_await putting;
}

/// Sends some files, and says what they were; in their manifest they have that digest, or had it.
inline task<void> send_entries(folder_sending* self, std::vector<package_entry*> which) {
    file_sender sender([way = self->way](run_piece m) { return put_over(way, std::move(m)); },
                       [self](std::size_t bytes) {
                           self->sent += bytes;
                           if (self->told) self->told(self->sent, self->all);
                       });
    std::unique_ptr<error> why;
    for (auto* const entry : which) {
        const auto began = digest_cache::now();
        file_sender::opener open = [folder = self->folder, path = entry->path] {
            return std::make_shared<source_file>(folder, path);
        };
        auto sending = as_result(sender.send(std::move(open)));
        const auto sent = co_await sending;
        const bool was_unknown = folder_sending::is_unknown(*entry);
        if (!sent)
            why = std::make_unique<error>(sent.error());
        else if (sent->bytes != entry->size || (!was_unknown && sent->digest != entry->digest))
            why = std::make_unique<error>(
                error(errc::aborted, fmt::format("{}/{} has changed while the folder was sent",
                                                 self->folder, entry->path))
                    .with_hint("wait until nobody writes there, or name it in .skeinignore"));
        if (why) break;
        entry->digest = sent->digest;
        self->learn(*sent, began);
    }
    auto finishing = as_result(sender.finish());
    const auto finished = co_await finishing;
    if (why) throw *why;
    if (!finished) throw finished.error();
}

/// Files whose digests nobody knows: those that the head cannot have are sent as they are read, the
/// others are read first.
inline task<void> send_unknown(folder_sending* self) {
    std::vector<package_entry*> unknown;
    std::set<std::uint64_t> sizes;
    for (auto& one : self->files.entries)
        if (folder_sending::is_unknown(one)) {
            unknown.push_back(&one);
            sizes.insert(one.size);
        }
    if (unknown.empty()) co_return;
    ask_sizes asked;
    asked.sizes.assign(sizes.begin(), sizes.end());
    auto asking = self->way->template call<sizes_found>(std::move(asked));
    const auto found = co_await asking;
    const std::set<std::uint64_t> there(found.sizes.begin(), found.sizes.end());
    std::vector<package_entry*> to_send;
    for (auto* const entry : unknown) {
        if (!there.contains(entry->size)) {
            to_send.push_back(entry);
            self->all += entry->size;
            continue;
        }
        auto reading = net::offload([folder = self->folder, path = entry->path] {
            const source_file file(folder, path);
            sha256 hash;
            for (std::uint64_t at = 0; at < file.size(); at += most_blob_piece)
                hash.update(file.read(at, most_blob_piece));
            file.check_unchanged();
            file_sender::sent out;
            out.status = file.status();
            out.bytes = file.size();
            out.digest = hash.finish();
            return out;
        });
        const auto began = digest_cache::now();
        const auto read = co_await reading;
        entry->size = read.bytes;
        entry->digest = read.digest;
        self->learn(read, began);
    }
    auto sending = send_entries(self, std::move(to_send));
    co_await sending;
}

/// What was sent may be removed for others before the folder is offered: then it is sent again.
inline task<std::string> send_over(folder_sending* self) {
    auto reading = send_unknown(self);
    co_await reading;
    offer_package offer;
    offer.manifest = wire::encode(self->files);
    auto offering = self->way->template call<package_wanted>(std::move(offer));
    const auto wanted = co_await offering;
    std::map<std::string, package_entry*> by_digest;
    for (auto& one : self->files.entries) by_digest.emplace(to_hex(one.digest), &one);
    std::vector<package_entry*> missing;
    for (const auto& digest : wanted.missing)
        if (const auto one = by_digest.find(digest); one != by_digest.end()) {
            missing.push_back(one->second);
            self->all += one->second->size;
        }
    auto sending = send_entries(self, std::move(missing));
    co_await sending;
    co_return wanted.id;
}

} // namespace detail

SKEIN_INLINE task<std::string> send_folder(net::network& via, tool_options how, std::string folder,
                                           package_manifest files,
                                           std::function<void(std::uint64_t, std::uint64_t)> told,
                                           digest_cache* known) {
    auto reaching = detail::reach_head(&via, how);
    detail::folder_sending on_its_way;
    on_its_way.way = co_await reaching;
    on_its_way.folder = std::move(folder);
    on_its_way.files = std::move(files);
    on_its_way.told = std::move(told);
    on_its_way.known = known;
    auto sending = as_result(detail::send_over(&on_its_way));
    const auto sent = co_await sending;
    auto closing = shield(on_its_way.way->close());
    co_await closing;
    co_return sent.value();
}

SKEIN_INLINE std::string send_folder_now(
    const tool_options& how, const std::string& folder, const package_manifest& files,
    const std::function<void(std::uint64_t, std::uint64_t)>& told, digest_cache* known) {
    return detail::ask_now(
        [&](net::network& via) { return send_folder(via, how, folder, files, told, known); });
}
SKEIN_INLINE std::string get_login_path(const tool_options& how) {
    return detail::ask_now([&](net::network& via) {
               return detail::ask_head<login_reply>(&via, how, ask_login());
           })
        .path;
}
SKEIN_INLINE submit_reply submit(const tool_options& how, const job_request& what) {
    return detail::ask_now([&](net::network& via) { return ask_to_submit(via, how, what); });
}
SKEIN_INLINE job_list list_jobs(const tool_options& how, const std::string& id) {
    return detail::ask_now([&](net::network& via) { return ask_for_jobs(via, how, id); });
}
SKEIN_INLINE job_lines follow(const tool_options& how, const std::string& id, std::uint64_t from,
                              std::uint8_t known, time_span most) {
    return detail::ask_now(
        [&](net::network& via) { return ask_for_lines(via, how, id, from, known, most); });
}
SKEIN_INLINE job_log read_log(const tool_options& how, const std::string& id,
                              const log_question& which) {
    return detail::ask_now([&](net::network& via) { return ask_for_log(via, how, id, which); });
}
SKEIN_INLINE job_info follow_job_to_end(const tool_options& how, const std::string& id,
                                        std::uint64_t from,
                                        const std::function<void(const job_lines&)>& each) {
    return detail::ask_now(
        [&](net::network& via) { return follow_to_end(via, how, id, from, each); });
}
SKEIN_INLINE stop_job_reply stop_one_job(const tool_options& how, const std::string& id,
                                         bool forget) {
    return detail::ask_now(
        [&](net::network& via) { return ask_to_stop_job(via, how, id, forget); });
}

} // namespace skein::cluster
