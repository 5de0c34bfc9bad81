// SPDX-License-Identifier: Apache-2.0
#include <tests/support/temporary_folder.hpp>

#include <skein/proc/host_load.hpp>

#include <filesystem>
#include <fstream>
#include <string>

#include <catch2/catch_test_macros.hpp>

namespace host_load_test {

using namespace skein;
using namespace std::chrono_literals;

/// A /proc of files.
struct kernel {
    test::temporary_folder folder;

    kernel() { std::filesystem::create_directories(folder.path + "/net"); }
    void tell(const std::string& file, const std::string& text) const {
        std::ofstream(folder.path + "/" + file) << text;
    }
    void interfaces(double eth_in, double eth_out) const {
        const auto row = [](const char* name, double in, double out) {
            return std::string(name) + ": " + std::to_string(static_cast<long long>(in)) +
                   " 9 0 0 0 0 0 0 " + std::to_string(static_cast<long long>(out)) +
                   " 8 0 0 0 0 0 0\n";
        };
        tell("net/dev",
             "Inter-|   Receive                     |  Transmit\n"
             " face |bytes    packets errs drop fifo frame compressed multicast|bytes\n" +
                 row("    lo", 5000, 5000) + row("  eth0", eth_in, eth_out) + row("  eth1", 7, 3) +
                 row("docker0", 900, 900) + row("veth12ab", 900, 900));
    }
};

TEST_CASE("shares and rates of a host are those since the sample before", "[proc]") {
    const kernel k;
    proc::local_host here(k.folder.path, k.folder.path);
    k.tell("stat", "cpu  100 20 30 800 50 0 0 0 60 0\ncpu0 1 1 1 1 1 1 1 1 1 1\nintr 5\n");
    k.tell("meminfo",
           "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\n");
    k.interfaces(1000, 500);
    const auto first = here.sample(time_point(10s));
    CHECK(first.cpu < 0);
    CHECK(first.network_receive_rate < 0);
    CHECK(first.memory_total == 1000 * 1024);
    CHECK(first.memory_used == 600 * 1024);
    CHECK(first.network_received == 1007);
    CHECK(first.network_sent == 503);
    CHECK(first.disk_total > 0);
    CHECK(first.disk_used > 0);
    CHECK(first.disk_used <= first.disk_total);

    k.tell("stat", "cpu  120 20 40 850 70 0 0 0 60 0\n"); // 30 busy of 100
    k.interfaces(3000, 600);
    const auto second = here.sample(time_point(12s));
    CHECK(second.cpu == 0.3);
    CHECK(second.network_receive_rate == 1000);
    CHECK(second.network_send_rate == 50);

    k.interfaces(10, 10); // an interface has gone and come: no rate, and not a negative one
    const auto third = here.sample(time_point(13s));
    CHECK(third.network_receive_rate < 0);
    CHECK(third.cpu < 0); // no tick has passed
}

TEST_CASE("what the kernel does not tell of a host is not known", "[proc]") {
    const kernel k;
    proc::local_host here("", k.folder.path);
    for (const char* text : {"", "nonsense", "cpu  1 2\n", "cpu  a b c d e\n", "MemTotal: x kB\n",
                             "eth0: 1 2 3\n", "cpu  -1 -2 -3 -4 -5\n"}) {
        CAPTURE(text);
        for (const char* file : {"stat", "meminfo", "net/dev"}) k.tell(file, text);
        (void)here.sample(time_point(1s));
        const auto seen = here.sample(time_point(2s));
        CHECK(seen.cpu < 0);
        CHECK(seen.memory_used < 0);
        CHECK(seen.memory_total < 0);
        CHECK(seen.network_received < 0);
        CHECK(seen.network_send_rate < 0);
        CHECK(seen.disk_total < 0);
    }
}

TEST_CASE("this host tells what it does", "[proc]") {
    proc::local_host here("/");
    (void)here.sample(time_point(1s));
    const auto seen = here.sample(time_point(2s));
    CHECK(seen.memory_total > 0);
    CHECK(seen.memory_used > 0);
    CHECK(seen.memory_used < seen.memory_total);
    CHECK(seen.disk_total > 0);
    CHECK(seen.cpu <= 1);
}

} // namespace host_load_test
