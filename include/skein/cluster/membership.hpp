// SPDX-License-Identifier: Apache-2.0
#pragma once
// One rank's place in its group, in the real world: the control thread with the group client, behind
// the rendezvous interface. In a world without a supervisor rank 0's control thread also serves the group.
//
// The control thread never computes, so a long kernel cannot miss a heartbeat.

#include <skein/cluster/environment.hpp>
#include <skein/cluster/group.hpp>
#include <skein/cluster/meeting.hpp>
#include <skein/cluster/rendezvous.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/net/real_network.hpp>
#include <skein/rt/process.hpp>

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::cluster {

/// Joins in the constructor, which blocks until all ranks are there. leave() or fail() before the end;
/// the destructor without either looks to the others like a crash.
class membership final : public rendezvous {
public:
    /// exchange_deadline is how long exchange() waits for the slowest rank.
    ///   errors  those of group_client::join; already_exists: rank 0's port is in use
    membership(launch_environment where, net::token secret,
               duration join_deadline = std::chrono::seconds(60),
               duration exchange_deadline = std::chrono::seconds(120))
        : where_(std::move(where)), secret_(secret), exchange_deadline_(exchange_deadline),
          control_("control") {
        control_.run([&] { return join_group(join_deadline); });
    }
    ~membership() override {
        control_.run([this] { return leave_hard(); });
    }

    [[nodiscard]] int rank() const override { return where_.rank; }
    [[nodiscard]] int world_size() const override { return where_.world_size; }
    [[nodiscard]] int local_rank() const override { return where_.local_rank; }
    [[nodiscard]] int local_size() const override { return where_.local_size; }
    [[nodiscard]] int generation() const override { return generation_; }
    [[nodiscard]] std::string host() const override { return host_; }
    [[nodiscard]] net::token secret() const override { return secret_; }
    [[nodiscard]] const std::vector<member_info>& members() const noexcept { return members_; }

    std::vector<byte_buffer> exchange(std::string_view key, byte_span mine) override {
        auto blob = to_buffer(mine);
        return control_.run([&] { return exchange_within(std::string(key), std::move(blob)); });
    }

    void on_lost(unique_function<void(int, const error&)> lost) override {
        const std::lock_guard lock(lost_mutex_);
        on_lost_ = std::move(lost);
        if (lost_ && on_lost_) on_lost_(lost_->first, lost_->second);
    }

    /// Blocks until another rank is known to be lost or to have failed, at most so long; false if not.
    /// What went wrong elsewhere is often seen first as a broken collective here.
    [[nodiscard]] bool wait_lost(duration limit) {
        std::unique_lock lock(lost_mutex_);
        return lost_seen_.wait_for(lock, limit, [&] { return lost_.has_value(); });
    }

    /// This rank is done. Rank 0 of an unsupervised world returns when all ranks are.
    void leave() {
        control_.run([this] { return end(std::nullopt); });
    }
    /// This rank fails; the others are told why.
    void fail(const error& why) {
        control_.run([this, &why] { return end(why); });
    }

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

    task<void> join_group(duration deadline) {
        state_ = std::make_unique<on_thread>(control_.loop());
        group_options options;
        options.world_size = where_.world_size;
        options.generation = where_.attempt;
        options.secret = secret_;
        options.join_deadline = deadline;
        // A supervisor that is stopped for a while (Ctrl-Z) is not lost: its death closes the socket and
        // the kernel ends this process.
        if (is_supervised()) options.alive.mode = net::keep_alive_mode::automatic;
        const auto at = meeting_point(where_);
        if (where_.rank == 0 && !is_supervised()) {
            state_->server =
                std::make_unique<group_server>(state_->network, listening_point(where_), options);
            state_->serving.spawn(serve(state_->server.get()));
        }
        member_info self;
        self.rank = where_.rank;
        self.world_size = where_.world_size;
        self.local_rank = where_.local_rank;
        self.local_size = where_.local_size;
        self.host = host_ = rt::host_name();
        self.pid = ::getpid();
        std::exception_ptr failure;
        try {
            auto joined =
                group_client::join(state_->network, at, std::move(self), options,
                                   [this](int rank, const error& why) { lose(rank, why); });
            state_->client = co_await joined;
        } catch (...) {
            failure = std::current_exception();
        }
        if (failure) {
            auto cleared = clear(true);
            co_await cleared;
            std::rethrow_exception(failure);
        }
        members_ = state_->client->members();
        generation_ = state_->client->generation();
    }

    task<std::vector<byte_buffer>> exchange_within(std::string key, byte_buffer mine) {
        if (!state_ || !state_->client)
            throw error(errc::closed, "exchange after leaving the group");
        auto exchanged =
            with_timeout(state_->client->exchange(key, std::move(mine)), exchange_deadline_);
        try {
            co_return co_await exchanged;
        } catch (const error& e) {
            if (e.code() != errc::timeout) throw;
            throw error(errc::timeout,
                        fmt::format("rank {} waited {:.3g} s for the other ranks at '{}'",
                                    where_.rank, to_seconds(exchange_deadline_), key));
        }
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

    void lose(int rank, const error& why) {
        const std::lock_guard lock(lost_mutex_);
        lost_.emplace(rank, why);
        lost_seen_.notify_all();
        if (on_lost_) on_lost_(rank, why);
    }

    launch_environment where_;
    net::token secret_;
    duration exchange_deadline_;
    std::string host_;
    int generation_ = 0;
    std::vector<member_info> members_;
    std::mutex lost_mutex_;
    std::condition_variable lost_seen_;
    std::optional<std::pair<int, error>> lost_;
    unique_function<void(int, const error&)> on_lost_;
    std::unique_ptr<on_thread> state_;
    net::loop_thread control_;
};

} // namespace skein::cluster
