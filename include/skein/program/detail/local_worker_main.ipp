// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of program/local_workers.hpp: the life of a worker, in its own process.

#include <skein/core/awaitable.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/notice.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/scope.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/link.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/net/socket_pair.hpp>
#include <skein/objects/local_store.hpp>
#include <skein/proc/boot.hpp>
#include <skein/proc/detail/threads.hpp>
#include <skein/proc/leftovers.hpp>
#include <skein/proc/process.hpp>
#include <skein/proc/standard_files.hpp>
#include <skein/rt/detail/space_state.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/rt/worker_source.hpp>
#include <skein/wire/decode.hpp>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <unistd.h>

#include <fmt/format.h>

namespace skein::program {

SKEIN_INLINE bool is_worker() noexcept { return proc::started_as(rt::worker_role); }

namespace detail {

SKEIN_INLINE std::string short_worker_name(std::string_view name) {
    constexpr std::string_view usual = "worker-";
    return name.starts_with(usual) ? "w" + std::string(name.substr(usual.size()))
                                   : std::string(name);
}

/// The worker's own process: what it inherited, and the network of its host.
SKEIN_INLINE task<void> work(net::real_loop* loop, rt::runtime* self, proc::boot mine) {
    net::real_network network(*loop);
    std::unique_ptr<net::stream> inherited;
    if (const auto order = wire::decode<rt::worker_order>(mine.message))
        proc::detail::threads_vary = order->is_shared;
    if (mine.socket) inherited = net::adopt_unix_stream(*loop, mine.socket.release(), "driver");
    // An actor, and a call that runs, may wait for a child later.
    scope beside;
    beside.spawn(
        proc::reap_leftovers([self] { return self->running() == 0 && self->actors() == 0; }));
    auto working =
        as_result(work_for_driver(&network, self, std::move(mine.message), std::move(inherited),
                                  std::move(mine.memory), std::move(mine.files)));
    const auto done = co_await working;
    beside.cancel();
    auto ended = as_result(shield(beside.join()));
    (void)co_await ended;
    if (!done) throw done.error();
}

/// The store of its node, if its driver has one.
SKEIN_INLINE std::shared_ptr<objects::store_client> join_store(rt::runtime& self,
                                                               std::weak_ptr<net::channel> driver,
                                                               const rt::worker_order& mine,
                                                               std::vector<unique_fd> files) {
    if (mine.store.empty()) return nullptr;
    const bool has_peers = mine.resumes; // it is one of many, on the nodes of a cluster
    if (const auto wire = driver.lock(); has_peers && !(wire && rt::has_store_for_nodes(*wire)))
        return nullptr;
    const auto secret = net::token::from_hex(to_hex(mine.store)).value();
    auto store = objects::inherited_client(
        static_cast<net::real_loop&>(loop::current()), std::move(files), secret,
        objects::process_id(self.incarnation()),
        [driver = std::move(driver)] {
            if (const auto wire = driver.lock()) rt::want_store(*wire);
        },
        has_peers, mine.store_number);
    rt::use_store(self, store);
    return store;
}

SKEIN_INLINE task<net::channel::handle> meet(net::network* via, net::address driver,
                                             net::connection_options options) {
    auto connecting = net::connection::connect(*via, std::move(driver), std::move(options));
    co_return co_await connecting;
}

SKEIN_INLINE task<net::channel::handle> meet(net::network* via, net::address driver,
                                             net::connection_options options, rt::runtime* self) {
    auto how = worker_links(*self, time_constants::lan().worker_computes);
    how.first.max_tries = 10; // its door may be full
    auto connecting = net::link::connect(*via, std::move(driver), std::move(options), how);
    co_return co_await connecting;
}

} // namespace detail

SKEIN_INLINE task<void> work_for_driver(net::network* via, rt::runtime* self, byte_buffer order,
                                        std::unique_ptr<net::stream> inherited,
                                        proc::shared_memory memory, std::vector<unique_fd> files) {
    auto mine = wire::decode<rt::worker_order>(order);
    if (!mine || mine->token.size() != net::token::size)
        throw error(errc::malformed, "the boot message of this worker cannot be read");
    const auto secret = net::token::from_hex(to_hex(mine->token)).value();
    const bool in_memory = inherited != nullptr;
    rt::worker_link ours{secret, mine->cpus, in_memory, static_cast<bool>(memory)};
    ours.start = time_constants::lan().start_timeout;
    rt::tell_store_number(*self, mine->store_number);
    net::address to;
    if (!in_memory) to = net::address::parse(mine->address).value();
    if (mine->direct) {
        net::address far;
        if (!in_memory)
            far = !to.is_loopback()             ? net::address::any(0)
                  : to.kind == net::scheme::tcp ? net::address::tcp(to.host, 0)
                                                : net::address::tcp(net::own_loopback(), 0);
        self->open_to_workers(
            *via, secret,
            net::address::abstract_unix( // who looks for leftovers finds the pid in the name
                fmt::format("skein-{}-{:016x}", self->name().pid, self->incarnation())),
            far);
    }
    auto& spaces = rt::detail::space_state::of(*self);
    spaces.via = via;
    spaces.secret = secret;
    spaces.head_host = mine->head_host;
    auto options = worker_connection(*self, ours);
    net::connected_network pair(std::move(inherited));
    net::network& network = in_memory ? pair : *via;
    auto meeting = mine->resumes ? detail::meet(via, std::move(to), std::move(options), self)
                                 : detail::meet(&network, std::move(to), std::move(options));
    auto wire = co_await meeting;
    const auto store = detail::join_store(*self, wire, *mine, std::move(files));
    auto served =
        self->serve_driver(wire, memory ? proc::claims(std::move(memory)) : proc::claims());
    co_await served;
    if (store) {
        auto left = store->close();
        co_await left;
    }
    auto closed = wire->close();
    co_await closed;
}

SKEIN_INLINE int worker_main() {
    try {
        auto mine = proc::take_boot(rt::worker_role);
        if (!mine) throw error(errc::usage, "this process was not started as a worker");
        proc::name_process(detail::short_worker_name(mine->name));
        proc::print_by_lines();
        proc::outlive_readers();
        ::setenv(rt::in_job_variable, "1", 1); // what a task starts is no process of a launcher
        net::real_loop loop;
        rt::runtime_options who;
        who.name = mine->name;
        who.host = proc::host_name();
        who.pid = ::getpid();
        rt::runtime self(who);
        const rt::runtime::use current(self);
        loop.run(detail::work(&loop, &self, std::move(*mine)));
        return exit_code::done;
    } catch (const std::exception& e) {
        if (!proc::leave_last_words(text_of(e)))
            write_notice(fmt::format("error: {}\n", printable_lines(text_of(e))));
        return exit_code::failed;
    } catch (...) {
        static constexpr const char* why = "something that is not a std::exception was thrown";
        if (!proc::leave_last_words(why)) write_notice(fmt::format("error: {}\n", why));
        return exit_code::failed;
    }
}

[[noreturn]] SKEIN_INLINE void detail::live_as_worker() {
    // Of several threads that call run() one is the worker; the others wait for its end.
    static constinit std::atomic_flag taken = ATOMIC_FLAG_INIT;
    while (taken.test_and_set()) ::pause();
    std::exit(worker_main());
}

} // namespace skein::program
