// SPDX-License-Identifier: Apache-2.0
#include <skein/core/log.hpp>

#include <catch2/catch_test_macros.hpp>

#include <skein/core/ids.hpp>

#include <string>
#include <thread>
#include <vector>

namespace {
/// Puts level and sink back.
struct restore {
    skein::logging::level before = skein::logging::get_level();
    ~restore() {
        skein::logging::set_level(before);
        skein::logging::set_sink({});
    }
};
skein::logging::record make(std::string_view text,
                            const std::vector<skein::logging::field>& fields) {
    skein::logging::record r;
    r.severity = skein::logging::level::warn;
    r.component = "net";
    r.text = text;
    r.fields = fields;
    r.wall = std::chrono::milliseconds(1'700'000'000'123);
    return r;
}
} // namespace

TEST_CASE("a text line has time, level, component, text and fields") {
    const std::vector<skein::logging::field> fields = {{"peer", std::string("tcp:a:1")},
                                                       {"bytes", 120},
                                                       {"ok", true},
                                                       {"why", "no way"},
                                                       {"node", skein::node_id(7)},
                                                       {"took", std::chrono::milliseconds(1500)},
                                                       {"empty", ""}};
    const auto line = skein::logging::format_text(make("two\nlines", fields));
    // The hour depends on the time zone; the rest is fixed.
    CHECK(line.substr(2, 1) == ":");
    CHECK(line.substr(5) == ":20.123 W net two lines peer=tcp:a:1 bytes=120 ok=true why=\"no way\" "
                            "node=7 took=1.5s empty=\"\"");
}

TEST_CASE("a JSON line keeps numbers as numbers and escapes text") {
    const std::vector<skein::logging::field> fields = {
        {"n", 5}, {"x", 0.5}, {"nan", std::nan("")}, {"flag", false}, {"text", "a\"b\\c\n\x01"}};
    CHECK(skein::logging::format_json(make("said \"hi\"", fields)) ==
          "{\"time_ms\":1700000000123,\"level\":\"warn\",\"component\":\"net\",\"text\":\"said "
          "\\\"hi\\\"\",\"n\":5,\"x\":0.5,\"nan\":\"nan\",\"flag\":false,\"text\":"
          "\"a\\\"b\\\\c\\n\\u0001\"}");
}

TEST_CASE("lines below the level are dropped") {
    const restore after{};
    std::vector<std::string> seen;
    skein::logging::set_sink([&](const skein::logging::record& r) { seen.emplace_back(r.text); });
    skein::logging::set_level(skein::logging::level::warn);
    skein::logging::info("test", "quiet");
    skein::logging::warn("test", "loud", {{"n", 1}});
    skein::logging::error("test", "louder");
    CHECK_FALSE(skein::logging::enabled(skein::logging::level::debug));
    skein::logging::set_level(skein::logging::level::off);
    skein::logging::error("test", "nothing");
    CHECK(seen == std::vector<std::string>{"loud", "louder"});
}

TEST_CASE("lines may come from several threads") {
    const restore after{};
    std::atomic<int> lines = 0;
    skein::logging::set_sink([&](const skein::logging::record&) { ++lines; });
    skein::logging::set_level(skein::logging::level::info);
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([] {
            for (int i = 0; i < 100; ++i) skein::logging::info("test", "line", {{"i", i}});
        });
    threads.clear();
    CHECK(lines == 400);
}

TEST_CASE("control bytes of a peer's text do not reach the terminal") {
    const std::vector<skein::logging::field> fields = {{"peer", "a\rb\x1b[2J\x7f"}};
    const auto line = skein::logging::format_text(make("got \x1b[31m\rred\x7f", fields));
    CHECK(line.find_first_of("\r\x1b\x7f") == std::string::npos);
    CHECK(line.substr(5) ==
          ":20.123 W net got \\x1b[31m\\rred\\x7f peer=\"a\\rb\\u001b[2J\\u007f\"");
}

TEST_CASE("a JSON line is JSON, whatever bytes a peer's text has") {
    const std::vector<skein::logging::field> fields = {{"peer", "a\x9b\xc3\xa4\xc2\x9b"}};
    const auto line = skein::logging::format_json(make("got \xff", fields));
    CHECK(line.find("\"text\":\"got \\ufffd\"") != std::string::npos);
    CHECK(line.find("\"peer\":\"a\\ufffd\xc3\xa4\\u009b\"") != std::string::npos);
}
