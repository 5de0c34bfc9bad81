// SPDX-License-Identifier: Apache-2.0
#pragma once
// Digests of files that were read before: a file that its system says is the same is not read again.
//
//     digest_cache known(digest_cache::own_path());        // of this user; "": nothing is known
//     if (auto digest = known.find(status)) ...            // inode, size, times of content and inode
//     else known.learn(status, hashed, began);
//     known.save();
//
// The file that it is kept in is one checked block: one that is cut, damaged, of another user or of
// another release counts as empty, and is replaced by the next save(). Two that save at a time do
// not disturb each other; one of them has the last word.
//
// A file that was changed within two seconds before it was read is not learned: it could change
// again within the same tick of its system's clock, and would look the same.

#include <skein/core/config.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/sha256.hpp>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/stat.h>

namespace skein::cluster {

/// What a system says of a file, as far as a change of its content changes it.
struct file_identity {
    std::uint64_t device = 0, inode = 0, size = 0;
    std::int64_t modified = 0, changed = 0; ///< nanoseconds since 1970: content; content or inode
    friend auto operator<=>(const file_identity&, const file_identity&) = default;

    [[nodiscard]] static file_identity of(const struct stat& is) noexcept;
};

/// Not safe on several threads at once. Blocks where it reads and writes its file.
class digest_cache {
public:
    static constexpr std::size_t most_files = 200'000; ///< then those unused for longest go
    static constexpr std::int64_t settled_after = 2'000'000'000; ///< nanoseconds

    /// That of this user, below XDG_CACHE_HOME or ~/.cache; "": neither is set.
    [[nodiscard]] static std::string own_path();

    /// Reads the file, if there is one that fits.
    explicit digest_cache(std::string path);
    digest_cache(const digest_cache&) = delete;
    digest_cache& operator=(const digest_cache&) = delete;

    [[nodiscard]] std::optional<sha256_digest> find(const struct stat& is);
    ///   read_at  nanoseconds since 1970, before the file was opened
    void learn(const struct stat& is, const sha256_digest& digest, std::int64_t read_at);
    /// Writes what has changed; false: it cannot, and nothing is lost but time.
    bool save();
    [[nodiscard]] std::size_t files() const noexcept { return all_.size(); }

    /// The wall clock, for learn().
    [[nodiscard]] static std::int64_t now() noexcept;

private:
    struct known {
        sha256_digest digest{};
        std::uint32_t day = 0; ///< when it was used last, since 1970
    };
    [[nodiscard]] static std::optional<std::map<file_identity, known>> read(byte_span bytes);
    [[nodiscard]] byte_buffer written() const;

    std::string path_;
    std::map<file_identity, known> all_;
    std::uint32_t today_ = 0;
    bool has_news_ = false;
};

} // namespace skein::cluster

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/digest_cache.ipp>
#endif
