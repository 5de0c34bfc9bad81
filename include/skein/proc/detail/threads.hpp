// SPDX-License-Identifier: Apache-2.0
#pragma once
// How many threads the code of a task uses where it asks OpenMP: as many as the task has cpus. A
// process is started with OMP_NUM_THREADS, unless the user has set it; where tasks with other
// numbers of cpus take turns in one worker, each sets it anew, for what it starts and for the
// OpenMP of its process.

#include <skein/core/config.hpp>

#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <dlfcn.h>

namespace skein::proc {

/// The variable with which OpenMP, and what is made like it, is told how many threads to use.
inline constexpr const char* threads_variable = "OMP_NUM_THREADS";

namespace detail {

/// What skein has set OMP_NUM_THREADS of this process to; 0: nothing.
inline constinit std::atomic<int> threads_set{0};
/// Calls here have different numbers of cpus.
inline constinit bool threads_vary = false;

/// The boot message says that it was skein who has set them.
inline void threads_of_start(int n) noexcept { threads_set = n; }

/// Whether somebody else has said how many: who started this program, or what a child is given.
[[nodiscard]] inline bool threads_are_said(
    const std::vector<std::pair<std::string, std::string>>& of_child) {
    for (const auto& [name, value] : of_child)
        if (name == threads_variable) return true;
    const char* const here = std::getenv(threads_variable);
    if (here == nullptr) return false;
    const int ours = threads_set;
    return ours == 0 || here != std::to_string(ours);
}

/// In a worker: a call begins that has so many cpus.
inline void use_threads(int cpus) {
    const int n = cpus > 1 ? cpus : 1;
    const int before = threads_set;
    if (before == n || before == 0) return;
    if (threads_are_said({})) { // a task has set it
        threads_set = 0;
        return;
    }
    threads_set = n;
    ::setenv(threads_variable, std::to_string(n).c_str(), 1);
    // It has read the variable when it was loaded; its number for each thread that asks is its own.
    using setter = void (*)(int);
    static const auto tell = reinterpret_cast<setter>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    if (tell != nullptr) tell(n);
}

} // namespace detail
} // namespace skein::proc
