// SPDX-License-Identifier: Apache-2.0
#pragma once
// The index of a folder of classes: a listing as bytes that many processes map.

#include <skein/core/bytes.hpp>
#include <skein/core/result.hpp>
#include <skein/data/detail/folder_listing.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace skein::data::detail {

/// A listing as it stands in the file of an index.
[[nodiscard]] byte_buffer encode_index(const folder_listing& from, std::string_view root);

/// Read-only, thread-safe.
class folder_index {
public:
    struct entry {
        std::string_view folder, name;
        std::uint32_t label = 0;
        std::uint64_t size = 0;
    };

    /// Checks bytes that somebody may have written.
    ///   memory  keeps them alive
    ///   errors  corrupt
    [[nodiscard]] static result<folder_index> parse(byte_span bytes,
                                                    std::shared_ptr<const void> memory);

    /// The index of a folder: the one that is kept, if nothing has changed; else a new one, which
    /// is kept for the next. One process of a host looks a folder up, the others wait for it.
    ///   root     absolute
    ///   keep_in  folder; empty: nothing is kept
    ///   errors   those of list_classes()
    [[nodiscard]] static std::shared_ptr<const folder_index> open(const std::string& root,
                                                                  const std::string& keep_in);

    [[nodiscard]] std::uint64_t size() const noexcept { return files_; }
    [[nodiscard]] entry at(std::uint64_t sample) const noexcept;
    [[nodiscard]] std::vector<std::string> classes() const;
    [[nodiscard]] std::uint64_t class_count() const noexcept { return classes_; }
    /// Of all names, labels and sizes.
    [[nodiscard]] std::uint64_t hash() const noexcept { return hash_; }
    [[nodiscard]] std::string_view root() const noexcept { return root_; }
    /// Whether the folders are as they were when they were read.
    [[nodiscard]] bool is_current() const;

private:
    [[nodiscard]] std::string_view text_at(std::size_t record) const noexcept;

    byte_span bytes_;
    std::shared_ptr<const void> memory_;
    std::uint64_t files_ = 0, folders_ = 0, classes_ = 0, hash_ = 0;
    std::int64_t begun_ = 0;
    std::size_t class_at_ = 0, folder_at_ = 0, file_at_ = 0, text_at_ = 0;
    std::string_view root_;
};

/// The file of an index. Each host has its own: where a home is shared by NFS, an index that another
/// host replaces would be gone from under those who map it (SIGBUS).
[[nodiscard]] std::string index_name(std::string_view root, std::string_view host);

/// Where indexes are kept when nobody says otherwise; empty: nowhere.
[[nodiscard]] std::string default_index_folder();

} // namespace skein::data::detail

#if SKEIN_HEADER_ONLY
#include <skein/data/detail/folder_index.ipp>
#endif
