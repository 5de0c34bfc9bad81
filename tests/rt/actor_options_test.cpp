// SPDX-License-Identifier: Apache-2.0
#include <tests/apps/apps.hpp>
#include <tests/support/sim_cluster.hpp>

#include <skein/rt/actor.hpp>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <catch2/catch_test_macros.hpp>
#include <fmt/format.h>

namespace actor_options_test {

using namespace skein;
using namespace std::chrono_literals;
using test::in_sim;
using test::sim_cluster;

int saves = 0; ///< all workers of a simulated world live in this process

struct ledger {
    std::vector<int> seen;

    std::vector<int> note(int i) {
        seen.push_back(i);
        return seen;
    }
    task<int> note_slowly(int i, int ms) {
        seen.push_back(i);
        co_await sleep_for(std::chrono::milliseconds(ms));
        co_return i;
    }
    void note_and_fail(int i) {
        seen.push_back(i);
        throw std::runtime_error("noted all the same");
    }
    std::vector<int> all() const { return seen; }
    int worker() const { return static_cast<int>(rt::runtime::current().name().pid / 100) - 1; }

    std::vector<int> save() const {
        ++saves;
        return seen;
    }
    void load(std::vector<int> saved) { seen = std::move(saved); }
};
static_assert(restorable<ledger>);

/// Nothing to save; fails to be made again when told so.
struct plain {
    static inline bool is_broken = false;
    explicit plain(int start) : n(start) {
        if (is_broken) throw std::runtime_error("the second time is one too many");
    }
    int n;
    int add(int k) { return n += k; }
    int worker() const { return static_cast<int>(rt::runtime::current().name().pid / 100) - 1; }
};
static_assert(!restorable<plain>);

struct unsavable {
    int n = 0;
    int add(int k) { return n += k; }
    int save() const { throw std::runtime_error("no pen"); }
    void load(int) {}
};

template <class T>
task<void> kill_worker_of(sim_cluster* c, actor_handle<T> of) {
    const int at = co_await of.template call<&T::worker>();
    c->kill(at);
}

template <class T>
task<error> failure_of(ref<T> r) {
    auto asked = as_result(std::move(r));
    auto outcome = co_await asked;
    REQUIRE_FALSE(outcome);
    co_return outcome.error();
}

TEST_CASE("an actor that is made again has the state of its last answered call",
          "[O1][O2][rt][actor_options]") {
    in_sim(1, 2, [](sim_cluster& c) -> task<void> {
        auto l = co_await actor<ledger>.with({.restarts = 1})();
        (void)co_await l.call<&ledger::note>(1);
        (void)co_await l.call<&ledger::note>(2);
        auto first = kill_worker_of(&c, l);
        co_await first;
        const auto seen = co_await l.call<&ledger::note>(3);
        CHECK(seen == std::vector<int>{1, 2, 3});
        auto second = kill_worker_of(&c, l);
        co_await second;
        auto asked = failure_of(l.call<&ledger::all>());
        const auto lost = co_await asked;
        CHECK(lost.code() == errc::worker_lost);
        CHECK(lost.text().find("was made again once") != std::string::npos);
    });
}

// ---- what cannot be kept ------------------------------------------------------------------------

struct nest {
    int value = 0;
    std::vector<nest> inside;
};

struct nest_space_server {
    nest kept;
    int grow() {
        nest above;
        above.inside.push_back(std::move(kept));
        kept = std::move(above);
        return depth();
    }
    int depth() const {
        int d = 1;
        for (const auto* at = &kept; !at->inside.empty(); at = &at->inside[0]) ++d;
        return d;
    }
    nest whole() const { return kept; }
    int worker() const { return static_cast<int>(rt::runtime::current().name().pid / 100) - 1; }
    nest save() const { return kept; }
    void load(nest n) { kept = std::move(n); }
};

TEST_CASE("the call that makes a state too deep to be read is the one that fails",
          "[O2][rt][actor_options]") {
    in_sim(31, 2, [](sim_cluster& c) -> task<void> {
        auto k = co_await actor<nest_space_server>.with({.restarts = -1})();
        int answered = 0;
        std::optional<error> why;
        for (int i = 0; i < 80 && !why; ++i) {
            auto asked = as_result(k.call<&nest_space_server::grow>());
            const auto outcome = co_await asked;
            if (outcome)
                answered = *outcome;
            else
                why = outcome.error();
        }
        REQUIRE(why);
        CHECK(why->code() == errc::too_large);
        const std::string text = why->what();
        CHECK(text.find("nest_space_server::grow") != text.npos);
        CHECK(text.find("nest_space_server::save()") != text.npos);
        CHECK(text.find("limit of 64") != text.npos);
        auto killed = kill_worker_of(&c, k);
        co_await killed;
        const int kept = co_await k.call<&nest_space_server::depth>();
        CHECK(kept == answered); // all that was answered is there
    });
}

int children_of(nest n) { return static_cast<int>(n.inside.size()); }
nest nested_by(int depth) {
    nest_space_server k;
    for (int i = 1; i < depth; ++i) k.grow();
    return k.kept;
}

TEST_CASE("a result that its reader would refuse fails with its function's name",
          "[rt][actor_options]") {
    in_sim(32, 2, [](sim_cluster&) -> task<void> {
        auto fits = remote<&nested_by>(64);
        const auto deep = co_await fits;
        CHECK(deep.inside.size() == 1);
        auto asked = failure_of(remote<&nested_by>(65));
        const auto why = co_await asked;
        CHECK(why.code() == errc::too_large);
        const std::string text = why.what();
        CHECK(text.find("nested_by") != text.npos);
        CHECK(text.find("its result cannot be sent") != text.npos);
        auto passed = failure_of(remote<&children_of>(nested_by(70)));
        const auto refused = co_await passed;
        CHECK(refused.code() == errc::too_large);
        CHECK(refused.text().find("its arguments cannot be encoded") != std::string::npos);
    });
}

TEST_CASE("messages name an actor by its name", "[rt][actor_options]") {
    in_sim(33, 2, [](sim_cluster& c) -> task<void> {
        auto l = co_await actor<ledger>.with({.restarts = 1, .name = "totals"})();
        auto first = kill_worker_of(&c, l);
        co_await first;
        (void)co_await l.call<&ledger::note>(1);
        auto second = kill_worker_of(&c, l);
        co_await second;
        auto asked = failure_of(l.call<&ledger::all>());
        const auto lost = co_await asked;
        CHECK(lost.text().find("actor \"totals\" was made again once") != std::string::npos);

        auto other = co_await actor<ledger>.with({.name = "sums"})();
        const auto copy = other;
        kill(other);
        auto called = failure_of(copy.call<&ledger::all>());
        const auto gone = co_await called;
        CHECK(gone.text().find("actor \"sums\" was killed") != std::string::npos);
        auto sought = as_result(get_actor<ledger>("total"));
        const auto none = co_await sought;
        CHECK_FALSE(none);
    });
}

/// What a call through a handle that came as an argument fails with.
task<std::string> why_not(actor_handle<ledger> of, bool kills) {
    if (kills) kill(of);
    auto asked = failure_of(of.call<&ledger::all>());
    const auto why = co_await asked;
    co_return why.text();
}

task<std::string> kill_by_name(std::string name) {
    auto of = co_await get_actor<ledger>(name);
    auto killing = why_not(of, true);
    co_return co_await killing;
}

TEST_CASE("a worker names an actor by what it knows of it: its name, or its class and number",
          "[rt][actor_options]") {
    in_sim(35, 2, [](sim_cluster&) -> task<void> {
        const actor_options named{.name = "sums"};
        auto gone = co_await actor<ledger>.with(named)();
        auto killed = co_await actor<ledger>();
        const auto copy = gone;
        kill(gone);
        auto first = remote<&why_not>(copy, false); // its driver says how it has ended
        const std::string said = co_await first;
        CHECK(said.find("actor \"sums\" was killed") != said.npos);
        auto second = remote<&why_not>(killed, true); // the worker itself has ended it
        const std::string own = co_await second;
        CHECK(own.find("ledger#" + fmt::format("{} was killed", killed.id())) != own.npos);
        auto third = failure_of(killed.call<&ledger::all>());
        const auto here = co_await third;
        CHECK(here.text().find("actor ") != std::string::npos);
        CHECK(here.text().find("ledger#") != std::string::npos);
        const actor_options other{.name = "table"};
        auto table = co_await actor<ledger>.with(other)();
        auto fourth = remote<&kill_by_name>("table");
        const std::string found = co_await fourth;
        CHECK(found.find("actor \"table\" was killed") != found.npos);
    });
}

std::string spell(int) { throw std::out_of_range("no such number"); }
int length(std::string text) { return static_cast<int>(text.size()); }

TEST_CASE("the call that did not run is the first word of why its argument failed",
          "[rt][actor_options]") {
    in_sim(34, 1, [](sim_cluster&) -> task<void> {
        auto asked = failure_of(remote<&length>(remote<&spell>(3)));
        const auto why = co_await asked;
        const std::string text = why.what();
        CHECK(text.find("length(") < text.find("did not run: its argument failed: "));
        CHECK(text.find("its argument failed: ") < text.find("spell(int) on "));
        CHECK(text.find("no such number") != text.npos);
        CHECK(text.find("[abi") == text.npos);
    });
}

TEST_CASE("an actor that saves nothing is made again from its arguments",
          "[O2][rt][actor_options]") {
    in_sim(2, 2, [](sim_cluster& c) -> task<void> {
        auto p = co_await actor<plain>.with({.restarts = -1})(10);
        for (int i = 0; i < 4; ++i) {
            const int once = co_await p.call<&plain::add>(5);
            CHECK(once == 15);
            auto killed = kill_worker_of(&c, p);
            co_await killed;
            co_await sleep_for(20ms);
        }
    });
}

TEST_CASE("a state is saved after so many calls that may change it", "[O3][rt][actor_options]") {
    in_sim(3, 2, [](sim_cluster& c) -> task<void> {
        auto l = co_await actor<ledger>.with({.restarts = 1, .snapshot_every = 2})();
        saves = 0;
        for (int i = 1; i <= 3; ++i) (void)co_await l.call<&ledger::note>(i);
        for (int i = 0; i < 5; ++i) (void)co_await l.call<&ledger::all>();
        CHECK(saves == 1);
        auto killed = kill_worker_of(&c, l);
        co_await killed;
        const auto seen = co_await l.call<&ledger::all>();
        CHECK(seen == std::vector<int>{1, 2});
        auto failing = failure_of(l.call<&ledger::note_and_fail>(7));
        (void)co_await failing;
        (void)co_await l.call<&ledger::note>(8);
        auto again = failure_of(l.call<&ledger::note_and_fail>(9));
        (void)co_await again;
        CHECK(saves == 2);
        // An actor that is not made again saves nothing.
        auto other = co_await actor<ledger>();
        (void)co_await other.call<&ledger::note>(1);
        CHECK(saves == 2);
    });
}

TEST_CASE("a state that cannot be saved fails the call that changed it",
          "[O2][rt][actor_options]") {
    in_sim(4, 1, [](sim_cluster&) -> task<void> {
        auto u = co_await actor<unsavable>.with({.restarts = 1})();
        auto asked = failure_of(u.call<&unsavable::add>(1));
        const auto why = co_await asked;
        CHECK(why.text().find("no pen") != std::string::npos);
    });
}

TEST_CASE("a call that was under way fails, those behind it go on", "[O4][rt][actor_options]") {
    in_sim(5, 2, [](sim_cluster& c) -> task<void> {
        auto l = co_await actor<ledger>.with({.restarts = 1})();
        auto slow = l.call<&ledger::note_slowly>(1, 1000);
        const int at = co_await l.call<&ledger::worker>();
        co_await sleep_for(10ms);
        auto argument = remote<&rt_test::later>.with({.cpus = 0})(3, 50);
        auto waits = l.call<&ledger::note>(argument);
        auto behind = l.call<&ledger::note>(4);
        c.kill(at);
        auto asked = failure_of(slow);
        const auto why = co_await asked;
        CHECK(why.code() == errc::worker_lost);
        CHECK(why.text().find("had started") != std::string::npos);
        (void)co_await waits;
        const auto seen = co_await behind;
        CHECK(seen == std::vector<int>{3, 4});
    });
}

TEST_CASE("a call that was under way is sent again as often as .call_retries says",
          "[O5][rt][actor_options]") {
    in_sim(6, 2, [](sim_cluster& c) -> task<void> {
        auto l = co_await actor<ledger>.with({.restarts = -1, .call_retries = 1})();
        auto slow = l.call<&ledger::note_slowly>(1, 100);
        auto behind = l.call<&ledger::note_slowly>(2, 100);
        auto killed = kill_worker_of(&c, l);
        co_await killed;
        const int got = co_await slow;
        CHECK(got == 1);
        (void)co_await behind;
        const auto seen = co_await l.call<&ledger::all>();
        CHECK(seen == std::vector<int>{1, 2}); // each once: nothing of the first try was saved
        auto thrice = l.call<&ledger::note_slowly>(3, 100);
        for (int i = 0; i < 2; ++i) {
            auto again = kill_worker_of(&c, l);
            co_await again;
            co_await sleep_for(30ms);
        }
        auto asked = failure_of(thrice);
        const auto why = co_await asked;
        CHECK(why.code() == errc::worker_lost);
    });
}

bool has_memory = false; ///< the workers share it with their driver

TEST_CASE("what a lost worker had not begun goes on, if it shares memory with its driver",
          "[O4][rt][actor_options]") {
    for (const bool shares : {true, false}) {
        has_memory = shares;
        in_sim(
            7, 2,
            [](sim_cluster& c) -> task<void> {
                auto l = co_await actor<ledger>.with({.restarts = 1})();
                const int at = co_await l.call<&ledger::worker>();
                auto sent = l.call<&ledger::note>(1);
                c.kill(at);
                auto asked = as_result(sent);
                const auto outcome = co_await asked;
                CHECK(outcome.has_value() == has_memory);
                if (!outcome)
                    CHECK(outcome.error().text().find("may have run") != std::string::npos);
            },
            1, shares);
    }
}

TEST_CASE("an actor that cannot be made again is lost, and says why", "[O1][rt][actor_options]") {
    in_sim(8, 2, [](sim_cluster& c) -> task<void> {
        auto p = co_await actor<plain>.with({.restarts = 5})(1);
        auto killed = kill_worker_of(&c, p);
        co_await killed;
        plain::is_broken = true;
        auto asked = failure_of(p.call<&plain::add>(1));
        const auto why = co_await asked;
        plain::is_broken = false;
        CHECK(why.text().find("could not be made again") != std::string::npos);
        CHECK(why.text().find("one too many") != std::string::npos);
        CHECK(c.actors() == 0);
    });
}

// ---- an actor that a worker makes ---------------------------------------------------------------

int maker_at = -1, made_at = -1;
bool go_on = false;
int apart = 0; ///< times that the maker and its actor were at different workers

task<std::vector<int>> make_and_use() { // the actor goes to the other worker
    auto l = co_await actor<ledger>.with({.restarts = 1})();
    (void)co_await l.call<&ledger::note>(1);
    made_at = co_await l.call<&ledger::worker>();
    maker_at = static_cast<int>(rt::runtime::current().name().pid / 100) - 1;
    while (!go_on) co_await sleep_for(5ms);
    (void)co_await l.call<&ledger::note>(2);
    co_return co_await l.call<&ledger::all>();
}

TEST_CASE("an actor that a worker made is made again, too", "[O1][rt][actor_options]") {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        in_sim(seed, 2, [](sim_cluster& c) -> task<void> {
            maker_at = made_at = -1;
            go_on = false;
            auto work = remote<&make_and_use>();
            while (maker_at < 0) co_await sleep_for(5ms);
            const bool is_apart = maker_at != made_at;
            apart += is_apart ? 1 : 0;
            if (is_apart) c.kill(made_at);
            go_on = true;
            const auto seen = co_await work;
            CHECK(seen == std::vector<int>{1, 2});
        });
    }
    CHECK(apart > 0);
}

TEST_CASE("who makes an actor that is made again goes, and so does the actor",
          "[rt][actor_options]") {
    in_sim(9, 2, [](sim_cluster& c) -> task<void> {
        ref<int> last;
        {
            auto p = co_await actor<plain>.with({.restarts = -1})(1);
            auto killed = kill_worker_of(&c, p);
            co_await killed;
            last = p.call<&plain::add>(1);
        }
        const int got = co_await last; // the line keeps it until then
        CHECK(got == 2);
        co_await sleep_for(50ms);
        CHECK(c.actors() == 0);
    });
}

// ---- bounds -------------------------------------------------------------------------------------

TEST_CASE("one call more than .max_pending fails at once", "[O9][rt][actor_options]") {
    in_sim(10, 1, [](sim_cluster&) -> task<void> {
        auto l = co_await actor<ledger>.with({.max_pending = 2})();
        auto a = l.call<&ledger::note_slowly>(1, 20);
        auto copy = l;
        auto b = copy.call<&ledger::note_slowly>(2, 20);
        auto one_more = l.call<&ledger::note>(3);
        REQUIRE(one_more.ready());
        auto asked = failure_of(one_more);
        const auto why = co_await asked;
        CHECK(why.code() == errc::exhausted);
        (void)co_await a;
        (void)co_await b;
        const auto seen = co_await l.call<&ledger::note>(4);
        CHECK(seen == std::vector<int>{1, 2, 4});
    });
}

task<int> flood(actor_handle<ledger> l) {
    std::vector<ref<int>> all;
    for (int i = 0; i < 5; ++i) all.push_back(l.call<&ledger::note_slowly>(i, 10));
    int refused = 0;
    for (auto& r : all) {
        auto asked = as_result(r);
        const auto outcome = co_await asked;
        refused += !outcome && outcome.error().code() == errc::exhausted ? 1 : 0;
    }
    co_return refused;
}

TEST_CASE(".max_pending goes along with the handle, for each process", "[O9][rt][actor_options]") {
    in_sim(11, 2, [](sim_cluster&) -> task<void> {
        auto l = co_await actor<ledger>.with({.max_pending = 3})();
        auto a = remote<&flood>(l), b = remote<&flood>(l);
        const int refused_a = co_await a, refused_b = co_await b;
        CHECK(refused_a == 2);
        CHECK(refused_b == 2);
    });
}

struct busy {
    int now = 0, most = 0;
    std::vector<int> order;
    task<int> work(int i) {
        order.push_back(i);
        most = std::max(most, ++now);
        co_await sleep_for(10ms);
        --now;
        co_return i;
    }
    void mark(int i) { order.push_back(i); }
    int peak() const { return most; }
    std::vector<int> in_order() const { return order; }
};

TEST_CASE("no more coroutine methods than .max_concurrency are under way, and they start in order",
          "[O10][rt][actor_options]") {
    in_sim(12, 1, [](sim_cluster&) -> task<void> {
        auto b = co_await actor<busy>.with({.max_concurrency = 2})();
        std::vector<ref<int>> all;
        std::vector<int> expected;
        for (int i = 0; i < 7; ++i) {
            all.push_back(b.call<&busy::work>(i));
            expected.push_back(i);
        }
        b.call<&busy::mark>(100); // behind those that have not started
        expected.push_back(100);
        auto never = b.call<&busy::mark>(101);
        never.cancel();
        auto unmarked = failure_of(never);
        const auto told = co_await unmarked;
        CHECK(told.code() == errc::cancelled);
        CHECK(told.text().find("did not run") != std::string::npos);
        all[3].cancel();
        std::erase(expected, 3);
        for (int i = 0; i < 7; ++i) {
            if (i == 3) {
                auto asked = failure_of(all[3]);
                const auto why = co_await asked;
                CHECK(why.code() == errc::cancelled);
                CHECK(why.text().find("did not run") != std::string::npos);
                continue;
            }
            const int got = co_await all[static_cast<std::size_t>(i)];
            CHECK(got == i);
        }
        const int most = co_await b.call<&busy::peak>();
        CHECK(most == 2);
        const auto order = co_await b.call<&busy::in_order>();
        CHECK(order == expected);
    });
}

TEST_CASE("a call that waits for its turn has not started", "[O10][rt][actor_options]") {
    in_sim(
        13, 1,
        [](sim_cluster& c) -> task<void> {
            auto b = co_await actor<busy>.with({.max_concurrency = 1})();
            auto first = b.call<&busy::work>(1), second = b.call<&busy::work>(2);
            co_await sleep_for(5ms);
            c.kill(0);
            auto asked = failure_of(first);
            const auto had = co_await asked;
            CHECK(had.text().find("had started") != std::string::npos);
            auto next = failure_of(second);
            const auto not_yet = co_await next;
            CHECK(not_yet.text().find("may have run") != std::string::npos);
        },
        1, false);
}

} // namespace actor_options_test
