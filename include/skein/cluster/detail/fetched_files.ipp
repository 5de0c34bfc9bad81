// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/fetched_files.hpp.

#include <skein/core/disk.hpp>
#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/printable.hpp>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::cluster::detail {

[[nodiscard]] inline error in_the_way(const std::string& shown, std::string_view what) {
    return error(errc::already_exists, fmt::format("{} is {}", printable(shown), what))
        .with_hint("remove it, or fetch into another folder with --to");
}

/// Reads all of a file into a digest; the number of bytes.
inline std::uint64_t hash_into(sha256& hash, int file, const std::string& shown) {
    byte_buffer piece(most_blob_piece);
    for (std::uint64_t got = 0;;) {
        const auto n = skein::detail::retry_eintr(
            [&] { return ::pread(file, piece.data(), piece.size(), static_cast<off_t>(got)); });
        if (n < 0) throw errno_error(errno, "read", shown);
        if (n == 0) return got;
        hash.update(byte_span(piece).first(static_cast<std::size_t>(n)));
        got += static_cast<std::uint64_t>(n);
    }
}

SKEIN_INLINE fetched_folder::fetched_folder(std::string path) : path_(std::move(path)) {
    if (::mkdir(path_.c_str(), 0777) != 0 && errno != EEXIST)
        throw errno_error(errno, "make", path_).with_hint("name a folder in one that is there");
    root_.reset(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!root_) throw errno_error(errno, "open", path_);
}

/// The folder that a path is in; nothing: it is not there and is not to be made.
SKEIN_INLINE unique_fd fetched_folder::folder_of(const std::string& path, bool makes) const {
    unique_fd at(::openat(root_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!at) throw errno_error(errno, "open", path_);
    for (std::size_t from = 0, slash = path.find('/'); slash != path.npos;
         from = slash + 1, slash = path.find('/', from)) {
        const auto name = path.substr(from, slash - from);
        const auto shown = join_path(path_, path.substr(0, slash));
        if (makes && ::mkdirat(at.get(), name.c_str(), 0777) != 0 && errno != EEXIST)
            throw errno_error(errno, "make", shown);
        unique_fd next(
            ::openat(at.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
        if (!next && errno == ENOENT && !makes) return next;
        if (!next && (errno == ELOOP || errno == ENOTDIR))
            throw in_the_way(shown, "a link or a file, where a folder is to be");
        if (!next) throw errno_error(errno, "open", shown);
        at = std::move(next);
    }
    return at;
}

SKEIN_INLINE place_is fetched_folder::look_at(const package_entry& what) const {
    const auto shown = join_path(path_, what.path);
    const auto in = folder_of(what.path, false);
    if (!in) return place_is::free;
    const auto name = what.path.substr(what.path.rfind('/') + 1); // npos + 1 is 0
    struct stat is{};
    if (::fstatat(in.get(), name.c_str(), &is, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) return place_is::free;
        throw errno_error(errno, "look at", shown);
    }
    if (S_ISLNK(is.st_mode)) throw in_the_way(shown, "a link");
    if (!S_ISREG(is.st_mode)) throw in_the_way(shown, "no file");
    if (static_cast<std::uint64_t>(is.st_size) != what.size) return place_is::other;
    const unique_fd file(
        ::openat(in.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!file) throw errno_error(errno, "read", shown);
    sha256 hash;
    (void)hash_into(hash, file.get(), shown);
    return hash.finish() == what.digest ? place_is::whole : place_is::other;
}

SKEIN_INLINE fetched_file fetched_folder::begin(const package_entry& what) const {
    fetched_file out;
    out.entry_ = what;
    out.shown_ = join_path(path_, what.path);
    out.in_ = folder_of(what.path, true);
    out.name_ = what.path.substr(what.path.rfind('/') + 1);
    const auto which = what.path + " " + to_hex(what.digest);
    out.part_ = fmt::format(".skein-part-{}", to_hex(sha256_of(as_bytes(which))).substr(0, 32));
    const auto open = [&](int flags) {
        return unique_fd(::openat(out.in_.get(), out.part_.c_str(),
                                  O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | flags,
                                  0600));
    };
    out.file_ = open(0);
    if (!out.file_) throw errno_error(errno, "make", out.shown_);
    struct stat is{};
    if (::fstat(out.file_.get(), &is) != 0) throw errno_error(errno, "look at", out.shown_);
    const bool is_a_part = S_ISREG(is.st_mode) && is.st_nlink == 1 &&
                           static_cast<std::uint64_t>(is.st_size) <= what.size;
    if (!is_a_part) {
        (void)::unlinkat(out.in_.get(), out.part_.c_str(), 0);
        out.file_ = open(O_EXCL);
        if (!out.file_) throw errno_error(errno, "make", out.shown_);
    }
    out.got_ = hash_into(out.hash_, out.file_.get(), out.shown_);
    return out;
}

SKEIN_INLINE void fetched_file::append(byte_span bytes) {
    if (bytes.size() > entry_.size - got_)
        throw error(errc::too_large, fmt::format("more bytes came for {} than it has", shown_));
    while (!bytes.empty()) {
        const auto n = skein::detail::retry_eintr([&] {
            return ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(got_));
        });
        if (n < 0) throw errno_error(errno, "write", shown_);
        hash_.update(bytes.first(static_cast<std::size_t>(n)));
        got_ += static_cast<std::uint64_t>(n);
        bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
}

SKEIN_INLINE void fetched_file::drop() noexcept { (void)::unlinkat(in_.get(), part_.c_str(), 0); }

SKEIN_INLINE void fetched_file::commit() {
    if (got_ != entry_.size || hash_.finish() != entry_.digest) {
        drop();
        throw error(errc::mismatch,
                    fmt::format("other bytes came for {} than were asked for", shown_))
            .with_hint("what was there of it from before is removed: fetch again");
    }
    if (::fchmod(file_.get(), (entry_.mode & 0777) | 0600) != 0 ||
        ::renameat(in_.get(), part_.c_str(), in_.get(), name_.c_str()) != 0)
        throw errno_error(errno, "make", shown_);
}

} // namespace skein::cluster::detail
