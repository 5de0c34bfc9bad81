// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory that a process shares with a child: zeros at first, no name, gone with its last user.
//
//     auto memory = proc::shared_memory::create(4096);
//     proc::child_options how;
//     // the child finds it in proc::take_boot("worker")->memory
//     how.memory = memory;
//
// Nobody can shrink it under those who use it. Both write to it at the same time: atomics only.

#include <skein/core/unique_fd.hpp>

#include <cstddef>
#include <memory>
#include <span>

namespace skein::proc {

/// A mapping, and the file it can be passed on by. Copies share both.
class shared_memory {
public:
    /// None.
    shared_memory() noexcept = default;
    ///   errors  exhausted: no descriptors or no memory
    [[nodiscard]] static shared_memory create(std::size_t bytes);
    /// Maps what another process has created.
    ///   errors  malformed: not such memory; exhausted: no memory
    [[nodiscard]] static shared_memory open(unique_fd from);

    explicit operator bool() const noexcept { return held_ != nullptr; }
    /// Aligned to a page.
    [[nodiscard]] std::span<std::byte> bytes() const noexcept;
    /// For a child to inherit; -1 if there is none.
    [[nodiscard]] int fd() const noexcept;

private:
    struct mapping;
    static shared_memory map(unique_fd file, std::size_t bytes);
    std::shared_ptr<mapping> held_;
};

} // namespace skein::proc

#if SKEIN_HEADER_ONLY
#include <skein/proc/detail/shared_memory.ipp>
#endif
