// SPDX-License-Identifier: Apache-2.0
// That this file compiles is the test: a struct of options with one of them named gives no warning.
#include <skein/cluster/agent.hpp>
#include <skein/cluster/head.hpp>
#include <skein/cluster/leased_workers.hpp>
#include <skein/cluster/space_server.hpp>
#include <skein/cluster/tools.hpp>
#include <skein/program/program.hpp>
#include <skein/spmd/group.hpp>
#include <skein/spmd/joined_group.hpp>
#include <skein/spmd/supervisor.hpp>

#include <catch2/catch_test_macros.hpp>

namespace options_without_warning_test {

using namespace skein;
using namespace skein::cluster;
using namespace skein::spmd;

#pragma GCC diagnostic error "-Wextra"
#pragma GCC diagnostic error "-Wmissing-field-initializers"
TEST_CASE("options of a cluster with one of them named give no warning") {
    const agent_options agent{.name = "n"};
    const spmd::group_options group{.job = "j"};
    const head_options head{.name = "s"};
    const spmd::joined_group_options joined{.join_deadline = std::chrono::hours::max()};
    const space_server_options space_server{.host = "h"};
    const leased_workers_options leased{.name = "p"};
    const program::head_program the_head{.listen = "l"};
    const program::agent_program the_agent{.name = "n"};
    spmd::supervisor_options supervisor; // it has parts, which no initializer can name
    supervisor.workers = 2;
    const tool_options tool{.name = "t"};
    CHECK(joined.join_deadline == skein::duration::max());
    CHECK(agent.name + the_agent.name == "nn");
    CHECK(group.job + head.name + space_server.host + leased.name + the_head.listen + tool.name ==
          "jshplt");
    CHECK(supervisor.workers == 2);
}

} // namespace options_without_warning_test
