// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an agent knows: its link to the head, and the workers that it has started.

#include <skein/cluster/agent.hpp>
#include <skein/cluster/attempt_logs.hpp>
#include <skein/cluster/detail/agent_drain.hpp>
#include <skein/cluster/detail/agent_stores.hpp>
#include <skein/cluster/detail/head_link.hpp>
#include <skein/cluster/detail/job_folder.hpp>
#include <skein/cluster/detail/job_folders.hpp>
#include <skein/cluster/detail/marked_processes.hpp>
#include <skein/cluster/detail/result_sender.hpp>
#include <skein/cluster/detail/sent_output.hpp>
#include <skein/cluster/detail/step_sender.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/proc/children.hpp>
#include <skein/proc/output.hpp>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace skein::cluster {

struct agent::state {
    /// A worker, from the order to start it until its end was told.
    struct worker {
        start_worker_order order;
        cancel_source stop;
        cancel_source give_up; ///< what it leaves behind need not be kept
        bool asked_to_stop = false;
        proc::child* process = nullptr; ///< while it runs
        detail::printed_output* printed = nullptr;
        detail::job_place place;
        std::string executable;                      ///< of a job's entry process
        bool is_asked = false;                       ///< its processes have had their SIGTERM
        std::unique_ptr<detail::table_reader> table; ///< what its training writes there
        std::shared_ptr<attempt_logs::writer> log;   ///< the file for what it prints
        log_piece unwritten;                         ///< of that
        event to_write;                              ///< there is some, or no more comes
        bool is_read = false;                        ///< no more comes
        objects::child_link store;                   ///< of its process

        /// Paths in the folder of a job are where that is on this node.
        [[nodiscard]] std::string path_in_job(const std::string& path) const {
            if (order.job().empty() || !detail::is_in_job(path)) return path;
            return path == "." ? place.folder : place.folder + "/" + path;
        }
    };
    /// What its parts ask of the head.
    struct head_way final : detail::output_way, detail::package_source {
        explicit head_way(detail::head_link& to) : head(to) {}
        bool offer_lines(std::uint64_t driver) override { return head.tell(output_waits{driver}); }
        bool send_lines(node_output m) override { return head.tell(std::move(m)); }
        task<package_found> find_package(ask_package which) override {
            return head.ask<package_found>(std::move(which));
        }
        task<blob_piece> read_blob(ask_blob which) override {
            return head.ask<blob_piece>(std::move(which));
        }
        detail::head_link& head;
    };

    state(loop& on, net::network& via, proc::children& where, agent_options given);

    loop& on_loop;
    proc::children& children;
    agent_options how;
    sched::resources total;
    std::map<lease_name, std::unique_ptr<worker>> workers;
    std::vector<ended_lease> untold;                           ///< ends while there was no link
    std::deque<std::pair<time_point, ended_lease>> entry_ends; ///< until when each head hears them
    detail::marked_processes marked{children}; ///< what entry processes have started
    detail::agent_drain drain;
    bool leaving = false;                          ///< the link to the head has ended for good
    bool has_joined = false, is_abandoned = false; ///< see agent_options::leaves_alone
    bool is_orphaned = false;                      ///< no head for long: its workers end
    duration head_waits{};                         ///< for this node, when it is silent
    event stopping;
    detail::head_link head;
    head_way way{head};
    detail::sent_output output{way};
    detail::job_folders folders{how.storage, way};
    detail::result_sender results{head, how.storage};
    detail::step_sender steps{head, how.storage};
    detail::agent_stores stores{how.store_bytes, how.name.empty() ? how.host : how.name};
    scope running; ///< the workers

    task<void> serve();
    [[nodiscard]] detail::head_link_options link_options(loop& on);
    void say_away(const error& why, bool was_joined);
    static task<void> watch_orphans(state* self);
    /// The time without a head after which the agent ends what it runs.
    [[nodiscard]] duration patience() const {
        return how.leaves_alone ? duration(how.orphan_grace)
                                : std::max<duration>(how.orphan_grace, head_waits);
    }
    [[nodiscard]] std::shared_ptr<net::request_service> make_service();
    [[nodiscard]] node_hello hello() const;
    static task<void> say_hello(state* self);

    void start(start_worker_order order);
    void stop_one(const lease_name& lease, bool at_once);
    void stop_all();
    static task<void> live(state* self, lease_name lease);
    static task<void> send_last_words(state* self, worker* w);
    static task<void> prepare(state* self, worker* w);
    void watch(worker* w, scope& beside, std::string* silent);
    static task<ended_lease> run(state* self, worker* w);
    static task<void> end_reading(worker* w, scope* watching, scope* reading, scope* writing);
    static task<void> end_now(state* self, worker* w, proc::child* process, ended_lease* into);
    static task<void> end_silent(state* self, worker* w, std::string* why);
    void tell_end(ended_lease what);

    // agent_orders.ipp: what they are started with
    [[nodiscard]] net::address driver_of(const driver_program& driver, std::uint16_t port) const;
    [[nodiscard]] proc::child_options space_server_to_start(const worker& w) const;
    void add_job_environment(const worker& w, proc::child_options& child) const;
    void be_rank(const rank_process& order, const net::token& secret,
                 proc::child_options& child) const;
    [[nodiscard]] proc::child_options what_to_start(worker& w);

    // agent_entries.ipp: entry processes of jobs
    void remember_end(const ended_lease& what);
    static task<void> prepare_entry(state* self, worker* w);
    static task<void> prepare_of_job(state* self, worker* w);
    [[nodiscard]] proc::child_options entry_to_start(const worker& w) const;
    void entry_runs(worker* w, scope& beside);
    static task<void> ask_entry_to_end(state* self, worker* w);
    [[nodiscard]] time_span grace_of(const worker& w) const;
    static task<void> watch_rows(state* self, worker* w);
    void send_rows(const worker& w);
    static task<void> end_what_is_left(state* self, worker* w);

    // agent_load.ipp: how busy the host is
    static task<void> tell_load(state* self);

    // agent_logs.ipp: what entry processes print, in files
    std::shared_ptr<attempt_logs> logs; ///< once a job was here, or somebody has asked
    static task<void> begin_log(state* self, worker* w);
    static task<void> write_log(state* self, worker* w);
    static task<node_log> read_log(state* self, ask_node_log asked);
};

} // namespace skein::cluster
