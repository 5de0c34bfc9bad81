// SPDX-License-Identifier: Apache-2.0
#include <skein/core/read_number.hpp>

#include <clocale>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <locale>
#include <sstream>
#include <string>

#include <fmt/format.h>

#include <catch2/catch_test_macros.hpp>

using skein::read_double;

namespace {

struct decimal_comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
};

/// While it lives, C++ streams write 0,5, and so does printf() if a locale of this machine does.
struct comma_world {
    comma_world() {
        for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE", "nl_NL.utf8"})
            has_c_locale = has_c_locale || std::setlocale(LC_ALL, name) != nullptr;
    }
    comma_world(const comma_world&) = delete;
    comma_world& operator=(const comma_world&) = delete;
    ~comma_world() {
        std::locale::global(before);
        std::setlocale(LC_ALL, "C");
    }
    std::locale before =
        std::locale::global(std::locale(std::locale::classic(), new decimal_comma));
    bool has_c_locale = false;
};

void check_numbers() {
    CHECK(read_double("0.5") == 0.5);
    CHECK(read_double("-1.25e-3") == -1.25e-3);
    CHECK(read_double("7") == 7.0);
    CHECK(read_double("1e400") == std::nullopt);
    for (const double value : {0.1, -2.5e-300, 1.0 / 3, 6.02e23, 0.0}) {
        CHECK(read_double(fmt::format("{}", value)) == value);
        CHECK(read_double(fmt::format("{:a}", value)) == value);
    }
    CHECK(read_double("inf") == std::numeric_limits<double>::infinity());
    CHECK(read_double("-inf") == -std::numeric_limits<double>::infinity());
    CHECK(std::isnan(read_double("nan").value_or(0)));
    CHECK(std::signbit(read_double("-0x0p+0").value_or(1)));
    for (const char* none : {"", "-", "--1", "0,5", "1.5x", " 1", "0x", "+-1"})
        CHECK(read_double(none) == std::nullopt);
}

} // namespace

TEST_CASE("a number that was written is read back, and nothing else is a number") {
    check_numbers();
}

TEST_CASE("numbers are read alike where people write 0,5") {
    const comma_world here;
    std::ostringstream proof;
    proof << 1234.5;
    REQUIRE(proof.str() == "1.234,5"); // the world is as it says
    check_numbers();
    CHECK(fmt::format("{}", 0.5) == "0.5");
}

TEST_CASE("numbers are read alike under a C locale that writes 0,5") {
    const comma_world here;
    if (!here.has_c_locale) SKIP("no locale with a decimal comma is installed");
    REQUIRE(std::strtod("0.5", nullptr) == 0.0);
    check_numbers();
}
