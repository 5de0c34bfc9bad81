// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/state_memory.hpp>.

#include <skein/core/error.hpp>
#include <skein/core/file_limit.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/flat.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::train {

namespace detail {

/// A file in the folder that has no name any more.
SKEIN_INLINE unique_fd nameless_file(const std::string& folder) {
    unique_fd file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (file) return file;
    const int first = errno;
    auto path = folder + "/.skein-state-XXXXXX"; // file systems that have no O_TMPFILE
    file.reset(::mkostemp(path.data(), O_CLOEXEC));
    if (file) {
        ::unlink(path.c_str());
        return file;
    }
    throw error(errc::usage, fmt::format("optimizer states cannot be placed in {}: {}", folder,
                                         std::strerror(first == EOPNOTSUPP ? errno : first)))
        .with_hint("give a folder that exists, that this user may write to, on a local disk");
}

SKEIN_INLINE double free_bytes(int file) {
    struct statvfs about{};
    if (::fstatvfs(file, &about) != 0) return 0.0;
    return static_cast<double>(about.f_bavail) * static_cast<double>(about.f_frsize);
}

/// Gives the file its size, with blocks of its own. What is more than is free is not tried: it
/// would take all that is free from every other program until it fails.
SKEIN_INLINE void reserve(int file, std::size_t bytes, const std::string& folder) {
    outlive_file_limit();
    const auto size = static_cast<off_t>(bytes);
    int failed = ENOSPC;
    if (free_bytes(file) >= static_cast<double>(bytes)) {
        failed = ::fallocate(file, 0, 0, size) == 0 ? 0 : errno;
        if (failed == EOPNOTSUPP) // the best there is on such a file system
            failed = ::ftruncate(file, size) == 0 ? 0 : errno;
    }
    if (failed == 0) return;
    const bool full = failed == ENOSPC || failed == EFBIG || failed == EDQUOT;
    throw error(full ? errc::exhausted : errc::io,
                fmt::format("no room for {} bytes of optimizer state in {} ({:.0f} are free): {}",
                            bytes, folder, free_bytes(file), errno_text(failed)))
        .with_hint("give a folder on a larger disk, or shard the optimizer over more ranks");
}

} // namespace detail

SKEIN_INLINE at::Tensor make_file_buffer(const std::string& folder, std::int64_t elements) {
    const auto bytes =
        static_cast<std::size_t>(std::max<std::int64_t>(elements, 1)) * sizeof(float);
    const auto file = detail::nameless_file(folder);
    detail::reserve(file.get(), bytes, folder);
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (memory == MAP_FAILED)
        throw error(errc::io, fmt::format("{} bytes of optimizer state in {} cannot be mapped: {}",
                                          bytes, folder, std::strerror(errno)))
            .with_hint("give a folder on a local disk");
    return at::from_blob(
        memory, {elements}, [bytes](void* p) { ::munmap(p, bytes); },
        at::TensorOptions().dtype(at::kFloat));
}

SKEIN_INLINE at::Tensor make_state_buffer(const std::string& folder, std::int64_t elements,
                                          at::Device where) {
    return folder.empty() ? make_flat_buffer(elements, at::kFloat, where)
                          : make_file_buffer(folder, elements);
}

} // namespace skein::train
