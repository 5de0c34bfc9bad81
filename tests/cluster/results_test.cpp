// SPDX-License-Identifier: Apache-2.0
#include "cluster/results_support.hpp"

#include <skein/cluster/detail/fetched_files.hpp>
#include <skein/cluster/detail/package_message.hpp>
#include <skein/cluster/results.hpp>
#include <skein/wire/encode.hpp>
#include <tests/support/temporary_folder.hpp>

#include <iterator>
#include <string>

#include <catch2/catch_test_macros.hpp>

namespace results_test {

using namespace results_support;
namespace parts = skein::cluster::detail;

TEST_CASE("a fetched file is written beside its place, and a part of it goes on",
          "[cluster][results]") {
    const test::temporary_folder folder;
    const auto to = folder.path + "/to";
    const auto what = entry("deep/er/file", "some bytes");
    {
        const parts::fetched_folder in(to);
        CHECK(in.look_at(what) == parts::place_is::free);
        auto file = in.begin(what);
        CHECK(file.bytes() == 0);
        file.append(as_bytes(std::string("some ")));
    }
    const parts::fetched_folder in(to);
    CHECK(in.look_at(what) == parts::place_is::free);
    auto file = in.begin(what);
    REQUIRE(file.bytes() == 5);
    file.append(as_bytes(std::string("bytes")));
    CHECK(fault_of([&] { file.append(as_bytes(std::string("!"))); }) == errc::too_large);
    file.commit();
    CHECK(text_of(to + "/deep/er/file") == "some bytes");
    CHECK(in.look_at(what) == parts::place_is::whole);
    CHECK(std::distance(fs::directory_iterator(to + "/deep/er"), fs::directory_iterator()) == 1);
    write_file(to + "/deep/er/file", "same bytes");
    CHECK(in.look_at(what) == parts::place_is::other);
}

TEST_CASE("a part that was damaged is found, and removed", "[cluster][results]") {
    const test::temporary_folder folder;
    const auto what = entry("file", "some bytes");
    const parts::fetched_folder in(folder.path + "/to");
    {
        auto file = in.begin(what);
        file.append(as_bytes(std::string("same ")));
    }
    auto file = in.begin(what);
    file.append(as_bytes(std::string("bytes")));
    CHECK(fault_of([&] { file.commit(); }) == errc::mismatch);
    CHECK(in.begin(what).bytes() == 0);
    CHECK(in.look_at(what) == parts::place_is::free);
}

TEST_CASE("nothing is written through a link, nor out of the folder", "[cluster][results]") {
    const test::temporary_folder folder;
    const auto to = folder.path + "/to", away = folder.path + "/away";
    fs::create_directories(to);
    fs::create_directories(away);
    fs::create_symlink(away, to + "/link");
    write_file(to + "/file", "x");
    const parts::fetched_folder in(to);
    for (const char* path : {"link/a", "link", "file/a"}) {
        const auto what = entry(path, "text");
        CHECK(fault_of([&] { (void)in.look_at(what); }) == errc::already_exists);
    }
    for (const char* path : {"link/a", "file/a"})
        CHECK(fault_of([&] { (void)in.begin(entry(path, "text")); }) == errc::already_exists);
    fs::create_symlink(away + "/made", to + "/dangling");
    auto over = in.begin(entry("dangling", "text")); // with force: the link itself is replaced
    over.append(as_bytes(std::string("text")));
    over.commit();
    CHECK(fs::is_empty(away));
    for (const char* path : {"../x", "/etc/x", "a/../../x", "a//b", ""}) {
        package_manifest bad = one_file(path, "text");
        CHECK(fault_of([&] { (void)parts::read_set(wire::encode(bad)); }) == errc::malformed);
    }
    package_manifest link;
    link.entries.push_back({"a", 1, 0, 0, {}, "b"});
    CHECK(fault_of([&] { (void)parts::read_set(wire::encode(link)); }) == errc::malformed);
}

TEST_CASE("the newest set that has files is meant, or that of an attempt", "[cluster][results]") {
    set_list all;
    CHECK(choose_results("job", all, 0).name.empty());
    const auto add = [&](const char* name, std::uint32_t attempt, const char* id) {
        auto one = set_of(name, id);
        one.attempt = attempt;
        if (one.id.empty()) one.trouble = "no room";
        all.sets.push_back(one);
    };
    add("attempt-1", 1, "");
    CHECK(fault_of([&] { (void)choose_results("job", all, 0); }) == errc::not_found);
    add("run/step-1", 2, "a");
    add("attempt-2", 2, "b");
    add("attempt-3", 3, "");
    CHECK(choose_results("job", all, 0).name == "attempt-2");
    CHECK(choose_results("job", all, 2).name == "attempt-2");
    CHECK(fault_of([&] { (void)choose_results("job", all, 3); }) == errc::not_found);
    CHECK(fault_of([&] { (void)choose_results("job", all, 4); }) == errc::not_found);
}

} // namespace results_test
