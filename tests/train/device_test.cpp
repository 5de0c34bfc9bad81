// SPDX-License-Identifier: Apache-2.0
// label: cuda
#include <skein/train/device.hpp>

#include <skein/core/error.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string>

using namespace skein;
using namespace skein::train;

namespace device_test {

std::string refusal(std::string_view asked, const device_survey& there, int ranks) {
    try {
        (void)choose_device(asked, there, ranks);
    } catch (const error& why) {
        CHECK(why.code() == errc::usage);
        return why.what();
    }
    return {};
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

} // namespace device_test

TEST_CASE("the cpu is taken when it is asked for, whatever there is") {
    using namespace device_test;
    const device_survey two{.devices = 2};
    CHECK(choose_device("cpu", two, 1).where.is_cpu());
    CHECK(choose_device("cpu", {}, 8).where.is_cpu());
}

TEST_CASE("automatic takes a device where there is one for each rank, and says why not") {
    using namespace device_test;
    const device_survey two{.devices = 2};
    CHECK(choose_device("automatic", two, 2).where == dist::device::cuda(0));
    CHECK(choose_device("cuda", two, 1).where == dist::device::cuda(0));
    const auto few = choose_device("automatic", two, 3);
    CHECK(few.where.is_cpu());
    CHECK(has(few.why, "3 ranks on a host that shows this process 2 devices"));
    CHECK(has(refusal("cuda", two, 3), "start at most one rank for each device"));
    const device_survey none{.lacking = {{"no driver", "install it"}, {"no half", "build it"}}};
    const auto cpu = choose_device("automatic", none, 1);
    CHECK(cpu.where.is_cpu());
    CHECK(cpu.why == "no driver; no half");
    const auto said = refusal("cuda", none, 1);
    INFO(said);
    CHECK(has(said, "device cuda: no driver; no half"));
    CHECK(has(said, "install it; build it"));
}

TEST_CASE("a kind of device that there is not is refused with those that there are") {
    using namespace device_test;
    const auto said = refusal("gpu", {}, 1);
    CHECK(has(said, "device gpu"));
    CHECK(has(said, "cpu, cuda, and automatic"));
}

TEST_CASE("a survey says what it looked for and what is missing") {
    using namespace device_test;
    const auto there = survey_devices({{"libskein-no-cudart.so.13"}, "libskein-no-torch.so"});
    CHECK(there.devices == 0);
    REQUIRE(there.lacking.size() == 2);
    CHECK(has(there.lacking[0].what, "looked for libskein-no-cudart.so.13"));
    CHECK(has(there.lacking[1].what, "this LibTorch has no CUDA"));
    CHECK(has(there.lacking[1].hint, "scripts/setup --cuda"));
    // What is part of this process is found.
    const auto other = survey_devices({{"libskein-no-cudart.so.13"}, "libc.so.6"});
    CHECK(other.lacking.size() == 1);
}

TEST_CASE("ranks share devices where the communicator carries buffers through the host") {
    using namespace device_test;
    const device_survey one{.devices = 1}, none{.lacking = {{"no driver", "install it"}}};
    CHECK(choose_device("cuda", one, 2, /*may_share=*/true).where == dist::device::cuda(0));
    const auto shared = choose_device("automatic", one, 2, /*may_share=*/true);
    CHECK(shared.where == dist::device::cuda(0));
    CHECK(shared.why == "ranks share what is here");
    CHECK(choose_device("automatic", none, 2, /*may_share=*/true).where.is_cpu());
    const auto said = refusal("cuda", one, 2);
    CHECK(has(said, "2 ranks on a host that shows this process 1 device"));
    CHECK(has(said, "or let them share one by communicator \"host\""));
    CHECK(device_of_rank(3, 1, 2) == 1);
    CHECK(device_of_rank(1, 2, 4) == 2);
    CHECK(device_of_rank(2, 2, 4) == 0);
    CHECK(device_of_rank(2, 0, 0) == 2); // each has its own
}
