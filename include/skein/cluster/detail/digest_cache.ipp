// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/digest_cache.hpp.
//
// The file: "skein digests 1\n", records of 76 bytes (five numbers of 8 bytes, the digest, the day),
// ordered, and the SHA-256 of all before.

#include <skein/core/disk.hpp>
#include <skein/core/file_beside.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/unique_fd.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

namespace skein::cluster {

namespace detail {

inline constexpr std::string_view digest_cache_begins = "skein digests 1\n";
inline constexpr std::size_t digest_record = 5 * 8 + 32 + 4;

template <class Number>
void put_number(byte_buffer& to, Number value) {
    for (std::size_t i = 0; i < sizeof value; ++i)
        to.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i)));
}

template <class Number>
[[nodiscard]] Number take_number(byte_span& from) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(Number); ++i)
        value |= std::to_integer<std::uint64_t>(from[i]) << (8 * i);
    from = from.subspan(sizeof(Number));
    return static_cast<Number>(value);
}

} // namespace detail

SKEIN_INLINE file_identity file_identity::of(const struct stat& is) noexcept {
    const auto ns = [](const timespec& t) {
        return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
    };
    return {static_cast<std::uint64_t>(is.st_dev), static_cast<std::uint64_t>(is.st_ino),
            static_cast<std::uint64_t>(is.st_size), ns(is.st_mtim), ns(is.st_ctim)};
}

SKEIN_INLINE std::string digest_cache::own_path() {
    const char* const cache = std::getenv("XDG_CACHE_HOME");
    const char* const home = std::getenv("HOME");
    if (cache != nullptr && *cache == '/') return std::string(cache) + "/skein/digests";
    if (home != nullptr && *home == '/') return std::string(home) + "/.cache/skein/digests";
    return {};
}

SKEIN_INLINE std::int64_t digest_cache::now() noexcept {
    timespec t{};
    ::clock_gettime(CLOCK_REALTIME, &t);
    return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

SKEIN_INLINE digest_cache::digest_cache(std::string path) : path_(std::move(path)) {
    today_ = static_cast<std::uint32_t>(now() / 1'000'000'000 / 86'400);
    if (path_.empty()) return;
    const unique_fd file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat is{};
    constexpr auto most = static_cast<off_t>(detail::digest_cache_begins.size() +
                                             most_files * detail::digest_record + 32);
    if (!file || ::fstat(file.get(), &is) != 0 || !S_ISREG(is.st_mode) ||
        is.st_uid != ::geteuid() || (is.st_mode & 022) != 0 || is.st_size > most)
        return;
    byte_buffer bytes(static_cast<std::size_t>(is.st_size));
    const auto n = skein::detail::retry_eintr(
        [&] { return ::pread(file.get(), bytes.data(), bytes.size(), 0); });
    if (n != static_cast<ssize_t>(bytes.size())) return;
    if (auto found = read(bytes)) all_ = std::move(*found);
}

SKEIN_INLINE std::optional<std::map<file_identity, digest_cache::known>> digest_cache::read(
    byte_span bytes) {
    const auto begin = as_bytes(detail::digest_cache_begins);
    const std::size_t rest = begin.size() + sizeof(sha256_digest);
    if (bytes.size() < rest || (bytes.size() - rest) % detail::digest_record != 0 ||
        !std::equal(begin.begin(), begin.end(), bytes.begin()))
        return std::nullopt;
    const auto body = bytes.first(bytes.size() - sizeof(sha256_digest));
    const auto sum = sha256_of(body);
    if (std::memcmp(sum.data(), bytes.data() + body.size(), sum.size()) != 0) return std::nullopt;
    std::map<file_identity, known> out;
    for (auto left = body.subspan(begin.size()); !left.empty();) {
        file_identity of;
        known what;
        for (auto* number : {&of.device, &of.inode, &of.size})
            *number = detail::take_number<std::uint64_t>(left);
        for (auto* number : {&of.modified, &of.changed})
            *number = detail::take_number<std::int64_t>(left);
        std::memcpy(what.digest.data(), left.data(), what.digest.size());
        left = left.subspan(what.digest.size());
        what.day = detail::take_number<std::uint32_t>(left);
        out.emplace_hint(out.end(), of, what);
    }
    return out;
}

SKEIN_INLINE byte_buffer digest_cache::written() const {
    byte_buffer out;
    const auto begin = as_bytes(detail::digest_cache_begins);
    out.reserve(begin.size() + all_.size() * detail::digest_record + sizeof(sha256_digest));
    out.assign(begin.begin(), begin.end());
    for (const auto& [of, what] : all_) {
        for (const auto number : {of.device, of.inode, of.size}) detail::put_number(out, number);
        for (const auto number : {of.modified, of.changed}) detail::put_number(out, number);
        const auto digest = std::as_bytes(std::span(what.digest));
        out.insert(out.end(), digest.begin(), digest.end());
        detail::put_number(out, what.day);
    }
    const auto sum = sha256_of(out);
    const auto end = std::as_bytes(std::span(sum));
    out.insert(out.end(), end.begin(), end.end());
    return out;
}

SKEIN_INLINE std::optional<sha256_digest> digest_cache::find(const struct stat& is) {
    const auto at = all_.find(file_identity::of(is));
    if (at == all_.end()) return std::nullopt;
    if (at->second.day != today_) has_news_ = true;
    at->second.day = today_;
    return at->second.digest;
}

SKEIN_INLINE void digest_cache::learn(const struct stat& is, const sha256_digest& digest,
                                      std::int64_t read_at) {
    const auto of = file_identity::of(is);
    const auto newest = std::max(of.modified, of.changed);
    if (newest > read_at || read_at - newest < settled_after) return;
    all_[of] = {digest, today_};
    has_news_ = true;
}

SKEIN_INLINE bool digest_cache::save() {
    if (!has_news_ || path_.empty()) return true;
    if (all_.size() > most_files) {
        std::vector<std::pair<std::uint32_t, file_identity>> order;
        order.reserve(all_.size());
        for (const auto& [of, what] : all_) order.emplace_back(what.day, of);
        std::sort(order.begin(), order.end());
        for (std::size_t i = 0; i < order.size() - most_files; ++i) all_.erase(order[i].second);
    }
    posix_disk disk;
    if (!disk.make_dirs(parent_path(path_))) return false;
    file_beside fresh(fmt::format("{}.{}", path_, ::getpid()), 0600, left_over::removed);
    if (!fresh || !fresh.append(written()) || !fresh.take_place(path_)) return false;
    has_news_ = false;
    return true;
}

} // namespace skein::cluster
