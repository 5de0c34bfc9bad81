// SPDX-License-Identifier: Apache-2.0
#pragma once
// A cluster of one node on this host: head, agent and driver in this process, workers that are
// processes of their own.

#include <skein/cluster/agent.hpp>
#include <skein/cluster/head.hpp>
#include <skein/cluster/leased_workers.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/net/token.hpp>
#include <skein/proc/children.hpp>
#include <skein/rt/remote.hpp>
#include <skein/rt/runtime.hpp>

#include <chrono>
#include <string>
#include <utility>

#include <unistd.h>

#include <catch2/catch_test_macros.hpp>

namespace cluster_test {

using namespace skein;

struct real_cluster {
    net::real_loop loop;
    net::real_network network{loop};
    proc::local_children children{loop};
    net::token secret = net::token::generate();
    event joined;
    cluster::head head;
    cluster::agent agent;
    rt::runtime driver;
    cluster::leased_workers workers;

    /// times: of agent and driver
    real_cluster(int cpus, time_constants times)
        : head(loop, network, head_how()), agent(loop, network, children, agent_how(cpus, times)),
          driver(driver_how()), workers(loop, network, driver, workers_how(times)) {}

    /// Serves the cluster while body runs; afterwards all have gone.
    template <class Body>
    void run(Body body) {
        const rt::runtime::use current(driver);
        loop.run(everything(this, std::move(body)));
        CHECK(agent.workers() == 0);
        CHECK(driver.pending() == 0);
    }

private:
    cluster::head_options head_how() const {
        cluster::head_options o;
        o.listen = net::address::tcp("127.0.0.1", 0);
        o.secret = secret;
        o.host = "here";
        o.news = logging::level::debug;
        return o;
    }
    cluster::agent_options agent_how(int cpus, time_constants times) {
        cluster::agent_options o;
        o.head = head.local();
        o.secret = secret;
        o.name = "a";
        o.host = "here";
        o.offers.cpu = cpus;
        o.times = times;
        o.stop_grace = times.shutdown_grace;
        o.news = logging::level::debug;
        o.on_joined = [this](const std::string&) { joined.set(); };
        return o;
    }
    static rt::runtime_options driver_how() {
        rt::runtime_options o;
        o.host = "here";
        o.pid = ::getpid();
        return o;
    }
    cluster::leased_workers_options workers_how(time_constants times) const {
        cluster::leased_workers_options o;
        o.head = head.local();
        o.secret = secret;
        o.name = "cluster_tests";
        o.executable = "/proc/self/exe";
        o.program = "cluster_tests";
        o.times = times;
        return o;
    }

    template <class Body>
    static task<void> everything(real_cluster* self, Body body) {
        scope services;
        services.spawn(self->head.serve());
        services.spawn(self->agent.serve());
        auto there = self->joined.wait();
        co_await there;
        services.spawn(self->workers.serve());
        self->driver.ask(&self->workers);
        auto work = body(*self);
        auto asked = as_result(std::move(work));
        auto outcome = co_await asked;
        self->workers.stop();
        auto bye = self->driver.close();
        co_await bye;
        self->head.stop(); // the agent hears it, ends the workers that are left, and leaves
        auto joined = services.join();
        auto ended = as_result(std::move(joined));
        (void)co_await ended;
        if (!outcome) throw outcome.error();
    }
};

} // namespace cluster_test
