// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of program/local_workers.hpp: a worker whose process is there and does nothing
// any more. A worker runs tasks on its loop, so that it may be silent for hours and be well; its
// silence says nothing. What the kernel says of its process does: it is stopped, it has become
// another program, or it reads by itself from the socket over which its driver talks to it. When
// that has lasted as long as the silence of a dead host it is ended, and all goes on as after any
// worker's death; before that, from the time on at which a silent host is suspected, nothing new
// goes there.

#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/channel.hpp>
#include <skein/proc/children.hpp>
#include <skein/rt/runtime.hpp>

#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace skein::program::detail {

/// Why a process will not answer; empty: it may.
[[nodiscard]] inline const char* why_silent(const proc::process_look& first,
                                            const proc::process_look& now) {
    if (now.is_stopped) return "it is stopped (SIGSTOP)";
    if (first.executable != 0 && now.executable != 0 && now.executable != first.executable)
        return "it has become another program (exec)";
    if (now.holds_socket) return "a function there reads from skein's own socket";
    return "";
}

SKEIN_INLINE task<void> watch_process(proc::child* process, std::shared_ptr<net::channel> wire,
                                      rt::runtime* driver, time_constants times,
                                      bool leaves_when_idle) {
    const auto first = process->look();
    std::optional<time_point> since;
    auto busy_at = loop::current().now();
    bool suspected = false;
    for (;;) {
        co_await sleep_for(times.suspect_after);
        const std::string why = why_silent(first, process->look());
        const auto now = loop::current().now();
        if (!leaves_when_idle || !driver->is_idle(wire)) busy_at = now;
        if (now - busy_at >= times.idle_aside) {
            auto leaving = driver->retire(wire);
            (void)co_await leaving;
            co_return;
        }
        if (why.empty()) {
            since.reset();
            if (std::exchange(suspected, false)) driver->suspect(*wire, false);
            continue;
        }
        if (!since) {
            since = now;
            continue;
        }
        if (!std::exchange(suspected, true)) driver->suspect(*wire, true);
        if (now - *since < times.dead_after) continue;
        driver->give_up_worker(
            *wire, fmt::format("it was ended after {:.3g} s: {}", to_seconds(now - *since), why));
        process->kill();
        co_return;
    }
}

} // namespace skein::program::detail
