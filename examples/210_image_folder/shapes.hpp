// SPDX-License-Identifier: Apache-2.0
#pragma once
// Pictures to try the example with: discs, squares, triangles and stars, as JPEG and PNG files.

#include <skein/core/disk.hpp>
#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/data/arena.hpp>
#include <skein/data/draws.hpp>
#include <skein/data/image.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>
#include <jpeglib.h>
#include <png.h>
#include <unistd.h>

namespace shapes {

namespace data = skein::data;
using picture = data::image<std::uint8_t, 3>;

inline constexpr std::array<std::string_view, 4> names{"disc", "square", "star", "triangle"};

/// Whether a point is in the shape, which has its middle at 0 and a size of about 1.
inline bool is_inside(std::size_t shape, float x, float y) {
    const float radius = std::hypot(x, y), angle = std::atan2(y, x);
    const auto polygon = [&](float corners) { // a regular one, its corners at distance 1
        const float part = 6.2831853f / corners;
        const float from_middle = std::remainder(angle, part);
        return radius * std::cos(from_middle) <= std::cos(part / 2);
    };
    switch (shape) {
    case 0: return radius <= 0.85f;
    case 1: return polygon(4);
    case 2: return radius <= 0.7f + 0.3f * std::cos(5 * angle);
    default: return polygon(3);
    }
}

/// One shape of random place, size, angle and colours, with noise.
inline picture draw(std::size_t shape, std::int32_t side, data::draws& random) {
    auto made = data::make_image<std::uint8_t, 3>(side, side);
    std::array<float, 3> back{}, front{};
    for (std::size_t c = 0; c < 3; ++c) {
        back[c] = random.uniform(0, 255);
        front[c] = back[c] + (back[c] < 128 ? 1.0f : -1.0f) * random.uniform(60, 127);
    }
    const float size = random.uniform(0.25f, 0.45f), turn = random.uniform(0, 6.28f);
    const float mx = random.uniform(size, 1 - size), my = random.uniform(size, 1 - size);
    for (std::int32_t row = 0; row < side; ++row)
        for (std::int32_t column = 0; column < side; ++column) {
            const auto of = [&](std::int32_t i) { return (float(i) + 0.5f) / float(side); };
            const float x = (of(column) - mx) / size, y = (of(row) - my) / size;
            const bool in = is_inside(shape, x * std::cos(turn) - y * std::sin(turn),
                                      x * std::sin(turn) + y * std::cos(turn));
            for (std::size_t c = 0; c < 3; ++c) {
                const float value = (in ? front[c] : back[c]) + 12 * random.uniform(-1, 1);
                made.data[(std::size_t(row) * std::size_t(side) + std::size_t(column)) * 3 + c] =
                    static_cast<std::uint8_t>(std::clamp(value, 0.0f, 255.0f));
            }
        }
    return made;
}

inline void write_png(const std::string& path, picture from) {
    png_image head{};
    head.version = PNG_IMAGE_VERSION;
    head.width = static_cast<png_uint_32>(from.width);
    head.height = static_cast<png_uint_32>(from.height);
    head.format = PNG_FORMAT_RGB;
    if (png_image_write_to_file(&head, path.c_str(), 0, from.data, 0, nullptr) == 0)
        throw skein::error(skein::errc::io, fmt::format("write {}: {}", path, head.message));
}

inline void write_jpeg(const std::string& path, picture from) {
    std::FILE* const file = std::fopen(path.c_str(), "wbe");
    if (file == nullptr) throw skein::errno_error(errno, "write", path);
    jpeg_compress_struct out{};
    jpeg_error_mgr failure{}; // its handler ends the program: writing to a file of one's own
    out.err = jpeg_std_error(&failure);
    jpeg_create_compress(&out);
    jpeg_stdio_dest(&out, file);
    out.image_width = static_cast<JDIMENSION>(from.width);
    out.image_height = static_cast<JDIMENSION>(from.height);
    out.input_components = 3;
    out.in_color_space = JCS_RGB;
    jpeg_set_defaults(&out);
    jpeg_set_quality(&out, 90, TRUE);
    jpeg_start_compress(&out, TRUE);
    while (out.next_scanline < out.image_height) {
        JSAMPROW row = from.data + std::size_t(out.next_scanline) * std::size_t(from.width) * 3;
        jpeg_write_scanlines(&out, &row, 1);
    }
    jpeg_finish_compress(&out);
    jpeg_destroy_compress(&out);
    if (std::fclose(file) != 0) throw skein::errno_error(errno, "write", path);
}

/// FOLDER/train/CLASS and FOLDER/val/CLASS, unless there is something already. They are drawn
/// beside it and come to their place at once: several ranks may begin together.
///   errors  those of files
inline void make(const std::string& folder, std::int64_t train, std::int64_t val,
                 std::int32_t side) {
    skein::posix_disk disk;
    if (disk.status(folder)) return;
    const auto drawn = fmt::format("{}.{}", folder, ::getpid());
    data::arena memory;
    const data::arena_scope scope(memory);
    for (const std::string part : {"train", "val"}) {
        for (const auto name : names)
            disk.make_dirs(fmt::format("{}/{}/{}", drawn, part, name)).value();
        const auto count = part == "train" ? train : val;
        for (std::int64_t i = 0; i < count; ++i) {
            memory.reset();
            const auto shape = static_cast<std::size_t>(i) % names.size();
            data::draws random(part == "train" ? 1 : 2, 0, static_cast<std::uint64_t>(i), 0);
            const auto made = draw(shape, side, random);
            const auto path = fmt::format("{}/{}/{}/{:06}", drawn, part, names[shape], i);
            if (i % 8 < 4)
                write_jpeg(path + ".jpg", made);
            else
                write_png(path + ".png", made);
        }
    }
    const auto moved = disk.rename(drawn, folder);
    if (moved) return;
    disk.remove_tree(drawn).value();
    if (!disk.status(folder)) moved.value(); // nobody else was faster
}

} // namespace shapes
