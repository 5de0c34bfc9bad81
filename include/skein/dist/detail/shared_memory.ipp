// SPDX-License-Identifier: Apache-2.0
#pragma once
// Making, finding and mapping a shared segment.

#include <skein/core/error.hpp>
#include <skein/core/file_limit.hpp>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <fmt/core.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace skein::dist {

namespace detail {

SKEIN_INLINE error cannot_map(std::string what, int code) {
    const bool denied = code == EACCES || code == EPERM;
    const bool full = code == ENOMEM || code == ENOSPC || code == EFBIG || code == EINVAL ||
                      code == EMFILE || code == ENFILE;
    error why(denied ? errc::permission_denied
              : full ? errc::exhausted
                     : errc::io,
              "cannot map " + std::move(what));
    why.with_cause(errno_text(code));
    if (!full)
        why.with_hint("choose the TCP ring when processes of this host may not share memory");
    return why;
}

} // namespace detail

SKEIN_INLINE shared_memory::~shared_memory() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
}

SKEIN_INLINE shared_memory shared_memory::create(std::size_t bytes) {
    shared_memory m;
    m.fd_.reset(::memfd_create("skein", MFD_CLOEXEC));
    outlive_file_limit(); // it counts for memory that has a file, too
    if (!m.fd_ || ::ftruncate(m.fd_.get(), static_cast<off_t>(bytes)) != 0) {
        throw detail::cannot_map(fmt::format("a shared segment of {} bytes", bytes), errno);
    }
    m.map(bytes, MAP_SHARED);
    return m;
}

SKEIN_INLINE shared_memory shared_memory::create_private(std::size_t bytes) {
    shared_memory m;
    m.map(bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
    return m;
}

SKEIN_INLINE std::string shared_memory::path() const {
    return fmt::format("/proc/{}/fd/{}", ::getpid(), fd_.get());
}

SKEIN_INLINE shared_memory shared_memory::attach(const std::string& path, std::size_t bytes) {
    shared_memory m;
    m.fd_.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!m.fd_) throw detail::cannot_map(fmt::format("the shared segment {}", path), errno);
    struct stat info{};
    if (::fstat(m.fd_.get(), &info) != 0 || static_cast<std::size_t>(info.st_size) != bytes) {
        throw error(errc::mismatch, fmt::format("the shared segment {} has {} bytes, {} expected",
                                                path, info.st_size, bytes))
            .with_hint("are all ranks the same build with the same options?");
    }
    m.map(bytes, MAP_SHARED);
    m.hide();
    return m;
}

SKEIN_INLINE void shared_memory::map(std::size_t bytes, int flags) {
    void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd_.get(), 0);
    if (p == MAP_FAILED) {
        throw detail::cannot_map(fmt::format("{} bytes of memory", bytes), errno);
    }
    data_ = p;
    bytes_ = bytes;
}

} // namespace skein::dist
