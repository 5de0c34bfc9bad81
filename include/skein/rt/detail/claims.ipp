// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of rt/detail/claims.hpp: the shared memory.

#include <skein/core/error.hpp>

#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace skein::rt::detail {

SKEIN_INLINE std::shared_ptr<claims::page> claims::map(int file) {
    void* at = ::mmap(nullptr, sizeof(page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED)
        throw error(errc::exhausted, "no memory to share with a worker")
            .with_cause(std::generic_category().message(errno));
    // All zeros is what its constructor makes of it.
    return {static_cast<page*>(at), [](page* p) { ::munmap(p, sizeof(page)); }};
}

SKEIN_INLINE claims claims::in_memory() {
    claims made;
    made.page_ = std::make_shared<page>();
    return made;
}

SKEIN_INLINE claims claims::create() {
    claims made;
    made.file_ = std::make_shared<unique_fd>(
        ::memfd_create("skein-claims", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!*made.file_)
        throw error(errc::io, "no shared memory for a worker")
            .with_cause(std::generic_category().message(errno));
    // Sealed, so that nobody who has it can take the memory away under those who use it.
    if (::ftruncate(made.fd(), sizeof(page)) != 0 ||
        ::fcntl(made.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        throw error(errc::io, "no shared memory for a worker")
            .with_cause(std::generic_category().message(errno));
    made.page_ = map(made.fd());
    return made;
}

SKEIN_INLINE claims claims::open(unique_fd from) {
    struct stat info{};
    if (::fstat(from.get(), &info) != 0 || info.st_size != static_cast<off_t>(sizeof(page)))
        throw error(errc::malformed, "the memory that this worker shares with its driver is none");
    claims opened;
    opened.page_ = map(from.get());
    return opened;
}

} // namespace skein::rt::detail
