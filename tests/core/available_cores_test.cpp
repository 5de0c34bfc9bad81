// SPDX-License-Identifier: Apache-2.0
#include <tests/support/temporary_folder.hpp>

#include <skein/core/available_cores.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <sched.h>

#include <catch2/catch_test_macros.hpp>

using namespace skein;

namespace {

void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << text;
}

} // namespace

TEST_CASE("there is a core, and no more than the process may run on") {
    CHECK(available_cores() >= 1);
    cpu_set_t before, one;
    REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
    CPU_ZERO(&one);
    for (int c = 0; c < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++c)
        if (CPU_ISSET(c, &before)) CPU_SET(c, &one);
    REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
    const int cores = available_cores();
    ::sched_setaffinity(0, sizeof before, &before);
    CHECK(cores == 1);
}

TEST_CASE("the quota of a cgroup of version 2 counts, and those of the groups above it") {
    const test::temporary_folder folder;
    const detail::cgroup_files where{folder.path + "/membership", folder.path + "/root"};
    CHECK(detail::cgroup_cores(where) == 0); // no such files
    put(where.membership, "0::/jobs/mine\n");
    CHECK(detail::cgroup_cores(where) == 0);
    put(where.root + "/jobs/mine/cpu.max", "max 100000\n");
    CHECK(detail::cgroup_cores(where) == 0);
    put(where.root + "/jobs/cpu.max", "250000 100000\n");
    CHECK(detail::cgroup_cores(where) == 3); // a part of a core is one
    put(where.root + "/jobs/mine/cpu.max", "50000 100000\n");
    CHECK(detail::cgroup_cores(where) == 1);
    put(where.root + "/jobs/mine/cpu.max", "nonsense");
    CHECK(detail::cgroup_cores(where) == 3);
}

TEST_CASE("inside a container, whose own group is the root, its quota counts") {
    const test::temporary_folder folder;
    const detail::cgroup_files where{folder.path + "/membership", folder.path + "/root"};
    put(where.membership, "0::/\n");
    put(where.root + "/cpu.max", "200000 100000\n");
    CHECK(detail::cgroup_cores(where) == 2);
    put(where.membership, "0::/docker/on-the-host\n");
    CHECK(detail::cgroup_cores(where) == 2);
}

TEST_CASE("a container's cores are those that its topmost cgroup lists") {
    const test::temporary_folder folder;
    const detail::cgroup_files where{folder.path + "/membership", folder.path + "/root"};
    const std::string file = where.root + "/cpuset.cpus.effective";
    CHECK(detail::cgroup_cpuset(where) == 0);
    for (const auto& [list, cores] : std::vector<std::pair<std::string, int>>{
             {"0-3\n", 4}, {"5\n", 1}, {"0-1,4-7,9\n", 7}, {"\n", 0}, {"3-1\n", 0}, {"1-x", 0}}) {
        INFO(list);
        put(file, list);
        CHECK(detail::cgroup_cpuset(where) == cores);
    }
}

TEST_CASE("the quota of a cgroup of version 1 counts") {
    const test::temporary_folder folder;
    const detail::cgroup_files where{folder.path + "/membership", folder.path + "/root"};
    put(where.membership, "12:memory:/mine\n3:cpu,cpuacct:/mine\n1:name=systemd:/mine\n");
    put(where.root + "/cpu,cpuacct/mine/cpu.cfs_quota_us", "-1\n");
    put(where.root + "/cpu,cpuacct/mine/cpu.cfs_period_us", "100000\n");
    CHECK(detail::cgroup_cores(where) == 0);
    put(where.root + "/cpu,cpuacct/mine/cpu.cfs_quota_us", "400000\n");
    CHECK(detail::cgroup_cores(where) == 4);
    put(where.root + "/cpu/cpu.cfs_quota_us", "150000\n");
    put(where.root + "/cpu/cpu.cfs_period_us", "100000\n");
    CHECK(detail::cgroup_cores(where) == 2);
}
