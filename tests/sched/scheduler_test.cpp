// SPDX-License-Identifier: Apache-2.0
#include <skein/sched/scheduler.hpp>

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using sched::constraint;
using sched::place_id;
using sched::request_id;
using sched::scheduler;

namespace {

sched::resources amounts(std::string_view text) { return sched::parse_resources(text).value(); }

sched::request asking(std::string_view demand, std::uint64_t job = 1, constraint where = {}) {
    sched::request r;
    r.job = job_id(job);
    r.demand = amounts(demand);
    r.where = std::move(where);
    return r;
}
request_id ask(scheduler& s, std::string_view demand, std::uint64_t job = 1,
               const constraint& where = {}) {
    return s.submit(asking(demand, job, where)).value();
}
request_id ask_for_life(scheduler& s, std::string_view demand) {
    auto r = asking(demand);
    r.for_life = true;
    return s.submit(r).value();
}
void add_place(scheduler& s, std::uint64_t id, std::string_view total,
               std::vector<std::string> labels = {}) {
    s.add_place(place_id(id), "worker-" + std::to_string(id), amounts(total), std::move(labels))
        .value();
}
std::vector<sched::grant> grants(scheduler& s) {
    std::vector<sched::grant> out;
    s.take_grants(out);
    return out;
}
std::vector<sched::notice> notices(scheduler& s) {
    std::vector<sched::notice> out;
    s.take_notices(out);
    return out;
}
/// Places of new grants, in order.
std::vector<std::uint64_t> where_to(scheduler& s) {
    std::vector<std::uint64_t> out;
    for (const auto& g : grants(s)) out.push_back(g.place.value());
    return out;
}
bool has(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}
using list = std::vector<std::uint64_t>;

} // namespace

// ---- queues -------------------------------------------------------------------------------------

TEST_CASE("requests are granted in order while they fit, and the next one when one is released",
          "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=2");
    const auto a = ask(s, "cpu=1"), b = ask(s, "cpu=1"), c = ask(s, "cpu=1");
    auto got = grants(s);
    REQUIRE(got.size() == 2);
    CHECK(got[0].id == a);
    CHECK(got[1].id == b);
    CHECK(grants(s).empty());
    CHECK(s.stats().queued == 1);
    CHECK(s.release(a));
    CHECK_FALSE(s.release(a));
    got = grants(s);
    REQUIRE(got.size() == 1);
    CHECK(got[0].id == c);
    CHECK(s.release(b));
    CHECK(s.release(c));
    CHECK(s.stats().granted == 0);
}

TEST_CASE("nothing waits behind a demand that does not fit", "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=2");
    (void)ask(s, "cpu=1");
    CHECK(grants(s).size() == 1);
    const auto two = ask(s, "cpu=2"), one = ask(s, "cpu=1");
    const auto got = grants(s);
    REQUIRE(got.size() == 1);
    CHECK(got[0].id == one);
    CHECK(s.stats().queued == 1);
    CHECK(has(s.why(two), "waits for cpu=2: worker-1 has most free, cpu=0"));
}

TEST_CASE("a queued request can be cancelled wherever it stands, a granted one only released",
          "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=1");
    const auto a = ask(s, "cpu=1"), b = ask(s, "cpu=1"), c = ask(s, "cpu=1"), d = ask(s, "cpu=1");
    CHECK(grants(s).size() == 1);
    CHECK_FALSE(s.cancel(a));
    CHECK_FALSE(s.release(c));
    CHECK(s.cancel(c));
    CHECK_FALSE(s.cancel(c));
    CHECK(s.cancel(b));
    s.release(a);
    const auto got = grants(s);
    REQUIRE(got.size() == 1);
    CHECK(got[0].id == d);
    CHECK(s.why(c).empty());
    CHECK_FALSE(s.wait_begin(c));
}

TEST_CASE("what a request says comes back with its grant, and no id is given twice",
          "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=1");
    std::set<std::uint64_t> ids;
    for (std::uint64_t i = 0; i < 3000; ++i) {
        auto r = asking("cpu=1");
        r.tag = i;
        const auto id = s.submit(r).value();
        CHECK(ids.insert(id.value()).second);
        const auto got = grants(s);
        REQUIRE(got.size() == 1);
        CHECK(got[0].tag == i);
        CHECK(got[0].id == id);
        s.release(id);
    }
}

TEST_CASE("at most so many grants are taken as asked for, and the rest later", "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=100");
    for (int i = 0; i < 10; ++i) (void)ask(s, "cpu=1");
    std::vector<sched::grant> got;
    CHECK(s.take_grants(got, 4) == 4);
    CHECK(s.take_grants(got, 4) == 4);
    CHECK(s.take_grants(got) == 2);
    CHECK(got.size() == 10);
}

TEST_CASE("the table of a million requests is given back when they are gone", "[rt][scheduler]") {
    scheduler s;
    std::vector<request_id> ids;
    const auto r = asking("cpu=1");
    for (int i = 0; i < 100'000; ++i) ids.push_back(s.submit(r).value());
    CHECK(s.stats().bytes <= 100'000 * 64);
    for (const auto id : ids) CHECK(s.cancel(id));
    CHECK(s.stats().bytes <= 100'000);
    CHECK(s.stats().queued == 0);
    const auto again = s.submit(r).value();
    for (const auto id : ids)
        if (id == again) FAIL("an id was given twice");
}

// ---- placement ----------------------------------------------------------------------------------

TEST_CASE("by default the first place with room is taken, so that later ones stay whole",
          "[rt][scheduler]") {
    scheduler s;
    for (const std::uint64_t p : {1u, 2u, 3u}) add_place(s, p, "cpu=2");
    for (int i = 0; i < 3; ++i) (void)ask(s, "cpu=1");
    CHECK(where_to(s) == list{1, 1, 2});
    (void)ask(s, "cpu=2");
    CHECK(where_to(s) == list{3});
}

TEST_CASE("spreading takes the place with most room", "[rt][scheduler]") {
    sched::scheduler_options o;
    o.policy = sched::placement::spread;
    scheduler s(o);
    add_place(s, 1, "cpu=2");
    add_place(s, 2, "cpu=4");
    add_place(s, 3, "cpu=2");
    for (int i = 0; i < 8; ++i) (void)ask(s, "cpu=1");
    CHECK(where_to(s) == list{2, 2, 1, 2, 3, 1, 2, 3});
    scheduler packs;
    for (const std::uint64_t p : {1u, 2u}) add_place(packs, p, "cpu=4");
    for (int i = 0; i < 4; ++i) (void)ask(packs, "cpu=1", 1, constraint::spread());
    CHECK(where_to(packs) == list{1, 2, 1, 2});
}

TEST_CASE("spread requests take the nodes in turn, those that have room", "[W11][rt][scheduler]") {
    scheduler s; // packs what is not spread
    add_place(s, 1, "cpu=8");
    add_place(s, 2, "cpu=1");
    add_place(s, 3, "cpu=2");
    for (int i = 0; i < 6; ++i) (void)ask(s, "cpu=1", 1, constraint::spread());
    CHECK(where_to(s) == list{1, 2, 3, 1, 3, 1});
    (void)ask(s, "cpu=1");
    CHECK(where_to(s) == list{1});
    // Of all demands and jobs together: the next one is where the last one was not.
    (void)ask(s, "", 2, constraint::spread());
    (void)ask(s, "", 3, constraint::spread());
    (void)ask(s, "", 2, constraint::spread());
    CHECK(where_to(s) == list{2, 3, 1});
    s.drain(place_id(2));
    for (int i = 0; i < 2; ++i) (void)ask(s, "", 1, constraint::spread());
    CHECK(where_to(s) == list{3, 1});
    s.drain(place_id(2), false);
    for (int i = 0; i < 3; ++i)
        (void)ask(s, "", 1, constraint::spread().avoiding({place_id(2)})); // a turn of their own
    CHECK(where_to(s) == list{1, 3, 1});
    s.remove_place(place_id(3));
    add_place(s, 4, "cpu=1"); // in its stead
    for (int i = 0; i < 4; ++i) (void)ask(s, "", 1, constraint::spread());
    CHECK(where_to(s) == list{2, 4, 1, 2});
}

TEST_CASE("a place may get other labels", "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=4");
    add_place(s, 2, "cpu=4", {"node=n2"});
    (void)ask(s, "cpu=1", 1, constraint::labelled("node=n1"));
    (void)ask(s, "cpu=1", 1, constraint::spread());
    CHECK(where_to(s) == list{1});
    CHECK(s.set_labels(place_id(1), {"node=n1"}));
    CHECK(where_to(s) == list{1});
    for (int i = 0; i < 3; ++i) (void)ask(s, "cpu=1", 1, constraint::spread());
    CHECK(where_to(s) == list{2, 1, 2});
    CHECK(s.set_labels(place_id(1), {"node=n2"})); // one node with the other now
    (void)ask(s, "cpu=1", 1, constraint::labelled("node=n1"));
    for (int i = 0; i < 3; ++i) (void)ask(s, "cpu=1", 1, constraint::spread());
    CHECK(where_to(s) == list{2, 2, 1});
    CHECK_FALSE(s.set_labels(place_id(3), {}));
}

TEST_CASE("places with one label of a node are one node to spread over", "[W11][rt][scheduler]") {
    sched::scheduler_options o;
    o.policy = sched::placement::spread;
    scheduler s(o);
    add_place(s, 1, "cpu=2", {"zone=a", "node=n1"});
    add_place(s, 2, "cpu=2", {"node=n1"});
    (void)ask(s, "cpu=1", 1, constraint::spread());
    CHECK(where_to(s) == list{1});
    add_place(s, 3, "cpu=1", {"node=n2"}); // one that comes later
    add_place(s, 4, "cpu=3");
    for (int i = 0; i < 6; ++i) (void)ask(s, "cpu=1", 1, constraint::spread());
    CHECK(where_to(s) == list{3, 4, 2, 4, 1, 4}); // on a node the one with most room
    (void)ask(s, "cpu=1", 1, constraint::spread());
    (void)ask(s, "cpu=1", 1, constraint::spread());
    CHECK(where_to(s) == list{2});
    add_place(s, 5, "cpu=1,ssd=1", {"node=n2"});
    CHECK(where_to(s) == list{5});
    (void)ask(s, "ssd=1", 1, constraint::spread());
    CHECK(where_to(s) == list{5});
    s.remove_place(place_id(1));
    s.remove_place(place_id(2));
    add_place(s, 6, "cpu=1", {"node=n3"});
    add_place(s, 7, "cpu=1", {"node=n1"});
    for (int i = 0; i < 2; ++i) (void)ask(s, "cpu=1", 1, constraint::spread());
    CHECK(where_to(s) == list{7, 6});
}

TEST_CASE("requests that need nothing never wait and go where fewest are", "[rt][scheduler]") {
    scheduler s;
    for (const std::uint64_t p : {1u, 2u, 3u}) add_place(s, p, "cpu=1");
    for (int i = 0; i < 6; ++i) (void)ask(s, "");
    CHECK(where_to(s) == list{1, 2, 3, 1, 2, 3});
}

TEST_CASE("a request goes to the place, the label, or anywhere but where it says",
          "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=4");
    add_place(s, 2, "cpu=4", {"zone=a", "ssd"});
    add_place(s, 3, "cpu=4", {"zone=a"});
    (void)ask(s, "cpu=1", 1, constraint::on(place_id(3)));
    CHECK(where_to(s) == list{3});
    for (int i = 0; i < 5; ++i) (void)ask(s, "cpu=1", 1, constraint::labelled("zone=a"));
    CHECK(where_to(s) == list{2, 2, 2, 2, 3});
    (void)ask(s, "cpu=1", 1, constraint().avoiding({place_id(2), place_id(1)}));
    CHECK(where_to(s) == list{3});
    (void)ask(s, "cpu=1", 1, constraint::labelled("zone=a").avoiding({place_id(3)}));
    CHECK(where_to(s).empty());
    add_place(s, 4, "cpu=4", {"zone=a"});
    CHECK(where_to(s) == list{4});
}

TEST_CASE("a place that comes later serves a label that was asked for before", "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=4");
    const auto id = ask(s, "cpu=1", 1, constraint::labelled("gpu=h200"));
    CHECK(where_to(s).empty());
    CHECK(has(s.why(id), "on places labelled gpu=h200"));
    add_place(s, 2, "cpu=1", {"gpu=h200"});
    CHECK(where_to(s) == list{2});
}

// ---- gpus ---------------------------------------------------------------------------------------

TEST_CASE("shares of a gpu lie on one gpu, whole ones are a set of indices", "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "gpu=4");
    const auto one = [&](std::string_view demand) {
        const auto id = ask(s, demand);
        const auto got = grants(s);
        return std::pair(id, got.empty() ? std::string("none") : to_string(got[0].gpus));
    };
    CHECK(one("gpu=0.6").second == "0");
    CHECK(one("gpu=0.6").second == "1");
    const auto small = one("gpu=0.4");
    CHECK(small.second == "0"); // the gpu on which it leaves least
    const auto two = one("gpu=2");
    CHECK(two.second == "2,3");
    const auto half =
        one("gpu=0.5"); // 0.4 is free on one gpu: no room, though 0.8 is free in all after this
    CHECK(half.second == "none");
    s.release(small.first);
    CHECK(grants(s).empty());
    s.release(two.first);
    const auto got = grants(s);
    REQUIRE(got.size() == 1);
    CHECK(to_string(got[0].gpus) == "2");
    CHECK(one("gpu=2").second == "none");
    s.release(half.first);
    CHECK(to_string(grants(s).at(0).gpus) == "2,3");
}

// ---- waiting for others -------------------------------------------------------------------------

TEST_CASE("a request that waits gives its cpus back, but not its gpus, memory or custom resources",
          "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=1,gpu=1,memory=1GiB,ssd=1");
    const auto parent = ask(s, "cpu=1,gpu=1,memory=1GiB,ssd=1");
    CHECK(grants(s).size() == 1);
    const auto child = ask(s, "cpu=1");
    (void)ask(s, "gpu=1");
    (void)ask(s, "memory=1");
    (void)ask(s, "ssd=1");
    CHECK(grants(s).empty());
    CHECK(s.wait_begin(parent));
    CHECK_FALSE(s.wait_begin(parent));
    const auto got = grants(s);
    REQUIRE(got.size() == 1);
    CHECK(got[0].id == child);
    s.release(child);
    CHECK(s.wait_end(parent));
    s.release(parent);
    CHECK(grants(s).size() == 3);
}

TEST_CASE("what runs already is booked over the cpus of its place, and over nothing else",
          "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=1,gpu=1,ssd=1");
    const auto adopt = [&](const char* demand, sched::gpu_set gpus = {}) {
        sched::request r;
        r.demand = sched::parse_resources(demand).value();
        r.for_life = true;
        return s.adopt(r, sched::place_id(1), gpus);
    };
    const auto parent = adopt("cpu=1"); // it waits for the child, which nobody has said yet
    const auto child = adopt("cpu=1,gpu=1", sched::gpu_set(1));
    REQUIRE(parent);
    REQUIRE(child);
    CHECK_FALSE(adopt("gpu=1", sched::gpu_set(1)));
    CHECK_FALSE(adopt("ssd=2"));
    CHECK(s.places().at(0).used.cpu == sched::parse_resources("cpu=2").value().cpu);
    const auto other = ask(s, "cpu=1");
    CHECK(s.wait_begin(*parent));
    CHECK(grants(s).empty());
    s.release(*child);
    const auto got = grants(s);
    REQUIRE(got.size() == 1);
    CHECK(got[0].id == other);
}

TEST_CASE("who has waited gets its cpus before anyone new", "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=1");
    const auto parent = ask(s, "cpu=1");
    CHECK(grants(s).size() == 1);
    s.wait_begin(parent);
    const auto child = ask(s, "cpu=1");
    CHECK(grants(s).size() == 1);
    const auto other = ask(s, "cpu=1");
    CHECK_FALSE(s.wait_end(parent)); // the child runs still, and will end
    CHECK(grants(s).empty());
    s.release(child);
    const auto got = grants(s);
    REQUIRE(got.size() == 1);
    CHECK(got[0].id == parent);
    CHECK(got[0].resumed);
    s.release(parent);
    CHECK(grants(s).at(0).id == other);
}

TEST_CASE("one whose cpus are held for life goes on over the total rather than never",
          "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=1");
    const auto parent = ask(s, "cpu=1");
    CHECK(grants(s).size() == 1);
    s.wait_begin(parent);
    auto actor = asking("cpu=1");
    actor.for_life = true;
    (void)s.submit(actor).value();
    CHECK(grants(s).size() == 1);
    CHECK(s.wait_end(parent));
    CHECK(s.places().at(0).used.cpu == sched::amount(2));
    const auto next = ask(s, "cpu=1");
    CHECK(grants(s).empty()); // nobody new comes over the total
    s.release(parent);
    CHECK(grants(s).empty());
    CHECK(s.places().at(0).used.cpu == sched::amount(1));
    CHECK(s.cancel(next));
}

TEST_CASE("of several whose cpus are held for life one at a time goes over the total",
          "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=2");
    const auto a = ask(s, "cpu=1"), b = ask(s, "cpu=1");
    CHECK(grants(s).size() == 2);
    s.wait_begin(a);
    s.wait_begin(b);
    auto actor = asking("cpu=2");
    actor.for_life = true;
    (void)s.submit(actor).value();
    CHECK(grants(s).size() == 1);
    CHECK(s.wait_end(a));
    CHECK_FALSE(s.wait_end(b)); // a runs and will end or wait
    CHECK(grants(s).empty());
    CHECK(s.places().at(0).used.cpu == sched::amount(3));
    s.wait_begin(a); // for b, say
    const auto got = grants(s);
    REQUIRE(got.size() == 1);
    CHECK(got[0].id == b);
}

TEST_CASE("a recursion as deep as one likes goes on with one cpu", "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=1");
    std::vector<request_id> chain;
    for (int depth = 0; depth < 100; ++depth) {
        chain.push_back(ask(s, "cpu=1"));
        const auto got = grants(s);
        REQUIRE(got.size() == 1);
        REQUIRE(got[0].id == chain.back());
        if (depth < 99) CHECK(s.wait_begin(chain.back()));
    }
    while (chain.size() > 1) {
        s.release(chain.back());
        chain.pop_back();
        CHECK(grants(s).empty());
        CHECK(s.wait_end(chain.back()));
    }
}

TEST_CASE("all waiting for a gpu that one of them holds is told as a standstill",
          "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=2,gpu=1");
    const auto parent = ask(s, "cpu=1,gpu=1");
    CHECK(grants(s).size() == 1);
    const auto child = ask(s, "cpu=1,gpu=1");
    CHECK(grants(s).empty());
    CHECK_FALSE(s.stats().stalled);
    s.wait_begin(parent);
    CHECK(grants(s).empty());
    CHECK(s.stats().stalled);
    CHECK(has(s.why(child), "worker-1 has most free, gpu=0"));
    add_place(s, 2, "cpu=2,gpu=1");
    CHECK(grants(s).at(0).id == child);
    CHECK_FALSE(s.stats().stalled);
}

// ---- fair shares and ageing ---------------------------------------------------------------------

namespace {

/// Jobs that always have more to do, tasks of so many rounds each; returns how many rounds each job
/// had a cpu.
std::map<std::uint64_t, int> share_of(int cpus, std::map<std::uint64_t, int> length_of,
                                      std::map<std::uint64_t, std::uint32_t> weight_of) {
    constexpr int each = 8000, rounds = 1000; // more than can run: 8 cpus
    scheduler s;
    add_place(s, 1, "cpu=" + std::to_string(cpus));
    for (const auto& [job, weight] : weight_of) s.set_weight(job_id(job), weight);
    for (const auto& [job, length] : length_of)
        for (int i = 0; i < each; ++i) (void)ask(s, "cpu=1", job);
    std::map<std::uint64_t, int> held;
    std::map<request_id, std::pair<std::uint64_t, int>> running; // its job and end
    for (int round = 0; round < rounds; ++round) {
        for (auto it = running.begin(); it != running.end();)
            if (it->second.second == round) {
                s.release(it->first);
                it = running.erase(it);
            } else {
                ++it;
            }
        for (const auto& g : grants(s)) {
            const auto order = g.id.value() & UINT32_MAX; // entries are taken in order
            const auto job = std::next(length_of.begin(), static_cast<int>(order / each))->first;
            running[g.id] = {job, round + length_of.at(job)};
        }
        for (const auto& [id, r] : running) ++held[r.first];
    }
    return held;
}

} // namespace

TEST_CASE("two jobs have the same share, however many requests one has before the other",
          "[rt][scheduler]") {
    const auto held = share_of(4, {{1, 1}, {2, 1}}, {});
    CHECK(held.at(1) + held.at(2) == 4000);
    CHECK(std::abs(held.at(1) - held.at(2)) <= 8);
}

TEST_CASE("a job of three times the weight holds three times as much, also of a single cpu",
          "[rt][scheduler]") {
    for (const int cpus : {1, 2, 8}) {
        const auto held = share_of(cpus, {{1, 1}, {2, 1}}, {{2, 3}});
        const double ratio = static_cast<double>(held.at(2)) / held.at(1);
        CHECK(ratio > 2.8);
        CHECK(ratio < 3.2);
    }
}

TEST_CASE("a job of long tasks holds no more than one of short ones", "[rt][scheduler]") {
    const auto held = share_of(4, {{1, 20}, {2, 1}}, {});
    const double ratio = static_cast<double>(held.at(1)) / held.at(2);
    CHECK(ratio > 0.8);
    CHECK(ratio < 1.25);
}

TEST_CASE("a large demand gets its turn although small ones keep coming", "[rt][scheduler]") {
    sched::scheduler_options o;
    o.patience = 20;
    scheduler s(o);
    add_place(s, 1, "cpu=4");
    add_place(s, 2, "cpu=4");
    std::vector<request_id> running;
    const auto top_up = [&] {
        while (s.stats().queued < 12) (void)ask(s, "cpu=1");
        for (const auto& g : grants(s)) running.push_back(g.id);
    };
    top_up();
    const auto large = ask(s, "cpu=4", 1);
    int passed = 0;
    for (; passed < 200; ++passed) { // one ends, another begins; never four at once
        s.release(running.front());
        running.erase(running.begin());
        const auto before = running.size();
        top_up();
        bool done = false;
        for (auto i = before; i < running.size(); ++i) done |= running[i] == large;
        if (done) break;
    }
    CHECK(passed >= 15);
    CHECK(passed <= 40);
    CHECK(s.stats().reservations == 1);
}

TEST_CASE("room kept free for a large demand is given up when what runs there waits for it",
          "[rt][scheduler]") {
    sched::scheduler_options o;
    o.patience = 4;
    scheduler s(o);
    add_place(s, 1, "cpu=2,memory=2");
    const auto parent = ask(s, "cpu=1,memory=1");
    CHECK(grants(s).size() == 1);
    const auto large = ask(s, "cpu=2,memory=2");
    for (int i = 0; i < 10; ++i) { // small ones pass it
        const auto small = ask(s, "cpu=1");
        const auto got = grants(s);
        if (got.empty()) break;
        CHECK(got.at(0).id == small);
        s.release(small);
    }
    CHECK(s.places().at(0).reserved);
    CHECK(has(s.why(large), "worker-1 is kept free for it"));
    s.wait_begin(parent);
    CHECK(grants(s).size() == 1); // the small one that was kept out: the parent waits for it
    CHECK_FALSE(s.places().at(0).reserved);
}

TEST_CASE("room of those that were asked to end is kept for a large demand, one by one",
          "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=3");
    std::vector<request_id> held;
    for (int i = 0; i < 3; ++i) held.push_back(ask_for_life(s, "cpu=1"));
    CHECK(grants(s).size() == 3);
    const auto large = ask_for_life(s, "cpu=2");
    const auto small = ask_for_life(s, "cpu=1");
    CHECK(grants(s).empty());
    CHECK_FALSE(s.keep_room(large)); // nobody may count on their end
    CHECK(s.set_leaving(held.at(0)));
    CHECK_FALSE(s.keep_room(large)); // one is not enough
    CHECK(s.set_leaving(held.at(1)));
    CHECK(s.keep_room(large));
    CHECK(s.keep_room(large));
    CHECK(s.stats().reservations == 1);
    CHECK(s.release(held.at(0)));
    CHECK(grants(s).empty()); // not for the small one
    SECTION("the rest follows") {
        CHECK(s.release(held.at(1)));
        CHECK(grants(s).at(0).id == large);
        CHECK(s.release(held.at(2)));
        CHECK(grants(s).at(0).id == small);
    }
    SECTION("the other one goes on after all") {
        CHECK(s.set_leaving(held.at(1), false));
        CHECK(grants(s).at(0).id == small);
        CHECK_FALSE(s.places().at(0).reserved);
    }
    SECTION("the other one waits for others, and goes on at once when it can") {
        CHECK(s.wait_begin(held.at(1)));
        CHECK(grants(s).at(0).id == large); // these cpus are as good
        CHECK(s.wait_end(held.at(1)));
        CHECK(s.wait_begin(held.at(1)));
        CHECK(s.wait_end(held.at(1)));
    }
    CHECK_FALSE(s.set_leaving(held.at(0)));
    CHECK_FALSE(s.keep_room(large));
}

// ---- placement groups ---------------------------------------------------------------------------

namespace {

sched::group_request bundles(sched::group_strategy how, std::vector<std::string_view> demands) {
    sched::group_request g;
    g.job = job_id(1);
    g.strategy = how;
    for (const auto d : demands) g.bundles.push_back(amounts(d));
    return g;
}
/// Where the bundles of the last group_placed are; empty if none was.
list placed(scheduler& s) {
    CHECK(grants(s).empty());
    list out;
    for (const auto& n : notices(s))
        if (n.what == sched::notice::kind::group_placed) {
            out.clear();
            for (const auto p : n.bundles) out.push_back(p.value());
        }
    return out;
}

} // namespace

TEST_CASE("room of those that were asked to end is kept for a group", "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=1");
    add_place(s, 2, "cpu=1");
    std::vector<request_id> held;
    for (int i = 0; i < 2; ++i) held.push_back(ask_for_life(s, "cpu=1"));
    CHECK(grants(s).size() == 2);
    const auto id =
        *s.create_group(bundles(sched::group_strategy::strict_spread, {"cpu=1", "cpu=1"}));
    const auto small = ask(s, "cpu=1");
    CHECK(grants(s).empty());
    CHECK_FALSE(s.keep_room(id));
    CHECK(s.set_leaving(held.at(0)));
    CHECK_FALSE(s.keep_room(id));
    CHECK(s.set_leaving(held.at(1)));
    CHECK(s.keep_room(id));
    CHECK(s.release(held.at(0)));
    CHECK(grants(s).empty()); // not for the small one, which would pass the group for ever
    SECTION("the rest follows") {
        CHECK(s.release(held.at(1)));
        CHECK(placed(s).size() == 2);
        CHECK_FALSE(s.keep_room(id)); // it waits no more
    }
    SECTION("the other one goes on after all: all that was kept is given up") {
        CHECK(s.set_leaving(held.at(1), false));
        CHECK(grants(s).at(0).id == small);
    }
    s.remove_group(id);
    CHECK_FALSE(s.keep_room(id));
}

TEST_CASE("the strategies of a group decide how many places its bundles go to", "[rt][scheduler]") {
    using how = sched::group_strategy;
    const auto four = [](how h) {
        scheduler s;
        for (const std::uint64_t p : {1u, 2u, 3u}) add_place(s, p, "cpu=4");
        (void)s.create_group(bundles(h, {"cpu=2", "cpu=2", "cpu=2"})).value();
        return placed(s);
    };
    CHECK(four(how::pack) == list{1, 1, 2});
    CHECK(four(how::spread) == list{1, 2, 3});
    CHECK(four(how::strict_pack).empty());
    CHECK(four(how::strict_spread) == list{1, 2, 3});
}

TEST_CASE("a group is placed with all its bundles or none", "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=2");
    add_place(s, 2, "cpu=2");
    const auto task = ask(s, "cpu=1");
    CHECK(grants(s).size() == 1);
    (void)s.create_group(bundles(sched::group_strategy::strict_spread, {"cpu=2", "cpu=2"})).value();
    CHECK(placed(s).empty());
    CHECK(s.places().at(1).used.empty());
    s.release(task);
    CHECK(placed(s) == list{1, 2});
    (void)ask(s, "cpu=1");
    CHECK(grants(s).empty());
}

TEST_CASE("bundles of different kinds find the places that only they fit", "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=4,memory=1GiB"); // the larger bundle would take this one first
    add_place(s, 2, "cpu=4");
    (void)s
        .create_group(bundles(sched::group_strategy::strict_spread, {"cpu=4", "cpu=2,memory=1GiB"}))
        .value();
    CHECK(placed(s) == list{2, 1});
}

TEST_CASE("bundles are places for the requests that name them", "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=4,gpu=2");
    add_place(s, 2, "cpu=4,gpu=2");
    const auto before = ask(s, "gpu=1");
    CHECK(grants(s).size() == 1);
    const auto g =
        s.create_group(bundles(sched::group_strategy::spread, {"cpu=2,gpu=1", "cpu=2,gpu=2"}))
            .value();
    const auto in_one = ask(s, "cpu=1,gpu=1", 1, constraint::in(g, 0));
    const auto any = ask(s, "gpu=2", 1, constraint::in(g));
    auto got = grants(s);
    REQUIRE(got.size() == 2);
    CHECK(got[0].id == in_one);
    CHECK(got[0].place == place_id(1));
    CHECK(got[0].bundle == 0);
    CHECK(to_string(got[0].gpus) == "1"); // 0 is taken by the first request
    CHECK(got[1].id == any);
    CHECK(got[1].place == place_id(2));
    CHECK(to_string(got[1].gpus) == "0,1");
    const auto large = ask(s, "cpu=3", 1, constraint::in(g));
    CHECK(grants(s).empty());
    CHECK(has(s.why(large), "whose bundles are smaller"));
    const auto waits = ask(s, "gpu=1", 1, constraint::in(g, 0));
    CHECK(grants(s).empty());
    const auto gone = s.remove_group(g);
    CHECK(gone.size() == 2);
    CHECK(grants(s).empty());
    std::set<request_id> refused;
    for (const auto& n : notices(s))
        if (n.what == sched::notice::kind::refused) refused.insert(n.id);
    CHECK(refused == std::set<request_id>{large, waits});
    CHECK_FALSE(s.submit(asking("cpu=1", 1, constraint::in(g))));
    s.release(before);
    CHECK(s.places().at(0).used.empty());
    CHECK(s.places().at(1).used.empty());
}

TEST_CASE("a group whose place has gone is placed again, with what asks for it",
          "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=2");
    add_place(s, 2, "cpu=2");
    const auto g =
        s.create_group(bundles(sched::group_strategy::strict_spread, {"cpu=2", "cpu=2"})).value();
    CHECK(placed(s) == list{1, 2});
    const auto a = ask(s, "cpu=1", 1, constraint::in(g, 0));
    const auto b = ask(s, "cpu=1", 1, constraint::in(g, 1));
    CHECK(grants(s).size() == 2);
    const auto gone = s.remove_place(place_id(2));
    REQUIRE(gone.size() == 1);
    CHECK(gone[0].id == b);
    const auto again = ask(s, "cpu=1", 1, constraint::in(g, 1));
    CHECK(grants(s).empty());
    CHECK(has(s.why(again), "the group is not placed"));
    add_place(s, 3, "cpu=2");
    const auto got = grants(s);
    REQUIRE(got.size() == 1);
    CHECK(got[0].id == again);
    CHECK(got[0].place == place_id(3));
    CHECK(s.release(a)); // the other bundle has stayed
}

TEST_CASE("a group that no set of places could hold says so", "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=2");
    auto g = bundles(sched::group_strategy::strict_spread, {"cpu=1", "cpu=1"});
    (void)s.create_group(g).value();
    CHECK(placed(s).empty());
    g.fail_if_infeasible = true;
    const auto refused = s.create_group(g);
    REQUIRE_FALSE(refused);
    CHECK(has(refused.error().what(), "each wants a place of its own, and 1 are there"));
    CHECK_FALSE(s.create_group(bundles(sched::group_strategy::pack, {})));
    CHECK_FALSE(s.create_group(bundles(sched::group_strategy::pack, {"gpu=1.5"})));
    add_place(s, 2, "cpu=2");
    CHECK(placed(s) == list{1, 2});
}

TEST_CASE("a group gets its turn although small requests keep coming", "[rt][scheduler]") {
    sched::scheduler_options o;
    o.patience = 20;
    scheduler s(o);
    add_place(s, 1, "cpu=2");
    add_place(s, 2, "cpu=2");
    std::vector<request_id> running;
    const auto top_up = [&] {
        while (s.stats().queued < 8) (void)ask(s, "cpu=1", 2);
        for (const auto& got : grants(s)) running.push_back(got.id);
    };
    top_up();
    (void)s.create_group(bundles(sched::group_strategy::strict_spread, {"cpu=2", "cpu=2"})).value();
    int rounds = 0;
    for (; rounds < 200 && !s.groups().at(0).placed && !running.empty(); ++rounds) {
        s.release(running.front());
        running.erase(running.begin());
        top_up();
    }
    CHECK(s.groups().at(0).placed);
    CHECK(rounds <= 40);
}

// ---- places come and go -------------------------------------------------------------------------

TEST_CASE("a place that goes gives back what it held, also those that wait or would go on",
          "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=2");
    const auto a = ask(s, "cpu=1"), b = ask(s, "cpu=1");
    CHECK(grants(s).size() == 2);
    s.wait_begin(a);
    const auto c = ask(s, "cpu=1");
    CHECK(grants(s).size() == 1);
    CHECK_FALSE(s.wait_end(a));
    const auto gone = s.remove_place(place_id(1));
    std::set<request_id> ids;
    for (const auto& e : gone) ids.insert(e.id);
    CHECK(ids == std::set<request_id>{a, b, c});
    CHECK_FALSE(s.release(a));
    CHECK(s.stats().granted == 0);
    CHECK(s.remove_place(place_id(1)).empty());
    const auto d = ask(s, "cpu=1");
    CHECK(grants(s).empty());
    add_place(s, 1, "cpu=1");
    CHECK(grants(s).at(0).id == d);
}

TEST_CASE("nothing new goes to a place that drains, and what runs there goes on",
          "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=2");
    add_place(s, 2, "cpu=2");
    const auto a = ask(s, "cpu=1");
    CHECK(where_to(s) == list{1});
    CHECK(s.drain(place_id(1)));
    CHECK_FALSE(s.drain(place_id(7)));
    for (int i = 0; i < 3; ++i) (void)ask(s, "cpu=1");
    CHECK(where_to(s) == list{2, 2});
    CHECK(s.wait_begin(a));
    CHECK(s.wait_end(a));
    CHECK(s.release(a));
    CHECK(where_to(s).empty());
    CHECK(s.drain(place_id(1), false));
    CHECK(where_to(s) == list{1});
}

TEST_CASE("a demand that no place could hold says what is missing and waits for a place that can",
          "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=8");
    add_place(s, 3, "cpu=2,gpu=1");
    const auto id = ask(s, "gpu=2");
    (void)ask(s, "gpu=2");
    CHECK(grants(s).empty());
    auto said = notices(s);
    REQUIRE(said.size() == 1); // once for all that ask the same
    CHECK(said[0].what == sched::notice::kind::infeasible);
    CHECK(said[0].id == id);
    CHECK(has(said[0].why.what(), "asks for gpu=2"));
    CHECK(has(said[0].why.what(), "worker-3 has most, gpu=1"));
    CHECK(has(s.why(id), "no place could ever hold it"));
    add_place(s, 4, "gpu=2");
    CHECK(where_to(s) == list{4});
    CHECK(s.remove_place(place_id(4)).size() == 1);
    CHECK(grants(s).empty());
    said = notices(s);
    REQUIRE(said.size() == 1);
    CHECK(said[0].what == sched::notice::kind::infeasible);
}

TEST_CASE("what no place could hold is said again to the job that asks", "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=8");
    const auto id = ask(s, "gpu=2");
    (void)ask(s, "gpu=1", 2);
    (void)ask(s, "cpu=1");
    sched::group_request g;
    g.job = job_id(1);
    g.bundles = {sched::parse_resources("cpu=9").value()};
    const auto group = s.create_group(g);
    REQUIRE(group);
    CHECK(grants(s).size() == 1);
    CHECK(notices(s).size() == 3);
    s.say_again(job_id(1));
    CHECK(grants(s).empty());
    const auto said = notices(s);
    REQUIRE(said.size() == 2);
    CHECK(said[0].what == sched::notice::kind::infeasible);
    CHECK(said[0].id == id);
    CHECK(said[1].what == sched::notice::kind::group_infeasible);
    CHECK(said[1].group == *group);
    s.say_again(job_id(3));
    CHECK(notices(s).empty());
}

TEST_CASE("a demand that may fail is refused at once when it is infeasible, and later when its "
          "place goes",
          "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=1");
    auto r = asking("ssd=1,cpu=1");
    r.fail_if_infeasible = true;
    const auto refused = s.submit(r);
    REQUIRE_FALSE(refused);
    CHECK(has(refused.error().what(),
              "no place has ever had ssd (none has a resource of its own name): worker-1 has"));
    add_place(s, 2, "cpu=1,ssd=1");
    const auto a = s.submit(r).value();
    const auto b = s.submit(r).value();
    CHECK(grants(s).size() == 1);
    const auto gone = s.remove_place(place_id(2));
    REQUIRE(gone.size() == 1);
    CHECK(gone[0].id == a);
    CHECK(grants(s).empty());
    const auto said = notices(s);
    REQUIRE(said.size() == 1);
    CHECK(said[0].what == sched::notice::kind::refused);
    CHECK(said[0].id == b);
    CHECK(s.stats().queued == 0);
}

TEST_CASE("what waits for a first place is told anew when that could not hold it either",
          "[rt][scheduler]") {
    scheduler s;
    (void)ask(s, "gpu=1");
    (void)s.create_group(bundles(sched::group_strategy::pack, {"gpu=2"})).value();
    const auto next = [&s] { // of what a turn says, in words
        CHECK(grants(s).empty());
        std::string all;
        for (const auto& n : notices(s)) all += std::string(n.why.what()) + "\n";
        return all;
    };
    const auto first = next();
    CHECK(has(first, "asks for gpu=1: no place is there; add one that has it"));
    CHECK(has(first, "placement group 1"));
    CHECK(next().empty());
    add_place(s, 1, "cpu=2");
    const auto second = next();
    CHECK(has(second, "asks for gpu=1, no place could ever hold it: worker-1 has most, gpu=0"));
    CHECK(has(second, "the largest of 1 is worker-1 with cpu=2"));
    add_place(s, 2, "cpu=3");
    CHECK(next().empty());
    CHECK(s.remove_place(place_id(1)).empty());
    CHECK(s.remove_place(place_id(2)).empty());
    CHECK(next().empty());
    add_place(s, 3, "cpu=1");
    CHECK(next().empty());
}

TEST_CASE("cpus on one place and a gpu on another are no place for both", "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=8");
    add_place(s, 2, "gpu=1");
    const auto id = ask(s, "cpu=1,gpu=1");
    CHECK(grants(s).empty());
    CHECK(has(s.why(id),
              "no place has all of it together: worker-1 has cpu=8; worker-2 has gpu=1; lower"));
}

TEST_CASE(
    "a name or a label that no place has is said to be missing, not the demand to be too large",
    "[rt][scheduler]") {
    sched::scheduler_options o;
    o.place_is = "node";
    scheduler s(o);
    add_place(s, 1, "cpu=8", {"zone=a", "node=worker-1"});
    const auto why = [&s](std::string_view demand, const constraint& where) {
        const auto id = ask(s, demand, 1, where);
        (void)grants(s);
        return s.why(id);
    };
    const auto nobody = why("cpu=1", constraint::labelled("node=nobody"));
    CHECK(has(nobody, "asks for cpu=1 on nobody: no node of that name is there; there are: "
                      "\"worker-1\"; name one that is"));
    CHECK_FALSE(has(nobody, "lower the demand"));
    add_place(s, 2, "cpu=1,disk=1,license=2");
    CHECK(has(why("sdd=1", {}), "no node has ever had sdd (there are: \"disk\", \"license\"): "
                                "worker-1 has cpu=8; worker-2 has"));
    CHECK(s.remove_place(place_id(2)).empty());
    const auto zone = why("cpu=1", constraint::labelled("zone=b"));
    CHECK(has(zone, "on nodes labelled zone=b: no node has that label; there are: \"zone=a\"; "
                    "name another label, or add"));
    CHECK(has(why("cpu=9", constraint::labelled("zone=a")),
              "no node could ever hold it: worker-1 has most, cpu=8; lower the demand, or add a "
              "node that has it"));
    CHECK(s.drain(place_id(1)));
    CHECK(has(why("cpu=2", constraint::labelled("node=worker-1")), "it is drained; take a drain"));
    CHECK(has(why("cpu=3", {}), "asks for cpu=3: all that are there are drained"));
}

TEST_CASE("input that is no place, label or demand is refused with a sentence", "[rt][scheduler]") {
    scheduler s;
    CHECK_FALSE(s.add_place(place_id(0), "a", amounts("cpu=1")));
    CHECK(s.add_place(place_id(1), "a", amounts("cpu=1")));
    const auto twice = s.add_place(place_id(1), "b", amounts("cpu=1"));
    REQUIRE_FALSE(twice);
    CHECK(has(twice.error().what(), "place 1 (b): a place with this number is there already"));
    CHECK_FALSE(s.add_place(place_id(2), "b", amounts("gpu=0.5")));
    CHECK_FALSE(s.add_place(place_id(2), "b", amounts("cpu=1"), {""}));
    CHECK_FALSE(s.submit(asking("gpu=1.5")));
    CHECK_FALSE(s.submit(asking("cpu=1", 1, constraint::labelled(""))));
    CHECK_FALSE(s.submit(asking("cpu=1", 1, constraint::in(sched::placement_group_id(9)))));
    std::vector<place_id> many;
    for (std::uint64_t i = 1; i < 70; ++i) many.emplace_back(i);
    CHECK_FALSE(s.submit(asking("cpu=1", 1, constraint().avoiding(many))));
    CHECK_FALSE(s.release(request_id(12345)));
    CHECK_FALSE(s.cancel(request_id(0)));
    CHECK(s.remove_group(sched::placement_group_id(4)).empty());
}

TEST_CASE("a job that goes takes its queued requests along, and its room when it is released",
          "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=2");
    const auto a = ask(s, "cpu=2", 1);
    (void)ask(s, "cpu=1", 1);
    const auto b = ask(s, "cpu=1", 2);
    CHECK(grants(s).size() == 1);
    CHECK(s.remove_job(job_id(1)).empty());
    CHECK(s.stats().queued == 1);
    CHECK(s.release(a));
    CHECK(grants(s).at(0).id == b);
    CHECK(s.remove_job(job_id(1)).empty());
    CHECK(s.remove_job(job_id(3)).empty());
    (void)ask(s, "cpu=1", 1);
    CHECK(grants(s).size() == 1);
}

TEST_CASE("listings say what is queued, why, and what is used where", "[rt][scheduler]") {
    scheduler s;
    add_place(s, 1, "cpu=2,gpu=1,memory=1GiB,ssd=2");
    (void)ask(s, "cpu=1.5,gpu=0.5,memory=1MiB,ssd=1", 1);
    (void)ask(s, "cpu=1", 2, constraint::on(place_id(1)));
    CHECK(grants(s).size() == 1);
    const auto places = s.places();
    REQUIRE(places.size() == 1);
    CHECK(to_string(places[0].used) == "cpu=1.5,gpu=0.5,memory=1MiB,ssd=1");
    CHECK(places[0].name == "worker-1");
    CHECK(places[0].granted == 1);
    const auto queues = s.queues();
    REQUIRE(queues.size() == 2);
    CHECK(queues[0].granted == 1);
    CHECK(queues[1].queued == 1);
    CHECK(queues[1].job == job_id(2));
    CHECK(queues[1].where == "on worker-1");
    CHECK(queues[1].why == "waits for cpu=1 on worker-1: worker-1 has most free, cpu=0.5");
    const auto t = s.stats();
    CHECK(t.queues == 1);
    CHECK(t.granted == 1);
    CHECK(t.places == 1);
}
