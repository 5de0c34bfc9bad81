// SPDX-License-Identifier: Apache-2.0
#pragma once
// One file in the hands of libjpeg or libpng. Both leave a failed call by longjmp.
//
// A step, jpeg_ or png_, is a function that sets the mark and calls the library: it has no object
// with a destructor, and all that outlives a jump is in the job. It returns false after a jump.

#include <skein/core/config.hpp>

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio> // jpeglib.h uses FILE

#include <jerror.h>
#include <jpeglib.h>
#include <png.h>

namespace skein::data::detail {

/// A JPEG file.
struct jpeg_job {
    jpeg_job() = default;
    jpeg_job(const jpeg_job&) = delete;
    jpeg_job& operator=(const jpeg_job&) = delete;
    ~jpeg_job();

    jpeg_decompress_struct info{};
    jpeg_error_mgr errors{};
    jpeg_progress_mgr progress{};
    std::jmp_buf back{};
    char message[JMSG_LENGTH_MAX] = {};
    bool ended = false; ///< the file stops before the picture does
};
/// The head of the file, up to its first scan.
[[nodiscard]] bool jpeg_begin(jpeg_job& job, const unsigned char* data, std::size_t size);
/// Rows of RGB, `width * 3` bytes apart; `scratch`: one row of CMYK, where the file is that.
[[nodiscard]] bool jpeg_rows(jpeg_job& job, std::uint8_t* to, std::uint8_t* scratch);
[[nodiscard]] bool is_cmyk(const jpeg_job& job) noexcept;

/// A PNG file.
struct png_job {
    png_job() = default;
    png_job(const png_job&) = delete;
    png_job& operator=(const png_job&) = delete;
    ~png_job();

    png_structp file = nullptr;
    png_infop info = nullptr;
    std::jmp_buf back{};
    char message[256] = {};
    const unsigned char* data = nullptr;
    std::size_t size = 0, at = 0;
    bool ended = false;
    std::uint32_t height = 0, width = 0;
    std::uint64_t row_bytes = 0; ///< of the file's own rows
};
[[nodiscard]] bool png_begin(png_job& job, const unsigned char* data, std::size_t size);
[[nodiscard]] bool png_rows(png_job& job, std::uint8_t* to);

} // namespace skein::data::detail

#if SKEIN_HEADER_ONLY
#include <skein/data/detail/decode_jobs.ipp>
#endif
