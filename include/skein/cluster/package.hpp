// SPDX-License-Identifier: Apache-2.0
#pragma once
// The files of a job by content: which paths there are, and the SHA-256 of what is in them.
//
//     const package_manifest files = scan_folder(".");       // cluster/package_scan.hpp
//     const std::string id = files.id();                     // 64 hexadecimal digits
//     auto got = check_package(from_a_peer);                 // before anything is done with it
//     if (!got) return got.error();
//
// A manifest is small and travels as a message; the contents ("blobs") travel alone, each once,
// and are kept by their digest (cluster/package_store.hpp).

#include <skein/core/config.hpp>
#include <skein/core/result.hpp>
#include <skein/core/sha256.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace skein::cluster {

/// The most bytes of a file that travel in one piece: what package_store::read() gives at once, and
/// blob_writer::append() needs to take.
inline constexpr std::size_t most_blob_piece = std::size_t{1} << 20;

/// What stands at a path.
enum class entry_kind : std::uint8_t {
    file = 0,
    link = 1,   ///< a symbolic link
    folder = 2, ///< with nothing of the package in it; others are made for what is in them
};

/// One path of a package.
struct package_entry {
    std::string path;         ///< relative to the folder: "data/words.txt"
    std::uint8_t kind = 0;    ///< an entry_kind
    std::uint32_t mode = 0;   ///< permission bits, 0777 at most; of a link 0
    std::uint64_t size = 0;   ///< bytes of a file, else 0
    sha256_digest digest{};   ///< of a file's bytes, else zeros
    std::string link_to = {}; ///< where a link points, relative to its own folder

    friend bool operator==(const package_entry&, const package_entry&) = default;
};

/// All that a package holds, ordered by path_less().
struct package_manifest {
    std::vector<package_entry> entries;

    /// Its name: SHA-256 of its entries in a form of their own, 64 lower-case digits. The same
    /// files have the same one on every host and in every release.
    [[nodiscard]] std::string id() const;
    /// Bytes of all files together.
    [[nodiscard]] std::uint64_t bytes() const noexcept;

    friend bool operator==(const package_manifest&, const package_manifest&) = default;
};

/// How much one package may hold.
struct package_bounds {
    std::size_t entries = 100'000;                  ///< and as many folders for them
    std::uint64_t bytes = std::uint64_t{1} << 30;   ///< of all files together
    std::size_t path_bytes = 4096;                  ///< of one path or link
    std::size_t name_bytes = 255;                   ///< between two slashes
    std::size_t depth = 100;                        ///< names of one path
    std::size_t text_bytes = std::size_t{32} << 20; ///< of all paths and links together
    /// A decoder's bound for the entries in memory; text is bounded by what arrives.
    [[nodiscard]] std::size_t memory() const noexcept { return entries * sizeof(package_entry); }
};

/// The order of paths: name by name, so that what is in a folder follows it at once.
[[nodiscard]] bool path_less(std::string_view a, std::string_view b) noexcept;

/// Whether such a path may stand in a package.
///   errors  malformed: it is empty, absolute, has "..", ".", an empty name or a zero byte;
///           too_large: longer or deeper than the bounds say
[[nodiscard]] result<void> check_package_path(std::string_view path,
                                              const package_bounds& bounds = {});

/// Whether a link at `path` may point there: relative, and nowhere out of the folder whatever the
/// other links of a package are. So ".." stands before names alone.
///   errors  malformed, too_large
[[nodiscard]] result<void> check_package_link(std::string_view path, std::string_view link_to,
                                              const package_bounds& bounds = {});

/// Whether a manifest from outside can be laid out: its paths are in order and in the folder, none
/// comes twice or lies below a file or a link, and all is within the bounds.
///   cost    linear in its text
///   errors  malformed: the text names the entry; too_large
[[nodiscard]] result<void> check_package(const package_manifest& what,
                                         const package_bounds& bounds = {});

} // namespace skein::cluster

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/package.ipp>
#endif
