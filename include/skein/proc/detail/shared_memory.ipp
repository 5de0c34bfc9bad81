// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of proc/shared_memory.hpp.

#include <skein/core/error.hpp>
#include <skein/core/file_limit.hpp>

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace skein::proc {

struct shared_memory::mapping {
    unique_fd file;
    std::span<std::byte> bytes;

    mapping(unique_fd f, void* at, std::size_t size) noexcept
        : file(std::move(f)), bytes(static_cast<std::byte*>(at), size) {}
    mapping(const mapping&) = delete;
    mapping& operator=(const mapping&) = delete;
    ~mapping() { ::munmap(bytes.data(), bytes.size()); }
};

namespace detail {

SKEIN_INLINE error cannot_share(std::size_t bytes, int number) {
    return error(number == EFBIG ? errc::too_large : errc::exhausted,
                 "cannot share " + std::to_string(bytes) + " bytes with a child")
        .with_cause(errno_text(number));
}

} // namespace detail

SKEIN_INLINE shared_memory shared_memory::map(unique_fd file, std::size_t bytes) {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (at == MAP_FAILED) throw detail::cannot_share(bytes, errno);
    shared_memory out;
    out.held_ = std::make_shared<mapping>(std::move(file), at, bytes);
    return out;
}

SKEIN_INLINE shared_memory shared_memory::create(std::size_t bytes) {
    outlive_file_limit(); // it counts for memory that has a file, too
    unique_fd file(::memfd_create("skein-shared", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!file || ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 ||
        ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        throw detail::cannot_share(bytes, errno);
    return map(std::move(file), bytes);
}

SKEIN_INLINE shared_memory shared_memory::open(unique_fd from) {
    struct stat info{};
    const int seals = ::fcntl(from.get(), F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(from.get(), &info) != 0 ||
        info.st_size <= 0)
        throw error(errc::malformed, "the file that was inherited is no memory of another process");
    return map(std::move(from), static_cast<std::size_t>(info.st_size));
}

SKEIN_INLINE std::span<std::byte> shared_memory::bytes() const noexcept {
    return held_ ? held_->bytes : std::span<std::byte>();
}

SKEIN_INLINE int shared_memory::fd() const noexcept { return held_ ? held_->file.get() : -1; }

} // namespace skein::proc
