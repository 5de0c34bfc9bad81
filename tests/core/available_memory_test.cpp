// SPDX-License-Identifier: Apache-2.0
#include <tests/support/temporary_folder.hpp>

#include <skein/core/available_memory.hpp>

#include <filesystem>
#include <fstream>
#include <string>

#include <catch2/catch_test_macros.hpp>

using namespace skein;

namespace {

void put_text(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << text;
}

} // namespace

TEST_CASE("there is memory, and no more than the machine has") {
    CHECK(available_memory() > 0);
    CHECK(available_memory() <= detail::total_memory("/proc/meminfo"));
}

TEST_CASE("the memory limits of a cgroup of version 2 count, and those of the groups above it") {
    const test::temporary_folder folder;
    const detail::cgroup_files where{folder.path + "/membership", folder.path + "/root"};
    CHECK(detail::cgroup_memory(where) == 0); // no such files
    put_text(where.membership, "0::/jobs/mine\n");
    put_text(where.root + "/jobs/mine/memory.max", "max\n");
    put_text(where.root + "/jobs/mine/memory.high", "max\n");
    CHECK(detail::cgroup_memory(where) == 0);
    put_text(where.root + "/jobs/memory.max", "1073741824\n");
    CHECK(detail::cgroup_memory(where) == 1073741824);
    put_text(where.root + "/jobs/mine/memory.high", "536870912\n"); // held up from here on
    CHECK(detail::cgroup_memory(where) == 536870912);
    put_text(where.root + "/jobs/mine/memory.max", "268435456\n");
    CHECK(detail::cgroup_memory(where) == 268435456);
    put_text(where.root + "/jobs/mine/memory.max", "nonsense");
    CHECK(detail::cgroup_memory(where) == 536870912);
}

TEST_CASE("inside a container, whose own group is the root, its memory limit counts") {
    const test::temporary_folder folder;
    const detail::cgroup_files where{folder.path + "/membership", folder.path + "/root"};
    put_text(where.membership, "0::/\n");
    put_text(where.root + "/memory.max", "2147483648\n");
    CHECK(detail::cgroup_memory(where) == 2147483648);
    put_text(where.membership, "0::/docker/on-the-host\n");
    CHECK(detail::cgroup_memory(where) == 2147483648);
}

TEST_CASE("the memory limit of a cgroup of version 1 counts, unless it is its word for none") {
    const test::temporary_folder folder;
    const detail::cgroup_files where{folder.path + "/membership", folder.path + "/root"};
    put_text(where.membership, "12:memory:/mine\n3:cpu,cpuacct:/other\n");
    put_text(where.root + "/memory/mine/memory.limit_in_bytes", "9223372036854771712\n");
    CHECK(detail::cgroup_memory(where) == 0);
    put_text(where.root + "/memory/mine/memory.limit_in_bytes", "104857600\n");
    CHECK(detail::cgroup_memory(where) == 104857600);
    put_text(where.root + "/memory/other/memory.limit_in_bytes", "4096\n"); // not its group
    CHECK(detail::cgroup_memory(where) == 104857600);
}

TEST_CASE("the lesser of the machine's memory and the group's limit is what may be used") {
    const test::temporary_folder folder;
    const detail::cgroup_files where{folder.path + "/membership", folder.path + "/root"};
    const auto meminfo = folder.path + "/meminfo";
    CHECK(detail::available_memory(where, meminfo) == 0);
    put_text(meminfo, "MemFree:         1 kB\nMemTotal:        4096 kB\nMemAvailable:    2 kB\n");
    CHECK(detail::available_memory(where, meminfo) == 4096 * 1024);
    put_text(where.membership, "0::/\n");
    put_text(where.root + "/memory.max", "1048576\n");
    CHECK(detail::available_memory(where, meminfo) == 1048576);
    put_text(where.root + "/memory.max", "1099511627776\n");
    CHECK(detail::available_memory(where, meminfo) == 4096 * 1024);
}
