// SPDX-License-Identifier: Apache-2.0
// The test program is also the worker of its own tests, and, on request, a driver to be killed.
#include <tests/rt/apps.hpp>

#include <skein/rt/run.hpp>

#include <cstdlib>

#include <catch2/catch_session.hpp>

int main(int argc, char** argv) {
    if (skein::rt::is_worker()) return skein::rt::worker_main();
    if (const char* name = std::getenv("SKEIN_TEST_APP")) return rt_test::run_app(name, argc, argv);
    return Catch::Session().run(argc, argv);
}
