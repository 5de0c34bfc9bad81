// SPDX-License-Identifier: Apache-2.0
#include <skein/core/printable.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string>
#include <string_view>

using skein::printable;
using skein::printable_lines;

TEST_CASE("what a terminal would obey is shown instead") {
    CHECK(printable("ev\x1b[31mil\nfake-node\t1\r") == "ev\\x1b[31mil\\nfake-node\\t1\\r");
    CHECK(printable("\x7f\x07") == "\\x7f\\x07");
    CHECK(printable(std::string_view("a\0b", 3)) == "a\\x00b");
    CHECK(printable("\xc2\x9b"
                    "31m") == "\\xc2\\x9b31m"); // CSI as one character
}

TEST_CASE("letters of all languages stay as they are") {
    for (const std::string_view text :
         {"Knoten-\xc3\xa4", "\xe8\x8a\x82\xe7\x82\xb9", "\xf0\x9f\xa7\xb6", "\xc2\xa0", "\"a b\\"})
        CHECK(printable(text) == text);
}

TEST_CASE("bytes that are not UTF-8 are shown, each for itself") {
    CHECK(printable("\x9b") == "\\x9b");                   // CSI of an 8-bit terminal
    CHECK(printable("\xc0\x8a") == "\\xc0\\x8a");          // a line end, too long
    CHECK(printable("\xe0\x80\x8a") == "\\xe0\\x80\\x8a"); // and longer
    CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80"); // half of a pair
    CHECK(printable("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");
    CHECK(printable("a\xe8\x8a") == "a\\xe8\\x8a"); // cut off
    CHECK(printable("\xe8z") == "\\xe8z");
}

TEST_CASE("a text of several lines keeps them, and nothing else") {
    CHECK(printable_lines("a\n\tb\r\x1b]0;title\x07\n") == "a\n\tb\\r\\x1b]0;title\\x07\n");
}
