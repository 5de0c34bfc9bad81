// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the head counts, and what agents have told it, as text for Prometheus.

#include "status_text.hpp"

#include <skein/cluster/head.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/core/metric_registry.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein_program {

/// Numbers by name, in the order in which Prometheus wants them: all of one name together.
class metric_page {
public:
    using labels = std::vector<skein::metric_label>;

    void add(const std::string& name, skein::series_kind kind, const char* help, double value,
             labels with = {}) {
        auto& of = all_[name];
        of.name = name;
        of.help = help;
        of.kind = kind;
        of.series.push_back({std::move(with), value, {}});
    }
    void gauge(const std::string& name, const char* help, double value, labels with = {}) {
        add(name, skein::series_kind::gauge, help, value, std::move(with));
    }
    void counter(const std::string& name, const char* help, double value, labels with = {}) {
        add(name, skein::series_kind::counter, help, value, std::move(with));
    }
    /// Those of one process, each with the labels of that process. A name that is taken for
    /// something else is left out.
    void add_all(std::vector<skein::metric_family> of, const labels& who) {
        for (auto& one : of) {
            auto& to = all_[one.name];
            if (!to.name.empty() && (to.kind != one.kind || to.bounds != one.bounds)) continue;
            to.name = one.name;
            to.kind = one.kind;
            to.bounds = one.bounds;
            if (to.help.empty()) to.help = one.help;
            for (auto& s : one.series) {
                s.labels.insert(s.labels.end(), who.begin(), who.end());
                to.series.push_back(std::move(s));
            }
        }
    }
    [[nodiscard]] std::string text() const {
        std::vector<skein::metric_family> all;
        for (const auto& [name, of] : all_) all.push_back(of);
        std::string out;
        skein::append_prometheus(out, all);
        return out;
    }

private:
    std::map<std::string, skein::metric_family> all_;
};

inline void add_cluster(metric_page& to, const cluster::cluster_status& now) {
    to.gauge("skein_head_uptime_seconds", "How long this head has been running.",
             static_cast<double>(now.up_ms) / 1000);
    std::array<std::size_t, 5> nodes{};
    for (const auto& n : now.nodes)
        ++nodes[n.suspect ? 1 : n.draining ? 2 : n.rests_ms != 0 ? 4 : 0];
    nodes[3] = now.missing.size();
    constexpr std::array names{"ready", "suspect", "draining", "missing", "resting"};
    for (std::size_t i = 0; i < names.size(); ++i)
        to.gauge("skein_cluster_nodes", "Nodes by state.", static_cast<double>(nodes[i]),
                 {{"state", names[i]}});
    to.gauge("skein_programs", "Drivers that are connected or may come back.",
             static_cast<double>(now.jobs.size()));
    for (const auto& n : now.nodes) {
        const auto total = resources_of(n.resources), used = resources_of(n.used);
        const auto row = [&](const char* name, const char* state, double value) {
            to.gauge("skein_resources", "Resources of a node, by name and state; memory in bytes.",
                     value, {{"node", n.name}, {"name", name}, {"state", state}});
        };
        const auto cores = [](const sched::amount& a) {
            return static_cast<double>(a.in_steps()) / sched::amount::steps;
        };
        row("cpu", "total", cores(total.cpu));
        row("cpu", "used", cores(used.cpu));
        row("gpu", "total", cores(total.gpu));
        row("gpu", "used", cores(used.gpu));
        row("memory", "total", static_cast<double>(total.memory));
        row("memory", "used", static_cast<double>(used.memory));
        to.gauge("skein_node_workers", "Worker and entry processes of a node.", n.workers,
                 {{"node", n.name}});
    }
}

/// What nodes tell of their hosts; one that is gone has none.
inline void add_usage(metric_page& to, const std::map<std::string, cluster::node_usage>& usage) {
    for (const auto& [name, now] : usage) {
        if (!now.is_there) continue;
        const auto row = [&, node = name](const char* what, skein::series_kind kind,
                                          const char* help, double value) {
            if (value >= 0) to.add(what, kind, help, value, {{"node", node}});
        };
        using enum skein::series_kind;
        const auto& l = now.load;
        row("skein_node_cpu_utilization_ratio", gauge, "Of all cores of the host, 0 to 1.", l.cpu);
        row("skein_node_memory_used_bytes", gauge, "Memory of the host that is taken.",
            l.memory_used);
        row("skein_node_memory_total_bytes", gauge, "Memory of the host.", l.memory_total);
        row("skein_node_disk_used_bytes", gauge, "Of the file system of the node's storage.",
            l.disk_used);
        row("skein_node_disk_total_bytes", gauge, "Size of the file system of the node's storage.",
            l.disk_total);
        row("skein_node_network_receive_bytes_total", counter,
            "Received by the host since it started.", l.network_received);
        row("skein_node_network_transmit_bytes_total", counter,
            "Sent by the host since it started.", l.network_sent);
    }
}

inline void add_jobs(metric_page& to, const cluster::head& of) {
    const auto all = of.jobs().jobs;
    std::array<std::size_t, 7> states{};
    for (const auto& job : all) ++states[static_cast<std::size_t>(cluster::state_of(job))];
    for (std::size_t i = 0; i < states.size(); ++i)
        to.gauge("skein_jobs", "Jobs that this head knows, by state.",
                 static_cast<double>(states[i]),
                 {{"state", std::string(cluster::to_string(static_cast<cluster::job_state>(i)))}});
    for (const auto& job : all) {
        if (cluster::state_of(job) != cluster::job_state::running) continue;
        const auto now = of.course(job.id).now;
        const auto row = [&](const char* name, const char* help,
                             const std::optional<double>& value) {
            if (value) to.gauge(name, help, *value, {{"job", job.id}});
        };
        row("skein_train_step", "Last step of a running job's training.", now.step);
        row("skein_train_loss", "Last loss of a running job's training.", now.loss);
        row("skein_train_learning_rate", "Last learning rate of a running job's training.",
            now.learning_rate);
        row("skein_train_world_size", "Ranks of a running job's training.", now.ranks);
        to.counter("skein_job_restarts_total", "Attempts of a running job behind the first one.",
                   job.attempt == 0 ? 0 : job.attempt - 1, {{"job", job.id}});
    }
}

inline void add_counts(metric_page& to, const cluster::head_counts& now) {
    const auto lease = [&](const char* state, std::size_t count) {
        to.gauge("skein_leases", "Leases of workers and of entry processes, by state.",
                 static_cast<double>(count), {{"state", state}});
    };
    lease("waiting", now.leases_waiting);
    lease("granted", now.leases_granted);
    lease("expected", now.leases_expected);
    lease("stopping", now.leases_stopping);
    const auto link = [&](const char* peer, std::size_t count) {
        to.gauge("skein_links", "Links to this head, by who is at the other end.",
                 static_cast<double>(count), {{"peer", peer}});
    };
    link("node", now.node_links);
    link("driver", now.driver_links);
    link("other", now.other_links);
    to.counter("skein_calls_started_total", "Remote calls that drivers have made.",
               static_cast<double>(now.calls.submitted));
    to.counter("skein_calls_ended_total", "Remote calls of drivers that have ended.",
               static_cast<double>(now.calls.done - now.calls.failed), {{"result", "ok"}});
    to.counter("skein_calls_ended_total", "Remote calls of drivers that have ended.",
               static_cast<double>(now.calls.failed), {{"result", "failed"}});
    double pending = 0;
    for (const auto& [name, calls] : now.by_program)
        pending += static_cast<double>(calls.submitted - calls.done);
    to.gauge("skein_tasks", "Remote calls of drivers that are there, by state.", pending,
             {{"state", "pending"}});
}

/// All of it, in the text form of Prometheus 0.0.4.
inline std::string metrics_text(const cluster::head& of) {
    metric_page all;
    add_cluster(all, of.status());
    add_usage(all, of.usage());
    add_jobs(all, of);
    add_counts(all, of.counts());
    const auto& own = skein::metric_registry::process();
    all.add_all(own.collect(), {{"process", "head"}});
    all.counter("skein_metrics_dropped_total", "Series of the head that were too many.",
                static_cast<double>(own.dropped()), {});
    for (auto& [node, told] : of.numbers())
        all.add_all(told, {{"node", node}, {"process", "agent"}});
    return all.text();
}

} // namespace skein_program
