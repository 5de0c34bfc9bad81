// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/folder.hpp>.

#include <skein/core/check.hpp>
#include <skein/core/disk.hpp>
#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/data/arena.hpp>
#include <skein/data/detail/folder_index.hpp>

#include <climits>
#include <cerrno>
#include <cstdlib>

#include <fmt/core.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace skein::data {

SKEIN_INLINE folder_file folder_reader::read(const folder_place& at) const {
    const auto path = join_path(root, at.path);
    const auto failed = [&] { return errno_error(errno, "read", path); };
    // O_NONBLOCK: a pipe of that name would wait for a writer.
    const unique_fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat s{};
    if (!fd || ::fstat(fd.get(), &s) != 0) throw failed();
    if (!S_ISREG(s.st_mode))
        throw error(errc::not_supported, fmt::format("'{}' is no file", printable(path)));
    const auto size = static_cast<std::uint64_t>(s.st_size);
    if (size > most)
        throw error(errc::too_large,
                    fmt::format("'{}' has {} bytes, the most are {}", printable(path), size, most))
            .with_hint("folder_options::most_bytes");
    const auto changed = [&](std::uint64_t now) {
        return error(errc::mismatch,
                     fmt::format("'{}' has {} bytes; it had {} when its folder was looked up",
                                 printable(path), now, at.size))
            .with_hint("who changes pictures in place touches their folder, too, and starts again");
    };
    if (size != at.size) throw changed(size);
    const auto memory = arena::current().array<std::byte>(static_cast<std::size_t>(size));
    std::size_t got = 0;
    while (got < memory.size()) {
        const auto n = skein::detail::retry_eintr(
            [&] { return ::read(fd.get(), memory.data() + got, memory.size() - got); });
        if (n < 0) throw failed();
        if (n == 0) throw changed(got); // it became shorter while it was read
        got += static_cast<std::size_t>(n);
    }
    return {memory, at.label};
}

SKEIN_INLINE image_folder::image_folder(const std::string& folder, const folder_options& how)
    : most_(how.most_bytes) {
    char real[PATH_MAX];
    if (::realpath(folder.c_str(), real) == nullptr) {
        const auto number = errno;
        char here[PATH_MAX];
        const bool is_relative = !folder.starts_with('/') && ::getcwd(here, sizeof here) != nullptr;
        throw errno_error(number, "look up image_folder", folder)
            .with_hint(is_relative
                           ? fmt::format("it is looked for in {}; is the dataset on this host?",
                                         printable(here))
                           : "is the dataset on this host?");
    }
    root_ = real;
    index_ = detail::folder_index::open(
        root_, how.index_folder.empty() ? detail::default_index_folder() : how.index_folder);
}

SKEIN_INLINE std::uint64_t image_folder::size() const noexcept { return index_->size(); }

SKEIN_INLINE folder_place image_folder::locate(std::uint64_t sample) const {
    SKEIN_CHECK(sample < index_->size(), "sample {} of {}", sample, index_->size());
    const auto entry = index_->at(sample);
    return {join_path(std::string(entry.folder), entry.name), entry.label, entry.size};
}

SKEIN_INLINE std::vector<std::string> image_folder::classes() const { return index_->classes(); }

SKEIN_INLINE std::string image_folder::describe() const {
    return fmt::format("image_folder({} files of {} classes, {:016x})", size(),
                       index_->class_count(), index_->hash());
}

} // namespace skein::data
