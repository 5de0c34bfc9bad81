// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/agent.hpp: what entry processes print, in files of this node. They
// are written on another thread: neither the process nor this loop waits for a disk. What it does
// not take in time is missing there, and counted.

#include <skein/cluster/detail/agent_state.hpp>
#include <skein/cluster/job_storage.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/net/offload.hpp>

#include <memory>
#include <tuple>
#include <utility>

namespace skein::cluster {

namespace detail {

inline constexpr std::size_t most_logged = std::size_t{256} << 10; ///< bytes of one answer

} // namespace detail

SKEIN_INLINE task<void> agent::state::begin_log(state* self, worker* w) {
    if (w->place.storage.empty()) co_return;
    if (self->logs == nullptr)
        self->logs = std::make_shared<attempt_logs>(w->place.storage + "/logs");
    const auto& entry = *w->order.entry();
    const attempt_name name{entry.job, w->order.submitted, entry.attempt};
    auto opening = as_result(net::offload(
        [logs = self->logs, name, first = entry.first_line] { return logs->begin(name, first); }));
    auto opened = co_await opening;
    if (!opened) { // it runs without
        logging::warn("agent", "what a job prints is not written into a file",
                      {{"job", entry.job}, {"why", opened.error().what()}});
        co_return;
    }
    w->log = std::move(*opened);
    w->printed->said.on_line([w](std::uint64_t number, const proc::output_line& line) {
        w->unwritten.add(w->order.entry()->first_line - 1 + number, line.is_error, line.text);
        w->to_write.set();
    });
}

/// Until no more comes.
SKEIN_INLINE task<void> agent::state::write_log(state* self, worker* w) {
    const auto& entry = *w->order.entry();
    bool was_told = false;
    for (;;) {
        auto waiting = detail::wait_for(&w->to_write);
        co_await waiting;
        w->to_write.reset();
        if (w->unwritten.count == 0) {
            if (w->is_read) break;
            continue;
        }
        auto piece = std::make_shared<const log_piece>(std::exchange(w->unwritten, {}));
        auto writing = as_result(net::offload([log = w->log, piece] { log->add(*piece); }));
        const auto written = co_await writing;
        if (!written && !std::exchange(was_told, true))
            logging::warn("agent", "lines of a job are missing in its file",
                          {{"job", entry.job}, {"why", written.error().what()}});
        if (w->is_read) w->to_write.set(); // the last ones may have come meanwhile
    }
    if (w->table != nullptr && !w->table->file().empty() && self->logs != nullptr) {
        auto keeping = as_result(
            net::offload([logs = self->logs, run = w->table->run(), file = w->table->file(),
                          name = attempt_name{entry.job, w->order.submitted, entry.attempt}] {
                logs->keep_table(name, run, file);
            }));
        (void)co_await keeping;
    }
}

SKEIN_INLINE task<node_log> agent::state::read_log(state* self, ask_node_log asked) {
    node_log out;
    if (self->how.storage == nullptr) co_return out;
    auto logs = self->logs;
    auto reading = net::offload([logs, kept = self->how.storage, asked]() mutable {
        node_log found;
        if (logs == nullptr) // of an agent before this one
            logs = std::make_shared<attempt_logs>(kept->get().folder + "/logs");
        const attempt_name name{asked.job, asked.submitted, asked.attempt};
        if (asked.table) {
            std::tie(found.run, found.rows) = logs->table(name);
            return std::pair(found, logs);
        }
        auto lines = logs->read(name, asked.from, detail::most_logged, asked.tail);
        found.first = lines.first;
        found.lines = std::move(lines.lines);
        return std::pair(found, logs);
    });
    auto done = co_await reading;
    if (self->logs == nullptr) self->logs = std::move(done.second);
    co_return std::move(done.first);
}

} // namespace skein::cluster
