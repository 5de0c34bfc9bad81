// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/train/weight_map.hpp>

#include <tests/support/error_of.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string>
#include <vector>

using namespace skein;
using namespace skein::train;

namespace weight_map_cases {

using test::error_of;
using shape = std::vector<std::int64_t>;

source_table floats(const std::vector<std::pair<std::string, shape>>& all) {
    source_table table;
    for (const auto& [name, extents] : all) table[name] = {"F32", extents};
    return table;
}
std::vector<wanted_tensor> wanted(const std::vector<std::pair<std::string, shape>>& all) {
    std::vector<wanted_tensor> list;
    for (const auto& [name, extents] : all) list.push_back({name, "F32", extents, {}});
    return list;
}

error misfit(const weight_map& map, const source_table& theirs,
             const std::vector<wanted_tensor>& ours) {
    return error_of([&] { (void)plan_weights(map, theirs, ours, true, "models/x"); });
}
void says(const error& why, std::string_view text) {
    INFO(why.what());
    CHECK(std::string_view(why.what()).find(text) != std::string_view::npos);
}

TEST_CASE("an empty map is for folders with the module's own names") {
    const auto plan = plan_weights({}, floats({{"a", {2, 3}}, {"b", {}}}),
                                   wanted({{"b", {}}, {"a", {2, 3}}}), true, "");
    REQUIRE(plan.tensors.size() == 2);
    CHECK(plan.tensors[0].name == "b");
    CHECK(plan.tensors[0].pieces == std::vector<planned_piece>{{"b", 0, 1, 0}});
    CHECK(plan.tensors[1].pieces == std::vector<planned_piece>{{"a", 0, 2, 0}});
    CHECK_FALSE(plan.tensors[1].turned);
}

TEST_CASE("all that is wrong is said in one message") {
    const auto why = misfit({}, floats({{"a", {2, 3}}, {"x", {1}}, {"d", {4}}}),
                            wanted({{"a", {3, 2}}, {"b", {}}, {"c", {}}, {"d", {4}}}));
    CHECK(why.code() == errc::mismatch);
    says(why, "2 missing in the folder: b, c");
    says(why, "1 that the model has not: x");
    says(why, "a is F32 [2, 3], the model's a is F32 [3, 2]");
    says(why, "models/x");
    CHECK(misfit({}, floats({}), wanted({{"a", {}}})).code() == errc::not_found);
    CHECK(plan_weights({}, floats({{"a", {}}, {"x", {}}}), wanted({{"a", {}}}), false, "")
              .tensors.size() == 1);
    std::vector<std::pair<std::string, shape>> many;
    for (int i = 0; i < 30; ++i) many.push_back({"n" + std::to_string(i), {1}});
    says(misfit({}, {}, wanted(many)), "and 10 more");
}

TEST_CASE("stars stand for one part of a name, and turning is what the map says") {
    weight_map map;
    map.turned("t.h.*.fc.weight", "h.*.fc.weight").same("t.h.*.*.bias", "h.*.*.bias");
    const auto plan =
        plan_weights(map, floats({{"t.h.3.fc.weight", {2, 6}}, {"t.h.3.fc.bias", {6}}}),
                     wanted({{"h.3.fc.weight", {6, 2}}, {"h.3.fc.bias", {6}}}), true, "");
    CHECK(plan.tensors[0].turned);
    CHECK(plan.tensors[0].pieces == std::vector<planned_piece>{{"t.h.3.fc.weight", 0, 6, 0}});
    CHECK_FALSE(plan.tensors[1].turned);
    CHECK(plan.tensors[1].pieces == std::vector<planned_piece>{{"t.h.3.fc.bias", 0, 6, 0}});
    says(misfit(map, floats({{"t.h.0.fc.weight", {6, 2}}}), wanted({{"h.0.fc.weight", {6, 2}}})),
         "stored turned round");
    // A square one is turned, too.
    CHECK(plan_weights(map, floats({{"t.h.0.fc.weight", {2, 2}}}),
                       wanted({{"h.0.fc.weight", {2, 2}}}), true, "")
              .tensors[0]
              .turned);
}

TEST_CASE("several of theirs are one of ours, one of theirs is several, with shares") {
    weight_map map;
    map.joined({"q", "k", "v"}, "qkv", {4, 1, 1}).split("gate_up", {"gate", "up"});
    const auto theirs = floats({{"q", {8, 3}}, {"k", {2, 3}}, {"v", {2, 3}}, {"gate_up", {6, 3}}});
    const auto ours = wanted({{"qkv", {12, 3}}, {"gate", {3, 3}}, {"up", {3, 3}}});
    const auto plan = plan_weights(map, theirs, ours, true, "");
    CHECK(plan.tensors[0].pieces ==
          std::vector<planned_piece>{{"q", 0, 8, 0}, {"k", 0, 2, 8}, {"v", 0, 2, 10}});
    CHECK(plan.tensors[1].pieces == std::vector<planned_piece>{{"gate_up", 0, 3, 0}});
    CHECK(plan.tensors[2].pieces == std::vector<planned_piece>{{"gate_up", 3, 3, 0}});

    auto other = theirs;
    other["q"].shape = {6, 3};
    other["k"].shape = {4, 3};
    says(misfit(map, other, ours), "the map shares out otherwise");
    other = theirs;
    other["k"].shape = {2, 4};
    says(misfit(map, other, ours), "k is F32 [2, 4]");
    other = theirs;
    other["gate_up"].shape = {7, 3}; // a row would be left out
    says(misfit(map, other, ours), "gate_up of [7] rows");
    says(misfit(map, theirs, wanted({{"qkv", {12, 3}}, {"gate", {6, 3}}})), "the model has no up");
}

TEST_CASE("numbers of floating point are cast, others are not") {
    source_table theirs{{"a", {"BF16", {2}}}, {"n", {"I64", {}}}};
    CHECK(plan_weights({}, theirs, {{"a", "F32", {2}, {}}, {"n", "I64", {}, {}}}, true, "")
              .tensors.size() == 2);
    CHECK(misfit({}, theirs, {{"a", "F32", {2}, {}}, {"n", "F32", {}, {}}}).code() ==
          errc::mismatch);
}

TEST_CASE("a tied weight is stored under either name; under both it is compared") {
    weight_map map;
    map.tied("head", "wte");
    const auto ours = wanted({{"wte", {4, 2}}});
    CHECK(plan_weights(map, floats({{"wte", {4, 2}}}), ours, true, "").equal.empty());
    CHECK(plan_weights(map, floats({{"head", {4, 2}}}), ours, true, "").tensors[0].pieces[0].name ==
          "head");
    const auto both =
        plan_weights(map, floats({{"head", {4, 2}}, {"wte", {4, 2}}}), ours, true, "");
    CHECK(both.equal == std::vector<std::pair<std::string, std::string>>{{"wte", "head"}});
    says(misfit(map, floats({{"head", {4, 3}}, {"wte", {4, 2}}}), ours), "is the same tensor");

    // The module registers it twice, and the folder has it under the second name or both.
    const std::vector<wanted_tensor> twice{{"in", "F32", {2}, {"out"}}};
    CHECK(plan_weights({}, floats({{"out", {2}}}), twice, true, "").tensors[0].pieces[0].name ==
          "out");
    CHECK(plan_weights({}, floats({{"in", {2}}, {"out", {2}}}), twice, true, "").equal.size() == 1);
}

TEST_CASE("folders may leave a prefix out, and have what is no weight") {
    weight_map map;
    map.optional_prefix("t.").same("t.w.*", "w.*").ignored("t.mask").tied("head", "t.w.a");
    for (const std::string prefix : {"t.", ""}) {
        const auto plan = plan_weights(
            map, floats({{prefix + "w.a", {2}}, {prefix + "mask", {9}}, {"head", {2}}}),
            wanted({{"w.a", {2}}}), true, "");
        CHECK(plan.tensors[0].pieces[0].name == prefix + "w.a");
        CHECK(plan.equal.size() == 1);
    }
    says(misfit(map, floats({{"t.w.a", {2}}, {"w.a", {2}}}), wanted({{"w.a", {2}}})),
         "there twice");
}

TEST_CASE("the same table leads out of a module") {
    weight_map map;
    map.joined({"q", "k", "v"}, "qkv", {4, 1, 1})
        .split("gate_up", {"gate", "up"})
        .turned("t.*.w", "*.w");
    const auto plan = plan_export(
        map,
        floats({{"qkv", {12, 3}}, {"gate", {3, 3}}, {"up", {3, 3}}, {"0.w", {5, 2}}, {"b", {}}}));
    std::map<std::string, planned_tensor> by_name;
    for (const auto& t : plan.tensors) by_name[t.name] = t;
    REQUIRE(by_name.size() == 6);
    CHECK(by_name["q"].pieces == std::vector<planned_piece>{{"qkv", 0, 8, 0}});
    CHECK(by_name["q"].shape == shape{8, 3});
    CHECK(by_name["v"].pieces == std::vector<planned_piece>{{"qkv", 10, 2, 0}});
    CHECK(by_name["gate_up"].pieces ==
          std::vector<planned_piece>{{"gate", 0, 3, 0}, {"up", 0, 3, 3}});
    CHECK(by_name["t.0.w"].turned);
    CHECK(by_name["t.0.w"].shape == shape{2, 5});
    CHECK(by_name["b"].pieces == std::vector<planned_piece>{{"b", 0, 1, 0}});
    says(error_of([&] { (void)plan_export(map, floats({{"qkv", {11, 3}}})); }), "shared out");
    says(error_of([&] { (void)plan_export(map, floats({{"gate", {3, 3}}})); }), "needs up");
}

TEST_CASE("rules that cannot be followed both ways are refused") {
    weight_map map;
    const auto refused = [&](weight_rule rule) {
        return error_of([&] { map.add(std::move(rule)); }).code() == errc::invalid_argument;
    };
    CHECK(refused({.theirs = {}, .ours = {"a"}}));
    CHECK(refused({.theirs = {"a", "b"}, .ours = {"c", "d"}}));
    CHECK(refused({.theirs = {"a.*"}, .ours = {"a"}}));
    CHECK(refused({.theirs = {"a", "b"}, .ours = {"c"}, .shares = {1}}));
    CHECK(refused({.theirs = {"a", "b"}, .ours = {"c"}, .shares = {1, 0}}));
    CHECK(error_of([&] { map.tied("a.*", "b"); }).code() == errc::invalid_argument);
    CHECK(map.rules().empty());
}

} // namespace weight_map_cases
