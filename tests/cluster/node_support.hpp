// SPDX-License-Identifier: Apache-2.0
#pragma once
// A table of nodes without links: the test says which are silent, and which have died.

#include "cluster/lease_support.hpp"

#include <skein/cluster/detail/node_table.hpp>
#include <skein/core/sleep.hpp>

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace lease_test {

struct node_world : world, parts::node_links {
    parts::head_memory memory{loop}; // without a log
    parts::node_table nodes{loop, memory, leases, *this, {3s, 30s, 1s, 3s}};
    std::set<std::uint64_t> silent, died;
    std::vector<std::pair<std::uint64_t, bool>> told;
    std::vector<std::string> lost;

    [[nodiscard]] bool is_silent(std::uint64_t node) const override {
        return silent.contains(node);
    }
    [[nodiscard]] bool has_died(std::uint64_t node) const override { return died.contains(node); }
    void tell_drains(std::uint64_t node, bool on) override { told.emplace_back(node, on); }
    void lose_node(std::uint64_t node, const std::string& why, bool may_run) override {
        lost.push_back(why + (may_run ? ", it may run" : ""));
        nodes.remove(*nodes.find(node), why, false);
    }
    void tell_size() override {}

    parts::known_node& join(std::uint64_t incarnation, std::string name, std::string host = "h") {
        node_hello hello;
        hello.name = std::move(name);
        hello.host = std::move(host);
        hello.resources = "cpu=2";
        return nodes.enter(incarnation, hello);
    }
    /// Time passes, with a look each second.
    void look_for(int seconds) {
        auto body = [](node_world* w, int count) -> task<void> {
            for (int i = 0; i < count; ++i) {
                co_await sleep_for(1s);
                w->nodes.look();
            }
        };
        loop.run(body(this, seconds));
    }
    drain_reply drain(const std::string& name, bool on, bool forget = false) {
        ask_drain asked;
        asked.node = name;
        asked.on = on;
        asked.forget = forget;
        return nodes.drain(asked);
    }
};

} // namespace lease_test
