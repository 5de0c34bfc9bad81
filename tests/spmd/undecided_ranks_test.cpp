// SPDX-License-Identifier: Apache-2.0
#include <skein/core/awaitable.hpp>
#include <skein/core/event.hpp>
#include <skein/core/sleep.hpp>
#include <skein/sim/children.hpp>
#include <skein/spmd/environment.hpp>
#include <skein/spmd/undecided_ranks.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace undecided_ranks_test {

using namespace skein;
using namespace std::chrono_literals;

namespace {

using variables = std::map<std::string, std::string>;

/// A host whose ranks say a word, or none, and keep what they are told.
struct world_of_silence {
    explicit world_of_silence(std::string word) : said(std::move(word)) {
        here.add(spmd::rank_role, [this](sim::process* self) { return live(self); });
    }

    task<int> live(sim::process* self) {
        variables mine;
        for (const auto& [name, value] : self->started_with().env) mine[name] = value;
        environments.push_back(std::move(mine));
        const auto boot = wire::decode<variables>(self->started_with().message).value();
        if (!boot.contains(spmd::asks_kind_variable)) {
            told.push_back(boot);
        } else if (!said.empty()) {
            auto asking = ask(self);
            told.push_back(co_await asking);
        }
        auto going = go_on.wait();
        co_await going;
        co_return 0;
    }
    task<variables> ask(sim::process* self) {
        const auto link = self->take_stream();
        const auto bytes = to_buffer(as_bytes(said));
        const byte_span parts[] = {bytes};
        auto writing = link->write_all(parts);
        co_await writing;
        byte_buffer all;
        std::byte piece[256];
        for (;;) {
            auto reading = link->read_some(piece);
            const auto n = co_await reading;
            if (n == 0) break;
            append(all, byte_span(piece, n));
        }
        co_return all.empty() ? variables() : wire::decode<variables>(all).value();
    }

    std::string said;
    sim::loop loop{1};
    sim::network net{loop, sim::faults{}};
    sim::children here{net, "a"};
    std::vector<variables> environments, told;
    event go_on;
};

spmd::undecided_options small_options() {
    spmd::undecided_options how;
    how.job = "j";
    how.max_restarts = 3;
    how.free_port = [] { return 4711; };
    return how;
}

struct started_job {
    std::vector<std::unique_ptr<proc::child>> ranks;
};

task<started_job> start_two(spmd::undecided_ranks* of) {
    started_job now;
    auto reserving = of->reserve(2);
    (void)co_await reserving;
    for (int r = 0; r < 2; ++r) {
        proc::child_options what;
        what.role = spmd::rank_role;
        what.message = wire::encode(variables{
            {"SKEIN_RANK", std::to_string(r)}, {"SKEIN_GROUP", "sim:a:1"}, {"SKEIN_TOKEN", "t"}});
        auto starting = of->start(std::move(what));
        now.ranks.push_back(co_await starting);
    }
    co_return now;
}

task<proc::child_end> end_of(proc::child* which) {
    auto ended = which->ended();
    co_return co_await ended;
}

task<void> stay_silent(world_of_silence* w) {
    spmd::undecided_ranks ranks(w->here, small_options());
    auto starting = start_two(&ranks);
    auto now = co_await starting;
    auto pause = sleep_for(1s);
    co_await pause;
    CHECK_FALSE(ranks.are_elastic());
    CHECK(now.ranks[0]->running());
    REQUIRE(w->environments.size() == 2);
    const auto& second = w->environments[1];
    CHECK(second.at("RANK") == "1");
    CHECK(second.at("WORLD_SIZE") == "2");
    CHECK(second.at("MASTER_PORT") == "4711");
    CHECK(second.at("TORCHELASTIC_RUN_ID") == "j");
    w->go_on.set();
    for (const auto& rank : now.ranks) {
        auto ended = end_of(rank.get());
        const auto how = co_await ended;
        CHECK(how.status.success());
    }
    auto ending = ranks.end();
    co_await ending;
}

task<void> meet(world_of_silence* w) {
    spmd::undecided_ranks ranks(w->here, small_options());
    auto starting = start_two(&ranks);
    auto now = co_await starting;
    auto meeting = ranks.until_met();
    co_await meeting;
    auto pause = sleep_for(1s);
    co_await pause;
    CHECK_FALSE(ranks.are_elastic());
    REQUIRE(w->told.size() == 2);
    for (const auto& told : w->told) {
        CHECK(told.contains("SKEIN_RANK"));
        CHECK(told.contains("SKEIN_GROUP"));
        CHECK(told.contains("SKEIN_TOKEN"));
    }
    now.ranks[0]->kill();
    auto killed = end_of(now.ranks[0].get());
    const auto how = co_await killed;
    CHECK(how.status.signal() == SIGKILL);
    w->go_on.set();
    auto ended = end_of(now.ranks[1].get());
    const auto other = co_await ended;
    CHECK(other.status.success());
    auto ending = ranks.end();
    co_await ending;
}

proc::child_options worker_of(int id) {
    proc::child_options how;
    how.role = spmd::rank_role;
    how.name = "worker";
    how.message = wire::encode(variables{{"SKEIN_ELASTIC_ID", std::to_string(id)}});
    return how;
}

task<void> are_adopted(world_of_silence* w) {
    spmd::undecided_ranks ranks(w->here, small_options());
    std::vector<std::int64_t> first;
    {
        auto starting = start_two(&ranks);
        auto now = co_await starting;
        for (const auto& rank : now.ranks) first.push_back(rank->pid());
        for (const auto& rank : now.ranks) { // for this job all is well
            auto ended = end_of(rank.get());
            const auto how = co_await ended;
            CHECK(how.status.success());
            rank->kill(); // and no business of its supervisor any more
        }
    }
    CHECK(ranks.are_elastic());
    CHECK(w->here.running().size() == 2);
    std::vector<std::unique_ptr<proc::child>> workers;
    for (int id = 1; id <= 3; ++id) {
        auto starting = ranks.start(worker_of(id));
        workers.push_back(co_await starting);
    }
    CHECK(workers[0]->pid() == first[0]);
    CHECK(workers[1]->pid() == first[1]);
    CHECK(w->here.running().size() == 3);
    auto pause = sleep_for(1s);
    co_await pause;
    REQUIRE(w->told.size() == 3);
    for (const auto& told : w->told) CHECK(told.contains("SKEIN_ELASTIC_ID"));
    workers[0]->kill();
    auto killed = end_of(workers[0].get());
    const auto how = co_await killed;
    CHECK(how.status.signal() == SIGKILL);
    workers.clear(); // kills the others
    auto ending = ranks.end();
    co_await ending;
}

task<void> are_left_alone(world_of_silence* w) {
    spmd::undecided_ranks ranks(w->here, small_options());
    {
        auto starting = start_two(&ranks);
        auto now = co_await starting;
        auto ended = end_of(now.ranks[0].get());
        (void)co_await ended;
    }
    CHECK(w->here.running().size() == 2);
    auto ending = ranks.end(); // nobody has adopted them
    co_await ending;
}

void run(const char* word, task<void> (*body)(world_of_silence*)) {
    world_of_silence w(word);
    w.loop.run(body(&w));
    CHECK(w.here.running().empty());
    CHECK(w.net.open_streams() == 0);
}

} // namespace

TEST_CASE("ranks that say nothing have their place in the environment, and their ends count") {
    run("", stay_silent);
}

TEST_CASE("what is no word of a kind is as if nothing was said") { run("x", stay_silent); }

TEST_CASE("one that is of a fixed number makes all of them meet, and is told where") {
    run("f", meet);
}

TEST_CASE("elastic ranks end well for their first supervisor, and live on for the second") {
    run("e", are_adopted);
}

TEST_CASE("elastic ranks that nobody adopts are killed") { run("e", are_left_alone); }

} // namespace undecided_ranks_test
