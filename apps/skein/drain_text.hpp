// SPDX-License-Identifier: Apache-2.0
#pragma once
// A node's drain as text for people, and as JSON for scripts.

#include "status_text.hpp"

#include <skein/cluster/messages.hpp>
#include <skein/core/printable.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace skein_program {

/// "worker-3 of app (pid 7 at laptop)", "entry process of job train (pid 9)"
inline std::string lease_text(const cluster::drained_lease& l) {
    std::string who = skein::printable(l.what);
    if (!l.of.empty()) who += " of " + skein::printable(l.of);
    if (l.pid != 0)
        who += l.host.empty() ? fmt::format(" (pid {})", l.pid)
                              : fmt::format(" (pid {} at {})", l.pid, skein::printable(l.host));
    return who;
}

inline const char* word_text(const cluster::drained_lease& l) {
    switch (static_cast<cluster::leave_word>(l.word)) {
    case cluster::leave_word::moves: return "moves";
    case cluster::leave_word::ends: return "ends";
    case cluster::leave_word::stays: return "stays";
    default: return "waits";
    }
}

/// A line for each: "  stays  worker-3 of app (pid 7 at laptop): actor 1 (counter) cannot move"
inline std::string leases_text(const cluster::drain_reply& now) {
    std::string out;
    for (const auto& l : now.leases)
        out += fmt::format("  {:<5}  {}{}{}\n", word_text(l), lease_text(l),
                           l.why.empty() ? "" : ": ", skein::printable(l.why));
    if (now.workers > now.leases.size())
        out += fmt::format("  and {} more\n", now.workers - now.leases.size());
    return out;
}

/// Those of the first that are not among the second.
inline std::vector<cluster::drained_lease> left_since(const cluster::drain_reply& before,
                                                      const cluster::drain_reply& now) {
    std::vector<cluster::drained_lease> out;
    for (const auto& l : before.leases)
        if (std::none_of(now.leases.begin(), now.leases.end(),
                         [&](const auto& one) { return one.lease == l.lease; }))
            out.push_back(l);
    return out;
}

inline skein::ordered_json lease_json(const cluster::drained_lease& l) {
    return {{"what", l.what}, {"of", l.of},           {"host", l.host}, {"pid", l.pid},
            {"job", l.job},   {"does", word_text(l)}, {"why", l.why}};
}

/// One object: what is there, and what has left while it was waited for.
inline std::string drain_json(const std::string& node, const cluster::drain_reply& now,
                              const std::vector<cluster::drained_lease>& left) {
    auto out = skein::ordered_json{{"node", node},           {"draining", now.draining},
                                   {"missing", now.missing}, {"empty", now.workers == 0},
                                   {"force", now.force},     {"open_nodes", now.open}};
    if (now.left_ms >= 0) out["left_s"] = static_cast<double>(now.left_ms) / 1000;
    out["left"] = skein::ordered_json::array();
    for (const auto& l : left) out["left"].push_back(lease_json(l));
    out["leases"] = skein::ordered_json::array();
    for (const auto& l : now.leases) out["leases"].push_back(lease_json(l));
    if (!now.not_durable.empty()) out["not_durable"] = now.not_durable;
    return skein::dump_json(out) + "\n";
}

} // namespace skein_program
