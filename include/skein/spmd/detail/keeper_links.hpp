// SPDX-License-Identifier: Apache-2.0
#pragma once
// Both ends of the link between a supervisor and the coordinator of an elastic job.

#include <skein/core/config.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/core/event.hpp>
#include <skein/core/task.hpp>
#include <skein/net/connection.hpp>
#include <skein/spmd/detail/keeper_protocol.hpp>
#include <skein/spmd/elastic_coordinator.hpp>
#include <skein/spmd/elastic_host.hpp>
#include <skein/spmd/elastic_keeper.hpp>
#include <skein/spmd/local_keeper.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace skein::net {
class endpoint;
class network;
} // namespace skein::net

namespace skein::spmd::detail {

/// What a link of hosts whose ranks start again is for: no other supervisor has one by mistake.
inline constexpr const char* purpose_of_hosts = "host-of-ranks-2";
[[nodiscard]] net::connection_options host_link(const elastic_host_options& of);

class remote_keeper;

/// What all connections to a coordinator are served with.
struct keeper_door {
    elastic_coordinator* coordinator = nullptr;
    const elastic_host_options* options = nullptr;
    std::vector<remote_keeper*> there{};
    /// Told of a view that a host knows of and the coordinator does not; empty: such a host is one
    /// of an older job.
    std::function<void(const view&)> on_newer{};
};
/// The coordinator wants so many workers from now on.
///   errors  mismatch: another job
[[nodiscard]] keeper_scale scale(const keeper_door& door, keeper_scale asked);
/// "job J wants 3 workers now (1 to 4 are possible)"
[[nodiscard]] std::string text_of(const keeper_scale& said);

/// One of them, until it ends.
[[nodiscard]] task<void> serve_keeper(keeper_door* door, std::shared_ptr<net::connection> link);

/// Another host's keeper, as the coordinator has it, from the beginning of its link to the end.
class remote_keeper final : public elastic_keeper {
public:
    /// Both must outlive it.
    remote_keeper(keeper_door& at, net::connection& link) : door_(at), link_(link) {}
    [[nodiscard]] std::uint64_t id() const noexcept override { return hello_.id; }
    [[nodiscard]] const std::string& host() const noexcept override { return hello_.host; }
    [[nodiscard]] int places() const noexcept override { return hello_.places; }
    void start(std::uint64_t worker) override { say(keeper_start{worker}); }
    void kill(std::uint64_t worker) override { say(keeper_kill{worker}); }
    void tell(std::uint64_t worker, std::uint16_t kind, byte_buffer body) override {
        say(keeper_frame{worker, kind, std::move(body)});
    }
    void turn_out(const error& why) override { say_over(false, 0, why); }
    /// Of this host's part; only the first one is told.
    void say_over(bool in_order, int signal, const error& why) {
        if (!std::exchange(told_over_, true)) say(keeper_over{in_order, signal, why});
    }
    [[nodiscard]] std::shared_ptr<net::request_service> words();

    /// What was said before there was a way goes first.
    void use(net::requests::handle over) {
        way = std::move(over);
        for (auto& each : std::exchange(unsaid_, {})) each();
    }

    net::requests::handle way{};
    event news{}; ///< the coordinator has it, or it has ended
    bool is_known = false;

private:
    [[nodiscard]] keeper_welcome let_in(keeper_hello hello);
    void check_known() const;
    template <class M>
    void say(const M& what) {
        if (!link_.is_open()) return;
        if (!way) { // frames that had come are handed out before anybody has it
            unsaid_.push_back([this, what] { say(what); });
            return;
        }
        try {
            way->tell(what);
        } catch (const error& full) { // this host is lost, and not the job
            link_.abort(full);
        }
    }

    keeper_door& door_;
    net::connection& link_;
    keeper_hello hello_;
    bool told_over_ = false;
    std::vector<std::function<void()>> unsaid_;
};

/// How following a coordinator came to its end.
struct followed {
    bool is_over = false; ///< the job, or this host's part of it; else the link is lost
    bool in_order = false;
    int stop_signal = 0;
    std::optional<error> why;
};

/// This host's end. Hears of its own workers and passes it on.
class follower final : public keeper_listener {
public:
    follower(local_keeper& of, const elastic_host_options& options)
        : keeper_(of), options_(options) {}
    /// Until the link is lost, or the coordinator says that it is over.
    ///   errors  those of net::connection::connect, permission_denied and mismatch among them
    [[nodiscard]] task<followed> follow(net::network* via, net::address at);
    void leave(const std::string& why);

    void worker_started(std::uint64_t worker, std::int64_t pid) override;
    void worker_said(std::uint64_t worker, std::uint16_t kind, byte_span body) override;
    void worker_ended(std::uint64_t worker, const worker_end& how) override;

private:
    [[nodiscard]] std::shared_ptr<net::request_service> orders(followed* how, event* ended);
    task<void> obey(net::requests::handle way, followed* how, event* ended);
    template <class M>
    void say(const M& what) {
        if (link_ && link_->is_open()) way_->tell(what);
    }

    local_keeper& keeper_;
    const elastic_host_options& options_;
    std::shared_ptr<net::connection> link_; ///< to the coordinator that it follows
    net::requests::handle way_;             ///< over it
    std::optional<std::string> leaves_;
};

} // namespace skein::spmd::detail
