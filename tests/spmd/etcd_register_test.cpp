// SPDX-License-Identifier: Apache-2.0
// A register over an etcd in memory: what lost answers, outages and other people's keys come to.
// With a real etcd: tests/interop/etcd_test.py.
#include <skein/core/cancel.hpp>
#include <skein/core/race.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/timeout.hpp>
#include <skein/spmd/etcd_register.hpp>
#include <support/fake_etcd.hpp>
#include <support/log_lines.hpp>
#include <support/manual_loop.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace etcd_register_test {

using namespace skein;
using namespace std::chrono_literals;
using skein::spmd::coordinator_place;
using skein::spmd::etcd_options;
using skein::spmd::etcd_register;
using skein::test::fake_etcd;
using skein::test::fake_etcd_transport;
using skein::test::log_lines;
using skein_test::manual_loop;

namespace {

const std::string view_key = "/skein/job/view", place_key = "/skein/job/coordinator";

struct world {
    std::shared_ptr<fake_etcd> etcd = std::make_shared<fake_etcd>();
    manual_loop loop;

    static etcd_options options() {
        etcd_options out;
        out.endpoints = {"http://a:2379"};
        out.job = "job";
        return out;
    }
    std::unique_ptr<etcd_register> connect(etcd_options how = options()) {
        return std::make_unique<etcd_register>(std::move(how),
                                               std::make_unique<fake_etcd_transport>(etcd));
    }
    /// Runs f(register) to its end, with a register of its own.
    template <class F>
    void run(F f, etcd_options how = options()) {
        loop.run(with_register(this, std::move(f), std::move(how)));
    }
    template <class F>
    static task<void> with_register(world* self, F f, etcd_options how) {
        auto views = self->connect(std::move(how));
        auto work = f(*views);
        co_await work;
    }
};

spmd::view made(std::uint64_t generation, std::string why = "") {
    spmd::view v;
    v.generation = generation;
    v.author = 7;
    v.members.push_back({generation, "a", 7, 70});
    v.why = std::move(why);
    return v;
}

const coordinator_place nobody{}, first{1, "a"};

/// What awaiting it throws.
template <class T>
task<error> failure_of(task<T> work) {
    try {
        (void)co_await work;
    } catch (const error& e) {
        co_return e;
    }
    co_return error(errc::internal, "nothing was thrown");
}

} // namespace

TEST_CASE("views follow each other, and who is late is told what is there") {
    world w;
    w.run([&](etcd_register& views) -> task<void> {
        auto reading = views.read();
        const auto reading_came = co_await reading;
        CHECK(reading_came.generation == 0);
        auto swapping = views.compare_and_swap(0, made(1));
        auto came = co_await swapping;
        CHECK(came.swapped);
        CHECK(came.now == made(1));
        auto late = views.compare_and_swap(0, made(1, "another"));
        came = co_await late;
        CHECK_FALSE(came.swapped);
        CHECK(came.now == made(1));
        auto second = views.compare_and_swap(1, made(2));
        const auto second_came = co_await second;
        CHECK(second_came.swapped);
        auto again = views.read();
        const auto again_came = co_await again;
        CHECK(again_came == made(2));
    });
}

TEST_CASE("a view that does not follow is refused before etcd is asked") {
    world w;
    w.run([&](etcd_register& views) -> task<void> {
        auto failing = failure_of(views.compare_and_swap(1, made(3)));
        const auto failing_came = co_await failing;
        CHECK(failing_came.code() == errc::invalid_argument);
    });
    CHECK(w.etcd->asked.empty());
}

TEST_CASE("a swap whose answer is lost, or cut in half, counts once") {
    for (const auto& fault : {fake_etcd::lost_answer(), fake_etcd::half_answer()}) {
        world w;
        const log_lines lines("etcd");
        w.etcd->script = {fake_etcd::fine(), fault}; // the read, then the swap
        w.run([&](etcd_register& views) -> task<void> {
            auto swapping = views.compare_and_swap(0, made(1));
            const auto came = co_await swapping;
            CHECK(came.swapped);
            CHECK(came.now == made(1));
        });
        CHECK(w.etcd->changes.size() == 1);
        CHECK(w.etcd->asked ==
              std::vector<std::string>({"/v3/kv/range", "/v3/kv/txn", "/v3/kv/txn"}));
    }
}

TEST_CASE("a swap whose answer is lost is known to be its author's when others have followed") {
    world w;
    auto other = w.connect();
    w.etcd->script = {fake_etcd::fine(), fake_etcd::lost_answer()};
    w.run([&](etcd_register& views) -> task<void> {
        scope others;
        others.spawn([](fake_etcd* etcd, etcd_register* theirs) -> task<void> {
            while (etcd->changes.empty()) {
                auto a_moment = sleep_for(1ms);
                co_await a_moment;
            }
            auto swapping = theirs->compare_and_swap(1, made(2));
            const auto swapping_came = co_await swapping;
            CHECK(swapping_came.swapped);
        }(w.etcd.get(), other.get()));
        auto swapping = views.compare_and_swap(0, made(1));
        const auto came = co_await swapping;
        CHECK(came.swapped);
        CHECK(came.now == made(1));
        auto joined = others.join();
        co_await joined;
        auto reading = views.read();
        const auto reading_came = co_await reading;
        CHECK(reading_came == made(2));
    });
    CHECK(w.etcd->changes.size() == 2);
}

TEST_CASE("a swap that another one came before, while the answer was lost, was not made") {
    world w;
    const auto theirs = spmd::detail::write_view({made(1, "theirs"), "a nonce of theirs", {}});
    w.etcd->script = {fake_etcd::fine(), [&](const auto&, const auto&) {
                          w.etcd->put(view_key, theirs);
                          return fake_etcd::away("timed out");
                      }};
    w.run([&](etcd_register& views) -> task<void> {
        auto swapping = views.compare_and_swap(0, made(1));
        const auto came = co_await swapping;
        CHECK_FALSE(came.swapped);
        CHECK(came.now == made(1, "theirs"));
    });
}

TEST_CASE("an absent etcd is waited for, and that is logged once, and once when it is back") {
    world w;
    const log_lines lines("etcd", logging::level::info);
    for (int i = 0; i < 40; ++i) w.etcd->script.push_back(fake_etcd::refused());
    w.run([&](etcd_register& views) -> task<void> {
        auto reading = views.read();
        const auto reading_came = co_await reading;
        CHECK(reading_came.generation == 0);
    });
    INFO(lines.text());
    CHECK(lines.seen.size() == 2);
    CHECK(lines.count("does not answer") == 1);
    CHECK(lines.count("Connection refused") == 1);
    CHECK(lines.count("answers again") == 1);
    // 50 ms, doubled to 3.2 s, less up to a half of it
    CHECK(w.loop.elapsed() > 40s);
    CHECK(w.loop.elapsed() < 120s);
}

TEST_CASE("a call that waits for etcd can be cancelled") {
    world w;
    const log_lines lines("etcd");
    for (int i = 0; i < 1000; ++i) w.etcd->script.push_back(fake_etcd::refused());
    w.run([&](etcd_register& views) -> task<void> {
        auto timed = failure_of(with_timeout(views.compare_and_swap(0, made(1)), 5s));
        const auto timed_came = co_await timed;
        CHECK(timed_came.code() == errc::timeout);
    });
    CHECK(w.loop.elapsed() < 6s);
}

TEST_CASE("another member is asked where one does not answer") {
    world w;
    const log_lines lines("etcd");
    auto how = world::options();
    how.endpoints = {"http://a:2379", "b:2379/"};
    w.etcd->script = {fake_etcd::refused()};
    w.run(
        [&](etcd_register& views) -> task<void> {
            auto reading = views.read();
            (void)co_await reading;
        },
        how);
    CHECK(lines.seen.empty()); // nobody waited
    CHECK(w.loop.elapsed() == 2ms);
}

TEST_CASE("a watch gives the newest view, at once or when it comes") {
    world w;
    auto other = w.connect();
    w.run([&](etcd_register& views) -> task<void> {
        auto swapping = other->compare_and_swap(0, made(1));
        (void)co_await swapping;
        auto there = views.watch(0);
        const auto there_came = co_await there;
        CHECK(there_came == made(1));
        scope others;
        others.spawn([](etcd_register* theirs) -> task<void> {
            auto a_while = sleep_for(10min);
            co_await a_while;
            auto second = theirs->compare_and_swap(1, made(2));
            (void)co_await second;
        }(other.get()));
        auto coming = views.watch(1);
        const auto coming_came = co_await coming;
        CHECK(coming_came == made(2));
        auto joined = others.join();
        co_await joined;
    });
    CHECK(w.loop.elapsed() - 10min < 1s);
}

TEST_CASE("a watch whose revision is compacted reads the key again") {
    world w;
    auto other = w.connect();
    w.run([&](etcd_register& views) -> task<void> {
        // Swapped and compacted between the read and the watch.
        w.etcd->script = {[&](const auto& request, const auto& serve) {
            auto before = serve(request);
            w.etcd->put(view_key, spmd::detail::write_view({made(1), "n", {}}));
            w.etcd->compacted = w.etcd->revision + 5;
            w.etcd->revision += 10;
            return before;
        }};
        auto watching = views.watch(0);
        const auto watching_came = co_await watching;
        CHECK(watching_came == made(1));
    });
    CHECK(w.loop.elapsed() < 1s);
}

TEST_CASE("where a watch ends at once the key is read from time to time") {
    world w;
    auto other = w.connect();
    w.etcd->ends_watches = true;
    w.run([&](etcd_register& views) -> task<void> {
        scope others;
        others.spawn([](etcd_register* theirs) -> task<void> {
            auto a_minute = sleep_for(60s);
            co_await a_minute;
            auto swapping = theirs->compare_and_swap(0, made(1));
            (void)co_await swapping;
        }(other.get()));
        auto watching = views.watch(0);
        const auto watching_came = co_await watching;
        CHECK(watching_came == made(1));
        auto joined = others.join();
        co_await joined;
    });
    CHECK(w.loop.elapsed() - 60s < 4s);
    CHECK(w.etcd->asked.size() < 120); // it does not ask all the time
}

// clnv/etcd-rs #79: a stream at the smaller side of a partition says nothing
TEST_CASE("a watch at a member that is cut off, and says nothing, begins anew") {
    world w;
    auto other = w.connect();
    w.etcd->hides_changes = true;
    w.run([&](etcd_register& views) -> task<void> {
        scope others;
        others.spawn([](etcd_register* theirs) -> task<void> {
            auto a_minute = sleep_for(60s);
            co_await a_minute;
            auto swapping = theirs->compare_and_swap(0, made(1));
            (void)co_await swapping;
        }(other.get()));
        auto watching = views.watch(0);
        const auto watching_came = co_await watching;
        CHECK(watching_came == made(1));
        auto joined = others.join();
        co_await joined;
    });
    CHECK(w.loop.elapsed() - 60s <= 6s);
    CHECK(w.etcd->asked.size() < 60);
}

TEST_CASE("a cancelled watch leaves none open") {
    world w;
    w.run([&](etcd_register& views) -> task<void> {
        auto timed = failure_of(with_timeout(views.watch(0), 5s));
        const auto timed_came = co_await timed;
        CHECK(timed_came.code() == errc::timeout);
        CHECK(w.etcd->watches == 0);
    });
}

TEST_CASE("an etcd that lost its data is spoken of") {
    world w;
    const log_lines lines("etcd");
    w.run([&](etcd_register& views) -> task<void> {
        auto swapping = views.compare_and_swap(0, made(1));
        (void)co_await swapping;
        w.etcd->put(view_key, std::nullopt);
        for (int i = 0; i < 2; ++i) {
            auto reading = views.read();
            const auto reading_came = co_await reading;
            CHECK(reading_came.generation == 0);
        }
    });
    INFO(lines.text());
    CHECK(lines.count("holds an older view") == 1);
    CHECK(lines.count("generation=0 before=1") == 1);
}

TEST_CASE("the first to claim is the coordinator until it resigns") {
    world w;
    auto other = w.connect();
    w.run([&](etcd_register& views) -> task<void> {
        const coordinator_place me{1, "tcp:a:1"}, them{2, "tcp:b:1"};
        auto claiming = views.claim(me);
        const auto claiming_came = co_await claiming;
        CHECK(claiming_came == me);
        auto late = other->claim(them);
        const auto late_came = co_await late;
        CHECK(late_came == me);
        auto again = views.claim(me);
        const auto again_came = co_await again;
        CHECK(again_came == me);
        auto for_long = sleep_for(10min); // kept alive
        co_await for_long;
        scope others;
        coordinator_place seen{9, ""};
        others.spawn([](etcd_register* theirs, coordinator_place known,
                        coordinator_place* to) -> task<void> {
            auto watching = theirs->watch_coordinator(std::move(known));
            *to = co_await watching;
        }(other.get(), me, &seen));
        auto a_moment = sleep_for(50ms);
        co_await a_moment;
        auto resigning = views.resign();
        co_await resigning;
        auto joined = others.join();
        co_await joined;
        CHECK(seen == nobody);
        auto then = other->claim(them);
        const auto then_came = co_await then;
        CHECK(then_came == them);
        auto watching = views.watch_coordinator({});
        const auto watching_came = co_await watching;
        CHECK(watching_came == them);
        other.reset();
    });
    CHECK_FALSE(w.etcd->keys.contains(place_key)); // the end of a register gives its place back
    CHECK(w.etcd->leases.empty());
}

TEST_CASE("claims whose answers are lost come to one lease and one place") {
    for (int lost = 0; lost < 4; ++lost) {
        world w;
        const log_lines lines("etcd");
        for (int i = 0; i < lost; ++i) w.etcd->script.push_back(fake_etcd::fine());
        w.etcd->script.push_back(fake_etcd::lost_answer());
        w.run([&](etcd_register& views) -> task<void> {
            auto claiming = views.claim(first);
            const auto claiming_came = co_await claiming;
            CHECK(claiming_came == first);
            CHECK(w.etcd->leases.size() == 1);
            auto for_long = sleep_for(60s);
            co_await for_long;
            CHECK(w.etcd->keys.contains(place_key));
        });
    }
}

TEST_CASE("a coordinator that did not reach etcd for too long loses its place, and is told") {
    world w;
    const log_lines lines("etcd");
    w.run([&](etcd_register& views) -> task<void> {
        const coordinator_place me{1, "a"};
        auto claiming = views.claim(me);
        (void)co_await claiming;
        for (int i = 0; i < 30; ++i) w.etcd->script.push_back(fake_etcd::refused());
        auto watching = views.watch_coordinator(me);
        const auto watching_came = co_await watching;
        CHECK(watching_came == nobody);
        while (lines.count("lease is lost") == 0) { // the next one that would have kept it
            auto a_moment = sleep_for(100ms);
            co_await a_moment;
        }
        auto again = views.claim(me);
        const auto again_came = co_await again;
        CHECK(again_came == me);
    });
}

// pytorch/pytorch #194870: any error but two ended the thread that kept the lease
TEST_CASE("a keep-alive that fails, in whatever way, is made again while the lease lasts") {
    world w;
    const log_lines lines("etcd");
    w.run([&](etcd_register& views) -> task<void> {
        auto claiming = views.claim(first);
        (void)co_await claiming;
        const auto unavailable =
            fake_etcd::says(503, R"({"message":"etcdserver: request timed out","code":14})");
        for (int i = 0; i < 20; ++i) {
            w.etcd->script = {fake_etcd::refused(), unavailable, fake_etcd::half_answer(),
                              fake_etcd::lost_answer(), fake_etcd::says(500, "")};
            auto a_while = sleep_for(10s);
            co_await a_while;
            CHECK(w.etcd->script.empty());
            CHECK(w.etcd->keys.contains(place_key));
        }
    });
    CHECK(lines.count("lease is lost") == 0);
}

// dims/etcd3-gateway #1: KeyError: 'TTL'
TEST_CASE("a keep-alive that is answered without a TTL is the end of the lease, and is told") {
    world w;
    const log_lines lines("etcd");
    w.run([&](etcd_register& views) -> task<void> {
        auto claiming = views.claim(first);
        (void)co_await claiming;
        w.etcd->leases.clear(); // the key is still there: etcd revokes in turns
        while (lines.count("lease is lost") == 0) {
            auto a_moment = sleep_for(100ms);
            co_await a_moment;
        }
        auto again = views.claim(first);
        const auto again_came = co_await again;
        CHECK(again_came == first);
        CHECK(w.etcd->keys.at(place_key).lease == w.etcd->leases.begin()->first);
    });
}

// etcd-io/etcd #10811: two clients held one lock, and both wrote
TEST_CASE("who slept behind its lease and is no coordinator any more cannot swap") {
    world w;
    const log_lines lines("etcd");
    auto other = w.connect();
    w.run([&](etcd_register& views) -> task<void> {
        auto claiming = views.claim(first);
        (void)co_await claiming;
        auto reading = views.read();
        const auto seen = co_await reading;
        w.loop.spend(60s); // it hears of nothing
        const coordinator_place second{2, "b"};
        auto taking = other->claim(second);
        const auto taking_came = co_await taking;
        CHECK(taking_came == second);
        auto theirs = other->compare_and_swap(seen.generation, made(seen.generation + 1, "theirs"));
        const auto theirs_came = co_await theirs;
        CHECK(theirs_came.swapped);
        auto late = views.compare_and_swap(seen.generation, made(seen.generation + 1, "late"));
        const auto came = co_await late;
        CHECK_FALSE(came.swapped);
        CHECK(came.now.why == "theirs");
        other.reset();
    });
}

TEST_CASE("a supervisor that was started again takes its own place over") {
    world w;
    w.run([&](etcd_register& views) -> task<void> {
        w.etcd->leases[77] = {5, loop::current().now() + 5s};
        w.etcd->put(place_key, spmd::detail::write_place({1, "old"}), 77);
        const coordinator_place renewed{1, "new"};
        auto claiming = views.claim(renewed);
        const auto claiming_came = co_await claiming;
        CHECK(claiming_came == renewed);
        auto later = sleep_for(20s);
        co_await later;
        auto watching = views.watch_coordinator({});
        const auto watching_came = co_await watching;
        CHECK(watching_came == renewed);
    });
}

TEST_CASE("a cancelled claim lets the place go") {
    world w;
    w.run([&](etcd_register& views) -> task<void> {
        w.etcd->script = {fake_etcd::fine(), fake_etcd::fine(), fake_etcd::lost_answer()};
        for (int i = 0; i < 12; ++i) w.etcd->script.push_back(fake_etcd::refused());
        auto timed = failure_of(with_timeout(views.claim(first), 500ms));
        const auto timed_came = co_await timed;
        CHECK(timed_came.code() == errc::timeout);
        CHECK(w.etcd->keys.contains(place_key));
        auto gone = views.watch_coordinator(first);
        const auto gone_came = co_await gone;
        CHECK(gone_came == nobody);
        auto again = views.claim(first);
        const auto again_came = co_await again;
        CHECK(again_came == first);
    });
}

TEST_CASE("a register ends while etcd is away") {
    world w;
    const log_lines lines("etcd");
    w.run([&](etcd_register& views) -> task<void> {
        auto claiming = views.claim(first);
        (void)co_await claiming;
        for (int i = 0; i < 1000; ++i) w.etcd->script.push_back(fake_etcd::refused());
        auto resigning = views.resign();
        co_await resigning;
    });
    CHECK(w.loop.elapsed() < 6s); // the length of the lease
}

TEST_CASE("users: a token is asked for, and again when etcd does not know it any more") {
    world w;
    w.etcd->users["skein"] = "secret";
    auto how = world::options();
    how.user = "skein";
    how.password = "secret";
    w.run(
        [&](etcd_register& views) -> task<void> {
            auto reading = views.read();
            (void)co_await reading;
            w.etcd->tokens.clear(); // a restart, or their time is over
            auto swapping = views.compare_and_swap(0, made(1));
            const auto swapping_came = co_await swapping;
            CHECK(swapping_came.swapped);
        },
        how);
}

// etcd-io/etcd #12385: a watch with a token that has expired says "permission denied"
TEST_CASE("users: a watch whose token has expired begins anew with another one") {
    world w;
    w.etcd->users["skein"] = "secret";
    auto how = world::options();
    how.user = "skein";
    how.password = "secret";
    auto other = w.connect(how);
    w.run(
        [&](etcd_register& views) -> task<void> {
            scope others;
            others.spawn([](fake_etcd* etcd, etcd_register* theirs) -> task<void> {
                for (int i = 0; i < 5; ++i) {
                    auto a_minute = sleep_for(60s);
                    co_await a_minute;
                    etcd->tokens.clear();
                }
                auto swapping = theirs->compare_and_swap(0, made(1));
                (void)co_await swapping;
            }(w.etcd.get(), other.get()));
            auto watching = views.watch(0);
            const auto watching_came = co_await watching;
            CHECK(watching_came == made(1));
            auto joined = others.join();
            co_await joined;
        },
        how);
}

// api7/aisix #1136: with signed tokens any change of users ends all of them
TEST_CASE("users: a token that is older than the last change of users is renewed, once for all") {
    world w;
    w.etcd->users["skein"] = "secret";
    auto how = world::options();
    how.user = "skein";
    how.password = "secret";
    w.run(
        [&](etcd_register& views) -> task<void> {
            auto reading = views.read();
            (void)co_await reading;
            w.etcd->script.assign(
                3, fake_etcd::says(
                       400, R"({"message":"etcdserver: revision of auth store is old","code":3})"));
            scope others;
            const auto read_one = [](etcd_register* from) -> task<void> {
                auto again = from->read();
                const auto again_came = co_await again;
                CHECK(again_came.generation == 0);
            };
            for (int i = 0; i < 3; ++i) others.spawn(read_one(&views));
            auto joined = others.join();
            co_await joined;
        },
        how);
    CHECK(std::count(w.etcd->asked.begin(), w.etcd->asked.end(), "/v3/auth/authenticate") == 2);
}

TEST_CASE("users: what is wrong is an error that says what to do") {
    struct one {
        std::string user, password, cert, wanted;
    };
    for (const auto& [user, password, cert, wanted] :
         {one{"", "", "", "give the options user and password: this etcd has users"},
          one{"", "", "/dev/null", "takes no user from a client certificate"},
          one{"skein", "wrong", "", "check the options user and password"}}) {
        world w;
        w.etcd->users["skein"] = "secret";
        auto how = world::options();
        how.user = user;
        how.password = password;
        how.cert = how.key = cert;
        w.run(
            [&](etcd_register& views) -> task<void> {
                auto failing = failure_of(views.read());
                const auto why = co_await failing;
                CHECK(why.code() == errc::permission_denied);
                CHECK(std::string(why.what()).find(wanted) != std::string::npos);
                CHECK(std::string(why.what()).find("a:2379") != std::string::npos);
            },
            how);
    }
}

TEST_CASE("users: an etcd without users is asked without one, one that gets them with one") {
    world w;
    const log_lines lines("etcd");
    auto how = world::options();
    how.user = "skein";
    how.password = "secret";
    w.run(
        [&](etcd_register& views) -> task<void> {
            auto reading = views.read();
            (void)co_await reading;
            CHECK(lines.count("has no users") == 1);
            w.etcd->users["skein"] = "secret";
            auto swapping = views.compare_and_swap(0, made(1));
            const auto swapping_came = co_await swapping;
            CHECK(swapping_came.swapped);
        },
        how);
}

TEST_CASE("mistakes that do not pass are errors") {
    struct one {
        fake_etcd::step step;
        errc code;
        std::string wanted;
    };
    const auto says = fake_etcd::says;
    for (const auto& [step, code, wanted] :
         {one{says(404, "404 page not found\n"), errc::not_supported, "enable-grpc-gateway: true"},
          one{says(403, R"({"error":"e","message":"etcdserver: permission denied","code":7})"),
              errc::permission_denied, "reads and writes /skein/"},
          one{says(200, "<html>welcome</html>"), errc::mismatch, "client URL of etcd"},
          one{says(400, "Client sent an HTTP request to an HTTPS server.\n"), errc::mismatch,
              "https://"},
          one{says(302, ""), errc::mismatch, "HTTP 302"},
          one{[](const auto&, const auto&) {
                  return spmd::detail::etcd_answer{
                      spmd::detail::etcd_trouble::mistake, "self-signed certificate", 0, {}};
              },
              errc::mismatch, "ca, cert and key"}}) {
        world w;
        w.etcd->script = {step};
        w.run([&](etcd_register& views) -> task<void> {
            auto failing = failure_of(views.read());
            const auto why = co_await failing;
            INFO(why.what());
            CHECK(why.code() == code);
            CHECK(std::string(why.what()).find(wanted) != std::string::npos);
        });
    }
}

TEST_CASE("one member's mistake is not the cluster's") {
    world w;
    auto how = world::options();
    how.endpoints = {"http://a:2379", "http://b:2379"};
    w.etcd->script = {fake_etcd::says(404, "404 page not found\n"), fake_etcd::fine()};
    w.run(
        [&](etcd_register& views) -> task<void> {
            auto reading = views.read();
            const auto reading_came = co_await reading;
            CHECK(reading_came.generation == 0);
        },
        how);
}

TEST_CASE("an etcd of another cluster is refused") {
    world w;
    w.run([&](etcd_register& views) -> task<void> {
        auto reading = views.read();
        (void)co_await reading;
        w.etcd->cluster = 0xc2;
        auto failing = failure_of(views.read());
        const auto why = co_await failing;
        CHECK(why.code() == errc::mismatch);
        CHECK(std::string(why.what()).find("of the cluster c2, before it was c1") !=
              std::string::npos);
    });
}

TEST_CASE("a full etcd is waited for, and spoken of") {
    world w;
    const log_lines lines("etcd", logging::level::info);
    w.etcd->is_full = true;
    w.run([&](etcd_register& views) -> task<void> {
        scope others;
        others.spawn([](fake_etcd* etcd) -> task<void> {
            auto a_minute = sleep_for(60s);
            co_await a_minute;
            etcd->is_full = false;
        }(w.etcd.get()));
        auto swapping = views.compare_and_swap(0, made(1));
        const auto swapping_came = co_await swapping;
        CHECK(swapping_came.swapped);
        auto joined = others.join();
        co_await joined;
    });
    INFO(lines.text());
    CHECK(lines.count("is full") == 1);
    CHECK(lines.count("NOSPACE") == 1);
    CHECK(lines.count("has space again") == 1);
    CHECK(lines.seen.size() == 2);
}

TEST_CASE("a key of another program is an error that names it") {
    world w;
    w.etcd->put(view_key, "127.0.0.1:29500");
    w.run([&](etcd_register& views) -> task<void> {
        auto failing = failure_of(views.watch(0));
        const auto why = co_await failing;
        CHECK(why.code() == errc::mismatch);
        CHECK(std::string(why.what()).find("the key /skein/job/view holds nothing of skein's") !=
              std::string::npos);
    });
}

TEST_CASE("a view too large for etcd is refused before it is sent") {
    world w;
    w.run([&](etcd_register& views) -> task<void> {
        auto large = made(1, std::string(2 << 20, 'x'));
        auto failing = failure_of(views.compare_and_swap(0, std::move(large)));
        const auto failing_came = co_await failing;
        CHECK(failing_came.code() == errc::too_large);
    });
    CHECK(w.etcd->changes.empty());
}

TEST_CASE("options that are none are refused") {
    const auto refused = [](void (*change)(etcd_options&)) {
        auto how = world::options();
        change(how);
        try {
            const etcd_register views(std::move(how),
                                      std::make_unique<fake_etcd_transport>(nullptr));
        } catch (const error& e) {
            return e.code() == errc::invalid_argument;
        }
        return false;
    };
    CHECK_FALSE(refused([](etcd_options&) {}));
    CHECK(refused([](etcd_options& o) { o.endpoints.clear(); }));
    CHECK(refused([](etcd_options& o) { o.endpoints = {"ftp://a:1"}; }));
    CHECK(refused([](etcd_options& o) { o.endpoints = {"http://"}; }));
    CHECK(refused([](etcd_options& o) { o.endpoints = {"http://me:secret@a:1"}; }));
    CHECK(refused([](etcd_options& o) { o.endpoints = {"http://a:1/v3"}; }));
    CHECK(refused([](etcd_options& o) { o.endpoints = {"http://a:1\r\nX: y"}; }));
    CHECK(refused([](etcd_options& o) { o.job.clear(); }));
    CHECK(refused([](etcd_options& o) { o.job = "a/b"; }));
    CHECK(refused([](etcd_options& o) { o.prefix = "skein"; }));
    CHECK(refused([](etcd_options& o) { o.prefix = "/"; }));
    CHECK(refused([](etcd_options& o) { o.password = "secret"; }));
    CHECK(refused([](etcd_options& o) { o.cert = "a.pem"; }));
    CHECK(refused([](etcd_options& o) { o.lease_ttl = 1s; }));
    CHECK(refused([](etcd_options& o) { o.request_timeout = 0s; }));
    CHECK(refused([](etcd_options& o) { o.watch_renewal = 0s; }));
}

} // namespace etcd_register_test
