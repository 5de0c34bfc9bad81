// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/detail/decode_jobs.hpp>.

#include <cstring>

namespace skein::data::detail {

SKEIN_INLINE jpeg_job::~jpeg_job() { jpeg_destroy_decompress(&info); }

SKEIN_INLINE void jpeg_failed(j_common_ptr info) {
    auto& job = *static_cast<jpeg_job*>(info->client_data);
    info->err->format_message(info, job.message);
    std::longjmp(job.back, 1);
}

/// Most warnings mean pixels that were not in the file.
SKEIN_INLINE void jpeg_said(j_common_ptr info, int level) {
    if (level >= 0) return;
    switch (info->err->msg_code) {
    case JWRN_EXTRANEOUS_DATA: // stray bytes between two segments
    case JWRN_ADOBE_XFORM:     // an unknown colour transform: the usual one is taken
    case JWRN_JFIF_MAJOR:      // a version number
    case JWRN_NOT_SEQUENTIAL:  // a scan that says it is of no sequence, in a file that has one scan
        return;
    case JWRN_JPEG_EOF: static_cast<jpeg_job*>(info->client_data)->ended = true; break;
    default: break;
    }
    jpeg_failed(info);
}

/// A progressive file of few bytes can hold thousands of scans over a large picture.
SKEIN_INLINE void jpeg_progressed(j_common_ptr info) {
    constexpr int most_scans = 500;
    auto& job = *static_cast<jpeg_job*>(info->client_data);
    if (job.info.input_scan_number <= most_scans) return;
    std::snprintf(job.message, sizeof job.message, "more than %d scans", most_scans);
    std::longjmp(job.back, 1);
}

SKEIN_INLINE void jpeg_is_silent(j_common_ptr) {}

SKEIN_INLINE bool jpeg_begin(jpeg_job& job, const unsigned char* data, std::size_t size) {
    job.info.err = jpeg_std_error(&job.errors);
    job.errors.error_exit = jpeg_failed;
    job.errors.emit_message = jpeg_said;
    job.errors.output_message = jpeg_is_silent;
    job.info.client_data = &job;
    if (setjmp(job.back) != 0) return false;
    jpeg_create_decompress(&job.info);
    job.progress.progress_monitor = jpeg_progressed;
    job.info.progress = &job.progress;
    jpeg_mem_src(&job.info, data, static_cast<unsigned long>(size));
    jpeg_read_header(&job.info, TRUE);
    return true;
}

SKEIN_INLINE bool is_cmyk(const jpeg_job& job) noexcept {
    return job.info.jpeg_color_space == JCS_CMYK || job.info.jpeg_color_space == JCS_YCCK;
}

SKEIN_INLINE bool is_unknown_kind(const jpeg_job& job) noexcept {
    switch (job.errors.msg_code) {
    case JERR_ARITH_NOTIMPL:
    case JERR_BAD_PRECISION:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_FRACT_SAMPLE_NOTIMPL:
    case JERR_NOT_COMPILED:
    case JERR_SOF_UNSUPPORTED: return true;
    default: return false;
    }
}

/// Adobe writes CMYK inverted, and Pillow takes every CMYK file for one of Adobe's.
SKEIN_INLINE void rgb_of_cmyk(std::uint8_t* to, const std::uint8_t* from, std::size_t pixels) {
    for (; pixels > 0; --pixels, to += 3, from += 4)
        for (int c = 0; c < 3; ++c) {
            const unsigned product = (255U - from[c]) * from[3] + 128U;
            to[c] = static_cast<std::uint8_t>(from[3] - (((product >> 8) + product) >> 8));
        }
}

SKEIN_INLINE bool jpeg_rows(jpeg_job& job, std::uint8_t* to, std::uint8_t* scratch) {
    if (setjmp(job.back) != 0) return false;
    job.info.out_color_space = scratch != nullptr ? JCS_CMYK : JCS_RGB;
    job.info.dct_method = JDCT_ISLOW;
    job.info.do_fancy_upsampling = TRUE;
    jpeg_start_decompress(&job.info);
    while (job.info.output_scanline < job.info.output_height) {
        JSAMPROW row = scratch != nullptr
                           ? scratch
                           : to + std::size_t{job.info.output_scanline} * job.info.output_width * 3;
        jpeg_read_scanlines(&job.info, &row, 1);
        if (scratch != nullptr)
            rgb_of_cmyk(to + std::size_t{job.info.output_scanline - 1} * job.info.output_width * 3,
                        scratch, job.info.output_width);
    }
    return true;
}

SKEIN_INLINE png_job::~png_job() { png_destroy_read_struct(&file, &info, nullptr); }

SKEIN_INLINE void png_failed(png_structp file, png_const_charp message) {
    auto& job = *static_cast<png_job*>(png_get_error_ptr(file));
    std::snprintf(job.message, sizeof job.message, "%s", message);
    std::longjmp(job.back, 1);
}

SKEIN_INLINE void png_said(png_structp, png_const_charp) {}

SKEIN_INLINE void png_wants(png_structp file, png_bytep to, std::size_t count) {
    auto& job = *static_cast<png_job*>(png_get_io_ptr(file));
    if (count > job.size - job.at) {
        job.ended = true;
        png_failed(file, "the file ends");
    }
    std::memcpy(to, job.data + job.at, count);
    job.at += count;
}

SKEIN_INLINE bool png_begin(png_job& job, const unsigned char* data, std::size_t size) {
    job.data = data;
    job.size = size;
    if (setjmp(job.back) != 0) return false;
    job.file = png_create_read_struct(PNG_LIBPNG_VER_STRING, &job, png_failed, png_said);
    if (job.file != nullptr) job.info = png_create_info_struct(job.file);
    if (job.info == nullptr) {
        std::snprintf(job.message, sizeof job.message, "libpng does not start");
        return false;
    }
    png_set_read_fn(job.file, &job, png_wants);
    png_set_user_limits(job.file, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_read_info(job.file, job.info);
    job.height = png_get_image_height(job.file, job.info);
    job.width = png_get_image_width(job.file, job.info);
    job.row_bytes = png_get_rowbytes(job.file, job.info);
    return true;
}

SKEIN_INLINE bool png_rows(png_job& job, std::uint8_t* to) {
    if (setjmp(job.back) != 0) return false;
    const auto colours = png_get_color_type(job.file, job.info);
    if (colours == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(job.file);
    if (colours == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(job.file);
    png_set_strip_16(job.file);
    png_set_strip_alpha(job.file);
    if ((colours & PNG_COLOR_MASK_COLOR) == 0) png_set_gray_to_rgb(job.file);
    int passes = png_set_interlace_handling(job.file);
    png_read_update_info(job.file, job.info);
    if (png_get_rowbytes(job.file, job.info) != std::size_t{job.width} * 3)
        png_failed(job.file, "rows that are not RGB");
    for (; passes > 0; --passes)
        for (std::uint32_t y = 0; y < job.height; ++y)
            png_read_row(job.file, to + std::size_t{y} * job.width * 3, nullptr);
    png_read_end(job.file, nullptr);
    return true;
}

} // namespace skein::data::detail
