// SPDX-License-Identifier: Apache-2.0
// Small calls, one after the other, for tests that do something to a cluster meanwhile.
//
//     skein_call_times LOG STOP [--address A]
//
// Each call adds a line to the file LOG: when it ended (nanoseconds of the monotonic clock) and how
// long it took (nanoseconds). Ends when there is a file STOP.

#include <skein/skein.hpp>

#include <fmt/core.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

long one_more(long value) { return value + 1; }

skein::task<int> app(std::vector<std::string> arguments) {
    using clock = std::chrono::steady_clock;
    if (arguments.size() < 2) throw std::invalid_argument("usage: skein_call_times LOG STOP");
    std::ofstream log(arguments[0]);
    const auto nanoseconds = [](clock::duration d) {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(d).count();
    };
    long value = 0;
    while (!std::filesystem::exists(arguments[1])) {
        for (int i = 0; i < 16; ++i) {
            const auto begin = clock::now();
            auto asking = skein::remote<&one_more>(value);
            const long got = co_await asking;
            const auto end = clock::now();
            if (got != value + 1) throw std::runtime_error("another call's value");
            value = got;
            log << nanoseconds(end.time_since_epoch()) << ' ' << nanoseconds(end - begin) << '\n';
        }
        log.flush();
    }
    fmt::print("{} calls\n", value);
    co_return 0;
}

int main(int argc, char** argv) { return skein::run(argc, argv, app); }
