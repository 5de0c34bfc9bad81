// SPDX-License-Identifier: Apache-2.0
#include "net/requests_support.hpp"

#include <skein/cluster/detail/namespaces.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/sleep.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace namespaces_test {

using namespace net_test;
using namespace skein::cluster;
namespace parts = skein::cluster::detail;
using Catch::Matchers::ContainsSubstring;

constexpr std::uint64_t app = 1, other_app = 2; // drivers that nobody starts

/// A head of which the test says which drivers there are.
struct fake_head final : parts::space_drivers {
    struct driver {
        driver_hello hello;
        std::string seen_from = "10.0.0.1";
        bool is_connected = true, is_ending = false;
    };
    std::map<std::uint64_t, driver> drivers;
    std::vector<std::uint64_t> started;
    std::vector<std::pair<std::uint64_t, std::string>> ended;
    std::vector<std::pair<std::uint64_t, space_lost>> told;
    bool is_away = false; ///< nodes of space servers

    fake_head() {
        for (const auto one : {app, other_app}) {
            auto& hello = drivers[one].hello;
            hello.name = "app";
            hello.executable = "/bin/app";
            hello.build = 1;
        }
    }
    [[nodiscard]] std::optional<driver_now> find_driver(std::uint64_t one) const override {
        const auto found = drivers.find(one);
        if (found == drivers.end()) return std::nullopt;
        const auto& d = found->second;
        return driver_now{&d.hello, &d.seen_from, d.hello.port != 0, d.is_connected, d.is_ending};
    }
    [[nodiscard]] bool is_closed() const override { return false; }
    std::uint64_t make_server(const driver_hello& by) override {
        const auto made = 100 + started.size();
        drivers[made].hello = by;
        drivers[made].is_connected = false;
        return made;
    }
    void start_server(std::uint64_t one) override { started.push_back(one); }
    [[nodiscard]] bool is_out_of_reach(std::uint64_t) const override { return is_away; }
    [[nodiscard]] std::uint32_t workers_of(std::uint64_t) const override { return 3; }
    void end_server(std::uint64_t one, job_end, const error& why) override {
        ended.emplace_back(one, why.what());
        drivers.at(one).is_ending = true;
    }
    void tell_space_lost(std::uint64_t one, const space_lost& news) override {
        told.emplace_back(one, news);
    }

    /// The process of a space server is there.
    void connect(std::uint64_t one) {
        drivers.at(one).hello.port = 7000;
        drivers.at(one).is_connected = true;
    }
};

/// Namespaces, and a client of them that says it is `asker`.
struct world {
    sim::loop loop{3};
    sim::network network{loop, sim::faults()};
    time_point begun = loop.now();
    fake_head head;
    parts::namespaces spaces{loop, head, {1s, 60s, logging::level::debug}};
    std::uint64_t asker = app;

    using body = std::function<task<void>(world&, net::requests&)>;

    static task<void> talk(world* w, body work) {
        auto service = std::make_shared<net::request_service>();
        w->spaces.serve(*service, [w] { return w->asker; });
        auto talking = with_client(&w->network, std::move(service),
                                   [&](net::requests& client) { return work(*w, client); });
        co_await talking;
    }
    void run(body work) { loop.run(talk(this, std::move(work))); }
};

/// Asks for a namespace while its space server comes after a while, if one is started.
task<space_entered> enter(world* w, net::requests* at, std::string name) {
    const auto starts = w->head.started.size();
    scope helping;
    auto help = [](world* in, std::size_t before) -> task<void> {
        while (in->head.started.size() == before) co_await sleep_for(10ms);
        co_await sleep_for(100ms);
        in->head.connect(in->head.started.back());
    };
    helping.spawn(help(w, starts));
    auto asking = as_result(at->call<space_entered>(enter_space{std::move(name), 0}));
    auto got = co_await asking;
    helping.cancel();
    auto joining = as_result(helping.join());
    (void)co_await joining;
    if (!got) throw got.error();
    co_return std::move(*got);
}

task<errc> refusal(net::requests* at, enter_space asked) {
    auto asking = error_of(drop_value(at->call<space_entered>(std::move(asked))));
    const auto fault = co_await asking;
    co_return fault ? fault->code() : errc{};
}

TEST_CASE("the first who enters a namespace has its space server started, others find it",
          "[cluster]") {
    world w;
    w.run([](world& w, net::requests& at) -> task<void> {
        auto entering = enter(&w, &at, "prod");
        const auto first = co_await entering;
        CHECK(w.head.started == std::vector<std::uint64_t>{100});
        CHECK(first.space_server == 100);
        CHECK(first.port == 7000);
        CHECK(w.loop.now() - w.begun >= 1s); // it might have lived
        w.asker = other_app;
        auto again = at.call<space_entered>(enter_space{"prod", 100});
        const auto second = co_await again;
        CHECK(second.space_server == 100);
        CHECK(w.head.started.size() == 1);
        CHECK(w.spaces.name_of(100) == "prod");
        CHECK(w.spaces.name_of(app).empty());

        w.head.drivers.at(other_app).hello.build = 2;
        auto of_another_build = refusal(&at, {"prod", 0});
        const auto of_another_build_code = co_await of_another_build;
        CHECK(of_another_build_code == errc::mismatch);
        w.asker = 0;
        auto of_nobody = refusal(&at, {"prod", 0});
        const auto of_nobody_code = co_await of_nobody;
        CHECK(of_nobody_code == errc::malformed);
    });
}

TEST_CASE("visitors hear that a space server was lost, and who wants that one has no other",
          "[cluster]") {
    world w;
    w.run([](world& w, net::requests& at) -> task<void> {
        auto entering = enter(&w, &at, "prod");
        (void)co_await entering;
        w.spaces.over(100, "killed by signal 9", false);
        w.head.drivers.erase(100);
        w.spaces.forget_driver(100);
        w.spaces.look();
        REQUIRE(w.head.told.size() == 1);
        CHECK(w.head.told[0].first == app);
        CHECK(w.head.told[0].second.how == "killed by signal 9");
        w.spaces.look();
        CHECK(w.head.told.size() == 1); // once
        auto same = refusal(&at, {"prod", 100});
        const auto same_code = co_await same;
        CHECK(same_code == errc::worker_lost);
        const auto lost_at = w.loop.now();
        auto another = enter(&w, &at, "prod");
        const auto found = co_await another;
        CHECK(found.space_server == 101);
        CHECK(w.loop.now() - lost_at >= 60s); // nobody saw its end
    });
}

TEST_CASE("a space server that did not start is an error for who waits for it", "[cluster]") {
    world w;
    w.run([](world& w, net::requests& at) -> task<void> {
        scope failing;
        auto fail = [](world* in) -> task<void> {
            while (in->head.started.empty()) co_await sleep_for(10ms);
            in->spaces.over(100, "no such program", true);
            in->head.drivers.erase(100);
            in->spaces.forget_driver(100);
        };
        failing.spawn(fail(&w));
        auto asking = refusal(&at, {"prod", 0});
        const auto asking_code = co_await asking;
        CHECK(asking_code == errc::worker_lost);
        auto joining = failing.join();
        co_await joining;
    });
}

TEST_CASE("a namespace is ended once its node can be reached, and its visitors are told",
          "[cluster]") {
    world w;
    w.run([](world& w, net::requests& at) -> task<void> {
        CHECK_THROWS_WITH(w.spaces.stop("prod"), ContainsSubstring("none has a space server"));
        auto entering = enter(&w, &at, "prod");
        (void)co_await entering;
        w.head.is_away = true;
        CHECK_THROWS_WITH(w.spaces.stop("prod"), ContainsSubstring("is away"));
        w.head.is_away = false;
        CHECK(w.spaces.stop("prod").workers == 3);
        REQUIRE(w.head.told.size() == 1);
        CHECK(w.head.told[0].second.how == "it was ended by skein stop");
        REQUIRE(w.head.ended.size() == 1);
        CHECK(w.head.ended[0].first == 100);
    });
}

TEST_CASE("a second space server of a namespace is refused, or ended", "[cluster]") {
    world w;
    w.run([](world& w, net::requests&) -> task<void> {
        w.head.drivers[7].hello.name = w.head.drivers[8].hello.name = "server";
        CHECK(w.spaces.claim("prod", 7)); // a node holds it
        CHECK_FALSE(w.spaces.claim("prod", 8));
        CHECK_FALSE(w.spaces.claim("test", 7));
        CHECK_THROWS(w.spaces.check("prod", 8));
        w.spaces.check("prod", 7);
        w.spaces.came(8, "prod", {});
        w.spaces.look();
        REQUIRE(w.head.ended.size() == 1);
        CHECK(w.head.ended[0].first == 8);
        w.spaces.forget_driver(7);
        w.spaces.look(); // nobody has said how it ended
        CHECK(w.spaces.size() == 1);
        co_await sleep_for(71s);
        w.spaces.look();
        CHECK(w.spaces.size() == 0);
        co_return;
    });
}

TEST_CASE("a head after another one waits longer for space servers that live", "[cluster]") {
    world w;
    w.spaces.had_head();
    w.run([](world& w, net::requests& at) -> task<void> {
        w.spaces.came(other_app, "", {{"prod", 9}});
        co_await sleep_for(30s);
        w.spaces.look();
        CHECK(w.head.told.empty()); // its space server may come back
        auto entering = enter(&w, &at, "prod");
        (void)co_await entering;
        CHECK(w.loop.now() - w.begun >= 60s);
        w.spaces.look();
        REQUIRE(w.head.told.size() == 1);
        CHECK(w.head.told[0].first == other_app);
        CHECK(w.head.told[0].second.space_server == 9);
    });
}

} // namespace namespaces_test
