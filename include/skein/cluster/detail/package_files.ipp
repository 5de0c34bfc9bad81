// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/package_files.hpp, but lay_out_tree().

#include <skein/core/file_lock.hpp>
#include <skein/core/log.hpp>
#include <skein/core/posix_disk.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace skein::cluster::detail {

/// A folder for its owner alone; one that is there has to be this user's.
SKEIN_INLINE void make_own_folder(const std::string& path) {
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) throw errno_error(errno, "make", path);
    struct stat is{};
    if (::stat(path.c_str(), &is) != 0) throw errno_error(errno, "look at", path);
    if (!S_ISDIR(is.st_mode))
        throw error(errc::invalid_argument, fmt::format("{} is no folder", path))
            .with_hint("name another folder, or remove it");
    if (is.st_uid != ::geteuid())
        throw error(errc::permission_denied, fmt::format("{} belongs to another user", path))
            .with_hint("name a folder of this user's own");
}

SKEIN_INLINE package_files::package_files(std::string in, std::uint64_t byte_budget,
                                          const package_bounds& at_most)
    : folder(std::move(in)), budget(byte_budget), bounds(at_most) {
    posix_disk disk;
    if (auto made = disk.make_dirs(parent_path(folder)); !made) throw error(made.error());
    make_own_folder(folder);
    const auto at = join_path(folder, "lock");
    lock.reset(::open(at.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!lock) throw errno_error(errno, "open", at);
    if (const auto taken = try_lock(lock.get()); taken != file_lock::held) {
        if (taken == file_lock::unsupported) throw errno_error(errno, "lock", at);
        throw error(errc::already_exists,
                    fmt::format("another process keeps packages in {}", folder))
            .with_hint("end it, or name another folder");
    }
    for (const char* each : {"blobs", "manifests", "new"}) make_own_folder(join_path(folder, each));
    take_over();
}

SKEIN_INLINE std::string package_files::path_of(const kept_name& name) const {
    const auto hex = to_hex(name.digest);
    return name.is_manifest ? fmt::format("{}/manifests/{}", folder, hex)
                            : fmt::format("{}/blobs/{}/{}", folder, hex.substr(0, 2), hex);
}

SKEIN_INLINE std::string package_files::temporary_path() {
    const std::lock_guard held(mutex);
    return fmt::format("{}/new/{}", folder, ++temporaries);
}

/// What an earlier process has left, in the order of its use; what it had not finished goes.
SKEIN_INLINE void package_files::take_over() {
    posix_disk disk;
    std::vector<std::tuple<std::int64_t, std::int64_t, std::uint64_t, kept_name>> found;
    const auto look_in = [&](const std::string& in, bool is_manifest) {
        auto listed = disk.list(in);
        if (!listed) throw error(listed.error());
        for (const auto& each : *listed) {
            kept_name name;
            name.is_manifest = is_manifest;
            struct stat is{};
            if (!from_hex(each.name, name.digest) || to_hex(name.digest) != each.name) continue;
            if (::lstat(path_of(name).c_str(), &is) != 0 || !S_ISREG(is.st_mode)) continue;
            found.emplace_back(is.st_mtim.tv_sec, is.st_mtim.tv_nsec,
                               static_cast<std::uint64_t>(is.st_size), name);
        }
    };
    const auto unfinished = disk.list(join_path(folder, "new"));
    if (!unfinished) throw error(unfinished.error());
    for (const auto& each : *unfinished)
        if (auto gone = disk.remove_tree(fmt::format("{}/new/{}", folder, each.name)); !gone)
            throw error(gone.error());
    const auto blobs = join_path(folder, "blobs");
    const auto parts = disk.list(blobs);
    if (!parts) throw error(parts.error());
    for (const auto& each : *parts)
        if (each.is_directory) look_in(join_path(blobs, each.name), false);
    look_in(join_path(folder, "manifests"), true);
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
        return std::tie(std::get<0>(a), std::get<1>(a)) < std::tie(std::get<0>(b), std::get<1>(b));
    });
    for (const auto& [seconds, nanoseconds, size, name] : found) add(name, size, false);
}

SKEIN_INLINE void package_files::add(const kept_name& name, std::uint64_t size, bool is_verified) {
    const auto [at, is_new] = all.try_emplace(name);
    if (!is_new) {
        bytes -= at->second.bytes;
        unpinned.erase(at->second.used);
    }
    at->second = {size, 0, is_verified, false};
    bytes += size;
    if (!pins.contains(name)) {
        at->second.used = ++uses;
        unpinned.emplace(at->second.used, name);
    }
}

SKEIN_INLINE void package_files::drop(const kept_name& name) noexcept {
    const auto at = all.find(name);
    if (at == all.end()) return;
    ::unlink(path_of(name).c_str());
    bytes -= at->second.bytes;
    unpinned.erase(at->second.used);
    all.erase(at);
}

SKEIN_INLINE void package_files::forget(const kept_name& name) {
    const std::lock_guard held(mutex);
    drop(name);
}

SKEIN_INLINE void package_files::touch(const kept_name& name) {
    const auto at = all.find(name);
    if (at == all.end() || at->second.used == 0) return;
    auto moved = unpinned.extract(at->second.used);
    moved.key() = at->second.used = ++uses;
    unpinned.insert(std::move(moved));
}

SKEIN_INLINE void package_files::hold(const std::vector<kept_name>& names) {
    for (const auto& name : names) {
        if (++pins[name] > 1) continue;
        if (const auto at = all.find(name); at != all.end()) {
            unpinned.erase(at->second.used);
            at->second.used = 0;
        }
    }
}

SKEIN_INLINE void package_files::let_go(const std::vector<kept_name>& names) noexcept {
    for (const auto& name : names) {
        const auto pin = pins.find(name);
        if (pin == pins.end() || --pin->second > 0) continue;
        pins.erase(pin);
        if (const auto at = all.find(name); at != all.end()) {
            at->second.used = ++uses;
            unpinned.emplace(at->second.used, name);
        }
    }
}

SKEIN_INLINE void package_files::reserve(std::uint64_t size) {
    const auto fits = [&] {
        return size <= budget && bytes <= budget - size && reserved <= budget - size - bytes;
    };
    std::uint64_t removable = 0;
    if (!fits())
        for (const auto& [used, name] : unpinned) removable += all.find(name)->second.bytes;
    if (!fits() &&
        (size > budget || reserved > budget - size || bytes - removable > budget - size - reserved))
        throw error(errc::exhausted,
                    fmt::format("no room for {} bytes in {}: of {} there {} belong to jobs that "
                                "live, and {} are on their way",
                                size, folder, budget, bytes - removable, reserved))
            .with_hint("wait until some of these jobs have ended, or give packages more room");
    while (!fits()) {
        const auto oldest = unpinned.begin()->second;
        drop(oldest);
    }
    reserved += size;
}

SKEIN_INLINE bool package_files::is_verified(const kept_name& name) const {
    const std::lock_guard held(mutex);
    const auto at = all.find(name);
    return at != all.end() && at->second.is_verified;
}

SKEIN_INLINE std::uint64_t package_files::size_of(const kept_name& name) {
    const std::lock_guard held(mutex);
    const auto at = all.find(name);
    return at == all.end() ? 0 : at->second.bytes;
}

/// The digest of a file; nothing: it is not there, or the disk fails.
SKEIN_INLINE std::optional<sha256_digest> digest_of_file(const std::string& path) {
    const unique_fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!file && errno != ENOENT && errno != EIO) throw errno_error(errno, "read", path);
    if (!file) return std::nullopt;
    sha256 hash;
    std::vector<std::byte> piece(std::size_t{1} << 20);
    for (;;) {
        const auto n = skein::detail::retry_eintr(
            [&] { return ::read(file.get(), piece.data(), piece.size()); });
        if (n < 0) return std::nullopt;
        if (n == 0) return hash.finish();
        hash.update(byte_span(piece).first(static_cast<std::size_t>(n)));
    }
}

SKEIN_INLINE bool package_files::verify(const kept_name& name) {
    {
        const std::lock_guard held(mutex);
        const auto at = all.find(name);
        if (at == all.end()) return false;
        touch(name);
        if (at->second.is_verified) return true;
    }
    const bool is_whole = digest_of_file(path_of(name)) == name.digest;
    const std::lock_guard held(mutex);
    const auto at = all.find(name);
    if (at == all.end()) return false;
    if (!is_whole && !at->second.is_verified) return drop(name), false;
    return at->second.is_verified = true;
}

/// Puts a file that is written, and for which there is room reserved, in its place.
SKEIN_INLINE void package_files::store(file_beside& written, const kept_name& name,
                                       std::uint64_t size) {
    const auto path = path_of(name);
    const std::lock_guard held(mutex);
    if (!name.is_manifest) make_own_folder(parent_path(path));
    if (!written.take_place(path)) throw errno_error(errno, "make", path);
    add(name, size, true);
    reserved -= size;
}

SKEIN_INLINE held_names::held_names(package_files& in, std::vector<kept_name> names)
    : in_(in), names_(std::move(names)) {
    const std::lock_guard held(in_.mutex);
    in_.hold(names_);
}
SKEIN_INLINE held_names::~held_names() {
    const std::lock_guard held(in_.mutex);
    in_.let_go(names_);
}

SKEIN_INLINE blob_file::blob_file(std::shared_ptr<package_files> of, const kept_name& as,
                                  std::uint64_t bytes)
    : in(std::move(of)), name(as), size(bytes) {
    {
        const std::lock_guard held(in->mutex);
        in->reserve(size);
        is_reserved = true;
    }
    file.emplace(in->temporary_path(), 0600);
    const int number = errno;
    if (!*file) {
        const std::lock_guard held(in->mutex);
        in->reserved -= size;
        throw errno_error(number, "make", file->path());
    }
}

SKEIN_INLINE blob_file::~blob_file() {
    file.reset(); // before its room is free
    if (!is_reserved) return;
    const std::lock_guard held(in->mutex);
    in->reserved -= size;
}

SKEIN_INLINE void blob_file::append(byte_span bytes) {
    if (has_failed || !file)
        throw error(errc::aborted, fmt::format("{} takes no more bytes", to_hex(name.digest)))
            .with_cause(has_failed ? "an earlier piece was not written" : "it is whole");
    if (bytes.size() > size - got) {
        has_failed = true;
        throw error(errc::too_large, fmt::format("more bytes came for {} than the {} it has",
                                                 to_hex(name.digest), size));
    }
    hash.update(bytes);
    got += bytes.size();
    if (file->append(bytes)) return;
    has_failed = true;
    throw errno_error(errno, "write", file->path());
}

SKEIN_INLINE void blob_file::commit() {
    append({});
    has_failed = true;
    if (got != size)
        throw error(errc::mismatch,
                    fmt::format("{} of {} bytes came for {}", got, size, to_hex(name.digest)));
    if (const auto is = hash.finish(); is != name.digest)
        throw error(errc::mismatch,
                    fmt::format("what came for {} is {}", to_hex(name.digest), to_hex(is)))
            .with_hint("the file has changed since its folder was read: submit again");
    place();
}

SKEIN_INLINE void blob_file::place() {
    in->store(*file, name, size);
    file.reset();
    is_reserved = false;
}

SKEIN_INLINE std::vector<kept_name> blobs_of(const package_manifest& of) {
    std::vector<kept_name> out;
    for (const auto& e : of.entries)
        if (e.kind == static_cast<std::uint8_t>(entry_kind::file) && e.size > 0)
            out.push_back({false, e.digest});
    const auto less = [](const auto& a, const auto& b) { return a.digest < b.digest; };
    std::sort(out.begin(), out.end(), less);
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
}

} // namespace skein::cluster::detail
