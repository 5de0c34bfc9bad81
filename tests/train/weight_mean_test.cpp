// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/train/weight_mean.hpp>

#include <tests/support/error_of.hpp>
#include <tests/support/memory_weights.hpp>

#include <catch2/catch_test_macros.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace weight_mean_cases {

using namespace skein;
using namespace skein::train;
using skein::test::error_of;
using skein::test::memory_weights;
using skein::test::values_of;

using sources = std::vector<std::unique_ptr<weight_source>>;

std::unique_ptr<memory_weights> source_of(const std::string& path, std::vector<double> w,
                                          double count, const std::string& dtype = "F32") {
    auto made = std::make_unique<memory_weights>(path);
    const auto rows = static_cast<std::int64_t>(w.size());
    made->add("w", {rows}, w, dtype).add("count", {1}, {count}, "I64");
    return made;
}

TEST_CASE("each element is the mean; whole numbers are those of the last") {
    sources of;
    of.push_back(source_of("a", {1, 2, 4}, 10));
    of.push_back(source_of("b", {3, 2, 5}, 20));
    const mean_weights mean(std::move(of));
    CHECK(values_of(mean, "w") == std::vector<double>{2, 2, 4.5});
    CHECK(values_of(mean, "count") == std::vector<double>{20});
    byte_buffer row(4);
    mean.read("w", 2, 1, row);
    double value = 0;
    read_values("F32", row, std::span(&value, 1));
    CHECK(value == 4.5);
}

TEST_CASE("sums of numbers of 16 bits are not rounded before the end") {
    sources of; // 256 + 1 + 1 + 1 in BF16 is 256: its numbers are 2 apart there
    for (const double each : {256.0, 1.0, 1.0, 1.0})
        of.push_back(source_of("x", {each}, 1, "BF16"));
    CHECK(values_of(mean_weights(std::move(of)), "w") == std::vector<double>{65}); // of 64.75
}

TEST_CASE("weights of different models are refused in one message") {
    sources of;
    of.push_back(source_of("first", {1, 2}, 1));
    of.push_back(source_of("second", {1, 2, 3}, 1));
    of.push_back(std::make_unique<memory_weights>("third"));
    const auto why = error_of([&] { mean_weights mean(std::move(of)); });
    CHECK(why.code() == errc::mismatch);
    const std::string said = why.what();
    for (const std::string part : {"w is F32 [2] in first and F32 [3] in second",
                                   "w is F32 [2] in first and not there in third",
                                   "count is I64 [1] in first and not there in third"}) {
        INFO(said);
        const bool found = said.find(part) != std::string::npos;
        CHECK(found);
    }
    CHECK(error_of([] { mean_weights none({}); }).code() == errc::invalid_argument);
}

} // namespace weight_mean_cases
