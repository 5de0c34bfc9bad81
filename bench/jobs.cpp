// SPDX-License-Identifier: Apache-2.0
// Jobs: from submitting to the first line, sending a folder, and who is disturbed by what.
//
// The program itself makes calls, one after the other, for bench/jobs_figures.py, which starts a
// cluster of processes and measures: jobs calls LOG STOP --address A. A line of LOG is the time
// of one call in nanoseconds; it ends when there is a file STOP. `jobs --sha FILE...` prints how
// many bytes a second the program's own SHA-256 takes of those.
#include "bench.hpp"

#include <skein/core/sha256.hpp>
#include <skein/skein.hpp>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <unistd.h>

namespace {

long one_more(long value) { return value + 1; }

skein::task<int> make_calls(std::vector<std::string> arguments) {
    using clock = std::chrono::steady_clock;
    if (arguments.size() < 3) throw std::invalid_argument("usage: jobs calls LOG STOP");
    std::ofstream log(arguments[1]);
    long value = 0;
    while (!std::filesystem::exists(arguments[2])) {
        for (int i = 0; i < 16; ++i) {
            const auto begin = clock::now();
            auto asking = skein::remote<&one_more>(value);
            value = co_await asking;
            log << std::chrono::nanoseconds(clock::now() - begin).count() << '\n';
        }
        log.flush();
    }
    co_return 0;
}

/// Piece by piece, as a folder is looked at before it is sent.
int hash_files(int count, char** paths) {
    std::vector<std::byte> piece(std::size_t{1} << 20);
    double bytes = 0;
    const double took = bench::seconds([&] {
        for (int i = 0; i < count; ++i) {
            std::ifstream from(paths[i], std::ios::binary);
            skein::sha256 hash;
            for (;;) {
                from.read(reinterpret_cast<char*>(piece.data()),
                          static_cast<std::streamsize>(piece.size()));
                const auto n = static_cast<std::size_t>(from.gcount());
                if (n == 0) break;
                hash.update(skein::byte_span(piece.data(), n));
                bytes += static_cast<double>(n);
            }
            bench::keep(hash.finish());
        }
    });
    fmt::print("{:.0f}\n", bytes / took);
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    if (argc > 2 && std::strcmp(argv[1], "--sha") == 0) return hash_files(argc - 2, argv + 2);
    // Also as the worker of a driver, which has no arguments of its own.
    if (argc > 1 || std::getenv("SKEIN_BENCH_CALLS") != nullptr)
        return skein::run(argc, argv, make_calls);
    const std::string program = std::filesystem::read_symlink("/proc/self/exe");
    ::execlp("python3", "python3", SKEIN_BENCH_SOURCE_DIR "/jobs_figures.py", program.c_str(),
             nullptr);
    std::perror("python3");
    return 1;
}
