// SPDX-License-Identifier: Apache-2.0
#pragma once
// The control thread of a joined_group and what lives on it.

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/net/readable_fd.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>
#include <skein/proc/process.hpp>
#include <skein/spmd/meeting.hpp>

#include <unistd.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::spmd {

class joined_group::impl {
public:
    impl(launch_environment place, net::token shared, joined_group_options options)
        : where(std::move(place)), secret(shared), host(proc::host_name()),
          options_(std::move(options)), control_("control") {
        control_.run([this] { return join_unless_stopped(); });
    }
    ~impl() {
        control_.run([this] { return leave_hard(); });
    }
    impl(const impl&) = delete;
    impl& operator=(const impl&) = delete;

    std::vector<byte_buffer> exchange(std::string key, byte_buffer mine) {
        return control_.run([&] { return exchange_within(std::move(key), std::move(mine)); });
    }
    void tell(std::string key, byte_buffer what) {
        control_.run([&] { return tell_server(std::move(key), std::move(what)); });
    }
    void leave(std::optional<error> why) {
        control_.run([&] { return end(std::move(why)); });
    }

    // Written by the constructor, then only read.
    launch_environment where;
    net::token secret;
    std::string host;
    int generation = 0;
    std::vector<member_info> members;
    byte_buffer given;
    loss_listeners losses;

private:
    /// What lives on the control thread.
    struct on_thread {
        explicit on_thread(net::real_loop& loop) : network(loop) {}
        net::real_network network;
        std::unique_ptr<group_server> server;
        std::unique_ptr<group_client> client;
        scope serving;
    };

    static task<void> serve(group_server* server) {
        auto run = server->run();
        (void)co_await run; // the ranks learn the outcome from the protocol
    }

    [[nodiscard]] member_info self() const {
        member_info me;
        me.rank = where.rank;
        me.world_size = where.world_size;
        me.local_rank = where.local_rank;
        me.local_size = where.local_size;
        me.host = host;
        me.pid = ::getpid();
        return me;
    }

    [[nodiscard]] group_options group() const {
        group_options options;
        options.world_size = where.world_size;
        options.generation = where.attempt;
        options.job = where.job_id;
        options.settings = options_.settings;
        options.secret = secret;
        options.join_deadline = options_.join_deadline;
        // A supervisor that is stopped for a while (Ctrl-Z) is not lost: its death closes the
        // socket and the kernel ends this process.
        if (is_supervised()) options.alive.mode = net::keep_alive_mode::automatic;
        return options;
    }

    /// When fd is readable, asks the work of `stop` to end.
    static task<void> watch(net::real_loop* loop, int fd, cancel_source stop) {
        auto asked = net::wait_readable(*loop, fd);
        co_await asked;
        stop.request();
    }

    task<void> join_unless_stopped() {
        state_ = std::make_unique<on_thread>(control_.loop());
        cancel_source stop;
        scope watching;
        if (options_.stop_fd >= 0) watching.spawn(watch(&control_.loop(), options_.stop_fd, stop));
        std::exception_ptr failure;
        try {
            auto joined = with_cancel(stop.token(), join_group());
            co_await joined;
        } catch (...) {
            failure = std::current_exception();
        }
        watching.cancel();
        auto watched = as_result(watching.join()); // without a watcher it is as good
        (void)co_await watched;
        if (!failure) co_return;
        const error stopped(
            errc::cancelled,
            fmt::format("rank {} was stopped while the ranks were meeting", where.rank));
        if (stop.requested() && state_->server) state_->server->abort(stopped, where.rank);
        auto cleared = clear(true);
        co_await cleared;
        if (stop.requested()) throw stopped;
        std::rethrow_exception(failure);
    }

    task<void> join_group() {
        const auto options = group();
        const auto at = meeting_point(where);
        if (where.rank == 0 && !is_supervised()) {
            state_->server =
                std::make_unique<group_server>(state_->network, listening_point(where), options);
            state_->serving.spawn(serve(state_->server.get()));
        }
        auto joined =
            group_client::join(state_->network, at, self(), options,
                               [this](int rank, const error& why) { losses.tell(rank, why); });
        state_->client = co_await joined;
        members = state_->client->members();
        generation = state_->client->generation();
        given = state_->client->given();
    }

    task<std::vector<byte_buffer>> exchange_within(std::string key, byte_buffer mine) {
        if (!state_ || !state_->client)
            throw error(errc::closed, "exchange after leaving the group");
        auto exchanged = with_timeout(state_->client->exchange(key, std::move(mine)),
                                      options_.exchange_deadline);
        try {
            co_return co_await exchanged;
        } catch (const error& e) {
            if (e.code() != errc::timeout) throw;
            throw error(errc::timeout,
                        fmt::format("rank {} waited {:.3g} s for the other ranks at '{}'",
                                    where.rank, to_seconds(options_.exchange_deadline), key));
        }
    }

    task<void> tell_server(std::string key, byte_buffer what) {
        if (!state_ || !state_->client) throw error(errc::closed, "a word after leaving the group");
        state_->client->tell(std::move(key), std::move(what));
        co_return;
    }

    task<void> end(std::optional<error> why) {
        if (!state_) co_return;
        if (state_->client) {
            auto ended = why ? state_->client->fail(*why) : state_->client->leave();
            co_await ended;
            state_->client.reset();
        }
        auto cleared = clear(false);
        co_await cleared;
    }
    task<void> leave_hard() {
        if (!state_) co_return;
        if (state_->client) {
            auto ended = state_->client->fail(error(errc::peer_lost, "it left without a word"));
            co_await ended;
            state_->client.reset();
        }
        auto cleared = clear(true);
        co_await cleared;
    }
    /// Ends serving: in order (waits for the other ranks) or at once.
    task<void> clear(bool at_once) {
        if (at_once) state_->serving.cancel();
        try {
            auto joined = state_->serving.join();
            co_await joined;
        } catch (const error&) { // cancelled, or a listener error that the join already reported
        }
        state_.reset();
    }

    joined_group_options options_;
    std::unique_ptr<on_thread> state_;
    net::loop_thread control_;
};

SKEIN_INLINE joined_group::joined_group(launch_environment where, net::token secret,
                                        joined_group_options options)
    : impl_(std::make_unique<impl>(std::move(where), secret, std::move(options))) {}
SKEIN_INLINE joined_group::~joined_group() = default;

SKEIN_INLINE int joined_group::rank() const { return impl_->where.rank; }
SKEIN_INLINE int joined_group::world_size() const { return impl_->where.world_size; }
SKEIN_INLINE int joined_group::local_rank() const { return impl_->where.local_rank; }
SKEIN_INLINE int joined_group::local_size() const { return impl_->where.local_size; }
SKEIN_INLINE int joined_group::generation() const { return impl_->generation; }
SKEIN_INLINE std::string joined_group::host() const { return impl_->host; }
SKEIN_INLINE net::token joined_group::secret() const { return impl_->secret; }
SKEIN_INLINE const std::vector<member_info>& joined_group::members() const noexcept {
    return impl_->members;
}
SKEIN_INLINE std::vector<byte_buffer> joined_group::exchange(std::string_view key, byte_span mine) {
    return impl_->exchange(std::string(key), to_buffer(mine));
}
SKEIN_INLINE const byte_buffer& joined_group::given() const noexcept { return impl_->given; }
SKEIN_INLINE void joined_group::tell(std::string_view key, byte_span what) {
    impl_->tell(std::string(key), to_buffer(what));
}
SKEIN_INLINE subscription joined_group::on_lost(loss_listeners::listener lost) {
    return impl_->losses.add(std::move(lost));
}
SKEIN_INLINE bool joined_group::wait_lost(time_span limit) { return impl_->losses.wait(limit); }
SKEIN_INLINE void joined_group::leave() { impl_->leave(std::nullopt); }
SKEIN_INLINE void joined_group::fail(const error& why) { impl_->leave(why); }

} // namespace skein::spmd
