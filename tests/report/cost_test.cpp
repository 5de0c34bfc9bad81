// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/report/cost.hpp>
#include <skein/report/run_dir.hpp>

#include <tests/support/temporary_folder.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <fmt/core.h>

namespace cost_test {
namespace {

namespace report = skein::report;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinRel;
using skein::errc;

std::string what_of(const std::function<void()>& call, errc wanted) {
    try {
        call();
    } catch (const skein::error& why) {
        CHECK(why.code() == wanted);
        return why.what();
    }
    return "nothing was thrown";
}

/// A run's rows, as they stand in its file.
std::string run_of(const skein::test::temporary_folder& where, const std::string& name,
                   const std::string& rows) {
    const auto folder = where / name;
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/metrics.jsonl", std::ios::binary) << rows;
    return folder;
}

constexpr const char* three_rows =
    R"({"step":1,"loss":2.0,"world":1,"run_s":10.0,"worker_s":10.0,"unix_s":1000.0})"
    "\n"
    R"({"step":2,"loss":1.0,"test_accuracy":0.5,"world":3,"run_s":20.0,"worker_s":40.0,"worker_kinds":{"spot":20.0},"unix_s":1010.0})"
    "\n"
    R"({"step":3,"loss":0.5,"test_accuracy":0.75,"world":3,"run_s":30.0,"worker_s":70.0,"worker_kinds":{"spot":40.0},"unix_s":1020.0})"
    "\n";

} // namespace

TEST_CASE("worker-seconds are the sum over the time of the number of workers, by kind") {
    report::worker_meter meter;
    meter.begin(100.0, {.all = 2, .by_kind = {{"spot", 1}}});
    CHECK(meter.count(110.0) == report::run_spending{.seconds = 10.0,
                                                     .worker_seconds = 20.0,
                                                     .by_kind = {{"spot", 10.0}}});
    meter.change(115.0, {.all = 5, .by_kind = {{"spot", 3}, {"big", 1}}}); // the 5 s are of two
    CHECK(meter.count(117.0) == report::run_spending{.seconds = 17.0,
                                                     .worker_seconds = 40.0,
                                                     .by_kind = {{"big", 2.0}, {"spot", 21.0}}});
    CHECK(meter.count(50.0).worker_seconds == 40.0); // a clock that has gone back
    CHECK(meter.count(51.0).worker_seconds == 45.0);
    const auto before = meter.count(51.0);
    report::worker_meter again; // of another process
    again.begin(0.0, {.all = 1, .by_kind = {}}, before);
    CHECK(again.count(3.0).worker_seconds == 48.0);
    CHECK(again.count(3.0).by_kind == before.by_kind);
}

TEST_CASE("kinds of workers are short plain names") {
    CHECK(report::parse_worker_kind("").value().empty());
    CHECK(report::parse_worker_kind("spot-2.a_B").value() == "spot-2.a_B");
    for (const std::string bad :
         {"a b", "a=b", "a,b", "\n", "\xc3\xa4", "a23456789b123456789c123456789d123"}) {
        const auto refused = report::parse_worker_kind(bad);
        REQUIRE_FALSE(refused);
        CHECK(refused.error().code() == errc::invalid_argument);
        CHECK_THAT(refused.error().what(), ContainsSubstring("SKEIN_WORKER_KIND is '"));
    }
}

TEST_CASE("prices are money per hour by kind, in their order") {
    CHECK(report::parse_prices("trainer=0.90,spot=0.27").value() ==
          std::vector<report::worker_price>{{"trainer", 0.9}, {"spot", 0.27}});
    CHECK(report::parse_prices("a=0").value()[0].per_hour == 0.0);
    CHECK(report::parse_prices("a=1e-3").value()[0].per_hour == 0.001);
    const std::pair<const char*, const char*> refused[] = {
        {"", "the price '' has no '='"},
        {"0.9", "has no '='"},
        {"trainer=", "is no number"},
        {"trainer=cheap", "is no number"},
        {"trainer=0.9 ", "is no number"},
        {"trainer=inf", "is no number"},
        {"trainer=nan", "is no number"},
        {"trainer=0,9", "the price '9' has no '='"},
        {"trainer=-1", "the price 'trainer=-1' is negative"},
        {"=1", "has no kind"},
        {"a b=1", "has no kind"},
        {"a=1,", "the price '' has no '='"},
        {"a=1,b=2,a=3", "the price 'a=3' is the second of its kind"},
        {"a\x1b[31m=1", "has no kind"},
    };
    for (const auto& [text, says] : refused) {
        INFO(text);
        const auto read = report::parse_prices(text);
        REQUIRE_FALSE(read);
        CHECK(read.error().code() == errc::malformed);
        CHECK_THAT(read.error().what(), ContainsSubstring(says));
        CHECK_THAT(read.error().what(), ContainsSubstring("trainer=0.90,spot=0.27")); // what next
        CHECK(std::string(read.error().what()).find('\x1b') == std::string::npos);
    }
    std::string many = "k0=1";
    for (int i = 1; i < 64; ++i) many += fmt::format(",k{}=1", i);
    CHECK(report::parse_prices(many).value().size() == 64);
    CHECK(report::parse_prices(many + ",last=1").error().code() == errc::too_large);
}

TEST_CASE("money is worker-seconds by the price of their kind; without a kind by the first price") {
    const report::run_spending spent{
        .seconds = 3600, .worker_seconds = 4 * 3600.0, .by_kind = {{"spot", 3 * 3600.0}}};
    const auto money = [&](const char* prices) {
        return report::money_of(spent, report::parse_prices(prices).value());
    };
    CHECK_THAT(money("trainer=0.9,spot=0.25").value(), WithinRel(0.9 + 0.75));
    CHECK_THAT(money("spot=0.25,trainer=0.9").value(), WithinRel(1.0));
    const auto unknown = money("trainer=0.9,sport=0.25");
    REQUIRE_FALSE(unknown);
    CHECK_THAT(unknown.error().what(), ContainsSubstring("workers of kind 'spot' have no price") &&
                                           ContainsSubstring("\"sport\""));
    CHECK(report::money_of(spent, {}).error().code() == errc::invalid_argument);
}

TEST_CASE("the cost of the way to a value is that of the first row which has it") {
    skein::test::temporary_folder where;
    const auto run = report::read_costs(run_of(where, "a", three_rows), "test_accuracy");
    REQUIRE(run.rows.size() == 3);
    CHECK(run.rows[1].workers == 3);
    CHECK(run.rows[0].value == std::nullopt);
    CHECK_FALSE(run.is_cut_short);
    const std::vector<double> values{0.4, 0.5, 0.6, 0.8};
    const auto reached = report::costs_to(run, values, report::better::higher);
    REQUIRE(reached.size() == 4);
    CHECK(reached[0].at->step == 2);
    CHECK(reached[1].at->spent.worker_seconds == 40.0);
    CHECK(reached[2].at->step == 3);
    CHECK_FALSE(reached[3].at);
    CHECK(report::best_value_of(run, report::better::higher) == 0.75);

    const auto losses = report::read_costs(where / "a", "loss");
    CHECK(report::metric_order_of("val_loss") == report::better::lower);
    CHECK(report::metric_order_of("test_accuracy") == report::better::higher);
    CHECK(report::costs_to(losses, std::vector{1.0}, report::better::lower)[0].at->step == 2);
    CHECK(report::metrics_of_rows(where / "a") ==
          std::vector<std::string>{"test_accuracy", "loss"});
}

TEST_CASE("a table, its JSON and two plots have the same numbers") {
    skein::test::temporary_folder where;
    std::vector<report::run_costs> runs;
    for (const char* name : {"fixed", "spot"})
        runs.push_back(report::read_costs(run_of(where, name, three_rows), "test_accuracy"));
    runs[0].folder = "fixed";
    runs[1].folder = "spot";
    report::cost_options how{.metric = "test_accuracy", .values = {0.5, 0.9}};
    how.prices = report::parse_prices("trainer=36,spot=18").value();
    CHECK(report::cost_table(runs, how).value() ==
          "test_accuracy  run                   step  seconds  worker-seconds     money\n"
          "          0.5  fixed                    2     20.0            40.0  0.300000\n"
          "          0.5  spot                     2     20.0            40.0  0.300000\n"
          "          0.9  fixed  never: at best 0.75\n"
          "          0.9  spot   never: at best 0.75\n");
    CHECK_THAT(report::cost_json(runs, how).value(),
               ContainsSubstring(R"({"value":0.5,"step":2,"seconds":20.0,"worker_seconds":40.0,)"
                                 R"("money":0.30000000000000004})") ||
                   ContainsSubstring(R"("money":0.3})"));
    CHECK_THAT(report::seconds_svg(runs, how), ContainsSubstring("test_accuracy by seconds"));
    CHECK_THAT(report::money_svg(runs, how).value(), ContainsSubstring("test_accuracy by money"));
    how.prices = report::parse_prices("trainer=36").value();
    for (const auto& refused : {report::cost_table(runs, how), report::cost_json(runs, how),
                                report::money_svg(runs, how)}) {
        REQUIRE_FALSE(refused);
        CHECK_THAT(refused.error().what(),
                   ContainsSubstring("'spot' have no price") && ContainsSubstring("fixed"));
    }
    how.prices.clear();
    CHECK_THAT(report::money_svg(runs, how).value(), ContainsSubstring("by worker-seconds"));
    CHECK(report::cost_table(runs, how).value().find("money") == std::string::npos);
}

TEST_CASE("values that nobody has asked for lie on the way that all runs have made") {
    skein::test::temporary_folder where;
    const auto curve = [&](const char* name, const std::vector<double>& values) {
        std::string rows;
        for (std::size_t i = 0; i < values.size(); ++i)
            rows += fmt::format(R"({{"step":{0},"x":{1},"world":1,"run_s":{0},"worker_s":{0}}})"
                                "\n",
                                i + 1, values[i]);
        return report::read_costs(run_of(where, name, rows), "x");
    };
    const std::vector runs{curve("a", {0.1, 0.6, 0.9}), curve("b", {0.2, 0.8})};
    const auto up = report::common_values(runs, report::better::higher);
    REQUIRE(up.size() >= 3);
    for (const double value : up) {
        CHECK(value >= 0.2);
        CHECK(value <= 0.8 + 1e-9);
    }
    const std::vector falls{curve("c", {2.0, 1.0}), curve("d", {3.0, 1.5})};
    const auto down = report::common_values(falls, report::better::lower);
    CHECK(down.front() > down.back());
    CHECK(down.back() >= 1.5 - 1e-9);
    const std::vector still{curve("e", {0.5, 0.5})};
    CHECK(report::common_values(still, report::better::higher) == std::vector{0.5});
}

TEST_CASE("what is no run, has no times or no such metric is said with what to do") {
    skein::test::temporary_folder where;
    const auto why = [&](const std::string& folder, errc code, const char* metric = "loss") {
        return what_of([&] { (void)report::read_costs(folder, metric); }, code);
    };
    CHECK_THAT(why(where / "nowhere", errc::not_found),
               ContainsSubstring("is no folder of a run: it has no metrics.jsonl"));
    CHECK_THAT(why(run_of(where, "empty", ""), errc::not_found), ContainsSubstring("no rows yet"));
    CHECK_THAT(why(run_of(where, "old", "{\"step\":1,\"loss\":2.0}\n"), errc::not_found),
               ContainsSubstring("the row of step 1 has no times of workers") &&
                   ContainsSubstring("line 1") && ContainsSubstring("train the run anew"));
    const auto rows = run_of(where, "rows", three_rows);
    CHECK_THAT(why(rows, errc::not_found, "val_loss"),
               ContainsSubstring("no row has a 'val_loss'") &&
                   ContainsSubstring("\"loss\", \"test_accuracy\""));
    CHECK_THAT(why(run_of(where, "text", std::string(three_rows) + "hello\n"), errc::malformed),
               ContainsSubstring("line 4"));
    for (const char* bad :
         {R"({"step":4,"loss":1.0,"world":1,"run_s":40.0,"worker_s":60.0})", // less than before
          R"({"step":4,"loss":1.0,"world":1,"run_s":-1.0,"worker_s":80.0})", // negative
          R"({"step":4,"loss":1.0,"world":1,"run_s":"x","worker_s":80.0})",  // a text
          R"({"step":4,"loss":1.0,"world":1,"run_s":40.0,"worker_s":null})", // not finite
          R"({"step":4,"loss":1.0,"run_s":40.0,"worker_s":80.0})",           // of nobody
          R"({"step":4,"loss":1.0,"world":1,"run_s":40.0,"worker_s":80.0,"worker_kinds":{"":1}})",
          R"({"step":4,"loss":1.0,"world":1,"run_s":40.0,"worker_s":80.0,"worker_kinds":[1]})",
          "[4]"}) {
        INFO(bad);
        CHECK_THAT(why(run_of(where, "bad", std::string(three_rows) + bad + "\n"), errc::malformed),
                   ContainsSubstring("line 4"));
    }
    // A run that is at work may be in the middle of a row.
    const auto cut = report::read_costs(
        run_of(where, "cut", std::string(three_rows) + R"({"step":4,"loss":0.1,"wor)"), "loss");
    CHECK(cut.rows.size() == 3);
    CHECK(cut.is_cut_short);
}

TEST_CASE("a run folder's rows say what it has cost, and its table does not") {
    skein::test::temporary_folder where;
    auto run = report::run_dir::create(where.path, "r");
    const report::run_spending spent{
        .seconds = 1.5, .worker_seconds = 4.5, .by_kind = {{"spot", 3.0}}, .unix_seconds = 1000.25};
    CHECK(report::last_spending(run.path()) == report::run_spending{});
    run.append({.step = 1,
                .values = {{"loss", 2.0}},
                .timings = {{"step_seconds", 0.5}},
                .arrays = {},
                .spent = spent,
                .workers = 3});
    CHECK(where.text("r/metrics.csv") == "step,loss\n1,2\n");
    CHECK(where.text("r/metrics.jsonl") ==
          "{\"step\":1,\"loss\":2.0,\"step_seconds\":0.5,\"world\":3,\"run_s\":1.5,"
          "\"worker_s\":4.5,\"worker_kinds\":{\"spot\":3.0},\"unix_s\":1000.25}\n");
    CHECK(report::last_spending(run.path()) == spent);
    const auto read = report::parse_cost_row(
        where.text("r/metrics.jsonl").substr(0, where.text("r/metrics.jsonl").size() - 1), "loss");
    CHECK(read.value() == report::cost_row{.step = 1, .workers = 3, .spent = spent, .value = 2.0});
    // The last whole row counts, however long it is.
    const report::metric_array wide{"wide", {40'000}, std::vector<double>(40'000, 0.125)};
    auto more = spent;
    more.worker_seconds = 9.0;
    run.append({.step = 2,
                .values = {{"loss", 1.0}},
                .timings = {},
                .arrays = {wide},
                .spent = more,
                .workers = 3});
    std::ofstream(run.file("metrics.jsonl"), std::ios::binary | std::ios::app) << "{\"step\":3,";
    CHECK(report::last_spending(run.path()) == more);
}

} // namespace cost_test
