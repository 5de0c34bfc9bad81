// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include <skein/cluster/detail/broken_links.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/link_endpoint.hpp>
#include <skein/sim/network.hpp>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace broken_links_test {

using namespace net_test;
using namespace std::chrono_literals;
using cluster::detail::broken_links;

/// A driver's host with the link of a process on another one.
struct world {
    sim::loop loop{5};
    sim::network network{loop, sim::faults()};
    time_constants times = slow();
    event stopping;
    broken_links links{loop, network.host("driver"), times};
    net::link::handle wire;

    static time_constants slow() {
        time_constants out;
        out.idle_probe = 100ms;
        out.worker_resume = 2s;
        return out;
    }
    static task<void> hold(world* w, net::link::handle l) {
        w->wire = l;
        auto ended = l->wait_closed();
        l.reset();
        co_await ended;
    }
    using body = std::function<task<void>(world&)>;
    static task<void> run_beside(world* w, body work) {
        net::link_endpoint door(w->network.host("driver"), net::address::sim("driver", 1),
                                options("driver"));
        scope serving;
        serving.spawn(door.serve([w](net::link::handle l) { return hold(w, std::move(l)); }));
        serving.spawn(w->links.watch(&w->stopping));
        auto dialing = net::link::connect(w->network.host("far"), net::address::sim("driver", 1),
                                          options("far"));
        const auto far = co_await dialing;
        while (!w->wire) co_await sleep_for(10ms);
        auto working = error_of(work(*w));
        const auto fault = co_await working;
        far->abort(error(errc::closed, "enough"));
        if (w->wire) w->wire->abort(error(errc::closed, "enough"));
        w->stopping.set();
        door.close();
        auto ended = serving.join();
        co_await ended;
        w->wire.reset();
        if (fault) throw *fault;
    }
    void run(body work) { loop.run(run_beside(this, std::move(work))); }
    /// Its host is not reached any more.
    void cut() {
        network.partition("driver", "far");
        network.crash("far");
    }
    [[nodiscard]] std::string why() const {
        return wire->failure() ? wire->failure()->text() : std::string();
    }
};

TEST_CASE("a worker whose link was broken for too long, and whose host does not answer, is lost",
          "[cluster]") {
    world w;
    w.run([](world& w) -> task<void> {
        w.links.add_worker(1, w.wire);
        co_await sleep_for(5s);
        CHECK(w.wire->is_connected());
        w.cut();
        co_await sleep_for(1500ms);
        CHECK(w.why().empty());
        co_await sleep_for(1500ms);
        CHECK(w.why() == "its connection broke, and it has not come back for 2 s");
    });
}

TEST_CASE("one that is not watched any more is left alone", "[cluster]") {
    world w;
    w.run([](world& w) -> task<void> {
        w.links.add_worker(1, w.wire);
        w.links.remove_worker(1);
        w.links.add_client(w.wire);
        w.links.remove_client(w.wire);
        w.cut();
        co_await sleep_for(3s);
        CHECK(w.why().empty());
    });
}

TEST_CASE("without a cluster a broken worker is lost at once, a space client after its time",
          "[cluster]") {
    world worker;
    worker.run([](world& w) -> task<void> {
        w.links.add_worker(1, w.wire);
        w.links.lose_cluster();
        w.cut();
        co_await sleep_for(500ms);
        CHECK(w.why() == "its connection broke, and the cluster has gone");
    });
    world client;
    client.run([](world& w) -> task<void> {
        w.links.add_client(w.wire);
        w.links.lose_cluster();
        w.cut();
        co_await sleep_for(1500ms);
        CHECK(w.why().empty());
        co_await sleep_for(1500ms);
        CHECK(w.why() == "it has not come back for long");
    });
}

} // namespace broken_links_test
