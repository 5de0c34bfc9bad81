// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/detail/broken_links.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/link_endpoint.hpp>
#include <skein/net/network.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/sim/loop.hpp>
#include <skein/sim/network.hpp>
#include <skein/wire/encode.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <catch2/catch_test_macros.hpp>

namespace broken_links_test {

using namespace skein;
using namespace std::chrono_literals;
using cluster::detail::broken_links;

/// One link from "far" to the driver at "d". Whoever listens at "door" is where its worker can be
/// dialled.
struct world {
    using body = std::function<task<void>(world&)>;

    explicit world(body test, const std::string& door = "sim:door:2") {
        times.worker_resume = 30s;
        times.idle_probe = 5s;
        times.connect_timeout = 5s;
        rt::detail::worker_hello hello;
        hello.far_address = door;
        extra = wire::encode(hello);
        loop.run(whole(this, std::move(test)));
        CHECK(network.open_streams() == 0);
    }
    [[nodiscard]] net::connection_options options(const char* name) const {
        net::connection_options out;
        out.secret = net::token::from_hex(std::string(64, '7')).value();
        out.self.name = out.self.host = name;
        return out;
    }
    static net::link_options patient() {
        net::link_options out;
        out.resume = net::resume_mode::on;
        out.resume_within = 600s; // longer than the part waits
        return out;
    }
    static task<void> whole(world* w, body test) {
        net::link_endpoint server(w->network.host("d"), net::address::sim("d", 1), w->options("d"),
                                  patient());
        scope serving;
        serving.spawn(server.serve([w](net::link::handle l) { return keep(w, std::move(l)); }));
        auto worker = w->options("far");
        worker.self.extra = w->extra;
        auto dialing = net::link::connect(w->network.host("far"), net::address::sim("d", 1),
                                          std::move(worker), patient());
        w->far = co_await dialing;
        auto there = w->came.wait();
        co_await there;
        w->wire->set_closed_handler([w](const error* why) {
            if (why != nullptr) w->why = *why;
        });
        broken_links links(w->loop, w->network.host("d"), w->times);
        w->links = &links;
        w->began = w->loop.now();
        serving.spawn(links.watch(&w->stopping));
        auto testing = test(*w);
        co_await testing;
        w->stopping.set();
        w->far->abort(error(errc::aborted, "the test ends"));
        w->wire->abort(error(errc::aborted, "the test ends"));
        w->far.reset();
        w->wire.reset();
        server.close();
        auto ended = with_timeout(serving.join(), 100s);
        co_await ended;
    }
    static task<void> keep(world* w, net::link::handle l) {
        w->wire = l;
        w->came.set();
        auto ended = l->wait_closed();
        l.reset();
        co_await ended;
    }
    /// The link is broken, and nothing comes through any more.
    task<void> cut() {
        network.reset("far", "d");
        network.partition("far", "d");
        while (wire->is_connected()) {
            auto pause = sleep_for(10ms);
            co_await pause;
        }
    }
    task<void> heal() {
        network.heal("far", "d");
        while (wire->is_open() && !wire->is_connected()) {
            auto pause = sleep_for(10ms);
            co_await pause;
        }
    }
    [[nodiscard]] std::string why_text() const { return why ? why->what() : ""; }

    sim::loop loop{1};
    sim::network network{loop, sim::faults()};
    time_constants times;
    byte_buffer extra;
    net::link::handle far, wire;
    event came, stopping;
    broken_links* links = nullptr;
    time_point began{};       ///< when it began to look
    std::optional<error> why; ///< with which the driver's side has ended
};

/// Whoever dials this host reaches it.
struct door {
    explicit door(world& of)
        : listener_(of.network.host("door").listen(net::address::sim("door", 2))) {
        open_.spawn(answer(listener_.get(), &dialled));
    }
    static task<void> answer(net::listener* at, int* count) {
        for (;;) {
            auto next = as_result(at->accept());
            const auto stream = co_await next;
            if (!stream) co_return;
            ++*count;
        }
    }
    task<void> shut() {
        listener_->close();
        auto joined = open_.join();
        co_await joined;
    }
    int dialled = 0;

private:
    std::unique_ptr<net::listener> listener_;
    scope open_;
};

task<void> wait(duration time) {
    auto pause = sleep_for(time);
    co_await pause;
}

TEST_CASE("a space client whose link stays broken is given up, one that comes back is not",
          "[cluster]") {
    world([](world& w) -> task<void> {
        w.links->add_client(w.wire);
        for (int i = 0; i < 3; ++i) { // each break is a time of its own
            auto cutting = w.cut();
            co_await cutting;
            auto away = wait(25s);
            co_await away;
            auto healing = w.heal();
            co_await healing;
            auto there = wait(10s);
            co_await there;
            CHECK(w.wire->is_open());
        }
        auto cutting = w.cut();
        co_await cutting;
        auto nearly = wait(29s);
        co_await nearly;
        CHECK(w.wire->is_open());
        auto long_away = wait(12s); // seen after a look, given up by one
        co_await long_away;
        CHECK_FALSE(w.wire->is_open());
        REQUIRE(w.why);
        CHECK(w.why->code() == errc::peer_lost);
        CHECK(w.why_text().find("it has not come back for long") != std::string::npos);
    });
}

TEST_CASE("a client that has left is not given up", "[cluster]") {
    world([](world& w) -> task<void> {
        w.links->add_client(w.wire);
        w.links->remove_client(w.wire);
        auto cutting = w.cut();
        co_await cutting;
        auto long_away = wait(100s);
        co_await long_away;
        CHECK(w.wire->is_open());
    });
}

TEST_CASE("a worker whose host answers may compute: it is asked for again and again, and lost when "
          "nobody answers",
          "[cluster]") {
    world([](world& w) -> task<void> {
        door host(w);
        w.links->add_worker(7, w.wire);
        auto cutting = w.cut();
        co_await cutting;
        auto first = wait(100s);
        co_await first;
        CHECK(w.wire->is_open());
        CHECK((host.dialled == 2 || host.dialled == 3)); // about every 30 s
        auto shutting = host.shut();
        co_await shutting;
        auto then = wait(50s);
        co_await then;
        CHECK_FALSE(w.wire->is_open());
        REQUIRE(w.why);
        CHECK(w.why->code() == errc::peer_lost);
        CHECK(w.why_text().find("its connection broke, and it has not come back for 30 s") !=
              std::string::npos);
    });
}

TEST_CASE("a worker that cannot be dialled is lost after its time, one that was removed never",
          "[cluster]") {
    for (const bool is_removed : {false, true}) {
        CAPTURE(is_removed);
        world(
            [is_removed](world& w) -> task<void> {
                w.links->add_worker(7, w.wire);
                if (is_removed) w.links->remove_worker(7);
                auto cutting = w.cut();
                co_await cutting;
                auto away = wait(60s);
                co_await away;
                CHECK(w.wire->is_open() == is_removed);
                if (!is_removed)
                    CHECK(w.why_text().find("it cannot be dialled") != std::string::npos);
            },
            "");
    }
}

TEST_CASE("a worker that comes back while its host is asked is not lost", "[cluster]") {
    world([](world& w) -> task<void> {
        w.links->add_worker(7, w.wire);
        w.network.partition("d", "door"); // the question gets no answer until its limit
        auto cutting = w.cut();
        co_await cutting;
        REQUIRE(w.loop.now() < w.began + 5s);
        // The look at 5 s sees the break, the one at 35 s asks; a cut link is dialled for 3 s.
        auto asked = wait(w.began + 36s - w.loop.now());
        co_await asked;
        CHECK(w.wire->is_open());
        auto healing = w.heal();
        co_await healing;
        auto later = wait(60s);
        co_await later;
        CHECK(w.wire->is_open());
        CHECK(w.wire->is_connected());
    });
}

TEST_CASE("without its cluster a worker whose link is broken is asked for with the next look",
          "[cluster]") {
    world([](world& w) -> task<void> {
        w.links->add_worker(7, w.wire);
        w.links->lose_cluster();
        auto cutting = w.cut();
        co_await cutting;
        auto soon = wait(20s); // one look sees it, the next one asks
        co_await soon;
        CHECK_FALSE(w.wire->is_open());
        CHECK(w.why_text().find("its connection broke, and the cluster has gone") !=
              std::string::npos);
    });
}

} // namespace broken_links_test
