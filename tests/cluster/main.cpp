// SPDX-License-Identifier: Apache-2.0
// The test program is also the worker of its own tests.
#include <skein/program/local_workers.hpp>

#include <catch2/catch_session.hpp>

int main(int argc, char** argv) {
    if (skein::program::is_worker()) return skein::program::worker_main();
    return Catch::Session().run(argc, argv);
}
