// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensors in a file that every tool reads: safetensors, written as a stream, read with suspicion.
//
// Layout: 8 bytes little-endian length of the header, the header (JSON, padded with spaces so that
// the data begins at a multiple of 8), then the data without a hole. Tensors lie in the order of
// descending element size, then name, so each is aligned to its element.
//   source: huggingface/safetensors, README "Format" and safetensors/src/tensor.rs
//
//     auto plan = plan_safetensors(tensors, {{"format", "pt"}}).value();
//     write_safetensors(plan, [&](byte_span part) { return file.append(part); }).value();
//     auto back = parse_safetensors(bytes);         // result: views into bytes

#include <skein/core/bytes.hpp>
#include <skein/core/result.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::train {

/// A named tensor and its bytes (row-major, little-endian), owned by someone else.
struct tensor_view {
    std::string name{};
    std::string dtype{};               ///< as in the format: F32, BF16, F64, I64, U8, ...
    std::vector<std::int64_t> shape{}; ///< empty for a scalar
    byte_span bytes{};
};

/// What a header says of one tensor.
struct tensor_info {
    std::string name;
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::uint64_t offset = 0; ///< from the start of the file
    std::uint64_t bytes = 0;

    friend bool operator==(const tensor_info&, const tensor_info&) = default;
};

/// Text by name: the metadata of a file.
using string_map = std::map<std::string, std::string>;

/// Bytes of one element, or nothing for an unknown type (sub-byte types are not supported).
[[nodiscard]] constexpr std::optional<std::size_t> dtype_size(std::string_view dtype) noexcept {
    if (dtype == "F64" || dtype == "I64" || dtype == "U64" || dtype == "C64") return 8;
    if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
    if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
    if (dtype == "BOOL" || dtype == "U8" || dtype == "I8" || dtype == "F8_E4M3" ||
        dtype == "F8_E5M2" || dtype == "F8_E8M0")
        return 1;
    return std::nullopt;
}

/// Bytes of a tensor, or an error when the type is unknown or the product does not fit 63 bits.
[[nodiscard]] result<std::uint64_t> tensor_bytes(std::string_view dtype,
                                                 std::span<const std::int64_t> shape);

/// Header and order of a file to write. The views must outlive it.
struct safetensors_plan {
    std::string head;                        ///< the length and the padded header, as in the file
    std::vector<const tensor_view*> tensors; ///< in file order
    std::uint64_t file_bytes = 0;
};

/// Lays a file out. errc::invalid_argument when a name repeats, is "__metadata__", or bytes, type
/// and shape of a tensor do not agree.
[[nodiscard]] result<safetensors_plan> plan_safetensors(std::span<const tensor_view> tensors,
                                                        const string_map& metadata = {});

/// Streams the file: sink(byte_span) -> result<void> is called for the head and then for each
/// tensor. Nothing is copied. The first error of the sink ends it.
template <class Sink>
[[nodiscard]] result<void> write_safetensors(const safetensors_plan& plan, Sink&& sink) {
    if (result<void> done = sink(as_bytes(std::string_view(plan.head))); !done) return done;
    for (const tensor_view* t : plan.tensors)
        if (!t->bytes.empty())
            if (result<void> done = sink(t->bytes); !done) return done;
    return {};
}

/// A header that has been checked: types, shapes and offsets agree and the data has no hole.
struct safetensors_header {
    std::vector<tensor_info> tensors; ///< in the order of their offsets
    string_map metadata;
    std::uint64_t data_offset = 0; ///< where the data begins in the file

    [[nodiscard]] const tensor_info* find(std::string_view name) const noexcept;
};

/// Bytes; a longer header is refused as too large.
inline constexpr std::uint64_t max_safetensors_header = 100'000'000;

/// How many bytes of a file the header takes, its length included: errc::malformed or too_large
/// when the first 8 bytes cannot begin a file of file_bytes.
[[nodiscard]] result<std::uint64_t> safetensors_head_bytes(byte_span first8,
                                                           std::uint64_t file_bytes);

/// Checks the head (as long as safetensors_head_bytes() said) of a file of file_bytes.
[[nodiscard]] result<safetensors_header> parse_safetensors_head(byte_span head,
                                                                std::uint64_t file_bytes);

/// A whole file in memory: the views point into `file`, which must outlive them.
struct safetensors_content {
    std::vector<tensor_view> tensors;
    string_map metadata;
};
/// Checks the whole file: malformed or too_large, with what is wrong.
[[nodiscard]] result<safetensors_content> parse_safetensors(byte_span file);

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/safetensors.ipp>
#endif
