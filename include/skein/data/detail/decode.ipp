// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/decode.hpp>.

#include <skein/core/error.hpp>
#include <skein/data/detail/decode_jobs.hpp>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace skein::data {
namespace detail {

enum class picture_kind : std::uint8_t { jpeg, png };

struct known_start {
    std::string_view start, name;
};

/// The format of a picture that is neither JPEG nor PNG, or nothing.
SKEIN_INLINE std::string_view other_picture(std::string_view head) {
    constexpr known_start known[] = {{"GIF8", "GIF"},
                                     {std::string_view("II*\0", 4), "TIFF"},
                                     {std::string_view("MM\0*", 4), "TIFF"},
                                     {std::string_view("\0\0\1\0", 4), "ICO"},
                                     {"\xff\x0a", "JPEG XL"},
                                     {std::string_view("\0\0\0\x0cJXL", 7), "JPEG XL"},
                                     {std::string_view("\0\0\0\x0cjP", 6), "JPEG 2000"}};
    for (const auto& [start, name] : known)
        if (head.starts_with(start)) return name;
    if (head.starts_with("BM") && head.size() > 10 &&
        head.substr(6, 4) == std::string_view("\0\0\0\0", 4))
        return "BMP";
    if (head.starts_with("RIFF") && head.substr(0, 12).ends_with("WEBP")) return "WebP";
    if (head.size() < 12 || head.substr(4, 4) != "ftyp") return {};
    const auto brand = head.substr(8, 3);
    return brand == "avi" ? "AVIF" : brand == "hei" || brand == "mif" ? "HEIC" : "";
}

/// What bytes that are no picture look like.
SKEIN_INLINE std::string looks_like(std::string_view head) {
    if (head.empty()) return "an empty file";
    constexpr known_start known[] = {
        {"%PDF", "a PDF"},
        {"\x1f\x8b", "a gzip file"},
        {"PK\3\4", "a ZIP file"},
        {std::string_view("\0\5\26\7", 4),
         "what macOS keeps beside a file (remove names that begin with ._)"},
        {"version https://git-lfs", "a pointer of Git LFS (git lfs pull fetches the file itself)"},
        {"<", "HTML or XML"}};
    for (const auto& [start, name] : known)
        if (head.starts_with(start)) return std::string(name);
    std::string said = fmt::format("a file of {} bytes that starts with", head.size());
    for (const char each : head.substr(0, 8))
        said += fmt::format(" {:02x}", static_cast<unsigned char>(each));
    return said;
}

SKEIN_INLINE picture_kind kind_of(bytes file) {
    const std::string_view head(reinterpret_cast<const char*>(file.data()), file.size());
    if (head.starts_with("\xff\xd8\xff")) return picture_kind::jpeg;
    if (head.starts_with("\x89PNG\r\n\x1a\n")) return picture_kind::png;
    if (const auto other = other_picture(head); !other.empty())
        throw error(errc::not_supported,
                    fmt::format("not supported: a picture in the format {}", other))
            .with_hint("convert it to JPEG or PNG");
    throw error(errc::malformed, fmt::format("{} is neither JPEG nor PNG", looks_like(head)));
}

SKEIN_INLINE void require_known_kind(const jpeg_job& job) {
    if (is_unknown_kind(job))
        throw error(errc::not_supported, "not supported: a JPEG of an uncommon kind")
            .with_cause(job.message)
            .with_hint("convert it to a JPEG of 8 bits");
}

SKEIN_INLINE void begin(jpeg_job& job, bytes file) {
    if (jpeg_begin(job, reinterpret_cast<const unsigned char*>(file.data()), file.size())) return;
    require_known_kind(job);
    if (job.ended)
        throw error(errc::malformed,
                    fmt::format("a JPEG ends after {} bytes, in its head", file.size()));
    throw error(errc::malformed,
                fmt::format("a JPEG of {} bytes is damaged in its head", file.size()))
        .with_cause(job.message);
}

SKEIN_INLINE void begin(png_job& job, bytes file) {
    if (png_begin(job, reinterpret_cast<const unsigned char*>(file.data()), file.size())) return;
    if (job.ended)
        throw error(errc::malformed,
                    fmt::format("a PNG ends after {} bytes, in its head", file.size()));
    throw error(errc::malformed,
                fmt::format("a PNG of {} bytes is damaged before byte {}", file.size(), job.at))
        .with_cause(job.message);
}

SKEIN_INLINE image_extent checked_extent(std::string_view kind, std::uint64_t height,
                                         std::uint64_t width, decode_limits limits) {
    constexpr std::uint64_t most = std::numeric_limits<std::int32_t>::max();
    if (height < 1 || width < 1)
        throw error(errc::malformed, fmt::format("a {} of {}x{} pixels", kind, height, width));
    if (height > most || width > most || height * width > limits.pixels)
        throw error(errc::too_large, fmt::format("a {} of {}x{} pixels; the limit is {}", kind,
                                                 height, width, limits.pixels.value()))
            .with_hint("decode_limits raises it");
    return {static_cast<std::int32_t>(height), static_cast<std::int32_t>(width)};
}

/// A head that promises more than the rest of the file can hold takes no memory.
SKEIN_INLINE void require_enough(std::string_view kind, image_extent extent, bytes file,
                                 bool enough) {
    if (!enough)
        throw error(errc::malformed,
                    fmt::format("a {} of {}x{} pixels ends after {} bytes, too few for that", kind,
                                extent.height, extent.width, file.size()));
}

SKEIN_INLINE image<std::uint8_t, 3> decode_jpeg(bytes file, decode_limits limits) {
    jpeg_job job;
    begin(job, file);
    const auto extent = checked_extent("JPEG", job.info.image_height, job.info.image_width, limits);
    // Huffman codes take a bit for each block of 8 x 8.
    const auto pixels = std::uint64_t{job.info.image_height} * job.info.image_width;
    require_enough("JPEG", extent, file, job.info.arith_code || pixels / 512 <= file.size());
    const auto made = make_image<std::uint8_t, 3>(extent.height, extent.width);
    std::uint8_t* scratch = nullptr;
    if (is_cmyk(job))
        scratch =
            arena::current().array<std::uint8_t>(std::size_t{job.info.image_width} * 4).data();
    if (jpeg_rows(job, made.data, scratch)) return made;
    require_known_kind(job);
    if (job.ended)
        throw error(errc::malformed,
                    fmt::format("a JPEG of {}x{} pixels ends after {} bytes, in row {}",
                                extent.height, extent.width, file.size(),
                                job.info.output_scanline));
    const auto left = job.info.src != nullptr ? job.info.src->bytes_in_buffer : 0;
    throw error(errc::malformed,
                fmt::format("a JPEG of {}x{} pixels is damaged in row {}, near byte {} of {}",
                            extent.height, extent.width, job.info.output_scanline,
                            file.size() - std::min(left, file.size()), file.size()))
        .with_cause(job.message);
}

SKEIN_INLINE image<std::uint8_t, 3> decode_png(bytes file, decode_limits limits) {
    png_job job;
    begin(job, file);
    const auto extent = checked_extent("PNG", job.height, job.width, limits);
    // Deflate makes at most 1032 bytes out of one.
    require_enough("PNG", extent, file, job.row_bytes * job.height / 1032 <= file.size());
    const auto made = make_image<std::uint8_t, 3>(extent.height, extent.width);
    if (png_rows(job, made.data)) return made;
    if (job.ended)
        throw error(errc::malformed, fmt::format("a PNG of {}x{} pixels ends after {} bytes",
                                                 extent.height, extent.width, file.size()));
    throw error(errc::malformed,
                fmt::format("a PNG of {}x{} pixels is damaged before byte {} of {}", extent.height,
                            extent.width, job.at, file.size()))
        .with_cause(job.message);
}

} // namespace detail

SKEIN_INLINE image<std::uint8_t, 3> decode_image(bytes file, decode_limits limits) {
    return detail::kind_of(file) == detail::picture_kind::jpeg ? detail::decode_jpeg(file, limits)
                                                               : detail::decode_png(file, limits);
}

SKEIN_INLINE image_extent image_size(bytes file) {
    constexpr decode_limits none{std::numeric_limits<std::uint64_t>::max()};
    if (detail::kind_of(file) == detail::picture_kind::jpeg) {
        detail::jpeg_job job;
        detail::begin(job, file);
        return detail::checked_extent("JPEG", job.info.image_height, job.info.image_width, none);
    }
    detail::png_job job;
    detail::begin(job, file);
    return detail::checked_extent("PNG", job.height, job.width, none);
}

} // namespace skein::data
