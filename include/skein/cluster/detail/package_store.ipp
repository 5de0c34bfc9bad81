// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/package_store.hpp.

#include <skein/cluster/detail/package_files.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace skein::cluster {
namespace detail {

SKEIN_INLINE error no_blob(const sha256_digest& digest, const std::string& folder) {
    return error(errc::not_found, fmt::format("{} is not in {}", to_hex(digest), folder))
        .with_hint("it was removed for others, or never came: send it again");
}

SKEIN_INLINE error no_package(const std::string& id, const std::string& folder) {
    return error(errc::not_found, fmt::format("package {} is not in {}", id, folder))
        .with_hint("send its manifest first");
}

} // namespace detail

SKEIN_INLINE blob_writer::blob_writer(std::unique_ptr<detail::blob_file> of) noexcept
    : file_(std::move(of)) {}
SKEIN_INLINE blob_writer::blob_writer(blob_writer&&) noexcept = default;
SKEIN_INLINE blob_writer& blob_writer::operator=(blob_writer&&) noexcept = default;
SKEIN_INLINE blob_writer::~blob_writer() = default;
SKEIN_INLINE void blob_writer::append(byte_span bytes) { file_->append(bytes); }
SKEIN_INLINE std::uint64_t blob_writer::bytes() const noexcept { return file_->got; }
SKEIN_INLINE void blob_writer::commit() { file_->commit(); }
SKEIN_INLINE void blob_writer::commit(const sha256_digest& as) {
    file_->name.digest = as;
    file_->commit();
}

SKEIN_INLINE package_pin& package_pin::operator=(package_pin&& other) noexcept {
    package_pin taken(std::move(other)); // and at its end lets go of what was held here
    std::swap(in_, taken.in_);
    std::swap(id_, taken.id_);
    return *this;
}

SKEIN_INLINE package_pin::~package_pin() {
    if (!in_) return;
    const std::lock_guard held(in_->mutex);
    const auto at = in_->packages.find(id_);
    if (--at->second.first > 0) return;
    in_->let_go(at->second.second);
    in_->packages.erase(at);
}

SKEIN_INLINE package_store::package_store(std::string folder, std::uint64_t byte_budget,
                                          package_bounds bounds) {
    if (byte_budget == 0)
        throw error(errc::invalid_argument, "a store of packages with room for 0 bytes");
    files_ = std::make_shared<detail::package_files>(std::move(folder), byte_budget, bounds);
}
SKEIN_INLINE package_store::~package_store() = default;

SKEIN_INLINE std::string package_store::keep(const package_manifest& what) {
    return keep_as(what, what.id());
}

/// One that this process has written or checked is not checked again.
SKEIN_INLINE std::string package_store::keep_as(const package_manifest& what, std::string id) {
    detail::kept_name name{true, {}};
    (void)from_hex(id, name.digest);
    {
        const std::lock_guard held(files_->mutex);
        const auto at = files_->all.find(name);
        if (at != files_->all.end() && at->second.is_verified) return files_->touch(name), id;
    }
    if (auto good = check_package(what, files_->bounds); !good) throw error(good.error());
    const auto bytes = wire::encode(what);
    detail::blob_file file(files_, name, bytes.size());
    file.append(bytes);
    file.place();
    return id;
}

SKEIN_INLINE std::optional<package_manifest> package_store::find(const std::string& id) {
    detail::kept_name name{true, {}};
    if (!from_hex(id, name.digest) || files_->size_of(name) == 0) return std::nullopt;
    posix_disk disk;
    const auto bytes = disk.read_whole(files_->path_of(name));
    if (!bytes) {
        if (bytes.error().code() == errc::not_found) files_->forget(name);
        return std::nullopt;
    }
    wire::limits limits;
    limits.max_memory = files_->bounds.memory();
    auto read = wire::decode<package_manifest>(*bytes, limits);
    const bool is_known = files_->is_verified(name);
    if (!read || (!is_known && (!check_package(*read, files_->bounds) || read->id() != id)))
        return files_->forget(name), std::nullopt;
    const std::lock_guard held(files_->mutex);
    if (const auto at = files_->all.find(name); at != files_->all.end())
        at->second.is_verified = true;
    files_->touch(name);
    return std::move(*read);
}

SKEIN_INLINE package_pin package_store::pin(const package_manifest& what) {
    const auto id = what.id();
    detail::kept_name name{true, {}};
    (void)from_hex(id, name.digest);
    const detail::held_names held(*files_, {name}); // others may need its room before it is pinned
    return pin_as(what, keep_as(what, id));
}

SKEIN_INLINE package_pin package_store::pin(const std::string& id) {
    const auto what = find(id);
    if (!what) throw detail::no_package(id, files_->folder);
    return pin_as(*what, id);
}

SKEIN_INLINE package_pin package_store::pin_as(const package_manifest& what,
                                               const std::string& id) {
    auto names = detail::blobs_of(what);
    names.push_back({true, {}});
    (void)from_hex(id, names.back().digest);
    package_pin out;
    const std::lock_guard held(files_->mutex);
    auto at = files_->packages.find(id);
    if (at == files_->packages.end()) {
        if (!files_->all.contains(names.back())) // others have needed its room
            throw detail::no_package(id, files_->folder);
        files_->hold(names);
        at = files_->packages.emplace(id, std::pair(0u, std::move(names))).first;
    }
    ++at->second.first;
    out.in_ = files_;
    out.id_ = id;
    return out;
}

SKEIN_INLINE bool package_store::has(const sha256_digest& digest) {
    return files_->verify({false, digest});
}

SKEIN_INLINE std::vector<sha256_digest> package_store::missing(const package_manifest& of) {
    std::vector<sha256_digest> out;
    for (const auto& name : detail::blobs_of(of))
        if (!files_->verify(name)) out.push_back(name.digest);
    return out;
}

SKEIN_INLINE blob_writer package_store::begin(const sha256_digest& digest, std::uint64_t size) {
    return blob_writer(
        std::make_unique<detail::blob_file>(files_, detail::kept_name{false, digest}, size));
}

SKEIN_INLINE void package_store::put(const sha256_digest& digest, byte_span bytes) {
    auto blob = begin(digest, bytes.size());
    blob.append(bytes);
    blob.commit();
}

SKEIN_INLINE byte_buffer package_store::read(const sha256_digest& digest, std::uint64_t offset,
                                             std::size_t bytes) {
    const detail::kept_name name{false, digest};
    if (!files_->verify(name)) throw detail::no_blob(digest, files_->folder);
    posix_disk disk;
    const auto path = files_->path_of(name);
    auto file = disk.open(path, open_mode::read);
    if (!file && file.error().code() == errc::not_found) {
        files_->forget(name);
        throw detail::no_blob(digest, files_->folder);
    }
    if (!file) throw error(file.error());
    const auto size = (*file)->size();
    if (!size) throw error(size.error());
    if (offset >= *size) return {};
    byte_buffer out(static_cast<std::size_t>(
        std::min<std::uint64_t>(std::min(bytes, most_blob_piece), *size - offset)));
    const auto got = (*file)->read_at(offset, out);
    if (!got) throw error(got.error());
    if (*got != out.size())
        throw error(errc::corrupt, fmt::format("{} became shorter while it was read", path));
    return out;
}

SKEIN_INLINE void package_store::lay_out(const package_manifest& what, const std::string& target,
                                         std::stop_token stop) {
    if (auto good = check_package(what, files_->bounds); !good) throw error(good.error());
    const detail::held_names held(*files_, detail::blobs_of(what));
    for (const auto& digest : missing(what)) throw detail::no_blob(digest, files_->folder);
    const auto open = [&](const package_entry& e) {
        const auto path = files_->path_of({false, e.digest});
        unique_fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
        if (!file) throw errno_error(errno, "read", path);
        ::futimens(file.get(), nullptr); // the order of use for who comes after this process
        return file;
    };
    detail::lay_out_tree(what, target, open, stop);
}

SKEIN_INLINE void package_store::make_durable(const package_manifest& what) {
    auto names = detail::blobs_of(what);
    names.push_back({true, {}});
    (void)from_hex(what.id(), names.back().digest);
    std::erase_if(names, [&](const detail::kept_name& name) {
        const std::lock_guard held(files_->mutex);
        const auto at = files_->all.find(name);
        return at != files_->all.end() && at->second.is_durable;
    });
    std::set<std::string> folders;
    for (const auto& name : names) {
        const auto path = files_->path_of(name);
        const unique_fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
        if (!file && errno == ENOENT) throw detail::no_blob(name.digest, files_->folder);
        if (!file || ::fdatasync(file.get()) != 0) throw errno_error(errno, "sync", path);
        folders.insert(parent_path(path));
    }
    if (!folders.empty()) folders.insert(join_path(files_->folder, "blobs"));
    posix_disk disk;
    for (const auto& each : folders)
        if (auto done = disk.sync_dir(each); !done) throw error(done.error());
    const std::lock_guard held(files_->mutex);
    for (const auto& name : names)
        if (const auto at = files_->all.find(name); at != files_->all.end())
            at->second.is_durable = true;
}

SKEIN_INLINE std::vector<std::uint64_t> package_store::sizes_here(
    const std::vector<std::uint64_t>& of) const {
    const std::set<std::uint64_t> asked(of.begin(), of.end());
    std::set<std::uint64_t> out;
    const std::lock_guard held(files_->mutex);
    for (const auto& [name, file] : files_->all)
        if (!name.is_manifest && asked.contains(file.bytes)) out.insert(file.bytes);
    return {out.begin(), out.end()};
}

SKEIN_INLINE store_usage package_store::usage() const {
    const std::lock_guard held(files_->mutex);
    store_usage out;
    out.bytes = files_->bytes + files_->reserved;
    out.pinned = out.bytes;
    for (const auto& [used, name] : files_->unpinned) out.pinned -= files_->all.at(name).bytes;
    for (const auto& [name, file] : files_->all) ++(name.is_manifest ? out.packages : out.blobs);
    return out;
}

} // namespace skein::cluster
