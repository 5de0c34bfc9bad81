// SPDX-License-Identifier: Apache-2.0
#pragma once
// A driver with real worker processes of this host.

#include <tests/apps/apps.hpp>

#include <skein/core/scope.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/proc/children.hpp>
#include <skein/program/local_workers.hpp>
#include <skein/rt/runtime.hpp>

#include <utility>

#include <catch2/catch_test_macros.hpp>

namespace rt_test {

using namespace skein;

struct pool {
    net::real_loop loop;
    net::real_network network{loop};
    proc::local_children children{loop};
    rt::runtime driver{rt::runtime_options{}};
    program::local_workers workers;

    explicit pool(program::local_workers_options how)
        : workers(loop, network, children, driver, std::move(how)) {}

    /// Serves the workers while body runs; afterwards all have gone.
    template <class Body>
    void run(Body body) {
        const rt::runtime::use current(driver);
        loop.run(everything(this, std::move(body)));
        CHECK(workers.pids().empty());
        CHECK(driver.pending() == 0);
    }

private:
    template <class Body>
    static task<void> everything(pool* self, Body body) {
        scope services;
        services.spawn(self->workers.serve());
        self->driver.ask(&self->workers);
        auto work = body(*self);
        auto asked = as_result(std::move(work));
        auto outcome = co_await asked;
        self->workers.stop();
        auto bye = self->driver.close();
        co_await bye;
        services.cancel();
        auto joined = services.join();
        auto ended = as_result(std::move(joined));
        (void)co_await ended;
        if (!outcome) throw outcome.error();
    }
};

inline program::local_workers_options options(int count) {
    program::local_workers_options o;
    o.count = count;
    o.program = "rt_tests";
    return o;
}

inline program::local_workers_options with_resources(int count, const char* offers) {
    auto how = options(count);
    how.offers = sched::parse_resources(offers).value();
    return how;
}

} // namespace rt_test
