// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/agent.hpp: entry processes of jobs. Such a process may be anything,
// so what it leaves behind is found by a mark in its environment, wherever it has moved.

#include <skein/cluster/detail/agent_state.hpp>
#include <skein/cluster/detail/job_folder.hpp>
#include <skein/cluster/detail/order_keys.hpp>
#include <skein/cluster/detail/served_runs.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/backoff.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/offload.hpp>
#include <skein/proc/gpus.hpp>
#include <skein/spmd/meeting.hpp>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

namespace detail {

/// "SKEIN_JOB_MARK=train.1.5f3c..."
[[nodiscard]] inline std::string job_mark(const start_worker_order& order) {
    const auto& entry = *order.entry();
    return fmt::format("{}={}.{}.{:016x}", job_mark_variable, entry.job, entry.attempt,
                       order.lease.driver);
}

} // namespace detail

/// A worker or a rank of a driver that came out of a job: that one's folder is here, too.
SKEIN_INLINE task<void> agent::state::prepare_of_job(state* self, worker* w) {
    const auto& order = w->order;
    const auto& of = *order.driver();
    if (!detail::is_in_job(of.executable) && !detail::is_in_job(order.folder)) co_return;
    if (order.submitted == 0)
        throw error(
            errc::not_found,
            fmt::format("the head does not know the job {} any more, nor its folder", of.job))
            .with_hint("start the head with --state DIR: the next one knows the jobs of this one");
    if (w->place.storage.empty())
        throw error(errc::not_supported, "not supported: this node keeps no files of jobs")
            .with_hint("start its agent with a folder for them: skein join --storage DIR");
    auto entering = self->folders.enter(&w->place, detail::folder_of_job(w->place.storage, order),
                                        order.package);
    co_await entering;
}

/// Its folder, and its command in it.
SKEIN_INLINE task<void> agent::state::prepare_entry(state* self, worker* w) {
    const auto& order = w->order;
    auto& place = w->place;
    if (!order.package.empty() || (order.folder.empty() && !place.storage.empty())) {
        auto entering =
            self->folders.enter(&place, detail::folder_of_job(place.storage, order), order.package);
        co_await entering;
        auto bringing = as_result(self->steps.bring(order, place));
        if (const auto brought = co_await bringing; !brought) {
            const auto code = brought.error().code(); // a link that the job has brought is its own
            place.in_storage = code != errc::already_exists && code != errc::corrupt;
            throw brought.error();
        }
    } else {
        w->place.folder = order.folder;
        std::error_code none;
        if (!w->place.folder.empty() && !std::filesystem::is_directory(w->place.folder, none))
            throw error(errc::not_found, fmt::format("the folder {} is not there", w->place.folder))
                .with_hint("--working-dir sends a folder along");
    }
    auto path = std::string();
    for (const auto& v : order.variables)
        if (v.starts_with("PATH=")) path = v.substr(5);
    w->executable = detail::find_command(order.entry()->command.front(), w->place.folder, path);
    auto logging_it = begin_log(self, w);
    co_await logging_it;
    if (w->place.folder.empty()) co_return;
    std::filesystem::path runs = "runs";
    for (const auto& v : order.variables)
        if (v.starts_with(std::string(runs_variable) + "=")) runs = v.substr(v.find('=') + 1);
    // Before it runs: what it writes at once is newer than this.
    w->table = std::make_unique<detail::table_reader>((w->place.folder / runs).string());
}

SKEIN_INLINE proc::child_options agent::state::entry_to_start(const worker& w) const {
    const auto& order = w.order;
    const auto& entry = *order.entry();
    proc::child_options child;
    child.name = order.name;
    child.socket = false;
    child.reads_output = true;
    child.executable = w.executable;
    child.cwd = w.place.folder;
    child.argv = entry.command;
    const auto add = [&](std::string name, std::string value) {
        child.env.emplace_back(std::move(name), std::move(value));
    };
    add("SKEIN_ADDRESS", to_string(how.head));
    if (w.place.key != nullptr)
        add("SKEIN_TOKEN_FILE", w.place.key->path());
    else // not that of the agent
        add(spmd::token_variable, detail::process_key(how.secret, order).value().to_text());
    add("PYTHONUNBUFFERED", "1"); // what a script prints is seen when it prints it
    for (const auto& v : order.variables) {
        const auto split = v.find('=');
        if (split != v.npos) add(v.substr(0, split), v.substr(split + 1));
    }
    add("SKEIN_JOB", entry.job);
    add("SKEIN_JOB_ATTEMPT", fmt::to_string(entry.attempt));
    if (w.place.has_own_folder) add(detail::job_folder_variable, w.place.folder);
    const auto mark = detail::job_mark(order);
    add(detail::job_mark_variable, mark.substr(mark.find('=') + 1));
    if (!marked.storage().empty()) add(detail::node_mark_variable, marked.storage());
    add(detail::node_number_variable, fmt::to_string(how.incarnation));
    const auto demand = sched::parse_resources(order.demand);
    if (const auto good = proc::check_gpus_together(demand ? demand->gpu : 0, how.gpu_names); !good)
        throw good.error();
    if (demand && (demand->gpu || total.gpu)) // it sees the gpus of its lease alone
        add(proc::gpus_variable, proc::gpus_by_name(sched::gpu_set(order.gpus), how.gpu_names));
    return child;
}

SKEIN_INLINE void agent::state::entry_runs(worker* w, scope& beside) {
    head.tell(entry_started{w->order.lease, w->process->pid()});
    beside.spawn(steps.watch(w->order, w->place));
    if (w->table == nullptr) return;
    beside.spawn(watch_rows(this, w));
}

/// A head that dies may have heard of it and not have written it down: the next one hears it again.
SKEIN_INLINE void agent::state::remember_end(const ended_lease& what) {
    if (entry_ends.size() >= 1000) entry_ends.pop_front();
    entry_ends.emplace_back(
        deadline_after(on_loop.now(), std::max<duration>(std::chrono::minutes(5), 2 * patience())),
        what);
}

/// From SIGTERM to the kill.
SKEIN_INLINE time_span agent::state::grace_of(const worker& w) const {
    const auto wanted = w.order.entry()->grace_ms;
    if (wanted == 0) return how.stop_grace;
    return std::chrono::milliseconds(std::min(wanted, detail::most_grace_ms));
}

/// What it has started is asked, too: a shell that is asked alone ends alone. Each process once: a
/// second SIGTERM means "at once" to many.
SKEIN_INLINE task<void> agent::state::ask_entry_to_end(state* self, worker* w) {
    w->process->signal_group(SIGTERM);
    w->is_asked = true;
    auto telling = self->marked.signal(detail::job_mark(w->order), SIGTERM, w->process->pid());
    (void)co_await telling;
}

/// Its entry process has ended; what that has left behind ends too.
SKEIN_INLINE task<void> agent::state::end_what_is_left(state* self, worker* w) {
    self->send_rows(*w);
    if (w->place.has_own_folder) detail::touch(w->place.folder);
    const auto mark = detail::job_mark(w->order);
    auto looking = self->marked.signal(mark, w->is_asked ? 0 : SIGTERM);
    if (co_await looking == 0) co_return;
    const auto until = deadline_after(self->on_loop.now(), self->grace_of(*w));
    constexpr auto first = std::chrono::milliseconds(20);
    backoff pauses(first, std::chrono::milliseconds(200));
    for (bool has_killed = false;;) {
        co_await sleep_for(pauses.next());
        const bool is_late = self->on_loop.now() >= until;
        auto again = self->marked.signal(mark, is_late ? SIGKILL : 0);
        if (co_await again == 0) co_return;
        // One that a kill does not end waits for a disk, maybe for hours: each look is at all of
        // /proc.
        if (is_late && !std::exchange(has_killed, true))
            pauses = backoff(first, std::chrono::seconds(5));
    }
}

/// The table of its newest training, as it grows: pages draw it while the job runs. And its folder
/// is in use: no other job's takes its place.
SKEIN_INLINE task<void> agent::state::watch_rows(state* self, worker* w) {
    for (;;) {
        co_await sleep_for(std::chrono::seconds(1));
        self->send_rows(*w);
        if (w->place.has_own_folder) detail::touch(w->place.folder);
    }
}

SKEIN_INLINE void agent::state::send_rows(const worker& w) {
    if (w.table == nullptr) return;
    auto& table = *w.table;
    const auto message = [&] {
        job_rows m;
        m.lease = w.order.lease;
        m.run = table.run();
        m.folder = std::filesystem::path(table.file()).parent_path().string();
        return m;
    };
    for (int pieces = 0; pieces < 4; ++pieces) { // the rest in a second
        auto more = table.next();
        if (!more || more->first >= detail::most_rows_bytes) break;
        auto m = message();
        m.offset = more->first;
        m.bytes = std::move(more->second);
        if (!head.tell(std::move(m))) return table.again(); // to the next head, from its beginning
    }
    auto told = table.told();
    if (!told) return;
    auto m = message();
    m.told = std::move(*told);
    if (!head.tell(std::move(m))) table.again();
}

} // namespace skein::cluster
