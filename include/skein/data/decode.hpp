// SPDX-License-Identifier: Apache-2.0
#pragma once
// JPEG and PNG to pixels, as Pillow's Image.open(...).convert("RGB") gives them.
//
// Which of the two a file is, its first bytes say. Link skein::images, which brings libjpeg and
// libpng; header-only, skein::images_header_only. The orientation in a JPEG's EXIF data is not
// applied: torchvision's ImageFolder does not, either.
//
//     auto pixels = data::decode_image(file);      // [height, width, 3], in the current arena
//
//   source: libjpeg-turbo (slow integer DCT, fancy upsampling), libpng; Pillow's Convert.c for CMYK

#if !__has_include(<jpeglib.h>) || !__has_include(<png.h>)
#error                                                                                             \
    "skein/data/decode.hpp needs libjpeg and libpng: install the packages libjpeg-dev and libpng-dev"
#endif

#include <skein/core/option_count.hpp>
#include <skein/data/image.hpp>

#include <cstdint>

namespace skein::data {

/// Rows and columns of a picture.
struct image_extent {
    std::int32_t height = 0, width = 0;
    friend bool operator==(const image_extent&, const image_extent&) = default;
};

/// What is refused before memory is taken for it.
struct decode_limits {
    option_count pixels = 178'956'970; ///< twice Pillow's MAX_IMAGE_PIXELS, where it refuses
};

/// The pixels of a JPEG or PNG file. Grey becomes RGB, CMYK too, alpha is dropped, 16 bits become
/// their upper 8; gamma and colour profiles are left alone. A file that ends early or does not decode
/// is an error, never grey pixels. May be called by several threads at a time.
///   cost    1.1 ms for a JPEG of 500 x 375 and 58 KB; 3.4 ms for a PNG of 384 KB
///   errors  malformed: no picture, or a damaged one; not_supported: a picture of another format;
///           too_large: more pixels than the limit
[[nodiscard]] image<std::uint8_t, 3> decode_image(bytes file, decode_limits limits = {});

/// How large the picture in a file is, from its head alone.
///   errors  malformed, not_supported
[[nodiscard]] image_extent image_size(bytes file);

} // namespace skein::data

#if SKEIN_HEADER_ONLY
#if __has_include(                                                                                 \
    <jpeglib.h>) && __has_include(<png.h>) // otherwise the line above is the only one
#include <skein/data/detail/decode.ipp>
#endif
#endif
