// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a head knows: sessions, nodes, drivers, jobs, leases.

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/detail/head_memory.hpp>
#include <skein/cluster/detail/head_silence.hpp>
#include <skein/cluster/detail/job_book.hpp>
#include <skein/cluster/detail/job_runner.hpp>
#include <skein/cluster/detail/namespaces.hpp>
#include <skein/cluster/detail/node_loads.hpp>
#include <skein/cluster/detail/node_rest.hpp>
#include <skein/cluster/detail/output_relay.hpp>
#include <skein/cluster/detail/package_service.hpp>
#include <skein/cluster/detail/submitted_job.hpp>
#include <skein/cluster/head.hpp>
#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/net/link.hpp>
#include <skein/net/link_endpoint.hpp>
#include <skein/net/requests.hpp>
#include <skein/sched/scheduler.hpp>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace skein::cluster {

namespace detail {

inline constexpr std::size_t most_groups = 4096;   ///< of one driver
inline constexpr std::size_t most_bundles = 65536; ///< in all of them

struct head_node;
struct head_driver;

/// One link to a node, a driver or a tool.
struct head_session {
    net::link::handle below;
    net::requests::handle way; ///< nullptr: it has ended
    std::string seen_from;     ///< the peer's host, as this one sees it; "": it is this one
    std::uint64_t incarnation = 0;
    head_node* node = nullptr;
    head_driver* driver = nullptr;
    package_uploads uploads;
    bool hears_more = false; ///< it follows a job, and has not heard all of it

    /// A message that is lost with the link; what it said is told again with the next hello. To one
    /// who has said goodbye nothing is told: an error would turn an orderly end into a broken link.
    template <class M>
    void tell(const M& what) noexcept {
        try {
            if (way && way->is_open() && below->is_open()) way->tell(what);
        } catch (const error& e) {
            if (e.code() != errc::closed) way->abort(e); // closed: it is saying goodbye
        }
    }
};

enum class lease_state : std::uint8_t {
    waits,    ///< in the scheduler's queue
    granted,  ///< its worker runs, or is being started
    expected, ///< its driver says that a node holds it which has not come (again) yet
    stopping, ///< its agent has been told to end its worker
};

struct head_lease {
    head_driver* of = nullptr;
    std::uint64_t number = 0; ///< the driver's
    sched::resources demand;
    std::string label;    ///< of the nodes that it may be on; "": all
    std::string env, cwd; ///< these: see want_lease
    rank_order rank;      ///< until its node has been told
    bool own = false;
    bool blocked = false; ///< see lease_blocked; of an entry process: its cpus are lent
    lease_state state = lease_state::waits;
    sched::request_id request;
    std::uint64_t tag = 0; ///< of the request
    sched::gpu_set gpus;
    head_node* at = nullptr;         ///< granted, stopping
    std::uint64_t expected_node = 0; ///< its incarnation
    time_point until{};              ///< expected
    time_point asked_at{};           ///< waits
    bool is_held_up = false;         ///< its driver was told that it has waited for long
    bool at_once = false;            ///< its worker is to be killed, not asked
    bool is_ordered = false;         ///< of a job: its node has been told
    time_point recalled_at{};        ///< the last time; {}: never
    bool drained = false;            ///< its driver may have heard that it was recalled for a drain
    time_point keep_until{};   ///< it is not asked back before: granted just now, or it has actors
    time_point actors_until{}; ///< for its own driver neither: it has actors
};

/// A placement group.
struct head_group {
    head_driver* of = nullptr;
    std::uint64_t number = 0; ///< the driver's
    sched::group_strategy strategy = sched::group_strategy::pack;
    std::vector<sched::resources> bundles;
    sched::placement_group_id id; ///< none: its driver says where it is, and nodes are yet to come
    bool placed = false;
    bool closing = false;              ///< it goes with its last lease
    std::vector<placed_bundle> places; ///< the last ones
    time_point until{};                ///< without an id: so long its nodes are waited for
    time_point asked_at{};             ///< not placed: since when
};

/// What a driver has of the cluster, and wants.
struct head_share {
    head_driver* of = nullptr;
    std::int64_t held = 0, wanted = 0; ///< cpus, in steps; what is coming back counts as given
    double fair = 0;
    std::vector<head_lease*> may_give;

    /// Whether it stays within its share with so much more, for which it gives back what it can.
    [[nodiscard]] bool may_have(std::int64_t more) const noexcept {
        for (const auto* l : may_give) more -= l->demand.cpu.in_steps();
        return static_cast<double>(held + more) <= fair;
    }
};

struct head_node {
    std::uint64_t incarnation = 0;
    std::string name, host;
    std::int64_t pid = 0;
    sched::resources total;
    std::vector<std::string> labels;
    std::shared_ptr<head_session> session;
    std::map<lease_name, head_lease*> leases;
    bool draining = false;
    node_silence silence;
    std::uint64_t alone_ms = 0; ///< so long it waits for a head itself, see node_hello
    node_rest rest;             ///< after starts that have failed

    [[nodiscard]] sched::place_id place() const noexcept { return sched::place_id(incarnation); }
};

struct head_driver {
    std::uint64_t incarnation = 0;         ///< of its driver
    driver_hello hello;                    ///< empty until its driver has come
    std::shared_ptr<head_session> session; ///< nullptr: it is away
    time_point away_until{};
    std::map<std::uint64_t, std::unique_ptr<head_lease>> leases;
    std::map<std::uint64_t, head_group> groups;
    std::string seen_from;  ///< see head_session
    bool ending = false;    ///< it does not come back: its leases are being ended
    std::string attempt_of; ///< no driver: its one lease is the entry process of this job
    call_counts calls;      ///< as it has told last

    [[nodiscard]] job_id id() const noexcept { return job_id(incarnation); }
    [[nodiscard]] bool has_come() const noexcept {
        return hello.port != 0 || !hello.address.empty() || hello.has_ranks;
    }
};

} // namespace detail

struct head::state final : detail::output_readers,
                           detail::space_drivers,
                           detail::job_sources,
                           detail::entry_leases {
    using session_ptr = std::shared_ptr<detail::head_session>;

    state(loop& on, net::network& via, head_options given);

    loop& on_loop;
    head_options how;
    net::link_endpoint door;
    sched::scheduler schedule;
    std::map<std::uint64_t, std::unique_ptr<detail::head_node>> nodes;     ///< by incarnation
    std::map<std::uint64_t, std::unique_ptr<detail::head_driver>> drivers; ///< by incarnation
    std::unordered_map<std::uint64_t, detail::head_lease*> by_tag;
    std::vector<session_ptr> sessions;
    detail::head_memory memory; ///< of those that have gone
    std::shared_ptr<net::request_budget> in_progress = detail::cluster_budget(); ///< of them
    std::uint64_t last_tag = 0;
    time_point since;
    event stopping;
    detail::namespaces spaces;
    detail::output_relay output{*this};
    detail::left_attempts given_up;
    detail::job_book jobs;
    detail::package_service packages;
    detail::job_runner runner;
    std::uint64_t changes = 0;      ///< see head::changes()
    std::uint64_t node_changes = 0; ///< see head::node_changes()
    std::shared_ptr<head_web> web;
    detail::node_loads loads;
    call_counts calls_of_gone; ///< of drivers that are no more
    bool over = false, crashed = false;

    // head.ipp: who comes and goes
    task<void> serve();
    static task<void> serve_link(state* self, net::link::handle l);
    [[nodiscard]] std::shared_ptr<net::request_service> service_of(const session_ptr& s);
    void serve_drivers(net::request_service& of, const session_ptr& s);
    void serve_nodes(net::request_service& of, const session_ptr& s);
    void serve_tools(net::request_service& of);
    void ended(const session_ptr& s) noexcept;
    static task<void> watch(state* self);
    void look();
    static task<node_welcome> on_node(state* self, session_ptr s, node_hello h);
    void check_again(const detail::head_driver& d, const driver_hello& h) const;
    static task<driver_welcome> on_driver(state* self, session_ptr s, driver_hello h);
    [[nodiscard]] std::string free_name(const node_hello& h);
    detail::head_node& enter(const session_ptr& s, const node_hello& h);
    void lose(detail::head_node& n, const std::string& why, bool left = false, bool runs = false);
    detail::head_driver& driver_of(std::uint64_t incarnation);
    void leave(detail::head_driver& d, job_end how);
    void remember();
    void introduce();
    [[nodiscard]] driver_welcome size() const;
    void tell_size();
    [[nodiscard]] cluster_status status(bool past = false) const;
    [[nodiscard]] node_status status_of(const detail::head_node& n) const;
    [[nodiscard]] std::vector<job_status> programs() const;
    [[nodiscard]] job_status status_of(const detail::head_driver& d) const;
    [[nodiscard]] drain_reply drain(const ask_drain& what);
    [[nodiscard]] drain_reply drain_missing(const ask_drain& what);
    [[nodiscard]] detail::head_node* find_node(const std::string& name);
    [[nodiscard]] detail::head_node* node_at(std::uint64_t incarnation);
    void tell_all_to_leave();
    static task<void> close_link(net::link::handle l);

    // who reads what workers print
    [[nodiscard]] detail::output_reader reader_of(std::uint64_t driver) const override;
    bool ask_for_lines(std::uint64_t node, std::uint64_t driver) override;
    void keep_lines_of(std::uint64_t driver, std::vector<printed_lines> lines) override;
    void send_lines(std::uint64_t driver, std::uint64_t node,
                    std::vector<printed_lines> lines) override;

    // head_silence.ipp: nodes that are not heard, and what may run there still
    time_point looked_at{}; ///< at nodes
    [[nodiscard]] static bool is_silent(const detail::head_node& n);
    [[nodiscard]] static bool has_died(const detail::head_node& n);
    [[nodiscard]] duration patience_with(const detail::head_node& n) const;
    [[nodiscard]] std::string silence_text(const detail::head_node& n) const;
    [[nodiscard]] std::uint64_t lost_after_ms() const;
    [[nodiscard]] duration space_fence() const;
    void look_at_silence();
    void leave_attempts(const detail::head_node& n);
    [[nodiscard]] bool is_expected_of(const detail::head_lease& l,
                                      const detail::head_node& n) const;
    void end_lost(detail::head_lease& l, const detail::head_node& n);
    void link_ended(detail::head_node& n, bool left);

    // head_spaces.ipp: what namespaces ask for
    void serve_spaces(net::request_service& of, const session_ptr& s);
    [[nodiscard]] std::optional<driver_now> find_driver(std::uint64_t driver) const override;
    [[nodiscard]] bool is_closed() const override { return over; }
    std::uint64_t make_server(const driver_hello& by) override;
    void start_server(std::uint64_t driver) override;
    [[nodiscard]] bool is_out_of_reach(std::uint64_t driver) const override;
    [[nodiscard]] std::uint32_t workers_of(std::uint64_t driver) const override;
    void end_server(std::uint64_t driver, job_end as, const error& why) override;
    void tell_space_lost(std::uint64_t driver, const space_lost& news) override;
    [[nodiscard]] bool claim_space(const held_lease& held);

    // head_jobs.ipp: what the book of jobs asks for, and their runner
    [[nodiscard]] std::string why_pending(const detail::submitted_job& job) const override;
    [[nodiscard]] std::string silence_of(const detail::submitted_job& job) const override;
    [[nodiscard]] detail::texts_by_job held_up_jobs() const override;
    task<node_log> ask_nodes(detail::job_ptr job, ask_node_log asked) override;
    static task<node_log> ask_all(state* self, detail::job_ptr job, ask_node_log what);
    [[nodiscard]] bool has_driver(std::uint64_t number) const override {
        return drivers.contains(number);
    }
    detail::head_driver& attempt_driver(std::uint64_t attempt, const job_request& job);
    void want_entry(std::uint64_t attempt, const job_request& job) override;
    void expect_entry(std::uint64_t attempt, const job_request& job, const sched::resources& demand,
                      time_point until) override;
    void order_entry(std::uint64_t attempt, start_worker_order order) override;
    void stop_entry(std::uint64_t attempt) override;
    void end_ranks_of(const std::string& job) override;
    [[nodiscard]] std::vector<std::string> rank_nodes_of(const std::string& job) const override;
    [[nodiscard]] std::size_t count_nodes() const override { return nodes.size(); }
    [[nodiscard]] bool has_followers() const override;

    // head_rest.ipp: nodes that cannot start anything
    void node_failed(detail::head_node& n, const std::string& why);
    void node_works(detail::head_node& n);
    void end_rests();

    // head_lending.ipp: entry processes that wait for their own tasks, and what waits for long
    [[nodiscard]] detail::head_lease* entry_of(const detail::head_driver& driver) const;
    [[nodiscard]] bool lend_entry(const detail::head_driver& driver);
    void lend_entries();
    void find_room(const detail::head_driver& driver, bool of_groups);
    [[nodiscard]] const detail::head_lease* held_up(const detail::head_driver& driver) const;
    [[nodiscard]] std::string held_text(const detail::head_lease& l) const;
    [[nodiscard]] std::string held_text(const detail::head_group& g) const;
    void tell_held_up();

    // head_orders.ipp: what nodes are told to start
    [[nodiscard]] const detail::submitted_job* job_behind(const detail::head_driver& driver) const;
    [[nodiscard]] static std::optional<error> objection(const rank_order& rank);
    [[nodiscard]] start_worker_order order_of(const detail::head_lease& l) const;

    // head_leases.ipp: what they hold
    detail::head_lease& add_lease(detail::head_driver& d, std::uint64_t number,
                                  const sched::resources& demand);
    [[nodiscard]] detail::head_lease* find_lease(const lease_name& lease) const;
    void erase(detail::head_lease& l);
    void forget(detail::head_driver& d);
    void end(detail::head_lease& l, bool started, const std::string& why,
             const ended_lease& news = {});
    void want(detail::head_driver& d, const want_lease& what);
    void make_room(const detail::head_driver& d, bool of_groups);
    void make_room(const detail::head_share& of);
    static void spread_order(const detail::head_driver& d,
                             std::vector<sched::scheduler::place_info>& nodes_now);
    [[nodiscard]] bool make_room(const detail::head_lease& l, detail::head_node& n,
                                 const sched::scheduler::place_info& now);
    void give_back(detail::head_driver& d, std::uint64_t number, bool at_once = false);
    void keep(detail::head_driver& d, std::uint64_t number);
    void rest(detail::head_driver& d, const lease_blocked& what);
    void stop_worker(detail::head_lease& l, bool at_once = false);
    void tell_stop(const detail::head_lease& l, bool at_once);
    [[nodiscard]] bool hold(detail::head_node& n, const held_lease& held);
    [[nodiscard]] bool take_over(detail::head_node& n, const held_lease& held,
                                 detail::head_lease* l, detail::lease_state as);
    void reconcile(detail::head_node& n, const node_hello& h, std::vector<lease_name>& stop);
    void reconcile(detail::head_driver& d, const driver_hello& h);
    void on_ended(const ended_lease& what, detail::head_node& from);
    void pump() override;
    void granted(const sched::grant& g);
    static void tell_granted(const detail::head_lease& l);
    void recall(detail::head_lease& l, const std::string& why);
    void not_recalled(detail::head_lease& l);
    static void tell_withdrawn(const detail::head_lease& l);
    void share_out();
    [[nodiscard]] std::int64_t take_stock(std::vector<detail::head_share>& into) const;
    [[nodiscard]] bool is_feasible(const sched::resources& demand) const;
    [[nodiscard]] bool is_coming(const detail::head_lease& l) const;
    [[nodiscard]] bool may_go(const detail::head_lease& l, const detail::head_driver& d) const;

    // head_groups.ipp: placement groups
    void want_group(detail::head_driver& d, const known_group& what);
    void drop_group(detail::head_driver& d, std::uint64_t number);
    void close_groups(detail::head_driver& d);
    [[nodiscard]] static detail::head_group* group_of(const detail::head_lease& l);
    [[nodiscard]] static std::optional<sched::constraint> where_of(const detail::head_lease& l);
    void ask_room(detail::head_lease& l);
    void create(detail::head_group& g);
    void adopt(detail::head_group& g);
    [[nodiscard]] bool adopt_bundle(detail::head_group& g, std::size_t bundle,
                                    std::vector<detail::head_lease*>& inside);
    void take_groups_over(bool all);
    void on_group(const sched::notice& n);
    static void tell_group(const detail::head_group& g);
    void make_group_room(const detail::head_share& of);
    [[nodiscard]] bool make_group_room(const detail::head_group& g, bool within_share);
    [[nodiscard]] sched::scheduler places_for(const detail::head_group& g, bool within_share,
                                              std::map<std::uint64_t, sched::amount>& free);
    [[nodiscard]] std::int64_t group_cpus(const detail::head_group& g) const;
};

} // namespace skein::cluster
