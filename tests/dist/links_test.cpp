// SPDX-License-Identifier: Apache-2.0
#include <skein/dist/links.hpp>

#include <skein/core/all.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/dist/detail/stream_io.hpp>
#include <skein/net/network.hpp>
#include <skein/net/real_network.hpp>
#include <skein/sim/loop.hpp>
#include <skein/sim/network.hpp>

#include <catch2/catch_test_macros.hpp>

#include <memory>
#include <string>
#include <vector>

using namespace skein;
using namespace skein::dist;
using namespace std::chrono_literals;

namespace {

struct two_ranks {
    explicit two_ranks(net::real_loop& loop, bool same_secret = true, bool same_group = true)
        : network(std::make_shared<net::real_network>(loop)) {
        std::vector<std::unique_ptr<net::listener>> listeners;
        for (int r = 0; r < 2; ++r) {
            listeners.push_back(network->listen(net::address::tcp("127.0.0.1", 0)));
            addresses.push_back(listeners.back()->local());
        }
        const auto secret = net::token::generate();
        for (int r = 0; r < 2; ++r) {
            const auto mine = r == 1 && !same_secret ? net::token::generate() : secret;
            ranks.push_back(std::make_shared<links>(
                network, std::move(listeners[static_cast<std::size_t>(r)]), r, addresses, mine,
                r == 1 && !same_group ? "other" : "world"));
        }
    }
    task<void> stop() {
        for (auto& r : ranks) {
            auto stopping = r->stop();
            co_await std::move(stopping);
        }
    }
    std::shared_ptr<net::real_network> network;
    std::vector<net::address> addresses;
    std::vector<std::shared_ptr<links>> ranks;
};

time_point soon(duration d) { return loop::current().now() + d; }

} // namespace

TEST_CASE("a link is opened once by the sender and both ends see the same stream") {
    net::real_loop loop;
    loop.run([](net::real_loop* on) -> task<void> {
        two_ranks two(*on);
        for (auto& r : two.ranks) r->start();
        auto both = all(two.ranks[0]->to(1, links::ring, soon(10s)),
                        two.ranks[1]->from(0, links::ring, soon(10s)));
        auto ends = co_await std::move(both);
        auto again = two.ranks[0]->to(1, links::ring, soon(10s));
        auto* same = co_await std::move(again);
        CHECK(same == std::get<0>(ends));
        const std::string text = "hello";
        auto writing =
            dist::detail::write_exact(*std::get<0>(ends), as_bytes(std::string_view(text)));
        co_await std::move(writing);
        byte_buffer got(5);
        auto reading = dist::detail::read_exact(*std::get<1>(ends), got);
        co_await std::move(reading);
        CHECK(to_string(byte_span(got)) == text);
        auto stopping = two.stop();
        co_await std::move(stopping);
    }(&loop));
}

TEST_CASE("a rank of another world is refused") {
    net::real_loop loop;
    loop.run([](net::real_loop* on) -> task<void> {
        two_ranks two(*on, false);
        for (auto& r : two.ranks) r->start();
        auto opening = as_result(two.ranks[0]->to(1, links::ring, soon(10s)));
        auto opened = co_await std::move(opening);
        REQUIRE(!opened);
        INFO(opened.error().what());
        CHECK(opened.error().code() == errc::permission_denied);
        CHECK(std::string(opened.error().what()).find("rank 1") != std::string::npos);
        auto stopping = two.stop();
        co_await std::move(stopping);
    }(&loop));
}

TEST_CASE("a rank of another communicator of the same world is refused") {
    net::real_loop loop;
    loop.run([](net::real_loop* on) -> task<void> {
        two_ranks two(*on, true, false);
        for (auto& r : two.ranks) r->start();
        auto opening = as_result(two.ranks[0]->to(1, links::ring, soon(10s)));
        auto opened = co_await std::move(opening);
        REQUIRE(!opened);
        INFO(opened.error().what());
        CHECK(opened.error().code() == errc::mismatch);
        auto stopping = two.stop();
        co_await std::move(stopping);
    }(&loop));
}

TEST_CASE("ranks that are given up end the waiting of both directions at once") {
    net::real_loop loop;
    loop.run([](net::real_loop* on) -> task<void> {
        two_ranks two(*on);
        two.ranks[0]->start();
        auto gone = two.ranks[1]->stop();
        co_await std::move(gone);
        const time_point begin = on->now();
        const auto give_up = [](links* l) -> task<void> {
            auto nap = sleep_for(50ms);
            co_await nap;
            l->abandon(error(errc::peer_lost, "rank 1 is lost"));
        };
        auto all_three = all(as_result(two.ranks[0]->to(1, links::ring, soon(60s))),
                             as_result(two.ranks[0]->from(1, links::ring, soon(60s))),
                             as_result(give_up(two.ranks[0].get())));
        const auto [to, from, told] = co_await std::move(all_three);
        REQUIRE(!to);
        CHECK(to.error().text() == "rank 1 is lost");
        REQUIRE(!from);
        CHECK(from.error().text() == "rank 1 is lost");
        CHECK(on->now() - begin < 30s);
        auto stopping = two.ranks[0]->stop();
        co_await std::move(stopping);
    }(&loop));
}

TEST_CASE("foreign bytes on the port do not disturb the ranks") {
    net::real_loop loop;
    loop.run([](net::real_loop* on) -> task<void> {
        two_ranks two(*on);
        for (auto& r : two.ranks) r->start();
        auto connecting = two.network->connect(two.addresses[1]);
        auto stranger = co_await std::move(connecting);
        const std::string request =
            "GET / HTTP/1.1\r\nHost: example\r\nUser-Agent: somebody\r\nAccept: */*\r\n\r\n";
        auto writing = dist::detail::write_exact(*stranger, as_bytes(std::string_view(request)));
        co_await std::move(writing);
        byte_buffer answer(1);
        auto reading = as_result(stranger->read_some(answer)); // it is cut off
        auto outcome = co_await std::move(reading);
        CHECK((!outcome || *outcome == 0));
        auto both = all(two.ranks[0]->to(1, links::ring, soon(10s)),
                        two.ranks[1]->from(0, links::ring, soon(10s)));
        auto ends = co_await std::move(both);
        CHECK(std::get<0>(ends) != nullptr);
        auto stopping = two.stop();
        co_await std::move(stopping);
    }(&loop));
}

TEST_CASE("a rank that does not listen or does not call is named at the deadline") {
    net::real_loop loop;
    loop.run([](net::real_loop* on) -> task<void> {
        two_ranks two(*on);
        two.ranks[0]->start();
        auto gone = two.ranks[1]->stop();
        co_await std::move(gone);
        auto opening = as_result(two.ranks[0]->to(1, links::ring, soon(100ms)));
        auto opened = co_await std::move(opening);
        REQUIRE(!opened);
        INFO(opened.error().what());
        CHECK(std::string(opened.error().what())
                  .find("rank 0 cannot reach rank 1 at tcp:127.0.0.1:") != std::string::npos);
        auto waiting = as_result(two.ranks[0]->from(1, links::ring, soon(50ms)));
        auto came = co_await std::move(waiting);
        REQUIRE(!came);
        CHECK(came.error().code() == errc::timeout);
        auto stopping = two.ranks[0]->stop();
        co_await std::move(stopping);
    }(&loop));
}

namespace {

/// Its first accepts fail as on a machine that is out of descriptors.
class short_of_descriptors final : public net::listener {
public:
    explicit short_of_descriptors(std::unique_ptr<net::listener> real) : real_(std::move(real)) {}
    task<std::unique_ptr<net::stream>> accept() override {
        if (failures_-- > 0) throw error(errc::exhausted, "accept: too many open files");
        return real_->accept();
    }
    net::address local() const override { return real_->local(); }
    void close() noexcept override { real_->close(); }

private:
    std::unique_ptr<net::listener> real_;
    int failures_ = 3;
};

} // namespace

TEST_CASE("accepts that fail for want of descriptors do not end the links of a rank") {
    net::real_loop loop;
    loop.run([](net::real_loop* on) -> task<void> {
        auto network = std::make_shared<net::real_network>(*on);
        std::vector<std::unique_ptr<net::listener>> listeners;
        std::vector<net::address> addresses;
        for (int r = 0; r < 2; ++r) {
            listeners.push_back(network->listen(net::address::tcp("127.0.0.1", 0)));
            addresses.push_back(listeners.back()->local());
        }
        listeners[1] = std::make_unique<short_of_descriptors>(std::move(listeners[1]));
        const auto secret = net::token::generate();
        links first(network, std::move(listeners[0]), 0, addresses, secret, "world");
        links second(network, std::move(listeners[1]), 1, addresses, secret, "world");
        first.start();
        second.start();
        auto both =
            all(first.to(1, links::ring, soon(20s)), second.from(0, links::ring, soon(20s)));
        auto ends = co_await std::move(both);
        CHECK(std::get<1>(ends) != nullptr);
        auto one = first.stop();
        co_await std::move(one);
        auto two = second.stop();
        co_await std::move(two);
    }(&loop));
}

namespace {

task<void> call_and_say_nothing(net::network* from, net::address at) {
    auto connecting = from->connect(at);
    auto stream = co_await std::move(connecting);
    byte_buffer answer(64);
    auto reading = as_result(stream->read_some(answer)); // until it is cut off
    auto ignored = co_await std::move(reading);
    (void)ignored;
}

} // namespace

TEST_CASE("strangers who say nothing do not keep a rank out") {
    sim::loop loop(5);
    auto network = std::make_shared<sim::network>(loop, sim::faults{});
    loop.run([](sim::loop* on, sim::network* network) -> task<void> {
        std::vector<std::shared_ptr<net::network>> hosts;
        std::vector<std::unique_ptr<net::listener>> listeners;
        std::vector<net::address> addresses;
        for (const char* name : {"r0", "r1"}) {
            hosts.emplace_back(&network->host(name), [](net::network*) {});
            listeners.push_back(hosts.back()->listen(net::address::sim(name, 0)));
            addresses.push_back(listeners.back()->local());
        }
        const auto secret = net::token::generate(on->random());
        links first(hosts[0], std::move(listeners[0]), 0, addresses, secret, "world");
        links second(hosts[1], std::move(listeners[1]), 1, addresses, secret, "world");
        first.start();
        second.start();
        scope strangers;
        for (int i = 0; i < 200; ++i) {
            auto& from = network->host("stranger-" + std::to_string(i % 5));
            strangers.spawn(call_and_say_nothing(&from, addresses[0]));
        }
        auto nap = sleep_for(1s);
        co_await nap;
        auto both =
            all(second.to(0, links::ring, soon(10s)), first.from(1, links::ring, soon(10s)));
        auto ends = co_await std::move(both);
        CHECK(std::get<1>(ends) != nullptr);
        strangers.cancel();
        auto left = as_result(strangers.join());
        auto ignored = co_await std::move(left);
        (void)ignored;
        auto one = first.stop();
        co_await std::move(one);
        auto two = second.stop();
        co_await std::move(two);
    }(&loop, network.get()));
}
