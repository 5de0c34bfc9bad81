// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of program/local_workers.hpp: a worker whose process is there and does nothing
// any more. When its process has shown that for as long as the silence of a dead host
// (until_silent) it is ended, and all goes on as after any worker's death; before that, from the
// time on at which a silent host is suspected, nothing new goes there.

#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/channel.hpp>
#include <skein/proc/children.hpp>
#include <skein/rt/runtime.hpp>

#include <string>
#include <utility>

namespace skein::program::detail {

SKEIN_INLINE task<void> watch_process(proc::child* process, std::shared_ptr<net::channel> wire,
                                      rt::runtime* driver, time_constants times) {
    auto watching = proc::detail::until_silent(
        process, times, [wire, driver](bool on) { driver->suspect(*wire, on); });
    auto why = co_await watching;
    driver->give_up_worker(*wire, std::move(why));
    process->kill();
}

SKEIN_INLINE task<void> leave_when_idle(std::shared_ptr<net::channel> aside, rt::runtime* driver,
                                        time_constants times) {
    auto busy_at = loop::current().now();
    while (loop::current().now() - busy_at < times.idle_aside) {
        co_await sleep_for(times.suspect_after);
        if (!driver->is_idle(aside)) busy_at = loop::current().now();
    }
    auto leaving = driver->retire(std::move(aside));
    (void)co_await leaving;
}

} // namespace skein::program::detail
