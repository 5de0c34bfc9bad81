// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of sched/scheduler.hpp.
//
// A queue holds the requests of one job, demand and constraint. What decides where they fit, demand
// and constraint, is a class, which queues of several jobs share. Queues with requests are
//   ready       in their job's list: their first request may fit somewhere;
//   blocked     in their class's list: it fitted nowhere, and no place has grown since that would
//               do;
//   infeasible  no place could hold it even if it were empty.
// A bundle of a placement group is a place, too: it lies on its host and is found through its group
// only.

#include <skein/sched/detail/place_tree.hpp>
#include <skein/sched/detail/request_table.hpp>
#include <skein/sched/detail/room.hpp>
#include <skein/sched/scheduler.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace skein::sched::detail {

struct node_domain;

/// Places among which a search goes: all, those with a label, the bundles of a group, those of a
/// node.
struct place_domain {
    place_tree now, ever;               ///< what is free for others, and what there is in all
    std::vector<std::uint32_t> members; ///< place of a leaf, or no_index
    std::vector<std::uint32_t> holes;
    node_domain* of = nullptr;          ///< it is those of a node
    std::uint32_t node_leaf = no_index; ///< its leaf there
};

/// Places by their node, for requests that take the nodes in turn. A leaf promises the most that a
/// place there has.
struct node_domain {
    place_tree now;
    std::vector<std::unique_ptr<place_domain>> nodes; ///< of a leaf, or nullptr
    std::vector<std::uint32_t> holes;
    std::map<std::string, std::uint32_t, std::less<>> leaf_of; ///< by the label of a node
    std::uint32_t next = 0;                                    ///< whose turn it is
};

/// Room kept free for who waited long, or for whom others are asked to leave.
struct reservation {
    needs kept;
    std::uint32_t queue = no_index; ///< whose first request it is for
    std::uint64_t group = 0;        ///< or which group
    [[nodiscard]] bool exists() const noexcept { return queue != no_index || group != 0; }
};

/// What a decision looks at stands first.
struct place_record {
    bool alive = false, draining = false, grown = false;
    std::uint32_t host = no_index; ///< of a bundle
    int bundle = -1;
    std::uint32_t running = 0;      ///< granted, not for life, not waiting: ends or waits some time
    std::uint32_t running_cpus = 0; ///< those of them that hold cpus
    std::uint32_t leaving = 0;      ///< granted, not waiting, asked to end
    std::uint32_t first_held = no_index, held = 0;
    std::int64_t resuming_cpus = 0;
    place_id id;
    room now;
    /// With its leaf there, which says what new requests may take; the first: all places, or its
    /// group's.
    std::vector<std::pair<place_domain*, std::uint32_t>> in;
    reservation kept;
    std::vector<std::uint32_t> resuming;
    std::uint64_t group = 0;
    gpu_set gpus;
    needs total_needs;
    resources total;
    std::string name, resting; ///< why it takes nothing for now
    std::vector<std::string> labels;
};

enum class queue_state : std::uint8_t { empty, ready, blocked, infeasible };

/// What was said last of a queue or a group that nothing there could hold.
enum class told_state : std::uint8_t {
    nothing,
    no_places, ///< that no place was there: with the first one there is something else to say
    infeasible
};

struct queue_record {
    std::uint32_t job = no_index, cls = no_index;
    bool fails = false; ///< what is infeasible is refused
    bool idles = false; ///< it is in the list of idle queues
    queue_state state = queue_state::empty;
    told_state told = told_state::nothing;
    std::uint32_t first = no_index, last = no_index;
    std::uint32_t queued = 0, granted = 0;
    // How long its first request has been passed.
    bool ages = false;
    std::uint32_t older = no_index,
                  younger = no_index;  ///< neighbours in the list of those that age
    std::uint32_t chances = 0;         ///< times it fitted, and another job came first
    std::uint64_t since = 0;           ///< grants of all at the time
    std::uint32_t reserved = no_index; ///< the place that is kept for it
};

struct class_record {
    std::uint32_t shape = no_index, where = no_index;
    bool feasible = false;
    std::uint64_t checked = 0; ///< the version of the places when it was
    std::uint32_t queues = 0;
    std::vector<std::uint32_t> blocked;
};

struct shape_record {
    resources demand;
    needs all; ///< what a search compares
    std::int64_t cpu = 0;
    std::uint32_t main = dim_order; ///< where spreading looks for most room
    std::uint32_t classes = 0;
};

struct constraint_record {
    constraint where;
    std::unique_ptr<place_domain> labelled;
    std::unique_ptr<node_domain> by_node; ///< of a spread one
    std::uint32_t classes = 0;
};

struct job_record {
    job_id id;
    std::uint32_t weight = 1;
    std::uint64_t pass = 0, at = 0; ///< its charge, after so many turns
    std::uint64_t rate = 0;         ///< its charge per turn: its share by its weight
    std::vector<std::int64_t> used; ///< by dimension; shares of gpus count as gpus
    std::vector<std::uint32_t> ready;
    bool is_ready = false;
    std::size_t queued = 0;
};

struct group_record {
    struct bundle {
        resources demand;
        needs all;
        std::uint32_t place = no_index;
    };
    placement_group_id id;
    job_id job;
    std::uint32_t job_index = 0;
    group_strategy strategy = group_strategy::pack;
    std::uint64_t tag = 0, since = 0;
    bool fails = false, waits = true, reserved = false;
    told_state told = told_state::nothing;
    std::vector<bundle> bundles;
    place_domain domain;
};

/// A place in a plan: a copy of its room from which bundles are taken on trial.
struct plan_room {
    std::uint32_t place = no_index;
    detail::room room;
    bool used = false;
};

struct schedule_state {
    explicit schedule_state(scheduler_options o) : options(o) {}

    scheduler_options options;
    std::vector<place_record> all_places;
    std::vector<std::uint32_t> free_places;
    std::unordered_map<place_id, std::uint32_t> place_of;
    place_domain everywhere;
    std::uint64_t places_version = 1, checked_version = 1;
    std::vector<std::uint32_t> grown;
    bool groups_may_fit = false;

    request_table requests;
    std::uint64_t submitted = 0;

    std::vector<queue_record> all_queues;
    std::vector<std::uint32_t> free_queues;
    std::deque<std::uint32_t> idle_queues;
    std::map<std::tuple<std::uint32_t, std::uint32_t, bool>, std::uint32_t> queue_of;
    std::uint32_t oldest = no_index, youngest = no_index;
    std::vector<std::uint32_t> reserved_queues;

    std::vector<class_record> classes;
    std::vector<std::uint32_t> free_classes, waiting_classes;
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> class_of;
    std::vector<shape_record> shapes;
    std::vector<std::uint32_t> free_shapes;
    std::map<resources, std::uint32_t> shape_of;
    std::vector<constraint_record> constraints;
    std::vector<std::uint32_t> free_constraints;
    std::map<constraint, std::uint32_t> constraint_of;
    std::map<std::string, std::uint32_t, std::less<>> custom_dims;
    std::uint32_t dims = dim_custom;
    struct {
        std::uint32_t queue = no_index;
        request last;
    } recent; ///< where the last request went: most go where that went

    std::vector<job_record> jobs;
    std::vector<std::uint32_t> free_jobs;
    std::unordered_map<job_id, std::uint32_t> job_of;
    std::vector<std::uint32_t> ready_jobs;
    std::uint64_t virtual_time = 0;    ///< the largest charge at which a job was served
    std::vector<std::int64_t> cluster; ///< totals of all places, by dimension

    std::map<std::uint64_t, group_record> groups;
    std::uint64_t last_group = 0;

    std::vector<notice> notices;
    std::uint64_t grants = 0, turns = 0, reservations = 0; ///< turns: those that granted something
    std::size_t queued = 0, granted = 0, waiting = 0, resuming = 0, running = 0;

    // scheduler.ipp: requests and queues
    [[nodiscard]] needs needs_of(const resources& r);
    void number_shape(shape_record& s);
    [[nodiscard]] std::uint32_t intern_shape(const resources& demand);
    [[nodiscard]] std::uint32_t intern_constraint(const constraint& where);
    [[nodiscard]] std::uint32_t intern_class(const request& r);
    [[nodiscard]] std::uint32_t queue_for(const request& r);
    void drop_queue(std::uint32_t q);
    void drop_class(std::uint32_t c);
    void queue_is_idle(std::uint32_t q);
    [[nodiscard]] std::uint32_t job_for(job_id id);
    [[nodiscard]] result<void> check(const request& r) const;
    [[nodiscard]] result<request_id> submit(const request& r);
    [[nodiscard]] result<request_id> adopt(request r, place_id at, gpu_set gpus);
    [[nodiscard]] std::uint32_t adopting_place(const request& r, std::uint32_t host, gpu_set gpus);
    void append(std::uint32_t q, std::uint32_t e);
    void unqueue(std::uint32_t e);
    bool cancel(request_id id);
    void hold(std::uint32_t e, std::uint32_t place, gpu_set gpus);
    bool set_leaving(request_id id, bool on);
    void count_running(const request_entry& entry, int by);
    bool release(request_id id);
    void give_back(std::uint32_t e);
    void evict(std::uint32_t place, std::vector<evicted>& into);
    bool wait_begin(request_id id);
    bool wait_end(request_id id);
    [[nodiscard]] static bool may_resume(const place_record& p, std::int64_t cpu);
    void take_cpus_again(std::uint32_t e);
    void refuse(std::uint32_t q, const error& why);
    std::vector<evicted> remove_job(job_id id);

    // scheduler_places.ipp
    [[nodiscard]] result<void> add_place(place_id id, std::string name, const resources& total,
                                         std::vector<std::string> labels);
    [[nodiscard]] std::uint32_t new_place();
    void learn(const resources& total);
    void open_place(std::uint32_t p, const needs& total, gpu_set gpus);
    void join_labelled(std::uint32_t p);
    bool set_labels(place_id id, std::vector<std::string> labels);
    std::vector<evicted> remove_place(place_id id);
    bool drain(place_id id, bool on);
    void join(place_domain& d, std::uint32_t p);
    void join_node(node_domain& all, std::uint32_t p);
    void leave(place_domain& d, std::uint32_t leaf);
    void leave_all(std::uint32_t p);
    [[nodiscard]] bool is_there(const place_record& p) const;
    [[nodiscard]] bool is_open(const place_record& p) const;
    bool rest(place_id id, std::string why);
    [[nodiscard]] std::string resting_text(const constraint& where) const;
    void offer(std::uint32_t p);
    void grow(std::uint32_t p);
    void count_cluster(const place_record& p, int sign);
    [[nodiscard]] place_domain* domain_of(const constraint_record& c);
    [[nodiscard]] std::uint32_t single_place(const constraint& where) const;
    [[nodiscard]] bool is_avoided(const constraint& where, std::uint32_t p) const;
    [[nodiscard]] bool matches(const constraint& where, std::uint32_t p) const;
    [[nodiscard]] bool allows(const class_record& c, std::uint32_t p) const;
    [[nodiscard]] bool is_feasible(std::uint32_t c);
    [[nodiscard]] std::uint32_t find(const queue_record& q);
    [[nodiscard]] std::uint32_t find_in(const place_domain& d, const shape_record& shape,
                                        const constraint& where) const;
    [[nodiscard]] std::uint32_t find_in_turn(node_domain& all, const shape_record& shape,
                                             const constraint& where) const;
    [[nodiscard]] bool fits_reserved(std::uint32_t p) const;
    [[nodiscard]] static room bundle_room(const needs& all);

    // scheduler_pump.ipp
    std::size_t take_grants(std::vector<grant>& into, std::size_t limit);
    void make_ready(std::uint32_t q);
    void not_ready(std::uint32_t q);
    void block(std::uint32_t q);
    void unblock_for(std::uint32_t p);
    void leave_blocked(std::uint32_t q);
    void recheck_feasible();
    void check_queue(std::uint32_t q);
    [[nodiscard]] bool is_news(told_state& told) const;
    void say_again(job_id job);
    void resume(std::uint32_t p, std::vector<grant>& into);
    void look_at_grown(std::vector<grant>& into);
    [[nodiscard]] std::uint32_t next_job();
    [[nodiscard]] std::uint32_t next_queue(const job_record& j) const;
    void give(std::uint32_t q, std::uint32_t p, std::vector<grant>& into);
    void settle_on(std::uint32_t e, std::uint32_t p, gpu_set gpus);
    void charge(std::uint32_t job, const needs& all, int sign, bool with_cpus);
    void settle(job_record& j) const;
    void find_rate(job_record& j) const;
    void age(std::uint32_t q);
    void stop_ageing(std::uint32_t q);
    [[nodiscard]] std::uint64_t patience() const;
    void age_all();
    void reserve_for(std::uint32_t q);
    [[nodiscard]] bool keep_room(request_id id);
    void drop_reservation(std::uint32_t p);
    void drop_hopeless(std::uint32_t p);
    [[nodiscard]] room obtainable(const place_record& p) const;

    // scheduler_groups.ipp
    [[nodiscard]] result<placement_group_id> create_group(group_request g);
    std::vector<evicted> remove_group(placement_group_id id);
    enum class outlook : std::uint8_t { now, soon, ever };
    [[nodiscard]] std::vector<plan_room> rooms_for(const group_record& g, outlook when,
                                                   std::uint32_t but) const;
    [[nodiscard]] std::vector<std::uint32_t> plan(const group_record& g, outlook when,
                                                  std::uint32_t but = no_index) const;
    bool adopt_bundle(placement_group_id id, std::size_t bundle, place_id at, gpu_set gpus);
    void place_group(group_record& g);
    void place_bundle(group_record& g, std::size_t b, std::uint32_t host, gpu_set gpus);
    void group_is_placed(group_record& g);
    void move_bundles(place_id from);
    void group_is_broken(group_record& g, error why);
    void place_groups();
    void check_group(group_record& g);
    void lose_bundle(group_record& g, std::size_t bundle, std::vector<evicted>& into);
    void reserve_for(group_record& g);
    [[nodiscard]] bool keep_room(placement_group_id id);
    void drop_reservations(group_record& g);
    void refuse_queues_of(placement_group_id id);

    // scheduler_report.ipp
    [[nodiscard]] error missing(const class_record& c) const;
    [[nodiscard]] error missing(const group_record& g) const;
    [[nodiscard]] std::string why_waits(const queue_record& q) const;
    [[nodiscard]] std::string where_text(const constraint& where) const;
    [[nodiscard]] std::string asks_text(const class_record& c) const;
    [[nodiscard]] std::string best_place(const class_record& c, bool ever) const;
    [[nodiscard]] std::string totals_text(const constraint& where) const;
    [[nodiscard]] std::optional<error> nobody_matches(const class_record& c) const;
    [[nodiscard]] std::string names_there() const;
    [[nodiscard]] std::string labels_there() const;
    [[nodiscard]] std::string resources_there() const;
    [[nodiscard]] std::string amount_text(std::uint32_t dim, std::int64_t n) const;
    [[nodiscard]] resources used_of(const place_record& p) const;
    [[nodiscard]] std::string why(request_id id) const;

    // What the scheduler's state has of a constraint.
    [[nodiscard]] static bool is_anywhere(const constraint& w) {
        return w.kind_ == constraint::kind::anywhere;
    }
    [[nodiscard]] static const std::string* label_of(const constraint& w) {
        return w.kind_ == constraint::kind::label ? &w.label_ : nullptr;
    }
    [[nodiscard]] static place_id place_in(const constraint& w) {
        return place_id(w.kind_ == constraint::kind::place ? w.number_ : 0);
    }
    [[nodiscard]] static std::uint64_t group_in(const constraint& w) {
        return w.kind_ == constraint::kind::group ? w.number_ : 0;
    }
    [[nodiscard]] static int bundle_in(const constraint& w) { return w.bundle_; }
    [[nodiscard]] static bool spreads(const constraint& w) { return w.spread_; }
    [[nodiscard]] static const std::vector<place_id>& avoided(const constraint& w) {
        return w.avoid_;
    }
};

} // namespace skein::sched::detail
