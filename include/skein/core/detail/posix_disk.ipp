// SPDX-License-Identifier: Apache-2.0
#pragma once
// POSIX calls behind skein::disk.

#include <skein/core/file_limit.hpp>
#include <skein/core/mounted_folder.hpp>

#include <climits>
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace skein {

SKEIN_INLINE error errno_error(int number, std::string_view verb, const std::string& path) {
    errc code = errc::io;
    const char* hint = "";
    switch (number) {
    case ENOSPC:
    case EDQUOT:
        code = errc::disk_full;
        hint = "free some space there or choose another folder";
        break;
    case EACCES:
    case EPERM:
    case EROFS:
        code = errc::permission_denied;
        hint = "check the owner and the mode, or choose another folder";
        break;
    case ENOENT:
    case ENOTDIR: code = errc::not_found; break;
    case EEXIST: code = errc::already_exists; break;
    case EFBIG: code = errc::too_large; break;
    case EMFILE:
    case ENFILE:
        code = errc::exhausted;
        hint = "raise the limit of open files (ulimit -n)";
        break;
    default: break;
    }
    auto reason = errno_text(number);
    char here[PATH_MAX];
    if (number == ENOENT && !path.starts_with('/') && ::getcwd(here, sizeof here) == nullptr) {
        reason = "the current folder of this process has been removed";
        hint = "start it in a folder that is there, or give an absolute path";
    }
    auto failure = error(code, fmt::format("{} {}: {}", verb, path, reason));
    if (*hint != '\0') failure.with_hint(hint);
    return failure;
}

namespace detail {

class posix_file final : public file {
public:
    posix_file(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
    ~posix_file() override {
        if (fd_ >= 0) ::close(fd_);
    }

    result<std::size_t> read_at(std::uint64_t offset, mut_byte_span into) override {
        std::size_t got = 0;
        while (got < into.size()) {
            const auto n = retry_eintr([&] {
                return ::pread(fd_, into.data() + got, into.size() - got,
                               static_cast<off_t>(offset + got));
            });
            if (n < 0) return failed("read");
            if (n == 0) break;
            got += static_cast<std::size_t>(n);
        }
        return got;
    }
    result<void> write_at(std::uint64_t offset, byte_span bytes) override {
        while (!bytes.empty()) {
            const auto n = retry_eintr([&] {
                return ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
            });
            if (n < 0) return failed("write");
            offset += static_cast<std::uint64_t>(n);
            bytes = bytes.subspan(static_cast<std::size_t>(n));
        }
        return {};
    }
    result<void> append(byte_span bytes) override {
        const auto end = size();
        if (!end) return end.error();
        return write_at(*end, bytes);
    }
    result<std::uint64_t> size() override {
        struct stat info{};
        if (::fstat(fd_, &info) != 0) return failed("stat");
        return static_cast<std::uint64_t>(info.st_size);
    }
    result<void> truncate(std::uint64_t bytes) override {
        if (retry_eintr([&] { return ::ftruncate(fd_, static_cast<off_t>(bytes)); }) != 0)
            return failed("truncate");
        return {};
    }
    result<void> sync() override {
        if (retry_eintr([&] { return ::fsync(fd_); }) != 0) return failed("sync");
        return {};
    }
    result<void> close() override {
        if (fd_ < 0) return {};
        const int fd = std::exchange(fd_, -1);
        // Linux has released the descriptor even when close() was interrupted: never repeat it.
        if (::close(fd) != 0 && errno != EINTR) return errno_error(errno, "close", path_);
        return {};
    }

    file_lock try_lock() override {
        if (retry_eintr([&] { return ::flock(fd_, LOCK_EX | LOCK_NB); }) == 0)
            return file_lock::held;
        return errno == EWOULDBLOCK ? file_lock::busy : file_lock::unsupported;
    }
    bool is_at(const std::string& path) override {
        struct stat held{}, there{};
        return ::fstat(fd_, &held) == 0 && ::stat(path.c_str(), &there) == 0 &&
               held.st_ino == there.st_ino && held.st_dev == there.st_dev;
    }
    [[nodiscard]] int descriptor() const noexcept override { return fd_; }

private:
    [[nodiscard]] error failed(std::string_view verb) const {
        if (fd_ < 0)
            return error(errc::closed, fmt::format("{} {}: the file is closed", verb, path_));
        return errno_error(errno, verb, path_);
    }

    int fd_;
    std::string path_;
};

} // namespace detail

SKEIN_INLINE result<std::unique_ptr<file>> posix_disk::open(const std::string& path,
                                                            open_mode mode) {
    if (auto* const there = mounted_folder::of(path)) return there->open(path, mode);
    int flags = O_CLOEXEC | O_NONBLOCK; // a pipe in the place of a file must not block
    if (links_ == link_policy::refuse) flags |= O_NOFOLLOW;
    const char* verb = "open";
    switch (mode) {
    case open_mode::read: flags |= O_RDONLY; break;
    case open_mode::write: flags |= O_RDWR | O_CREAT | O_TRUNC, verb = "create"; break;
    case open_mode::append: flags |= O_RDWR | O_CREAT, verb = "create"; break;
    case open_mode::create_new: flags |= O_RDWR | O_CREAT | O_EXCL, verb = "create"; break;
    }
    if (mode != open_mode::read) outlive_file_limit(); // in a main that has called nothing else
    const int fd = detail::retry_eintr([&] { return ::open(path.c_str(), flags, 0666); });
    if (fd < 0 && errno == ELOOP && links_ == link_policy::refuse)
        return error(errc::permission_denied,
                     fmt::format("{} {}: it is a symbolic link", verb, path))
            .with_hint("put the file itself there: links are not followed in this folder");
    if (fd < 0) return errno_error(errno, verb, path);
    std::unique_ptr<file> opened = std::make_unique<detail::posix_file>(fd, path);
    struct stat info{};
    if (::fstat(fd, &info) != 0) return errno_error(errno, verb, path);
    if (S_ISDIR(info.st_mode))
        return error(errc::malformed, fmt::format("{} {}: it is a folder, not a file", verb, path));
    if (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode))
        return error(errc::malformed,
                     fmt::format("{} {}: it is a pipe or socket, not a file", verb, path));
    return opened;
}

SKEIN_INLINE result<void> posix_disk::rename(const std::string& from, const std::string& to) {
    if (auto* const there = mounted_folder::of(from)) return there->rename(from, to);
    if (mounted_folder::of(to) != nullptr)
        return error(errc::not_supported, "not supported: " + to + " is another host's, and " +
                                              from + " is not: copy it");
    if (::rename(from.c_str(), to.c_str()) != 0)
        return errno_error(errno, "rename", from + " to " + to);
    return {};
}

SKEIN_INLINE result<void> posix_disk::sync_dir(const std::string& path) {
    if (auto* const there = mounted_folder::of(path)) return there->sync_dir(path);
    if (mounted_folder::is_below(path)) return {}; // of the other disk, too
    const int fd = detail::retry_eintr(
        [&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    if (fd < 0) return errno_error(errno, "open folder", path);
    const int rc = detail::retry_eintr([&] { return ::fsync(fd); });
    const int number = errno;
    ::close(fd);
    // Some file systems cannot sync a folder and say EINVAL; then there is nothing to wait for.
    if (rc != 0 && number != EINVAL) return errno_error(number, "sync folder", path);
    return {};
}

SKEIN_INLINE result<std::vector<dir_entry>> posix_disk::list(const std::string& path) {
    if (auto* const there = mounted_folder::of(path)) return there->list(path);
    const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(path.c_str()),
                                                  [](DIR* d) { return ::closedir(d); });
    if (!dir) return errno_error(errno, "list", path);
    std::vector<dir_entry> entries;
    for (;;) {
        errno = 0;
        const dirent* item = ::readdir(dir.get());
        if (item == nullptr) break;
        dir_entry entry;
        entry.name = item->d_name;
        if (entry.name == "." || entry.name == "..") continue;
        struct stat info{};
        if (::fstatat(::dirfd(dir.get()), item->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
            if (errno == ENOENT) continue; // removed in the meantime
            return errno_error(errno, "stat", join_path(path, item->d_name));
        }
        entry.is_directory = S_ISDIR(info.st_mode);
        entry.bytes = entry.is_directory ? 0 : static_cast<std::uint64_t>(info.st_size);
        entries.push_back(std::move(entry));
    }
    if (errno != 0) return errno_error(errno, "list", path);
    std::sort(entries.begin(), entries.end(),
              [](const dir_entry& a, const dir_entry& b) { return a.name < b.name; });
    return entries;
}

SKEIN_INLINE result<void> posix_disk::remove(const std::string& path) {
    if (auto* const there = mounted_folder::of(path)) return there->remove(path);
    if (::remove(path.c_str()) != 0) return errno_error(errno, "remove", path);
    return {};
}

SKEIN_INLINE result<void> posix_disk::make_dirs(const std::string& path) {
    if (auto* const there = mounted_folder::of(path)) return there->make_dirs(path);
    for (std::size_t end = 0; end != std::string::npos;) {
        end = path.find('/', end + 1);
        const std::string folder = path.substr(0, end);
        if (folder.empty() || ::mkdir(folder.c_str(), 0777) == 0) continue;
        const int number = errno;
        struct stat info{};
        if (::stat(folder.c_str(), &info) != 0) return errno_error(number, "create folder", folder);
        if (!S_ISDIR(info.st_mode)) return errno_error(ENOTDIR, "create folder", folder);
    }
    return {};
}

SKEIN_INLINE result<std::uint64_t> posix_disk::free_space(const std::string& path) {
    if (auto* const there = mounted_folder::of(path)) return there->free_space(path);
    struct statvfs info{};
    if (detail::retry_eintr([&] { return ::statvfs(path.c_str(), &info); }) != 0)
        return errno_error(errno, "free space of", path);
    return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

SKEIN_INLINE result<dir_entry> posix_disk::status(const std::string& path) {
    if (auto* const there = mounted_folder::of(path)) return there->status(path);
    struct stat info{};
    if (::stat(path.c_str(), &info) != 0) return errno_error(errno, "stat", path);
    dir_entry entry;
    const auto slash = path.find_last_of('/');
    entry.name = slash == std::string::npos ? path : path.substr(slash + 1);
    entry.is_directory = S_ISDIR(info.st_mode);
    entry.bytes = entry.is_directory ? 0 : static_cast<std::uint64_t>(info.st_size);
    return entry;
}

} // namespace skein
