// SPDX-License-Identifier: Apache-2.0
// What whole processes do: tests/programs/roles_test.py.
#include <skein/core/error.hpp>
#include <skein/program/helper_hosts.hpp>

#include <cstdlib>

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace skein::program;

namespace {

spmd::launch_environment job(int rank, int port) {
    spmd::launch_environment where;
    where.source = "sagemaker";
    where.rank = rank;
    where.world_size = 2;
    where.master_host = "127.0.0.1";
    where.master_port = port;
    where.helper_hosts = 1;
    return where;
}

/// In a process of its own, for it changes the environment: 0 if all is as it should be.
int live_as_second_rank() {
    if (!helped_job::head_here().empty()) return 1;
    {
        helped_job second(job(1, 29500)); // another process has the head
        if (helped_job::head_here() != "tcp:127.0.0.1:29501") return 2;
        if (std::getenv(rt::in_job_variable) == nullptr) return 3;
        second.end();
    }
    return helped_job::head_here().empty() ? 0 : 4;
}

} // namespace

TEST_CASE("the head of hosts that help is behind the port of the ranks", "[J5][cluster][job]") {
    CHECK(to_string(head_of_helpers(job(0, 29500))) == "tcp:127.0.0.1:29501");
    CHECK_THROWS_AS(head_of_helpers(job(0, 65535)), error);
    CHECK_THROWS_AS(head_of_helpers(job(0, 0)), error);
}

TEST_CASE("sessions of a rank know the head as long as the job is there", "[J5][cluster][job]") {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) ::_exit(live_as_second_rank());
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WEXITSTATUS(status) == 0);
}
