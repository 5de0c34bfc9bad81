// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/package_scan.hpp.

#include <skein/cluster/detail/git_files.hpp>
#include <skein/cluster/detail/ignore_rules.hpp>
#include <skein/cluster/digest_cache.hpp>
#include <skein/core/known_names.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/core/units.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <memory>
#include <string_view>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace skein::cluster {
namespace detail {

/// What is in a folder, but `.` and `..`.
///   but_files  some of its files may be left out, too
///   errors  not_found, permission_denied, ...
SKEIN_INLINE std::vector<std::string> names_in(const std::string& folder, bool but_files = false) {
    const auto close = [](DIR* d) { ::closedir(d); };
    const std::unique_ptr<DIR, decltype(close)> dir(::opendir(folder.c_str()), close);
    if (!dir) throw errno_error(errno, "list", folder);
    std::vector<std::string> out;
    for (;;) {
        errno = 0;
        const dirent* const each = ::readdir(dir.get());
        if (each == nullptr) {
            if (errno != 0) throw errno_error(errno, "list", folder);
            break;
        }
        const std::string_view name = each->d_name;
        if (but_files && each->d_type == DT_REG) continue; // where the system tells
        if (name != "." && name != "..") out.emplace_back(name);
    }
    std::sort(out.begin(), out.end());
    return out;
}

/// One scan of one folder.
class folder_scan {
public:
    folder_scan(const std::string& folder, const scan_options& how);
    package_manifest run();

private:
    /// A path that goes along.
    struct found {
        std::string path;
        struct stat is{};
    };
    [[nodiscard]] std::string whole(std::string_view path) const;
    [[nodiscard]] bool look(const std::string& path, struct stat& is) const;
    void take(const std::string& path, const struct stat& is);
    void list(const std::string& prefix);
    void list_by_git(const std::string& prefix, const std::vector<std::string>& files);
    void take_empty_folders(const std::string& prefix, const std::vector<std::string>& parents);
    void walk(const std::string& prefix, bool with_rules);
    void take_named(std::string path);
    std::string take_link_on_the_way(const std::string& link, std::string_view rest);
    void settle();
    void check_bounds() const;
    [[noreturn]] void refuse(std::string why, bool by_count) const;
    [[nodiscard]] package_entry entry_of(const found& what);
    [[nodiscard]] sha256_digest hash(const found& what);
    void check_stop() const;

    std::string folder_;
    const scan_options& how_;
    ignore_rules rules_;
    std::vector<found> all_;
    std::unordered_set<std::string> taken_;
    std::uint64_t bytes_ = 0, hashed_ = 0;
    std::size_t read_ = 0; ///< of all_
};

SKEIN_INLINE folder_scan::folder_scan(const std::string& folder, const scan_options& how)
    : folder_(folder.empty() ? "." : folder), how_(how) {
    while (folder_.size() > 1 && folder_.ends_with('/')) folder_.pop_back();
    struct stat is{};
    if (::stat(folder_.c_str(), &is) != 0)
        throw errno_error(errno, "look at", folder_)
            .with_hint("name a folder that is there and that this user may read");
    if (!S_ISDIR(is.st_mode))
        throw error(errc::invalid_argument, fmt::format("{} is no folder", folder_))
            .with_hint("name the folder whose files the job needs");
    posix_disk disk;
    const auto rules = join_path(folder_, ".skeinignore");
    if (auto text = disk.read_whole(rules, std::uint64_t{1} << 20))
        rules_ = ignore_rules(as_text(*text));
    else if (text.error().code() != errc::not_found)
        throw error(text.error());
}

SKEIN_INLINE std::string folder_scan::whole(std::string_view path) const {
    if (path.ends_with('/')) path.remove_suffix(1);
    return path.empty() ? folder_ : join_path(folder_, path);
}

/// False: nothing is there (any more).
SKEIN_INLINE bool folder_scan::look(const std::string& path, struct stat& is) const {
    if (::lstat(whole(path).c_str(), &is) == 0) return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    throw errno_error(errno, "look at", whole(path));
}

SKEIN_INLINE void folder_scan::check_stop() const {
    if (how_.stop.stop_requested())
        throw error(errc::cancelled, fmt::format("reading {} was given up", folder_));
}

SKEIN_INLINE void folder_scan::take(const std::string& path, const struct stat& is) {
    const auto refused = [&](std::string_view what) {
        return error(errc::not_supported, fmt::format("not supported: {} is {}", whole(path), what))
            .with_hint("remove it, or name it in .skeinignore");
    };
    if (S_ISFIFO(is.st_mode)) throw refused("a pipe");
    if (S_ISSOCK(is.st_mode)) throw refused("a socket");
    if (S_ISBLK(is.st_mode) || S_ISCHR(is.st_mode)) throw refused("a device");
    if (!taken_.insert(path).second) return;
    if (S_ISREG(is.st_mode)) bytes_ += static_cast<std::uint64_t>(is.st_size);
    all_.push_back({path, is});
    if (how_.progress && all_.size() % 1000 == 0) how_.progress({path, 0, 0, all_.size(), 0});
    // A folder that is far too large is not read to its end before it is refused.
    if (all_.size() > 10 * how_.bounds.entries + 1000) check_bounds();
}

/// Lists what is in a folder of the package, "" or with a slash at its end.
SKEIN_INLINE void folder_scan::list(const std::string& prefix) {
    check_stop();
    if (const auto files = git_files(whole(prefix)))
        list_by_git(prefix, *files);
    else
        walk(prefix, true);
}

SKEIN_INLINE void folder_scan::list_by_git(const std::string& prefix,
                                           const std::vector<std::string>& files) {
    std::vector<std::string> parents = {""};
    for (auto name : files) {
        const bool is_repository = name.ends_with('/');
        if (is_repository) name.pop_back();
        const auto path = prefix + name;
        struct stat is{};
        if (!look(path, is)) continue; // tracked, and removed since
        for (auto slash = name.find('/'); slash != std::string::npos;
             slash = name.find('/', slash + 1))
            parents.push_back(name.substr(0, slash + 1));
        const bool is_folder = S_ISDIR(is.st_mode);
        if (rules_.leaves_out(path, is_folder)) continue;
        take(path, is);
        if (is_folder) list(path + "/"); // a repository in the repository has rules of its own
    }
    std::sort(parents.begin(), parents.end());
    parents.erase(std::unique(parents.begin(), parents.end()), parents.end());
    take_empty_folders(prefix, parents);
}

/// Git knows no folders: those of which it lists nothing and that it does not ignore are empty ones
/// of the package.
SKEIN_INLINE void folder_scan::take_empty_folders(const std::string& prefix,
                                                  const std::vector<std::string>& parents) {
    auto look_in = parents;
    while (!look_in.empty()) {
        std::vector<std::string> folders;
        for (const auto& parent : look_in) {
            struct stat is{};
            const auto at = prefix + parent;
            if (!at.empty() && (!look(at.substr(0, at.size() - 1), is) || !S_ISDIR(is.st_mode)))
                continue;
            for (const auto& name : names_in(whole(at), true)) {
                const auto below = parent + name;
                if (name == ".git" || !look(prefix + below, is) || !S_ISDIR(is.st_mode)) continue;
                if (std::binary_search(parents.begin(), parents.end(), below + "/")) continue;
                if (taken_.contains(prefix + below)) continue;
                if (!rules_.leaves_out(prefix + below, true)) folders.push_back(below);
            }
        }
        check_stop();
        auto ignored = git_ignored(whole(prefix), folders);
        std::sort(ignored.begin(), ignored.end());
        look_in.clear();
        for (const auto& each : folders) {
            struct stat is{};
            if (std::binary_search(ignored.begin(), ignored.end(), each) ||
                !look(prefix + each, is))
                continue;
            take(prefix + each, is);
            look_in.push_back(each + "/");
        }
    }
}

/// Takes all that is below, but `.git` and, with rules, what `.skeinignore` leaves out.
SKEIN_INLINE void folder_scan::walk(const std::string& prefix, bool with_rules) {
    std::vector<std::string> left = {prefix};
    while (!left.empty()) {
        check_stop();
        const auto at = std::move(left.back());
        left.pop_back();
        for (const auto& name : names_in(whole(at))) {
            const auto path = at + name;
            struct stat is{};
            if (name == ".git" || !look(path, is)) continue;
            const bool is_folder = S_ISDIR(is.st_mode);
            if (with_rules && rules_.leaves_out(path, is_folder)) continue;
            take(path, is);
            if (!is_folder) continue;
            struct stat git{};
            if (with_rules && look(path + "/.git", git))
                list(path + "/"); // a repository in a folder that is none has its rules
            else
                left.push_back(path + "/");
        }
    }
}

/// The path that stands for one that begins with a link; the link goes along, too.
SKEIN_INLINE std::string folder_scan::take_link_on_the_way(const std::string& link,
                                                           std::string_view rest) {
    struct stat is{};
    if (!look(link, is)) throw errno_error(ENOENT, "look at", whole(link));
    take(link, is);
    std::array<char, 4097> to{};
    const auto n = ::readlink(whole(link).c_str(), to.data(), to.size() - 1);
    if (n < 0) throw errno_error(errno, "read the link", whole(link));
    const auto slash = link.rfind('/');
    std::string out = slash == std::string::npos ? "" : link.substr(0, slash + 1);
    out += std::string_view(to.data(), static_cast<std::size_t>(n));
    if (!rest.empty()) out.append("/").append(rest);
    if (to[0] == '/') // entry_of() says the same of links that are not named
        throw error(errc::not_supported,
                    fmt::format("not supported: link {} is absolute", whole(link)))
            .with_hint("name what it points at, or make the link relative");
    return out;
}

/// Takes a path that the command names, and the links on the way to it.
SKEIN_INLINE void folder_scan::take_named(std::string path) {
    const auto asked = path;
    for (int hops = 0; hops < 40; ++hops) {
        std::string at;
        struct stat is{};
        bool again = false;
        std::vector<std::string> names;
        for (auto rest = std::string_view(path); !rest.empty();) {
            const auto name = next_name(rest);
            if (name.empty() || name == ".") continue;
            if (name == "..") {
                if (names.empty())
                    throw error(errc::invalid_argument,
                                fmt::format("{} is not in {}", asked, folder_))
                        .with_hint("what a job needs lies in its folder");
                names.pop_back();
                continue;
            }
            if (name == ".git")
                throw error(errc::invalid_argument,
                            fmt::format("{} is in .git, which stays here", asked));
            names.emplace_back(name);
            at = joined(names, "/");
            if (!look(at, is))
                throw error(errc::not_found, fmt::format("{} is not in {}", asked, folder_))
                    .with_hint("make it first, or mend its name");
            if (!S_ISLNK(is.st_mode)) continue;
            path = take_link_on_the_way(at, rest);
            again = true;
            break;
        }
        if (again) continue;
        at = joined(names, "/");
        if (at.empty()) return walk("", false);
        if (!look(at, is)) throw errno_error(ENOENT, "look at", whole(at));
        take(at, is);
        if (S_ISDIR(is.st_mode)) walk(at + "/", false);
        return;
    }
    throw error(errc::invalid_argument,
                fmt::format("{} has too many links on its way", whole(asked)));
}

/// In order, and folders only where nothing is in them.
SKEIN_INLINE void folder_scan::settle() {
    std::sort(all_.begin(), all_.end(),
              [](const found& a, const found& b) { return path_less(a.path, b.path); });
    std::vector<found> kept;
    kept.reserve(all_.size());
    for (auto& each : all_) {
        if (!kept.empty() && S_ISDIR(kept.back().is.st_mode) &&
            each.path.size() > kept.back().path.size() &&
            each.path[kept.back().path.size()] == '/' && each.path.starts_with(kept.back().path))
            kept.pop_back();
        kept.push_back(std::move(each));
    }
    all_ = std::move(kept);
}

/// The ten largest, by count those of the top folder with all that is in them.
SKEIN_INLINE void folder_scan::refuse(std::string why, bool by_count) const {
    struct sum {
        std::uint64_t entries = 0, bytes = 0;
    };
    std::map<std::string, sum> sums;
    for (const auto& each : all_) {
        const auto slash = by_count ? each.path.find('/') : std::string::npos;
        auto& to = sums[each.path.substr(0, slash == std::string::npos ? slash : slash + 1)];
        to.entries += 1;
        if (S_ISREG(each.is.st_mode)) to.bytes += static_cast<std::uint64_t>(each.is.st_size);
    }
    std::vector<std::pair<std::string, sum>> order(sums.begin(), sums.end());
    std::sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
        const auto by = [&](const auto& of) {
            return by_count ? of.second.entries : of.second.bytes;
        };
        return by(a) != by(b) ? by(a) > by(b) : a.first < b.first;
    });
    if (order.size() > 10) order.resize(10);
    std::string largest;
    for (const auto& [path, is] : order) {
        largest += largest.empty() ? "" : ", ";
        largest += printable(path.size() > 200 ? path.substr(0, 200) + "..." : path);
        largest += is.entries > 1
                       ? fmt::format(" ({} entries, {})", is.entries, binary_bytes(is.bytes))
                       : fmt::format(" ({})", binary_bytes(is.bytes));
    }
    throw error(errc::too_large, std::move(why))
        .with_cause("the largest are " + largest)
        .with_hint("name what the job does not need in .skeinignore, or put it where all nodes "
                   "see it");
}

SKEIN_INLINE void folder_scan::check_bounds() const {
    const auto& most = how_.bounds;
    if (all_.size() > most.entries)
        refuse(fmt::format("{} has {} files and folders, {} are the most", folder_, all_.size(),
                           most.entries),
               true);
    if (bytes_ > most.bytes)
        refuse(fmt::format("{} has {}, {} are the most", folder_, binary_bytes(bytes_),
                           binary_bytes(most.bytes)),
               false);
}

SKEIN_INLINE sha256_digest folder_scan::hash(const found& what) {
    if (how_.known) {
        if (const auto digest = how_.known(what.is)) {
            hashed_ += static_cast<std::uint64_t>(what.is.st_size);
            return *digest;
        }
    }
    const auto path = whole(what.path);
    const auto began = how_.learned ? digest_cache::now() : 0;
    const auto changed = [&] {
        return error(errc::aborted, fmt::format("{} has changed while the folder was read", path))
            .with_hint("wait until nobody writes there, or name it in .skeinignore");
    };
    const auto is_same = [&](const struct stat& now) {
        return now.st_ino == what.is.st_ino && now.st_dev == what.is.st_dev &&
               now.st_size == what.is.st_size && now.st_mtim.tv_sec == what.is.st_mtim.tv_sec &&
               now.st_mtim.tv_nsec == what.is.st_mtim.tv_nsec;
    };
    const unique_fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!file) {
        if (errno == ENOENT || errno == ELOOP || errno == ENXIO) throw changed();
        throw errno_error(errno, "read", path)
            .with_hint("let this user read it, or name it in .skeinignore");
    }
    struct stat now{};
    if (::fstat(file.get(), &now) != 0) throw errno_error(errno, "look at", path);
    if (!is_same(now)) throw changed();
    sha256 sum;
    std::uint64_t got = 0;
    std::vector<std::byte> piece(static_cast<std::size_t>(
        std::clamp<std::uint64_t>(static_cast<std::uint64_t>(now.st_size), 1, 1u << 20)));
    for (;;) {
        check_stop();
        const auto n = skein::detail::retry_eintr(
            [&] { return ::read(file.get(), piece.data(), piece.size()); });
        if (n < 0) throw errno_error(errno, "read", path);
        if (n == 0) break;
        got += static_cast<std::uint64_t>(n);
        if (got > static_cast<std::uint64_t>(now.st_size)) throw changed();
        sum.update(byte_span(piece).first(static_cast<std::size_t>(n)));
        hashed_ += static_cast<std::uint64_t>(n);
        if (how_.progress) how_.progress({what.path, hashed_, bytes_, read_, all_.size()});
    }
    if (::fstat(file.get(), &now) != 0) throw errno_error(errno, "look at", path);
    if (!is_same(now) || got != static_cast<std::uint64_t>(now.st_size)) throw changed();
    const auto digest = sum.finish();
    if (how_.learned) how_.learned(now, digest, began);
    return digest;
}

SKEIN_INLINE package_entry folder_scan::entry_of(const found& what) {
    package_entry out;
    out.path = what.path;
    if (S_ISDIR(what.is.st_mode)) {
        out.kind = static_cast<std::uint8_t>(entry_kind::folder);
        out.mode = what.is.st_mode & 0777;
    } else if (S_ISLNK(what.is.st_mode)) {
        out.kind = static_cast<std::uint8_t>(entry_kind::link);
        std::array<char, 4097> to{};
        const auto n = ::readlink(whole(what.path).c_str(), to.data(), to.size());
        if (n < 0) throw errno_error(errno, "read the link", whole(what.path));
        out.link_to.assign(to.data(), static_cast<std::size_t>(n));
        if (auto good = check_package_link(out.path, out.link_to, how_.bounds); !good)
            throw error(errc::not_supported,
                        fmt::format("not supported: {}: {}", folder_, good.error().text()))
                .with_hint("make it a relative link within the folder, put a copy in its place, or "
                           "name it in .skeinignore");
    } else {
        out.mode = what.is.st_mode & 0777;
        out.size = static_cast<std::uint64_t>(what.is.st_size);
        out.digest = hash(what);
    }
    return out;
}

SKEIN_INLINE package_manifest folder_scan::run() {
    list("");
    for (const auto& path : how_.always) {
        if (path.starts_with('/'))
            throw error(errc::invalid_argument,
                        fmt::format("{} is absolute: what goes along is named relative to {}", path,
                                    folder_));
        take_named(path);
    }
    settle();
    check_bounds();
    package_manifest out;
    out.entries.reserve(all_.size());
    for (const auto& each : all_) {
        out.entries.push_back(entry_of(each));
        ++read_;
    }
    if (auto good = check_package(out, how_.bounds); !good)
        throw error(good.error()).with_where(folder_);
    return out;
}

/// Opens a file below a folder without following a link anywhere on the way.
SKEIN_INLINE unique_fd open_below(const std::string& folder, std::string_view path) {
    unique_fd at(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    while (at) {
        const auto name = std::string(next_name(path));
        const bool is_last = path.empty();
        const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
        unique_fd next(::openat(at.get(), name.c_str(), is_last ? flags : flags | O_DIRECTORY));
        at = std::move(next);
        if (is_last) break;
    }
    return at;
}

} // namespace detail

SKEIN_INLINE package_manifest scan_folder(const std::string& folder, const scan_options& how) {
    return detail::folder_scan(folder, how).run();
}

SKEIN_INLINE byte_buffer read_package_file(const std::string& folder, const package_entry& which,
                                           std::uint64_t offset, std::size_t bytes) {
    if (auto good = check_package_path(which.path); !good) throw error(good.error());
    const auto path = join_path(folder, which.path);
    const auto changed = [&] {
        return error(errc::aborted, fmt::format("{} has changed since the folder was read", path))
            .with_hint("submit again when nobody writes there");
    };
    const auto file = detail::open_below(folder, which.path);
    if (!file) {
        if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == ENXIO)
            throw changed();
        throw errno_error(errno, "read", path);
    }
    struct stat is{};
    if (::fstat(file.get(), &is) != 0) throw errno_error(errno, "look at", path);
    if (!S_ISREG(is.st_mode) || static_cast<std::uint64_t>(is.st_size) != which.size)
        throw changed();
    if (offset >= which.size) return {};
    byte_buffer out(static_cast<std::size_t>(std::min<std::uint64_t>(bytes, which.size - offset)));
    for (std::size_t got = 0; got < out.size();) {
        const auto n = skein::detail::retry_eintr([&] {
            return ::pread(file.get(), out.data() + got, out.size() - got,
                           static_cast<off_t>(offset + got));
        });
        if (n < 0) throw errno_error(errno, "read", path);
        if (n == 0) throw changed();
        got += static_cast<std::size_t>(n);
    }
    return out;
}

} // namespace skein::cluster
