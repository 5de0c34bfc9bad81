// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/agent.hpp: entry processes of jobs. Such a process may be anything,
// so what it leaves behind is found by a mark in its environment, wherever it has moved.

#include <skein/cluster/detail/agent_state.hpp>
#include <skein/cluster/detail/job_folder.hpp>
#include <skein/cluster/detail/package_message.hpp>
#include <skein/cluster/job_storage.hpp>
#include <skein/cluster/package_store.hpp>
#include <skein/core/backoff.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/offload.hpp>
#include <skein/proc/gpus.hpp>

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

/// What jobs have of this node's disk.
SKEIN_INLINE task<void> agent::state::open_storage(state* self, worker* w) {
    const auto kept = self->how.storage;
    if (kept == nullptr) co_return;
    auto opening = net::offload([kept, secret = self->how.secret] {
        const auto& folder = kept->get().folder;
        return std::pair(folder, detail::keep_token(folder, secret));
    });
    w->in_storage = true;
    std::tie(w->storage, w->token_file) = co_await opening;
    w->in_storage = false;
    self->marked.end_leftovers(w->storage);
}

/// The folder of its job, with what that has brought. Several of one job may come at once: the
/// first one makes it.
SKEIN_INLINE task<void> agent::state::enter_folder(state* self, worker* w) {
    w->folder = detail::folder_of_job(w->storage, w->order);
    w->has_own_folder = true;
    for (auto at = self->being_laid.find(w->folder); at != self->being_laid.end();
         at = self->being_laid.find(w->folder)) {
        const auto laid = at->second;
        auto waiting = detail::wait_for(laid.get());
        co_await waiting;
    }
    const auto laid = std::make_shared<event>();
    self->being_laid.emplace(w->folder, laid);
    w->in_storage = true;
    auto making = as_result(make_folder(self, w));
    const auto made = co_await making;
    self->being_laid.erase(w->folder);
    laid->set();
    if (!made) throw made.error();
    w->in_storage = false;
}

SKEIN_INLINE task<void> agent::state::make_folder(state* self, worker* w) {
    if (!w->order.package.empty()) {
        auto fetching = fetch_package(self, w);
        co_await fetching;
        co_return;
    }
    auto making = net::offload([folder = w->folder] { detail::make_job_folder(folder); });
    co_await making;
}

/// A worker or a rank of a driver that came out of a job: that one's folder is here, too.
SKEIN_INLINE task<void> agent::state::prepare_of_job(state* self, worker* w) {
    auto opening = open_storage(self, w);
    co_await opening;
    const auto& order = w->order;
    const auto& of = *order.driver();
    if (!detail::is_in_job(of.executable) && !detail::is_in_job(order.folder)) co_return;
    if (order.submitted == 0)
        throw error(
            errc::not_found,
            fmt::format("the head does not know the job {} any more, nor its folder", of.job))
            .with_hint("start the head with --state DIR: the next one knows the jobs of this one");
    if (w->storage.empty())
        throw error(errc::not_supported, "not supported: this node keeps no files of jobs")
            .with_hint("start its agent with a folder for them: skein join --storage DIR");
    auto entering = enter_folder(self, w);
    co_await entering;
}

/// Its folder, and its command in it.
SKEIN_INLINE task<void> agent::state::prepare_entry(state* self, worker* w) {
    const auto& order = w->order;
    auto opening = open_storage(self, w);
    co_await opening;
    if (!order.package.empty() || (order.folder.empty() && !w->storage.empty())) {
        auto entering = enter_folder(self, w);
        co_await entering;
    } else {
        w->folder = order.folder;
        std::error_code none;
        if (!w->folder.empty() && !std::filesystem::is_directory(w->folder, none))
            throw error(errc::not_found, fmt::format("the folder {} is not there", w->folder))
                .with_hint("--working-dir sends a folder along");
    }
    auto path = std::string();
    for (const auto& v : order.variables)
        if (v.starts_with("PATH=")) path = v.substr(5);
    w->executable = detail::find_command(order.entry()->command.front(), w->folder, path);
    auto logging_it = begin_log(self, w);
    co_await logging_it;
    if (w->folder.empty()) co_return;
    std::filesystem::path runs = "runs";
    for (const auto& v : order.variables)
        if (v.starts_with(std::string(runs_variable) + "=")) runs = v.substr(v.find('=') + 1);
    // Before it runs: what it writes at once is newer than this.
    w->table = std::make_unique<detail::table_reader>((w->folder / runs).string());
}

/// What is missing of its folder comes from the head, and each file is kept: the next job that has
/// it finds it here. A folder that an attempt before has left is used again: its checkpoints are
/// there.
SKEIN_INLINE task<void> agent::state::fetch_package(state* self, worker* w) {
    const auto kept = self->how.storage;
    if (kept == nullptr)
        throw error(errc::not_supported, "not supported: this node keeps no files of jobs")
            .with_hint("start its agent with a folder for them: skein join --storage DIR");
    const auto& order = w->order;
    std::error_code none;
    if (std::filesystem::is_directory(w->folder, none)) {
        detail::touch(w->folder);
        co_return;
    }
    auto finding =
        net::offload([kept, id = order.package] { return kept->get().packages->find(id); });
    auto manifest = co_await finding;
    if (!manifest) {
        auto asking = as_result(self->head.ask<package_found>(ask_package{order.package}));
        const auto found = co_await asking;
        if (!found) {
            w->in_storage = found.error().code() != errc::not_found; // the head has it no more
            throw found.error();
        }
        auto read = detail::read_manifest(found->manifest);
        if (read.id() != order.package)
            throw error(errc::corrupt, "the head has sent another package than it was asked for");
        manifest = std::move(read);
    }
    auto holding = net::offload([kept, all = *manifest] {
        auto& store = *kept->get().packages;
        auto held_files = std::make_shared<package_pin>(store.pin(all));
        return std::pair(std::move(held_files), store.missing(all));
    });
    const auto held = co_await holding;
    std::map<sha256_digest, std::uint64_t> sizes;
    for (const auto& one : manifest->entries) sizes[one.digest] = one.size;
    for (const auto& digest : held.second) {
        auto fetching = fetch_blob(self, digest, sizes[digest]);
        co_await fetching;
    }
    auto laying = net::offload([kept, all = *manifest, folder = w->folder] {
        detail::make_room_for_jobs(std::filesystem::path(folder).parent_path().string());
        kept->get().packages->lay_out(all, folder);
    });
    co_await laying;
}

SKEIN_INLINE task<void> agent::state::fetch_blob(state* self, sha256_digest digest,
                                                 std::uint64_t size) {
    auto beginning = net::offload([kept = self->how.storage, digest, size] {
        return std::make_shared<blob_writer>(kept->get().packages->begin(digest, size));
    });
    const auto into = co_await beginning;
    while (into->bytes() < size) {
        auto asking = self->head.ask<blob_piece>(ask_blob{to_hex(digest), into->bytes()});
        auto piece = co_await asking;
        if (piece.bytes.empty()) throw error(errc::corrupt, "a file of the job ends too early");
        auto adding = net::offload([into, some = std::move(piece.bytes)] { into->append(some); });
        co_await adding;
    }
    auto ending = net::offload([into] { into->commit(); });
    co_await ending;
}

SKEIN_INLINE proc::child_options agent::state::entry_to_start(const worker& w) const {
    const auto& order = w.order;
    const auto& entry = *order.entry();
    proc::child_options child;
    child.name = order.name;
    child.socket = false;
    child.reads_output = true;
    child.executable = w.executable;
    child.cwd = w.folder;
    child.argv = entry.command;
    const auto add = [&](std::string name, std::string value) {
        child.env.emplace_back(std::move(name), std::move(value));
    };
    add("SKEIN_ADDRESS", to_string(how.head));
    if (!w.token_file.empty()) add("SKEIN_TOKEN_FILE", w.token_file);
    add("PYTHONUNBUFFERED", "1"); // what a script prints is seen when it prints it
    for (const auto& v : order.variables) {
        const auto split = v.find('=');
        if (split != v.npos) add(v.substr(0, split), v.substr(split + 1));
    }
    add("SKEIN_JOB", entry.job);
    add("SKEIN_JOB_ATTEMPT", fmt::to_string(entry.attempt));
    if (w.has_own_folder) add(detail::job_folder_variable, w.folder);
    const auto mark = detail::job_mark(order);
    add(detail::job_mark_variable, mark.substr(mark.find('=') + 1));
    if (!marked.storage().empty()) add(detail::node_mark_variable, marked.storage());
    const auto demand = sched::parse_resources(order.demand);
    if (const auto good = proc::check_gpus_together(demand ? demand->gpu : 0, how.gpu_names); !good)
        throw good.error();
    if (demand && (demand->gpu || total.gpu)) // it sees the gpus of its lease alone
        add(proc::gpus_variable, proc::gpus_by_name(sched::gpu_set(order.gpus), how.gpu_names));
    return child;
}

SKEIN_INLINE void agent::state::entry_runs(worker* w, scope& beside) {
    head.tell(entry_started{w->order.lease, w->process->pid()});
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
    if (w->has_own_folder) detail::touch(w->folder);
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
        if (w->has_own_folder) detail::touch(w->folder);
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
