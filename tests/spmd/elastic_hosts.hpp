// SPDX-License-Identifier: Apache-2.0
#pragma once
// Hosts of the tests of elastic jobs: a process that is the supervisor of one.

#include <skein/core/error.hpp>
#include <skein/net/address.hpp>
#include <skein/net/token.hpp>
#include <skein/proc/process.hpp>
#include <skein/spmd/elastic_run.hpp>
#include <skein/spmd/view.hpp>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

using id_list = std::vector<std::uint64_t>;

inline id_list ids_of(const skein::spmd::view& of) {
    id_list all;
    for (const auto& m : of.members) all.push_back(m.id);
    return all;
}

/// Of all hosts of a test.
inline skein::net::token test_secret() {
    return skein::net::token::from_hex(std::string(63, '0') + "7").value();
}

inline int run_test_host() {
    using namespace skein;
    const auto variable = [](const char* name) { return std::string(std::getenv(name)); };
    spmd::elastic_run_options how;
    how.job = "tests";
    how.endpoint = net::address::parse(variable("SKEIN_TEST_ENDPOINT")).value();
    how.secret = test_secret();
    how.host = variable("SKEIN_TEST_HOST");
    const auto hosts = variable("SKEIN_TEST_HOSTS");
    how.hosts = {std::atoi(hosts.c_str()), std::atoi(hosts.c_str() + hosts.find(':') + 1)};
    how.workers_per_host = std::atoi(variable("SKEIN_TEST_WORKERS").c_str());
    how.executable = "/proc/self/exe";
    how.argv = {"rank"};
    how.env = {{"SKEIN_TEST_PROGRAM", variable("SKEIN_TEST_RANKS")}};
    how.on_listening = [&](const net::address& at) {
        std::ofstream(variable("SKEIN_TEST_FOLDER") + "/address") << net::to_string(at) << "\n";
    };
    try {
        const auto outcome = spmd::run_elastic_host(how);
        if (outcome.stop_signal != 0) return 128 + outcome.stop_signal;
        if (!outcome.failure) return 0;
        const auto code = outcome.failure->code();
        return code == errc::usage || code == errc::mismatch ? 2 : 1;
    } catch (const error& why) {
        std::fprintf(stderr, "host %s: %s\n", how.host.c_str(), why.what());
        return 1;
    }
}
