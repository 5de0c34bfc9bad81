// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/core/mounted_folder.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/sim/disk.hpp>

#include <catch2/catch_test_macros.hpp>

#include <filesystem>
#include <string>
#include <string_view>

using skein::as_bytes;
using skein::errc;
using skein::mounted_folder;

TEST_CASE("a folder of another disk stands at a path of this process") {
    const std::string folder = "/nowhere/there/runs", alias = "/nowhere/here/runs";
    skein::sim::disk there;
    skein::posix_disk here(skein::link_policy::refuse);
    CHECK(mounted_folder::of(folder) == nullptr);
    CHECK(mounted_folder::name_of(alias) == alias);
    CHECK_FALSE(mounted_folder::is_below("/"));
    {
        const mounted_folder mounted(folder, alias, there);
        const auto relative =
            std::filesystem::path(folder).lexically_relative(std::filesystem::current_path());
        for (const auto& inside :
             {folder, folder + "/", folder + "/a/b", std::string("/nowhere/x/../there//runs/./a"),
              relative.string() + "/a"})
            CHECK(mounted_folder::of(inside) == &there);
        for (const auto& outside : {folder + "x", folder + "/..", std::string("/nowhere"),
                                    std::string("/"), std::string("runs"), std::string()})
            CHECK(mounted_folder::of(outside) == nullptr);
        CHECK(mounted_folder::is_below("/"));
        CHECK(mounted_folder::is_below("/nowhere/there"));
        CHECK_FALSE(mounted_folder::is_below("/nowhere/the"));
        CHECK_FALSE(mounted_folder::is_below(folder + "/a"));
        CHECK(mounted_folder::name_of(alias + "/gpt") == folder + "/gpt");
        CHECK(mounted_folder::name_of(alias) == folder);
        CHECK(mounted_folder::name_of(alias + "x") == alias + "x");

        CHECK(here.make_dirs(folder + "/gpt"));
        CHECK(here.replace(folder + "/gpt/a", as_bytes(std::string_view("text"))));
        CHECK(here.read_whole(folder + "/gpt/a").value().size() == 4);
        CHECK(here.list(folder).value().front().name == "gpt");
        CHECK(here.status(folder + "/gpt").value().is_directory);
        CHECK(here.free_space(folder).has_value());
        CHECK(here.rename(folder + "/gpt/a", folder + "/gpt/b"));
        CHECK(here.sync_dir(folder));
        CHECK(here.sync_dir("/nowhere")); // above it: of the other disk, too
        CHECK_FALSE(here.sync_dir("/nowhere/else"));
        CHECK(here.remove(folder + "/gpt/b"));
        CHECK(here.replace(folder + "/gpt/a", as_bytes(std::string_view("text"))));
        CHECK_THROWS_AS(mounted_folder("/x", "", there), skein::error);
        CHECK(mounted_folder::of(folder) == &there);
    }
    CHECK_FALSE(here.read_whole(folder + "/gpt/a"));
    CHECK(there.read_whole(folder + "/gpt/a").value().size() == 4);
}
