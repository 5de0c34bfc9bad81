// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a head knows: sessions, nodes, drivers, jobs, leases.

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/detail/drains.hpp>
#include <skein/cluster/detail/driver_waits.hpp>
#include <skein/cluster/detail/fair_shares.hpp>
#include <skein/cluster/detail/head_forwards.hpp>
#include <skein/cluster/detail/head_memory.hpp>
#include <skein/cluster/detail/head_silence.hpp>
#include <skein/cluster/detail/job_book.hpp>
#include <skein/cluster/detail/job_runner.hpp>
#include <skein/cluster/detail/lease_table.hpp>
#include <skein/cluster/detail/namespaces.hpp>
#include <skein/cluster/detail/node_loads.hpp>
#include <skein/cluster/detail/node_table.hpp>
#include <skein/cluster/detail/output_relay.hpp>
#include <skein/cluster/detail/package_service.hpp>
#include <skein/cluster/detail/run_service.hpp>
#include <skein/cluster/detail/submitted_job.hpp>
#include <skein/cluster/head.hpp>
#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/net/link.hpp>
#include <skein/net/link_endpoint.hpp>
#include <skein/net/requests.hpp>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace skein::cluster {

namespace detail {

struct head_driver;

enum class head_phase : std::uint8_t {
    serves,
    over,   ///< it ends, and has told all that are there
    crashed ///< it ends, and nobody is told anything
};

/// One link to a node, a driver or a tool.
struct head_session {
    net::link::handle below;
    net::requests::handle way; ///< nullptr: it has ended
    std::string seen_from;     ///< the peer's host, as this one sees it; "": it is this one
    std::uint64_t incarnation = 0;
    net::key_name key;
    known_node* node = nullptr;
    head_driver* driver = nullptr;
    package_uploads uploads;
    run_uploads results;
    page_forwards forwards;
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

struct head_driver {
    std::uint64_t incarnation = 0; ///< of its driver
    lease_holder* holder = nullptr;
    driver_hello hello;                    ///< empty until its driver has come
    std::shared_ptr<head_session> session; ///< nullptr: it is away
    time_point away_until{};
    std::string seen_from;    ///< see head_session
    call_counts calls;        ///< as it has told last
    net::key_name key;        ///< with which it has come, or is to come
    time_point shut_out_at{}; ///< see head_keys::end_shut_out
    std::string begun_by;     ///< of a space server: the job of the driver that has asked for it

    [[nodiscard]] bool has_come() const noexcept {
        return hello.port != 0 || !hello.address.empty() || hello.has_ranks;
    }
};

} // namespace detail

struct head::state final : detail::output_readers,
                           detail::space_drivers,
                           detail::job_sources,
                           detail::attempt_events,
                           detail::lease_events,
                           detail::node_links {
    using session_ptr = std::shared_ptr<detail::head_session>;

    state(loop& on, net::network& via, head_options given);

    loop& on_loop;
    head_options how;
    net::link_endpoint door;
    detail::lease_table leases;
    detail::fair_shares shares;
    std::map<std::uint64_t, std::unique_ptr<detail::head_driver>> drivers; ///< by incarnation
    std::vector<session_ptr> sessions;
    std::map<std::uint64_t, session_ptr> links; ///< the newest of each node
    detail::head_memory memory;                 ///< of those that have gone
    detail::node_table nodes;
    std::shared_ptr<net::request_budget> in_progress = detail::cluster_budget(); ///< of them
    time_point since;
    event stopping;
    detail::namespaces spaces;
    detail::output_relay output{*this};
    detail::left_attempts given_up;
    detail::job_book jobs;
    detail::driver_waits waits;
    detail::job_files files;
    detail::job_runner runner;
    detail::drains drained;
    std::shared_ptr<head_web> web;
    detail::node_loads loads;
    call_counts calls_of_gone; ///< of drivers that are no more
    detail::head_phase phase = detail::head_phase::serves;

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
    detail::known_node& enter(const session_ptr& s, const node_hello& h);
    void lose(detail::known_node& n, const std::string& why, bool left, bool may_run);
    detail::head_driver& driver_of(std::uint64_t incarnation);
    void leave(detail::head_driver& d, job_end how);
    void remember();
    void introduce();
    [[nodiscard]] cluster_status status(bool past = false) const;
    [[nodiscard]] std::vector<job_status> programs() const;
    [[nodiscard]] job_status status_of(const detail::head_driver& d) const;
    void tell_all_to_leave();
    static task<void> close_link(net::link::handle l);

    // who reads what workers print
    [[nodiscard]] detail::output_reader reader_of(std::uint64_t driver) const override;
    bool ask_for_lines(std::uint64_t node, std::uint64_t driver) override;
    void keep_lines_of(std::uint64_t driver, std::vector<printed_lines> lines) override;
    void send_lines(std::uint64_t driver, std::uint64_t node,
                    std::vector<printed_lines> lines) override;

    // head_nodes.ipp: links of nodes, and what becomes of what they ran
    [[nodiscard]] bool is_silent(std::uint64_t node) const override;
    [[nodiscard]] bool has_died(std::uint64_t node) const override;
    void tell_drains(std::uint64_t node, bool on) override;
    void lose_node(std::uint64_t node, const std::string& why, bool may_run) override;
    void tell_size() override;
    [[nodiscard]] bool is_expected_of(const detail::lease& l, const detail::known_node& n) const;
    void end_lost(detail::lease& l, const detail::known_node& n);
    void link_ended(detail::known_node& n, bool left);

    // head_spaces.ipp: what namespaces ask for
    void serve_spaces(net::request_service& of, const session_ptr& s);
    [[nodiscard]] std::optional<driver_now> find_driver(std::uint64_t driver) const override;
    [[nodiscard]] bool is_closed() const override { return phase != detail::head_phase::serves; }
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
    [[nodiscard]] detail::texts_by_job held_up_jobs() const override { return waits.by_job(); }
    task<node_log> ask_nodes(detail::job_ptr job, ask_node_log asked) override;
    static task<node_log> ask_all(state* self, detail::job_ptr job, ask_node_log what);
    [[nodiscard]] detail::lease_holder& make_attempt(std::uint64_t attempt,
                                                     const std::string& job) override;
    void send_order(std::uint64_t node, const start_worker_order& order) override;
    [[nodiscard]] bool has_followers() const override;

    // head_orders.ipp: what nodes are told to start
    [[nodiscard]] const detail::submitted_job* job_behind(const detail::head_driver& driver) const;
    [[nodiscard]] start_worker_order order_of(const detail::lease& l) const;

    // head_leases.ipp: what a table of leases asks for, and what those say who come back
    [[nodiscard]] bool is_connected(std::uint64_t driver) const override;
    void tell_driver(std::uint64_t driver, const detail::lease_news& news) override;
    void start_process(detail::lease& granted) override;
    void stop_process(const detail::lease& l, bool at_once) override;
    void lease_ends(const detail::lease& last, const std::string& why) override;
    void entry_ended(const std::string& job, bool started, const std::string& why,
                     const ended_lease& end, bool is_ordered) override {
        runner.ended(job, started, why, end, is_ordered);
    }
    void holder_over(std::uint64_t driver) override;
    [[nodiscard]] bool hold(detail::known_node& n, const held_lease& held);
    void reconcile(detail::known_node& n, const node_hello& h, std::vector<lease_name>& stop);
    void reconcile(detail::head_driver& d, const driver_hello& h);
    void on_ended(const ended_lease& what, detail::known_node& from);
};

} // namespace skein::cluster
