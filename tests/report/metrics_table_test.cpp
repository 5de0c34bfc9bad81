// SPDX-License-Identifier: Apache-2.0
#include <skein/report/metrics_table.hpp>

#include <cmath>
#include <string>

#include <catch2/catch_test_macros.hpp>

namespace metrics_table_test {

using namespace skein::report;

TEST_CASE("a table has names and rows, of which some have fewer cells", "[report]") {
    const metrics_table table("step,loss,\"a,b\"\n10,0.5,7\n20,\n30,nan,x\n40,0.");
    CHECK(table.names() == std::vector<std::string>{"step", "loss", "a,b"});
    CHECK(table.begins_with_step());
    REQUIRE(table.size() == 3); // the last line has no end
    CHECK(table.row(1) == "20,");
    CHECK(table.cells(0) == std::vector<std::string>{"10", "0.5", "7"});
    CHECK(step_of(table.row(2)) == 30);
    CHECK(number_of(table.cells(0)[1]) == 0.5);
    CHECK_FALSE(number_of(table.cells(1)[1]));
    CHECK(std::isnan(number_of(table.cells(2)[1]).value_or(0)));
    CHECK_FALSE(number_of(table.cells(2)[2]));
    CHECK_FALSE(step_of("loss,1"));
    CHECK_FALSE(step_of(""));
}

TEST_CASE("a line without an end is a row for those that want it", "[report]") {
    const metrics_table all("step,loss\n10,0.5\n20,0.", torn_line::row);
    REQUIRE(all.size() == 2);
    CHECK(all.row(1) == "20,0.");
    CHECK(metrics_table("step,loss", torn_line::row).names().size() == 2);
    CHECK(metrics_table("step,loss").names().empty());
    CHECK(metrics_table("").names().empty());
    CHECK_FALSE(metrics_table("").begins_with_step());
    CHECK(metrics_table("step\n", torn_line::row).size() == 0);
    CHECK_FALSE(metrics_table("\n").begins_with_step());
}

TEST_CASE("the end of a table has the last number of each column, under any of its names",
          "[report]") {
    const last_values last("step,train_loss,max_steps,step_seconds\n1,2,90,\n2,1.5,,x\n3,,\n");
    CHECK(last.of(column::step) == 3);
    CHECK(last.of(column::loss) == 1.5);
    CHECK(last.of(column::steps) == 90);
    CHECK_FALSE(last.of(column::step_seconds));
    CHECK_FALSE(last.of(column::epoch));
    const last_values both("lr,learning_rate\n,0.5\n");
    CHECK(both.of(column::learning_rate) == 0.5); // the first name has no number
    CHECK_FALSE(last_values("step,loss").of(column::step));
}

TEST_CASE("a column that was silent for many rows has no last number", "[report]") {
    std::string text = "step,epoch\n0,1\n";
    for (std::size_t i = 1; i < last_values::most_rows; ++i) text += std::to_string(i) + ",\n";
    CHECK(last_values(text).of(column::epoch) == 1);
    text += "64,\n";
    CHECK_FALSE(last_values(text).of(column::epoch));
    CHECK(last_values(text).of(column::step) == 64);
}

} // namespace metrics_table_test
