// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/data/decode.hpp>
#include <skein/data/loader.hpp>
#include <skein/data/resize.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <jpeglib.h>
#include <png.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <tests/data/oracle.hpp>
#include <tests/support/temporary_folder.hpp>

namespace decode_test {

using namespace skein;
using Catch::Matchers::ContainsSubstring;
using skein_test::difference;
using skein_test::oracle;

data::bytes bytes_of(std::string_view file) { return std::as_bytes(std::span(file)); }

/// Every file of the oracle: its name, and its bytes.
const std::vector<std::pair<std::string, std::string>>& files() {
    static const auto found = [] {
        std::vector<std::pair<std::string, std::string>> made;
        for (const auto& [name, entry] : oracle())
            if (name.starts_with("file/"))
                made.emplace_back(name.substr(5),
                                  std::string(entry.values.begin(), entry.values.end()));
        return made;
    }();
    return found;
}
const std::string& file(std::string_view name) {
    return std::ranges::find(files(), name, &std::pair<std::string, std::string>::first)->second;
}

/// What a file is refused with; no code and the text if it is not.
struct refusal {
    errc code{};
    std::string text;
};
refusal refused(std::string_view content, data::decode_limits limits = {}) {
    data::arena memory;
    const data::arena_scope scope(memory);
    try {
        (void)data::decode_image(bytes_of(content), limits);
    } catch (const error& e) {
        return {e.code(), e.what()};
    }
    return {{}, "it was decoded"};
}
std::vector<std::uint8_t> pixels_of(std::string_view content) {
    data::arena memory;
    const data::arena_scope scope(memory);
    const auto made = data::decode_image(bytes_of(content));
    return {made.data, made.data + made.size()};
}
double largest_difference(const std::vector<std::uint8_t>& a, const std::vector<std::uint8_t>& b) {
    if (a.size() != b.size()) return 1e30;
    int most = 0;
    for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
    return most;
}

TEST_CASE("JPEG and PNG become the pixels that Pillow gives") {
    REQUIRE(files().size() == 15);
    data::arena memory;
    for (const auto& [name, content] : files()) {
        const data::arena_scope scope(memory);
        CAPTURE(name);
        const auto& wanted = oracle().at("decode/" + name);
        const auto made = data::decode_image(bytes_of(content));
        CHECK(made.height == wanted.extents[0]);
        CHECK(made.width == wanted.extents[1]);
        CHECK(difference(made.values(), wanted) <= (name.ends_with(".png") ? 0 : 1));
        CHECK(data::image_size(bytes_of(content)) == data::image_extent{made.height, made.width});
        CHECK(memory.used() >= made.size()); // in the current arena
        memory.reset();
    }
}

/// A JPEG of four channels, as Adobe's programs write it.
std::string four_channels(J_COLOR_SPACE stored) {
    constexpr int side = 32;
    jpeg_compress_struct job{};
    jpeg_error_mgr errors{};
    job.err = jpeg_std_error(&errors);
    jpeg_create_compress(&job);
    unsigned char* out = nullptr;
    unsigned long size = 0;
    jpeg_mem_dest(&job, &out, &size);
    job.image_width = job.image_height = side;
    job.input_components = 4;
    job.in_color_space = JCS_CMYK;
    jpeg_set_defaults(&job);
    jpeg_set_colorspace(&job, stored);
    for (int i = 0; i < 4; ++i) job.comp_info[i].h_samp_factor = job.comp_info[i].v_samp_factor = 1;
    jpeg_set_quality(&job, 100, TRUE);
    jpeg_start_compress(&job, TRUE);
    for (int y = 0; y < side; ++y) {
        std::array<JSAMPLE, 4 * side> row{};
        for (int x = 0; x < side; ++x) {
            const std::array<int, 4> ink = {40 + 6 * x, 230 - 5 * y, 90 + 2 * (x + y), 150 + 3 * x};
            for (std::size_t c = 0; c < 4; ++c)
                row[std::size_t(x) * 4 + c] = static_cast<JSAMPLE>(ink[c]);
        }
        JSAMPROW at = row.data();
        jpeg_write_scanlines(&job, &at, 1);
    }
    jpeg_finish_compress(&job);
    std::string made(reinterpret_cast<char*>(out), size);
    jpeg_destroy_compress(&job);
    std::free(out); // NOLINT(cppcoreguidelines-no-malloc): libjpeg's
    return made;
}

TEST_CASE("YCCK becomes the pixels that the same inks give as CMYK") {
    const auto plain = pixels_of(four_channels(JCS_CMYK)),
               turned = pixels_of(four_channels(JCS_YCCK));
    CHECK(largest_difference(plain, turned) <= 3);
    // The first pixel: inks of 40, 230, 90, each times 150 of black.
    CHECK(std::abs(plain[0] - 40 * 150 / 255) <= 2);
    CHECK(std::abs(plain[1] - 230 * 150 / 255) <= 2);
    CHECK(std::abs(plain[2] - 90 * 150 / 255) <= 2);
}

/// A PNG by libpng's hand, row by row as it is in `rows`.
struct png_maker {
    int colours = PNG_COLOR_TYPE_RGB, interlace = PNG_INTERLACE_NONE;
    std::vector<png_color> palette = {};
    std::vector<png_byte> opacity = {}; ///< of the palette's first colours
    double gamma = 0;

    [[nodiscard]] std::string make(const std::vector<std::uint8_t>& rows,
                                   std::uint32_t width) const {
        std::string made;
        auto* job = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
        auto* info = png_create_info_struct(job);
        const auto append = [](png_structp to, png_bytep from, std::size_t count) {
            static_cast<std::string*>(png_get_io_ptr(to))
                ->append(reinterpret_cast<char*>(from), count);
        };
        png_set_write_fn(job, &made, append, nullptr);
        const auto row_bytes = width * (colours == PNG_COLOR_TYPE_RGB ? 3U : 1U);
        const auto height = static_cast<std::uint32_t>(rows.size() / row_bytes);
        png_set_IHDR(job, info, width, height, 8, colours, interlace, PNG_COMPRESSION_TYPE_DEFAULT,
                     PNG_FILTER_TYPE_DEFAULT);
        if (!palette.empty())
            png_set_PLTE(job, info, palette.data(), static_cast<int>(palette.size()));
        if (!opacity.empty())
            png_set_tRNS(job, info, opacity.data(), static_cast<int>(opacity.size()), nullptr);
        if (gamma > 0) png_set_gAMA(job, info, gamma);
        std::vector<png_bytep> at;
        for (std::size_t y = 0; y < height; ++y)
            at.push_back(const_cast<png_bytep>(rows.data() + y * row_bytes));
        png_set_rows(job, info, at.data());
        png_write_png(job, info, PNG_TRANSFORM_IDENTITY, nullptr);
        png_destroy_write_struct(&job, &info);
        return made;
    }
};

TEST_CASE("interlaced rows of a PNG find their place; gamma changes nothing") {
    const auto rows = pixels_of(file("rgb.png"));
    const auto made = png_maker{.interlace = PNG_INTERLACE_ADAM7, .gamma = 1.0}.make(rows, 51);
    CHECK(pixels_of(made) == rows);
    for (std::size_t part = 1; part < 16; ++part)
        CHECK(refused(made.substr(0, made.size() * part / 16)).code == errc::malformed);
}

TEST_CASE("a palette with transparent colours gives its colours, without the transparency") {
    const auto made = png_maker{.colours = PNG_COLOR_TYPE_PALETTE,
                                .palette = {{10, 20, 30}, {40, 50, 60}, {70, 80, 90}},
                                .opacity = {0, 128}}
                          .make({0, 1, 2, 1}, 2);
    CHECK(pixels_of(made) ==
          std::vector<std::uint8_t>{10, 20, 30, 40, 50, 60, 70, 80, 90, 40, 50, 60});
}

TEST_CASE("a file that is cut anywhere is an error, never grey") {
    for (const auto& [name, content] : files())
        for (std::size_t part = 0; part < 16; ++part) {
            CAPTURE(name, part);
            const auto said =
                refused(std::string_view(content).substr(0, content.size() * part / 16));
            CHECK(said.code == errc::malformed);
            if (part == 0)
                CHECK_THAT(said.text, ContainsSubstring("an empty file"));
            else
                CHECK_THAT(said.text, ContainsSubstring(fmt::format("ends after {} bytes",
                                                                    content.size() * part / 16)));
        }
}

TEST_CASE("a flipped bit of a PNG is an error or changes nothing; of a JPEG it is no crash") {
    for (const auto& [name, content] : files()) {
        const auto whole = pixels_of(content);
        std::size_t refusals = 0;
        for (std::size_t bit = 0; bit < content.size() * 8;
             bit += name.ends_with(".png") ? 37 : 97) {
            CAPTURE(name, bit);
            auto flipped = content;
            flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
            try {
                const auto made = pixels_of(flipped);
                if (name.ends_with(".png")) CHECK(made == whole);
            } catch (const error& e) {
                refusals += 1;
                CHECK((e.code() == errc::malformed || e.code() == errc::too_large ||
                       e.code() == errc::not_supported));
            }
        }
        CHECK(refusals > 0);
    }
}

TEST_CASE("bytes that are no JPEG and no PNG are told apart") {
    CHECK_THAT(refused("").text, ContainsSubstring("an empty file is neither JPEG nor PNG"));
    CHECK_THAT(refused("a letter").text, ContainsSubstring("8 bytes that starts with 61 20 6c"));
    CHECK_THAT(refused("<!DOCTYPE html>").text, ContainsSubstring("HTML"));
    CHECK_THAT(refused(std::string("\0\5\26\7\0\2", 6)).text, ContainsSubstring("begin with ._"));
    CHECK_THAT(refused("version https://git-lfs.github.com/spec/v1").text,
               ContainsSubstring("git lfs pull"));
    CHECK(refused("a letter").code == errc::malformed);
    for (const auto& [head, format] : std::vector<std::pair<std::string_view, std::string>>{
             {"GIF89a", "GIF"},
             {"RIFF\x24\x01\x01\x01WEBPVP8 ", "WebP"},
             {std::string_view("BM\x36\x10\0\0\0\0\0\0\x36\0", 12), "BMP"},
             {std::string_view("\0\0\0\x1c"
                               "ftypavif",
                               12),
              "AVIF"},
             {std::string_view("II*\0\x08", 5), "TIFF"}}) {
        CHECK(refused(head).code == errc::not_supported);
        CHECK_THAT(refused(head).text,
                   ContainsSubstring("not supported: a picture in the format " + format));
        CHECK_THROWS_AS(data::image_size(bytes_of(head)), error);
    }
    auto twelve_bits = file("444.jpg");
    twelve_bits[twelve_bits.find("\xff\xc0") + 4] = 12;
    CHECK(refused(twelve_bits).code == errc::not_supported);
    CHECK_THAT(refused(twelve_bits).text, ContainsSubstring("precision 12"));
}

/// The JPEG with another size in its head.
std::string resized_head(std::string content, std::uint16_t height, std::uint16_t width) {
    const auto at = content.find("\xff\xc0");
    for (std::size_t i = 0; i < 2; ++i) {
        content[at + 5 + i] = static_cast<char>(height >> (8 - 8 * i));
        content[at + 7 + i] = static_cast<char>(width >> (8 - 8 * i));
    }
    return content;
}

TEST_CASE("a picture beyond the bound is refused before memory is taken for it") {
    for (const std::string_view name : {"444.jpg", "grey.png"}) {
        const auto said = refused(file(name), {.pixels = 48 * 64 - 1});
        CHECK(said.code == errc::too_large);
        CHECK_THAT(said.text, ContainsSubstring("48x64") && ContainsSubstring("3071") &&
                                  ContainsSubstring("decode_limits"));
        CHECK(refused(file(name), {.pixels = 48 * 64}).text == "it was decoded");
    }
    const auto huge = resized_head(file("444.jpg"), 65'500, 65'500);
    CHECK(refused(huge).code == errc::too_large);
    CHECK_THAT(refused(huge).text,
               ContainsSubstring("65500x65500") && ContainsSubstring("178956970"));
    CHECK(data::image_size(bytes_of(huge)) == data::image_extent{65'500, 65'500});

    data::arena memory; // within the bound, but the file cannot hold that much
    const data::arena_scope scope(memory);
    const auto hollow = resized_head(file("444.jpg"), 13'000, 13'000);
    CHECK_THROWS_WITH(data::decode_image(bytes_of(hollow)), ContainsSubstring("too few"));
    CHECK(memory.used() == 0);
}

TEST_CASE("stray bytes between segments of a JPEG are no damage; a lost restart mark is") {
    auto stray = file("444.jpg");
    stray.insert(stray.find("\xff\xdb"), 3, '\0'); // before the first table
    CHECK(pixels_of(stray) == pixels_of(file("444.jpg")));
    auto lost = file("restarts.jpg");
    const auto mark = lost.find("\xff\xd1");
    REQUIRE(mark != std::string::npos);
    lost.erase(mark, 2);
    CHECK(refused(lost).code == errc::malformed);
    CHECK_THAT(refused(lost).text, ContainsSubstring("is damaged in row"));
}

TEST_CASE("threads decode at the same time") {
    std::vector<std::vector<std::uint8_t>> wanted;
    for (const auto& each : files()) wanted.push_back(pixels_of(each.second));
    std::atomic<int> right = 0, refusals = 0;
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            for (std::size_t i = 0; i < 8 * files().size(); ++i) {
                const auto which = (i + 4 * t) % files().size();
                const std::string_view content = files()[which].second;
                right += pixels_of(content) == wanted[which];
                refusals += refused(content.substr(0, content.size() / 2)).code == errc::malformed;
            }
        });
    for (auto& each : threads) each.join();
    CHECK(right == static_cast<int>(4 * 8 * files().size()));
    CHECK(refusals == right);
}

// ---- in a pipeline ------------------------------------------------------------------------------

struct encoded {
    data::bytes content;
    std::int64_t label = 0;
};
struct decoded {
    data::image<std::uint8_t, 3> pixels;
    std::int64_t label = 0;
};

/// Files of a folder that are named by their numbers.
struct numbered_files {
    std::string folder;
    std::uint64_t count = 0;

    [[nodiscard]] std::uint64_t size() const { return count; }
    [[nodiscard]] encoded read(std::uint64_t i) const {
        std::ifstream in(fmt::format("{}/{}.jpg", folder, i), std::ios::binary);
        const std::string content{std::istreambuf_iterator<char>(in), {}};
        const auto kept = data::arena::current().array<std::byte>(content.size());
        std::ranges::copy(bytes_of(content), kept.begin());
        return {kept, static_cast<std::int64_t>(i)};
    }
    [[nodiscard]] std::string describe() const { return "numbered_files"; }
};
decoded decode(const encoded& e) {
    return {data::resize(data::decode_image(e.content), 24, 32), e.label};
}

TEST_CASE("a pipeline decodes files, whatever their names; a cut one is named with the reason") {
    const skein::test::temporary_folder folder;
    const auto source = numbered_files{folder.path, files().size()};
    const auto write = [&](std::size_t i, std::string_view content) {
        std::ofstream(fmt::format("{}/{}.jpg", source.folder, i), std::ios::binary) << content;
    };
    for (std::size_t i = 0; i < files().size(); ++i) write(i, files()[i].second);
    const auto plan = source | data::map<&decode>() | data::batch(4);
    data::loader whole(plan, {.threads = 2, .epochs = 1});
    std::size_t rows = 0;
    data::arena memory;
    const data::arena_scope scope(memory);
    while (const auto b = whole.next()) {
        CHECK(b->dims(0) == std::vector<std::int64_t>{24, 32, 3});
        for (std::size_t row = 0; row < b->rows(); ++row) {
            const auto made = b->column<0>().subspan(row * 24 * 32 * 3, 24 * 32 * 3);
            const auto wanted =
                data::resize(data::decode_image(bytes_of(files()[rows + row].second)), 24, 32);
            CHECK(std::ranges::equal(made, wanted.values()));
        }
        rows += b->rows();
    }
    CHECK(rows == files().size());

    write(6, std::string_view(files()[6].second).substr(0, 700));
    data::loader strict(plan, {.threads = 2});
    CHECK(strict.next()->rows() == 4);
    CHECK_THROWS_WITH(strict.next(),
                      ContainsSubstring("sample 6") && ContainsSubstring("ends after 700 bytes"));
    data::loader lenient(plan, {.threads = 2, .bad_rows = 1, .epochs = 1});
    std::vector<std::uint64_t> bad;
    while (const auto b = lenient.next())
        for (const auto& one : b->bad()) bad.push_back(one.sample);
    CHECK(bad == std::vector<std::uint64_t>{6});
}

} // namespace decode_test
