// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>

#include <skein/cluster/job_storage.hpp>
#include <skein/cluster/package_store.hpp>
#include <skein/core/error.hpp>
#include <tests/support/temporary_folder.hpp>

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
