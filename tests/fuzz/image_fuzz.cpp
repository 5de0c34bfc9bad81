// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for files of pictures: any input gives pixels or an error, without a crash or a
// leak. What is decoded has the size that its head said, and is the same when it is decoded again.

#include <skein/core/error.hpp>
#include <skein/data/decode.hpp>
#include <tests/fuzz/require.hpp>

#include <algorithm>
#include <optional>
#include <vector>

using namespace skein;

namespace {

using fuzz::require;

/// The result, or nothing after an error that bytes from outside may cause.
template <class F>
auto tried(F f) -> std::optional<decltype(f())> {
    try {
        return f();
    } catch (const error& e) {
        require(e.code() == errc::malformed || e.code() == errc::too_large ||
                    e.code() == errc::not_supported,
                e.what());
        return std::nullopt;
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    // A copy of its own, so that reading beyond it is seen.
    const std::vector<std::uint8_t> copy(data, data + size);
    const auto file = std::as_bytes(std::span(copy));
    // Small, because each of the 500 scans that a JPEG may have goes over all pixels.
    constexpr data::decode_limits limits{.pixels = 1 << 14};
    data::arena memory;
    const data::arena_scope scope(memory);
    const auto extent = tried([&] { return data::image_size(file); });
    const auto first = tried([&] { return data::decode_image(file, limits); });
    const auto second = tried([&] { return data::decode_image(file, limits); });
    require(first.has_value() == second.has_value(), "decoded once, and refused once");
    if (!first) return 0;
    require(extent == data::image_extent{first->height, first->width},
            "the size in the head is not that of the pixels");
    require(std::ranges::equal(first->values(), second->values()), "decoded twice, unlike");
    return 0;
}
