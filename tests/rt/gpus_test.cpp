// SPDX-License-Identifier: Apache-2.0
#include <skein/rt/gpus.hpp>

#include <skein/core/error.hpp>

#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using names = std::vector<std::string>;

namespace {

/// CUDA_VISIBLE_DEVICES for a while.
struct variable {
    explicit variable(const char* text) {
        if (const char* const old = std::getenv(rt::gpus_variable)) before = old;
        text != nullptr ? ::setenv(rt::gpus_variable, text, 1) : ::unsetenv(rt::gpus_variable);
    }
    ~variable() {
        before ? ::setenv(rt::gpus_variable, before->c_str(), 1) : ::unsetenv(rt::gpus_variable);
    }
    variable(const variable&) = delete;
    variable& operator=(const variable&) = delete;
    std::optional<std::string> before;
};

} // namespace

TEST_CASE("CUDA_VISIBLE_DEVICES is read as CUDA reads it", "[rt][gpus]") {
    CHECK(rt::gpus_of_variable("4,5", 8) == names{"4", "5"});
    CHECK(rt::gpus_of_variable("5, 4", 8) == names{"5", "4"});
    CHECK(rt::gpus_of_variable("", 8).empty());
    CHECK(rt::gpus_of_variable("4,5", 0).empty());
    CHECK(rt::gpus_of_variable("0,9,1", 8) == names{"0"}); // a gpu that is not there ends the list
    CHECK(rt::gpus_of_variable("1,-1,2", 8) == names{"1"});
    CHECK(rt::gpus_of_variable("1gpu,2", 8) == names{"1", "2"});
    for (const auto* const none : {"NoDevFiles", "none", "void", "-1", ","})
        CHECK(rt::gpus_of_variable(none, 8).empty());
    for (const auto* const twice : {"0,1,0", "GPU-a,GPU-a", "3,03"})
        CHECK(rt::gpus_of_variable(twice, 8).empty());
    CHECK(rt::gpus_of_variable("GPU-ab,GPU-cd", 8) == names{"GPU-ab", "GPU-cd"});
    CHECK(rt::gpus_of_variable("GPU-ab,1", 8) == names{"GPU-ab"});
    // More parts than gpus.
    CHECK(rt::gpus_of_variable("MIG-a,MIG-b,MIG-c", 1) == names{"MIG-a", "MIG-b", "MIG-c"});
    std::string many;
    for (int i = 0; i < 100; ++i) many += "MIG-" + std::to_string(i) + ",";
    CHECK(rt::gpus_of_variable(many, 8).size() == 64);
}

TEST_CASE("what is offered is there, under the names that it has", "[W14][rt][gpus]") {
    rt::gpu_set second;
    second.insert(1);
    CHECK(rt::gpus_by_name(second, {"4", "5"}) == "5");
    CHECK(rt::gpus_by_name(second, {}) == "1");
    CHECK(rt::gpus_by_name({}, {"4", "5"}).empty());
    {
        const variable none("");
        CHECK(rt::gpus_to_offer(std::nullopt, "").empty());
        try {
            (void)rt::gpus_to_offer(rt::amount(2), "--resources");
            FAIL("two of none");
        } catch (const error& e) {
            CHECK(e.code() == errc::usage);
            CHECK(std::string(e.what()).find("--resources offers 2 gpus") != std::string::npos);
        }
    }
    const variable unset(nullptr);
    if (rt::visible_gpus().empty()) // gpus of another maker: who says so is believed
        CHECK(rt::gpus_to_offer(rt::amount(2), "") == names{"0", "1"});
    CHECK_THROWS_AS(rt::gpus_to_offer(rt::amount(65), ""), error);
}

TEST_CASE("who gets no gpu hears what hides it", "[rt][gpus]") {
    const variable none("-1");
    const error why(errc::invalid_argument, "no gpu");
    CHECK(rt::with_gpu_reason(why, rt::amount(1), {}).hint().find("CUDA_VISIBLE_DEVICES=-1") !=
          std::string_view::npos);
    CHECK(rt::with_gpu_reason(why, rt::amount(1), {"0"}).hint().empty());
}

TEST_CASE("a process sees one part of a gpu", "[rt][gpus]") {
    const names parts{"MIG-a", "MIG-b"};
    CHECK(rt::check_gpus_together(rt::amount(1), parts));
    CHECK(rt::check_gpus_together(rt::amount(2), {"0", "1"}));
    const auto two = rt::check_gpus_together(rt::amount(2), parts);
    REQUIRE_FALSE(two);
    CHECK(two.error().code() == errc::invalid_argument);
}
