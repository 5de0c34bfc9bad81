// SPDX-License-Identifier: Apache-2.0
#include "net/support.hpp"

#include <skein/net/detail/folder_messages.hpp>
#include <skein/net/folder_server.hpp>
#include <skein/net/link.hpp>
#include <skein/net/requests.hpp>
#include <skein/sim/disk.hpp>

#include <catch2/catch_test_macros.hpp>

#include <functional>
#include <string>
#include <vector>

using namespace net_test;

namespace folder_server_test {

using net::detail::far_act;
using net::detail::far_deed;

/// A folder of the host "b" on a simulated disk, and a way to it from "a".
struct world {
    explicit world(std::uint64_t seed) : loop(seed), network(loop, sim::faults()) {}

    using body = std::function<task<void>(world&)>;

    void run(body work) {
        loop.run(whole(this, std::move(work)));
        CHECK(network.open_streams() == 0);
    }
    static task<void> whole(world* w, body work) {
        net::folder_server server(w->network.host("b"), net::address::sim("b", 1), options().secret,
                                  w->disk, "/runs");
        w->server = &server;
        scope serving;
        serving.spawn(server.serve());
        auto running = error_of(with_timeout(work(*w), 100s));
        const auto fault = co_await running;
        serving.cancel();
        auto ended = as_result(serving.join());
        (void)co_await ended;
        w->server = nullptr;
        if (fault) throw *fault;
    }
    static task<net::requests::handle> reach(world* w) {
        auto dialing = net::link::connect(w->network.host("a"), net::address::sim("b", 1),
                                          net::detail::far_link(options().secret, "a"),
                                          net::detail::far_link_options());
        auto l = co_await dialing;
        co_return net::requests::over(std::move(l));
    }

    sim::loop loop;
    sim::network network;
    sim::disk disk;
    net::folder_server* server = nullptr;
};

task<std::uint64_t> open(net::requests::handle way, std::string path, open_mode mode) {
    net::detail::far_open m;
    m.path = std::move(path);
    m.mode = mode;
    auto opening = way->call<net::detail::far_opened>(std::move(m));
    co_return (co_await opening).file;
}
task<void> write(net::requests::handle way, std::uint64_t file, std::string text) {
    net::detail::far_write m;
    m.file = file;
    m.is_at_end = true;
    m.bytes = to_buffer(as_bytes(std::string_view(text)));
    auto writing = way->call<net::detail::far_number>(std::move(m));
    (void)co_await writing;
}
task<std::uint64_t> act(net::requests::handle way, std::uint64_t file, far_act what) {
    net::detail::far_file_act m;
    m.file = file;
    m.what = what;
    auto acting = way->call<net::detail::far_number>(std::move(m));
    co_return (co_await acting).value;
}
task<void> deed(net::requests::handle way, far_deed what, std::string path, std::string to = {}) {
    net::detail::far_name_deed m;
    m.what = what;
    m.path = std::move(path);
    m.to = std::move(to);
    auto doing = way->call<net::detail::far_names>(std::move(m));
    (void)co_await doing;
}

/// As a save does it: parts, synced, and the name at last.
task<void> save(net::requests::handle way, std::string name, int pieces) {
    auto making = deed(way, far_deed::make_dirs, name + ".part");
    co_await making;
    auto opening = open(way, name + ".part/shard", open_mode::create_new);
    const auto file = co_await opening;
    for (int i = 0; i < pieces; ++i) {
        auto writing = write(way, file, std::string(3000, static_cast<char>('a' + i)));
        co_await writing;
    }
    for (const auto what : {far_act::sync, far_act::close}) {
        auto acting = act(way, file, what);
        (void)co_await acting;
    }
    auto naming = deed(way, far_deed::sync_dir, name + ".part");
    co_await naming;
    auto renaming = deed(way, far_deed::rename, name + ".part", name);
    co_await renaming;
    auto syncing = deed(way, far_deed::sync_dir, "");
    co_await syncing;
}

/// Until it is told that it is over.
task<void> break_often(world* w, bool* is_over) {
    while (!*is_over) {
        auto pause = sleep_for(w->loop.random().below(30) * 1ms);
        co_await pause;
        w->network.reset("a", "b");
    }
}

/// As a rank that is started again after it has lost its link.
task<int> save_often(world* w, int steps) {
    int lost = 0;
    for (int step = 1; step <= steps;) {
        auto reaching = as_result(world::reach(w));
        const auto way = co_await reaching;
        if (!way) continue;
        const auto name = fmt::format("step-{}", step);
        auto looking = as_result(deed(*way, far_deed::status, name));
        const bool is_there = (co_await looking).has_value(); // its end was not heard
        auto cleaning = as_result(deed(*way, far_deed::remove, name + ".part/shard"));
        (void)co_await cleaning;
        auto saving =
            as_result(is_there ? deed(*way, far_deed::sync_dir, "") : save(*way, name, 8));
        const auto saved = co_await saving;
        step += saved ? 1 : 0;
        lost += saved ? 0 : 1;
        auto closing = (*way)->close();
        co_await closing;
    }
    co_return lost;
}

TEST_CASE("what has its name in a far folder is whole, however often its link breaks", "[net]") {
    int lost = 0;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        world w(seed);
        w.run([&lost](world& in) -> task<void> { // NOLINT: outlives the run
            bool is_over = false;
            scope beside;
            beside.spawn(break_often(&in, &is_over));
            auto saving = save_often(&in, 5);
            lost += co_await saving;
            is_over = true;
            auto quiet = beside.join();
            co_await quiet;
        });
        const auto after = w.disk.crash(sim::crash_mode::only_synced);
        for (int step = 1; step <= 5; ++step) {
            const auto text = after->read_whole(fmt::format("/runs/step-{}/shard", step));
            REQUIRE(text);
            REQUIRE(text->size() == 8 * 3000);
            for (int i = 0; i < 8; ++i)
                CHECK(static_cast<char>((*text)[static_cast<std::size_t>(i) * 3000]) == 'a' + i);
        }
    }
    CHECK(lost > 0);
}

TEST_CASE("nothing out of a far folder can be named", "[net]") {
    world w(2);
    w.run([](world& in) -> task<void> {
        auto making = in.disk.make_dirs("/other");
        REQUIRE(making);
        auto reaching = world::reach(&in);
        const auto way = co_await reaching;
        const std::vector<std::string> wrong{
            "..",    "../other", "a/../../other",       "/other", "a//b",
            "a/./b", "a/",       std::string("a\0b", 3)};
        for (const auto& path : wrong) {
            auto listing = error_of(deed(way, far_deed::list, path));
            const auto no = co_await listing;
            REQUIRE(no);
            CHECK(no->code() == errc::permission_denied);
            auto renaming = error_of(deed(way, far_deed::rename, "", path));
            const auto not_there = co_await renaming;
            REQUIRE(not_there);
            CHECK(not_there->code() == errc::permission_denied);
            auto opening = error_of(drop_value(open(way, path, open_mode::write)));
            const auto not_open = co_await opening;
            REQUIRE(not_open);
            CHECK(not_open->code() == errc::permission_denied);
        }
        auto acting = error_of(drop_value(act(way, 7, far_act::size)));
        const auto none = co_await acting;
        REQUIRE(none);
        CHECK(none->code() == errc::closed);
        auto closing = way->close();
        co_await closing;
    });
}

TEST_CASE("one link of a far folder has so many files open, and no more", "[net]") {
    world w(3);
    w.run([](world& in) -> task<void> {
        auto reaching = world::reach(&in);
        const auto way = co_await reaching;
        auto making = deed(way, far_deed::make_dirs, "");
        co_await making;
        for (std::size_t i = 0; i < net::detail::most_far_files; ++i) {
            auto opening = open(way, "file", open_mode::append);
            (void)co_await opening;
        }
        auto opening = error_of(drop_value(open(way, "file", open_mode::append)));
        const auto no = co_await opening;
        REQUIRE(no);
        CHECK(no->code() == errc::exhausted);
        auto ending = act(way, 1, far_act::close);
        (void)co_await ending;
        auto again = open(way, "file", open_mode::append);
        (void)co_await again;
        auto closing = way->close();
        co_await closing;
    });
}

} // namespace folder_server_test
