// SPDX-License-Identifier: Apache-2.0
// The door between threads and a loop, in the simulated world: there the loop's own thread plays
// all others, and what happens when is certain. Threads that block are in session_test.cpp.
#include <tests/apps/apps.hpp>
#include <tests/support/sim_cluster.hpp>

#include <skein/core/log.hpp>
#include <skein/program/session.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace pending_test {

/// Can be moved, not copied.
struct only_moved {
    int n = 0;
    only_moved() = default;
    explicit only_moved(int v) : n(v) {}
    only_moved(only_moved&&) = default;
    only_moved& operator=(only_moved&&) = default;
};
inline only_moved give(int n) { return only_moved(n); }

} // namespace pending_test

template <>
struct skein::wire::codec<pending_test::only_moved> {
    static constexpr const char* schema = "only_moved";
    static void encode(writer& to, const pending_test::only_moved& v) { to.fixed(v.n); }
    static skein::result<void> decode(reader& from, pending_test::only_moved& into) {
        if (!from.fixed(into.n)) return from.status();
        return {};
    }
};

namespace pending_test {

using namespace skein;
using namespace std::chrono_literals;
using program::detail::session_door;
using rt_test::counter;
using rt_test::journal;
using rt_test::later;
using rt_test::twice;
using test::in_sim;
using test::sim_cluster;

/// What a session is made of, without its thread.
struct door_of {
    std::shared_ptr<session_door> door;
    explicit door_of(sim_cluster& c) : door(std::make_shared<session_door>(c.loop(), c.driver())) {}
    ~door_of() { door->shut(); }

    template <auto F, class... A>
    auto submit(A&&... args) {
        return program::detail::submit_from_thread<F, void>(door, {}, nullptr,
                                                            std::forward<A>(args)...);
    }
    template <class T>
    shared_actor<T> share(const actor_handle<T>& handle) {
        return shared_actor<T>(door->adopt(handle.queue()));
    }
};

template <class T>
task<void> until_ready(const pending<T>* p) {
    while (!p->ready()) co_await sleep_for(1ms);
}

TEST_CASE("a call of a thread has the value or the error that a ref has", "[T2][T3][rt][pending]") {
    in_sim(301, 2, [](sim_cluster& c) -> task<void> {
        door_of on(c);
        auto p = on.submit<&twice>(21);
        auto bad = on.submit<&rt_test::fail_with_text>("row 7");
        auto coded = on.submit<&rt_test::fail_with_code>(int(errc::disk_full));
        CHECK_FALSE(p.ready());
        co_await until_ready(&p);
        CHECK(p.get() == 42);
        CHECK(p.get() == 42);
        co_await until_ready(&bad);
        co_await until_ready(&coded);
        try {
            (void)bad.get();
            FAIL("no error");
        } catch (const remote_error& e) {
            CHECK(e.code() == errc::remote_exception);
            CHECK(e.remote_type() == "std::out_of_range");
            CHECK(e.remote_text() == "row 7");
        }
        try {
            (void)coded.get();
            FAIL("no error");
        } catch (const remote_error& e) {
            CHECK(e.code() == errc::disk_full);
            CHECK(e.hint() == "a hint");
        }
    });
}

TEST_CASE("get waits nowhere on the loop's own thread", "[T11][rt][pending]") {
    in_sim(302, 1, [](sim_cluster& c) -> task<void> {
        door_of on(c);
        auto p = on.submit<&twice>(21);
        for (int what = 0; what < 3; ++what) {
            try {
                if (what == 0) (void)p.get();
                if (what == 1) (void)p.wait_for(1s);
                if (what == 2) (void)p.get_for(1s);
                FAIL("not refused");
            } catch (const error& e) {
                CHECK(e.code() == errc::invalid_argument);
                CHECK(rt_test::contains(e.what(), "would wait for itself"));
            }
        }
        co_await until_ready(&p);
        CHECK(p.get() == 42); // nothing to wait for
        CHECK(p.wait_for(1s));
    });
}

TEST_CASE("calls of one thread through one handle keep their order", "[T7][rt][pending]") {
    in_sim(303, 2, [](sim_cluster& c) -> task<void> {
        door_of on(c);
        auto made = co_await actor<journal>();
        const auto j = on.share(made);
        auto slow = on.submit<&later>(0, 50);
        std::vector<int> wanted;
        for (int i = 0; i < 40; ++i) {
            if (i == 20) {
                j.call<&journal::note>(slow); // waits for its argument, and all others behind it
                wanted.push_back(0);
            }
            const auto copy = j;
            copy.call<&journal::note>(i);
            wanted.push_back(i);
        }
        auto all = j.call<&journal::all>();
        co_await until_ready(&all);
        CHECK(all.get() == wanted);
    });
}

TEST_CASE("a pending is an argument before and after its outcome", "[T8][rt][pending]") {
    in_sim(304, 2, [](sim_cluster& c) -> task<void> {
        door_of on(c);
        auto a = on.submit<&twice>(5);
        auto b = on.submit<&twice>(a); // a has not even been sent
        co_await until_ready(&b);
        CHECK(b.get() == 20);
        CHECK(a.get() == 10); // and is still there
        auto d = on.submit<&twice>(b);
        co_await until_ready(&d);
        CHECK(d.get() == 40);

        auto bad = on.submit<&rt_test::fail_with_text>("no row");
        for (int round = 0; round < 2; ++round) {
            auto next = on.submit<&twice>(bad);
            co_await until_ready(&next);
            try {
                (void)next.get();
                FAIL("no error");
            } catch (const error& e) {
                CHECK(rt_test::contains(e.what(), "did not run: its argument failed"));
                CHECK(rt_test::contains(e.what(), "no row"));
            }
        }
    });
}

TEST_CASE("a pending or an actor of another session is refused as an argument",
          "[T8][rt][pending]") {
    in_sim(305, 1, [](sim_cluster& c) -> task<void> {
        door_of one(c), other(c);
        auto a = one.submit<&twice>(5);
        auto b = other.submit<&twice>(a);
        co_await until_ready(&b);
        CHECK_THROWS_WITH(b.get(), Catch::Matchers::ContainsSubstring(
                                       "twice(int) did not run: a pending of another session"));
        auto made = co_await actor<counter>(1);
        const auto theirs = one.share(made);
        auto d = other.submit<&rt_test::add_through>(theirs, 1);
        co_await until_ready(&d);
        CHECK_THROWS_WITH(d.get(), Catch::Matchers::ContainsSubstring("an actor of another"));
        CHECK(c.driver().pending() == 0);
    });
}

TEST_CASE("a value goes to who takes it last", "[T3][rt][pending]") {
    in_sim(306, 1, [](sim_cluster& c) -> task<void> {
        door_of on(c);
        using text = std::vector<std::string>;
        auto p = on.submit<&rt_test::join>(text{std::string(100, 'a'), "b"}, "-");
        co_await until_ready(&p);
        const auto* where = p.shared()->value->data();
        auto copy = p;
        const auto first = std::move(p).get(); // another is left
        CHECK(first.data() != where);
        CHECK_FALSE(p);
        const auto last = std::move(copy).get();
        CHECK(last.data() == where);
        CHECK(first == last);

        auto m = on.submit<&give>(7);
        co_await until_ready(&m);
        CHECK(std::move(m).get().n == 7);
    });
}

TEST_CASE("cancel ends a call, not a second time", "[T6][rt][pending]") {
    in_sim(307, 1, [](sim_cluster& c) -> task<void> {
        door_of on(c);
        auto p = on.submit<&later>(1, 3'600'000);
        p.cancel(); // ahead of the loop: behind its own submission
        co_await until_ready(&p);
        CHECK_THROWS_WITH(p.get(), Catch::Matchers::ContainsSubstring("cancelled"));
        p.cancel();
        auto q = on.submit<&later>(1, 3'600'000);
        co_await sleep_for(1s);
        CHECK(c.running() == 1);
        q.cancel();
        co_await until_ready(&q);
        CHECK(c.running() == 0);
    });
}

TEST_CASE("a dropped pending leaves its call alone; a failure nobody can see is logged",
          "[T5][rt][pending]") {
    struct log_lines {
        std::vector<std::string> seen;
        log_lines() {
            logging::set_sink([this](const logging::record& r) {
                if (r.component == "rt" && r.severity == logging::level::warn)
                    seen.emplace_back(r.text);
            });
        }
        ~log_lines() { logging::set_sink(nullptr); }
    } lines;
    in_sim(308, 1, [&lines](sim_cluster& c) -> task<void> {
        door_of on(c);
        auto made = co_await actor<counter>(1);
        const auto shared = on.share(made);
        shared.call<&counter::add>(5);
        auto held = shared.call<&counter::fail>("held");
        co_await until_ready(&held);
        CHECK(lines.seen.empty());
        shared.call<&counter::fail>("nobody asked");
        auto n = shared.call<&counter::get>();
        co_await until_ready(&n);
        CHECK(n.get() == 6);
        REQUIRE(lines.seen.size() == 1);
        CHECK(rt_test::contains(lines.seen[0], "nobody asked"));
    });
}

TEST_CASE("an actor lives until its last shared handle is gone, and ends at once by kill",
          "[T9][rt][pending]") {
    in_sim(309, 1, [](sim_cluster& c) -> task<void> {
        door_of on(c);
        auto shared = on.share(co_await actor<counter>(1));
        auto second = shared;
        shared = {};
        co_await sleep_for(1s);
        CHECK(c.actors() == 1);
        auto argument = on.submit<&rt_test::add_through>(second, 4);
        second = {}; // the call keeps it
        co_await until_ready(&argument);
        CHECK(argument.get() == 5);
        co_await sleep_for(1s);
        CHECK(c.actors() == 0);

        auto other = on.share(co_await actor<counter>(1));
        kill(other);
        auto late = other.call<&counter::get>();
        co_await until_ready(&late);
        CHECK_THROWS_WITH(late.get(), Catch::Matchers::ContainsSubstring("was killed"));
    });
}

TEST_CASE("behind a closed door calls fail with closed, and what is given back is nobody's",
          "[T12][rt][pending]") {
    pending<int> waiting, late;
    shared_actor<counter> handle;
    in_sim(310, 1, [&](sim_cluster& c) -> task<void> {
        door_of on(c);
        handle = on.share(co_await actor<counter>(1));
        waiting = on.submit<&later>(1, 3'600'000);
        co_await sleep_for(1s);
        on.door->close();
        late = on.submit<&twice>(1);
        CHECK(late.ready()); // it has not waited for the loop
        auto copy = handle;
        copy = {};
        co_await sleep_for(1s);
        CHECK(c.actors() == 1);
        on.door->shut();
        co_await sleep_for(1s);
        CHECK(c.actors() == 0);
    });
    for (auto* p : {&waiting, &late}) {
        try {
            (void)p->get();
            FAIL("no error");
        } catch (const error& e) {
            CHECK(e.code() == errc::closed);
        }
        p->cancel();
    }
    auto later_still = handle.call<&counter::get>();
    CHECK_THROWS_WITH(later_still.get(), Catch::Matchers::ContainsSubstring("closed"));
    kill(handle);
}

TEST_CASE("a call that is never taken in ends with closed", "[T12][rt][pending]") {
    auto state = std::make_shared<program::detail::pending_state<int>>(nullptr, nullptr);
    { const program::detail::pending_writer<int> forgetful(state); }
    const pending<int> p(state);
    CHECK_THROWS_WITH(p.get(), Catch::Matchers::ContainsSubstring("a call did not run"));
}

} // namespace pending_test
