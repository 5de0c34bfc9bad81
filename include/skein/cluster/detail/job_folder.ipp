// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/job_folder.hpp.

#include <skein/core/error.hpp>
#include <skein/core/file_beside.hpp>
#include <skein/core/file_limit.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/report/metrics_table.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::cluster::detail {

SKEIN_INLINE std::string find_command(const std::string& word, const std::string& folder,
                                      const std::string& path) {
    namespace fs = std::filesystem;
    std::error_code none;
    const auto base = folder.empty() ? fs::current_path(none) : fs::path(folder);
    std::vector<fs::path> candidates;
    if (word.find('/') != word.npos) {
        candidates.push_back((base / word).lexically_normal());
    } else {
        const char* const own = std::getenv("PATH");
        std::string_view rest = own != nullptr ? own : "/usr/bin:/bin";
        if (!path.empty()) rest = path;
        while (!rest.empty()) {
            const auto end = std::min(rest.find(':'), rest.size());
            if (end != 0) candidates.push_back(base / fs::path(rest.substr(0, end)) / word);
            rest.remove_prefix(std::min(end + 1, rest.size()));
        }
    }
    bool is_there = false;
    for (const auto& one : candidates) {
        struct stat status{};
        if (::stat(one.c_str(), &status) != 0) continue;
        if (S_ISREG(status.st_mode) && ::access(one.c_str(), X_OK) == 0) return one.string();
        is_there = true;
    }
    const auto shown = printable(word);
    if (is_there)
        throw error(errc::permission_denied, fmt::format("{} is no executable file", shown))
            .with_hint(fmt::format("chmod +x {}, or name the program that reads it", shown));
    throw error(errc::not_found,
                word.find('/') != word.npos
                    ? fmt::format("there is no {} in {}", shown, printable(base.string()))
                    : fmt::format("there is no command {} in the PATH of the node", shown))
        .with_hint("a job's command is looked for on its node, in its folder; --working-dir sends "
                   "a folder along");
}

SKEIN_INLINE std::string folder_of_job(const std::string& storage,
                                       const start_worker_order& order) {
    return fmt::format("{}/jobs/{}-{:x}", storage, order.job(), order.submitted);
}

SKEIN_INLINE void make_room_for_jobs(const std::string& folder) {
    namespace fs = std::filesystem;
    std::error_code none;
    fs::create_directories(folder, none);
    std::vector<std::pair<fs::file_time_type, fs::path>> all;
    for (fs::directory_iterator one(folder, none), end; !none && one != end; one.increment(none)) {
        std::error_code of_this;
        const auto used = fs::last_write_time(one->path(), of_this);
        if (!of_this) all.emplace_back(used, one->path());
    }
    std::sort(all.begin(), all.end());
    const auto young = fs::file_time_type::clock::now() - std::chrono::hours(1);
    for (std::size_t i = 0; i + most_job_folders <= all.size(); ++i) {
        if (all[i].first > young && all.size() - i <= most_young_folders) return;
        fs::remove_all(all[i].second, none);
    }
}

SKEIN_INLINE void make_job_folder(const std::string& folder) {
    make_room_for_jobs(std::filesystem::path(folder).parent_path().string());
    std::error_code why;
    std::filesystem::create_directories(folder, why);
    if (why)
        throw error(why == std::errc::no_space_on_device ? errc::disk_full : errc::io,
                    fmt::format("the folder {} cannot be made: {}", folder, why.message()))
            .with_hint("free some room on that disk, or name another place with skein join "
                       "--storage");
}

SKEIN_INLINE void touch(const std::string& folder) noexcept {
    (void)::utimensat(AT_FDCWD, folder.c_str(), nullptr, 0);
}

SKEIN_INLINE table_reader::table_reader(std::string runs) : runs_(std::move(runs)) {
    ::clock_gettime(CLOCK_REALTIME_COARSE, &since_); // the clock of files
}

/// The newest table; true: it is another one than before.
SKEIN_INLINE bool table_reader::find() {
    namespace fs = std::filesystem;
    std::error_code none;
    std::string newest, its_run;
    timespec at = since_;
    const auto is_later = [](const timespec& a, const timespec& b) {
        return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec >= b.tv_nsec;
    };
    for (fs::directory_iterator one(runs_, none), end; !none && one != end; one.increment(none)) {
        const auto file = (one->path() / report::metrics_file).string();
        struct stat status{};
        if (::stat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
        if (!is_later(status.st_mtim, at)) continue;
        at = status.st_mtim;
        newest = file;
        its_run = one->path().filename().string();
    }
    if (newest.empty() || newest == file_) return false;
    file_ = std::move(newest);
    run_ = std::move(its_run);
    return true;
}

SKEIN_INLINE std::optional<std::pair<std::uint64_t, byte_buffer>> table_reader::next() {
    if (find()) again();
    if (file_.empty()) return std::nullopt;
    const unique_fd file(::open(file_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status{};
    if (!file || ::fstat(file.get(), &status) != 0) return std::nullopt;
    const auto size = static_cast<std::uint64_t>(status.st_size);
    // A table that gets a new column is written anew, with another first line.
    std::string header(4096, '\0');
    const auto head = ::pread(file.get(), header.data(), header.size(), 0);
    header.resize(head > 0 ? static_cast<std::size_t>(head) : 0);
    header.resize(std::min(header.find('\n'), header.size()));
    if (size < offset_ || header != header_ || status.st_ino != inode_) offset_ = 0;
    header_ = std::move(header);
    inode_ = status.st_ino;
    byte_buffer some(std::min<std::uint64_t>(size - offset_, most_piece));
    const auto got = ::pread(file.get(), some.data(), some.size(), static_cast<off_t>(offset_));
    some.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    while (!some.empty() && some.back() != std::byte{'\n'}) some.pop_back();
    if (some.empty()) return std::nullopt;
    const auto from = std::exchange(offset_, offset_ + some.size());
    return std::pair(from, std::move(some));
}

SKEIN_INLINE std::optional<std::string> table_reader::told() {
    if (file_.empty()) return std::nullopt;
    const auto path = std::filesystem::path(file_).replace_filename("progress.json");
    const unique_fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status{};
    if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
    std::string now(most_told + 1, '\0');
    const auto got = ::pread(file.get(), now.data(), now.size(), 0);
    now.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    // One that is being written is looked at again in a second.
    if (now.size() > most_told || !now.ends_with("}\n") || now == told_) return std::nullopt;
    told_ = now;
    return now;
}

} // namespace skein::cluster::detail
