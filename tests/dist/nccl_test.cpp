// SPDX-License-Identifier: Apache-2.0
// label: cuda
#include <skein/dist/nccl.hpp>

#include <skein/core/bytes.hpp>

#include "support/error_of.hpp"

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

using namespace skein;
using namespace skein::dist;

namespace nccl_test {

bool says(const error& e, const std::string& part) {
    return std::string(e.what()).find(part) != std::string::npos;
}

int version_2_18(int* to) { return *to = 21805, 0; }
int version_2_28(int* to) { return *to = 22809, 0; }
void* of_2_18(const char*) { return reinterpret_cast<void*>(&version_2_18); }
void* version_alone(const char* name) {
    return std::strcmp(name, "ncclGetVersion") == 0 ? reinterpret_cast<void*>(&version_2_28)
                                                    : nullptr;
}

} // namespace nccl_test

TEST_CASE("versions of NCCL read as people write them") {
    CHECK(nccl_version_text(22809) == "2.28.9");
    CHECK(nccl_version_text(23007) == "2.30.7");
    CHECK(nccl_version_text(2804) == "2.8.4");
}

TEST_CASE("an NCCL that is not there, is none, is old or lacks functions is refused") {
    using namespace nccl_test;
    const auto missing = load_nccl({"libskein-no-nccl.so.2"});
    REQUIRE(!missing);
    CHECK(missing.error().code() == errc::not_found);
    CHECK(says(missing.error(), "looked for libskein-no-nccl.so.2"));
    CHECK(says(missing.error(), "nvidia-nccl-cu13"));
    const auto other = load_nccl({"libm.so.6"});
    REQUIRE(!other);
    CHECK(says(other.error(), "it lacks ncclGetVersion"));
    const auto old = nccl_from(&of_2_18, "libnccl.so.2");
    REQUIRE(!old);
    CHECK(old.error().code() == errc::not_supported);
    CHECK(says(old.error(), "NCCL 2.18.5 of libnccl.so.2, which is older than 2.19.0"));
    const auto thin = nccl_from(&version_alone, "libnccl.so.2");
    REQUIRE(!thin);
    CHECK(says(thin.error(), "NCCL 2.28.9 of libnccl.so.2 lacks ncclGetUniqueId"));
}

TEST_CASE("the real NCCL says its version, makes ids and refuses what has no driver by name") {
    // The wheel's that set-up has unpacked for the tests, else what the loader finds.
    const char* unpacked = std::getenv("SKEIN_TEST_NCCL");
    const auto nccl = unpacked ? load_nccl({unpacked}) : load_nccl();
    if (!nccl) SKIP(nccl.error().what());
    CHECK(nccl->version_number >= oldest_nccl);
    nccl_unique_id id{}, other{};
    REQUIRE(nccl->unique_id(&id) == nccl_result::success);
    REQUIRE(nccl->unique_id(&other) == nccl_result::success);
    CHECK(std::memcmp(&id, &other, sizeof id) != 0);

    const auto cuda = load_cuda_runtime();
    if (cuda && cuda_devices(*cuda)) SKIP("this machine has a device, which needs no error");
    nccl_comm comm = nullptr;
    nccl_config config;
    config.blocking = 1;
    const nccl_result outcome = nccl->init_rank(&comm, 1, id, 0, &config);
    CHECK(outcome == nccl_result::unhandled_cuda_error);
    const error why =
        test::error_of([&] { nccl_check(*nccl, outcome, "a communicator of one rank"); });
    INFO(why.what());
    CHECK(nccl_test::says(why, "cannot make a communicator of one rank"));
    CHECK(nccl_test::says(why, "(result 1 of NCCL "));
}
