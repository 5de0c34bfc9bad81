// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/head_log.hpp.

#include <skein/core/crc32c.hpp>
#include <skein/core/error.hpp>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {
namespace detail {

/// magic(8) version(4) crc of both(4)
struct log_header {
    static constexpr std::size_t bytes = 16;
    static constexpr std::string_view magic = "skeinlog";
    static constexpr std::uint32_t version = 1;
};

/// length(4) kind(2) mark(2) crc of the eight before and the body(4), body
struct record_header {
    static constexpr std::size_t bytes = 12;
    static constexpr std::uint16_t mark = 0x7e5a; ///< few other bytes look like a record
};

/// The record at the beginning of the bytes; nothing: there is none.
SKEIN_INLINE std::optional<log_record> read_record(byte_span from, std::uint32_t most) {
    if (from.size() < record_header::bytes) return std::nullopt;
    const auto length = load_le<std::uint32_t>(from.data());
    if (load_le<std::uint16_t>(from.data() + 6) != record_header::mark) return std::nullopt;
    if (length > most || length > from.size() - record_header::bytes) return std::nullopt;
    const auto body = from.subspan(record_header::bytes, length);
    if (load_le<std::uint32_t>(from.data() + 8) != crc32c(body, crc32c(from.first(8))))
        return std::nullopt;
    return log_record{load_le<std::uint16_t>(from.data() + 4), to_buffer(body)};
}

/// Whether a whole record stands anywhere in there. What looks like one and is none costs its
/// length: few are looked at.
SKEIN_INLINE bool has_record(byte_span in, std::uint32_t most) {
    std::size_t looked = 0;
    for (std::size_t at = 0; at + record_header::bytes <= in.size(); ++at) {
        if (load_le<std::uint16_t>(in.data() + at + 6) != record_header::mark) continue;
        if (read_record(in.subspan(at), most)) return true;
        if (++looked == 1000) return true; // no crash leaves that
    }
    return false;
}

SKEIN_INLINE void put_record(byte_buffer& out, const log_record& r) {
    std::array<std::byte, record_header::bytes> head{};
    store_le(head.data(), static_cast<std::uint32_t>(r.body.size()));
    store_le(head.data() + 4, r.kind);
    store_le(head.data() + 6, record_header::mark);
    store_le(head.data() + 8, crc32c(r.body, crc32c(byte_span(head).first(8))));
    append(out, head);
    append(out, r.body);
}

SKEIN_INLINE error no_state(const std::string& what, const error& why) {
    return error(why.code(), fmt::format("{}: {}", what, why.text()))
        .with_hint(why.code() == errc::disk_full
                       ? "free some space there, or name another folder with --state"
                       : "give this user a folder of its own with --state, or mend this one");
}

} // namespace detail

SKEIN_INLINE log_reading read_log(byte_span bytes, const log_bounds& bounds) {
    using detail::log_header;
    log_reading out;
    if (bytes.size() < log_header::bytes || as_text(bytes.first(8)) != log_header::magic ||
        load_le<std::uint32_t>(bytes.data() + 12) != crc32c(bytes.first(12)))
        return out;
    out.is_log = true;
    out.version = load_le<std::uint32_t>(bytes.data() + 8);
    out.whole = log_header::bytes;
    if (out.version != log_header::version) return out;
    while (auto r = detail::read_record(bytes.subspan(out.whole), bounds.most_record)) {
        out.whole += detail::record_header::bytes + r->body.size();
        out.records.push_back(std::move(*r));
    }
    const auto rest = bytes.subspan(out.whole);
    if (rest.size() > 1 && detail::has_record(rest.subspan(1), bounds.most_record))
        out.broken = out.whole;
    return out;
}

SKEIN_INLINE byte_buffer write_log(std::span<const log_record> records) {
    using detail::log_header;
    byte_buffer out = to_buffer(as_bytes(log_header::magic));
    std::array<std::byte, 8> rest{};
    store_le(rest.data(), log_header::version);
    store_le(rest.data() + 4, crc32c(byte_span(rest).first(4), crc32c(out)));
    append(out, rest);
    for (const auto& r : records) detail::put_record(out, r);
    return out;
}

SKEIN_INLINE head_log::head_log(skein::disk& on, std::string folder, log_bounds bounds)
    : disk_(on), folder_(std::move(folder)), bounds_(bounds) {}
SKEIN_INLINE head_log::~head_log() = default;

SKEIN_INLINE std::string head_log::path() const { return join_path(folder_, "head.log"); }

SKEIN_INLINE result<void> head_log::put_aside(std::string why) {
    const auto aside = path() + ".broken";
    auto moved = disk_.rename(path(), aside);
    if (moved) moved = disk_.sync_dir(folder_);
    if (!moved)
        return detail::no_state(
            fmt::format("{} is damaged ({}) and cannot be set aside", path(), why), moved.error());
    set_aside_ = fmt::format("{} is damaged: {}; it is kept as {}", path(), why, aside);
    return {};
}

SKEIN_INLINE result<std::vector<log_record>> head_log::open() {
    file_.reset();
    is_sound_ = false;
    bytes_ = most_there_ = 0;
    if (const auto made = disk_.make_dirs(folder_); !made)
        return detail::no_state(fmt::format("state folder {} cannot be made", folder_),
                                made.error());
    const auto bytes = disk_.read_whole(path(), bounds_.most_bytes);
    if (!bytes && bytes.error().code() == errc::not_found) return std::vector<log_record>();
    if (!bytes && bytes.error().code() == errc::too_large) {
        if (auto put = put_aside(bytes.error().text()); !put) return put.error();
        return std::vector<log_record>();
    }
    if (!bytes)
        return detail::no_state(fmt::format("state folder {} cannot be read", folder_),
                                bytes.error());
    auto read = read_log(*bytes, bounds_);
    if (read.is_log && read.version != detail::log_header::version)
        return error(errc::not_supported,
                     fmt::format("not supported: {} has format {}, this release reads format {}",
                                 path(), read.version, detail::log_header::version))
            .with_hint("start the release of skein that has written it, or name another folder "
                       "with --state");
    if (!read.is_log || read.broken) {
        const auto why = !read.is_log
                             ? std::string("its first 16 bytes are not those of a head's log")
                             : fmt::format("the bytes at offset {} do not fit their checksum, and "
                                           "whole records follow",
                                           *read.broken);
        if (auto put = put_aside(why); !put) return put.error();
        return std::vector<log_record>();
    }
    bytes_ = read.whole;
    most_there_ = bytes->size();
    if (const auto rest = bytes->size() - read.whole; rest != 0)
        cut_off_ = fmt::format("the last {} bytes of {}, from offset {} on, are no whole record",
                               rest, path(), read.whole);
    return std::move(read.records);
}

/// What could not be read again must not be written.
SKEIN_INLINE result<void> head_log::check(std::span<const log_record> records,
                                          std::uint64_t before) const {
    std::uint64_t all = before;
    for (const auto& r : records) {
        all += r.body.size() + detail::record_header::bytes;
        if (r.body.size() > bounds_.most_record)
            return error(errc::too_large,
                         fmt::format("a record of {} bytes for {}, at most {} are taken",
                                     r.body.size(), path(), bounds_.most_record));
    }
    if (all > bounds_.most_bytes)
        return error(errc::too_large,
                     fmt::format("{} would have more than {} bytes", path(), bounds_.most_bytes));
    return {};
}

SKEIN_INLINE result<void> head_log::append(std::span<const log_record> records) {
    if (!is_sound_)
        return error(errc::aborted, path() + " is replaced first: its end is not known");
    if (auto fit = check(records, bytes_); !fit) return fit;
    byte_buffer out;
    for (const auto& r : records) detail::put_record(out, r);
    if (out.empty()) return {};
    is_sound_ = false;                             // until all of it has gone well
    if (auto there = look(); !there) return there; // opening it would make another one
    most_there_ = bytes_ + out.size();
    if (file_ == nullptr) {
        auto opened = disk_.open(path(), open_mode::append);
        if (!opened) return opened.error();
        file_ = std::move(*opened);
    }
    if (auto done = file_->append(out); !done) return done;
    if (auto done = file_->sync(); !done) return done;
    bytes_ += out.size();
    if (auto there = look(); !there) return there;
    is_sound_ = true;
    return {};
}

SKEIN_INLINE result<void> head_log::look() const {
    if (bytes_ == 0) return {}; // nothing was written yet
    const auto there = disk_.status(path());
    if (!there && there.error().code() == errc::not_found)
        return error(errc::not_found, fmt::format("{} has been removed", path()));
    if (!there) return there.error();
    if (there->is_directory || there->bytes < bytes_ || there->bytes > most_there_)
        return error(errc::mismatch,
                     fmt::format("{} is another file than this head has written, of {} bytes, not "
                                 "{}",
                                 path(), there->bytes, bytes_))
            .with_hint("end the other head; then remove that file");
    return {};
}

/// The folder itself may be new, with those above it: their names are durable after a sync of where
/// they stand.
SKEIN_INLINE result<void> head_log::keep_folder() {
    if (folder_is_kept_) return {};
    for (auto at = folder_; at != "." && at != "/"; at = parent_path(at)) {
        const auto done = disk_.sync_dir(parent_path(at));
        if (!done &&
            done.error().code() != errc::permission_denied) // somebody else's: it was there
            return done;
    }
    folder_is_kept_ = true;
    return {};
}

SKEIN_INLINE result<void> head_log::replace(std::span<const log_record> records) {
    if (auto fit = check(records, detail::log_header::bytes); !fit) return fit;
    file_.reset();
    is_sound_ = false;
    if (const auto there = look(); !there && there.error().code() == errc::mismatch) return there;
    const auto out = write_log(records);
    if (auto done = disk_.replace(path(), out); !done) {
        // The new file may be there, or the old one.
        if (bytes_ != 0) bytes_ = std::min<std::uint64_t>(bytes_, out.size());
        most_there_ = std::max<std::uint64_t>(most_there_, out.size());
        return done;
    }
    bytes_ = replaced_bytes_ = most_there_ = out.size();
    if (auto done = keep_folder(); !done) return done;
    is_sound_ = true;
    return {};
}

SKEIN_INLINE bool head_log::wants_replacing() const noexcept {
    return !is_sound_ || bytes_ > bounds_.grown + bounds_.times * replaced_bytes_;
}

} // namespace skein::cluster
