// SPDX-License-Identifier: Apache-2.0
// Workers that print and look around, for tests of what of it reaches their driver.
//
//     skein_output lines          # twenty tasks print a line each on their output and on their
//                                 error
//     skein_output abort          # a task prints its last words and aborts
//     skein_output lost           # half a line, then a worker is killed
//     skein_output flood FILE     # a task prints far more than a pipe holds, and then makes FILE
//     skein_output where FOLDER   # a task with variables and FOLDER as its working directory says
//                                 what it sees

#include <skein/skein.hpp>

#include <fmt/core.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

int two_lines(int i) {
    fmt::print("task {}\n", i);
    std::cerr << "error of task " << i << "\n";
    return i;
}
int last_words() {
    fmt::print("before\n");
    fmt::print(stderr, "what went wrong\n");
    std::abort();
}
int die() {
    std::raise(SIGKILL);
    return 0;
}
long flood(const std::string& done) {
    constexpr long lines = 200'000;
    for (long i = 0; i < lines; ++i) fmt::print("{} {}\n", i, std::string(100, 'x'));
    std::ofstream(done) << lines << "\n";
    return lines;
}
std::string surroundings() {
    const char* const title = std::getenv("TITLE");
    return fmt::format("{} in {}", title != nullptr ? title : "nothing",
                       std::filesystem::current_path().string());
}

skein::task<int> app(std::vector<std::string> arguments) {
    const auto what = arguments.empty() ? std::string() : arguments[0];
    if (what == "lines") {
        std::vector<skein::ref<int>> calls;
        for (int i = 0; i < 20; ++i) calls.push_back(skein::remote<&two_lines>(i));
        for (auto& call : calls) co_await call;
    } else if (what == "abort") {
        auto call = skein::remote<&last_words>.with({.retries = 0})();
        co_await call;
    } else if (what == "lost") {
        fmt::print("half a line");
        std::fflush(stdout);
        auto call = skein::as_result(skein::as_task(skein::remote<&die>.with({.retries = 0})()));
        (void)co_await call;
    } else if (what == "flood" && arguments.size() == 2) {
        auto call = skein::remote<&flood>(arguments[1]);
        co_await call;
    } else if (what == "where" && arguments.size() == 2) {
        auto call =
            skein::remote<&surroundings>.with({.env = "TITLE=two words", .cwd = arguments[1]})();
        const auto seen = co_await call;
        fmt::print("{}\n", seen);
    } else {
        throw std::invalid_argument("usage: skein_output lines|abort|lost|flood FILE|where FOLDER");
    }
    co_return 0;
}

int main(int argc, char** argv) { return skein::run(argc, argv, app); }
