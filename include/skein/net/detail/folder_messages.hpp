// SPDX-License-Identifier: Apache-2.0
#pragma once
// What net/far_disk.hpp asks of net/folder_server.hpp. Paths begin in the folder that is served; ""
// is that folder. A file is named by a number, over its link, from its opening to its closing or the
// end of the link.

#include <skein/core/config.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/disk.hpp>
#include <skein/net/link.hpp>
#include <skein/net/options.hpp>
#include <skein/net/requests.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::net::detail {

/// Opens a file; answered by far_opened.
struct far_open {
    static constexpr std::uint16_t number = 1;
    std::string path;
    open_mode mode = open_mode::read;
};
struct far_opened {
    static constexpr std::uint16_t number = 2;
    std::uint64_t file = 0;  ///< its name
    std::uint64_t bytes = 0; ///< in it
};
/// A number that was asked for, or that it is done.
struct far_number {
    static constexpr std::uint16_t number = 9;
    std::uint64_t value = 0;
};
/// Answered by far_bytes: fewer only at the end of the file.
struct far_read {
    static constexpr std::uint16_t number = 3;
    std::uint64_t file = 0, offset = 0, bytes = 0;
};
struct far_bytes {
    static constexpr std::uint16_t number = 4;
    byte_buffer bytes;
};
/// Answered by far_number.
struct far_write {
    static constexpr std::uint16_t number = 5;
    std::uint64_t file = 0, offset = 0;
    bool is_at_end = false; ///< in place of `offset`
    byte_buffer bytes;
};

/// What else is done with an open file.
enum class far_act : std::uint8_t {
    size,
    truncate, ///< to `value` bytes
    sync,
    close,
    try_lock, ///< gives a file_lock
    is_at,    ///< whether `path` still names it
};
/// Answered by far_number.
struct far_file_act {
    static constexpr std::uint16_t number = 6;
    std::uint64_t file = 0;
    far_act what = far_act::size;
    std::uint64_t value = 0;
    std::string path;
};

/// What is done with names.
enum class far_deed : std::uint8_t {
    rename,
    sync_dir,
    list,
    remove,
    make_dirs,
    free_space,
    status
};
/// Answered by far_names.
struct far_name_deed {
    static constexpr std::uint16_t number = 7;
    far_deed what = far_deed::status;
    std::string path, to; ///< the second: of rename
};
struct far_name {
    std::string name;
    bool is_directory = false;
    std::uint64_t bytes = 0;
};
/// Of list and status; of free_space one with so many bytes.
struct far_names {
    static constexpr std::uint16_t number = 8;
    std::vector<far_name> names;
};

/// Of one read or write.
inline constexpr std::size_t most_far_bytes = std::size_t{1} << 20;
/// Open files of one link.
inline constexpr std::size_t most_far_files = 256;

/// What both ends of such a link say.
[[nodiscard]] inline connection_options far_link(const token& secret, std::string name) {
    connection_options o;
    o.secret = secret;
    o.self.name = std::move(name);
    o.self.purpose = "folder-1";
    o.bounds.max_frame = std::size_t{4} << 20;
    return o;
}

/// A broken link is a process that is gone: what it has locked is free at once.
[[nodiscard]] inline link_options far_link_options() {
    link_options o;
    o.resume = resume_mode::off;
    return o;
}

/// Whether a path stays in the folder that it begins in.
[[nodiscard]] inline bool is_far_path(std::string_view path) noexcept {
    if (path.empty()) return true;
    if (path.size() > 4096 || path.find('\0') != path.npos) return false;
    for (std::size_t begin = 0; begin <= path.size();) {
        const auto end = std::min(path.find('/', begin), path.size());
        const auto part = path.substr(begin, end - begin);
        if (part.empty() || part == "." || part == "..") return false;
        begin = end + 1;
    }
    return true;
}

} // namespace skein::net::detail
