// SPDX-License-Identifier: Apache-2.0
#pragma once
// The last file of a checkpoint: what the others must look like, and what the run was.
//
//     {"format": "skein-checkpoint-2", "step": 120, "world_size": 2, "chunk_bytes": 1048576,
//      "shards": [{"name": "shard-0-of-2.safetensors", "bytes": 4242, "crc32c": [...]}, ...],
//      "tensors": {"model.wte": {"dtype": "F32", "shape": [50, 64],
//                                "parts": [{"shard": 0, "first_row": 0, "rows": 25}, ...]}, ...},
//      "extra": {...}, "metrics": {...}, "config_hash": "...", "skein": "0.1.0", "wall_time": ...}
//
// "crc32c" has one number per chunk of each shard; "self" is the CRC-32C of the manifest itself.
// Format 1 has no "tensors": each tensor is whole in one shard, and the shards' own headers say
// which.

#include <skein/core/config.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/result.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace skein::train {

/// One file of a checkpoint.
struct shard_entry {
    std::string name; ///< within the checkpoint's folder
    std::uint64_t bytes = 0;
    std::vector<std::uint32_t> crcs; ///< one per chunk, the last chunk may be short

    friend bool operator==(const shard_entry&, const shard_entry&) = default;
};

/// Rows of a tensor, along dimension 0, in one shard. A tensor of no dimensions is one row.
struct part_entry {
    std::size_t shard = 0; ///< index into checkpoint_manifest::shards
    std::int64_t first_row = 0;
    std::int64_t rows = 0;

    friend bool operator==(const part_entry&, const part_entry&) = default;
};

/// A whole tensor, and where its rows are: at least one part, by first row, at most one per shard.
struct tensor_entry {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::vector<part_entry> parts;

    friend bool operator==(const tensor_entry&, const tensor_entry&) = default;
};
/// The tensors of a checkpoint by name.
using tensor_table = std::map<std::string, tensor_entry>;

/// What manifest.json holds.
struct checkpoint_manifest {
    static constexpr std::string_view format = "skein-checkpoint-2";
    static constexpr std::string_view format_1 = "skein-checkpoint-1"; ///< still read

    int version = 2; ///< of the format it was read from
    std::uint64_t step = 0;
    int world_size = 1; ///< of the run that wrote it
    std::uint64_t chunk_bytes = 0;
    std::vector<shard_entry> shards;
    tensor_table
        tensors; ///< every row in one part; empty as long as only a manifest of format 1 is read
    std::map<std::string, double> metrics;
    std::string extra = "{}"; ///< the text of one JSON object
    std::string config_hash;
    std::string skein_version = SKEIN_VERSION_STRING;
    double wall_time = 0.0; ///< seconds since 1970 when it was written
};

/// The bytes of the file, in the newest format: indented JSON that ends with its own checksum.
/// Throws errc::malformed when `extra` is not JSON.
[[nodiscard]] std::string dump_manifest(const checkpoint_manifest& manifest);

/// errc::corrupt when the checksum does not fit, malformed when a field is missing or wrong,
/// not_supported for another format.
[[nodiscard]] result<checkpoint_manifest> parse_manifest(byte_span bytes);

/// Adds up checksums per chunk while a file is written or read in pieces of any size.
class chunk_checksums {
public:
    explicit chunk_checksums(std::uint64_t chunk_bytes) : chunk_(chunk_bytes) {}

    void add(byte_span part);
    /// The checksums so far; the last chunk may be short.
    [[nodiscard]] std::vector<std::uint32_t> finish();
    [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

private:
    void close_chunk();

    std::uint64_t chunk_, filled_ = 0, bytes_ = 0;
    std::uint32_t current_ = 0;
    std::vector<std::uint32_t> crcs_;
};

namespace detail {
inline constexpr std::string_view manifest_tail = ",\n  \"self\": \"00000000\"\n}\n";
/// The end of a manifest whose other bytes are `body`: the member "self" and what closes the
/// object.
[[nodiscard]] std::string make_manifest_tail(std::string_view body);

/// How many rows a tensor of this shape has.
[[nodiscard]] inline std::int64_t rows_of(const std::vector<std::int64_t>& shape) noexcept {
    return shape.empty() ? 1 : shape.front();
}
/// Puts the parts in order. errc::malformed, with the tensor and the rows, unless they are at most
/// one per shard, lie in the shape, do not overlap and cover it.
[[nodiscard]] result<void> check_parts(const std::string& name, tensor_entry& tensor,
                                       std::size_t shards);
} // namespace detail

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/manifest.ipp>
#endif
