// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the kernel says of this process and of the host it runs on.
//
//     auto argv = skein::own_arguments();       // {"./train", "--steps", "100"}

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

namespace skein {

/// All of a small file, as those under /proc are; what can be read of it if something is wrong.
[[nodiscard]] inline std::string read_small_file(const char* path) {
    std::string all;
    const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return all;
    char part[4096];
    for (;;) {
        const auto n = ::read(fd, part, sizeof part);
        if (n > 0) all.append(part, static_cast<std::size_t>(n));
        if (n == 0 || (n < 0 && errno != EINTR)) break;
    }
    ::close(fd);
    return all;
}

/// argv of this process, as the kernel keeps it.
[[nodiscard]] inline std::vector<std::string> own_arguments() {
    const auto all = read_small_file("/proc/self/cmdline");
    std::vector<std::string> argv;
    for (std::size_t at = 0; at < all.size();) {
        const auto end = std::min(all.find('\0', at), all.size());
        argv.push_back(all.substr(at, end - at));
        at = end + 1;
    }
    return argv;
}

/// Another text after every start of the host, the same for all processes and containers on it.
[[nodiscard]] inline std::string boot_id() {
    auto id = read_small_file("/proc/sys/kernel/random/boot_id");
    return id.substr(0, id.find('\n'));
}

} // namespace skein
