// SPDX-License-Identifier: Apache-2.0
#include <skein/core/units.hpp>

#include <cmath>
#include <limits>

#include <catch2/catch_test_macros.hpp>

using namespace skein;

TEST_CASE("what is measured has three digits and decimal units") {
    CHECK(human_seconds(0.00002) == "20 us");
    CHECK(human_seconds(0.0019) == "1.9 ms");
    CHECK(human_seconds(0.19) == "190 ms");
    CHECK(human_seconds(1.254) == "1.25 s");
    CHECK(human_seconds(61.26) == "61.3 s");
    CHECK(human_seconds(600) == "10:00");
    CHECK(human_seconds(std::nan("")) == "?");
    CHECK(human_clock(357) == "05:57");
    CHECK(human_clock(3723) == "1:02:03");
    CHECK(human_clock(3 * 86400 + 4 * 3600) == "3d 04h");
    CHECK(human_clock(-1) == "--:--");
    CHECK(human_count(812) == "812");
    CHECK(human_count(5230) == "5.23k");
    CHECK(human_count(999.4) == "999");
    CHECK(human_count(999.9) == "1.00k");
    CHECK(human_count(1.3e6) == "1.30M");
    CHECK(human_count(-5230) == "-5.23k");
    CHECK(human_count(std::numeric_limits<double>::infinity()) == "?");
    CHECK(human_bytes(1.2e9) == "1.20 GB");
    CHECK(human_bytes(345e6) == "345 MB");
    CHECK(human_bytes(10) == "10 B");
    CHECK(human_bytes(4e18) == "4000000 TB");
}

TEST_CASE("the cost of a piece of work has fixed decimals, so that a column of them lines up") {
    CHECK(cost_seconds(4.561e-6) == "4.56 us");
    CHECK(cost_seconds(1e-4) == "0.10 ms");
    CHECK(cost_seconds(0.00123) == "1.23 ms");
    CHECK(cost_seconds(2) == "2.00 s");
    CHECK(cost_bytes(12) == "12 bytes");
    CHECK(cost_bytes(602'112) == "602.1 kB");
    CHECK(cost_bytes(1'234'500'000) == "1234.5 MB");
}

TEST_CASE("memory and files have binary units") {
    CHECK(binary_bytes(0) == "0 bytes");
    CHECK(binary_bytes(1023) == "1023 bytes");
    CHECK(binary_bytes(1024) == "1.0 KiB");
    CHECK(binary_bytes(std::uint64_t{3} << 29) == "1.5 GiB");
    CHECK(binary_bytes(std::uint64_t{1} << 60) == "1048576.0 TiB");
    CHECK(binary_part(512, 2048) == "0.5 of 2.0 KiB");
    CHECK(binary_part(std::uint64_t{25} << 19, std::uint64_t{300} << 20) == "12.5 of 300.0 MiB");
    CHECK(gibibytes(0) == "0");
    CHECK(gibibytes(std::uint64_t{3} << 29) == "1.5");
}

TEST_CASE("a time that has passed is told in its two largest units") {
    CHECK(elapsed_text(999) == "0 s");
    CHECK(elapsed_text(5'000) == "5 s");
    CHECK(elapsed_text(725'000) == "12 min 5 s");
    CHECK(elapsed_text(11'520'000) == "3 h 12 min");
    CHECK(elapsed_text(183'600'000) == "2 d 3 h");
}
