// SPDX-License-Identifier: Apache-2.0
// Names, ends and handles of actors: rt/actor.hpp beyond its calls.
#include <tests/apps/apps.hpp>
#include <tests/support/sim_cluster.hpp>

#include <skein/core/timeout.hpp>
#include <skein/rt/actor.hpp>
#include <skein/rt/detail/actor_terms.hpp>
#include <skein/rt/detail/group_message.hpp>
#include <skein/rt/detail/space_state.hpp>
#include <skein/rt/placement_group.hpp>
#include <skein/rt/worker_source.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <catch2/catch_test_macros.hpp>

namespace actor_lifecycle_test {

using namespace skein;
using namespace std::chrono_literals;
using rt_test::counter;
using rt_test::journal;
using test::in_sim;
using test::sim_cluster;

template <class A>
task<error> failure_of(A work) {
    auto asked = as_result(std::move(work));
    auto outcome = co_await asked;
    REQUIRE_FALSE(outcome);
    co_return outcome.error();
}

bool says(const error& e, std::string_view part) {
    return e.text().find(part) != std::string::npos;
}

// ---- names --------------------------------------------------------------------------------------

task<int> add_by_name(std::string name, int k) {
    auto c = co_await get_actor<counter>(name);
    co_return co_await c.call<&counter::add>(k);
}
task<int> make_if_missing(int start) {
    auto c = co_await actor<counter>.with({.name = "shared", .get_if_exists = true})(start);
    co_return co_await c.call<&counter::add>(1);
}
task<std::string> names_from_worker() {
    auto missing = failure_of(get_actor<counter>("nobody"));
    const auto none = co_await missing;
    auto other = failure_of(get_actor<journal>("table"));
    const auto wrong = co_await other;
    auto again = failure_of(actor<counter>.with({.name = "table"})(1));
    const auto taken = co_await again;
    co_return std::string(to_string(none.code())) + " " + std::string(to_string(wrong.code())) +
        " " + std::string(to_string(taken.code()));
}

TEST_CASE("an actor is found by its name, from the driver and from workers", "[O7][rt][actor]") {
    in_sim(1, 2, [](sim_cluster&) -> task<void> {
        auto made = co_await actor<counter>.with({.name = "table"})(10);
        auto found = co_await get_actor<counter>("table");
        CHECK(found == made);
        auto there = remote<&add_by_name>("table", 5);
        const int got = co_await there;
        CHECK(got == 15);
        auto codes = co_await remote<&names_from_worker>();
        CHECK(codes == "not_found mismatch already_exists");
    });
}

TEST_CASE("what is wrong with a name is said", "[O6][O7][rt][actor]") {
    in_sim(2, 1, [](sim_cluster&) -> task<void> {
        {
            auto asked = failure_of(get_actor<counter>("x"));
            const auto why = co_await asked;
            CHECK(why.code() == errc::not_found);
            CHECK(says(why, "none has a name"));
        }
        auto made = co_await actor<counter>.with({.name = "table"})(10);
        {
            auto asked = failure_of(get_actor<counter>("tabel"));
            const auto why = co_await asked;
            CHECK(says(why, "there is no actor named \"tabel\"; there are: \"table\""));
        }
        {
            auto asked = failure_of(get_actor<journal>("table"));
            const auto why = co_await asked;
            CHECK(why.code() == errc::mismatch);
            CHECK(says(why, "is a rt_test::counter, not a rt_test::journal"));
        }
        {
            auto asked = failure_of(actor<counter>.with({.name = "table"})(1));
            const auto why = co_await asked;
            CHECK(why.code() == errc::already_exists);
        }
        {
            auto asked =
                failure_of(actor<journal>.with({.name = "table", .get_if_exists = true})());
            const auto why = co_await asked;
            CHECK(why.code() == errc::mismatch);
        }
        const int still = co_await made.call<&counter::get>();
        CHECK(still == 10);
    });
}

TEST_CASE("a name is free again when its actor has ended", "[O6][rt][actor]") {
    in_sim(3, 1, [](sim_cluster& c) -> task<void> {
        { auto made = co_await actor<counter>.with({.name = "table"})(1); }
        auto second = co_await actor<counter>.with({.name = "table"})(2);
        kill(second);
        auto third = co_await actor<counter>.with({.name = "table"})(3);
        const int got = co_await third.call<&counter::get>();
        CHECK(got == 3);
        c.kill(0);
        co_await sleep_for(50ms);
        auto fourth = co_await actor<counter>.with({.name = "table"})(4);
        auto broken = failure_of(actor<rt_test::picky>.with({.name = "other"})(-1));
        (void)co_await broken;
        auto fine = co_await actor<rt_test::picky>.with({.name = "other"})(1);
    });
}

TEST_CASE("the actor of a name is made once, whoever asks first", "[O8][rt][actor]") {
    in_sim(4, 3, [](sim_cluster& c) -> task<void> {
        // The second one does not wait for the first one's constructor, its calls do.
        auto first = actor<counter>.with({.name = "shared", .get_if_exists = true})(10);
        auto second = actor<counter>.with({.name = "shared", .get_if_exists = true})(20);
        auto b = co_await second;
        auto one = b.call<&counter::add>(1);
        auto a = co_await first;
        CHECK(a == b);
        const int got = co_await one;
        CHECK(got == 11);
        std::vector<ref<int>> all;
        for (int i = 0; i < 6; ++i) all.push_back(remote<&make_if_missing>(1000));
        for (auto& r : all) (void)co_await r;
        const int sum = co_await a.call<&counter::get>();
        CHECK(sum == 17);
        CHECK(c.actors() == 1);
    });
}

// ---- ends ---------------------------------------------------------------------------------------

task<void> kill_it(actor_handle<counter> c) {
    kill(c);
    co_return;
}

bool is_killed_by_worker = false;

TEST_CASE("a killed actor ends at once", "[M6][M8][rt][actor]") {
    for (const bool by_worker : {false, true}) {
        is_killed_by_worker = by_worker;
        in_sim(5, 2, [](sim_cluster& cluster) -> task<void> {
            auto c = co_await actor<counter>.with({.restarts = -1})(1);
            auto runs = c.call<&counter::add_later>(1, 10000);
            auto argument = remote<&rt_test::later>.with({.cpus = 0})(3, 50000);
            co_await sleep_for(10ms);
            auto waits = c.call<&counter::add>(argument);
            if (is_killed_by_worker) {
                auto killed = remote<&kill_it>.with({.cpus = 0})(c);
                co_await killed;
            } else {
                kill(c);
            }
            auto running = failure_of(runs);
            const auto ran = co_await running;
            CHECK(ran.code() == errc::cancelled);
            auto waiting = failure_of(waits);
            const auto waited = co_await waiting;
            CHECK(waited.code() == errc::not_found);
            CHECK(says(waited, "did not run"));
            CHECK(says(waited, "was killed"));
            auto next = failure_of(c.call<&counter::get>());
            const auto late = co_await next;
            CHECK(late.code() == errc::not_found);
            CHECK(cluster.actors() == 0);
            argument.cancel();
        });
    }
}

TEST_CASE("an actor is killed while it is made, or made again", "[M6][rt][actor]") {
    in_sim(6, 2, [](sim_cluster& cluster) -> task<void> {
        auto making = actor<counter>.with({.name = "early"})(1);
        auto early = co_await get_actor<counter>("early");
        auto waits = early.call<&counter::get>();
        kill(early);
        auto asked = failure_of(waits);
        const auto why = co_await asked;
        CHECK(says(why, "was killed"));
        (void)co_await making;
        auto c = co_await actor<counter>.with({.restarts = 1})(1);
        cluster.kill(0);
        cluster.kill(1);
        co_await sleep_for(2ms);
        kill(c);
        co_await sleep_for(100ms);
        CHECK(cluster.actors() == 0);
    });
}

struct space_client {
    int n = 0;
    int add(int k) { return n += k; }
    int last(int k) {
        leave_actor();
        return n += k;
    }
    task<int> last_later(int ms) {
        leave_actor();
        co_await sleep_for(std::chrono::milliseconds(ms));
        co_return n;
    }
    task<int> slow(int ms) {
        co_await sleep_for(std::chrono::milliseconds(ms));
        co_return n;
    }
};
void leave_from_nowhere() { leave_actor(); }

TEST_CASE("an actor leaves after the call that says so", "[M7][M8][rt][actor]") {
    in_sim(7, 1, [](sim_cluster& c) -> task<void> {
        auto g = co_await actor<space_client>.with({.restarts = -1, .name = "space client"})();
        auto slow = g.call<&space_client::slow>(50);
        auto last = g.call<&space_client::last>(5);
        auto late = g.call<&space_client::add>(1);
        const int got = co_await last;
        CHECK(got == 5);
        auto asked = failure_of(late);
        const auto why = co_await asked;
        CHECK(why.code() == errc::not_found);
        CHECK(c.actors() == 0);
        const int to_its_end = co_await slow;
        CHECK(to_its_end == 5);
        auto free = co_await actor<space_client>.with({.name = "space client"})();
        auto leaving = free.call<&space_client::last_later>(20);
        const int meanwhile = co_await free.call<&space_client::add>(1);
        CHECK(meanwhile == 1);
        const int left = co_await leaving;
        CHECK(left == 1);
        auto nowhere = failure_of(remote<&leave_from_nowhere>());
        const auto wrong = co_await nowhere;
        CHECK(wrong.code() == errc::invalid_argument);
    });
}

// ---- handles ------------------------------------------------------------------------------------

struct holder {
    std::vector<actor_handle<counter>> kept;
    void keep(actor_handle<counter> c) { kept.push_back(c); }
    void drop() { kept.clear(); }
    task<int> add(int k) { co_return co_await kept.at(0).call<&counter::add>(k); }
    actor_handle<counter> give() { return kept.at(0); }
    int worker() const { return static_cast<int>(rt::runtime::current().name().pid / 100) - 1; }
    std::vector<actor_handle<counter>> save() const { return kept; }
    void load(std::vector<actor_handle<counter>> saved) { kept = std::move(saved); }
};

task<actor_handle<counter>> make_one(int start) {
    auto c = co_await actor<counter>(start);
    co_return c;
}
task<int> use_one_of_another(int start) {
    auto made = remote<&make_one>.with({.cpus = 0})(start);
    auto c = co_await made;
    co_await sleep_for(20ms);
    co_return co_await c.call<&counter::add>(1);
}
std::vector<actor_handle<counter>> give_back(std::vector<actor_handle<counter>> all) { return all; }

TEST_CASE("a handle that an actor keeps keeps the other", "[M5][rt][actor]") {
    in_sim(8, 2, [](sim_cluster& c) -> task<void> {
        auto h = co_await actor<holder>();
        {
            auto kept = co_await actor<counter>(1);
            co_await h.call<&holder::keep>(kept);
            co_await h.call<&holder::keep>(kept);
        }
        co_await sleep_for(50ms);
        CHECK(c.actors() == 2);
        const int got = co_await h.call<&holder::add>(4);
        CHECK(got == 5);
        co_await h.call<&holder::drop>();
        co_await sleep_for(20ms);
        CHECK(c.actors() == 1);
    });
}

TEST_CASE("a lost worker gives the handles back that it had", "[M5][rt][actor]") {
    in_sim(9, 2, [](sim_cluster& c) -> task<void> {
        auto h = co_await actor<holder>();
        const int at = co_await h.call<&holder::worker>();
        {
            auto kept = co_await actor<counter>(1); // at the other worker
            co_await h.call<&holder::keep>(kept);
        }
        co_await sleep_for(20ms);
        CHECK(c.actors() == 2);
        c.kill(at);
        co_await sleep_for(50ms);
        CHECK(c.actors() == 0);
    });
}

TEST_CASE("an actor that is made again finds the actors it held", "[rt][actor]") {
    in_sim(10, 2, [](sim_cluster& c) -> task<void> {
        auto h = co_await actor<holder>.with({.restarts = 1})();
        const int at = co_await h.call<&holder::worker>();
        {
            auto kept = co_await actor<counter>(1);
            co_await h.call<&holder::keep>(kept);
        }
        c.kill(at);
        co_await sleep_for(100ms);
        const int got = co_await h.call<&holder::add>(4);
        CHECK(got == 5);
        co_await h.call<&holder::drop>();
        co_await sleep_for(20ms);
        CHECK(c.actors() == 1);
    });
}

TEST_CASE("a handle is a result, for the driver and for a worker", "[A7][rt][actor]") {
    in_sim(11, 3, [](sim_cluster& c) -> task<void> {
        {
            auto made = co_await remote<&make_one>(10);
            co_await sleep_for(20ms);
            const int got = co_await made.call<&counter::add>(5);
            CHECK(got == 15);
            auto team = std::vector<actor_handle<counter>>{made, made};
            auto back = co_await remote<&give_back>(team);
            REQUIRE(back.size() == 2);
            CHECK(back[1] == made);
            auto h = co_await actor<holder>();
            co_await h.call<&holder::keep>(made);
            made = {};
            team.clear();
            back.clear();
            auto given = co_await h.call<&holder::give>();
            co_await h.call<&holder::drop>();
            co_await sleep_for(20ms);
            const int still = co_await given.call<&counter::get>();
            CHECK(still == 15);
        }
        const auto empty = co_await remote<&give_back>(std::vector<actor_handle<counter>>(2));
        REQUIRE(empty.size() == 2);
        CHECK_FALSE(empty[0]);
        const int elsewhere = co_await remote<&use_one_of_another>(7);
        CHECK(elsewhere == 8);
        co_await sleep_for(50ms);
        CHECK(c.actors() == 0);
    });
}

// ---- what links say -----------------------------------------------------------------------------

byte_buffer about(actor_id id) {
    wire::writer w;
    rt::detail::put_actor(w, id);
    return std::move(w).take();
}

rt::detail::group_question about_group(rt::detail::group_matter matter, std::uint64_t number = 1,
                                       std::uint32_t times = 0) {
    rt::detail::group_question what;
    what.matter = static_cast<std::uint8_t>(matter);
    what.number = number;
    what.times = times;
    what.name = "held";
    return what;
}

TEST_CASE("a worker speaks only for actors it runs and handles it has", "[rt][actor]") {
    in_sim(12, 1, [](sim_cluster& c) -> task<void> {
        auto mine = co_await actor<counter>.with({.restarts = 1})(3);
        wire::writer release;
        rt::detail::put_actor(release, mine.id());
        release.fixed(std::uint32_t{1});
        const std::pair<std::uint16_t, byte_buffer> wrong[] = {
            {rt::detail::message_snapshot, about(mine.id())},
            {rt::detail::message_snapshot, byte_buffer(3)},
            {rt::detail::message_left, about(mine.id())},
            {rt::detail::message_hold, byte_buffer(15)},
            {rt::detail::message_release, std::move(release).take()},
            {rt::detail::message_release, about(mine.id())},
            {rt::detail::message_drop, about(mine.id())},
            {rt::detail::message_kill, byte_buffer(17)},
            {rt::detail::message_find, byte_buffer(1)},
            {rt::detail::message_space, byte_buffer(3)},
            {rt::detail::message_space, wire::encode(rt::detail::space_question{})},
            {rt::detail::message_space_there, byte_buffer(1)},
            {rt::detail::message_space_end, byte_buffer(1)},
            {rt::detail::message_group, byte_buffer(3)},
            {rt::detail::message_group, wire::encode(about_group(rt::detail::group_matter::ready))},
            {rt::detail::message_group,
             wire::encode(about_group(rt::detail::group_matter::release, 1, 1))},
        };
        for (const auto& [kind, body] : wrong) {
            auto fake = c.impostor();
            auto peer = co_await fake;
            peer->send(kind, 0, 1, body, {});
            auto ended = peer->wait_closed();
            co_await ended;
        }
        const int still = co_await mine.call<&counter::get>();
        CHECK(still == 3);
        // Of one that has ended, or never was: nothing happens.
        auto fake = c.impostor();
        auto peer = co_await fake;
        for (const auto kind : {rt::detail::message_snapshot, rt::detail::message_left,
                                rt::detail::message_hold, rt::detail::message_kill})
            peer->send(kind, 0, 1, about(actor_id({4711, 1})), {});
        co_await sleep_for(20ms);
        CHECK(peer->is_open());
        peer->abort(cancelled_error());
    });
}

/// Has no worker and no place, and answers no question until it is open.
struct idle_source final : rt::worker_source {
    task<void> serve() override { co_return; }
    void stop() noexcept override {}
    void want(const rt::worker_demand&) override {}
    void blocked(const net::channel&, bool) override {}
    void end_now(const net::channel&) override {}
    void want_group(const rt::worker_group&) override {}
    void drop_group(std::uint64_t) override {}
    task<rt::space_place> find_space(std::string, std::uint64_t) override {
        auto opened = open.wait();
        co_await opened;
        throw error(errc::not_found, "there is no such namespace");
    }
    event open;
};

task<net::frame> answer_to(std::shared_ptr<net::connection> peer, std::uint16_t kind,
                           std::uint64_t id) {
    for (;;) {
        auto next = peer->receive();
        auto f = co_await next;
        REQUIRE(f);
        if (f->kind == kind && f->id == id) co_return std::move(*f);
    }
}
task<errc> failure_for(std::shared_ptr<net::connection> peer, std::uint16_t kind,
                       std::uint64_t id) {
    auto asked = with_timeout(answer_to(peer, kind, id), 1s);
    const auto f = co_await asked;
    CHECK(f.flags == 1);
    co_return rt::detail::decode_failure(f.body).what.code();
}
/// An impostor that holds the group, whose number it says.
task<std::uint64_t> find_group(std::shared_ptr<net::connection> peer) {
    using rt::detail::group_matter;
    peer->send(rt::detail::message_group, 0, 1, wire::encode(about_group(group_matter::find)), {});
    auto asked = answer_to(peer, rt::detail::message_reply, 1);
    const auto f = co_await asked;
    co_return wire::decode<rt::detail::group_answer>(f.body).value().number;
}

TEST_CASE("a worker gives back no more of a group than it has, and waits only while it holds it",
          "[rt][placement_group]") {
    using rt::detail::group_matter;
    using rt::detail::message_group;
    in_sim(13, 1, [](sim_cluster& c) -> task<void> {
        idle_source source;
        c.driver().ask(&source);
        {
            placement_group group({"cpu=1"}, {.name = "held"});
            const std::pair<group_matter, std::uint32_t> wrong[] = {
                {group_matter::release, 0},
                {group_matter::release, 2},
                {static_cast<group_matter>(6), 1},
                {group_matter::hold, 1}, // of a number that is none of the driver's
                {group_matter::make, 1}, // with a number of the driver's
            };
            for (const auto& [matter, times] : wrong) {
                auto fake = c.impostor();
                auto peer = co_await fake;
                auto finding = find_group(peer);
                const auto number = co_await finding;
                const auto about =
                    number + (matter == group_matter::hold ? rt::detail::first_of_worker : 0);
                peer->send(message_group, 0, 2, wire::encode(about_group(matter, about, times)),
                           {});
                auto ended = peer->wait_closed();
                co_await ended;
            }
            auto fake = c.impostor();
            auto peer = co_await fake;
            auto finding = find_group(peer);
            const auto number = co_await finding;
            const auto ready = wire::encode(about_group(group_matter::ready, number));
            for (const std::uint64_t id : {2u, 3u}) peer->send(message_group, 0, id, ready, {});
            peer->send(rt::detail::message_cancel, 0, 2, {}, {});
            auto cancelled = failure_for(peer, rt::detail::message_reply, 2);
            const auto first = co_await cancelled;
            CHECK(first == errc::cancelled);
            peer->send(message_group, 0, 0,
                       wire::encode(about_group(group_matter::release, number, 1)), {});
            auto closed = failure_for(peer, rt::detail::message_reply, 3);
            const auto second = co_await closed;
            CHECK(second == errc::closed);
            peer->abort(cancelled_error());
        }
        c.driver().ask(nullptr);
    });
}

TEST_CASE("a worker makes groups with numbers of its own, each once, and so many",
          "[rt][placement_group]") {
    using rt::detail::first_of_worker;
    using rt::detail::group_matter;
    using rt::detail::message_group;
    in_sim(15, 1, [](sim_cluster& c) -> task<void> {
        idle_source source;
        c.driver().ask(&source);
        auto making = about_group(group_matter::make, first_of_worker + 7);
        making.bundles = {"cpu=1"};
        const auto made = wire::encode(making);
        making.strategy = 4;
        const auto no_strategy = wire::encode(making);
        for (const int how : {0, 1, 2}) {
            auto fake = c.impostor();
            auto peer = co_await fake;
            peer->send(message_group, 0, 0, made, {});
            auto finding = find_group(peer);
            const auto number = co_await finding;
            CHECK(number < first_of_worker);
            if (how == 0) peer->send(message_group, 0, 0, made, {}); // a second time
            if (how == 1) peer->send(message_group, 0, 0, no_strategy, {});
            for (std::uint64_t n = 0; how == 2 && n <= rt::detail::most_made_groups; ++n) {
                auto more = about_group(group_matter::make, first_of_worker + 100 + n);
                more.bundles = {"nonsense"};
                peer->send(message_group, 0, 0, wire::encode(more), {});
            }
            auto ended = peer->wait_closed();
            co_await ended;
            auto finds = as_result(get_placement_group("held"));
            const auto gone = co_await finds; // with the link of who has made it
            REQUIRE_FALSE(gone);
            CHECK(gone.error().code() == errc::not_found);
        }
        c.driver().ask(nullptr);
    });
}

TEST_CASE("a worker that asks for namespaces without end loses its link, and no other does",
          "[rt][actor]") {
    using rt::detail::message_space;
    using rt::detail::message_space_there;
    using rt::detail::space_state;
    in_sim(14, 1, [](sim_cluster& c) -> task<void> {
        idle_source source;
        c.driver().ask(&source);
        auto& state = space_state::of(c.driver());
        state.most_asked = 512; // the usual ones take a minute of a g++ build with ASan
        state.most_answering = 8 * state.most_asked;
        rt::detail::space_question what;
        what.space = "any";
        const auto body = wire::encode(what);
        std::vector<std::shared_ptr<net::connection>> all;
        for (std::size_t n = 0; n < state.most_answering; n += state.most_asked) {
            auto fake = c.impostor();
            all.push_back(co_await fake);
            for (std::size_t i = 0; i < state.most_asked; ++i)
                all.back()->send(message_space, 0, i + 1, body, {});
        }
        co_await sleep_for(1s);
        for (const auto& one : all) CHECK(one->is_open());
        all[0]->send(message_space, 0, state.most_asked + 1, body, {});
        auto ended = all[0]->wait_closed();
        co_await ended;
        auto fake = c.impostor();
        auto honest = co_await fake;
        honest->send(message_space, 0, 1, body, {});
        auto refused = failure_for(honest, message_space_there, 1);
        const auto busy = co_await refused;
        CHECK(busy == errc::exhausted);
        source.open.set();
        const std::vector<std::shared_ptr<net::connection>> both{honest, all[1]};
        for (const auto& one : both) {
            co_await sleep_for(100ms);
            one->send(message_space, 0, 100'000, body, {});
            auto answered = failure_for(one, message_space_there, 100'000);
            const auto none = co_await answered;
            CHECK(none == errc::not_found);
        }
        for (const auto& one : all) one->abort(cancelled_error());
        honest->abort(cancelled_error());
        c.driver().ask(nullptr);
    });
}

} // namespace actor_lifecycle_test
