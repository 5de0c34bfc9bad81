// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>

#include <skein/cluster/leased_ranks.hpp>
#include <skein/core/event.hpp>
#include <skein/net/detail/folder_messages.hpp>
#include <skein/net/link.hpp>
#include <skein/net/requests.hpp>
#include <skein/proc/gpus.hpp>
#include <skein/sim/disk.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/spmd/meeting.hpp>
#include <skein/spmd/run_files.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>
#include <tests/support/sim_nodes.hpp>

#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <csignal>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

using namespace skein;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace leased_ranks_test {

/// A cluster, and what its ranks were told and did.
struct ranks_world {
    explicit ranks_world(test::sim_nodes& of) : c(of) {}

    void add_node(int cpus, std::vector<std::string> gpus = {}) {
        auto how = c.agent_defaults();
        how.offers.gpu = static_cast<int>(gpus.size());
        how.gpu_names = std::move(gpus);
        auto* const children = c.add_node(cpus, std::move(how)).children.get();
        children->add(spmd::rank_role,
                      [this, children](sim::process* self) { return live(this, children, self); });
    }
    /// Until so many ranks have begun, of all attempts.
    task<void> until_told(std::size_t n) {
        while (told.size() < n) {
            begun.reset();
            auto waiting = begun.wait();
            co_await waiting;
        }
        CHECK(told.size() == n);
    }

    /// argv: "say 3 sleep 100 exit 2", in order; "deaf": SIGTERM is not heard from here on.
    static task<int> live(ranks_world* w, sim::children* in, sim::process* self) {
        using places = std::map<std::string, std::string>;
        const auto told = wire::decode<places>(self->started_with().message).value();
        w->told[told.at("SKEIN_ATTEMPT") + "/" + told.at("SKEIN_RANK")] = told;
        w->hosts[told.at("SKEIN_RANK")] = self->host();
        w->begun.set();
        for (const auto& [name, value] : self->started_with().env) {
            w->env[name] = value;
            if (name == proc::gpus_variable) w->gpus[told.at("SKEIN_RANK")] = value;
        }
        const auto words = self->started_with().argv;
        for (std::size_t at = 1; at < words.size(); ++at) {
            const auto& word = words[at];
            if (word == "say") {
                for (int i = 0, n = std::stoi(words.at(++at)); i < n; ++i) {
                    auto printing = self->print(false, std::to_string(i) + "\n");
                    co_await printing;
                }
            } else if (word == "sleep") {
                co_await sleep_for(std::chrono::milliseconds(std::stoi(words.at(++at))));
            } else if (word == "deaf") {
                auto deaf = shield(forever(self));
                co_await deaf;
            } else if (word == "die") {
                in->kill(self->pid());
                co_await sleep_for(1s);
            } else if (word == "exit") {
                co_return std::stoi(words.at(++at));
            }
        }
        co_return 0;
    }
    static task<void> forever(sim::process* self) {
        const auto listener = self->network().listen(net::address::sim(self->host(), 0));
        auto waiting = listener->accept();
        (void)co_await waiting;
    }

    std::unique_ptr<cluster::leased_ranks> make(
        std::function<void(const std::string&)> on_wait = {}) {
        cluster::leased_ranks_options how;
        how.head = test::sim_nodes::head_address();
        how.secret = c.secret();
        how.program = {"/app", "/", {}};
        how.name = "train";
        how.host = "trainer";
        how.pid = 7;
        how.incarnation = c.loop().random().next();
        how.demand = demand;
        how.runs = served_runs;
        how.serves_runs = !served_runs.empty();
        how.on_wait = std::move(on_wait);
        how.print = [this](std::vector<proc::worker_lines> some) {
            return keep(this, std::move(some));
        };
        const loop::use on_its_host(c.network().loop_of("trainer"));
        return std::make_unique<cluster::leased_ranks>(c.network().loop_of("trainer"),
                                                       c.network().host("trainer"), how);
    }
    static task<void> keep(ranks_world* w, std::vector<proc::worker_lines> some) {
        for (const auto& one : some)
            for (const auto& line : one.lines) w->lines.push_back(one.worker + ": " + line.text);
        co_return;
    }

    /// A rank that does that.
    static proc::child_options does(int rank, std::vector<std::string> what, int attempt = 0) {
        proc::child_options out;
        out.name = fmt::format("worker {}", rank);
        out.message = wire::encode(
            std::map<std::string, std::string>{{"SKEIN_RANK", std::to_string(rank)},
                                               {"SKEIN_ATTEMPT", std::to_string(attempt)},
                                               {spmd::group_variable, "tcp:*:4711"},
                                               {spmd::token_variable, "stays here"}});
        out.argv = {"train"};
        out.argv.insert(out.argv.end(), what.begin(), what.end());
        out.stop_grace = 500ms;
        return out;
    }

    test::sim_nodes& c;
    std::map<std::string, std::map<std::string, std::string>> told; ///< by attempt/rank
    std::map<std::string, std::string> hosts;                       ///< by rank
    std::map<std::string, std::string> env;
    std::map<std::string, std::string> gpus; ///< that it sees, by rank
    sched::resources demand;                 ///< of each rank; empty: the default
    std::string served_runs;                 ///< a folder of the trainer's host; empty: none
    std::vector<std::string> lines;
    event begun; ///< another one of them
};

using children = std::vector<std::unique_ptr<proc::child>>;

/// A head with a folder for runs, nodes of these cpus, and the ranks' places.
void with_nodes(std::uint64_t seed, std::vector<int> cpus,
                const std::function<task<void>(ranks_world&)>& body, sim::disk* disk = nullptr,
                const std::string& runs = "/runs") {
    test::in_world_of_nodes(seed,
                            [&](test::sim_nodes& c) -> task<void> { // NOLINT: outlives the run
                                ranks_world w(c);
                                c.head_disk = disk;
                                c.head_defaults.runs = runs;
                                c.start_head();
                                for (const int n : cpus) w.add_node(n);
                                auto rest = body(w);
                                co_await rest;
                            });
}

/// A cluster that is joined, with room for so many ranks.
task<std::unique_ptr<cluster::leased_ranks>> reserved(ranks_world* w, int ranks) {
    auto places = w->make();
    auto opening = places->open();
    co_await opening;
    auto reserving = places->reserve(ranks);
    (void)co_await reserving;
    co_return places;
}

task<void> start_all(proc::children* places, int ranks, std::vector<std::string> what,
                     children* into, int attempt = 0) {
    for (int r = 0; r < ranks; ++r) {
        auto starting = places->start(ranks_world::does(r, what, attempt));
        into->push_back(co_await starting);
    }
}

task<std::vector<proc::child_end>> all_ends(children* ranks) {
    std::vector<proc::child_end> ends;
    for (const auto& one : *ranks) {
        auto ending = one->ended();
        ends.push_back(co_await ending);
    }
    co_return ends;
}

} // namespace leased_ranks_test

using leased_ranks_test::all_ends;
using leased_ranks_test::children;
using leased_ranks_test::ranks_world;
using leased_ranks_test::reserved;
using leased_ranks_test::start_all;
using leased_ranks_test::with_nodes;

TEST_CASE("ranks have places on the nodes, in a row on each, and end as their processes do",
          "[cluster][ranks]") {
    with_nodes(1, {2, 2}, [](ranks_world& w) -> task<void> {
        const auto places = w.make();
        auto opening = places->open();
        co_await opening;
        auto reserving = places->reserve(4);
        const auto where = co_await reserving;
        REQUIRE(where.size() == 4);
        for (std::size_t r = 0; r < 4; ++r) {
            CHECK(where[r].local_rank == static_cast<int>(r % 2));
            CHECK(where[r].local_size == 2);
        }
        children ranks;
        auto starting = start_all(places.get(), 3, {"say", "2", "sleep", "100"}, &ranks);
        co_await starting;
        auto dying = places->start(ranks_world::does(3, {"sleep", "50", "exit", "3"}));
        ranks.push_back(co_await dying);
        auto ending = all_ends(&ranks);
        const auto ends = co_await ending;
        for (int r = 0; r < 3; ++r) {
            CHECK(ends[static_cast<std::size_t>(r)].status.success());
            CHECK(ends[static_cast<std::size_t>(r)].lost.empty());
        }
        CHECK(ends[3].status.code() == 3);
        CHECK(ends[3].lost.empty());
        CHECK(w.hosts["0"] == w.hosts["1"]);
        CHECK(w.hosts["2"] == w.hosts["3"]);
        CHECK(w.hosts["0"] != w.hosts["2"]);
        CHECK(ranks[0]->name().starts_with("worker 0 on "));
        CHECK(w.env.at("SKEIN_RUNS_DIR") == "/runs");
        for (const auto& [who, told] : w.told) // whose server listens at the driver's host
            CHECK_THAT(told.at(spmd::group_variable), ContainsSubstring("trainer:4711"));
        CHECK(w.told.at("0/0").at(spmd::token_variable) == places->door().secret.to_hex());
        places->release();
        auto closing = places->close();
        co_await closing;
        CHECK(w.lines.size() == 6);
        CHECK(std::count(w.lines.begin(), w.lines.end(), ranks[2]->name() + ": 1") == 1);
    });
}

TEST_CASE("ranks of one node see each other's gpus, their own at the place of their local rank",
          "[cluster][ranks]") {
    with_nodes(5, {}, [](ranks_world& w) -> task<void> {
        w.add_node(4, {"4", "5", "6", "7"});
        w.demand.cpu = 1;
        w.demand.gpu = 1;
        const auto other = w.make(); // a training of one rank has one of the four
        auto joining = other->open();
        co_await joining;
        auto taking = other->reserve(1);
        (void)co_await taking;
        children alone, ranks;
        auto beginning = start_all(other.get(), 1, {"sleep", "1000000"}, &alone, 7);
        co_await beginning;
        auto begun = w.until_told(1);
        co_await begun;
        const auto its = w.gpus.at("0");
        CHECK(its.size() == 1);

        const auto places = w.make();
        auto opening = places->open();
        co_await opening;
        auto reserving = places->reserve(3);
        const auto where = co_await reserving;
        REQUIRE(where.size() == 3);
        auto starting = start_all(places.get(), 3, {"sleep", "1000000"}, &ranks);
        co_await starting;
        auto all = w.until_told(4);
        co_await all;
        CHECK(w.gpus.at("0") == w.gpus.at("1"));
        CHECK(w.gpus.at("0") == w.gpus.at("2"));
        CHECK(w.gpus.at("0").size() == 5); // "4,6,7"
        CHECK_THAT(w.gpus.at("0"), !ContainsSubstring(its));
        places->release();
        auto closing = places->close();
        co_await closing;

        w.demand.gpu = 5;
        const auto greedy = w.make();
        auto entering = greedy->open();
        co_await entering;
        auto asking = as_result(greedy->reserve(1));
        const auto none = co_await asking;
        REQUIRE_FALSE(none);
        CHECK(none.error().code() == errc::exhausted);
        CHECK_THAT(
            none.error().text(),
            ContainsSubstring("asks for 5 gpus, and no node has as many: the most are 4, on"));
        for (const auto* one : {&greedy, &other}) {
            (*one)->release();
            auto leaving = (*one)->close();
            co_await leaving;
        }
    });
}

TEST_CASE("a rank that cannot start, is killed or loses its node says so", "[cluster][ranks]") {
    with_nodes(2, {1, 1, 1}, [](ranks_world& w) -> task<void> {
        auto joining = reserved(&w, 3);
        const auto places = co_await joining;
        children ranks;
        auto starting = start_all(places.get(), 2, {"sleep", "1000000"}, &ranks);
        co_await starting;
        auto dying = places->start(ranks_world::does(2, {"die"}));
        ranks.push_back(co_await dying);
        auto third = ranks[2]->ended();
        const auto killed = co_await third;
        CHECK(killed.status.signal() == SIGKILL);
        CHECK(killed.lost.empty());
        auto begun = w.until_told(3);
        co_await begun;
        for (std::size_t i = 0; i < w.c.nodes(); ++i)
            if (w.c.at(i).host == w.hosts["1"]) {
                auto gone = w.c.kill_agent(w.c.at(i), true);
                co_await gone;
            }
        auto second = ranks[1]->ended();
        const auto lost = co_await second;
        CHECK_FALSE(lost.lost.empty());
        CHECK(ranks[0]->running());
        ranks[0]->kill();
        auto first = ranks[0]->ended();
        const auto end = co_await first;
        CHECK(end.status.signal() == SIGKILL);
        places->release();
        // The next attempt has the places that are left.
        auto again = places->reserve(2);
        const auto where = co_await again;
        CHECK(where.size() == 2);
        auto absent = places->start(ranks_world::does(0, {"exit", "0"}, 1));
        const auto rank = co_await absent;
        auto over = rank->ended();
        const auto good = co_await over;
        CHECK(good.status.success());
        CHECK(w.told.at("1/0").at(spmd::token_variable) == places->door().secret.to_hex());
        CHECK(w.told.at("1/0").at(spmd::token_variable) !=
              w.told.at("0/0").at(spmd::token_variable));
        places->release();
        auto closing = places->close();
        co_await closing;
    });
}

TEST_CASE("a rank is asked by SIGTERM, at once, and killed after its own grace",
          "[cluster][ranks]") {
    with_nodes(3, {2}, [](ranks_world& w) -> task<void> {
        auto joining = reserved(&w, 2);
        const auto places = co_await joining;
        children ranks;
        auto starting = places->start(ranks_world::does(0, {"sleep", "1000000"}));
        ranks.push_back(co_await starting);
        auto deaf = places->start(ranks_world::does(1, {"deaf"}));
        ranks.push_back(co_await deaf);
        auto begun = w.until_told(2);
        co_await begun;
        const auto begin = w.c.loop().now();
        for (const auto& one : ranks) one->signal(SIGINT);
        auto first = ranks[0]->ended();
        const auto asked = co_await first;
        CHECK(asked.status.signal() == SIGTERM);
        CHECK(w.c.loop().now() - begin < 200ms);
        auto second = ranks[1]->ended();
        const auto insisted = co_await second;
        CHECK(insisted.status.signal() == SIGKILL);
        CHECK(w.c.loop().now() - begin >= 500ms);
        CHECK(w.c.loop().now() - begin < 1s);
        auto closing = places->close();
        co_await closing;
    });
}

TEST_CASE("ranks wait until there is room for all of them, and say why", "[cluster][ranks]") {
    with_nodes(4, {1}, [](ranks_world& w) -> task<void> {
        std::vector<std::string> said;
        const auto places = w.make([&](const std::string& why) { said.push_back(why); });
        auto opening = places->open();
        co_await opening;
        auto waiting = places->reserve(1); // until the node is there
        (void)co_await waiting;
        places->release();
        said.clear();
        {
            auto impatient = as_result(with_timeout(places->reserve(2), 5s));
            const auto none = co_await impatient;
            REQUIRE_FALSE(none);
            CHECK(none.error().code() == errc::timeout);
        }
        REQUIRE_FALSE(said.empty());
        CHECK_THAT(said.front(), ContainsSubstring("cpu=1"));
        auto one = places->reserve(1); // what was given up takes no room
        const auto where = co_await one;
        CHECK(where.size() == 1);
        places->release();
        said.clear();
        w.add_node(1);
        auto both = places->reserve(2);
        const auto now = co_await both;
        CHECK(now.size() == 2);
        CHECK(now[1].local_size == 1);
        auto closing = places->close();
        co_await closing;
        auto many = places->reserve(1);
        auto closed = as_result(std::move(many));
        const auto over = co_await closed;
        REQUIRE_FALSE(over);
    });
}

TEST_CASE("more ranks than a group may have are refused", "[cluster][ranks]") {
    with_nodes(5, {1}, [](ranks_world& w) -> task<void> {
        const auto places = w.make();
        auto opening = places->open();
        co_await opening;
        auto reserving = as_result(places->reserve(100'000));
        const auto none = co_await reserving;
        REQUIRE_FALSE(none);
        CHECK(none.error().code() == errc::exhausted);
        auto closing = places->close();
        co_await closing;
    });
}

TEST_CASE("a cluster without a folder for runs, and none at all, have no places",
          "[cluster][ranks]") {
    with_nodes(
        6, {1},
        [](ranks_world& w) -> task<void> {
            {
                const auto places = w.make();
                auto opening = as_result(places->open());
                const auto none = co_await opening;
                REQUIRE_FALSE(none);
                CHECK(none.error().code() == errc::not_supported);
                CHECK_THAT(none.error().hint(), ContainsSubstring("--runs"));
                auto closing = places->close();
                co_await closing;
            }
            auto killed = w.c.kill_head();
            co_await killed;
            const auto places = w.make();
            auto opening = as_result(places->open());
            const auto none = co_await opening;
            REQUIRE_FALSE(none);
            CHECK_THAT(none.error().text(), ContainsSubstring("no cluster at"));
            auto closing = places->close();
            co_await closing;
        },
        nullptr, "");
}

namespace leased_ranks_test {

/// Opens a file of a folder that is served there.
task<void> open_far_file(net::network* via, net::address at, net::token secret) {
    auto dialing = net::link::connect(*via, std::move(at), net::detail::far_link(secret, "rank"),
                                      net::detail::far_link_options());
    auto linked = co_await dialing;
    const auto way = net::requests::over(std::move(linked));
    net::detail::far_open m;
    m.path = "no/such/file";
    auto opening = as_result(way->call<net::detail::far_opened>(std::move(m)));
    const auto opened = co_await opening;
    auto closing = way->close();
    co_await closing;
    if (!opened) throw opened.error();
}

} // namespace leased_ranks_test

TEST_CASE("where nodes share no folder, ranks are told where that of their training is",
          "[cluster][ranks]") {
    with_nodes(
        9, {2, 2},
        [](ranks_world& w) -> task<void> {
            w.served_runs = "/nowhere/job/runs";
            auto joining = reserved(&w, 4);
            const auto places = co_await joining;
            children ranks;
            auto starting = start_all(places.get(), 4, {"sleep", "100"}, &ranks);
            co_await starting;
            auto begun = w.until_told(4);
            co_await begun;
            CHECK_FALSE(w.env.contains("SKEIN_RUNS_DIR")); // it is that of their job
            for (const auto& [who, told] : w.told)
                CHECK(told.at(spmd::run_folder_variable) == "/nowhere/job/runs");
            auto at = net::address::parse(w.told.at("0/0").at(spmd::run_files_variable)).value();
            CHECK(at.host == "*");
            at.host = "trainer";
            auto* const here = &w.c.network().host("n1");
            const auto secret = places->door().secret;
            auto opening = as_result(leased_ranks_test::open_far_file(here, at, secret));
            const auto opened = co_await opening;
            REQUIRE_FALSE(opened);
            CHECK(opened.error().code() == errc::not_found);
            auto ending = all_ends(&ranks);
            (void)co_await ending;
            places->release();

            auto again = places->reserve(2); // of the next attempt: nobody of the last one writes
            (void)co_await again;
            auto late = as_result(leased_ranks_test::open_far_file(here, at, secret));
            const auto none = co_await late;
            REQUIRE_FALSE(none);
            CHECK(none.error().code() != errc::not_found);
            auto closing = places->close();
            co_await closing;
        },
        nullptr, "");
}

TEST_CASE("ranks go on without a head, and the next one tells of their ends", "[cluster][ranks]") {
    sim::disk disk;
    with_nodes(
        7, {2, 2},
        [](ranks_world& w) -> task<void> {
            auto joining = reserved(&w, 4);
            const auto places = co_await joining;
            children ranks;
            auto starting = start_all(places.get(), 4, {"sleep", "3000", "exit", "5"}, &ranks);
            co_await starting;
            auto begun = w.until_told(4);
            co_await begun;
            auto killed = w.c.kill_head();
            co_await killed;
            co_await sleep_for(1s);
            w.c.start_head();
            auto ending = all_ends(&ranks);
            const auto ends = co_await ending;
            for (const auto& end : ends) {
                CHECK(end.lost.empty());
                CHECK(end.status.code() == 5);
            }
            places->release();
            auto again = places->reserve(4); // all of their room is back
            const auto where = co_await again;
            CHECK(where.size() == 4);
            auto closing = places->close();
            co_await closing;
        },
        &disk);
}

TEST_CASE("a head that stays away for long has lost the ranks", "[cluster][ranks]") {
    with_nodes(8, {2}, [](ranks_world& w) -> task<void> {
        auto joining = reserved(&w, 2);
        const auto places = co_await joining;
        children ranks;
        auto starting = start_all(places.get(), 2, {"sleep", "100000000"}, &ranks);
        co_await starting;
        auto begun = w.until_told(2);
        co_await begun;
        auto killed = w.c.kill_head();
        co_await killed;
        auto ending = all_ends(&ranks);
        const auto ends = co_await ending;
        for (const auto& end : ends) CHECK_THAT(end.lost, ContainsSubstring("head"));
        CHECK(w.c.processes() == 0); // their agent has ended them before
        auto closing = places->close();
        co_await closing;
    });
}

TEST_CASE("a cluster that is stopped ends its ranks", "[cluster][ranks]") {
    with_nodes(9, {2}, [](ranks_world& w) -> task<void> {
        auto joining = reserved(&w, 1);
        const auto places = co_await joining;
        children ranks;
        auto starting = start_all(places.get(), 1, {"sleep", "100000000"}, &ranks);
        co_await starting;
        auto begun = w.until_told(1);
        co_await begun;
        w.c.head().stop();
        auto ending = all_ends(&ranks);
        const auto ends = co_await ending;
        CHECK_FALSE(ends[0].lost.empty());
        auto late = places->start(ranks_world::does(0, {"exit", "0"}, 1));
        const auto rank = co_await late;
        auto none = rank->ended();
        const auto end = co_await none;
        CHECK_THAT(end.lost, ContainsSubstring("stopped"));
        auto closing = places->close();
        co_await closing;
    });
}
