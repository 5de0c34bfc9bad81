// SPDX-License-Identifier: Apache-2.0
#pragma once
// Pictures of digits, 28 x 28: those of MNIST's files (raw IDX, unpacked), or drawn ones.

#include <skein/core/error.hpp>
#include <skein/data/draws.hpp>
#include <skein/torch/torch.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <fmt/core.h>

namespace digits {

inline constexpr std::size_t side = 28, pixels = side * side;

/// All pictures and labels; shared by the sets that are cut from it.
struct collection {
    std::vector<std::uint8_t> pictures{};
    std::vector<std::uint8_t> labels{};
};

// ---- files --------------------------------------------------------------------------------------

/// The body of an IDX file: magic 0, 0, 8 (bytes), dimensions; then extents, big-endian.
///   source  yann.lecun.com/exdb/mnist, "the IDX file format"
inline std::vector<std::uint8_t> read_idx(const std::string& path, std::size_t each) {
    std::ifstream file(path, std::ios::binary);
    if (!file)
        throw skein::error(skein::errc::not_found, "no file of digits")
            .with_where(path)
            .with_hint(
                "--data takes a folder with MNIST's *-images-idx3-ubyte and *-labels-idx1-ubyte, "
                "unpacked (gunzip)");
    const std::vector<char> all{std::istreambuf_iterator<char>(file), {}};
    const auto byte = [&](std::size_t i) {
        return i < all.size() ? static_cast<std::uint8_t>(all[i]) : std::uint8_t{0};
    };
    const auto number = [&](std::size_t at) {
        return std::size_t{byte(at)} << 24 | std::size_t{byte(at + 1)} << 16 |
               std::size_t{byte(at + 2)} << 8 | byte(at + 3);
    };
    const std::size_t dimensions = byte(3), head = 4 + 4 * dimensions;
    if (byte(0) != 0 || byte(1) != 0 || byte(2) != 8 || dimensions < 1 || dimensions > 3)
        throw skein::error(skein::errc::malformed, "this is no IDX file of bytes")
            .with_where(path)
            .with_hint(byte(0) == 0x1f && byte(1) == 0x8b ? "it is packed: gunzip it first"
                                                          : "is it one of MNIST's files?");
    std::size_t wanted = 1;
    for (std::size_t d = 1; d < dimensions; ++d) wanted *= number(4 + 4 * d);
    if (wanted != each || all.size() != head + number(4) * each)
        throw skein::error(skein::errc::malformed,
                           fmt::format("an IDX file of {} bytes says {} items of {} bytes",
                                       all.size(), number(4), wanted))
            .with_where(path)
            .with_hint("is it cut short?");
    return {all.begin() + static_cast<std::ptrdiff_t>(head), all.end()};
}

/// folder/train-* if they are there, then folder/t10k-*.
inline collection read(const std::string& folder) {
    collection out;
    for (const char* part : {"train", "t10k"}) {
        const auto name = folder + "/" + part;
        if (std::string(part) == "train" && !std::ifstream(name + "-labels-idx1-ubyte")) continue;
        const auto pictures = read_idx(name + "-images-idx3-ubyte", pixels);
        const auto labels = read_idx(name + "-labels-idx1-ubyte", 1);
        if (pictures.size() != labels.size() * pixels)
            throw skein::error(
                skein::errc::mismatch,
                fmt::format("{} pictures and {} labels", pictures.size() / pixels, labels.size()))
                .with_where(name + "-*");
        out.pictures.insert(out.pictures.end(), pictures.begin(), pictures.end());
        out.labels.insert(out.labels.end(), labels.begin(), labels.end());
    }
    return out;
}

// ---- drawn ones ---------------------------------------------------------------------------------

/// The strokes of a digit, as of a clock's display: top, upper left, upper right, middle, lower
/// left, lower right, bottom.
inline constexpr std::array<std::uint8_t, 10> strokes{0b1110111, 0b0010010, 0b1011101, 0b1011011,
                                                      0b0111010, 0b1101011, 0b1101111, 0b1010010,
                                                      0b1111111, 0b1111011};

/// Distance of a point from the stroke, which is 1 wide and 2 high in all.
inline double from_stroke(std::size_t stroke, double x, double y) {
    constexpr std::array<std::array<double, 4>, 7> ends{{{0, 0, 1, 0},
                                                         {0, 0, 0, 1},
                                                         {1, 0, 1, 1},
                                                         {0, 1, 1, 1},
                                                         {0, 1, 0, 2},
                                                         {1, 1, 1, 2},
                                                         {0, 2, 1, 2}}};
    const auto& [x0, y0, x1, y1] = ends[stroke];
    const double along = std::clamp((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0), 0.0, 1.0);
    return std::hypot(x - x0 - along * (x1 - x0), y - y0 - along * (y1 - y0));
}

/// So many, each with a place, size, slant, width and noise of its own.
inline collection draw(std::size_t count, std::uint64_t seed) {
    collection out;
    out.pictures.resize(count * pixels);
    out.labels.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
        skein::data::draws random(seed, 0, i, 0);
        const auto label = static_cast<std::size_t>(random.integer(10));
        const double size = random.uniform(6, 9), slant = random.uniform(-0.3f, 0.3f),
                     left = random.uniform(7, 13), top = random.uniform(4, 8),
                     width = random.uniform(0.15f, 0.3f);
        out.labels[i] = static_cast<std::uint8_t>(label);
        for (std::size_t p = 0; p < pixels; ++p) {
            const double y = (static_cast<double>(p / side) - top) / size,
                         x = (static_cast<double>(p % side) - left) / size + slant * (y - 1);
            double nearest = 9;
            for (std::size_t s = 0; s < 7; ++s)
                if ((strokes[label] >> (6 - s) & 1) != 0)
                    nearest = std::min(nearest, from_stroke(s, x, y));
            const double ink = std::clamp(1.5 - nearest / width, 0.0, 1.0);
            const double noise = random.uniform(0, 120);
            out.pictures[i * pixels + p] =
                static_cast<std::uint8_t>(std::min(255.0, 200 * ink + noise));
        }
    }
    return out;
}

// ---- as data of a Trainer -----------------------------------------------------------------------

struct batch {
    torch::Tensor pictures_B1HW, label_B;
    std::vector<std::uint64_t> ids; ///< in the collection
};

/// Pictures [first, first + count) of a collection.
struct part {
    std::shared_ptr<const collection> of;
    std::uint64_t first = 0, count = 0;

    [[nodiscard]] std::uint64_t size() const noexcept { return count; }
    [[nodiscard]] digits::batch batch(std::span<const std::uint64_t> ids) const {
        const auto many = static_cast<std::int64_t>(ids.size());
        digits::batch out{
            torch::empty({many, 1, side, side}), torch::empty({many}, torch::kLong), {}};
        auto* to = static_cast<float*>(out.pictures_B1HW.mutable_data_ptr());
        auto* label = static_cast<std::int64_t*>(out.label_B.mutable_data_ptr());
        for (const auto id : ids) {
            const auto at = static_cast<std::size_t>(first + id);
            for (std::size_t p = 0; p < pixels; ++p)
                *to++ = static_cast<float>(of->pictures[at * pixels + p]) / 255.0f - 0.13f;
            *label++ = of->labels[at];
            out.ids.push_back(at);
        }
        return out;
    }
};

} // namespace digits
