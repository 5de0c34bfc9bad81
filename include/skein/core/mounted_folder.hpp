// SPDX-License-Identifier: Apache-2.0
#pragma once
// A folder of another disk at a path of this process, as long as the object lives: whoever uses
// posix_disk finds it there, and need not know.
//
//     net::far_disk there(...);                              // a folder of another host
//     const mounted_folder here("/data/job/runs", "/other/job/runs", there);
//     posix_disk().read_whole("/data/job/runs/gpt/config.json");   // asks `there`
//
// One at a time. Paths are compared as they are written, links in them are not followed.

#include <skein/core/config.hpp>
#include <skein/core/disk.hpp>

#include <string>

namespace skein {

namespace detail {

/// A path as it is written: absolute, without ".", "..", empty names and a slash at the end.
[[nodiscard]] std::string absolute_path(const std::string& path);

} // namespace detail

/// Made before other threads use files, and ends after they have.
class mounted_folder {
public:
    ///   path   absolute; the disk is asked by paths that begin with it
    ///   alias  absolute: another name of the same folder, as this process would write it; may be
    ///          empty
    ///   there  must outlive it
    ///   errors  already_exists: there is another one
    mounted_folder(std::string path, std::string alias, disk& there);
    mounted_folder(const mounted_folder&) = delete;
    mounted_folder& operator=(const mounted_folder&) = delete;
    ~mounted_folder();

    /// The disk of a path; nullptr: it is this host's.
    [[nodiscard]] static disk* of(const std::string& path);
    /// Whether the folder is somewhere below a path.
    [[nodiscard]] static bool is_below(const std::string& path);
    /// A path of the alias as one of the folder; others as they are.
    [[nodiscard]] static std::string name_of(const std::string& path);

private:
    std::string path_, alias_;
    disk& there_;
};

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/core/detail/mounted_folder.ipp>
#endif
