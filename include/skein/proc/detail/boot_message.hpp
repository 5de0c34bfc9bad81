// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is in the pipe between the two sides of proc/children.hpp and proc/boot.hpp.

#include <skein/core/bytes.hpp>

#include <cstdint>
#include <string>

#include <sys/stat.h>

namespace skein::proc::detail {

struct boot_message {
    std::string role, name;
    byte_buffer message;
    std::int32_t socket = -1; ///< the number of the inherited socket, or -1
    std::int32_t memory = -1; ///< the same of the memory
    std::int32_t files = 0;   ///< how many more there are, from first_file on
    std::int32_t threads = 0; ///< the OMP_NUM_THREADS that it was given; 0: none, or the user's
};

/// By which a descriptor's file is known again in another process; 0: it is closed.
[[nodiscard]] inline std::uint64_t file_number(int descriptor) noexcept {
    struct stat about{};
    return ::fstat(descriptor, &about) == 0 ? static_cast<std::uint64_t>(about.st_ino) : 0;
}

/// The numbers that inherited files have in a child.
inline constexpr int boot_file = 3, socket_file = 4, memory_file = 5, first_file = 6;

} // namespace skein::proc::detail
