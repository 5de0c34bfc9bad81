// SPDX-License-Identifier: Apache-2.0
#include <skein/proc/gpus.hpp>

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
        if (const char* const old = std::getenv(proc::gpus_variable)) before = old;
        text != nullptr ? ::setenv(proc::gpus_variable, text, 1) : ::unsetenv(proc::gpus_variable);
    }
    ~variable() {
        before ? ::setenv(proc::gpus_variable, before->c_str(), 1)
               : ::unsetenv(proc::gpus_variable);
    }
    variable(const variable&) = delete;
    variable& operator=(const variable&) = delete;
    std::optional<std::string> before;
};

} // namespace

TEST_CASE("CUDA_VISIBLE_DEVICES is read as CUDA reads it", "[rt][gpus]") {
    CHECK(proc::gpus_of_variable("4,5", 8) == names{"4", "5"});
    CHECK(proc::gpus_of_variable("5, 4", 8) == names{"5", "4"});
    CHECK(proc::gpus_of_variable("", 8).empty());
    CHECK(proc::gpus_of_variable("4,5", 0).empty());
    CHECK(proc::gpus_of_variable("0,9,1", 8) ==
          names{"0"}); // a gpu that is not there ends the list
    CHECK(proc::gpus_of_variable("1,-1,2", 8) == names{"1"});
    CHECK(proc::gpus_of_variable("1gpu,2", 8) == names{"1", "2"});
    for (const auto* const none : {"NoDevFiles", "none", "void", "-1", ","})
        CHECK(proc::gpus_of_variable(none, 8).empty());
    for (const auto* const twice : {"0,1,0", "GPU-a,GPU-a", "3,03"})
        CHECK(proc::gpus_of_variable(twice, 8).empty());
    CHECK(proc::gpus_of_variable("GPU-ab,GPU-cd", 8) == names{"GPU-ab", "GPU-cd"});
    CHECK(proc::gpus_of_variable("GPU-ab,1", 8) == names{"GPU-ab"});
    // More parts than gpus.
    CHECK(proc::gpus_of_variable("MIG-a,MIG-b,MIG-c", 1) == names{"MIG-a", "MIG-b", "MIG-c"});
    std::string many;
    for (int i = 0; i < 100; ++i) many += "MIG-" + std::to_string(i) + ",";
    CHECK(proc::gpus_of_variable(many, 8).size() == 64);
}

TEST_CASE("what is offered is there, under the names that it has", "[W14][rt][gpus]") {
    sched::gpu_set second;
    second.insert(1);
    CHECK(proc::gpus_by_name(second, {"4", "5"}) == "5");
    CHECK(proc::gpus_by_name(second, {}) == "1");
    CHECK(proc::gpus_by_name({}, {"4", "5"}).empty());
    {
        const variable none("");
        CHECK(proc::gpus_to_offer(std::nullopt, "").empty());
        try {
            (void)proc::gpus_to_offer(sched::amount(2), "--resources");
            FAIL("two of none");
        } catch (const error& e) {
            CHECK(e.code() == errc::usage);
            CHECK(std::string(e.what()).find("--resources offers 2 gpus") != std::string::npos);
        }
    }
    const variable unset(nullptr);
    if (proc::visible_gpus().empty()) // gpus of another maker: who says so is believed
        CHECK(proc::gpus_to_offer(sched::amount(2), "") == names{"0", "1"});
    CHECK_THROWS_AS(proc::gpus_to_offer(sched::amount(65), ""), error);
}

TEST_CASE("who gets no gpu hears what hides it", "[rt][gpus]") {
    const variable none("-1");
    const error why(errc::invalid_argument, "no gpu");
    CHECK(proc::with_gpu_reason(why, sched::amount(1), {}).hint().find("CUDA_VISIBLE_DEVICES=-1") !=
          std::string_view::npos);
    CHECK(proc::with_gpu_reason(why, sched::amount(1), {"0"}).hint().empty());
}

TEST_CASE("a process sees one part of a gpu", "[rt][gpus]") {
    const names parts{"MIG-a", "MIG-b"};
    CHECK(proc::check_gpus_together(sched::amount(1), parts));
    CHECK(proc::check_gpus_together(sched::amount(2), {"0", "1"}));
    const auto two = proc::check_gpus_together(sched::amount(2), parts);
    REQUIRE_FALSE(two);
    CHECK(two.error().code() == errc::invalid_argument);
}
