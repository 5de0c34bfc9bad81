// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who a process is to those that it calls and that call it, and what its runtime counts.

#include <skein/core/constants.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace skein::rt {

/// Who this process is.
struct runtime_options {
    std::string name = "driver"; ///< as errors name it: "worker-2"
    std::string host = "localhost";
    std::int64_t pid = 0;
    /// Of this start of this process, see unique_number. 0: drawn; a simulated world draws its own.
    std::uint64_t incarnation = 0;
    /// What it sends to one actor, or of tasks without cores to one worker, ahead of what has begun
    /// there.
    std::uint32_t credit_calls = limit::credit_calls;
    std::size_t credit_bytes = limit::credit_bytes; ///< and one call more
};

/// Counts since it was made.
struct runtime_stats {
    std::uint64_t submitted = 0, done = 0, failed = 0; ///< calls of this process
    std::uint64_t executed = 0;                        ///< calls that ran here
    std::uint64_t retried = 0, workers_lost = 0;
};

} // namespace skein::rt
