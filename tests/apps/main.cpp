// SPDX-License-Identifier: Apache-2.0
// The test program is also the worker of its own tests, and, on request, a driver to be killed.
#include <tests/apps/apps.hpp>

#include <skein/proc/boot.hpp>
#include <skein/program/run.hpp>

#include <cstdlib>
#include <string_view>

#include <catch2/catch_session.hpp>

int main(int argc, char** argv) {
    const char* name = std::getenv("SKEIN_TEST_APP");
    // The workers of most apps, and of the tests, do not need to go through run().
    const bool enters_run =
        name != nullptr && (std::string_view(name) == "twice" ||
                            std::string_view(name) == "session" || rt_test::is_own_main(name));
    if (skein::program::is_worker() && !enters_run) return skein::program::worker_main();
    if (skein::proc::started_as("test-helper")) return rt_test::helper_main();
    if (name != nullptr && rt_test::is_own_main(name))
        return rt_test::run_own_main(name, argc, argv);
    if (name != nullptr) return rt_test::run_app(name, argc, argv);
    return Catch::Session().run(argc, argv);
}
