// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/run_shelf.hpp.

#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <unistd.h>

namespace skein::cluster {

namespace detail {

/// The file that says which sets of a job there are.
struct shelf_page {
    std::uint32_t version = 1;
    std::vector<stored_set> sets;
};

inline constexpr std::uint64_t most_shelf_page = std::uint64_t{1} << 20;

} // namespace detail

SKEIN_INLINE run_shelf::run_shelf(std::string folder, std::uint64_t byte_budget)
    : folder_(std::move(folder)), files_(join_path(folder_, "files"), byte_budget, run_bounds()) {
    posix_disk disk;
    if (auto made = disk.make_dirs(join_path(folder_, "sets")); !made) throw error(made.error());
    take_over();
}

SKEIN_INLINE std::atomic<std::uint64_t>& run_shelf::last_moment() noexcept {
    static std::atomic<std::uint64_t> last = 0;
    return last;
}

SKEIN_INLINE std::string run_shelf::path_of(const std::string& key) const {
    return fmt::format("{}/sets/{}", folder_, key);
}

/// One that cannot be read is as one that is not there: its files go when their room is needed.
SKEIN_INLINE void run_shelf::take_over() {
    posix_disk disk;
    const auto listed = disk.list(join_path(folder_, "sets"));
    if (!listed) throw error(listed.error());
    for (const auto& each : *listed) {
        const auto bytes = disk.read_whole(path_of(each.name), detail::most_shelf_page);
        if (!bytes) continue;
        auto page = wire::decode<detail::shelf_page>(*bytes);
        if (page && page->version == 1 && page->sets.size() <= most_sets)
            jobs_[each.name].sets = std::move(page->sets);
    }
}

SKEIN_INLINE void run_shelf::write(const std::string& key,
                                   const std::vector<stored_set>& sets) const {
    posix_disk disk;
    detail::shelf_page page;
    page.sets = sets;
    if (auto done = disk.replace(path_of(key), wire::encode(page)); !done)
        throw error(done.error());
}

SKEIN_INLINE void run_shelf::commit(const std::string& key, stored_set what, bool holds) {
    package_pin pin;
    if (!what.id.empty()) {
        const auto manifest = files_.find(what.id);
        if (!manifest)
            throw error(errc::not_found,
                        fmt::format("the files of {} were not offered", what.name));
        pin = files_.pin(what.id);
        if (const auto missing = files_.missing(*manifest); !missing.empty())
            throw error(errc::not_found,
                        fmt::format("{} files of {} have not come", missing.size(), what.name));
        files_.make_durable(*manifest);
        what.files = manifest->entries.size();
        what.bytes = manifest->bytes();
    }
    const std::lock_guard held(mutex_);
    auto& of = jobs_[key];
    of.moment = ++last_moment();
    if (holds)
        hold_again(of); // what an earlier process held, if this is the first call of this one
    const auto gives_way = [&](const std::string& name) { // attempts do to each other
        return name == what.name ||
               (name.find('/') == name.npos && what.name.find('/') == what.name.npos);
    };
    auto sets = of.sets;
    std::erase_if(sets, [&](const stored_set& one) { return one.name == what.name; });
    if (sets.size() >= most_sets) {
        const auto oldest = std::find_if(sets.begin(), sets.end(), [&](const stored_set& one) {
            return !of.held.contains(one.name) || gives_way(one.name);
        });
        if (oldest == sets.end())
            throw error(errc::exhausted,
                        fmt::format("no room for {}: {} sets of its job are held already",
                                    what.name, most_sets))
                .with_hint("keep fewer checkpoints of fewer runs in one job");
        sets.erase(oldest);
    }
    sets.push_back(what);
    write(key, sets);
    of.sets = std::move(sets);
    std::erase_if(of.held, [&](const auto& one) { return gives_way(one.first); });
    if (holds && !what.id.empty()) of.held.emplace(what.name, std::move(pin));
}

SKEIN_INLINE std::vector<stored_set> run_shelf::sets_of(const std::string& key) {
    std::vector<stored_set> out;
    {
        const std::lock_guard held(mutex_);
        if (const auto at = jobs_.find(key); at != jobs_.end()) out = at->second.sets;
    }
    for (auto& one : out) {
        if (one.id.empty()) continue;
        const auto manifest = files_.find(one.id);
        if (manifest && files_.missing(*manifest).empty()) continue;
        one.id.clear();
        one.trouble = set_is_gone;
    }
    return out;
}

SKEIN_INLINE bool run_shelf::has_set(const std::string& key, const std::string& id) {
    const std::lock_guard held(mutex_);
    const auto at = jobs_.find(key);
    if (at == jobs_.end() || id.empty()) return false;
    return std::any_of(at->second.sets.begin(), at->second.sets.end(),
                       [&](const stored_set& one) { return one.id == id; });
}

SKEIN_INLINE sha256_digest run_shelf::digest_of(const std::string& id, std::uint32_t entry) {
    {
        const std::lock_guard held(mutex_);
        if (read_last_ == id && entry < digests_.size()) return digests_[entry];
    }
    const auto manifest = files_.find(id);
    if (!manifest) throw error(errc::not_found, std::string(set_is_gone));
    if (entry >= manifest->entries.size())
        throw error(errc::not_found, fmt::format("a set of {} files has no file {}",
                                                 manifest->entries.size(), entry));
    const std::lock_guard held(mutex_);
    read_last_ = id;
    digests_.clear();
    for (const auto& one : manifest->entries) digests_.push_back(one.digest);
    return digests_[entry];
}

SKEIN_INLINE void run_shelf::drop(const std::string& key, const std::string& name) {
    const std::lock_guard held(mutex_);
    const auto at = jobs_.find(key);
    if (at == jobs_.end()) return;
    std::erase_if(at->second.sets, [&](const stored_set& one) { return one.name == name; });
    at->second.held.erase(name);
    write(key, at->second.sets);
}

SKEIN_INLINE void run_shelf::keep_steps(const std::string& key, const std::string& run,
                                        const std::vector<std::string>& keeps) {
    const std::lock_guard held(mutex_);
    const auto at = jobs_.find(key);
    if (at == jobs_.end()) return;
    auto& sets = at->second.sets;
    std::size_t newer = 0;
    std::vector<stored_set> left;
    for (auto one = sets.rbegin(); one != sets.rend(); ++one) {
        const bool is_step = one->name.starts_with(run);
        const bool goes = is_step && newer++ >= 2 &&
                          std::find(keeps.begin(), keeps.end(), one->name) == keeps.end();
        if (goes)
            at->second.held.erase(one->name);
        else
            left.push_back(std::move(*one));
    }
    std::reverse(left.begin(), left.end());
    const bool has_less = left.size() != sets.size();
    sets = std::move(left);
    if (has_less) write(key, sets);
}

SKEIN_INLINE void run_shelf::forget(const std::string& key) {
    const std::lock_guard held(mutex_);
    if (jobs_.erase(key) != 0) (void)::unlink(path_of(key).c_str());
}

/// As commit() would have: after a new start nothing is.
SKEIN_INLINE void run_shelf::hold_again(of_job& job) {
    if (std::exchange(job.is_held, true)) return;
    bool has_newest = false;
    for (auto one = job.sets.rbegin(); one != job.sets.rend(); ++one) {
        const bool is_attempt = one->name.find('/') == one->name.npos;
        if (one->id.empty() || (is_attempt && std::exchange(has_newest, true))) continue;
        if (!files_.find(one->id)) continue; // it was removed
        job.held.emplace(one->name, files_.pin(one->id));
    }
}

SKEIN_INLINE void run_shelf::keep(const std::function<bool(const std::string& key)>& lives,
                                  const std::function<bool(const std::string& key)>& is_known,
                                  std::uint64_t as_of) {
    const std::lock_guard held(mutex_);
    for (auto at = jobs_.begin(); at != jobs_.end();) {
        if (at->second.moment > as_of) { // it may be of a job that they do not know yet
            ++at;
            continue;
        }
        if (!is_known(at->first)) {
            (void)::unlink(path_of(at->first).c_str());
            at = jobs_.erase(at);
            continue;
        }
        if (lives(at->first))
            hold_again(at->second);
        else
            at->second.held.clear();
        ++at;
    }
}

} // namespace skein::cluster
