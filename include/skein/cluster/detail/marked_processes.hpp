// SPDX-License-Identifier: Apache-2.0
#pragma once
// marked_processes: what entry processes of jobs have started, found by marks in their environments.
//
// A process of a job may be anything and may have moved anywhere; what it was started with stays in
// its environment. A look is at all processes of the host, so all who ask within a moment share one:
// hundreds of jobs that end together must not keep the loop of their agent busy for seconds.
//
//     marked_processes marked(children);
//     auto asking = marked.signal("SKEIN_JOB_MARK=train.1.5f3c", SIGTERM);
//     const auto left = co_await asking;      // how many there are

#include <skein/core/config.hpp>
#include <skein/core/event.hpp>
#include <skein/core/task.hpp>
#include <skein/proc/children.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace skein::cluster::detail {

class marked_processes {
public:
    /// children: of this host; must outlive it.
    explicit marked_processes(proc::children& children) noexcept : children_(children) {}
    marked_processes(const marked_processes&) = delete;
    marked_processes& operator=(const marked_processes&) = delete;

    /// Sends a signal (0: none) to all processes with the mark, "NAME=value", within a moment; gives
    /// how many there are. Not to be cancelled: shield it. Resumes on the caller's loop.
    ///   but_not  this process group has been told already and is counted alone; 0: none
    [[nodiscard]] task<std::size_t> signal(std::string mark, int number, std::int64_t but_not = 0);

    /// Ends what an agent that was killed has left behind: the processes that its jobs' entry
    /// processes had started. They know its storage, which one agent alone has open, so it lives no
    /// more. Once, before this agent has started any; `storage` "": there is none.
    void end_leftovers(const std::string& storage);
    /// What all processes of this node's jobs have as SKEIN_JOB_NODE; "": there is none yet.
    [[nodiscard]] const std::string& storage() const noexcept { return storage_; }

private:
    struct question {
        proc::marked_signal what;
        event answered;
    };
    void look();

    proc::children& children_;
    std::string storage_;
    std::vector<std::shared_ptr<question>> asked_; ///< for the next look
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/marked_processes.ipp>
#endif
