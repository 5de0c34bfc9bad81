// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a package_store knows of the files in its folder, and how it finds room in it.

#include <skein/core/config.hpp>
#include <skein/cluster/package.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/file_beside.hpp>
#include <skein/core/sha256.hpp>
#include <skein/core/unique_fd.hpp>

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace skein::cluster::detail {

/// A file of a store: a blob, or the manifest whose id that is.
struct kept_name {
    bool is_manifest = false;
    sha256_digest digest{};
    friend bool operator==(const kept_name&, const kept_name&) = default;
};

struct hash_of_name {
    std::size_t operator()(const kept_name& n) const noexcept {
        std::size_t out = 0; // a digest is as good a hash as any
        std::memcpy(&out, n.digest.data(), sizeof out);
        return out ^ static_cast<std::size_t>(n.is_manifest);
    }
};

struct kept_file {
    std::uint64_t bytes = 0;
    std::uint64_t used = 0;   ///< its place in package_files::unpinned; 0: it is pinned
    bool is_verified = false; ///< this process has written or hashed it
    bool is_durable = false;  ///< and synced
};

/// The state of one store. Members that say so are called with `mutex` held.
///
/// A file that is there and not pinned is in `unpinned`, the longest unused first; one that is
/// pinned is not. Pins are counted by name, also of files that have not come yet.
struct package_files {
    package_files(std::string in, std::uint64_t byte_budget, const package_bounds& at_most);

    [[nodiscard]] std::string path_of(const kept_name& name) const;
    void take_over(); ///< what an earlier process has left
    void add(const kept_name& name, std::uint64_t size, bool is_verified); ///< held
    void drop(const kept_name& name) noexcept;                             ///< held; the file too
    void touch(const kept_name& name);                                     ///< held
    void hold(const std::vector<kept_name>& names);                        ///< held
    void let_go(const std::vector<kept_name>& names) noexcept;             ///< held
    void reserve(std::uint64_t size);                                      ///< held
    /// Whether the file is there, whole: hashed if this process has not seen it. Not held.
    [[nodiscard]] bool verify(const kept_name& name);
    [[nodiscard]] bool is_verified(const kept_name& name) const; ///< not held
    [[nodiscard]] std::uint64_t size_of(const kept_name& name);  ///< not held; 0: it is not there
    void forget(const kept_name& name);                          ///< not held: it is damaged
    void store(file_beside& written, const kept_name& name, std::uint64_t size);
    [[nodiscard]] std::string temporary_path();

    const std::string folder;
    const std::uint64_t budget;
    const package_bounds bounds;
    unique_fd lock;

    mutable std::mutex mutex;
    std::unordered_map<kept_name, kept_file, hash_of_name> all;
    std::map<std::uint64_t, kept_name> unpinned;
    std::unordered_map<kept_name, std::uint32_t, hash_of_name> pins;
    std::map<std::string, std::pair<std::uint32_t, std::vector<kept_name>>> packages; ///< pinned
    std::uint64_t bytes = 0, reserved = 0, uses = 0, temporaries = 0;
};

/// Pins names as long as it lives.
class held_names {
public:
    held_names(package_files& in, std::vector<kept_name> names);
    held_names(const held_names&) = delete;
    held_names& operator=(const held_names&) = delete;
    ~held_names();

private:
    package_files& in_;
    std::vector<kept_name> names_;
};

/// A file that is being written beside its place.
struct blob_file {
    blob_file(std::shared_ptr<package_files> of, const kept_name& as, std::uint64_t bytes);
    blob_file(const blob_file&) = delete;
    blob_file& operator=(const blob_file&) = delete;
    ~blob_file();
    void append(byte_span bytes);
    void commit();
    void place(); ///< what has come is whole

    std::shared_ptr<package_files> in;
    kept_name name;
    std::uint64_t size = 0, got = 0;
    std::optional<file_beside> file; ///< until it is in its place
    sha256 hash;
    bool is_reserved = false, has_failed = false;
};

/// The blobs that a package needs, each once and in order.
[[nodiscard]] std::vector<kept_name> blobs_of(const package_manifest& of);

/// Makes the folder `target` beside its place, and renames it when it is whole.
///   open  gives the content of an entry
void lay_out_tree(const package_manifest& what, const std::string& target,
                  const std::function<unique_fd(const package_entry&)>& open,
                  const std::stop_token& stop);

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/package_files.ipp>
#include <skein/cluster/detail/package_layout.ipp>
#endif
