// SPDX-License-Identifier: Apache-2.0
#include <skein/core/file_beside.hpp>
#include <tests/support/temporary_folder.hpp>

#include <cerrno>
#include <string>
#include <string_view>

#include <sys/stat.h>

#include <catch2/catch_test_macros.hpp>

namespace file_beside_test {

using namespace skein;

std::string content(const std::string& path) {
    posix_disk disk;
    const auto bytes = disk.read_whole(path);
    return bytes ? std::string(as_text(*bytes)) : "(" + std::string(bytes.error().what()) + ")";
}

bool is_there(const std::string& path) {
    struct stat info{};
    return ::lstat(path.c_str(), &info) == 0;
}

TEST_CASE("a file beside takes the place of another at once, with its mode and still open",
          "[core]") {
    const test::temporary_folder folder;
    const auto path = folder / "it", beside = path + ".new";
    for (const std::string_view text : {"first", "second"}) {
        file_beside fresh(beside, 0600);
        REQUIRE(fresh);
        CHECK(fresh.path() == beside);
        REQUIRE(fresh.append(as_bytes(text.substr(0, 2))));
        REQUIRE(fresh.append(as_bytes(text.substr(2))));
        CHECK(content(path) != text);
        REQUIRE(fresh.take_place(path));
        CHECK(content(path) == text);
        CHECK_FALSE(is_there(beside));
    }
    struct stat info{};
    REQUIRE(::stat(path.c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0600);
    unique_fd kept;
    {
        file_beside fresh(beside, 0600);
        REQUIRE(fresh.take_place(path));
        kept = fresh.release();
    }
    struct stat held{};
    REQUIRE(::fstat(kept.get(), &held) == 0);
    REQUIRE(::stat(path.c_str(), &info) == 0);
    CHECK(held.st_ino == info.st_ino);
}

TEST_CASE("a file that does not get to its place is removed, and the old one stays", "[core]") {
    const test::temporary_folder folder;
    const auto path = folder / "it", beside = path + ".new";
    {
        file_beside fresh(path, 0600);
        REQUIRE((fresh.append(as_bytes(std::string_view("old"))) && fresh.take_place(path)));
    }
    {
        file_beside fresh(beside, 0600);
        REQUIRE(fresh.append(as_bytes(std::string_view("half"))));
        CHECK(is_there(beside));
    }
    CHECK_FALSE(is_there(beside));
    {
        file_beside fresh(beside, 0600);
        CHECK_FALSE(fresh.take_place(folder / "no/such/folder"));
        CHECK(errno == ENOENT);
    }
    CHECK_FALSE(is_there(beside));
    CHECK(content(path) == "old");
}

TEST_CASE("what a killed process has left is removed only where that was asked for", "[core]") {
    const test::temporary_folder folder;
    const auto beside = folder / "it.new";
    REQUIRE(::symlink("/nowhere", beside.c_str()) == 0);
    {
        const file_beside fresh(beside, 0600);
        CHECK_FALSE(fresh);
        CHECK(errno == EEXIST);
    }
    CHECK(is_there(beside)); // it is another's
    const file_beside fresh(beside, 0600, left_over::removed);
    REQUIRE(fresh);
    struct stat info{};
    REQUIRE(::lstat(beside.c_str(), &info) == 0);
    CHECK(S_ISREG(info.st_mode));
}

} // namespace file_beside_test
