// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a disk does in several calls: whole files, replacing one, removing a tree.

#include <fmt/core.h>

namespace skein {

SKEIN_INLINE result<byte_buffer> disk::read_whole(const std::string& path,
                                                  std::uint64_t max_bytes) {
    auto opened = open(path, open_mode::read);
    if (!opened) return opened.error();
    file& from = **opened;
    const auto bytes = from.size();
    if (!bytes) return bytes.error();
    if (*bytes > max_bytes)
        return error(errc::too_large, fmt::format("read {}: {} bytes are more than the limit of {}",
                                                  path, *bytes, max_bytes));
    byte_buffer content(static_cast<std::size_t>(*bytes));
    const auto got = from.read_at(0, content);
    if (!got) return got.error();
    content.resize(*got);
    return content;
}

SKEIN_INLINE result<void> disk::write_whole(const std::string& path, byte_span bytes) {
    auto opened = open(path, open_mode::write);
    if (!opened) return opened.error();
    file& to = **opened;
    if (auto done = to.write_at(0, bytes); !done) return done;
    if (auto done = to.sync(); !done) return done;
    return to.close();
}

SKEIN_INLINE result<void> disk::replace(const std::string& path, byte_span bytes) {
    const std::string temporary = path + ".tmp";
    auto done = write_whole(temporary, bytes);
    if (done) done = rename(temporary, path);
    if (!done) {
        (void)remove(temporary);
        return done;
    }
    return sync_dir(parent_path(path));
}

SKEIN_INLINE result<void> disk::remove_tree(const std::string& path) {
    // Files, empty folders and links (status() would follow them) go at once.
    auto removed = remove(path);
    if (removed || removed.error().code() == errc::not_found) return {};
    if (removed.error().code() == errc::permission_denied) return removed;
    const auto what = status(path);
    if (!what || !what->is_directory) return removed;
    const auto inside = list(path);
    if (!inside) return inside.error();
    for (const auto& entry : *inside) {
        const auto child = join_path(path, entry.name);
        if (auto done = entry.is_directory ? remove_tree(child) : remove(child); !done) return done;
    }
    return remove(path);
}

} // namespace skein
