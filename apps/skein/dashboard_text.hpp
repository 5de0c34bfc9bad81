// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the head knows, as JSON for pages and scripts.

#include "status_text.hpp"

#include <skein/cluster/head.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/core/printable.hpp>
#include <skein/proc/process.hpp>
#include <skein/report/metrics_table.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace skein_program {

/// The words of a command, as a shell would take them.
inline std::string command_text(const std::vector<std::string>& command) {
    std::string all;
    for (const auto& word : command) {
        const bool plain =
            !word.empty() && word.find_first_of(" \t\n\"'\\$`*?&;|<>()") == word.npos;
        all += all.empty() ? "" : " ";
        if (plain) {
            all += word;
            continue;
        }
        all += '\'';
        for (const char c : word) all += c == '\'' ? std::string("'\\''") : std::string(1, c);
        all += '\'';
    }
    return skein::printable(all);
}

/// A number as JSON, which has no words for what is not finite: texts are, in the place of one.
inline skein::ordered_json number_json(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return value;
}

/// A job in the API's own words; times are seconds since 1970.
inline skein::ordered_json json_of(const cluster::job_info& job) {
    skein::ordered_json out;
    const auto time = [&](const char* name, std::int64_t ms) {
        if (ms != 0) out[name] = static_cast<double>(ms) / 1000;
    };
    out["id"] = job.id;
    out["state"] = std::string(cluster::to_string(cluster::state_of(job)));
    out["reason"] = job.reason;
    out["entrypoint"] = command_text(job.command);
    out["command"] = job.command;
    out["submitted_by"] = job.by;
    out["node"] = job.node;
    // One that waits for room has not begun.
    const bool waits = cluster::state_of(job) == cluster::job_state::pending && job.attempt != 0;
    out["attempt"] = job.attempt - (waits ? 1 : 0);
    out["retries"] = job.retries;
    out["not_counted"] = job.not_counted;
    if (job.exit_code >= 0) out["exit_code"] = job.exit_code;
    if (job.signal != 0) out["signal"] = skein::proc::signal_name(job.signal);
    time("submitted", job.submitted);
    time("started", job.started);
    time("ended", job.ended);
    out["lines"] = job.lines;
    out["lines_left_out"] = job.left_out;
    out["last_lines"] = job.last_lines;
    if (job.worlds != 0) {
        out["worlds"] = job.worlds;
        out["last_change"] = job.last_change;
    }
    return out;
}

/// What is kept of it, the newest last.
inline skein::ordered_json results_json(const std::vector<cluster::stored_set>& sets) {
    auto out = skein::ordered_json::array();
    for (const auto& one : sets) {
        skein::ordered_json set{{"name", one.name},
                                {"attempt", one.attempt},
                                {"node", one.node},
                                {"files", one.id.empty() ? 0 : one.files},
                                {"bytes", one.id.empty() ? 0 : one.bytes}};
        set["kept"] = static_cast<double>(one.when) / 1000;
        if (!one.trouble.empty()) set["trouble"] = one.trouble;
        out.push_back(std::move(set));
    }
    return out;
}

/// How far it has come: what its rows say, and the attempts there were.
inline void add_course(skein::ordered_json& to, const cluster::job_info& job,
                       const cluster::job_course& course) {
    const auto add = [&](const char* name, const std::optional<double>& value) {
        if (value) to[name] = number_json(*value);
    };
    const auto& now = course.now;
    add("step", now.step);
    add("steps", now.steps);
    add("epoch", now.epoch);
    add("epochs", now.epochs);
    add("loss", now.loss);
    add("learning_rate", now.learning_rate);
    add("steps_per_s", now.steps_per_s);
    add("samples_per_s", now.samples_per_s);
    add("tokens_per_s", now.tokens_per_s);
    add("workers", now.ranks);
    if (cluster::state_of(job) == cluster::job_state::running) add("left_s", time_left(now));
    if (!now.folder.empty()) to["run_folder"] = now.folder;
    if (now.is_over) to["training"] = now.stopped_by.empty() ? "finished" : "stopped";
    if (!now.stopped_by.empty()) to["stopped_by"] = now.stopped_by;
    auto ranks = skein::ordered_json::array();
    for (const auto& one : course.ranks) {
        skein::ordered_json out{{"node", one.node}};
        if (one.rank >= 0) out["rank"] = one.rank;
        ranks.push_back(std::move(out));
    }
    if (!ranks.empty()) to["ranks"] = std::move(ranks);
    to["restarts"] = job.attempt == 0 ? 0 : job.attempt - 1;
    auto attempts = skein::ordered_json::array();
    const auto add_attempt = [&](const cluster::past_attempt& one) {
        skein::ordered_json out;
        out["attempt"] = one.attempt;
        if (!one.node.empty()) out["node"] = one.node;
        if (one.started != 0) out["started"] = static_cast<double>(one.started) / 1000;
        if (one.ended != 0) out["ended"] = static_cast<double>(one.ended) / 1000;
        if (one.exit_code >= 0) out["exit_code"] = one.exit_code;
        if (one.signal != 0) out["signal"] = skein::proc::signal_name(one.signal);
        if (!one.reason.empty()) out["reason"] = one.reason;
        attempts.push_back(std::move(out));
    };
    for (const auto& one : course.attempts) add_attempt(one);
    const auto state = cluster::state_of(job);
    if (state != cluster::job_state::retrying && state != cluster::job_state::pending &&
        job.attempt != 0)
        add_attempt({job.attempt, job.node, job.reason, job.exit_code, job.signal,
                     state == cluster::job_state::starting ? 0 : job.started, job.ended});
    to["attempts"] = std::move(attempts);
}

/// A job in Ray's words, which knows five states.
inline skein::ordered_json ray_json_of(const cluster::job_info& job) {
    const auto state = cluster::state_of(job);
    const auto status =
        state == cluster::job_state::starting || state == cluster::job_state::retrying
            ? "PENDING"
            : std::string(cluster::to_string(state));
    const bool is_shell =
        job.command.size() == 3 && job.command[0] == "/bin/sh" && job.command[1] == "-c";
    skein::ordered_json out;
    out["type"] = "SUBMISSION";
    out["job_id"] = job.id;
    out["submission_id"] = job.id;
    out["status"] = status;
    out["entrypoint"] = is_shell ? job.command[2] : command_text(job.command);
    out["message"] = job.reason;
    out["error_type"] = nullptr;
    out["start_time"] = job.started != 0 ? job.started : job.submitted;
    out["end_time"] = job.ended != 0 ? skein::ordered_json(job.ended) : nullptr;
    out["metadata"] = skein::ordered_json::object();
    out["runtime_env"] = skein::ordered_json::object();
    out["driver_node_id"] = job.node;
    out["driver_exit_code"] = job.exit_code >= 0 ? skein::ordered_json(job.exit_code) : nullptr;
    return out;
}

/// What a person may look for in a list of jobs, in any case of letters.
inline bool has_text(const cluster::job_info& job, std::string_view text) {
    const auto lower = [](std::string_view of) {
        std::string out(of);
        for (auto& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
        return out;
    };
    const auto wanted = lower(text);
    const auto has = [&](std::string_view in) { return lower(in).find(wanted) != in.npos; };
    return wanted.empty() || has(job.id) || has(job.by) || has(job.node) || has(job.reason) ||
           has(cluster::to_string(cluster::state_of(job))) || has(command_text(job.command));
}

///   state, text   of these alone; "": of all
inline skein::ordered_json jobs_json(const cluster::job_list& all, std::size_t first,
                                     std::size_t most, std::string_view state,
                                     std::string_view text = {}) {
    auto some = skein::ordered_json::array();
    std::map<std::string, std::size_t> states; // of all, whatever is shown
    std::size_t at = 0, left = 0;
    for (const auto& job : all.jobs) {
        ++states[std::string(cluster::to_string(cluster::state_of(job)))];
        if (!state.empty() && state != cluster::to_string(cluster::state_of(job))) continue;
        if (!has_text(job, text)) continue;
        if (at++ < first) continue;
        if (some.size() < std::min<std::size_t>(most, 1000))
            some.push_back(json_of(job));
        else
            ++left;
    }
    skein::ordered_json out;
    out["jobs"] = std::move(some);
    out["total"] = all.total;
    out["states"] = states;
    out["found"] = at;
    out["next_cursor"] = left == 0 ? nullptr : skein::ordered_json(at - left);
    return out;
}

/// What is not known is null; `digits` behind the point.
inline skein::ordered_json known_json(double value, double digits = 1) {
    if (!(value >= 0)) return nullptr;
    if (digits == 1) return static_cast<std::int64_t>(std::llround(value));
    return std::round(value * digits) / digits;
}

/// How busy a node is, in the words of the page.
inline skein::ordered_json load_json(const cluster::node_usage& now) {
    skein::ordered_json out;
    const auto add = [&](const char* name, skein::ordered_json value) {
        if (!value.is_null()) out[name] = std::move(value);
    };
    out["at"] = now.at;
    add("cpu", known_json(now.load.cpu, 1000));
    add("memory_used", known_json(now.load.memory_used));
    add("memory_total", known_json(now.load.memory_total));
    add("disk_used", known_json(now.load.disk_used));
    add("disk_total", known_json(now.load.disk_total));
    add("net_in", known_json(now.load.network_receive_rate));
    add("net_out", known_json(now.load.network_send_rate));
    return out;
}

/// The columns of rows_of().
inline constexpr std::array sample_columns{"t",         "cpu",    "memory_used",
                                           "disk_used", "net_in", "net_out"};
inline skein::ordered_json rows_of(const cluster::load_curve& curve) {
    auto rows = skein::ordered_json::array();
    for (const auto& p : curve.points)
        rows.push_back({p.at, known_json(static_cast<double>(p.cpu), 1000),
                        known_json(static_cast<double>(p.memory_used)),
                        known_json(static_cast<double>(p.disk_used)),
                        known_json(static_cast<double>(p.network_receive_rate)),
                        known_json(static_cast<double>(p.network_send_rate))});
    return rows;
}

/// One node's past.
inline skein::ordered_json samples_json(const std::string& node, const cluster::load_curve& curve) {
    return {{"node", node},
            {"every_s", curve.every_s},
            {"columns", sample_columns},
            {"rows", rows_of(curve)}};
}

/// That of all nodes, for a page that shows many: from a moment on, thinned; or the last one of each
/// that has told it after sample number `after`, which costs some 5 KB a second at 100 nodes.
inline skein::ordered_json all_samples_json(const cluster::head& of, std::int64_t from,
                                            std::size_t points, std::uint64_t after) {
    auto nodes = skein::ordered_json::object();
    const auto all = of.usage();
    points =
        std::min(points, std::max<std::size_t>(1, 65'536 / std::max<std::size_t>(1, all.size())));
    for (const auto& [name, now] : all)
        if (after == 0)
            nodes[name] = rows_of(of.usage_since(name, from, points));
        else if (now.number > after)
            nodes[name] = rows_of(of.usage_since(name, now.at - 1, 1));
    return {{"number", of.usage_changes()}, {"columns", sample_columns}, {"nodes", nodes}};
}

inline skein::ordered_json nodes_json(const cluster::cluster_status& now,
                                      const std::map<std::string, cluster::node_usage>& usage) {
    auto all = skein::ordered_json::array();
    for (const auto& n : now.nodes) {
        skein::ordered_json one;
        one["name"] = n.name;
        one["host"] = n.host;
        one["pid"] = n.pid;
        one["state"] = state_text(n);
        one["resources"] = resources_json(n.resources);
        one["used"] = resources_json(n.used);
        one["workers"] = n.workers;
        one["labels"] = n.labels;
        add_rest(one, n);
        if (const auto known = usage.find(n.name); known != usage.end())
            one["load"] = load_json(known->second);
        all.push_back(std::move(one));
    }
    for (const auto& n : now.missing) {
        skein::ordered_json one;
        one["name"] = n.name;
        one["host"] = n.host;
        one["state"] = n.left ? "left" : "missing";
        one["resources"] = resources_json(n.resources);
        one["labels"] = n.labels;
        all.push_back(std::move(one));
    }
    return {{"nodes", all},
            {"up_ms", now.up_ms},
            {"address", now.address},
            {"trouble", skein::printable(now.trouble)}};
}

///   calls    by name of the program: those of one name together
inline skein::ordered_json programs_json(
    const cluster::cluster_status& now,
    const std::map<std::string, cluster::call_counts>& calls = {}) {
    auto all = skein::ordered_json::array();
    for (const auto& j : now.jobs) {
        const auto found = calls.find(j.program.empty() ? j.name : j.program);
        const auto of = found == calls.end() ? cluster::call_counts() : found->second;
        all.push_back({{"name", j.name},
                       {"host", j.host},
                       {"pid", j.pid},
                       {"workers", j.workers},
                       {"waiting", j.waiting},
                       {"why", j.why},
                       {"connected", j.connected},
                       {"space", j.space},
                       {"job", j.job},
                       {"state", j.state},
                       {"program", j.program},
                       {"worlds", j.worlds},
                       {"last_change", j.last_change},
                       {"calls", of.submitted},
                       {"calls_done", of.done},
                       {"calls_failed", of.failed}});
    }
    return {{"programs", all}};
}

/// A row of metrics.csv: a number, a text, or null where there is no value.
inline skein::ordered_json row_json(std::vector<std::string> cells) {
    auto row = skein::ordered_json::array();
    for (auto& cell : cells)
        if (const auto value = skein::report::number_of(cell))
            row.push_back(number_json(*value));
        else if (cell.empty())
            row.push_back(nullptr);
        else
            row.push_back(std::move(cell));
    return row;
}

/// metrics.csv as columns and rows; of more rows than `points` the last one of each of as many
/// stretches, and before it one whose numbers are not all finite: a broken loss is not thinned away.
///   from     rows that the reader has, of this edition of the table: the others alone
inline skein::ordered_json rows_json(const cluster::job_table_text& table, std::size_t points,
                                     std::size_t from = 0, std::size_t edition = 0) {
    auto columns = skein::ordered_json::array(), rows = skein::ordered_json::array();
    const skein::report::metrics_table read(table.text, skein::report::torn_line::row);
    for (const auto& name : read.names()) columns.push_back(name);
    const auto count = read.size();
    if (edition != table.edition || from > count) from = 0;
    points = std::clamp<std::size_t>(points, 1, 4096);
    const auto more = count - from, shown = std::min(more, points);
    const auto is_broken = [](std::string_view line) { // nan, inf: no other number has an n
        return line.find_first_of("nN") != line.npos;
    };
    const auto at = [&](std::size_t row) {
        return read.rows().begin() + static_cast<std::ptrdiff_t>(row);
    };
    for (std::size_t i = 1; i <= shown; ++i) {
        const auto first = from + more * (i - 1) / shown, last = from + more * i / shown - 1;
        const auto broken = std::find_if(at(first), at(last), is_broken);
        if (broken != at(last) && !is_broken(read.row(last)))
            rows.push_back(row_json(read.cells(static_cast<std::size_t>(broken - at(0)))));
        rows.push_back(row_json(read.cells(last)));
    }
    return {{"run", table.run},   {"edition", table.edition},
            {"columns", columns}, {"from", from},
            {"rows", rows},       {"total", count}};
}

/// Lines of a job by number: from one on, or the last ones (`from` 0), whole, as many as fit in so
/// many bytes; `next` is the first that is not in it.
inline skein::ordered_json lines_json(const cluster::head& of, const std::string& id,
                                      std::uint64_t from, std::uint64_t last, std::size_t bytes) {
    const auto total = of.job_output(id, UINT64_MAX / 2).now.lines;
    if (from == 0) from = total - std::min(total, std::max<std::uint64_t>(last, 1)) + 1;
    const auto said = of.job_output(id, from);
    auto lines = skein::ordered_json::array();
    for (const auto& line : said.lines) {
        if (!lines.empty() && line.text.size() + 3 > bytes) break;
        bytes -= std::min(bytes, line.text.size() + 3);
        lines.push_back(line.text);
    }
    const auto next = said.first + lines.size();
    return {{"first", said.first}, {"lines", lines}, {"next", next}, {"total", total}};
}

} // namespace skein_program
