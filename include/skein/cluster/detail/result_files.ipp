// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/result_files.hpp.

#include <skein/cluster/detail/source_file.hpp>
#include <skein/cluster/run_store.hpp>
#include <skein/core/error.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/sha256.hpp>
#include <skein/core/unique_fd.hpp>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::cluster::detail {

SKEIN_INLINE std::vector<std::string> parts_of(std::string_view text, char by) {
    std::vector<std::string> out;
    for (;;) {
        const auto end = text.find(by);
        if (const auto part = text.substr(0, end); !part.empty()) out.emplace_back(part);
        if (end == text.npos) return out;
        text.remove_prefix(end + 1);
    }
}

SKEIN_INLINE std::vector<std::string> read_result_patterns(std::string_view text) {
    auto out = parts_of(text, '\n');
    std::erase_if(out, [](const std::string& one) { return !check_result_pattern(one); });
    if (out.size() > most_result_patterns) out.resize(most_result_patterns);
    return out;
}

SKEIN_INLINE result<void> check_result_pattern(std::string_view pattern) {
    if (pattern.ends_with('/')) pattern.remove_suffix(1);
    if (auto good = check_package_path(pattern); !good)
        return error(good.error().code() == errc::malformed ? errc::invalid_argument
                                                            : good.error().code(),
                     fmt::format("{} names no results: {}",
                                 printable(std::string(pattern.substr(0, 256))),
                                 good.error().text()))
            .with_hint("a path relative to the job's folder, as out/*.txt or models/**");
    return {};
}

/// Paths below one folder, by names alone.
class result_walk {
public:
    explicit result_walk(std::stop_token stop) : stop_(std::move(stop)) {}

    /// What a pattern means.
    void match(int in, const std::string& prefix, std::span<const std::string> rest) {
        const auto& name = rest.front();
        const auto behind = rest.subspan(1);
        if (name == "**") {
            if (behind.empty()) return take_all(in, prefix);
            match(in, prefix, behind);
            for (const auto& each : names_of(in, prefix))
                if (const auto folder = folder_in(in, prefix, each))
                    match(folder.get(), prefix + each + "/", rest);
            return;
        }
        if (name.find_first_of("*?[\\") == name.npos) return match_name(in, prefix, name, behind);
        for (const auto& each : names_of(in, prefix))
            if (::fnmatch(name.c_str(), each.c_str(), FNM_PERIOD) == 0)
                match_name(in, prefix, each, behind);
    }
    /// A folder with all that is in it.
    void take_all(int in, const std::string& prefix) {
        for (const auto& each : names_of(in, prefix)) match_name(in, prefix, each, {});
    }
    /// Paths of files, in the order of a package.
    [[nodiscard]] std::vector<std::string> take() {
        std::vector<std::string> out(found_.begin(), found_.end());
        std::sort(out.begin(), out.end(),
                  [](const auto& a, const auto& b) { return path_less(a, b); });
        return out;
    }
    /// What could not be looked at, and why.
    [[nodiscard]] const std::map<std::string, std::string>& unread() const noexcept {
        return unread_;
    }

private:
    void match_name(int in, const std::string& prefix, const std::string& name,
                    std::span<const std::string> behind) {
        struct stat is{};
        if (::fstatat(in, name.c_str(), &is, AT_SYMLINK_NOFOLLOW) != 0)
            return note_unread(errno, prefix + name);
        if (S_ISDIR(is.st_mode)) {
            const auto folder = folder_in(in, prefix, name);
            if (!folder) return;
            if (behind.empty())
                take_all(folder.get(), prefix + name + "/");
            else
                match(folder.get(), prefix + name + "/", behind);
        } else if (S_ISREG(is.st_mode) && behind.empty()) {
            const auto path = prefix + name;
            if (!check_package_path(path)) return;
            found_.insert(path);
            if (found_.size() > run_bounds().entries)
                throw error(errc::too_large,
                            fmt::format("they are more than {} files", run_bounds().entries));
        }
    }
    /// What has gone meanwhile, or is no folder, is nothing. What fails for want of descriptors or
    /// memory would fail for all that follows.
    void note_unread(int number, const std::string& path) {
        if (number == ENOENT || number == ENOTDIR || number == ELOOP) return;
        const auto why = errno_error(number, "read", path.empty() ? "the job's folder" : path);
        if (why.code() == errc::exhausted || number == EMFILE || number == ENFILE) throw why;
        unread_.emplace(path, why.text());
    }
    [[nodiscard]] unique_fd folder_in(int in, const std::string& prefix, const std::string& name) {
        unique_fd out(::openat(in, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
        if (!out) note_unread(errno, prefix + name);
        return out;
    }
    /// Empty, too, if it cannot be read.
    [[nodiscard]] std::vector<std::string> names_of(int in, const std::string& prefix) {
        if (stop_.stop_requested())
            throw error(errc::cancelled, "looking for results was given up");
        std::vector<std::string> out;
        unique_fd again(::openat(in, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        const auto close = [](DIR* d) { ::closedir(d); };
        const std::unique_ptr<DIR, decltype(close)> dir(again ? ::fdopendir(again.get()) : nullptr,
                                                        close);
        if (!dir) {
            note_unread(errno, prefix);
            return out;
        }
        (void)again.release();
        while (const dirent* const each = ::readdir(dir.get())) {
            const std::string_view name = each->d_name;
            if (name == "." || name == "..") continue;
            out.emplace_back(name);
            if (++seen_ > most_result_names)
                throw error(errc::too_large, fmt::format("more than {} names had to be looked at",
                                                         most_result_names));
        }
        return out;
    }

    std::stop_token stop_;
    std::set<std::string> found_;
    std::map<std::string, std::string> unread_; // why, by path
    std::size_t seen_ = 0;
};

[[nodiscard]] inline package_entry hash_result(const std::string& folder, const std::string& path,
                                               const std::stop_token& stop) {
    const source_file file(folder, path);
    package_entry out;
    out.path = path;
    out.mode = file.status().st_mode & 0777;
    out.size = file.size();
    sha256 hash;
    for (std::uint64_t at = 0; at < out.size;) {
        if (stop.stop_requested()) throw error(errc::cancelled, "reading results was given up");
        const auto piece = file.read(at, most_blob_piece);
        hash.update(piece);
        at += piece.size();
    }
    file.check_unchanged();
    out.digest = hash.finish();
    return out;
}

SKEIN_INLINE result_files find_results(const result_question& what, const package_manifest* brought,
                                       std::stop_token stop) {
    const unique_fd in(::open(what.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!in) throw errno_error(errno, "open", what.folder);
    result_walk all(stop), of_runs(stop);
    for (const auto& pattern : what.patterns)
        if (const auto parts = parts_of(pattern, '/'); !parts.empty())
            all.match(in.get(), "", parts);
    if (!what.runs.empty()) of_runs.match(in.get(), "", parts_of(what.runs, '/'));
    const auto named = all.take();
    auto paths = of_runs.take();
    const std::set<std::string> are_named(named.begin(), named.end());
    std::erase_if(paths, [&](const std::string& path) { return are_named.contains(path); });
    const auto as_brought = [&](const package_entry& e) {
        if (brought == nullptr || are_named.contains(e.path)) return false;
        const auto at = std::lower_bound(
            brought->entries.begin(), brought->entries.end(), e.path,
            [](const package_entry& a, const std::string& b) { return path_less(a.path, b); });
        return at != brought->entries.end() && at->path == e.path && at->digest == e.digest &&
               at->size == e.size;
    };
    paths.insert(paths.end(), named.begin(), named.end());
    std::sort(paths.begin(), paths.end(),
              [](const auto& a, const auto& b) { return path_less(a, b); });
    result_files out;
    auto unread = all.unread();
    unread.insert(of_runs.unread().begin(), of_runs.unread().end());
    out.unread = unread.size();
    if (!unread.empty()) out.first_unread = unread.begin()->second;
    for (const auto& path : paths) {
        try {
            auto entry = hash_result(what.folder, path, stop);
            if (!as_brought(entry)) out.files.entries.push_back(std::move(entry));
        } catch (const error& why) {
            if (why.code() == errc::cancelled) throw;
            ++(why.code() == errc::aborted ? out.changed : out.unread);
            if (out.first_unread.empty()) out.first_unread = why.text();
        }
    }
    return out;
}

} // namespace skein::cluster::detail
