// SPDX-License-Identifier: Apache-2.0
#include <skein/core/random.hpp>
#include <skein/wire/csv.hpp>

#include <string>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace csv_test {

using namespace skein;
using fields = std::vector<std::string>;

TEST_CASE("fields with commas and quotes come back from a line of CSV", "[wire][csv]") {
    CHECK(split_csv("step,\"val_a,val_b\",epoch") == fields{"step", "val_a,val_b", "epoch"});
    CHECK(split_csv(R"("a ""b"" c",,"")") == fields{R"(a "b" c)", "", ""});
    CHECK(split_csv("") == fields{""});
    CHECK(split_csv(",") == fields{"", ""});
    CHECK(csv_field("loss") == "loss");
    CHECK(csv_field("a,b") == "\"a,b\"");
    CHECK(csv_field("a\nb") == "\"a b\""); // a row stays one line
    CHECK(quoted_csv_field("loss") == "\"loss\"");
}

TEST_CASE("a line of CSV may have the end that Python and Windows give it", "[wire][csv]") {
    CHECK(split_csv("1,0.5\r\n") == fields{"1", "0.5"});
    CHECK(split_csv("1,0.5\r") == fields{"1", "0.5"});
    CHECK(split_csv("1,\"a,b\"\n") == fields{"1", "a,b"});
}

TEST_CASE("a quote amid a field of CSV is a letter, one that never ends takes the rest",
          "[wire][csv]") {
    CHECK(split_csv("5\" disk,1") == fields{"5\" disk", "1"});
    CHECK(split_csv("\"a,b") == fields{"a,b"});
    CHECK(split_csv("\"a\"b,c") == fields{"ab", "c"});
}

TEST_CASE("what is written as fields of CSV is what is read, whatever it holds", "[wire][csv]") {
    seeded_random random(7);
    for (int round = 0; round < 5000; ++round) {
        fields all(1 + random.next() % 5);
        std::string plain, quoted;
        for (auto& one : all) {
            const auto length = random.next() % 8;
            for (std::uint64_t i = 0; i < length; ++i) {
                const auto c = random.next();
                one += c % 3 == 0 ? ",\"' x"[c / 3 % 5] : static_cast<char>(c / 3 % 256);
            }
            std::erase_if(one, [](char c) { return c == '\n' || c == '\r'; });
            plain += (&one == all.data() ? "" : ",") + csv_field(one);
            quoted += (&one == all.data() ? "" : ",") + quoted_csv_field(one);
        }
        CAPTURE(plain);
        REQUIRE(split_csv(plain) == all);
        REQUIRE(split_csv(quoted) == all);
    }
}

} // namespace csv_test
