// SPDX-License-Identifier: Apache-2.0
#pragma once
// image_folder: pictures in a folder for each class, as the source of a pipeline.
//
//     // pictures/cat/1.jpg, pictures/cat/2.png, pictures/dog/1.jpg: cat is 0, dog is 1
//     sample decode(const data::folder_file& f);              // f.content, f.label
//     auto train = data::image_folder("pictures") | data::map<&decode>() | data::shuffle();
//
// Classes and numbers of samples are those of torchvision's ImageFolder. What is in the folder is
// looked up once per host and user and kept in an index, which all processes map; it is made again
// when a folder in it has changed.

#include <skein/core/option_count.hpp>
#include <skein/data/image.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace skein::data {

namespace detail {
class folder_index;
} // namespace detail

/// Where a file of a folder is: what a helper is told.
struct folder_place {
    std::string path; ///< below the folder
    std::int64_t label = 0;
    std::uint64_t size = 0; ///< bytes, when the folder was looked up

    /// For messages about the sample.
    [[nodiscard]] const std::string& name() const noexcept { return path; }
};

/// A file, whole, as it is in the folder.
struct folder_file {
    bytes content; ///< in the current arena
    std::int64_t label = 0;
};

/// Reads files of a folder; on any host that has it under the same name.
struct folder_reader {
    std::string root; ///< absolute
    std::uint64_t most = 0;

    ///   errors  not_found, permission_denied, io; mismatch: the file has another size than when
    ///           the folder was looked up; too_large; not_supported: no file
    [[nodiscard]] folder_file read(const folder_place& at) const;
};

struct folder_options {
    /// Where indexes are kept; empty: XDG_CACHE_HOME or ~/.cache, in skein. Where it cannot be
    /// written the folder is looked up by each process.
    std::string index_folder{};
    option_count most_bytes = std::uint64_t{256} << 20; ///< of one file
};

/// The files of a folder with names that end in .jpg, .jpeg, .png, .ppm, .bmp, .pgm, .tif, .tiff or
/// .webp, in any case: sorted, class by class. Links are followed. Copies share the index.
class image_folder {
public:
    ///   errors  not_found: no such folder, no classes, or one without pictures; invalid_argument:
    ///           its folders are train, val or test, or hidden ones hold pictures;
    ///           permission_denied, io
    explicit image_folder(const std::string& folder, const folder_options& how = {});

    [[nodiscard]] std::uint64_t size() const noexcept;
    [[nodiscard]] folder_place locate(std::uint64_t sample) const;
    [[nodiscard]] folder_reader reader() const { return {root_, most_}; }
    /// Names of the folders, sorted: a label is an index into them.
    [[nodiscard]] std::vector<std::string> classes() const;
    /// Files, classes, and a hash of all names and sizes; not where they are.
    [[nodiscard]] std::string describe() const;

private:
    std::string root_;
    std::uint64_t most_;
    std::shared_ptr<const detail::folder_index> index_;
};

} // namespace skein::data

#if SKEIN_HEADER_ONLY
#include <skein/data/detail/folder.ipp>
#endif
