// SPDX-License-Identifier: Apache-2.0
#pragma once
// What workers print on its way to their driver, by the head; see cluster/messages.hpp.

#include <skein/core/config.hpp>
#include <skein/proc/output.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace skein::cluster {

/// Lines that one worker has printed.
struct printed_lines {
    std::uint64_t lease = 0;
    std::uint64_t first = 0; ///< the number of the first; what is missing before was left out
    std::vector<proc::output_line> lines;
};

/// Bytes of text in one of these, at most; with all else it is a small message, which others do not
/// overtake.
inline constexpr std::size_t most_output_bytes = 56'000;

/// A node has lines of a driver's workers.
struct output_waits {
    static constexpr std::uint16_t number = 40;
    std::uint64_t driver = 0;
};

/// It may send some of them.
struct take_output {
    static constexpr std::uint16_t number = 41;
    std::uint64_t driver = 0;
};

/// The lines; none: there are no more.
struct node_output {
    static constexpr std::uint16_t number = 42;
    std::uint64_t driver = 0;
    std::vector<printed_lines> from;
};

/// The same for their driver.
struct worker_output {
    static constexpr std::uint16_t number = 43;
    std::uint64_t node = 0; ///< the incarnation of its agent
    std::string node_name;
    std::vector<printed_lines> from;
};

/// The driver has printed the last ones of that node.
struct output_printed {
    static constexpr std::uint16_t number = 44;
    std::uint64_t node = 0;
};

} // namespace skein::cluster
