// SPDX-License-Identifier: Apache-2.0
#pragma once
// A store on a simulated host, and processes on others that use it.

#include <tests/support/sim_volume.hpp>

#include <skein/core/awaitable.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/connection.hpp>
#include <skein/objects/store.hpp>
#include <skein/objects/store_client.hpp>
#include <skein/sim/disk.hpp>
#include <skein/sim/loop.hpp>
#include <skein/sim/network.hpp>
#include <skein/wire/encode.hpp>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace objects_test {

/// A process.
struct user {
    std::shared_ptr<skein::objects::store_client> client;
};

struct world {
    explicit world(std::uint64_t bytes) : memory(skein::objects::arena::in_memory(bytes)) {}
    /// The same with a disk for what finds no room.
    world(std::uint64_t bytes, skein::sim::disk_options how)
        : memory(skein::objects::arena::in_memory(bytes)), disk(how), has_disk(true) {}

    skein::sim::loop loop{7};
    skein::sim::network network{loop, skein::sim::faults()};
    skein::objects::arena memory;
    skein::sim::disk disk;
    bool has_disk = false;
    std::optional<skein::objects::store> store;
    std::vector<std::shared_ptr<user>> users;
    std::uint64_t last_process = 0;

    void run(std::function<skein::task<void>(world&)> work) { loop.run(whole(this, &work)); }

    [[nodiscard]] static skein::net::connection_options options(std::uint64_t process) {
        skein::net::connection_options o;
        o.secret = skein::net::token::from_hex(std::string(64, '7')).value();
        o.self.name = "user";
        if (process != 0)
            o.self.extra = skein::wire::encode(
                skein::objects::store_hello{skein::objects::process_id(process)});
        return o;
    }
    skein::task<skein::net::connection::handle> dial(std::string host, std::uint64_t process) {
        auto connecting = skein::net::connection::connect(
            network.host(host), skein::net::address::sim("store", 1), options(process));
        co_return co_await connecting;
    }
    skein::task<std::shared_ptr<user>> join(std::string host, std::uint64_t process = 0) {
        if (process == 0) process = ++last_process;
        auto made = std::make_shared<user>();
        made->client = skein::objects::store_client::make(
            loop, memory, skein::objects::process_id(process),
            [this, host, process] { return dial(host, process); });
        users.push_back(made);
        co_return made;
    }
    skein::task<void> leave(user& who) {
        auto leaving = who.client->close();
        co_await leaving;
        co_await skein::sleep_for(std::chrono::milliseconds(100));
    }

private:
    static skein::task<void> accept(world* w, skein::net::listener* at, skein::scope* into) {
        try {
            for (;;) {
                auto next = at->accept();
                auto stream = co_await next;
                into->spawn(serve(w, std::move(stream)));
            }
        } catch (const skein::error&) { // closed
        }
    }
    static skein::task<void> serve(world* w, std::unique_ptr<skein::net::stream> from) {
        try {
            auto meeting = skein::net::connection::accept(std::move(from), options(0));
            auto wire = co_await meeting;
            auto served = w->store->serve(std::move(wire));
            co_await served;
        } catch (const skein::error&) { // it has gone before it came
        }
    }
    static skein::task<void> whole(world* w, std::function<skein::task<void>(world&)>* work) {
        std::unique_ptr<skein::objects::spill_volume> files;
        if (w->has_disk) files = std::make_unique<skein::test::sim_volume>(w->disk);
        w->store.emplace(w->memory, 4711, skein::objects::store_times(), std::move(files));
        const auto door = w->network.host("store").listen(skein::net::address::sim("store", 1));
        skein::scope serving;
        serving.spawn(accept(w, door.get(), &serving));
        auto running =
            skein::as_result(skein::with_timeout((*work)(*w), std::chrono::seconds(1000)));
        const auto done = co_await running;
        for (const auto& one : w->users) {
            auto leaving = one->client->close();
            co_await leaving;
        }
        w->users.clear();
        door->close();
        auto closing = w->store->close();
        co_await closing;
        serving.cancel();
        auto joined =
            skein::as_result(skein::with_timeout(serving.join(), std::chrono::seconds(100)));
        (void)co_await joined;
        w->store.reset();
        if (!done) throw done.error();
    }
};

} // namespace objects_test
