// SPDX-License-Identifier: Apache-2.0
#pragma once
// The body of rt/standard_files.hpp.

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

namespace skein::rt {

SKEIN_INLINE void open_standard_files() noexcept {
    const int saved = errno;
    for (int fd = 0; fd < 3; ++fd) {
        if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
        const int got = ::open("/dev/null", O_RDWR); // the lowest number that is free: fd
        if (got > fd) ::close(got);
    }
    errno = saved;
}

} // namespace skein::rt
