// SPDX-License-Identifier: Apache-2.0
#pragma once
// What `skein status` prints: a table for people, or one JSON object for scripts.

#include <skein/cluster/messages.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/units.hpp>
#include <skein/sched/resources.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein_program {

namespace cluster = skein::cluster;
namespace sched = skein::sched;

inline std::string count_text(std::size_t n, std::string_view what) {
    return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

inline sched::resources resources_of(const std::string& text) {
    auto read = sched::parse_resources(text);
    return read ? std::move(*read) : sched::resources{};
}

/// "cpu 2/8, memory 0/15.6 GiB, ssd 0/1": used of total.
inline std::string room_text(const cluster::node_status& n) {
    const auto total = resources_of(n.resources), used = resources_of(n.used);
    auto out = fmt::format("cpu {}/{}", sched::to_string(used.cpu), sched::to_string(total.cpu));
    if (total.gpu)
        out += fmt::format(", gpu {}/{}", sched::to_string(used.gpu), sched::to_string(total.gpu));
    if (total.memory != 0)
        out += fmt::format(", memory {}/{} GiB", skein::gibibytes(used.memory),
                           skein::gibibytes(total.memory));
    for (const auto& c : total.custom)
        out += fmt::format(", {} {}/{}", c.name, sched::to_string(used.of(c.name)),
                           sched::to_string(c.value));
    return out;
}

inline std::string state_text(const cluster::node_status& n) {
    if (n.suspect)
        return fmt::format("away for {}, given up at {}{}",
                           skein::elapsed_text(static_cast<std::int64_t>(n.silent_ms)),
                           skein::elapsed_text(static_cast<std::int64_t>(n.given_up_ms)),
                           n.draining ? ", draining" : "");
    if (n.rests_ms != 0) return n.draining ? "resting, draining" : "resting";
    return n.draining ? "draining" : "ready";
}

/// "2026-11-24 21:05:03 UTC"
inline std::string date_text(std::int64_t unix_seconds) {
    const auto at = static_cast<std::time_t>(unix_seconds);
    std::tm parts{};
    if (::gmtime_r(&at, &parts) == nullptr) return fmt::to_string(unix_seconds);
    return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02} UTC", parts.tm_year + 1900,
                       parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

/// "left", "lost", "stopped"
inline std::string end_text(std::uint8_t how) {
    switch (static_cast<cluster::job_end>(how)) {
    case cluster::job_end::left: return "left";
    case cluster::job_end::lost: return "lost";
    case cluster::job_end::stopped: return "stopped";
    case cluster::job_end::none: break;
    }
    return "unknown";
}

inline std::string state_text(const cluster::missing_node& n) {
    return fmt::format("{}{} since {}", n.draining ? "draining, " : "", n.left ? "left" : "missing",
                       date_text(n.since));
}

/// "resting 4 s: the token cannot be written: no space left on device"
inline std::string rest_text(const cluster::node_status& n) {
    return fmt::format("resting {} s: {}", (n.rests_ms + 999) / 1000, n.rests_for);
}

/// Seconds for which it gets nothing new, and why; null: it may.
inline void add_rest(skein::ordered_json& to, const cluster::node_status& n) {
    to["rests_s"] = n.rests_ms == 0 ? skein::ordered_json(nullptr)
                                    : skein::ordered_json((n.rests_ms + 999) / 1000);
    to["rests_for"] = n.rests_for;
}

/// "app", "app (space server of prod)"
template <class Job>
std::string name_text(const Job& j) {
    return j.space.empty() ? j.name : fmt::format("{} (space server of {})", j.name, j.space);
}

/// "3; why the last one began: worker 2 (pid 7) was killed by signal 9": of a job's training.
template <class Job>
std::string worlds_text(const Job& j) {
    return fmt::format(
        "{}{}{}", j.worlds,
        j.last_change.empty() ? "" : "; why the last one began: ", skein::printable(j.last_change));
}

/// Columns as wide as their widest cell, two blanks between them. What is in them others have
/// chosen.
inline std::string table_text(std::vector<std::vector<std::string>> rows) {
    std::vector<std::size_t> wide;
    for (auto& row : rows) {
        for (auto& cell : row) cell = skein::printable(cell);
        wide.resize(std::max(wide.size(), row.size()));
        for (std::size_t i = 0; i < row.size(); ++i) wide[i] = std::max(wide[i], row[i].size());
    }
    std::string out;
    for (const auto& row : rows) {
        std::string line = " ";
        for (std::size_t i = 0; i < row.size(); ++i)
            line += fmt::format(" {:<{}} ", row[i], wide[i]);
        line.erase(line.find_last_not_of(' ') + 1);
        out += line + "\n";
    }
    return out;
}

/// Some lines, each ended.
inline std::string status_text(const cluster::cluster_status& s) {
    auto out = fmt::format("cluster at {}, up {}: {}, {} (head: pid {} on {})\n",
                           skein::printable(s.address), skein::elapsed_text(s.up_ms),
                           count_text(s.nodes.size(), "node"), count_text(s.jobs.size(), "job"),
                           s.pid, skein::printable(s.host));
    std::vector<std::vector<std::string>> rows{
        {"node", "host", "pid", "state", "workers", "used of total", "labels"}};
    for (const auto& n : s.nodes)
        rows.push_back({n.name, n.host, fmt::to_string(n.pid), state_text(n),
                        fmt::to_string(n.workers), room_text(n),
                        fmt::format("{}", fmt::join(n.labels, " "))});
    for (const auto& n : s.missing)
        rows.push_back({n.name, n.host, "-", state_text(n), "-", n.resources,
                        fmt::format("{}", fmt::join(n.labels, " "))});
    if (rows.size() > 1) out += table_text(rows);
    for (const auto& n : s.nodes)
        if (n.rests_ms != 0)
            out += fmt::format("  {} {}\n", skein::printable(n.name),
                               skein::printable_lines(rest_text(n)));
    rows = {{"job", "host", "pid", "state", "workers", "waiting"}};
    for (const auto& j : s.jobs)
        rows.push_back({name_text(j), j.host, fmt::to_string(j.pid),
                        !j.state.empty() ? j.state
                        : j.connected    ? "connected"
                                         : "away",
                        fmt::to_string(j.workers),
                        j.waiting == 0 || j.why.empty() ? fmt::to_string(j.waiting)
                                                        : fmt::format("{}: {}", j.waiting, j.why)});
    if (!s.jobs.empty()) out += table_text(rows);
    for (const auto& j : s.jobs)
        if (j.worlds > 1)
            out += fmt::format("  {}: worlds {}\n", skein::printable(j.name), worlds_text(j));
    rows = {{"past job", "host", "pid", "how it ended", "started", "ended"}};
    for (const auto& j : s.past)
        rows.push_back({name_text(j), j.host, fmt::to_string(j.pid), end_text(j.how),
                        date_text(j.started), date_text(j.ended)});
    if (!s.past.empty()) out += table_text(rows);
    const auto expected =
        std::count_if(s.missing.begin(), s.missing.end(), [](const auto& n) { return !n.left; });
    if (s.nodes.empty())
        out += expected == 0 ? "  no nodes: skein join adds one\n"
                             : fmt::format("  no nodes now; {} may come back by themselves\n",
                                           expected == 1 ? "the missing one" : "the missing ones");
    out += fmt::format("  a node that is silent for {} is lost\n",
                       skein::elapsed_text(static_cast<std::int64_t>(s.lost_after_ms)));
    if (!s.trouble.empty())
        out += fmt::format("  what changes now is not kept: {}\n", skein::printable(s.trouble));
    return out;
}

/// Amounts by name; memory in bytes.
inline skein::ordered_json resources_json(const std::string& text) {
    const auto r = resources_of(text);
    const auto in_ones = [](sched::amount a) {
        return static_cast<double>(a.in_steps()) / sched::amount::steps;
    };
    skein::ordered_json out;
    out["cpu"] = in_ones(r.cpu);
    out["gpu"] = in_ones(r.gpu);
    out["memory"] = r.memory;
    for (const auto& c : r.custom) out[c.name] = in_ones(c.value);
    return out;
}

/// One line.
inline std::string status_json(const cluster::cluster_status& s, bool past) {
    skein::ordered_json out{{"address", s.address},
                            {"host", s.host},
                            {"pid", s.pid},
                            {"up_ms", s.up_ms},
                            {"nodes", skein::ordered_json::array()},
                            {"jobs", skein::ordered_json::array()},
                            {"missing", skein::ordered_json::array()},
                            {"state", s.state},
                            {"trouble", s.trouble},
                            {"generation", s.generation},
                            {"lost_after_ms", s.lost_after_ms}};
    for (const auto& n : s.nodes)
        out["nodes"].push_back({{"name", n.name},
                                {"host", n.host},
                                {"pid", n.pid},
                                {"resources", resources_json(n.resources)},
                                {"used", resources_json(n.used)},
                                {"workers", n.workers},
                                {"draining", n.draining},
                                {"suspect", n.suspect},
                                {"silent_ms", n.silent_ms},
                                {"given_up_ms", n.given_up_ms},
                                {"labels", n.labels}});
    for (std::size_t i = 0; i < s.nodes.size(); ++i) add_rest(out["nodes"][i], s.nodes[i]);
    for (const auto& j : s.jobs)
        out["jobs"].push_back({{"name", j.name},
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
                               {"last_change", j.last_change}});
    for (const auto& n : s.missing)
        out["missing"].push_back({{"name", n.name},
                                  {"host", n.host},
                                  {"resources", resources_json(n.resources)},
                                  {"draining", n.draining},
                                  {"left", n.left},
                                  {"since", n.since},
                                  {"labels", n.labels}});
    if (past) out["past_jobs"] = skein::ordered_json::array();
    for (const auto& j : s.past)
        out["past_jobs"].push_back({{"name", j.name},
                                    {"host", j.host},
                                    {"pid", j.pid},
                                    {"started", j.started},
                                    {"ended", j.ended},
                                    {"how", end_text(j.how)},
                                    {"space", j.space}});
    return skein::dump_json(out) + "\n";
}

} // namespace skein_program
