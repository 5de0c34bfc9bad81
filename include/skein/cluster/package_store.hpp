// SPDX-License-Identifier: Apache-2.0
#pragma once
// Packages on a disk: contents by their digest, kept while there is room.
//
//     package_store kept("/var/lib/skein/packages", std::uint64_t{8} << 30);
//     const auto hold = kept.pin(manifest);                  // checked, kept by its id, and held
//     for (const auto& digest : kept.missing(manifest)) {    // what has to be sent
//         auto blob = kept.begin(digest, size);
//         blob.append(piece);
//         blob.commit();                                     // refused if the digest differs
//     }
//     kept.lay_out(manifest, "/var/lib/skein/jobs/7/files"); // copies, not links
//
// What is not pinned goes, longest unused first, when something new needs its room. Pins end with
// the process: who starts again pins what it still needs before anything is added.
//
// Nothing is synced before make_durable(). What an earlier process has left is hashed when it is
// first asked for, and counts as missing if it does not fit.
//
// Calls block and are safe on several threads at once; run them on threads that may wait.

#include <skein/core/config.hpp>
#include <skein/cluster/package.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/sha256.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

namespace skein::cluster {

namespace detail {
struct package_files;
struct blob_file;
} // namespace detail

/// A blob that is being written. One thread at a time. Destroyed before commit() it leaves nothing.
class blob_writer {
public:
    blob_writer(blob_writer&&) noexcept;
    blob_writer& operator=(blob_writer&&) noexcept;
    ~blob_writer();

    /// Adds bytes at the end.
    ///   errors  too_large: more than begin() was told; disk_full, io: it is of no more use
    void append(byte_span bytes);
    /// How many bytes have come.
    [[nodiscard]] std::uint64_t bytes() const noexcept;
    /// The blob is there.
    ///   errors  mismatch: other bytes than the digest or the size says, and it is gone; io
    void commit();
    /// The same for one that begin() was not told the digest of.
    void commit(const sha256_digest& as);

private:
    friend class package_store;
    explicit blob_writer(std::unique_ptr<detail::blob_file> of) noexcept;
    std::unique_ptr<detail::blob_file> file_;
};

/// As long as it lives nothing of a package is removed. May outlive its store.
class package_pin {
public:
    package_pin() noexcept = default;
    package_pin(package_pin&&) noexcept = default;
    package_pin& operator=(package_pin&& other) noexcept;
    ~package_pin();
    /// The package's id; "" for none.
    [[nodiscard]] const std::string& id() const noexcept { return id_; }

private:
    friend class package_store;
    std::shared_ptr<detail::package_files> in_;
    std::string id_;
};

/// What a store holds.
struct store_usage {
    std::uint64_t bytes = 0;  ///< of blobs and manifests, those being written included
    std::uint64_t pinned = 0; ///< of these, what may not be removed
    std::size_t blobs = 0, packages = 0;
};

/// Blobs and manifests in one folder, one process at a time.
class package_store {
public:
    /// Makes the folder (for its owner alone) where there is none, and takes over what is in it.
    ///   byte_budget  of blobs and manifests together, at least 1
    ///   errors       already_exists: another process has it; permission_denied, disk_full, io
    package_store(std::string folder, std::uint64_t byte_budget, package_bounds bounds = {});
    package_store(const package_store&) = delete;
    package_store& operator=(const package_store&) = delete;
    ~package_store();

    /// Checks a manifest and keeps it by its id, which it gives.
    ///   errors  malformed, too_large: see check_package(); exhausted: all room is pinned;
    ///           disk_full, io
    std::string keep(const package_manifest& what);
    /// A kept manifest; nothing if it is not there, or is damaged.
    [[nodiscard]] std::optional<package_manifest> find(const std::string& id);
    /// keep(), and nothing of the package is removed from then on. Its blobs may come later.
    [[nodiscard]] package_pin pin(const package_manifest& what);
    /// Holds a kept package, whether its blobs have come or not.
    ///   errors  not_found: its manifest is not kept here
    [[nodiscard]] package_pin pin(const std::string& id);

    /// Whether a blob is there, whole. A first time it may be hashed.
    [[nodiscard]] bool has(const sha256_digest& digest);
    /// The blobs of a package that are not there, each once; those of empty files are not needed.
    [[nodiscard]] std::vector<sha256_digest> missing(const package_manifest& of);

    /// Makes room for a blob and begins it. Two that write the same one do not disturb each other.
    ///   errors  exhausted: all room is pinned or being written; disk_full, io
    [[nodiscard]] blob_writer begin(const sha256_digest& digest, std::uint64_t size);
    /// The same for one whose digest is known at its end.
    [[nodiscard]] blob_writer begin(std::uint64_t size) { return begin(sha256_digest{}, size); }
    /// A whole blob at once.
    void put(const sha256_digest& digest, byte_span bytes);
    /// A piece of a blob, at most most_blob_piece; empty behind its end.
    ///   errors  not_found: it is not there (any more); corrupt; io
    [[nodiscard]] byte_buffer read(const sha256_digest& digest, std::uint64_t offset,
                                   std::size_t bytes);

    /// Makes the folder `target` with copies of all files of a package, for its owner alone. It is
    /// made beside its place and renamed when it is whole; nothing is written anywhere else.
    ///   target  absolute or relative; the folder above it is there, it is not
    ///   stop    asked to, it ends with errc::cancelled after some MiB
    ///   errors  already_exists; not_found: a blob is not there, or the folder above;
    ///           corrupt: a blob has changed on the disk; malformed, too_large: see check_package();
    ///           disk_full, permission_denied, io; nothing is left of it
    void lay_out(const package_manifest& what, const std::string& target,
                 std::stop_token stop = {});

    /// Returns when a power failure takes nothing of a package that is here, whole.
    ///   errors  not_found: a file of it is not here; io
    void make_durable(const package_manifest& what);
    /// Those of these sizes of which there is a blob, whatever is in it.
    [[nodiscard]] std::vector<std::uint64_t> sizes_here(const std::vector<std::uint64_t>& of) const;

    [[nodiscard]] store_usage usage() const;

private:
    std::string keep_as(const package_manifest& what, std::string id);
    [[nodiscard]] package_pin pin_as(const package_manifest& what, const std::string& id);

    std::shared_ptr<detail::package_files> files_;
};

} // namespace skein::cluster

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/package_store.ipp>
#endif
