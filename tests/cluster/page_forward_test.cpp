// SPDX-License-Identifier: Apache-2.0
#include "net/requests_support.hpp"

#include <skein/cluster/detail/head_forwards.hpp>
#include <skein/core/scope.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <catch2/catch_test_macros.hpp>

namespace page_forward_test {

using namespace net_test;
using namespace skein::cluster;
namespace parts = skein::cluster::detail;

/// Says back what it hears, and how much that was.
class echo_page final : public head_web {
public:
    task<void> serve(std::unique_ptr<net::stream> with, byte_buffer, net::admission*) override {
        CHECK(with->is_local());
        return talk(this, std::move(with));
    }
    std::string login_link() override { return "/"; }
    std::size_t heard = 0, ended = 0;

private:
    static task<void> talk(echo_page* self, std::unique_ptr<net::stream> with) {
        byte_buffer piece(1000);
        for (;;) {
            auto reading = as_result(with->read_some(piece));
            const auto n = co_await reading;
            if (!n || *n == 0) break;
            self->heard += *n;
            const std::array<byte_span, 1> batch{byte_span(piece).first(*n)};
            auto writing = as_result(with->write_all(batch));
            const auto written = co_await writing;
            if (!written) break;
        }
        with->close_send();
        ++self->ended;
    }
};

struct world {
    sim::loop loop{11};
    sim::network network{loop, sim::faults()};
    std::shared_ptr<echo_page> page = std::make_shared<echo_page>();
    std::shared_ptr<parts::page_forwards> forwards = std::make_shared<parts::page_forwards>();
    bool has_page = true;

    using body = std::function<task<void>(net::requests&)>;

    static task<void> talk(world* w, body work) {
        auto service = std::make_shared<net::request_service>();
        parts::page_forwards::serve(*service, w->forwards, [w]() -> std::shared_ptr<head_web> {
            return w->has_page ? w->page : nullptr;
        });
        auto talking = with_client(&w->network, std::move(service), std::move(work));
        auto outcome = as_result(std::move(talking));
        const auto done = co_await outcome;
        auto ending = w->forwards->end();
        co_await ending;
        if (!done) throw done.error();
    }
    void run(body work) { loop.run(talk(this, std::move(work))); }
};

template <class Reply, class M>
task<errc> refusal_of(net::requests* at, M m) {
    auto asking = error_of(drop_value(at->call<Reply>(std::move(m))));
    const auto fault = co_await asking;
    co_return fault ? fault->code() : errc{};
}

forward_bytes some_bytes(std::uint32_t forward, std::size_t count, bool ends = false) {
    forward_bytes m;
    m.forward = forward;
    m.bytes.resize(count);
    for (std::size_t i = 0; i < count; ++i) m.bytes[i] = static_cast<std::byte>(i * 7);
    m.ends = ends;
    return m;
}

task<void> say(net::requests* at, std::uint32_t forward, int pieces, std::size_t bytes) {
    for (int i = 0; i < pieces; ++i) {
        auto saying = at->call<forward_taken>(some_bytes(forward, bytes, i + 1 == pieces));
        (void)co_await saying;
    }
}

TEST_CASE("bytes go both ways over a link, more of them than are kept on the way",
          "[cluster][dashboard]") {
    world w;
    w.run([&w](net::requests& at) -> task<void> {
        auto opening = at.call<forward_opened>(open_forward());
        const auto opened = co_await opening;
        scope saying;
        saying.spawn(say(&at, opened.forward, 40, 50'000));
        std::size_t got = 0;
        for (;;) {
            take_forwarded m;
            m.forward = opened.forward;
            auto taking = at.call<forwarded>(m);
            const auto some = co_await taking;
            if (some.bytes.empty()) break;
            CHECK(some.bytes.size() <= parts::most_forwarded);
            for (const auto byte : some.bytes)
                if (byte != static_cast<std::byte>((got++ % 50'000) * 7)) FAIL("another byte");
        }
        CHECK(got == 2'000'000);
        auto joining = saying.join();
        co_await joining;
        CHECK(w.page->heard == got);
    });
    CHECK(w.page->ended == 1);
}

TEST_CASE("a forward that is not there, too many, and a head without a page are refused",
          "[cluster][dashboard]") {
    world w;
    w.run([&w](net::requests& at) -> task<void> {
        auto none = refusal_of<forward_taken>(&at, some_bytes(7, 10));
        const auto none_code = co_await none;
        CHECK(none_code == errc::closed);
        auto nothing = refusal_of<forwarded>(&at, take_forwarded{7});
        const auto nothing_code = co_await nothing;
        CHECK(nothing_code == errc::closed);
        open_forward other;
        ++other.version;
        auto release = refusal_of<forward_opened>(&at, other);
        const auto release_code = co_await release;
        CHECK(release_code == errc::mismatch);
        for (std::size_t i = 0; i < parts::most_forwards; ++i) {
            auto opening = at.call<forward_opened>(open_forward());
            (void)co_await opening;
        }
        auto more = refusal_of<forward_opened>(&at, open_forward());
        const auto more_code = co_await more;
        CHECK(more_code == errc::exhausted);
        auto large = refusal_of<forward_taken>(&at, some_bytes(1, parts::most_forwarded + 1));
        const auto large_code = co_await large;
        CHECK(large_code == errc::too_large);
        w.has_page = false;
        auto pageless = refusal_of<forward_opened>(&at, open_forward());
        const auto pageless_code = co_await pageless;
        CHECK((pageless_code == errc::not_supported));
    });
    CHECK(w.page->ended == parts::most_forwards); // none outlives its link
}

} // namespace page_forward_test
