// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/agent.hpp: entry processes of jobs. Such a process may be anything,
// so what it leaves behind is found by a mark in its environment, wherever it has moved.

#include <skein/cluster/detail/agent_state.hpp>
#include <skein/cluster/detail/job_folder.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/proc/gpus.hpp>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

namespace detail {

/// "SKEIN_JOB_MARK=train.1.5f3c..."
[[nodiscard]] inline std::string job_mark(const start_worker_order& order) {
    return fmt::format("{}={}.{}.{:016x}", job_mark_variable, order.job, order.attempt,
                       order.lease.driver);
}

} // namespace detail

/// Its folder, and its command in it.
SKEIN_INLINE task<void> agent::state::prepare_entry(state* self, worker* w) {
    const auto& order = w->order;
    if (!order.package.empty()) {
        auto fetching = fetch_package(self, w);
        co_await fetching;
    } else {
        w->folder = order.folder;
        if (!w->folder.empty() && !std::filesystem::is_directory(w->folder))
            throw error(errc::not_found, fmt::format("the folder {} is not there", w->folder))
                .with_hint("--working-dir sends a folder along");
    }
    auto path = std::string();
    for (const auto& v : order.variables)
        if (v.starts_with("PATH=")) path = v.substr(5);
    w->executable = detail::find_command(order.command.front(), w->folder, path);
}

/// The files of its folder.
SKEIN_INLINE task<void> agent::state::fetch_package(state*, worker* w) {
    throw error(errc::not_supported, "not supported: a job that brings files " + w->order.package);
    co_return;
}

SKEIN_INLINE proc::child_options agent::state::entry_to_start(const worker& w) const {
    const auto& order = w.order;
    proc::child_options child;
    child.name = order.name;
    child.socket = false;
    child.reads_output = true;
    child.executable = w.executable;
    child.cwd = w.folder;
    child.argv = order.command;
    const auto add = [&](std::string name, std::string value) {
        child.env.emplace_back(std::move(name), std::move(value));
    };
    add("SKEIN_ADDRESS", to_string(how.head));
    if (!how.storage.empty()) add("SKEIN_TOKEN_FILE", detail::keep_token(how.storage, how.secret));
    for (const auto& v : order.variables) {
        const auto split = v.find('=');
        if (split != v.npos) add(v.substr(0, split), v.substr(split + 1));
    }
    add("SKEIN_JOB", order.job);
    add("SKEIN_JOB_ATTEMPT", fmt::to_string(order.attempt));
    const auto mark = detail::job_mark(order);
    add(detail::job_mark_variable, mark.substr(mark.find('=') + 1));
    const auto demand = sched::parse_resources(order.demand);
    if (const auto good = proc::check_gpus_together(demand ? demand->gpu : 0, how.gpu_names); !good)
        throw good.error();
    if (demand && (demand->gpu || total.gpu)) // it sees the gpus of its lease alone
        add(proc::gpus_variable, proc::gpus_by_name(sched::gpu_set(order.gpus), how.gpu_names));
    return child;
}

SKEIN_INLINE void agent::state::entry_runs(worker* w, scope& beside) {
    head.tell(entry_started{w->order.lease, w->process->pid()});
    if (!w->folder.empty()) beside.spawn(watch_rows(this, w));
}

/// A head that dies may have heard of it and not have written it down: the next one hears it again.
SKEIN_INLINE void agent::state::remember_end(const ended_lease& what) {
    if (entry_ends.size() >= 1000) entry_ends.pop_front();
    entry_ends.emplace_back(deadline_after(on_loop.now(), std::chrono::minutes(5)), what);
}

/// What it has started is asked, too: a shell that is asked alone ends alone.
SKEIN_INLINE void agent::state::ask_entry_to_end(worker* w) {
    w->process->signal_group(SIGTERM);
    (void)children.signal_marked(detail::job_mark(w->order), SIGTERM);
}

/// Its entry process has ended; what that has left behind ends too.
SKEIN_INLINE task<void> agent::state::end_what_is_left(state* self, worker* w) {
    const auto mark = detail::job_mark(w->order);
    if (self->children.signal_marked(mark, SIGTERM) == 0) co_return;
    const auto until = deadline_after(self->on_loop.now(), self->how.stop_grace);
    for (;;) {
        co_await sleep_for(std::chrono::milliseconds(20));
        const bool is_late = self->on_loop.now() >= until;
        if (self->children.signal_marked(mark, is_late ? SIGKILL : 0) == 0) co_return;
    }
}

/// The table of its newest training, as it grows: pages draw it while the job runs.
SKEIN_INLINE task<void> agent::state::watch_rows(state* self, worker* w) {
    detail::table_reader table(w->folder);
    for (;;) {
        co_await sleep_for(std::chrono::seconds(1));
        self->send_rows(*w, table);
    }
}

SKEIN_INLINE void agent::state::send_rows(const worker& w, detail::table_reader& table) {
    for (auto more = table.next(); more; more = table.next()) {
        job_rows m;
        m.lease = w.order.lease;
        m.run = table.run();
        m.offset = more->first;
        m.bytes = std::move(more->second);
        if (!head.tell(std::move(m))) return table.again(); // to the next head, from its beginning
    }
}

} // namespace skein::cluster
