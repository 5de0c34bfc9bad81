// SPDX-License-Identifier: Apache-2.0
#include <skein/core/posix_disk.hpp>

#include <tests/support/temporary_folder.hpp>

#include <catch2/catch_test_macros.hpp>

#include <sys/stat.h>
#include <unistd.h>

using skein::errc;
using skein::open_mode;

namespace {
struct temporary_folder : skein::test::temporary_folder {
    skein::posix_disk disk;
};
} // namespace

TEST_CASE("what is written is read back, at any offset") {
    temporary_folder dir;
    auto opened = dir.disk.open(dir / "f", open_mode::write);
    REQUIRE(opened);
    auto& f = **opened;
    REQUIRE(f.write_at(0, skein::as_bytes("hello")));
    REQUIRE(f.append(skein::as_bytes(" world")));
    REQUIRE(f.write_at(14, skein::as_bytes("!")));
    REQUIRE(f.size());
    CHECK(*f.size() == 15);
    std::byte part[20];
    const auto got = f.read_at(6, part);
    REQUIRE(got);
    CHECK(skein::to_string(skein::byte_span(part, *got)) == std::string("world\0\0\0!", 9));
    CHECK(*f.read_at(100, part) == 0);
    REQUIRE(f.truncate(5));
    REQUIRE(f.sync());
    REQUIRE(f.close());
    REQUIRE(f.close());
    CHECK(f.sync().error().code() == errc::closed);
    CHECK(skein::to_string(*dir.disk.read_whole(dir / "f")) == "hello");
}

TEST_CASE("modes create, empty, keep or refuse") {
    temporary_folder dir;
    REQUIRE(dir.disk.write_whole(dir / "f", skein::as_bytes("abc")));
    CHECK(dir.disk.open(dir / "f", open_mode::create_new).error().code() == errc::already_exists);
    {
        auto kept = dir.disk.open(dir / "f", open_mode::append);
        REQUIRE(kept);
        REQUIRE((*kept)->append(skein::as_bytes("d")));
    }
    CHECK(skein::to_string(*dir.disk.read_whole(dir / "f")) == "abcd");
    REQUIRE(dir.disk.open(dir / "f", open_mode::write));
    CHECK(dir.disk.read_whole(dir / "f")->empty());
    CHECK(dir.disk.open(dir / "none", open_mode::read).error().code() == errc::not_found);
    CHECK_FALSE(dir.disk.open(dir.path, open_mode::read));
}

TEST_CASE("replace changes the content and leaves nothing beside") {
    temporary_folder dir;
    REQUIRE(dir.disk.replace(dir / "m", skein::as_bytes("one")));
    REQUIRE(dir.disk.replace(dir / "m", skein::as_bytes("two")));
    CHECK(skein::to_string(*dir.disk.read_whole(dir / "m")) == "two");
    const auto inside = dir.disk.list(dir.path);
    REQUIRE(inside);
    REQUIRE(inside->size() == 1);
    CHECK((*inside)[0].name == "m");
    CHECK((*inside)[0].bytes == 3);
}

TEST_CASE("folders are made, listed in order and removed") {
    temporary_folder dir;
    REQUIRE(dir.disk.make_dirs(dir / "a/b/c"));
    REQUIRE(dir.disk.make_dirs(dir / "a/b/c"));
    for (const char* name : {"a/z", "a/y", "a/b/c/deep"})
        REQUIRE(dir.disk.write_whole(dir / name, skein::as_bytes("1")));
    const auto inside = dir.disk.list(dir / "a");
    REQUIRE(inside);
    REQUIRE(inside->size() == 3);
    CHECK((*inside)[0].name == "b");
    CHECK((*inside)[0].is_directory);
    CHECK((*inside)[2].name == "z");
    CHECK_FALSE(dir.disk.remove(dir / "a"));
    REQUIRE(dir.disk.remove_tree(dir / "a"));
    REQUIRE(dir.disk.remove_tree(dir / "a"));
    CHECK(dir.disk.status(dir / "a").error().code() == errc::not_found);
    CHECK(dir.disk.remove(dir / "a").error().code() == errc::not_found);
    CHECK(dir.disk.list(dir / "a").error().code() == errc::not_found);
    CHECK(*dir.disk.free_space(dir.path) > 0);
}

TEST_CASE("a link to a folder is removed, not what it points at") {
    temporary_folder dir;
    REQUIRE(dir.disk.make_dirs(dir / "kept"));
    REQUIRE(dir.disk.write_whole(dir / "kept/f", skein::as_bytes("1")));
    REQUIRE(dir.disk.make_dirs(dir / "gone"));
    REQUIRE(::symlink((dir / "kept").c_str(), (dir / "gone/link").c_str()) == 0);
    REQUIRE(dir.disk.remove_tree(dir / "gone"));
    CHECK(dir.disk.status(dir / "kept/f"));
}

TEST_CASE("a file in the way of a folder is an error, not success") {
    temporary_folder dir;
    REQUIRE(dir.disk.write_whole(dir / "f", skein::as_bytes("1")));
    CHECK_FALSE(dir.disk.make_dirs(dir / "f"));
    CHECK_FALSE(dir.disk.make_dirs(dir / "f/g"));
}

TEST_CASE("a full disk is said to be full") {
    // /dev/full answers every write with ENOSPC.
    skein::posix_disk disk;
    auto full = disk.open("/dev/full", open_mode::append);
    REQUIRE(full);
    const auto done = (*full)->write_at(0, skein::as_bytes("x"));
    REQUIRE_FALSE(done);
    CHECK(done.error().code() == errc::disk_full);
    CHECK(done.error().text() == "write /dev/full: no space left on device");
    CHECK_FALSE(done.error().hint().empty());
}

TEST_CASE("errno is sorted into codes, with path and reason") {
    CHECK(skein::errno_error(EACCES, "open", "p").code() == errc::permission_denied);
    CHECK(skein::errno_error(EROFS, "open", "p").code() == errc::permission_denied);
    CHECK(skein::errno_error(EIO, "sync", "p").code() == errc::io);
    CHECK(skein::errno_error(EMFILE, "open", "p").code() == errc::exhausted);
    CHECK(skein::errno_error(ENOENT, "open", "some/path").text() ==
          "open some/path: no such file or directory");
}

TEST_CASE("removing a tree that is a link removes the link, not what it points at") {
    temporary_folder dir;
    REQUIRE(dir.disk.make_dirs(dir / "target/inner"));
    REQUIRE(dir.disk.write_whole(dir / "target/file", skein::as_bytes("kept")));
    REQUIRE(::symlink((dir / "target").c_str(), (dir / "link").c_str()) == 0);
    REQUIRE(::symlink((dir / "nothing").c_str(), (dir / "dangling").c_str()) == 0);
    REQUIRE(dir.disk.remove_tree(dir / "link"));
    REQUIRE(dir.disk.remove_tree(dir / "dangling"));
    CHECK(skein::to_string(*dir.disk.read_whole(dir / "target/file")) == "kept");
    CHECK(dir.disk.status(dir / "target/inner"));
    CHECK(dir.disk.list(dir.path)->size() == 1);
    REQUIRE(dir.disk.remove_tree(dir / "target"));
    CHECK(dir.disk.list(dir.path)->empty());
    REQUIRE(dir.disk.remove_tree(dir / "target"));
}

TEST_CASE("a pipe in the place of a file is refused at once, for reading and for writing") {
    temporary_folder dir;
    REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
    for (const auto mode : {open_mode::read, open_mode::append, open_mode::write}) {
        const auto opened = dir.disk.open(dir / "pipe", mode);
        REQUIRE_FALSE(opened);
        CHECK(opened.error().code() == errc::malformed);
        CHECK(std::string(opened.error().what()).find("a pipe") != std::string::npos);
    }
}

TEST_CASE("a disk that follows no links leaves what they point at alone") {
    temporary_folder dir;
    dir.disk.write_whole(dir / "target", skein::as_bytes("mine")).value();
    REQUIRE(::symlink((dir / "target").c_str(), (dir / "link").c_str()) == 0);
    skein::posix_disk strict(skein::link_policy::refuse);
    for (const auto mode : {open_mode::read, open_mode::append, open_mode::write}) {
        const auto opened = strict.open(dir / "link", mode);
        REQUIRE_FALSE(opened);
        CHECK(opened.error().code() == errc::permission_denied);
    }
    CHECK(skein::to_string(*dir.disk.read_whole(dir / "link")) == "mine");
    strict.replace(dir / "link", skein::as_bytes("own")).value(); // takes the link's place
    CHECK(skein::to_string(*dir.disk.read_whole(dir / "target")) == "mine");
}
