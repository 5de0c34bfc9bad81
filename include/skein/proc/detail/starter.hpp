// SPDX-License-Identifier: Apache-2.0
#pragma once
// A thread that starts processes, so that no loop waits for a file system.

#include <skein/core/event.hpp>
#include <skein/core/loop.hpp>
#include <skein/proc/detail/process.hpp>
#include <skein/proc/process.hpp>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace skein::proc::detail {

/// One start; shared by the task that waits for it and the thread that does it.
struct start_order {
    start_order(process_options how, loop& starter) : attempt(std::move(how)), home(starter) {}

    start_attempt attempt;
    loop& home;                  ///< where `done` is set: waits until then
    std::optional<error> failed; ///< these two: the thread's, until done
    child_process started;
    event done;
};

/// Starts processes one after the other. Linux ends a child with the thread that started it: this
/// thread lives as long as anybody who shares it.
class starter {
public:
    ///   errors  io: no thread
    starter();
    starter(const starter&) = delete;
    starter& operator=(const starter&) = delete;
    /// Ends the thread; all orders must be done or taken back.
    ~starter();

    void submit(std::shared_ptr<start_order> order);
    /// True: it was waiting for its turn and never gets one; `done` will not be set.
    [[nodiscard]] bool take_back(const start_order& order);

private:
    void main();

    std::mutex mutex_; // guards waiting_ and stopping_
    std::condition_variable wake_;
    std::deque<std::shared_ptr<start_order>> waiting_;
    bool stopping_ = false;
    std::thread thread_;
};

/// Starts a process on that thread; the loop goes on meanwhile.
///   errors  those of child_process::spawn; cancelled: nothing of it is left
[[nodiscard]] task<child_process> start_process(std::shared_ptr<starter> by, process_options how);

} // namespace skein::proc::detail
