// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a driver knows of its leases.

#include <skein/cluster/detail/broken_links.hpp>
#include <skein/cluster/detail/head_client.hpp>
#include <skein/cluster/detail/leased_groups.hpp>
#include <skein/cluster/detail/start_failures.hpp>
#include <skein/cluster/detail/visited_spaces.hpp>
#include <skein/cluster/detail/worker_news.hpp>
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
#include <string>

namespace skein::cluster {

struct leased_workers::state final : detail::head_events, detail::group_leases {
    struct lease {
        std::uint64_t number = 0;
        std::uint64_t node = 0; ///< the incarnation of its agent; 0: not granted yet
        std::string node_name;
        std::vector<std::string> labels; ///< of its node
        sched::demand_id demand;         ///< the only one it is for; none: all
        std::uint64_t beside = 0;        ///< the lease whose worker's second process it is; 0: none
        std::string where;      ///< of such a one: its node's label, as soon as that is known
        net::link::handle wire; ///< to its worker, while that is served
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

    state(loop& on, net::network& via, rt::runtime& of, leased_workers_options given);

    loop& on_loop;
    net::network& network;
    rt::runtime& driver;
    leased_workers_options how;
    std::unique_ptr<net::link_endpoint> door;
    net::address stores_at; ///< as the door, at any port
    std::map<std::uint64_t, lease_ptr> leases;
    std::map<sched::demand_id, own_leases> demands;
    std::uint64_t last_number = 0;
    std::uint64_t cluster_cpus = 0;
    std::uint32_t cluster_nodes = 0;
    bool knows_size = false; ///< the head has said these two over this link
    event stopping;
    detail::leased_groups groups;
    detail::head_client head;
    detail::visited_spaces spaces;
    detail::broken_links links;
    detail::start_failures failures;
    detail::worker_news news;
    bool gave_up = false;
    bool visits_only = false; ///< there are no calls for workers of its own yet
    scope served;             ///< the door, and the workers that came by it
    scope later;              ///< what follows a pause

    task<void> serve();
    void open_door();
    void give_up(error why);
    static task<void> tell_calls(state* self);
    static task<void> cut_later(state* self, lease_ptr l);
    static task<void> serve_one(state* self, net::link::handle wire);
    static task<void> serve_space_client(state* self, net::link::handle wire);
    static task<std::string> how_it_ended(state* self, lease_ptr l);

    // leased_pool.ipp: which leases there are, and what becomes of them
    [[nodiscard]] std::size_t target() const noexcept;
    [[nodiscard]] std::size_t shared() const noexcept;
    [[nodiscard]] want_lease wish(const lease& l) const;
    void want_workers(const rt::worker_demand& what);
    void fill_own(own_leases& own);
    static task<void> release_idle(state* self, sched::demand_id demand);
    void count_expected();
    [[nodiscard]] bool refuse_own(const lease& l, bool is_lasting);
    static task<void> fill_later(state* self, duration pause);
    void take_back_withdrawn();
    static task<void> retire(state* self, lease_ptr l, std::string why);
    void say_what_waits();

    // the same: second processes of workers
    [[nodiscard]] bool want_beside(const net::channel& worker);
    void ask_beside(const lease& of);
    [[nodiscard]] const net::channel* stands_beside(const lease& l) const;
    void refuse_beside(const lease& l, const std::string& why);
    void drop_beside(const lease& of);
    static task<void> leave_when_idle(state* self, lease_ptr l);

    // of group_leases
    bool is_filling() const override { return !stopping.is_set() && !gave_up; }
    void fill() override;
    bool leave_group(std::uint64_t number) override;

    // of head_events
    driver_hello describe() override;
    void on_welcome(const driver_welcome& m) override;
    std::string worker_of(std::uint64_t number) const override;
    void on_granted(const lease_granted& m) override;
    void on_ended(const lease_ended& m) override;
    void on_waits(const lease_waits& m) override;
    void on_recalled(const lease_recalled& m) override;
    void on_cluster_changed(const cluster_changed& m) override;
    void on_space_lost(const space_lost& m) override { spaces.end(m); }
};

} // namespace skein::cluster
