// SPDX-License-Identifier: Apache-2.0
#include <skein/train/state_memory.hpp>

#include <tests/train/train_support.hpp>

#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <cstdint>
#include <thread>

#include <sys/statvfs.h>

using namespace train_test;

namespace {

sk::error no_room(const std::string& folder, std::int64_t elements) {
    try {
        (void)make_file_buffer(folder, elements);
    } catch (const sk::error& why) {
        return why;
    }
    return sk::error(sk::errc::unknown, "it was made");
}

} // namespace

TEST_CASE("a buffer in a file is zero, can be written, and leaves nothing behind in its folder") {
    scratch dir;
    auto buffer = make_file_buffer(dir.path, 5000);
    CHECK(std::filesystem::is_empty(dir.path));
    CHECK(buffer.numel() == 5000);
    CHECK(torch::equal(buffer, torch::zeros(5000)));
    buffer.fill_(3.0);
    CHECK(buffer.sum().item<float>() == 15000.0f);
    CHECK(make_file_buffer(dir.path, 0).numel() == 0);
    CHECK(make_state_buffer("", 16).numel() == 16);
}

TEST_CASE("a folder that is none, cannot be written to or is too small is refused in clear words") {
    scratch dir;
    const auto none = no_room(dir.path + "/none", 16);
    CHECK(none.code() == sk::errc::usage);
    CHECK(std::string(none.what()).find(dir.path + "/none: No such file") != std::string::npos);
    CHECK(no_room("/proc", 16).code() == sk::errc::usage);

    struct statvfs about{};
    REQUIRE(::statvfs(dir.path.c_str(), &about) == 0);
    const auto free = static_cast<std::int64_t>(about.f_bavail * about.f_frsize);
    const auto small = no_room(dir.path, free); // four times what is free
    CHECK(small.code() == sk::errc::exhausted);
    CHECK(std::string(small.what()).find("bytes of optimizer state in " + dir.path) !=
          std::string::npos);
    CHECK(small.hint().find("larger disk") != std::string::npos);
    CHECK(std::filesystem::is_empty(dir.path));
}

TEST_CASE(
    "a buffer that is larger than what is free takes nothing from others while it is refused") {
    scratch dir;
    struct statvfs before{};
    REQUIRE(::statvfs(dir.path.c_str(), &before) == 0);
    std::atomic<bool> over{false};
    std::atomic<std::uint64_t> least{before.f_bavail};
    std::thread looks([&] {
        struct statvfs now{};
        while (!over)
            if (::statvfs(dir.path.c_str(), &now) == 0 && now.f_bavail < least)
                least = now.f_bavail;
    });
    const auto refused =
        no_room(dir.path, static_cast<std::int64_t>(before.f_bavail * before.f_frsize));
    over = true;
    looks.join();
    CHECK(refused.code() == sk::errc::exhausted);
    CHECK(least > before.f_bavail / 2);
}
