// SPDX-License-Identifier: Apache-2.0
#pragma once
// A rank's end of the protocol between it and its supervisor, on one loop: what the control thread
// of an elastic_member has, and a rank of the simulated world.

#include <skein/core/config.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/error.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/core/wait.hpp>
#include <skein/net/address.hpp>
#include <skein/net/token.hpp>
#include <skein/spmd/detail/elastic_protocol.hpp>
#include <skein/spmd/elastic_world.hpp>
#include <skein/spmd/group.hpp>
#include <skein/spmd/loss_listeners.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace skein::net {
class connection;
class network;
} // namespace skein::net

namespace skein::spmd::detail {

/// Who a rank is, and where its supervisor is.
struct elastic_client_options {
    std::uint64_t id = 0;
    std::int64_t pid = 0;
    std::string host{};
    net::address door{};
    net::token secret{};
    std::vector<setting> settings{};
    time_span join_deadline = 2 * time_constants::lan().rendezvous_timeout;
    std::function<void()> on_news{}; ///< told on the loop of all that the supervisor has said
};

/// One world of a rank. `begin` and what the group has told are only read; the losses may be used
/// on any thread.
struct elastic_place {
    member_begin begin;
    std::vector<member_info> members;
    byte_buffer given;
    loss_listeners losses;
    std::unique_ptr<group_client> client; ///< of the loop; null when the world has ended
};

/// Wishes of the supervisor, for any thread.
struct elastic_wishes {
    std::atomic<bool> change{false};
    std::atomic<int> stop_signal{0};
    std::mutex mutex; ///< guards the others
    std::condition_variable changed;
    bool held = false;      ///< as the supervisor says
    bool is_silent = false; ///< the supervisor: nobody knows what it would say
    [[nodiscard]] bool holds() const noexcept { return held || is_silent; }
};

/// All members belong to the loop.
class elastic_client {
public:
    /// `via` and `wishes` must outlive it.
    elastic_client(net::network& via, elastic_client_options options, elastic_wishes& wishes);
    ~elastic_client();

    ///   errors  those of net::connect_patiently
    [[nodiscard]] task<void> connect();
    /// See elastic_world::next(); null: it leaves.
    [[nodiscard]] task<std::shared_ptr<elastic_place>> next(world_end last, std::string why);
    void ask_to_leave(const std::string& why);
    [[nodiscard]] task<void> leave();
    [[nodiscard]] task<void> fail(error why);
    /// Ends all; await it before the destructor.
    [[nodiscard]] task<void> close();

    [[nodiscard]] const std::shared_ptr<elastic_place>& place() const noexcept { return place_; }
    [[nodiscard]] net::connection& link() noexcept { return *link_; }

private:
    [[nodiscard]] std::shared_ptr<net::request_service> words();
    task<void> watch_silence();
    template <class M>
    void say(const M& what) {
        if (way_ && link_->is_open()) way_->tell(what);
    }
    void heard_begin(member_begin told);
    void lose_link(const error* why);
    void tell_news();
    void break_world(int rank, const error& why);
    task<void> join(std::shared_ptr<elastic_place> into);
    task<void> until_useless(std::uint64_t generation, cancel_source stop);
    static task<void> drop(std::shared_ptr<elastic_place> which);

    net::network& network_;
    elastic_client_options options_;
    elastic_wishes& wishes_;
    std::shared_ptr<net::connection> link_;
    net::requests::handle way_;            ///< over it
    std::shared_ptr<elastic_place> place_; ///< the newest world that this rank has begun
    std::shared_ptr<elastic_place> old_;   ///< which has ended, until the next one begins
    std::optional<member_begin> newest_;   ///< that it was told of
    std::optional<member_end> end_;
    std::optional<error> lost_; ///< the link
    bool leaves_ = false;
    wait_queue changed_;
    scope tasks_;
};

} // namespace skein::spmd::detail
