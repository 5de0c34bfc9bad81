// SPDX-License-Identifier: Apache-2.0
#include <skein/report/progress.hpp>
#include <skein/wire/json.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace skein::report;
using Catch::Matchers::ContainsSubstring;

namespace {

/// A progress display whose output, clock and width belong to the test.
struct screen {
    std::string out;
    double now = 100.0;
    int columns = 100;

    progress_options options(progress_mode mode, std::uint64_t total = 2000) {
        progress_options o;
        o.name = "gpt";
        o.total = total;
        o.mode = mode;
        o.write = [this](std::string_view text) { out += text; };
        o.columns = [this] { return columns; };
        o.clock = [this] { return now; };
        return o;
    }
    std::string take() { return std::exchange(out, {}); }
};

progress_update at(std::uint64_t step) {
    return {.step = step, .loss = 2.31, .tokens_per_s = 5230, .step_seconds = 0.19, .more = {}};
}

} // namespace

TEST_CASE("on a terminal one line is rewritten with bar, loss, speed and time to go") {
    screen s;
    progress p(s.options(progress_mode::terminal));
    s.now += 60;
    p.update(at(500));
    CHECK(s.take() == "\r\x1b[Kgpt   500/2000  [#####---------------]   25%  loss 2.3100  5.23k "
                      "tok/s  190 ms/step  ETA 04:45");
    s.now += 0.05;
    p.update(at(501)); // too soon
    CHECK(s.take().empty());
    p.note("validation loss 2.2");
    CHECK(s.take() == "\r\x1b[Kvalidation loss 2.2\n");
    s.now += 0.1;
    p.update(at(502));
    CHECK_THAT(s.take(), ContainsSubstring("gpt   502/2000"));
    p.finish();
    CHECK(s.take() == "\n");
    p.finish();
    CHECK(s.take().empty());
}

TEST_CASE("the line never reaches the last column, and the loss stays longest") {
    screen s;
    progress p(s.options(progress_mode::terminal));
    s.now += 60;
    auto u = at(500);
    u.more = {{"lr", 6e-4}};
    for (int columns = 1; columns < 200; ++columns) {
        const auto line = p.line(u, columns);
        INFO(columns);
        REQUIRE(line.size() < static_cast<std::size_t>(std::max(columns, 20)));
    }
    CHECK(p.line(u, 31) == "gpt   500/2000  loss 2.3100");
    CHECK_THAT(p.line(u, 41), ContainsSubstring("ETA") && ContainsSubstring("loss") &&
                                  !ContainsSubstring("tok/s"));
    CHECK_THAT(p.line(u, 199), ContainsSubstring("lr 0.0006"));
    u.data_share = 0.031;
    CHECK_THAT(p.line(u, 199), ContainsSubstring("190 ms/step  data 3 %  ETA"));
    u.data_share = 0.004;
    CHECK_THAT(p.line(u, 199), !ContainsSubstring("data"));
}

TEST_CASE("the last update is shown however soon it comes") {
    for (auto mode : {progress_mode::terminal, progress_mode::plain}) {
        screen s;
        progress p(s.options(mode, 3));
        p.update(at(1));
        p.update(at(2));
        s.take();
        p.update(at(3));
        CHECK_THAT(s.take(), ContainsSubstring("3/3") && ContainsSubstring("100%"));
    }
    screen s;
    {
        progress p(s.options(progress_mode::plain, 100));
        p.update(at(1));
        p.update(at(2)); // held back, and the run ends early
        s.take();
    }
    CHECK_THAT(s.out, ContainsSubstring("2/100"));
}

TEST_CASE("in a file there are plain lines at intervals, without control characters") {
    screen s;
    progress p(s.options(progress_mode::plain));
    for (std::uint64_t step = 1; step <= 100; ++step, s.now += 1.0) p.update(at(step));
    const auto text = s.take();
    CHECK(std::count(text.begin(), text.end(), '\n') == 10);
    CHECK(text.find('\r') == std::string::npos);
    CHECK(text.find('\x1b') == std::string::npos);
    CHECK(text.find('#') == std::string::npos);
    CHECK_THAT(text,
               ContainsSubstring(
                   "gpt    11/2000    0%  loss 2.3100  5.23k tok/s  190 ms/step  ETA 06:18\n"));
}

TEST_CASE("quiet says nothing") {
    screen s;
    {
        progress p(s.options(progress_mode::quiet));
        p.update(at(1));
        p.note("x");
        p.event("{}");
        p.finish();
    }
    CHECK(s.out.empty());
}

TEST_CASE("samples per second are not called tokens") {
    screen s;
    auto o = s.options(progress_mode::json_lines);
    o.samples = true;
    progress p(o);
    CHECK_THAT(p.line(at(10), 100), ContainsSubstring("5.23k samples/s"));
    p.update(at(1));
    CHECK_THAT(s.take(),
               ContainsSubstring("\"samples_per_s\":5230") && !ContainsSubstring("tokens"));
}

TEST_CASE("a quiet run shows failures and no notice") {
    screen s;
    progress p(s.options(progress_mode::quiet));
    p.notice("nothing to resume");
    CHECK(s.take().empty());
    p.failure("loss.svg cannot be written");
    CHECK(s.take() == "loss.svg cannot be written\n");
}

TEST_CASE("JSON mode writes one object per line, for every update") {
    screen s;
    progress p(s.options(progress_mode::json_lines));
    s.now += 10;
    p.update(at(1));
    auto line = s.take();
    REQUIRE(line.ends_with("\n"));
    const auto j = skein::parse_json(std::string_view(line)).value();
    CHECK(j["event"] == "step");
    CHECK(j["step"] == 1);
    CHECK(j["total"] == 2000);
    CHECK(j["loss"] == 2.31);
    CHECK(j["eta_seconds"] == 0.19 * 1999);
    p.update(
        {.step = 2, .loss = {}, .tokens_per_s = {}, .step_seconds = {}, .more = {{"lr", 0.5}}});
    CHECK_THAT(s.take(), ContainsSubstring("\"lr\":0.5") && !ContainsSubstring("loss"));
    p.note("a \"quoted\"\nline");
    CHECK(s.take() == "{\"event\":\"note\",\"text\":\"a \\\"quoted\\\"\\nline\"}\n");
    p.event("{\"event\":\"summary\"}");
    CHECK(s.take() == "{\"event\":\"summary\"}\n");
}

TEST_CASE("the time to go counts from where a resumed run began") {
    screen s;
    auto o = s.options(progress_mode::plain, 200);
    o.first = 100;
    progress p(o);
    const auto left = [](const progress& of, std::uint64_t step, std::optional<double> each = {}) {
        return of.seconds_left(
            {.step = step, .loss = {}, .tokens_per_s = {}, .step_seconds = each, .more = {}});
    };
    CHECK_FALSE(left(p, 100));
    s.now += 20.0;
    CHECK(left(p, 150) == 20.0);
    CHECK(left(p, 150, 0.5) == 25.0); // the step time that the line shows, when it shows one
    CHECK(left(p, 200) == 0.0);
    screen unknown;
    progress q(unknown.options(progress_mode::plain, 0));
    CHECK_FALSE(left(q, 10));
    CHECK(q.line(at(10), 100) == "gpt  step 10  loss 2.3100  5.23k tok/s  190 ms/step");
}

TEST_CASE("numbers for people are told by report as by core") {
    CHECK(skein::report::human_seconds(0.19) == "190 ms");
    CHECK(skein::report::human_clock(357) == "05:57");
    CHECK(skein::report::human_count(5230) == "5.23k");
    CHECK(skein::report::human_bytes(1.2e9) == "1.20 GB");
}
