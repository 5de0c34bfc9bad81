// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/marked_processes.hpp.

#include <skein/cluster/detail/job_folder.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/log.hpp>
#include <skein/core/sleep.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster::detail {

SKEIN_INLINE task<std::size_t> marked_processes::signal(std::string mark, int number,
                                                        std::int64_t but_not) {
    const auto mine = std::make_shared<question>();
    mine->what.mark = std::move(mark);
    mine->what.number = number;
    mine->what.but_not = but_not;
    asked_.push_back(mine);
    if (asked_.size() > 1) { // somebody looks for all
        co_await mine->answered.wait();
        co_return mine->what.found;
    }
    const auto moment = []() -> task<void> { co_await sleep_for(std::chrono::milliseconds(1)); };
    auto others_come = shield(moment());
    co_await others_come;
    look();
    co_return mine->what.found;
}

SKEIN_INLINE void marked_processes::look() {
    const auto asked = std::exchange(asked_, {});
    std::vector<proc::marked_signal*> all;
    all.reserve(asked.size());
    for (const auto& one : asked) all.push_back(&one->what);
    children_.signal_marked(all);
    for (const auto& one : asked) one->answered.set();
}

SKEIN_INLINE void marked_processes::end_leftovers(const std::string& storage) {
    if (!storage_.empty() || storage.empty()) return;
    storage_ = storage;
    std::size_t ended = 0;
    for (int i = 0; i < 10; ++i) { // one may fork meanwhile; one that cannot end is left alone
        proc::marked_signal all;
        all.mark = fmt::format("{}={}", node_mark_variable, storage);
        all.number = SIGKILL;
        proc::marked_signal* const asked[] = {&all};
        children_.signal_marked(asked);
        ended = std::max(ended, all.found);
        if (all.found == 0) break;
    }
    if (ended != 0)
        logging::warn("agent", "processes of jobs of an agent that was killed are ended",
                      {{"storage", storage}, {"processes", ended}});
}

} // namespace skein::cluster::detail
