// SPDX-License-Identifier: Apache-2.0
// The test program is also the rank program of the supervisor's tests: SKEIN_TEST_PROGRAM says
// which.
#include "elastic_hosts.hpp"
#include "elastic_programs.hpp"
#include "rank_programs.hpp"

#include <cstdlib>
#include <string_view>

#include <catch2/catch_session.hpp>

int main(int argc, char** argv) {
    if (const char* program = std::getenv("SKEIN_TEST_PROGRAM")) {
        if (program == std::string_view("is a host") && !skein::spmd::is_elastic_rank())
            return run_test_host();
        const bool is_elastic = skein::spmd::is_elastic_rank();
        return is_elastic ? run_elastic_program(program) : run_rank_program(program);
    }
    return Catch::Session().run(argc, argv);
}
