// SPDX-License-Identifier: Apache-2.0
#pragma once
// Other programs whose figures stand beside ours: their output, and what Python scripts measured.

#include <skein/core/unique_fd.hpp>
#include <skein/proc/process.hpp>

#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include <poll.h>
#include <unistd.h>

#ifndef SKEIN_BENCH_SOURCE_DIR // the build says where its scripts are
#define SKEIN_BENCH_SOURCE_DIR "bench"
#endif

namespace bench {

/// Runs a program; its output, and nothing if it says nothing.
inline std::optional<std::string> output_of(skein::proc::process_options how) {
    auto [ours, theirs] = skein::make_pipe();
    how.stdout_fd = theirs.get();
    auto child = skein::proc::child_process::spawn(how);
    theirs.reset();
    std::string all;
    char piece[512];
    for (;;) {
        ::pollfd readable{ours.get(), POLLIN, 0};
        (void)::poll(&readable, 1, -1);
        const auto n = ::read(ours.get(), piece, sizeof piece);
        if (n <= 0) break;
        all.append(piece, static_cast<std::size_t>(n));
    }
    child.wait_blocking();
    return all.empty() ? std::nullopt : std::optional(all);
}

/// What a Python script measured: "version V", "first S" (seconds from its start), "rate R", and
/// perhaps "cpu C" (ms of processor time for each image).
struct python_rates {
    std::string version;
    double first = 0, rate = 0, cpu_ms = 0;
};
/// Nothing: SKEIN_PYTHON is not set, or the script does not run in it.
inline std::optional<python_rates> python_run(const char* script) {
    const char* python = std::getenv("SKEIN_PYTHON");
    if (python == nullptr) return std::nullopt;
    skein::proc::process_options how;
    how.argv = {python, std::string(SKEIN_BENCH_SOURCE_DIR "/") + script};
    how.env = {{"OMP_NUM_THREADS", "1"},
               {"RAY_USAGE_STATS_ENABLED", "0"},
               {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"}};
    how.unset_env = {"RAY_ADDRESS"};
    how.die_with_parent = false; // Ray ends its daemons itself
    std::istringstream said(output_of(how).value_or(""));
    python_rates found;
    for (std::string key, value; said >> key >> value;) {
        if (key == "version") found.version = value;
        if (key == "first") found.first = std::strtod(value.c_str(), nullptr);
        if (key == "rate") found.rate = std::strtod(value.c_str(), nullptr);
        if (key == "cpu") found.cpu_ms = std::strtod(value.c_str(), nullptr);
    }
    return found.rate > 0 ? std::optional(found) : std::nullopt;
}

} // namespace bench
