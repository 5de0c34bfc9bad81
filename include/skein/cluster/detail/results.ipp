// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/results.hpp.

#include <skein/cluster/detail/ask_head.hpp>
#include <skein/cluster/detail/fetch_file.hpp>
#include <skein/cluster/detail/fetched_files.hpp>
#include <skein/cluster/detail/head_runs.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/error.hpp>
#include <skein/core/printable.hpp>
#include <skein/net/offload.hpp>

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::cluster {

namespace detail {

using tool_store = head_runs<const link_asker>;

/// Which of its files are meant, by their numbers.
[[nodiscard]] inline std::vector<std::uint32_t> chosen_files(const package_manifest& files,
                                                             std::string path,
                                                             const std::string& job) {
    while (path.ends_with('/')) path.pop_back();
    while (path.starts_with("./")) path.erase(0, 2);
    std::vector<std::uint32_t> out;
    for (std::uint32_t i = 0; i < files.entries.size(); ++i) {
        const auto& at = files.entries[i].path;
        if (path.empty() || at == path || at.starts_with(path + "/")) out.push_back(i);
    }
    if (out.empty())
        throw error(errc::not_found, fmt::format("job {} has left no {}", job, printable(path)))
            .with_hint(fmt::format("skein job fetch {} --list shows its files", job));
    return out;
}

/// What a folder lacks of some files.
struct folder_lacks {
    std::shared_ptr<fetched_folder> folder;
    std::vector<std::uint32_t> files;
    std::size_t there = 0;
    std::uint64_t bytes = 0;
};

/// Blocks. Looks at all before anything is written.
[[nodiscard]] inline folder_lacks look_into(const std::string& to, const package_manifest& files,
                                            const std::vector<std::uint32_t>& chosen, bool force) {
    folder_lacks out;
    out.folder = std::make_shared<fetched_folder>(to);
    std::size_t differ = 0;
    std::string names;
    for (const auto number : chosen) {
        const auto& entry = files.entries[number];
        const auto is = out.folder->look_at(entry);
        if (is == place_is::whole) {
            ++out.there;
            continue;
        }
        if (is == place_is::other && ++differ <= 3)
            names += (names.empty() ? "" : ", ") + printable(entry.path);
        out.files.push_back(number);
        out.bytes += entry.size;
    }
    if (differ != 0 && !force)
        throw error(errc::already_exists,
                    fmt::format("{} in {} {} other content: {}{}",
                                differ == 1 ? "a file" : fmt::format("{} files", differ),
                                printable(to), differ == 1 ? "has" : "have", names,
                                differ > 3 ? ", ..." : ""))
            .with_hint("--force replaces them; --to names another folder");
    return out;
}

/// Files that several tasks fetch, each the next one.
struct files_to_fetch {
    tool_store* from = nullptr;
    std::string id;
    const package_manifest* files = nullptr;
    std::shared_ptr<fetched_folder> to;
    std::deque<std::uint32_t> left;
    std::size_t done = 0;
    std::uint64_t bytes = 0;
    std::function<void(std::uint64_t)> told;
};

inline task<void> fetch_next(files_to_fetch* all) {
    while (!all->left.empty()) {
        const auto number = all->left.front();
        all->left.pop_front();
        auto fetching = fetch_file(all->from, all->to, all->id, number, all->files->entries[number],
                                   &all->told);
        all->bytes += co_await fetching;
        ++all->done;
    }
}

inline constexpr int files_at_a_time = 8;

inline task<fetched_results> fetch_over(net::requests::handle way, std::string job,
                                        fetch_options what) {
    const link_asker asker{std::move(way)};
    tool_store store(&asker, job);
    ask_sets asked;
    asked.job = job;
    auto asking = asker.ask<set_list>(std::move(asked));
    const auto all = co_await asking;
    fetched_results out;
    out.now = all.now;
    out.from = choose_results(job, all, what.attempt);
    if (out.from.id.empty()) co_return out;
    auto finding = store.find(out.from.id);
    const auto files = co_await finding;
    auto chosen = chosen_files(files, what.path, job);
    auto looking =
        net::offload([to = what.to, &files, chosen = std::move(chosen), force = what.force] {
            return look_into(to, files, chosen, force);
        });
    auto lacks = co_await looking;
    out.there = lacks.there;
    files_to_fetch fetching;
    fetching.from = &store;
    fetching.id = out.from.id;
    fetching.files = &files;
    fetching.to = lacks.folder;
    fetching.left.assign(lacks.files.begin(), lacks.files.end());
    std::uint64_t here = 0;
    fetching.told = [&](std::uint64_t more) {
        here += more;
        if (what.told) what.told(here, lacks.bytes);
    };
    scope several;
    for (int i = 0; i < files_at_a_time; ++i) several.spawn(fetch_next(&fetching));
    auto joining = several.join();
    co_await joining;
    out.files = fetching.done;
    out.bytes = fetching.bytes;
    co_return out;
}

template <class Reply>
task<Reply> close_after(net::requests::handle way, task<Reply> work) {
    auto working = as_result(std::move(work));
    auto done = co_await working;
    auto closing = shield(way->close());
    co_await closing;
    if (!done) throw done.error();
    co_return std::move(*done);
}

inline task<package_manifest> files_over(net::requests::handle way, std::string job,
                                         std::string id) {
    const link_asker asker{std::move(way)};
    tool_store store(&asker, std::move(job));
    auto finding = store.find(std::move(id));
    co_return co_await finding;
}

} // namespace detail

SKEIN_INLINE stored_set choose_results(const std::string& job, const set_list& all,
                                       std::uint32_t attempt) {
    stored_set out;
    for (const auto& one : all.sets)
        if (attempt != 0 ? one.attempt == attempt : !one.id.empty() || out.id.empty()) out = one;
    if (attempt != 0 && out.name.empty())
        throw error(errc::not_found,
                    fmt::format("attempt {} of job {} has left nothing here", attempt, job))
            .with_hint(fmt::format("skein job status {} shows what there is", job));
    if (out.id.empty() && !out.trouble.empty())
        throw error(errc::not_found,
                    fmt::format("of {} of job {} nothing is here: {}", out.name, job, out.trouble));
    return out;
}

SKEIN_INLINE task<set_list> ask_for_results(net::network& via, tool_options how, std::string job) {
    ask_sets asked;
    asked.job = std::move(job);
    return detail::ask_head<set_list>(&via, std::move(how), std::move(asked));
}

SKEIN_INLINE task<package_manifest> ask_for_result_files(net::network& via, tool_options how,
                                                         std::string job, std::string id) {
    auto reaching = detail::reach_head(&via, std::move(how));
    const auto way = co_await reaching;
    auto asking = detail::close_after(way, detail::files_over(way, std::move(job), std::move(id)));
    co_return co_await asking;
}

/// One whose link was cut goes on with what is there, as long as the head is looked for.
SKEIN_INLINE task<fetched_results> fetch_results_of(net::network& via, tool_options how,
                                                    std::string job, fetch_options what) {
    for (;;) {
        auto reaching = detail::reach_head(&via, how);
        const auto way = co_await reaching;
        auto fetching = as_result(detail::close_after(way, detail::fetch_over(way, job, what)));
        auto got = co_await fetching;
        if (got) co_return std::move(*got);
        const auto code = got.error().code();
        const bool is_cut = code == errc::reset || code == errc::closed || code == errc::peer_lost;
        if (!is_cut || how.patience <= duration(0)) throw got.error();
    }
}

SKEIN_INLINE set_list list_results(const tool_options& how, const std::string& job) {
    return detail::ask_now([&](net::network& via) { return ask_for_results(via, how, job); });
}
SKEIN_INLINE package_manifest list_result_files(const tool_options& how, const std::string& job,
                                                const std::string& id) {
    return detail::ask_now(
        [&](net::network& via) { return ask_for_result_files(via, how, job, id); });
}
SKEIN_INLINE fetched_results fetch_results(const tool_options& how, const std::string& job,
                                           const fetch_options& what) {
    return detail::ask_now(
        [&](net::network& via) { return fetch_results_of(via, how, job, what); });
}

} // namespace skein::cluster
