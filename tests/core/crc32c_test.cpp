// SPDX-License-Identifier: Apache-2.0
#include <skein/core/crc32c.hpp>

#include <catch2/catch_test_macros.hpp>

#include <skein/core/philox.hpp>

namespace {
std::uint32_t by_table(skein::byte_span bytes) {
    return ~skein::detail::crc32c_table(~0u, bytes.data(), bytes.size());
}
} // namespace

TEST_CASE("the known values of CRC-32C come out, by instruction and by table") {
    // RFC 3720 B.4
    const skein::byte_buffer zeros(32), ones(32, std::byte{0xFF});
    skein::byte_buffer up(32);
    for (std::size_t i = 0; i < 32; ++i) up[i] = static_cast<std::byte>(i);
    CHECK(skein::crc32c(skein::as_bytes("123456789")) == 0xE3069283);
    CHECK(by_table(skein::as_bytes("123456789")) == 0xE3069283);
    CHECK(skein::crc32c({}) == 0);
    CHECK(skein::crc32c(zeros) == 0x8A9136AA);
    CHECK(skein::crc32c(ones) == 0x62A8AB43);
    CHECK(skein::crc32c(up) == 0x46DD794E);
    CHECK(by_table(zeros) == 0x8A9136AA);
    CHECK(by_table(ones) == 0x62A8AB43);
    CHECK(by_table(up) == 0x46DD794E);
}

TEST_CASE("instruction and table agree for every length and alignment") {
    skein::byte_buffer data(20'000);
    skein::philox_stream random(1);
    for (auto& b : data) b = static_cast<std::byte>(random.next());
    for (std::size_t n = 0; n < data.size(); n = n < 100 ? n + 1 : n + 997)
        for (std::size_t from = 0; from < 9 && from + n <= data.size(); ++from) {
            const auto part = skein::byte_span(data).subspan(from, n);
            REQUIRE(skein::crc32c(part) == by_table(part));
        }
}

TEST_CASE("a sum can be continued") {
    const auto whole = skein::to_buffer(std::string(10'000, 'k') + "tail");
    for (const std::size_t cut : {0, 1, 7, 3072, 9999, 10'004}) {
        const auto head = skein::crc32c(skein::byte_span(whole).first(cut));
        REQUIRE(skein::crc32c(skein::byte_span(whole).subspan(cut), head) == skein::crc32c(whole));
    }
}
