// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is in a folder of classes: names, in the order in which samples are numbered.

#include <skein/core/config.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace skein::data::detail {

/// What tells that the names in a folder are still those that were read.
struct folder_stamp {
    std::uint64_t device = 0, inode = 0;
    std::int64_t modified = 0, changed = 0; ///< nanoseconds since 1970, by its file system

    friend bool operator==(const folder_stamp&, const folder_stamp&) = default;
};

struct folder_listing {
    struct folder {
        std::string path; ///< below the root; empty: the root
        std::uint32_t label = 0;
        folder_stamp stamp{};
    };
    struct file {
        std::uint32_t folder = 0; ///< into folders
        std::string name;
        std::uint64_t size = 0;
    };
    std::int64_t begun = 0;           ///< milliseconds since 1970, before the first folder was read
    std::vector<std::string> classes; ///< sorted
    std::vector<folder> folders;      ///< the root first
    std::vector<file> files;          ///< by number of sample
};

/// Looks a folder up.
///   root    absolute
///   errors  as image_folder's
[[nodiscard]] folder_listing list_classes(const std::string& root);

/// The stamp of a folder now; false: it is not there.
[[nodiscard]] bool stamp_of(const std::string& path, folder_stamp& into) noexcept;

} // namespace skein::data::detail

#if SKEIN_HEADER_ONLY
#include <skein/data/detail/folder_listing.ipp>
#endif
