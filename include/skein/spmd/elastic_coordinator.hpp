// SPDX-License-Identifier: Apache-2.0
#pragma once
// The coordinator of an elastic job: proposes its views, one after the other, and serves the group
// of each.
//
// A worker is starting until it asks for its first world, then ready, then a member of views, and
// leaves them in order or is lost. Losses are gathered for a moment, then the next view is made of
// those that live and those that are ready. A planned change waits until all members pause. The job
// ends when the group of a view ends in order, when a member fails, or when more workers are lost
// than the job allows.
//
// One loop, in either world: time is the loop's, randomness is given.

#include <skein/core/config.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/error.hpp>
#include <skein/core/event.hpp>
#include <skein/core/random.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/net/address.hpp>
#include <skein/spmd/elastic_keeper.hpp>
#include <skein/spmd/elastic_world.hpp>
#include <skein/spmd/group.hpp>
#include <skein/spmd/settings.hpp>
#include <skein/spmd/supervisor.hpp>
#include <skein/spmd/view.hpp>
#include <skein/spmd/view_register.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace skein::net {
class network;
}

namespace skein::spmd {

/// What a coordinator knows before the first worker.
struct coordinator_options : job_rules {
    std::uint64_t id = 1;
    std::string address{}; ///< where other supervisors reach it
    std::string job{};
    int least = 1, most = 1;
    /// Each worker is a host of ranks that start again: people read of hosts, and a host that is
    /// told to go where the others are too few stops the job.
    bool are_hosts = false;
    int start = 0; ///< workers at the beginning; 0: `most`
    /// Workers of one host that are refused; then none is started there any more.
    int max_refusals = 3;
    net::address
        groups{}; ///< where the groups of views listen; port 0, or a Unix name to begin with
    /// The host in the groups' addresses; empty: as they listen; "*": as each worker's keeper.
    std::string advertise{};
    net::keep_alive alive = group_options{}.alive; ///< of the groups
    random_source* random = nullptr; ///< of secrets and names; must outlive the coordinator
    /// The newest view that this host has heard of. The job goes on from it if the register holds an
    /// older one, or none any more.
    view known{};
    /// From the claim on until a first view is made: a host that knows of one may come.
    time_span first_after{};
};

/// Ends with the job. Everything on one loop.
class elastic_coordinator final : public keeper_listener {
public:
    /// `via` and `truth` must outlive it.
    elastic_coordinator(net::network& via, view_register& truth, coordinator_options options);
    ~elastic_coordinator() override;

    /// Takes the place of the coordinator, if nobody has it, and reads the newest view; gives who is
    /// the coordinator.
    ///   errors  those of the register
    [[nodiscard]] task<coordinator_place> claim();

    /// A host with places; it must outlive this, or lose() comes first. After claim().
    ///   running  workers that run there since another coordinator's time
    ///   result   those of them that are members of the newest view; the others are to be killed
    std::vector<std::uint64_t> add(elastic_keeper& keeper,
                                   const std::vector<view_member>& running = {});
    /// Its host is lost, or its supervisor is: so are its workers.
    void lose(elastic_keeper& keeper, const error& why);
    /// Its workers leave in order, and none is started there.
    void drain(elastic_keeper& keeper, const std::string& why);
    /// After drain(): its last worker has ended.
    [[nodiscard]] bool has_drained(const elastic_keeper& keeper) const;

    /// Until the job has ended and no worker runs.
    ///   errors  those of the register; aborted: another one is the coordinator; cancelled. Then
    ///           workers may still run
    [[nodiscard]] task<supervisor_outcome> run();
    /// No view was ever made after this one; the job was over when it was read.
    [[nodiscard]] const view& newest() const noexcept { return view_; }
    /// Workers that run, and those that are wanted.
    [[nodiscard]] int target() const noexcept { return target_; }

    /// All members save and end; those that do not in time are killed.
    void stop(int signal);
    void kill_all();
    /// So many workers are wanted, within least and most.
    void set_target(int workers);

    void worker_started(std::uint64_t worker, std::int64_t pid) override;
    void worker_place(std::uint64_t worker, const proc::place_news& news) override;
    void worker_said(std::uint64_t worker, std::uint16_t kind, byte_span body) override;
    void worker_ended(std::uint64_t worker, const worker_end& how) override;

private:
    enum class stage : std::uint8_t;
    struct worker;
    struct places; ///< who waits for one, and whose is asked back
    struct view_group;
    /// What speaks against a host.
    struct host_record {
        int refusals = 0, bad_starts = 0; ///< of its workers
        bool is_turned_out = false;
    };

    task<void> work();
    task<void> watch_group(std::shared_ptr<view_group> which);
    task<void> swap(view next);
    task<void> say_it_is_over();

    // What has come.
    void heard_ask(worker& from, byte_span body);
    void heard_done(worker& from, std::uint64_t generation);
    void heard_failure(worker& from, error why);
    void mark_broken();
    void judge_group();
    void judge_ends(time_point now);
    void judge_member_end(worker& which);
    void failed_start(worker& which, error why);
    void count_failure(error why, int culprit);
    void finish(std::optional<error> failure, int culprit = -1);

    // Who is refused, and whose host is.
    void heard_first_ask(worker& from, std::vector<setting> settings);
    void measure_by(const worker& one, std::vector<setting> settings);
    void refuse(worker& which, const error& why);
    void count_refusal(worker& which, error why);
    bool count_bad_start(worker& which, const error& why);
    void turn_out(elastic_keeper& host, const error& why);
    void ended_without_world(worker& which);
    void judge_lonely();
    [[nodiscard]] error lonely(const worker& which) const;
    [[nodiscard]] std::string own_host() const;
    [[nodiscard]] bool is_own(const worker& which) const;
    [[nodiscard]] bool has_proved_itself(const worker& of);
    [[nodiscard]] bool is_closed(const elastic_keeper& keeper) const;

    // What is to be done.
    void look(time_point now);
    void take_over(time_point now);
    void start_missing(time_point now);
    void let_go(time_point now);
    void send_away(worker& which);
    void wish();
    void watch_limits(time_point now);
    void name_slow_start(worker& which, time_point now);
    void look_at_end(time_point now);
    [[nodiscard]] std::optional<view> proposal(time_point now);
    [[nodiscard]] std::optional<view> first_proposal(time_point now);
    void finish_with_the_others();
    void finish_if_none_comes(time_point now);
    void kill_those_that_hang(time_point now);
    [[nodiscard]] static worker* last_with_state(const std::vector<worker*>& stay);
    [[nodiscard]] view make_view(time_point now);
    void break_group(const std::string& why);
    void begin_view(const view& before, const std::string& why);

    // Of the workers.
    [[nodiscard]] worker* find(std::uint64_t id);
    [[nodiscard]] std::vector<worker*> members();
    [[nodiscard]] std::vector<worker*> ready();
    [[nodiscard]] bool has_left(const worker& which) const;
    [[nodiscard]] bool is_ending();
    [[nodiscard]] bool is_first_of_host(const worker& which) const;
    [[nodiscard]] bool is_draining(const elastic_keeper& keeper) const;
    [[nodiscard]] bool any_running() const;
    [[nodiscard]] bool any_starting() const;
    [[nodiscard]] time_point lease_of_lost();
    [[nodiscard]] int least() const noexcept;
    [[nodiscard]] std::string name_of(const worker& which) const;
    [[nodiscard]] error end_of(const worker& which) const;
    void kill(worker& which);
    void send_end(worker& which, bool in_order, const error& why);
    void wake_at(time_point when);

    coordinator_options options_;
    net::network& network_;
    view_register& register_;
    std::vector<elastic_keeper*> keepers_;
    std::vector<const elastic_keeper*> draining_;
    std::map<std::uint64_t, std::unique_ptr<worker>> workers_;
    std::uint64_t last_id_ = 0;
    std::vector<setting> settings_;
    /// They are of the coordinator's host; of one that was in a world.
    bool has_settings_ = false, are_own_settings_ = false, are_of_members_ = false;
    std::map<const elastic_keeper*, host_record> records_;

    view view_;
    std::shared_ptr<view_group> group_;
    std::vector<std::string> news_; ///< since the newest view
    bool broken_ = false;           ///< the newest view's group, though nobody is lost yet
    std::string broken_why_;        ///< as the first one said that asked
    bool was_refused_ = false;      ///< that is why
    bool is_break_counted_ = false; ///< against max_failures
    int target_ = 0, failures_ = 0, bad_starts_ = 0;
    std::optional<error> last_loss_, refused_;
    time_point asked_at_ = time_point::max(); ///< for the next view, the first of the newest one's
    time_point broken_at_{}, retry_at_{},
        short_since_ = time_point::max(), enough_at_ = time_point::max(),
        take_over_until_ = time_point::min(), first_from_ = time_point::min();
    bool is_claimed_ = false;

    bool over_ = false, kill_now_ = false, is_done_ = false;
    bool is_alone_ = false; ///< the program has asked for no world
    time_point kill_at_ = time_point::max(), stop_at_ = time_point::max();
    int stop_signal_ = 0;
    supervisor_outcome outcome_;

    event changed_;
    time_point wake_at_ = time_point::max();
    scope tasks_;
};

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/elastic_coordinator.ipp>
#include <skein/spmd/detail/elastic_proposals.ipp>
#include <skein/spmd/detail/elastic_refusals.ipp>
#endif
