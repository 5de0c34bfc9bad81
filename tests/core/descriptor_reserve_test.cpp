// SPDX-License-Identifier: Apache-2.0
#include <skein/core/descriptor_reserve.hpp>
#include <skein/core/result.hpp>

#include <support/no_free_descriptors.hpp>

#include <catch2/catch_test_macros.hpp>

#include <fcntl.h>

using skein::descriptor_reserve;
using skein::errc;
using skein::error;
using skein::result;
using skein::unique_fd;
using skein::test::no_free_descriptors;

namespace {

result<int> opens(int& calls) {
    ++calls;
    const unique_fd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!fd) return error(errc::exhausted, "too many open files");
    return calls;
}

} // namespace

TEST_CASE("a reserve gives up its descriptors to a body that has none, and takes them again") {
    if (!no_free_descriptors::works) SKIP("UBSan needs descriptors itself");
    descriptor_reserve reserve(2);
    REQUIRE(reserve.size() == 2);
    const no_free_descriptors tight;
    for (int round = 0; round < 3; ++round) {
        int calls = 0;
        const auto opened = reserve.run([&] { return opens(calls); });
        CHECK(opened.has_value());
        CHECK(calls == 2);
        CHECK(reserve.size() == 2);
    }
}

TEST_CASE("a reserve runs a body again for want of descriptors only, and once") {
    descriptor_reserve reserve;
    int calls = 0;
    CHECK(reserve.run([&] { return opens(calls); }).has_value());
    CHECK(calls == 1);

    calls = 0;
    const auto full = reserve.run([&]() -> result<void> {
        ++calls;
        return error(errc::disk_full, "no space");
    });
    CHECK(full.error().code() == errc::disk_full);
    CHECK(calls == 1);

    calls = 0;
    const auto again = reserve.run([&]() -> result<void> {
        ++calls;
        return error(errc::exhausted, "too many open files");
    });
    CHECK(again.error().code() == errc::exhausted);
    CHECK(calls == 2);
}

TEST_CASE("a reserve that found no descriptors asks for them later") {
    if (!no_free_descriptors::works) SKIP("UBSan needs descriptors itself");
    int calls = 0;
    const auto made = [] {
        const no_free_descriptors tight;
        return descriptor_reserve(2);
    };
    auto reserve = made();
    CHECK(reserve.size() == 0);
    CHECK(reserve.run([&] { return opens(calls); }).has_value());
    CHECK(reserve.size() == 2);
}
