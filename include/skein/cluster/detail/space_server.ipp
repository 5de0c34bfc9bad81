// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/space server.hpp.

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/detail/serve_role.hpp>
#include <skein/cluster/leased_workers.hpp>
#include <skein/core/event.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/notice.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/scope.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/proc/boot.hpp>
#include <skein/proc/process.hpp>
#include <skein/proc/standard_files.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/rt/worker_source.hpp>
#include <skein/wire/decode.hpp>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include <unistd.h>

#include <fmt/format.h>

namespace skein::cluster {

struct space_server::state {
    state(loop& on, net::network& via, space_server_options given)
        : on_loop(on), times(given.times), self(identity(given)),
          workers(on, via, self, wanted(given, &stopping)) {
        self.keep_space(given.order.space);
        self.ask(&workers);
    }

    [[nodiscard]] static rt::runtime_options identity(const space_server_options& given) {
        rt::runtime_options who;
        who.name = fmt::format("space server of {}", given.order.space);
        who.host = given.host;
        who.pid = given.pid;
        who.incarnation = given.order.incarnation;
        return who;
    }
    [[nodiscard]] static leased_workers_options wanted(const space_server_options& given,
                                                       event* stopping) {
        const auto& order = given.order;
        const auto at = net::address::parse(order.head);
        if (!at || order.key.size() != net::token::size || order.space.empty())
            throw error(errc::malformed, "the boot message of this space server cannot be read");
        leased_workers_options o;
        o.head = *at;
        o.secret =
            net::token::of_bytes({net::key_kind::space_server, order.incarnation}, order.key);
        o.name = std::filesystem::path(order.program).filename().string();
        o.executable = order.executable;
        o.program = order.program;
        o.folder = order.folder;
        o.listen = given.listen;
        o.times = given.times;
        o.space = order.space;
        o.space_node = order.node;
        o.on_give_up = [stopping] { stopping->set(); };
        return o;
    }

    /// Until it is told to end, or nobody has needed it for long.
    static task<void> watch(state* b) {
        std::optional<time_point> idle_since;
        while (!b->stopping.is_set()) {
            const bool is_idle = b->self.known_actors() == 0 && b->self.space_clients() == 0;
            const auto now = b->on_loop.now();
            if (!is_idle)
                idle_since.reset();
            else if (!idle_since)
                idle_since = now;
            else if (now - *idle_since >= b->times.space_server_idle)
                co_return;
            auto pause = b->stopping.wait_for(std::chrono::milliseconds(500));
            co_await pause;
        }
    }
    static task<void> serve(state* b) {
        scope services;
        services.spawn(b->workers.serve());
        std::exception_ptr failure;
        try {
            auto watching = watch(b);
            co_await watching;
        } catch (...) {
            failure = std::current_exception();
        }
        if (failure) {
            services.cancel();
        } else {
            b->stopping.set();
            b->workers.stop();
            auto goodbye = as_result(b->self.close());
            (void)co_await goodbye;
        }
        auto ended = as_result(shield(services.join()));
        (void)co_await ended;
        if (failure) {
            auto left = as_result(shield(b->self.close()));
            (void)co_await left;
        }
        if (failure) std::rethrow_exception(failure);
    }

    loop& on_loop;
    time_constants times;
    event stopping;
    rt::runtime self;
    leased_workers workers;
};

SKEIN_INLINE space_server::space_server(loop& on, net::network& via, space_server_options how)
    : state_(std::make_unique<state>(on, via, std::move(how))) {}
SKEIN_INLINE space_server::~space_server() = default;
SKEIN_INLINE task<void> space_server::serve() { return state::serve(state_.get()); }
SKEIN_INLINE void space_server::stop() noexcept { state_->stopping.set(); }
SKEIN_INLINE std::size_t space_server::actors() const noexcept {
    return state_->self.known_actors();
}
SKEIN_INLINE std::size_t space_server::space_clients() const noexcept {
    return state_->self.space_clients();
}

SKEIN_INLINE int run_space_server() {
    try {
        proc::open_standard_files();
        proc::outlive_readers();
        auto mine = proc::take_boot(rt::space_server_role);
        auto order = mine ? wire::decode<space_server_order>(mine->message)
                          : result<space_server_order>(
                                error(errc::usage, "no space server was started here"));
        if (!order) throw order.error();
        proc::name_process("space_server");
        ::setenv(rt::in_job_variable, "1", 1);
        space_server_options how;
        how.order = std::move(*order);
        how.host = proc::host_name();
        how.pid = ::getpid();
        net::real_loop loop;
        net::real_network network(loop);
        space_server k(loop, network, std::move(how));
        return loop.run(detail::serve_role(&loop, &k));
    } catch (const std::exception& e) {
        if (!proc::leave_last_words(text_of(e)))
            write_notice(fmt::format("error: {}\n", printable_lines(text_of(e))));
        return exit_code::failed;
    }
}

} // namespace skein::cluster
