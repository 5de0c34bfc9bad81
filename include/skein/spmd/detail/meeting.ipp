// SPDX-License-Identifier: Apache-2.0
#pragma once
// The token file and the addresses of spmd/meeting.hpp.

#include <skein/core/error.hpp>
#include <skein/core/file_limit.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/random.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/spmd/detail/token_file.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

#include <fmt/format.h>

namespace skein::spmd {

SKEIN_INLINE bool is_supervised(const variable_reader& read) {
    return read(group_variable).has_value() && read("SKEIN_RANK").has_value();
}

SKEIN_INLINE net::address meeting_point(const launch_environment& where,
                                        const variable_reader& read) {
    if (const auto given = read(group_variable)) return net::address::parse(*given).value();
    const bool one_host = where.local_size == where.world_size;
    if (where.master_port <= 0 || where.master_port > 65535) {
        throw error(errc::invalid_argument, fmt::format("{} launch: no usable port for rank 0 ({})",
                                                        where.source, where.master_port))
            .with_hint("set SKEIN_MASTER_PORT to a free port, the same for all ranks");
    }
    if (one_host)
        return net::address::tcp(net::own_loopback(),
                                 static_cast<std::uint16_t>(where.master_port));
    if (where.master_host.empty()) {
        throw error(errc::invalid_argument,
                    fmt::format("{} launch over several hosts, but nobody says where rank 0 is",
                                where.source))
            .with_hint("set SKEIN_MASTER_HOST to the host of rank 0, the same for all ranks");
    }
    return net::address::tcp(where.master_host, static_cast<std::uint16_t>(where.master_port));
}

SKEIN_INLINE net::address listening_point(const launch_environment& where,
                                          const variable_reader& read) {
    auto at = meeting_point(where, read);
    if (!at.is_loopback()) at.host = "*"; // whichever of IPv6 and IPv4 the others come by
    return at;
}

namespace detail {

SKEIN_INLINE std::string read_token_file(const std::string& path) {
    // A pipe in its place must not make us wait for a writer.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        const auto code = errno == ENOENT   ? errc::not_found
                          : errno == EACCES ? errc::permission_denied
                                            : errc::io;
        throw error(code, fmt::format("open token file {}: {}", path, std::strerror(errno)));
    }
    const unique_fd file(fd);
    struct stat info{};
    if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        throw error(errc::invalid_argument, fmt::format("token file {} is no regular file", path));
    }
    char text[256];
    const auto n = ::read(fd, text, sizeof text);
    if ((info.st_mode & 077) != 0) {
        throw error(errc::permission_denied,
                    fmt::format("token file {} can be read by others (mode {:o})", path,
                                info.st_mode & 0777))
            .with_hint(fmt::format(
                "chmod 600 {}; if others may have read it, delete it: a new one is made", path));
    }
    return std::string(text, n > 0 ? static_cast<std::size_t>(n) : 0);
}

SKEIN_INLINE bool make_token_file(const std::string& path, const std::string& content) {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    const auto draft = fmt::format("{}.{}.{:x}", path, ::getpid(), system_random().next());
    const int fd = ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        throw errno_error(errno, "make token file", path)
            .with_hint("set SKEIN_TOKEN or SKEIN_TOKEN_FILE instead");
    }
    const auto text = (content.empty() ? net::token::generate().to_hex() : content) + "\n";
    errno = 0;
    const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    // link() is the atomic "create with content": exactly one of several ranks succeeds.
    const bool linked = written && ::link(draft.c_str(), path.c_str()) == 0;
    const int why = errno;
    ::close(fd);
    ::unlink(draft.c_str());
    if (linked || why == EEXIST) return linked;
    throw error(errc::io, fmt::format("make token file {}: {}", path,
                                      why != 0 ? errno_text(why) : "the disk is full"))
        .with_hint("set SKEIN_TOKEN or SKEIN_TOKEN_FILE instead");
}

SKEIN_INLINE std::string own_token_file(const variable_reader& read) {
    if (const auto config = read("XDG_CONFIG_HOME"); config && !config->empty())
        return *config + "/skein/token";
    const auto home = read("HOME");
    return home && !home->empty() ? *home + "/.config/skein/token" : std::string();
}

/// A key does as well as a token, since the ranks of a job have the same one: what it opens at a
/// head means nothing to a group.
[[nodiscard]] inline result<net::token> read_secret(std::string_view text) {
    auto key = net::token::from_text(text);
    if (!key) return key.error();
    return net::token::of_bytes({}, key->bytes());
}

} // namespace detail

SKEIN_INLINE net::token group_token(const variable_reader& read) {
    if (const auto given = read(token_variable)) return detail::read_secret(*given).value();
    std::string path;
    if (const auto file = read("SKEIN_TOKEN_FILE")) {
        path = *file;
        if (!std::filesystem::exists(path)) detail::make_token_file(path);
        return detail::read_secret(detail::read_token_file(path)).value();
    }
    path = detail::own_token_file(read);
    if (path.empty()) {
        throw error(errc::not_found,
                    "no token for this world: neither SKEIN_TOKEN, SKEIN_TOKEN_FILE nor HOME "
                    "is set")
            .with_hint("set SKEIN_TOKEN to the same 64 hexadecimal digits for all ranks");
    }
    if (!std::filesystem::exists(path)) detail::make_token_file(path);
    auto secret = detail::read_secret(detail::read_token_file(path));
    if (!secret) {
        throw error(errc::invalid_argument,
                    fmt::format("token file {}: {}", path, secret.error().text()))
            .with_hint("delete it: a new one is made on the next run");
    }
    return *secret;
}

} // namespace skein::spmd
