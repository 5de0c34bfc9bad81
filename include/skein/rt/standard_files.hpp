// SPDX-License-Identifier: Apache-2.0
#pragma once
// A program may be started with its standard input, output or error closed (`prog >&-`, some launchers
// and cron). The next file or socket it opens then gets that number, and what it prints goes into it.
//
//     skein::rt::open_standard_files();   // first thing in main; skein::run does it

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

namespace skein::rt {

/// Opens /dev/null in the place of each of the descriptors 0, 1 and 2 that is closed. Others stay as they
/// are. Call it before anything else is opened and before there are threads. Never throws; where there is
/// no /dev/null the place stays closed.
inline void open_standard_files() noexcept {
    const int saved = errno;
    for (int fd = 0; fd < 3; ++fd) {
        if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
        const int got = ::open("/dev/null", O_RDWR); // the lowest number that is free: fd
        if (got > fd) ::close(got);
    }
    errno = saved;
}

} // namespace skein::rt
