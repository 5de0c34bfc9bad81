// SPDX-License-Identifier: Apache-2.0
// A hundred calls that wait, for tests that do something to a cluster meanwhile.
//
//     skein_many_waits BEGUN GO [RETRIES] [--address A]
//
// Each call adds a line to the file BEGUN when it begins, and ends when there is a file GO. Prints
// the sum. RETRIES: of each call, when its worker dies.

#include <skein/skein.hpp>

#include <fmt/core.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <unistd.h>

// Plain, and not a coroutine: it holds its worker, as computing would.
long wait_for_file(const std::string& begun, const std::string& go, long value) {
    std::ofstream(begun, std::ios::app) << value << "\n";
    while (!std::filesystem::exists(go)) ::usleep(2000);
    return value;
}

skein::task<int> app(std::vector<std::string> arguments) {
    if (arguments.size() < 2) throw std::invalid_argument("usage: skein_many_waits BEGUN GO");
    skein::call_options how;
    if (arguments.size() > 2) how.retries = std::atoi(arguments[2].c_str());
    std::vector<skein::ref<long>> calls;
    for (long i = 0; i < 100; ++i)
        calls.push_back(skein::remote<&wait_for_file>.with(how)(arguments[0], arguments[1], i));
    long sum = 0;
    auto all = skein::all(std::move(calls));
    for (long value : co_await std::move(all)) sum += value;
    fmt::print("the sum is {}\n", sum);
    co_return 0;
}

int main(int argc, char** argv) { return skein::run(argc, argv, app); }
