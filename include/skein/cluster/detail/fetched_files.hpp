// SPDX-License-Identifier: Apache-2.0
#pragma once
// Files of a manifest that come piece by piece into a folder that may have some of them: which are
// there already, and where the next piece of one goes.
//
//     fetched_folder to("out");                        // blocks, as all of it does
//     if (to.look_at(entry) == place_is::other) ...    // a file that differs
//     auto file = to.begin(entry);                     // a part that is there is taken over
//     file.append(piece);
//     file.commit();                                   // refused if the digest differs
//
// Every name is reached from the open folder that it is in, and none may be a link.

#include <skein/core/config.hpp>
#include <skein/cluster/package.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/sha256.hpp>
#include <skein/core/unique_fd.hpp>

#include <cstdint>
#include <string>

namespace skein::cluster::detail {

/// What is at the path of a file that is to be fetched.
enum class place_is : std::uint8_t {
    free,  ///< nothing
    whole, ///< the file
    other, ///< a file with other bytes
};

/// A file that is coming. One thread at a time.
class fetched_file {
public:
    /// How many bytes are there.
    [[nodiscard]] std::uint64_t bytes() const noexcept { return got_; }
    ///   errors  disk_full, io, too_large
    void append(byte_span bytes);
    /// It is in its place.
    ///   errors  mismatch: other bytes than the digest says, and the part is gone; io
    void commit();
    /// It does not come: nothing is left of it.
    void drop() noexcept;

private:
    friend class fetched_folder;
    fetched_file() = default;

    unique_fd in_, file_;
    std::string name_, part_, shown_;
    package_entry entry_;
    std::uint64_t got_ = 0;
    sha256 hash_;
};

/// The folder that they come into.
class fetched_folder {
public:
    /// Makes it, if it is not there.
    ///   errors  not_found: the folder above; io, permission_denied
    explicit fetched_folder(std::string path);

    ///   errors  already_exists: a link or a folder is in the way; io
    [[nodiscard]] place_is look_at(const package_entry& what) const;
    /// Makes the folders on the way. What an earlier one has left of it is read first.
    ///   errors  already_exists: a link or a file is in the way; disk_full, io
    [[nodiscard]] fetched_file begin(const package_entry& what) const;

private:
    [[nodiscard]] unique_fd folder_of(const std::string& path, bool makes) const;

    std::string path_;
    unique_fd root_;
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/fetched_files.ipp>
#endif
