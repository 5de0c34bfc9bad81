// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>

#include <skein/cluster/leased_ranks.hpp>
#include <skein/core/event.hpp>
#include <skein/spmd/elastic_keeper.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>
#include <tests/support/sim_nodes.hpp>

#include <catch2/matchers/catch_matchers_string.hpp>

#include <csignal>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace skein;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace coming_and_going_ranks_test {

using place_kind = proc::place_news::kind;

/// A cluster, and what was heard of the places of its workers.
struct coming_world {
    explicit coming_world(test::sim_nodes& of) : c(of) {}

    void add_node(int cpus) {
        c.add_node(cpus).children->add(spmd::rank_role,
                                       [this](sim::process* self) { return live(this, self); });
    }
    /// Until it is asked to end.
    static task<int> live(coming_world* w, sim::process* self) {
        using places = std::map<std::string, std::string>;
        const auto told = wire::decode<places>(self->started_with().message).value();
        w->told[told.at(spmd::elastic_id_variable)] = told;
        co_await sleep_for(1h);
        co_return 0;
    }
    std::unique_ptr<cluster::leased_ranks> make(const std::string& host) {
        cluster::leased_ranks_options how;
        how.head = test::sim_nodes::head_address();
        how.secret = c.secret();
        how.program = {"/app", "/", {}};
        how.name = how.host = host;
        how.pid = 7;
        how.incarnation = c.loop().random().next();
        how.come_and_go = true;
        const loop::use on_its_host(c.network().loop_of(host));
        return std::make_unique<cluster::leased_ranks>(c.network().loop_of(host),
                                                       c.network().host(host), how);
    }
    proc::child_options worker(int id) {
        proc::child_options out;
        out.name = fmt::format("worker {}", id);
        out.message = wire::encode(
            std::map<std::string, std::string>{{spmd::elastic_id_variable, std::to_string(id)},
                                               {spmd::elastic_variable, "tcp:*:4711"},
                                               {spmd::token_variable, "stays here"}});
        out.argv = {"train"};
        out.stop_grace = 500ms;
        out.on_place = [this, id](const proc::place_news& said) {
            news[id].push_back(said);
            heard.set();
        };
        return out;
    }
    /// Until such news is the newest of that worker.
    task<std::string> until(int id, place_kind what) {
        for (int i = 0; i < 600 && (news[id].empty() || news[id].back().what != what); ++i) {
            heard.reset();
            auto waiting = heard.wait_for(100ms);
            (void)co_await waiting;
        }
        if (news[id].empty() || news[id].back().what != what)
            throw error(errc::timeout, fmt::format("no such news of worker {}", id));
        co_return news[id].back().text;
    }

    test::sim_nodes& c;
    std::map<std::string, std::map<std::string, std::string>> told; ///< by worker
    std::map<int, std::vector<proc::place_news>> news;              ///< the same
    event heard;
};

using coming_children = std::vector<std::unique_ptr<proc::child>>;

void with_coming(std::uint64_t seed, std::vector<int> cpus,
                 const std::function<task<void>(coming_world&)>& body) {
    test::in_world_of_nodes(seed,
                            [&](test::sim_nodes& c) -> task<void> { // NOLINT: outlives the run
                                coming_world w(c);
                                c.head_defaults.runs = "/runs";
                                c.start_head();
                                for (const int n : cpus) w.add_node(n);
                                auto rest = body(w);
                                co_await rest;
                            });
}

/// Workers from `first` on.
task<void> start_coming(coming_world* w, proc::children* places, int first, int many,
                        coming_children* into) {
    for (int id = first; id < first + many; ++id) {
        auto starting = places->start(w->worker(id));
        into->push_back(co_await starting);
    }
}

} // namespace coming_and_going_ranks_test

using coming_and_going_ranks_test::coming_children;
using coming_and_going_ranks_test::coming_world;
using coming_and_going_ranks_test::place_kind;
using coming_and_going_ranks_test::start_coming;
using coming_and_going_ranks_test::with_coming;

TEST_CASE("workers that come and go wait for places one by one, and give them back",
          "[cluster][ranks]") {
    with_coming(1, {2}, [](coming_world& w) -> task<void> {
        const auto places = w.make("trainer");
        CHECK(places->are_placed_later());
        auto opening = places->open();
        co_await opening;
        coming_children all;
        auto starting = start_coming(&w, places.get(), 1, 3, &all);
        co_await starting;
        for (const int id : {1, 2}) {
            auto given = w.until(id, place_kind::given);
            const auto said1 = co_await given;
            CHECK(said1 == "n1");
        }
        co_await sleep_for(1s);
        CHECK(w.told.at("1").contains(spmd::elastic_variable)); // as its node reaches the driver
        CHECK(w.told.at("1").at(spmd::token_variable) != "stays here");
        CHECK_FALSE(w.told.contains("3"));
        auto waits = w.until(3, place_kind::waits); // said when it has waited for long
        const auto said2 = co_await waits;
        CHECK_THAT(said2, ContainsSubstring("waits for cpu=1"));

        w.add_node(1);
        auto elsewhere = w.until(3, place_kind::given);
        const auto said3 = co_await elsewhere;
        CHECK(said3 == "n2");

        auto draining = test::drain(&w.c, "n1", true);
        co_await draining;
        for (const int id : {1, 2}) {
            auto asked = w.until(id, place_kind::asked_back);
            const auto said4 = co_await asked;
            CHECK_THAT(said4, ContainsSubstring("drain"));
        }
        all[0]->kill(); // as the keeper of one that has left
        auto ending = all[0]->ended();
        (void)co_await ending;
        all[1]->keep_place("no others are there");
        co_await sleep_for(500ms); // it is known that it stays
        auto undoing = test::drain(&w.c, "n1", false);
        co_await undoing;
        auto free = w.until(2, place_kind::not_asked_back);
        (void)co_await free;
        auto again = start_coming(&w, places.get(), 4, 1, &all);
        co_await again;
        auto back = w.until(4, place_kind::given);
        const auto said5 = co_await back;
        CHECK(said5 == "n1");
        places->release();
        auto closing = places->close();
        co_await closing;
    });
}

TEST_CASE("the first workers come together, and are leases of their own then", "[cluster][ranks]") {
    with_coming(2, {2, 1}, [](coming_world& w) -> task<void> {
        const auto places = w.make("trainer");
        auto opening = places->open();
        co_await opening;
        auto reserving = places->reserve(3);
        (void)co_await reserving;
        coming_children all;
        auto starting = start_coming(&w, places.get(), 1, 3, &all);
        co_await starting;
        for (const int id : {1, 2, 3}) {
            auto given = w.until(id, place_kind::given);
            (void)co_await given;
        }
        co_await sleep_for(1s); // they run
        // The room of one that ends is anybody's, on whichever node.
        const auto node = w.news.at(1).back().text;
        all[0]->kill();
        auto ending = all[0]->ended();
        const auto end = co_await ending;
        INFO(end.lost);
        CHECK(end.status.signal() == SIGKILL);
        const auto others = w.make("other");
        auto joining = others->open();
        co_await joining;
        coming_children more;
        auto asking = start_coming(&w, others.get(), 9, 1, &more);
        co_await asking;
        auto got = w.until(9, place_kind::given);
        const auto said6 = co_await got;
        CHECK(said6 == node);
        // A head that is started again has them as they are.
        auto killing = w.c.kill_head();
        co_await killing;
        w.c.start_head();
        co_await sleep_for(1s); // a wish that the last one has not answered would end here
        auto again = start_coming(&w, places.get(), 4, 1, &all);
        co_await again;
        co_await sleep_for(10s);
        CHECK(all[1]->running());
        CHECK(all[2]->running());
        CHECK(w.c.processes() == 3);
        all[1]->kill();
        auto gone = all[1]->ended();
        const auto second = co_await gone;
        INFO(second.lost);
        CHECK(second.status.signal() == SIGKILL);
        auto fourth = w.until(4, place_kind::given);
        (void)co_await fourth;
        for (auto* const one : {places.get(), others.get()}) {
            one->release();
            auto closing = one->close();
            co_await closing;
        }
    });
}

TEST_CASE("a worker whose node is cut off is given up when it is to end", "[cluster][ranks]") {
    with_coming(3, {1, 1}, [](coming_world& w) -> task<void> {
        const auto places = w.make("trainer");
        auto opening = places->open();
        co_await opening;
        coming_children all;
        auto starting = start_coming(&w, places.get(), 1, 2, &all);
        co_await starting;
        for (const int id : {1, 2}) {
            auto given = w.until(id, place_kind::given);
            (void)co_await given;
        }
        const auto at = w.news.at(1).back().text;
        co_await sleep_for(1s); // they run
        w.c.network().isolate(at);
        const auto begin = w.c.loop().now();
        all[0]->kill();
        auto ending = all[0]->ended();
        const auto end = co_await ending;
        CHECK_THAT(end.lost, ContainsSubstring("has not said"));
        CHECK(w.c.loop().now() - begin < 3s);
        CHECK(all[1]->running());
        w.c.network().heal_all();
        co_await sleep_for(5s);
        CHECK(w.c.processes() == 1); // its lease was given back
        places->release();
        auto closing = places->close();
        co_await closing;
    });
}

TEST_CASE("a worker that a drain ends by force has not failed", "[cluster][ranks]") {
    with_coming(5, {1}, [](coming_world& w) -> task<void> {
        const auto places = w.make("trainer");
        auto opening = places->open();
        co_await opening;
        coming_children all;
        auto starting = start_coming(&w, places.get(), 1, 1, &all);
        co_await starting;
        auto given = w.until(1, place_kind::given);
        (void)co_await given;
        co_await sleep_for(1s); // it runs
        cluster::ask_drain what;
        what.node = "n1";
        what.within_ms = 1000;
        what.force = true;
        auto forcing = test::ask_drain(&w.c, std::move(what));
        (void)co_await forcing;
        all[0]->keep_place("no others are there");
        auto ending = all[0]->ended();
        const auto end = co_await ending;
        CHECK(end.is_moved);
        CHECK_THAT(end.lost, ContainsSubstring("drained, by force"));
        places->release();
        auto closing = places->close();
        co_await closing;
    });
}
