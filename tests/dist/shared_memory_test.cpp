// SPDX-License-Identifier: Apache-2.0
#include <skein/dist/shared_memory.hpp>

#include <catch2/catch_test_macros.hpp>

#include <filesystem>
#include <fstream>
#include <string>

using namespace skein;
using skein::dist::shared_memory;

namespace {

/// Mappings of this process that come from our segments.
int mapped() {
    std::ifstream maps("/proc/self/maps");
    int n = 0;
    for (std::string line; std::getline(maps, line);)
        n += line.find("memfd:skein") != std::string::npos;
    return n;
}
int descriptors() {
    int n = 0;
    for (const auto& e : std::filesystem::directory_iterator("/proc/self/fd"))
        n += e.exists() || true;
    return n;
}

} // namespace

TEST_CASE("two mappings of a segment see the same bytes") {
    auto a = shared_memory::create(8192);
    auto b = shared_memory::attach(a.path(), 8192);
    REQUIRE(a.data() != b.data());
    CHECK(a.data()[100] == std::byte{0});
    a.data()[100] = std::byte{42};
    CHECK(b.data()[100] == std::byte{42});
}

TEST_CASE("a segment has no name in any folder and leaves nothing behind") {
    const int fds = descriptors();
    {
        auto a = shared_memory::create(1 << 20);
        auto b = shared_memory::attach(a.path(), 1 << 20);
        auto moved = std::move(a);
        CHECK(mapped() == 2);
        if (std::filesystem::exists("/dev/shm")) {
            for (const auto& e : std::filesystem::directory_iterator("/dev/shm")) {
                CHECK(e.path().string().find("skein") == std::string::npos);
            }
        }
        moved.hide();
        CHECK(descriptors() == fds);
    }
    CHECK(mapped() == 0);
    CHECK(descriptors() == fds);
}

TEST_CASE("a segment of another size or that is gone is refused with a reason") {
    auto a = shared_memory::create(8192);
    const std::string path = a.path();
    try {
        auto b = shared_memory::attach(path, 4096);
        FAIL("attached");
    } catch (const error& e) {
        CHECK(e.code() == errc::mismatch);
        CHECK(std::string(e.what()).find("8192") != std::string::npos);
    }
    a.hide();
    CHECK_THROWS_AS(shared_memory::attach(path, 8192), error);
}
