// SPDX-License-Identifier: Apache-2.0
// What every disk promises, as one suite: run against the real one and the simulated one.
//
//     TEST_CASE("...") { test::disk_laws(disk, folder); }     // folder: exists, empty, durable
#pragma once

#include <skein/core/disk.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string>
#include <string_view>

namespace skein::test {

namespace disk_law {

inline std::string text_of(disk& d, const std::string& path) {
    const auto whole = d.read_whole(path);
    return whole ? std::string(as_text(*whole))
                 : "? " + std::string(to_string(whole.error().code()));
}
template <class T>
errc code_of(const result<T>& r) {
    return r ? errc{} : r.error().code();
}

inline void bytes_are_where_they_were_written(disk& d, const std::string& at) {
    const auto path = join_path(at, "bytes");
    auto f = d.open(path, open_mode::write);
    REQUIRE(f);
    CHECK((*f)->size().value() == 0);
    REQUIRE((*f)->write_at(3, as_bytes("defg")));
    REQUIRE((*f)->write_at(0, as_bytes("abc")));
    REQUIRE((*f)->append(as_bytes("hi")));
    byte_buffer into(4);
    CHECK((*f)->read_at(2, into).value() == 4);
    CHECK(as_text(into) == "cdef");
    CHECK((*f)->read_at(7, into).value() == 2); // fewer at the end
    CHECK((*f)->read_at(9, into).value() == 0);
    CHECK((*f)->read_at(900, into).value() == 0);
    REQUIRE((*f)->truncate(2));
    REQUIRE((*f)->truncate(4)); // extends with zeros
    CHECK(text_of(d, path) == std::string_view("ab\0\0", 4));
    REQUIRE((*f)->write_at(6, as_bytes("x"))); // so does a write behind the end
    CHECK(text_of(d, path) == std::string_view("ab\0\0\0\0x", 7));
    REQUIRE((*f)->sync());
    REQUIRE((*f)->close());
    CHECK((*f)->close());
    CHECK(code_of((*f)->append(as_bytes("y"))) == errc::closed);
    CHECK(code_of((*f)->sync()) == errc::closed);
}

inline void modes_do_what_they_say(disk& d, const std::string& at) {
    const auto path = join_path(at, "modes");
    CHECK(code_of(d.open(path, open_mode::read)) == errc::not_found);
    REQUIRE(d.open(path, open_mode::create_new));
    CHECK(code_of(d.open(path, open_mode::create_new)) == errc::already_exists);
    REQUIRE(d.write_whole(path, as_bytes("one")));
    {
        auto f = d.open(path, open_mode::append);
        REQUIRE(f);
        REQUIRE((*f)->append(as_bytes("two")));
        auto reader = d.open(path, open_mode::read);
        REQUIRE(reader);
        CHECK((*reader)->size().value() == 6); // seen at once by others
        CHECK_FALSE((*reader)->append(as_bytes("no")));
    }
    CHECK(text_of(d, path) == "onetwo");
    REQUIRE(d.open(path, open_mode::write)); // empties it
    CHECK(text_of(d, path).empty());
    CHECK(code_of(d.open(join_path(at, "nowhere/x"), open_mode::write)) == errc::not_found);
    CHECK_FALSE(d.open(at, open_mode::write)); // a folder
}

inline void names_move_and_go(disk& d, const std::string& at) {
    const auto a = join_path(at, "a"), b = join_path(at, "b");
    REQUIRE(d.write_whole(a, as_bytes("new")));
    REQUIRE(d.write_whole(b, as_bytes("old")));
    auto reader = d.open(b, open_mode::read);
    REQUIRE(reader);
    REQUIRE(d.rename(a, b)); // replaces
    CHECK(text_of(d, b) == "new");
    CHECK(code_of(d.status(a)) == errc::not_found);
    byte_buffer into(3);
    CHECK((*reader)->read_at(0, into).value() == 3); // who had it open keeps the old one
    CHECK(as_text(into) == "old");
    CHECK(code_of(d.rename(a, b)) == errc::not_found);
    CHECK(code_of(d.rename(b, join_path(at, "nowhere/b"))) == errc::not_found);
    REQUIRE(d.sync_dir(at));
    REQUIRE(d.remove(b));
    CHECK(code_of(d.remove(b)) == errc::not_found);
    CHECK(code_of(d.read_whole(b)) == errc::not_found);
}

inline void folders_hold_their_files(disk& d, const std::string& at) {
    const auto deep = join_path(at, "x/y/z");
    REQUIRE(d.make_dirs(deep));
    REQUIRE(d.make_dirs(deep)); // is there already
    REQUIRE(d.write_whole(join_path(deep, "f"), as_bytes("12345")));
    REQUIRE(d.write_whole(join_path(deep, "e"), as_bytes("1")));
    CHECK_FALSE(d.make_dirs(join_path(deep, "f"))); // a file in the way
    const auto names = d.list(deep);
    REQUIRE(names);
    REQUIRE(names->size() == 2);
    CHECK((*names)[0].name == "e"); // by name
    CHECK((*names)[1].name == "f");
    CHECK((*names)[1].bytes == 5);
    CHECK(d.status(deep)->is_directory);
    CHECK(d.status(join_path(deep, "f"))->bytes == 5);
    CHECK_FALSE(d.remove(join_path(at, "x"))); // not empty
    REQUIRE(d.rename(join_path(at, "x"), join_path(at, "w")));
    CHECK(text_of(d, join_path(at, "w/y/z/f")) == "12345");
    CHECK(code_of(d.list(deep)) == errc::not_found);
    REQUIRE(d.make_dirs(join_path(at, "v/inside")));
    CHECK_FALSE(d.rename(join_path(at, "w"), join_path(at, "v"))); // not over a full folder
    REQUIRE(d.remove(join_path(at, "v/inside")));
    REQUIRE(d.rename(join_path(at, "w"), join_path(at, "v"))); // over an empty one
    REQUIRE(d.remove_tree(join_path(at, "v")));
    REQUIRE(d.remove_tree(join_path(at, "v"))); // nothing there
    CHECK(code_of(d.status(join_path(at, "v"))) == errc::not_found);
    CHECK(code_of(d.sync_dir(join_path(at, "v"))) == errc::not_found);
    CHECK(d.free_space(at).value() > 0);
}

inline void replace_leaves_one_of_both(disk& d, const std::string& at) {
    const auto path = join_path(at, "r");
    REQUIRE(d.replace(path, as_bytes("first")));
    REQUIRE(d.replace(path, as_bytes("second")));
    CHECK(text_of(d, path) == "second");
    CHECK(code_of(d.read_whole(path, 3)) == errc::too_large);
    REQUIRE(d.remove(path));
}

} // namespace disk_law

inline void disk_laws(disk& d, const std::string& at) {
    disk_law::bytes_are_where_they_were_written(d, at);
    disk_law::modes_do_what_they_say(d, at);
    disk_law::names_move_and_go(d, at);
    disk_law::folders_hold_their_files(d, at);
    disk_law::replace_leaves_one_of_both(d, at);
}

} // namespace skein::test
