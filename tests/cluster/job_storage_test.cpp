// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>

#include <skein/cluster/detail/job_folder.hpp>
#include <skein/cluster/job_storage.hpp>
#include <skein/cluster/package_store.hpp>
#include <skein/core/error.hpp>
#include <tests/support/temporary_folder.hpp>

#include <chrono>
#include <filesystem>
#include <string>

using namespace skein;

TEST_CASE("storage of jobs is opened when it is first asked for, and again after an error",
          "[cluster][jobs]") {
    const test::temporary_folder folder;
    int asked = 0;
    cluster::job_storage kept([&] {
        if (++asked == 1) throw error(errc::io, "the disk made a noise");
        return cluster::opened_storage{
            folder.path, std::make_shared<cluster::package_store>(folder.path + "/files", 1 << 20)};
    });
    CHECK(asked == 0);
    CHECK_THROWS_AS(std::ignore = kept.get(), error);
    CHECK(kept.get().folder == folder.path);
    CHECK(&kept.get() == &kept.get());
    CHECK(asked == 2);
}

TEST_CASE("the oldest folders of jobs make room, and none that is in use", "[cluster][jobs]") {
    namespace fs = std::filesystem;
    const test::temporary_folder folder;
    const auto old = fs::file_time_type::clock::now() - std::chrono::hours(5);
    const auto path = [&](int i) { return fs::path(folder.path) / std::to_string(i); };
    for (int i = 0; i < 40; ++i) {
        fs::create_directory(path(i));
        fs::last_write_time(path(i), old + std::chrono::minutes(i));
    }
    cluster::detail::touch(path(0).string()); // a job has been running there since
    cluster::detail::make_room_for_jobs(folder.path);
    CHECK(fs::exists(path(0)));
    CHECK_FALSE(fs::exists(path(1)));
    CHECK_FALSE(fs::exists(path(9)));
    CHECK(fs::exists(path(10))); // and a place for the one to come
    CHECK(fs::exists(path(39)));
}
