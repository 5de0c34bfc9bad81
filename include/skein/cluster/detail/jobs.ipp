// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/jobs.hpp.

#include <skein/cluster/detail/ask_head.hpp>
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
#include <utility>

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

/// Piece by piece: the next one is read while the last one is on its way.
inline task<std::string> send_over(net::requests::handle way, std::string folder,
                                   std::shared_ptr<const package_manifest> files,
                                   std::function<void(std::uint64_t, std::uint64_t)> told) {
    offer_package offer;
    offer.manifest = wire::encode(*files);
    auto offering = way->template call<package_wanted>(std::move(offer));
    const auto wanted = co_await offering;
    std::map<std::string, const package_entry*> by_digest;
    for (const auto& one : files->entries) by_digest.emplace(to_hex(one.digest), &one);
    std::uint64_t all = 0, sent = 0;
    for (const auto& digest : wanted.missing)
        if (const auto one = by_digest.find(digest); one != by_digest.end())
            all += one->second->size;
    for (const auto& digest : wanted.missing) {
        const auto one = by_digest.find(digest);
        if (one == by_digest.end()) continue;
        const auto& entry = *one->second;
        for (std::uint64_t at = 0; at == 0 || at < entry.size; at += most_blob_piece) {
            auto reading = net::offload([&folder, &entry, at] {
                return read_package_file(folder, entry, at, most_blob_piece);
            });
            put_blob piece;
            piece.digest = digest;
            piece.size = entry.size;
            piece.offset = at;
            piece.bytes = co_await reading;
            piece.is_last = at + most_blob_piece >= entry.size;
            sent += piece.bytes.size();
            auto putting = way->template call<blob_taken>(std::move(piece));
            (void)co_await putting;
            if (told) told(sent, all);
        }
    }
    co_return wanted.id;
}

} // namespace detail

SKEIN_INLINE task<std::string> send_folder(net::network& via, tool_options how, std::string folder,
                                           package_manifest files,
                                           std::function<void(std::uint64_t, std::uint64_t)> told) {
    auto reaching = detail::reach_head(&via, how);
    const auto way = co_await reaching;
    auto all = std::make_shared<const package_manifest>(std::move(files));
    auto sending =
        as_result(detail::send_over(way, std::move(folder), std::move(all), std::move(told)));
    const auto sent = co_await sending;
    auto closing = shield(way->close());
    co_await closing;
    co_return sent.value();
}

SKEIN_INLINE std::string send_folder_now(
    const tool_options& how, const std::string& folder, const package_manifest& files,
    const std::function<void(std::uint64_t, std::uint64_t)>& told) {
    return detail::ask_now(
        [&](net::network& via) { return send_folder(via, how, folder, files, told); });
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
