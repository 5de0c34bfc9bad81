// SPDX-License-Identifier: Apache-2.0
#pragma once
// The keeper of workers that this process starts, each with one connection to it: its children on
// this host, or leases on the nodes of a cluster, wherever proc::children has them. A worker that is
// silent is killed: it may hold what others wait for.

#include <skein/core/config.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/net/address.hpp>
#include <skein/net/limits.hpp>
#include <skein/net/token.hpp>
#include <skein/spmd/elastic_keeper.hpp>
#include <skein/spmd/silence_limit.hpp>
#include <skein/spmd/supervisor.hpp>
#include <skein/spmd/view.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace skein::net {
class connection;
class endpoint;
class network;
} // namespace skein::net
namespace skein::proc {
class child;
class children;
} // namespace skein::proc

namespace skein::spmd {
namespace detail {
struct member_hello;
}

/// What a keeper starts, and how long it waits for a sign of life.
struct local_keeper_options : rank_program {
    std::uint64_t id = 1;
    std::string host{};
    int places = 1;
    int least = 1, most = 1; ///< of the job, for its workers
    std::string job{};
    net::address door{}; ///< where its workers reach it; port 0: any
    net::token secret{}; ///< of these connections
    net::keep_alive alive{net::keep_alive_mode::on, time_constants::lan().group_heartbeat,
                          time_constants::lan().suspect_after, time_constants::lan().suspect_after};
    /// A busy host may learn a longer alive.dead_after, at most this; see spmd/silence_limit.hpp.
    time_span most_silence = std::chrono::seconds(10);
};

/// Lives on one loop. What it starts dies with it.
class local_keeper final : public elastic_keeper {
public:
    /// Listens at once. All but `options` must outlive it.
    ///   errors  those of network::listen
    local_keeper(net::network& via, proc::children& on, local_keeper_options options);
    ~local_keeper() override;

    /// Serves the workers' connections until cancelled; then all workers are killed and gone.
    ///   to  hears of them from now on; must outlive this
    [[nodiscard]] task<void> run(keeper_listener& to);

    [[nodiscard]] std::uint64_t id() const noexcept override { return options_.id; }
    [[nodiscard]] const std::string& host() const noexcept override { return options_.host; }
    [[nodiscard]] int places() const noexcept override { return options_.places; }
    [[nodiscard]] bool places_later() const noexcept override;
    void start(std::uint64_t worker) override;
    void kill(std::uint64_t worker) override;
    void keep_place(std::uint64_t worker, const std::string& why) override;
    void tell(std::uint64_t worker, std::uint16_t kind, byte_buffer body) override;
    void turn_out(const error&) override {} // it lives in the coordinator's process

    /// Those that run, each with its pid.
    [[nodiscard]] std::vector<view_member> running() const;
    /// The newest view that any of its workers was a member of.
    [[nodiscard]] const view& newest() const noexcept { return newest_; }
    void kill_all();
    /// Nobody knows whether the newest view is that: members wait before they apply a step.
    void hold(bool on);

private:
    struct worker;
    task<void> serve();
    task<void> learn_silence();
    void look_at_silence(duration late);
    task<void> serve_one(std::shared_ptr<net::connection> link);
    [[nodiscard]] std::shared_ptr<worker> let_in(const detail::member_hello& hello,
                                                 std::shared_ptr<net::connection> link);
    task<void> live(std::shared_ptr<worker> self);
    task<void> begin(std::shared_ptr<worker> self);

    local_keeper_options options_;
    proc::children& children_;
    std::unique_ptr<net::endpoint> door_;
    keeper_listener* to_ = nullptr;
    bool held_ = false;
    silence_limit silence_;
    view newest_;
    std::map<std::uint64_t, std::shared_ptr<worker>> workers_;
    scope tasks_;
};

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/local_keeper.ipp>
#endif
