// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of objects/spill.hpp.

#include <skein/core/awaitable.hpp>
#include <skein/core/crc32c.hpp>
#include <skein/core/error.hpp>
#include <skein/core/log.hpp>
#include <skein/core/metric_registry.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/core/units.hpp>
#include <skein/net/offload.hpp>
#include <skein/objects/store_messages.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::objects {

namespace detail {

/// The kinds of file systems that a host of ours has; others are told by their number.
[[nodiscard]] SKEIN_INLINE std::string file_system_name(std::uint64_t magic) {
    switch (magic) {
    case 0xef53: return "ext4";
    case 0x58465342: return "xfs";
    case 0x9123683e: return "btrfs";
    case 0x794c7630: return "overlay";
    case 0x6969: return "nfs";
    case 0x2fc12fc1: return "zfs";
    case 0x01021994: return "tmpfs";
    case 0x858458f6: return "ramfs";
    default: return fmt::format("file system {:#x}", magic);
    }
}

SKEIN_INLINE void count_spilled(std::uint64_t bytes) noexcept {
    static auto& all = metric_registry::process().counter(
        "skein_store_spilled_bytes_total", "Bytes of objects written to files for want of room.");
    all.add(bytes);
}
SKEIN_INLINE void count_read_back(std::uint64_t bytes) noexcept {
    static auto& all = metric_registry::process().counter("skein_store_restored_bytes_total",
                                                          "Bytes of objects read back from files.");
    all.add(bytes);
}

class spill_folder final : public spill_volume {
public:
    explicit spill_folder(std::string path) : path_(std::move(path)), name_(path_) {
        struct statfs info{};
        const auto refuse = [&](std::string why) {
            return error(errc::usage,
                         fmt::format("objects cannot be written to {}: {}", path_, why))
                .with_hint("SKEIN_SPILL=FOLDER names one on a disk; SKEIN_SPILL=0: none");
        };
        if (skein::detail::retry_eintr([&] { return ::statfs(path_.c_str(), &info); }) != 0)
            throw refuse(errno_text(errno));
        const auto magic = static_cast<std::uint64_t>(info.f_type) & 0xffffffff;
        const auto kind = file_system_name(magic);
        if (kind == "tmpfs" || kind == "ramfs")
            throw refuse(fmt::format("it is a {}, so memory itself", kind));
        name_ = fmt::format("{} ({})", path_, kind);
        if (const auto tried = make(); !tried) throw refuse(tried.error().text());
    }
    [[nodiscard]] const std::string& name() const noexcept override { return name_; }

    [[nodiscard]] result<std::unique_ptr<file>> make() override {
        unique_fd made(::open(path_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
        if (!made && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT)) {
            auto named = join_path(path_, "skein-spill-XXXXXX");
            made = unique_fd(::mkostemp(named.data(), O_CLOEXEC));
            if (made) (void)::unlink(named.c_str());
        }
        if (!made) return errno_error(errno, "make a file in", path_);
        // The same file as one of the disk's.
        return posix_disk().open(fmt::format("/proc/self/fd/{}", made.get()), open_mode::write);
    }
    [[nodiscard]] result<room> left() override {
        struct statvfs info{};
        if (skein::detail::retry_eintr([&] { return ::statvfs(path_.c_str(), &info); }) != 0)
            return errno_error(errno, "look at", path_);
        // As df counts it: what root alone may use is no part of the volume.
        const auto used = info.f_blocks - info.f_bfree;
        return room{(used + info.f_bavail) * info.f_frsize, info.f_bavail * info.f_frsize};
    }

private:
    std::string path_, name_;
};

} // namespace detail

SKEIN_INLINE std::unique_ptr<spill_volume> open_spill_folder(const std::string& path) {
    return std::make_unique<detail::spill_folder>(path);
}

SKEIN_INLINE std::unique_ptr<spill_volume> default_spill_volume() {
    if (const char* said = std::getenv("SKEIN_SPILL"); said != nullptr && *said != '\0') {
        if (std::string_view(said) == "0") return nullptr;
        return open_spill_folder(said);
    }
    const char* const own = std::getenv("TMPDIR");
    std::vector<std::string> fit;
    if (own != nullptr && *own != '\0') fit.emplace_back(own);
    fit.emplace_back("/var/tmp");
    std::string why;
    for (const auto& path : fit) {
        try {
            return open_spill_folder(path);
        } catch (const error& e) {
            why = e.text();
        }
    }
    logging::debug("objects", "what finds no room in the store is not written to disk",
                   {{"why", why}});
    return nullptr;
}

/// The file of one object.
struct spill::stored {
    std::unique_ptr<skein::file> file;
    std::uint64_t bytes = 0;
    std::vector<std::uint32_t> sums; ///< of its pieces
};

/// What threads use.
struct spill::shared {
    std::unique_ptr<spill_volume> on;
    std::unique_ptr<net::offload_pool> thread; ///< one: more would make a disk seek

    explicit shared(std::unique_ptr<spill_volume> volume) : on(std::move(volume)) {}

    /// From the first file on.
    [[nodiscard]] net::offload_pool* pool() {
        if (!thread) thread = std::make_unique<net::offload_pool>(1);
        return thread.get();
    }

    [[nodiscard]] error told(const error& why, object_number which, const char* what) const {
        return {why.code(),
                fmt::format("object {} {} {}: {}", which.value(), what, on->name(), why.text())};
    }
    /// A volume that is full stops others than this program, too.
    [[nodiscard]] result<void> check_room(std::uint64_t bytes) const {
        const auto left = on->left();
        if (!left) return left.error();
        if (left->free < bytes || left->free - bytes < left->bytes / 20)
            return error(errc::disk_full,
                         fmt::format("{} of {} are free, and 5 % stay so", binary_bytes(left->free),
                                     binary_bytes(left->bytes)));
        return {};
    }
    [[nodiscard]] result<std::shared_ptr<stored>> write(byte_span all) const {
        if (const auto room = check_room(all.size()); !room) return room.error();
        auto made = on->make();
        if (!made) return made.error();
        auto out = std::make_shared<stored>();
        out->file = std::move(*made);
        out->bytes = all.size();
        for (std::size_t at = 0; at < all.size(); at += file_piece) {
            const auto piece = all.subspan(at, std::min<std::size_t>(file_piece, all.size() - at));
            if (const auto written = out->file->write_at(at, piece); !written)
                return written.error();
            out->sums.push_back(crc32c(piece));
        }
        return out;
    }
    [[nodiscard]] static result<void> read_piece(const stored& from, std::uint64_t piece,
                                                 mut_byte_span into) {
        const auto got = from.file->read_at(piece * file_piece, into);
        if (!got) return got.error();
        if (*got != into.size())
            return error(errc::io, fmt::format("the file ends after {} bytes of {}",
                                               piece * file_piece + *got, from.bytes));
        if (crc32c(into) != from.sums[piece])
            return error(errc::corrupt,
                         fmt::format("wrong checksum of its bytes from {} on", piece * file_piece));
        return {};
    }
};

SKEIN_INLINE spill::spill(std::unique_ptr<spill_volume> on)
    : held_(std::make_shared<shared>(std::move(on))) {}
SKEIN_INLINE spill::~spill() = default;
SKEIN_INLINE const std::string& spill::volume() const noexcept { return held_->on->name(); }

SKEIN_INLINE task<result<void>> spill::write(object_number which, arena memory, extent from) {
    const auto held = held_;
    auto working = net::offload(
        [held, memory = std::move(memory), from]() -> result<std::shared_ptr<stored>> {
            try {
                return held->write(memory.view(from.at, from.bytes));
            } catch (const error& e) { // it cannot be mapped
                return e;
            }
        },
        held->pool());
    auto made = co_await working;
    if (!made) co_return held->told(made.error(), which, "cannot be written to");
    usage_.bytes += from.bytes;
    usage_.written += from.bytes;
    detail::count_spilled(from.bytes);
    files_[which] = std::move(*made);
    co_return result<void>();
}

SKEIN_INLINE task<result<void>> spill::read(object_number which, arena memory, extent to) {
    const auto held = held_;
    const auto from = files_.at(which);
    auto working = net::offload(
        [from, memory = std::move(memory), to]() -> result<void> {
            try {
                const auto place = memory.write(to.at, to.bytes);
                const auto all = place.bytes();
                for (std::uint64_t at = 0; at < to.bytes; at += file_piece)
                    if (auto read = shared::read_piece(
                            *from, at / file_piece,
                            all.subspan(at, std::min<std::size_t>(file_piece, to.bytes - at)));
                        !read)
                        return read;
                return {};
            } catch (const error& e) { // it cannot be mapped
                return e;
            }
        },
        held->pool());
    const auto done = co_await working;
    if (!done) co_return held->told(done.error(), which, "cannot be read back from");
    usage_.read += to.bytes;
    detail::count_read_back(to.bytes);
    co_return result<void>();
}

SKEIN_INLINE task<result<byte_buffer>> spill::read_piece(object_number which, std::uint64_t piece) {
    const auto held = held_;
    const auto found = files_.find(which);
    if (found == files_.end() || piece >= found->second->sums.size())
        co_return error(errc::not_found, fmt::format("object {} has no such piece in a file of {}",
                                                     which.value(), volume()));
    const auto from = found->second;
    auto working = net::offload(
        [from, piece]() -> result<byte_buffer> {
            byte_buffer out;
            out.resize(std::min<std::size_t>(file_piece, from->bytes - piece * file_piece));
            if (const auto read = shared::read_piece(*from, piece, out); !read) return read.error();
            return out;
        },
        held->pool());
    auto got = co_await working;
    if (!got) co_return held->told(got.error(), which, "cannot be read back from");
    usage_.read += got->size();
    detail::count_read_back(got->size());
    co_return std::move(*got);
}

SKEIN_INLINE void spill::drop(object_number which) {
    const auto found = files_.find(which);
    if (found == files_.end()) return;
    usage_.bytes -= found->second->bytes;
    auto gone = std::move(found->second);
    files_.erase(found);
    // The end of a large file takes its time.
    tasks_.spawn(net::offload([gone = std::move(gone)]() mutable { gone.reset(); }, held_->pool()));
}

SKEIN_INLINE task<void> spill::close() {
    auto joined = as_result(shield(tasks_.join()));
    (void)co_await joined;
    files_.clear();
}

} // namespace skein::objects
