// SPDX-License-Identifier: Apache-2.0
#pragma once
// What other bodies need of proc/detail/process.ipp and proc/detail/process_start.ipp.

#include <skein/core/error.hpp>

#include <memory>
#include <string_view>

namespace skein::proc {

class child_process;
struct process_options;

namespace detail {

/// What spawn() throws. Running out of descriptors has a limit with a name.
[[nodiscard]] error cannot_start(std::string_view executable, std::string_view step, int number);

/// The pipe for leave_last_words(), or -1. Takes its variable out of the environment and makes it
/// close-on-exec at the first call.
int adopt_last_words() noexcept;

/// A start in two steps: what can be prepared, and what may take as long as the file system likes.
class start_attempt {
public:
    ///   errors  io: no descriptors left
    explicit start_attempt(process_options how);
    start_attempt(const start_attempt&) = delete;
    start_attempt& operator=(const start_attempt&) = delete;
    ~start_attempt();

    /// Once, on any thread: starts it and blocks until the child executes the program or has failed
    /// to.
    ///   errors  those of child_process::spawn; cancelled: give_up() was called
    [[nodiscard]] child_process run();
    /// On any thread: a child that has not executed the program yet is killed, so that run() ends.
    void give_up() noexcept;

private:
    struct parts; // in detail/process_start.ipp
    const std::unique_ptr<parts> parts_;
};

} // namespace detail
} // namespace skein::proc
