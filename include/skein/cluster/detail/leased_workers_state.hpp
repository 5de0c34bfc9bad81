// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a driver knows of its leases.

#include <skein/cluster/detail/head_client.hpp>
#include <skein/cluster/detail/load_messages.hpp>
#include <skein/cluster/leased_workers.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/error.hpp>
#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/net/link.hpp>
#include <skein/net/link_endpoint.hpp>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

namespace skein::cluster {

struct leased_workers::state final : detail::head_events {
    struct lease {
        std::uint64_t number = 0;
        std::uint64_t node = 0; ///< the incarnation of its agent; 0: not granted yet
        std::string node_name;
        std::vector<std::string> labels; ///< of its node
        sched::demand_id demand;         ///< the only one it is for; none: all
        std::uint64_t beside = 0;        ///< the lease whose worker's second process it is; 0: none
        std::string where;      ///< of such a one: its node's label, as soon as that is known
        net::link::handle wire; ///< to its worker, while that is served
        std::optional<time_point> broken_since; ///< its connection is
        bool retiring = false;
        bool is_withdrawn = false;               ///< the head does not ask it back any more
        std::optional<cancel_source> retirement; ///< while that is under way
        bool blocked = false;                    ///< all that runs there waits for others
        bool ends_now = false;                   ///< its process is to be killed
        bool impossible = false;                 ///< no node could hold it, the head says
        std::string why;                         ///< the same in words, until it is said
        std::string how;                         ///< it ended
        event end_told;                          ///< by the head

        /// For all tasks, and counted as a worker.
        [[nodiscard]] bool is_shared() const noexcept { return !demand && beside == 0; }
    };
    using lease_ptr = std::shared_ptr<lease>; // its tasks may outlive its place in the table
    /// Leases for one demand.
    struct own_leases {
        rt::worker_demand what;
        std::string text;        ///< what.need
        int failures = 0;        ///< starts, in a row
        time_point idle_since{}; ///< since when `what` is as it is
        bool watched = false;    ///< release_idle() is at work
    };

    /// A placement group.
    struct group {
        sched::amount cpus; ///< of all its bundles
        bool placed = false, impossible = false;
        bool closing = false; ///< nobody holds it: close_group() is at work
        std::string why;      ///< no nodes could hold it; until it is said
        bool is_said = false;
    };

    state(loop& on, net::network& via, rt::runtime& of, leased_workers_options given);

    loop& on_loop;
    net::network& network;
    rt::runtime& driver;
    leased_workers_options how;
    std::unique_ptr<net::link_endpoint> door;
    std::map<std::uint64_t, lease_ptr> leases;
    std::map<sched::demand_id, own_leases> demands;
    std::map<std::uint64_t, group> groups;
    std::uint64_t last_number = 0;
    std::uint64_t cluster_cpus = 0;
    std::uint32_t cluster_nodes = 0;
    bool knows_size = false;        ///< the head has said these two over this link
    bool nodes_return = false;      ///< a head that was started again has none yet; ours will come
    bool said_no_nodes = false;     ///< since the last one went
    std::set<std::string> said_why; ///< demands that no node holds, with their labels
    event stopping;
    detail::head_client head;
    bool gave_up = false;
    std::optional<error> gave_up_why;
    bool visits_only = false;   ///< there are no calls for workers of its own yet
    int failed_starts = 0;      ///< in a row
    time_point first_failure{}; ///< of them
    std::map<std::string, std::uint64_t>
        said_failures; ///< how often a worker did not start, by why
    static constexpr std::size_t most_said = 256;
    std::uint64_t last_lost_node = 0; ///< an incarnation
    std::uint64_t lost_nodes = 0, lost_workers = 0;
    scope served; ///< the door, and the workers that came by it
    scope later;  ///< what follows a pause
    /// Space servers that this driver or its workers have asked for, and of whose end the head is
    /// to tell.
    std::vector<visited_space> visits;
    /// A space server's space clients.
    struct space_client {
        net::link::handle wire;
        std::optional<time_point> broken_since;
    };
    std::vector<space_client> space_clients;

    task<void> serve();
    [[nodiscard]] detail::head_link_options link_options();
    void open_door();
    void give_up(error why);

    [[nodiscard]] std::size_t target() const noexcept;
    [[nodiscard]] std::size_t shared() const noexcept;
    [[nodiscard]] want_lease wish(const lease& l) const;
    void want_workers(const rt::worker_demand& what);
    void fill_own(own_leases& own);
    static task<void> release_idle(state* self, sched::demand_id demand);
    void fill();
    void want(const lease_ptr& l);
    void count_expected();
    void on_failed_start(const lease_ptr& l, bool is_lasting, bool has_run);
    void on_other_node(const lease& l);
    static void say_held_up(const std::string& why);
    [[nodiscard]] bool refuse_own(const lease& l, bool is_lasting);
    static task<void> fill_later(state* self, duration pause);
    static task<void> watch_broken(state* self);
    static task<void> tell_calls(state* self);
    void tell_calls_now();
    driver_calls told_calls; // the last ones
    static task<void> ask_host(state* self, lease_ptr l);
    static task<void> cut_later(state* self, lease_ptr l);
    static task<void> serve_one(state* self, net::link::handle wire);
    static task<std::string> how_it_ended(state* self, lease_ptr l);
    [[nodiscard]] lease_ptr lease_of(const std::string& worker) const;

    // leased_beside.ipp: second processes of workers
    [[nodiscard]] bool want_beside(const net::channel& worker);
    void ask_beside(const lease& of);
    [[nodiscard]] const net::channel* stands_beside(const lease& l) const;
    void refuse_beside(const lease& l, const std::string& why);
    void drop_beside(const lease& of);
    static task<void> leave_when_idle(state* self, lease_ptr l);

    // leased_recalls.ipp
    void take_back_withdrawn();
    static task<void> retire(state* self, lease_ptr l, std::string why);

    // leased_news.ipp
    void say_what_waits();
    void say_no_nodes();
    void say_lost(const lease& l, std::int64_t pid);

    // leased_groups.ipp
    void want(const rt::worker_group& what);
    void drop(std::uint64_t number);
    static task<void> close_group(state* self, std::uint64_t number);
    [[nodiscard]] std::int64_t group_cpus(bool any_blocked) const noexcept;

    // leased_spaces.ipp: namespaces
    static task<rt::space_place> find(state* self, std::string space, std::uint64_t space_server);
    [[nodiscard]] rt::space_place place_of(const std::string& space, const space_entered& there);
    static task<void> serve_space_client(state* self, net::link::handle wire);
    void look_at_space_clients(time_point now);

    // of head_events
    driver_hello describe() override;
    void on_welcome(const driver_welcome& m) override;
    std::string worker_of(std::uint64_t number) const override;
    void on_granted(const lease_granted& m) override;
    void on_ended(const lease_ended& m) override;
    void on_waits(const lease_waits& m) override;
    void on_recalled(const lease_recalled& m) override;
    void on_group_placed(const group_placed& m) override;
    void on_group_waits(const group_waits& m) override;
    void on_group_refused(const group_refused& m) override;
    void on_cluster_changed(const cluster_changed& m) override;
    void on_space_lost(const space_lost& m) override;
};

} // namespace skein::cluster
