// SPDX-License-Identifier: Apache-2.0
#include "net/requests_support.hpp"

#include <skein/net/address.hpp>
#include <skein/net/detail/request_head.hpp>
#include <skein/net/endpoint.hpp>
#include <skein/net/link_endpoint.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/net/requests.hpp>

#include <catch2/catch_test_macros.hpp>

#include <functional>
#include <string>
#include <vector>

using namespace net_test;

namespace {

struct add_request {
    static constexpr std::uint16_t number = 1;
    std::vector<int> items;
};
struct add_reply {
    static constexpr std::uint16_t number = 2;
    int sum = 0;
};
struct wait_request {
    static constexpr std::uint16_t number = 3;
    std::uint32_t milliseconds = 0;
};
struct blob {
    static constexpr std::uint16_t number = 4;
    byte_buffer bytes;
};
struct note {
    static constexpr std::uint16_t number = 5;
    std::string text;
};
/// Answered after a while by a blob.
struct slow_request {
    static constexpr std::uint16_t number = 6;
    std::uint32_t milliseconds = 0;
    std::uint64_t bytes = 0;
};
/// Told or asked, and heard in the read loop.
struct word {
    static constexpr std::uint16_t number = 7;
    std::string text;
};
struct count_request {
    static constexpr std::uint16_t number = 8;
    int words = 0; ///< that were told before
};
struct unknown_request {
    static constexpr std::uint16_t number = 99;
};

add_request add_of(std::vector<int> items) { return {std::move(items)}; }
wait_request wait_of(std::uint32_t ms) { return {ms}; }
word word_of(std::string text) { return {std::move(text)}; }
note note_of(std::string text) { return {std::move(text)}; }
blob blob_of(std::size_t bytes) { return {byte_buffer(bytes, std::byte{7})}; }

/// What the handlers of a test saw.
struct seen {
    int runs = 0, cancelled = 0;
    std::vector<std::string> order;
    std::optional<time_point> deadline;
    std::string peer;
};

task<add_reply> add_up(seen* s, add_request m, net::caller who) {
    ++s->runs;
    s->peer = who.peer;
    add_reply out;
    for (const int i : m.items) out.sum += i;
    if (m.items.empty())
        throw error(errc::invalid_argument, "nothing to add").with_hint("give some");
    if (m.items.size() == 1) throw std::runtime_error("a plain exception");
    co_return out;
}
task<add_reply> wait_long(seen* s, wait_request m, net::caller who) {
    ++s->runs;
    s->deadline = who.deadline;
    try {
        auto pause = sleep_for(std::chrono::milliseconds(m.milliseconds));
        co_await pause;
    } catch (const error& e) {
        s->cancelled += e.code() == errc::cancelled;
        throw;
    }
    co_return add_reply{1};
}
task<blob> give_back(blob m, net::caller) { co_return m; }
task<blob> give_later(slow_request m, net::caller) {
    auto pause = sleep_for(std::chrono::milliseconds(m.milliseconds));
    co_await pause;
    co_return blob_of(m.bytes);
}

std::shared_ptr<net::request_service> service_of(seen* s, net::request_service::bounds b = {}) {
    auto service = std::make_shared<net::request_service>(b);
    service->on<add_request, add_reply>(
        [s](add_request m, net::caller who) { return add_up(s, std::move(m), std::move(who)); });
    service->on<wait_request, add_reply>(
        [s](wait_request m, net::caller who) { return wait_long(s, m, std::move(who)); });
    service->on<blob, blob>(&give_back);
    service->on<slow_request, blob>(&give_later);
    service->on_tell<note>([s](note m, net::caller) { s->order.push_back(m.text); });
    service->on_tell_at_once<word>([s](const word& m) {
        if (m.text == "no") throw error(errc::malformed, "a word that means nothing");
        s->order.push_back(m.text);
    });
    service->on_at_once<count_request, add_reply>([s](count_request m) {
        const auto heard = static_cast<int>(s->order.size());
        if (heard != m.words)
            throw error(errc::mismatch, std::to_string(heard) + " words").with_hint("count again");
        return add_reply{heard};
    });
    return service;
}

/// A client at "a" and a server at "b" over a link, in the simulated world.
struct request_world {
    sim::loop loop{7};
    sim::network network{loop, sim::faults()};
    seen there, here;
    net::request_options how;
    std::shared_ptr<net::request_service> service;
    std::vector<net::requests::handle> accepted;

    void run(std::function<task<void>(request_world&, net::requests&)> work,
             net::request_service::bounds b = {}) {
        loop.run(whole(this, std::move(work), b));
        CHECK(network.open_streams() == 0);
    }
    task<net::requests::handle> connect(std::uint64_t incarnation = 77) {
        net::link_options with;
        with.incarnation = incarnation;
        auto dialing = net::link::connect(network.host("a"), net::address::sim("b", 1),
                                          options("client"), with);
        auto l = co_await dialing;
        co_return net::requests::over(std::move(l), service_of(&here), how);
    }
    static task<void> serve(request_world* w, net::link::handle l) {
        auto r = net::requests::over(l, w->service, w->how);
        w->accepted.push_back(r);
        auto ended = l->wait_closed();
        l.reset();
        co_await ended;
        auto closing = r->close();
        co_await closing;
    }
    static task<void> whole(request_world* w,
                            std::function<task<void>(request_world&, net::requests&)> work,
                            net::request_service::bounds b) {
        w->service = service_of(&w->there, b);
        net::link_endpoint server(w->network.host("b"), net::address::sim("b", 1),
                                  options("server"));
        scope serving;
        serving.spawn(server.serve([w](net::link::handle l) { return serve(w, std::move(l)); }));
        auto connecting = w->connect();
        auto r = co_await connecting;
        auto running = error_of(with_timeout(work(*w, *r), 100s));
        const auto fault = co_await running;
        auto closing = r->close();
        co_await closing;
        w->accepted.clear();
        server.close();
        if (fault) serving.cancel();
        auto ended = with_timeout(serving.join(), 100s);
        co_await ended;
        auto ending = w->service->close();
        co_await ending;
        w->service.reset();
        if (fault) throw *fault;
    }
};

template <class M>
task<std::optional<error>> failure_of(net::requests& r, M m, net::request_call_options how = {}) {
    auto asking = error_of(drop_value(r.call<add_reply>(std::move(m), how)));
    auto out = co_await asking;
    co_return out;
}

} // namespace

TEST_CASE("a typed call gives the reply, in both directions") {
    request_world w;
    w.run([](request_world& w, net::requests& r) -> task<void> {
        auto asking = r.call<add_reply>(add_of({1, 2, 3}));
        const auto reply = co_await asking;
        CHECK(reply.sum == 6);
        CHECK(w.there.peer.starts_with("client"));
        auto back = w.accepted.at(0)->call<add_reply>(add_of({4, 5}));
        const auto other = co_await back;
        CHECK(other.sum == 9);
        CHECK(w.here.runs == 1);
        CHECK(r.waiting() == 0);
    });
}

TEST_CASE("the same calls work over a plain connection") {
    sim::loop loop(3);
    sim::network network(loop, sim::faults());
    const auto body = [](sim::network* network) -> task<void> {
        seen there;
        auto service = service_of(&there);
        auto talking = with_client(network, service, [](net::requests& client) -> task<void> {
            auto asking = client.call<add_reply>(add_of({20, 22}));
            const auto reply = co_await asking;
            CHECK(reply.sum == 42);
        });
        co_await talking;
    };
    loop.run(body(&network));
    CHECK(network.open_streams() == 0);
}

TEST_CASE(
    "errors of a handler come with code, text and hint, other exceptions as remote_exception") {
    request_world w;
    w.run([](request_world&, net::requests& r) -> task<void> {
        auto one = failure_of(r, add_of({}));
        const auto typed = co_await one;
        REQUIRE(typed);
        CHECK(typed->code() == errc::invalid_argument);
        CHECK(typed->text() == "nothing to add");
        CHECK(typed->hint() == "give some");
        auto two = failure_of(r, add_of({1}));
        const auto plain = co_await two;
        REQUIRE(plain);
        CHECK(plain->code() == errc::remote_exception);
        CHECK(plain->text() == "a plain exception");
    });
}

TEST_CASE("unknown messages, bad bodies and replies of another type are told apart") {
    request_world w;
    w.run([](request_world&, net::requests& r) -> task<void> {
        auto one = failure_of(r, unknown_request{});
        const auto unknown = co_await one;
        REQUIRE(unknown);
        CHECK(unknown->code() == errc::not_supported);
        CHECK(unknown->text().find("message 99") != std::string::npos);
        auto two = error_of(drop_value(r.call_raw(1, to_buffer("\xff\xff\xff\xff"), {})));
        const auto bad = co_await two;
        REQUIRE(bad);
        CHECK(bad->code() == errc::malformed);
        CHECK(bad->text().find("add_request does not decode") != std::string::npos);
        auto three = error_of(drop_value(r.call<blob>(add_of({1, 2}))));
        const auto other = co_await three;
        REQUIRE(other);
        CHECK(other->code() == errc::malformed);
        CHECK(other->text().find("reply") != std::string::npos);
        CHECK(r.is_open());
    });
}

TEST_CASE("a deadline travels, ends the handler and the call") {
    request_world w;
    w.run([](request_world& w, net::requests& r) -> task<void> {
        net::request_call_options how;
        how.deadline = 100ms;
        auto asking = failure_of(r, wait_of(5000), how);
        const auto why = co_await asking;
        REQUIRE(why);
        CHECK(why->code() == errc::timeout);
        auto pause = sleep_for(10ms);
        co_await pause;
        CHECK(w.there.deadline.has_value());
        CHECK(w.there.cancelled == 1);
        CHECK(w.accepted.at(0)->running() == 0);
    });
}

TEST_CASE(
    "a cancelled call cancels its handler, and a handler whose caller has gone is cancelled") {
    request_world w;
    w.run([](request_world& w, net::requests& r) -> task<void> {
        auto asking = error_of(with_timeout(drop_value(r.call<add_reply>(wait_of(50000))), 50ms));
        const auto why = co_await asking;
        REQUIRE(why);
        auto pause = sleep_for(10ms);
        co_await pause;
        CHECK(w.there.cancelled == 1);

        auto connecting = w.connect();
        auto other = co_await connecting;
        scope asking_more;
        asking_more.spawn(drop_value(failure_of(*other, wait_of(50000))));
        auto later = sleep_for(20ms);
        co_await later;
        other->abort(error(errc::closed, "leaving"));
        auto joined = asking_more.join();
        co_await joined;
        auto last = sleep_for(20ms);
        co_await last;
        CHECK(w.there.cancelled == 2);
        auto closing = other->close();
        co_await closing;
    });
}

TEST_CASE("calls and messages go through a broken connection, each once") {
    request_world w;
    w.run([](request_world& w, net::requests& r) -> task<void> {
        for (int i = 0; i < 20; ++i) {
            r.tell(note_of(std::to_string(i)));
            if (i % 5 == 0) w.network.reset("a", "b");
            auto asking = r.call<add_reply>(add_of({i, i}));
            const auto reply = co_await asking;
            CHECK(reply.sum == 2 * i);
        }
        CHECK(w.there.runs == 20);
        REQUIRE(w.there.order.size() == 20);
        for (int i = 0; i < 20; ++i)
            CHECK(w.there.order[static_cast<std::size_t>(i)] == std::to_string(i));
    });
}

TEST_CASE("a call with a key that is repeated on another link runs once") {
    request_world w;
    w.run([](request_world& w, net::requests& r) -> task<void> {
        net::request_keys keys(77);
        net::request_call_options how;
        const auto key = keys.next();
        how.key = &key;
        auto connecting = w.connect();
        auto first = co_await connecting;
        scope asking;
        asking.spawn(drop_value(failure_of(*first, wait_of(300), how)));
        auto pause = sleep_for(50ms);
        co_await pause;
        first->abort(error(errc::closed, "the way broke")); // the handler goes on
        auto joined = asking.join();
        co_await joined;
        auto again = r.call<add_reply>(wait_of(300), how); // joins it
        const auto reply = co_await again;
        CHECK(reply.sum == 1);
        auto once_more = r.call<add_reply>(wait_of(300), how); // gets what it gave
        const auto same = co_await once_more;
        CHECK(same.sum == 1);
        CHECK(w.there.runs == 1);
        CHECK(w.there.cancelled == 0);
        CHECK(w.service->repeats() == 2);
        auto closing = first->close();
        co_await closing;
    });
}

TEST_CASE(
    "what is remembered of keyed calls is bounded, and goes when the client needs it no more") {
    request_world w;
    net::request_service::bounds b;
    b.keys_per_client = 8;
    w.run(
        [](request_world& w, net::requests& r) -> task<void> {
            net::request_keys keys(77);
            const auto call = [&](const net::request_keys::key* key) -> task<std::optional<error>> {
                net::request_call_options how;
                how.key = key;
                return failure_of(r, add_of({1, 2}), how);
            };
            for (int i = 0; i < 20; ++i) {
                const auto key = keys.next();
                auto one = call(&key);
                const auto why = co_await one;
                CHECK_FALSE(why);
                CHECK(w.service->remembered() == 1); // those before are not in use
            }
            std::vector<net::request_keys::key> open;
            for (int i = 0; i < 20; ++i) open.push_back(keys.next());
            for (const auto& key : open) {
                auto one = call(&key);
                const auto why = co_await one;
                CHECK_FALSE(why);
            }
            CHECK(w.service->remembered() <= 8);
            CHECK(w.there.runs == 40);
            auto late = call(&open.front()); // it may have run: it does not run again
            const auto why = co_await late;
            REQUIRE(why);
            CHECK(why->code() == errc::exhausted);
            CHECK(w.there.runs == 40);
        },
        b);
}

TEST_CASE("a repeat of a client that was forgotten is refused, and what it asks first runs") {
    request_world w;
    net::request_service::bounds b;
    b.clients = 2;
    w.run(
        [](request_world& w, net::requests& r) -> task<void> {
            const auto call = [](net::requests* r,
                                 const net::request_keys::key* key) -> task<std::optional<error>> {
                net::request_call_options how;
                how.key = key;
                return failure_of(*r, add_of({1, 2}), how);
            };
            net::request_keys keys(77);
            const auto first = keys.next();
            auto one = call(&r, &first);
            const auto fine = co_await one;
            CHECK_FALSE(fine);
            for (const std::uint64_t other : {78, 79}) { // the second one drives 77 out
                net::request_keys others(other);
                const auto key = others.next();
                auto connecting = w.connect(other);
                auto way = co_await connecting;
                auto two = call(way.get(), &key);
                const auto also_fine = co_await two;
                CHECK_FALSE(also_fine);
                auto closing = way->close();
                co_await closing;
            }
            CHECK(w.there.runs == 3);
            for (int i = 0; i < 2; ++i) { // not known, then known anew
                auto again = call(&r, &first);
                const auto why = co_await again;
                REQUIRE(why);
                CHECK(why->code() == errc::aborted);
                CHECK(why->text().find("may have run") != std::string::npos);
                CHECK(w.there.runs == 3 + i);
                const auto next = keys.next();
                auto fresh = call(&r, &next);
                const auto runs = co_await fresh;
                CHECK_FALSE(runs);
            }
        },
        b);
}

TEST_CASE("a key of another process is refused, and the link goes on") {
    request_world w;
    w.run([](request_world& w, net::requests& r) -> task<void> {
        net::request_keys mine(77), others(78);
        const auto good = mine.next(), bad = others.next();
        net::request_call_options how;
        how.key = &bad;
        auto one = failure_of(r, add_of({1, 2}), how);
        const auto why = co_await one;
        REQUIRE(why);
        CHECK(why->code() == errc::permission_denied);
        CHECK(w.there.runs == 0);
        how.key = &good;
        auto two = failure_of(r, add_of({1, 2}), how);
        const auto fine = co_await two;
        CHECK_FALSE(fine);
    });
}

TEST_CASE("large messages that find no room fail their call, and the link goes on") {
    request_world w;
    net::request_service::bounds b;
    b.all.assembling_bytes = std::size_t{2} << 20;
    w.run(
        [](request_world& w, net::requests& r) -> task<void> {
            auto large = error_of(drop_value(r.call<blob>(blob_of(std::size_t{5} << 20))));
            const auto why = co_await large;
            REQUIRE(why);
            CHECK(why->code() == errc::exhausted);
            auto small = r.call<blob>(blob_of(std::size_t{1} << 20));
            const auto reply = co_await small;
            CHECK(reply.bytes.size() == std::size_t{1} << 20);
            CHECK(w.service->held() == net::request_load());
            CHECK(r.is_open());
        },
        b);
}

TEST_CASE("handlers of one peer are bounded over all its links, and of all peers together") {
    request_world w;
    w.how.peer.running = 3;
    net::request_service::bounds b;
    b.all.running = 4;
    w.run(
        [](request_world& w, net::requests& r) -> task<void> {
            auto again = w.connect(); // the same peer
            const auto second = co_await again;
            auto strange = w.connect(78);
            const auto other = co_await strange;
            scope asking;
            for (auto* over : {&r, &r, second.get(), other.get()})
                asking.spawn(drop_value(over->call<add_reply>(wait_of(1000))));
            auto begun = sleep_for(100ms);
            co_await begun;
            CHECK(w.service->held().running == 4);
            auto more = failure_of(*second, add_of({1, 2}));
            const auto of_peer = co_await more;
            REQUIRE(of_peer);
            CHECK(of_peer->code() == errc::exhausted);
            CHECK(of_peer->text().find("client") != std::string::npos);
            CHECK(of_peer->text().find("running is 3") != std::string::npos);
            auto one = failure_of(*other, add_of({1, 2}));
            const auto of_all = co_await one;
            REQUIRE(of_all);
            CHECK(of_all->text().find("all peers") != std::string::npos);
            auto joined = asking.join();
            co_await joined;
            CHECK(w.service->held() == net::request_load());
            auto fine = failure_of(*second, add_of({1, 2}));
            const auto none = co_await fine;
            CHECK_FALSE(none);
            for (const auto& l : {second, other}) {
                auto closing = l->close();
                co_await closing;
            }
        },
        b);
}

TEST_CASE("large calls wait for room in order, large messages without an answer are refused") {
    request_world w;
    w.how.call_bytes = std::size_t{3} << 20;
    w.run([](request_world& w, net::requests& r) -> task<void> {
        w.network.partition("a", "b");
        std::vector<std::size_t> came;
        scope asking;
        const auto ask = [](net::requests* r, std::vector<std::size_t>* came,
                            std::size_t mib) -> task<void> {
            auto asked = r->call<blob>(blob_of(mib << 20));
            const auto reply = co_await asked;
            came->push_back(reply.bytes.size() >> 20);
        };
        for (const std::size_t mib : {2, 3, 1}) asking.spawn(ask(&r, &came, mib));
        auto begun = sleep_for(10ms);
        co_await begun;
        CHECK(r.bulk_bytes() <= (std::size_t{2} << 20) + 1000);
        auto told = error_of([](net::requests* r) -> task<void> {
            r->tell(blob_of(std::size_t{1} << 20));
            co_return;
        }(&r));
        const auto refused = co_await told;
        REQUIRE(refused);
        CHECK(refused->code() == errc::exhausted);
        CHECK(refused->text().find("call_bytes") != std::string::npos);
        net::request_call_options soon;
        soon.deadline = 50ms;
        auto late = error_of(drop_value(r.call<blob>(blob_of(std::size_t{2} << 20), soon)));
        const auto timed = co_await late;
        REQUIRE(timed);
        CHECK(timed->code() == errc::timeout);
        w.network.heal("a", "b");
        auto joined = asking.join();
        co_await joined;
        CHECK(came == std::vector<std::size_t>{2, 3, 1});
        CHECK(r.bulk_bytes() == 0);
    });
}

TEST_CASE("a peer that does not read its large replies gets no more of them") {
    request_world w;
    w.how.peer.reply_bytes = std::size_t{3} << 20;
    w.run([](request_world& w, net::requests& r) -> task<void> {
        scope asking;
        int fine = 0, refused = 0;
        const auto ask = [](net::requests* r, int* fine, int* refused) -> task<void> {
            auto asked = as_result(r->call<blob>(slow_request{100, std::size_t{1} << 20}));
            const auto got = co_await asked;
            if (got)
                ++*fine;
            else if (got.error().code() == errc::exhausted &&
                     got.error().text().find("reply_bytes") != std::string::npos)
                ++*refused;
        };
        for (int i = 0; i < 16; ++i) asking.spawn(ask(&r, &fine, &refused));
        auto arrived = sleep_for(50ms);
        co_await arrived;
        w.network.partition("a", "b"); // the replies come to be while nothing can leave
        auto answered = sleep_for(100ms);
        co_await answered;
        CHECK(w.service->held().reply_bytes > 0);
        CHECK(w.service->held().reply_bytes <= w.how.peer.reply_bytes);
        w.network.heal("a", "b");
        auto joined = asking.join();
        co_await joined;
        CHECK(fine + refused == 16);
        CHECK(refused > 0);
        CHECK(fine >= 2);
        CHECK(w.service->held() == net::request_load());
        CHECK(r.is_open());
    });
}

TEST_CASE("to a peer that does not read nothing more is sent than it may leave unread") {
    request_world w;
    w.how.unread_bytes = std::size_t{1} << 20;
    w.run([](request_world& w, net::requests& r) -> task<void> {
        w.network.partition("a", "b");
        std::optional<error> refused;
        const auto text = std::string(10'000, 'x');
        std::size_t told = 0;
        try {
            for (; told < 1000; ++told) r.tell(note_of(text));
        } catch (const error& e) {
            refused = e;
        }
        REQUIRE(refused);
        CHECK(refused->code() == errc::exhausted);
        CHECK(refused->text().find("unread_bytes") != std::string::npos);
        CHECK(told * text.size() >= w.how.unread_bytes); // not before
        w.network.heal("a", "b");
        auto last = r.call<add_reply>(add_of({1, 2}));
        for (;;) { // it may go again as soon as the others have left
            auto asked = as_result(std::move(last));
            const auto got = co_await asked;
            if (got) break;
            CHECK(got.error().code() == errc::exhausted);
            auto pause = sleep_for(10ms);
            co_await pause;
            last = r.call<add_reply>(add_of({1, 2}));
        }
        CHECK(w.there.order.size() == told);
    });
}

TEST_CASE("words are heard in their order, before what has a task, whatever runs") {
    request_world w;
    w.how.peer.running = 1;
    w.run([](request_world& w, net::requests& r) -> task<void> {
        scope asking;
        asking.spawn(drop_value(failure_of(r, wait_of(50)))); // all that may run
        auto begun = sleep_for(20ms);
        co_await begun;
        for (int i = 0; i < 20; ++i) r.tell(word_of(std::to_string(i)));
        auto joined = asking.join();
        co_await joined;
        r.tell(note_of("with a task"));
        r.tell(word_of("at once"));
        auto later = sleep_for(20ms);
        co_await later;
        REQUIRE(w.there.order.size() == 22);
        for (int i = 0; i < 20; ++i)
            CHECK(w.there.order[static_cast<std::size_t>(i)] == std::to_string(i));
        CHECK(w.there.order[20] == "at once");
        CHECK(w.there.order[21] == "with a task");
        CHECK(w.service->held() == net::request_load());
    });
}

TEST_CASE("a word that is refused as a request is leaves the link, one that fails ends it") {
    request_world w;
    w.run([](request_world& w, net::requests& r) -> task<void> {
        w.service->fence(5);
        r.tell(unknown_request{});
        r.tell(word_of("too old"), 4);
        r.tell(word_of("current"), 5);
        auto asking = r.call<add_reply>(add_of({1, 2}));
        (void)co_await asking;
        CHECK(w.there.order == std::vector<std::string>{"current"});
        auto connecting = w.connect();
        auto other = co_await connecting;
        other->tell(word_of("no"));
        auto waiting = failure_of(*other, wait_of(50'000));
        const auto ended = co_await waiting;
        REQUIRE(ended);
        CHECK_FALSE(other->is_open());
        auto connecting_again = w.connect();
        auto third = co_await connecting_again;
        third->tell_raw(word::number, byte_buffer(3, std::byte{0xff}), 0);
        auto waiting_again = failure_of(*third, wait_of(50'000));
        const auto unread = co_await waiting_again;
        CHECK(unread);
        CHECK_FALSE(third->is_open());
        CHECK(r.is_open());
        CHECK(w.there.order == std::vector<std::string>{"current"});
        for (auto* one : {&other, &third}) {
            auto closing = (*one)->close();
            co_await closing;
        }
    });
}

TEST_CASE("what is answered at once is in order with words, and is refused as any call") {
    request_world w;
    w.run([](request_world& w, net::requests& r) -> task<void> {
        for (int i = 0; i < 10; ++i) {
            r.tell(word_of("one"));
            auto asking = r.call<add_reply>(count_request{i + 1});
            const auto reply = co_await asking;
            CHECK(reply.sum == i + 1);
        }
        auto wrong = failure_of(r, count_request{-1});
        const auto why = co_await wrong;
        REQUIRE(why);
        CHECK(why->code() == errc::mismatch);
        CHECK(why->text() == "10 words");
        CHECK(why->hint() == "count again");
        net::request_keys keys(77);
        const auto key = keys.next();
        net::request_call_options how;
        how.key = &key;
        auto keyed = failure_of(r, count_request{10}, how);
        const auto refused = co_await keyed;
        REQUIRE(refused);
        CHECK(refused->code() == errc::not_supported);
        r.tell(count_request{10}); // nobody hears its answer
        CHECK(w.service->held() == net::request_load());
        CHECK(r.running() == 0);
        w.service->fence(5);
        how = {};
        how.generation = 4;
        auto old = failure_of(r, count_request{10}, how);
        const auto late = co_await old;
        REQUIRE(late);
        CHECK(late->code() == errc::aborted);
    });
}

TEST_CASE("what comes while this end closes is not heard: its handlers may be about to go") {
    sim::loop loop(3);
    sim::network network(loop, sim::faults());
    seen there;
    const auto body = [](sim::network* network, seen* there) -> task<void> {
        auto connecting = connect_pair(&network->host("a"), &network->host("b"),
                                       net::address::sim("b", 1), options("a"), options("b"));
        auto p = co_await connecting;
        auto service = service_of(there);
        auto client = net::requests::over(std::move(p.client));
        auto server = net::requests::over(std::move(p.server), service);
        client->tell(word_of("on its way"));
        client->tell(add_of({1, 2}));
        auto closing = server->close();
        co_await closing;
        auto closing_too = client->close();
        co_await closing_too;
        auto ending = service->close();
        co_await ending;
    };
    loop.run(body(&network, &there));
    CHECK(there.order.empty());
    CHECK(there.runs == 0);
    CHECK(network.open_streams() == 0);
}

TEST_CASE("words over the network of this host are heard in their order") {
    net::real_loop loop;
    net::real_network network(loop);
    const auto body = [](net::network* network) -> task<void> {
        seen there;
        auto service = service_of(&there);
        net::endpoint server(*network, net::address::tcp(net::own_loopback(), 0), {});
        const auto serve = [](std::shared_ptr<net::request_service> with,
                              net::connection::handle c) -> task<void> {
            auto r = net::requests::over(c, with);
            auto ended = c->wait_closed();
            co_await ended;
            auto closing = r->close();
            co_await closing;
        };
        scope serving;
        serving.spawn(
            server.serve([&](net::connection::handle c) { return serve(service, std::move(c)); }));
        auto connecting = net::connection::connect(*network, server.local(), {});
        auto c = co_await connecting;
        auto r = net::requests::over(std::move(c));
        for (int i = 0; i < 1000; ++i) r->tell(word_of(std::to_string(i)));
        auto asking = r->call<add_reply>(add_of({1, 2}));
        (void)co_await asking;
        CHECK(there.order.size() == 1000);
        for (std::size_t i = 0; i < there.order.size(); ++i)
            CHECK(there.order[i] == std::to_string(i));
        auto closing = r->close();
        co_await closing;
        server.close();
        auto ended = serving.join();
        co_await ended;
        auto ending = service->close();
        co_await ending;
    };
    loop.run(body(&network));
}

TEST_CASE("a request of an older generation is refused") {
    request_world w;
    w.run([](request_world& w, net::requests& r) -> task<void> {
        w.service->fence(5);
        net::request_call_options how;
        how.generation = 4;
        auto old = failure_of(r, add_of({1, 2}), how);
        const auto why = co_await old;
        REQUIRE(why);
        CHECK(why->code() == errc::aborted);
        how.generation = 5;
        auto current = failure_of(r, add_of({1, 2}), how);
        const auto fine = co_await current;
        CHECK_FALSE(fine);
        CHECK(w.there.runs == 1);
    });
}

TEST_CASE("a small call behind a large argument waits no longer than a chunk") {
    request_world w;
    w.network.faults().window = std::size_t{64} << 10;
    w.run([](request_world& w, net::requests& r) -> task<void> {
        scope asking;
        const auto send_large = [](net::requests* r, std::size_t bytes) -> task<void> {
            auto body = blob_of(bytes);
            auto call = r->call<blob>(std::move(body));
            const auto reply = co_await call;
            CHECK(reply.bytes.size() == bytes);
        };
        const std::size_t bytes = std::size_t{48} << 20; // the order does not depend on it
        asking.spawn(send_large(&r, bytes));
        while (r.bulk_bytes() == 0) {
            auto others = yield();
            co_await others;
        }
        for (int i = 0; i < 10; ++i) {
            const std::size_t before = r.bulk_bytes();
            auto small = r.call<add_reply>(add_of({i, 1}));
            const auto reply = co_await small;
            CHECK(reply.sum == i + 1);
            // While it went there and back no more than a few chunks left.
            CHECK(before - r.bulk_bytes() <= 3 * w.how.chunk_bytes);
            CHECK(r.bulk_bytes() > 0);
        }
        auto joined = asking.join();
        co_await joined;
    });
}

TEST_CASE("a large call that is given up stops in its lane, and the next one goes") {
    request_world w;
    w.network.faults().window = std::size_t{64} << 10;
    w.run([](request_world&, net::requests& r) -> task<void> {
        auto asking =
            error_of(with_timeout(drop_value(r.call<blob>(blob_of(std::size_t{64} << 20))), 2ms));
        const auto why = co_await asking;
        REQUIRE(why);
        CHECK(r.bulk_bytes() == 0);
        auto next = r.call<blob>(blob_of(3 << 20));
        const auto reply = co_await next;
        CHECK(reply.bytes.size() == std::size_t{3} << 20);
    });
}

TEST_CASE("a peer that speaks nonsense to the request layer loses its link, and only that") {
    const auto chunk_of = [](std::uint16_t flags, std::uint64_t total, std::size_t bytes) {
        byte_buffer b(net::detail::chunk_head_bytes + bytes);
        store_le(b.data(), net::detail::request_kind);
        store_le(b.data() + 10, total);
        return std::pair(flags, b);
    };
    const std::pair<std::uint16_t, byte_buffer> bad[] = {
        chunk_of(net::detail::first_chunk, ~std::uint64_t{0}, 5),           // too large
        chunk_of(net::detail::first_chunk | net::detail::last_chunk, 9, 5), // shorter
        chunk_of(net::detail::first_chunk | net::detail::last_chunk, 3, 5), // longer
        {net::detail::last_chunk, {}},                                      // of nothing
        {net::detail::first_chunk, byte_buffer(3)},
    };
    for (const auto& [flags, body] : bad) {
        request_world w;
        w.run([&](request_world& w, net::requests& r) -> task<void> {
            auto dialing = net::link::connect(w.network.host("c"), net::address::sim("b", 1),
                                              options("stranger"));
            auto l = co_await dialing;
            l->send(net::detail::chunk_kind, flags, 1, body);
            auto ended = l->wait_closed();
            co_await ended;
            CHECK(l->ending() == net::link_end::by_peer);
            auto asking = failure_of(r, add_of({1, 2}));
            const auto fine = co_await asking;
            CHECK_FALSE(fine);
        });
    }
}
