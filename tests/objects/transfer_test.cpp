// SPDX-License-Identifier: Apache-2.0
// Bytes of objects between two stores in the simulated world: what is asked for comes, and what comes
// that was not asked for, or is asked for that is not there, ends the connection.
#include <skein/core/awaitable.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/endpoint.hpp>
#include <skein/objects/transfer.hpp>
#include <skein/sim/loop.hpp>
#include <skein/sim/network.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <catch2/catch_test_macros.hpp>

namespace transfer_test {

using namespace skein;
using namespace std::chrono_literals;
using objects::chunk_ask;
using objects::chunk_bytes;
using objects::chunk_kind;
using objects::object_number;

constexpr std::uint64_t size = 5 * chunk_bytes / 2;
const object_number one(7);

struct world {
    sim::loop loop{3};
    sim::network network{loop, sim::faults()};
    net::token secret = net::token::from_hex(std::string(64, '7')).value();
    byte_buffer bytes;
    int holds = 0;

    world() : bytes(static_cast<std::size_t>(size)) {
        for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i / 1000);
    }
    std::optional<objects::held_bytes> find(object_number which) {
        if (which != one) return std::nullopt;
        ++holds;
        return objects::held_bytes{
            bytes, std::shared_ptr<const void>(this, [this](const void*) { --holds; })};
    }
    /// Serves by `how`, and does `work` meanwhile.
    void run(std::function<task<void>(world*, net::connection::handle)> how,
             std::function<task<void>(world*, objects::byte_source*)> work) {
        loop.run(whole(this, &how, &work));
    }
    static task<void> well(world* w, net::connection::handle wire) {
        return objects::serve_chunks(std::move(wire),
                                     [w](object_number which) { return w->find(which); });
    }

private:
    static task<void> whole(world* w,
                            std::function<task<void>(world*, net::connection::handle)>* how,
                            std::function<task<void>(world*, objects::byte_source*)>* work) {
        net::endpoint door(w->network.host("home"), net::address::sim("home", 1),
                           objects::chunk_connection(w->secret, 1));
        scope serving;
        serving.spawn(door.serve([&](net::connection::handle wire) { return (*how)(w, wire); }));
        objects::byte_source from(w->network.host("here"), net::address::sim("home", 1), w->secret,
                                  2);
        auto working = as_result(with_timeout((*work)(w, &from), 1000s));
        const auto done = co_await working;
        auto closing = from.close();
        co_await closing;
        door.close();
        serving.cancel();
        auto joined = as_result(shield(serving.join()));
        (void)co_await joined;
        if (!done) throw done.error();
    }
};

/// All of an object, or why not.
task<result<byte_buffer>> all_of(objects::byte_source* from, object_number which,
                                 objects::extent part) {
    byte_buffer got(static_cast<std::size_t>(part.bytes));
    auto fetching = as_result(from->fetch(which, part, [&](std::uint64_t at, byte_span bytes) {
        std::memcpy(got.data() + (at - part.at), bytes.data(), bytes.size());
    }));
    const auto done = co_await fetching;
    if (!done) co_return done.error();
    co_return got;
}

TEST_CASE("an object comes whole, and a part of it", "[objects][transfer]") {
    world w;
    w.run(&world::well, [](world* w, objects::byte_source* from) -> task<void> {
        auto fetching = all_of(from, one, {0, size});
        const auto whole = co_await fetching;
        REQUIRE(whole);
        CHECK(*whole == w->bytes);
        auto fetching_part = all_of(from, one, {1000, 2000});
        const auto part = co_await fetching_part;
        REQUIRE(part);
        CHECK(std::equal(part->begin(), part->end(), w->bytes.begin() + 1000));
        CHECK(w->holds == 0);
    });
}

TEST_CASE("what is not there, or not so large, is no object", "[objects][transfer]") {
    world w;
    w.run(&world::well, [](world*, objects::byte_source* from) -> task<void> {
        auto fetching = all_of(from, object_number(8), {0, size});
        const auto none = co_await fetching;
        REQUIRE(!none);
        CHECK(none.error().code() == errc::not_found);
        auto fetching_beyond = all_of(from, one, {size - 5, 6});
        auto limited = as_result(with_timeout(std::move(fetching_beyond), 20s));
        const auto beyond = co_await limited;
        CHECK((!beyond || !*beyond));
    });
}

TEST_CASE("a chunk of another length, place or kind is refused", "[objects][transfer]") {
    for (const int mistake : {0, 1, 2, 3}) {
        INFO("mistake " << mistake);
        world w;
        w.run(
            [mistake](world* w, net::connection::handle wire) -> task<void> {
                return [](int mistake, world* w, net::connection::handle wire) -> task<void> {
                    auto receiving = wire->receive();
                    const auto got = co_await receiving;
                    if (!got) co_return;
                    const auto asked = wire::decode<chunk_ask>(got->body);
                    const auto bytes = byte_span(w->bytes).subspan(
                        static_cast<std::size_t>(asked->at),
                        static_cast<std::size_t>(asked->bytes) - (mistake == 0 ? 1 : 0));
                    const auto kind = mistake == 1 ? chunk_kind::ask : chunk_kind::piece;
                    const auto id = mistake == 2 ? got->id + 1000 : got->id;
                    wire->send(static_cast<std::uint16_t>(kind), 0, id, bytes);
                    if (mistake == 3) // twice
                        wire->send(static_cast<std::uint16_t>(kind), 0, id, bytes);
                    auto closed = wire->wait_closed();
                    co_await closed;
                }(mistake, w, std::move(wire));
            },
            [](world*, objects::byte_source* from) -> task<void> {
                auto fetching = all_of(from, one, {0, size});
                const auto none = co_await fetching;
                REQUIRE(!none);
                CHECK(none.error().code() == errc::malformed);
            });
    }
}

} // namespace transfer_test
