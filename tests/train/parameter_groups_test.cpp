// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/train/parameter_groups.hpp>

#include <catch2/catch_test_macros.hpp>

#include <limits>
#include <string>
#include <vector>

using namespace skein::train;

namespace {

const std::vector<std::int64_t> matrix{4, 3}, vector{4};
const std::vector<parameter_info> four{
    {"in.weight", matrix}, {"in.bias", vector}, {"out.weight", matrix}, {"out.bias", vector}};

double matrices_only(const parameter_info& p) { return p.dims() >= 2 ? 0.1 : 0.0; }

auto named(std::string prefix) {
    return [prefix = std::move(prefix)](const parameter_info& p) {
        return p.name.starts_with(prefix);
    };
}

skein::error refused(const parameter_groups& groups) {
    try {
        (void)effects_of(groups, four, matrices_only);
    } catch (const skein::error& why) {
        return why;
    }
    return skein::error(skein::errc::unknown, "nothing was refused");
}

} // namespace

TEST_CASE("without groups every parameter takes the optimizer's own decay and the whole rate") {
    const std::vector<update_effect> wanted{
        {1.0, 0.1, false}, {1.0, 0.0, false}, {1.0, 0.1, false}, {1.0, 0.0, false}};
    CHECK(effects_of({}, four, matrices_only) == wanted);
}

TEST_CASE("the first group that matches counts, and a group's decay is for vectors too") {
    const parameter_groups groups{
        {.match = [](const parameter_info& p) { return p.name == "in.weight"; }, .lr_scale = 0.5},
        {.match = named("in"), .weight_decay = 0.3},
        {.match = [](const parameter_info& p) { return p.dims() == 1; }, .frozen = true}};
    const std::vector<update_effect> wanted{
        {0.5, 0.1, false}, {1.0, 0.3, false}, {1.0, 0.1, false}, {1.0, 0.0, true}};
    CHECK(effects_of(groups, four, matrices_only) == wanted);
}

TEST_CASE("a group that matches nothing is refused with the names there are") {
    const auto why = refused({{.match = named("in")}, {.match = named("norm")}});
    CHECK(why.code() == skein::errc::usage);
    CHECK(std::string(why.what()).find("parameter group 2 matches none of the 4") !=
          std::string::npos);
    CHECK(why.hint().find("in.weight, in.bias, out.weight, out.bias") != std::string::npos);

    const auto behind = refused({{.match = named("in")}, {.match = named("in.bias")}});
    CHECK(behind.code() == skein::errc::usage);
    CHECK(std::string(behind.what()).find("group 2 matches belongs to groups before") !=
          std::string::npos);
}

TEST_CASE("groups without a predicate or with senseless numbers are refused by number") {
    const auto nan = std::numeric_limits<double>::quiet_NaN();
    const std::vector<parameter_group> bad{{.match = {}},
                                           {.match = named("in"), .lr_scale = -1.0},
                                           {.match = named("in"), .lr_scale = nan},
                                           {.match = named("in"), .weight_decay = -0.1},
                                           {.match = named("in"), .weight_decay = nan}};
    for (const auto& g : bad) {
        const auto why = refused({{.match = named("out")}, g});
        CHECK(why.code() == skein::errc::usage);
        CHECK(std::string(why.what()).find("parameter group 2 has") != std::string::npos);
    }
}
