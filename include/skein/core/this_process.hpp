// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the kernel says of this process and of the host it runs on.
//
//     auto argv = skein::own_arguments();       // {"./train", "--steps", "100"}
//     auto& home = skein::folder_at_start();    // where it was started, wherever it has gone since

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
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

namespace detail {

/// Which folder it was is asked before main, which may leave it.
struct start_place {
    start_place() {
        for (std::size_t bytes = 256; bytes <= (std::size_t{1} << 16); bytes *= 2) {
            path.resize(bytes);
            if (::getcwd(path.data(), bytes) != nullptr) {
                path.resize(path.find('\0'));
                is_known = path.starts_with('/') && ::stat(".", &self) == 0;
                break;
            }
            if (errno != ERANGE) break;
        }
        if (!is_known) path.clear();
    }
    std::string path;
    struct ::stat self{};
    bool is_known = false;
};
inline const start_place started_in;

} // namespace detail

/// The folder in which this program was started: whatever starts it again lets it begin there, so
/// that a relative path means one place for all of its processes. Empty: it could not be known, as
/// where it has been removed.
[[nodiscard]] inline const std::string& folder_at_start() noexcept {
    return detail::started_in.path;
}

/// This process is in another folder than at its start.
[[nodiscard]] inline bool has_left_start_folder() noexcept {
    const auto& from = detail::started_in;
    struct ::stat here{};
    return from.is_known && (::stat(".", &here) != 0 || here.st_dev != from.self.st_dev ||
                             here.st_ino != from.self.st_ino);
}

/// Another text after every start of the host, the same for all processes and containers on it.
[[nodiscard]] inline std::string boot_id() {
    auto id = read_small_file("/proc/sys/kernel/random/boot_id");
    return id.substr(0, id.find('\n'));
}

} // namespace skein
