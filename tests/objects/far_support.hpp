// SPDX-License-Identifier: Apache-2.0
#pragma once
// Several nodes in the simulated world, each with a store, and processes on them. Node 0 is that of the
// driver: its store is the hub.

#include <skein/core/all.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/connection.hpp>
#include <skein/objects/far_objects.hpp>
#include <skein/objects/store.hpp>
#include <skein/objects/store_client.hpp>
#include <skein/sim/loop.hpp>
#include <skein/sim/network.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace far_objects_test {

using namespace skein;

struct node {
    std::string host;
    objects::arena memory;
    std::optional<objects::store> store;
    std::optional<objects::far_objects> far;
    std::unique_ptr<net::listener> door;
    scope serving;
    std::vector<std::shared_ptr<objects::store_client>> processes;
};

struct world {
    explicit world(std::uint64_t seed = 7) : loop(seed) {}

    sim::loop loop;
    sim::network network{loop, sim::faults()};
    std::vector<std::unique_ptr<node>> nodes;
    net::token secret = net::token::from_hex(std::string(64, '7')).value();
    std::uint64_t last_process = 0;

    void run(std::function<task<void>(world&)> work) { loop.run(whole(this, &work)); }

    node& add(std::uint64_t bytes) {
        auto made = std::make_unique<node>();
        auto& n = *made;
        n.host = "n" + std::to_string(nodes.size());
        n.memory = objects::arena::in_memory(bytes);
        n.store.emplace(n.memory, 4711 + nodes.size());
        objects::store_peer_options how;
        how.secret = secret;
        how.node = n.host;
        how.listen = net::address::sim(n.host, 0);
        how.lost_after = std::chrono::seconds(10);
        auto& via = network.host(n.host);
        n.far.emplace(*n.store, via, how);
        n.door = via.listen(net::address::sim(n.host, 1));
        n.serving.spawn(accept(this, &n));
        if (nodes.empty())
            n.far->listen(net::address::sim(n.host, 2));
        else
            n.far->join(nodes[0]->far->local(), false);
        nodes.push_back(std::move(made));
        return n;
    }
    std::shared_ptr<objects::store_client> join(node& at) {
        const objects::process_id process(++last_process);
        auto made = objects::store_client::make(
            loop, at.memory, process,
            [this, host = at.host, process] {
                return net::connection::connect(network.host(host), net::address::sim(host, 1),
                                                options(process));
            },
            true);
        at.processes.push_back(made);
        return made;
    }
    static task<void> leave(std::shared_ptr<objects::store_client> who) {
        auto leaving = who->close();
        co_await leaving;
        co_await sleep_for(std::chrono::milliseconds(100));
    }
    /// The node's host is gone, without a word.
    task<void> kill(node& n, bool loudly = true) {
        network.crash(n.host, loudly);
        n.door->close();
        for (auto& one : n.processes) {
            auto leaving = one->close();
            co_await leaving;
        }
        auto ending = end(n);
        co_await ending;
    }
    static task<void> end(node& n) {
        if (!n.store) co_return;
        n.processes.clear();
        n.door->close();
        auto parting = n.far->close();
        co_await parting;
        auto closing = n.store->close();
        co_await closing;
        n.serving.cancel();
        auto joined = as_result(shield(n.serving.join()));
        (void)co_await joined;
        n.far.reset();
        n.store.reset();
    }

private:
    net::connection_options options(objects::process_id process) const {
        net::connection_options o;
        o.secret = secret;
        o.self.name = "process";
        if (process) o.self.extra = wire::encode(objects::store_hello{process});
        return o;
    }
    static task<void> accept(world* w, node* n) {
        try {
            for (;;) {
                auto next = n->door->accept();
                auto stream = co_await next;
                n->serving.spawn(serve(w, n, std::move(stream)));
            }
        } catch (const error&) { // closed
        }
    }
    static task<void> serve(world* w, node* n, std::unique_ptr<net::stream> from) {
        try {
            auto meeting = net::connection::accept(std::move(from), w->options({}));
            auto wire = co_await meeting;
            auto served = n->store->serve(std::move(wire));
            co_await served;
        } catch (const error&) { // it has gone before it came
        }
    }
    static task<void> whole(world* w, std::function<task<void>(world&)>* work) {
        auto running = as_result(with_timeout((*work)(*w), std::chrono::seconds(10'000)));
        const auto done = co_await running;
        for (auto& n : w->nodes) {
            for (auto& one : n->processes) {
                auto leaving = one->close();
                co_await leaving;
            }
            auto ending = end(*n);
            co_await ending;
        }
        if (!done) throw done.error();
    }
};

/// An object of so many bytes, each of them `with`.
inline task<objects::object_ptr> make(std::shared_ptr<objects::store_client> by,
                                      std::uint64_t bytes, int with, objects::process_id to = {}) {
    auto creating = by->create(bytes, std::chrono::seconds(1));
    auto made = co_await creating;
    if (!made) co_return nullptr;
    std::memset(made->bytes().data(), with, made->bytes().size());
    auto sealing = by->seal(std::move(*made), to);
    co_return co_await sealing;
}
inline bool is_all(const objects::object_ptr& one, int what) {
    const auto reading = objects::read_now(one);
    if (!reading) return false;
    const auto bytes = reading->bytes();
    return std::all_of(bytes.begin(), bytes.end(),
                       [&](std::byte b) { return b == static_cast<std::byte>(what); });
}

} // namespace far_objects_test
