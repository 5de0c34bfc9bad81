// SPDX-License-Identifier: Apache-2.0
#pragma once
// scheduler: which request gets room on which place. Pure code: no loop, no clock, no I/O, no
// randomness. The same calls give the same grants, so that a driver, an agent, a head, a simulation
// and a test use one object.
//
//     sched::scheduler s;
//     s.add_place(sched::place_id(1), "worker-1", sched::parse_resources("cpu=2").value());
//     sched::request r;
//     r.demand.cpu = 1;
//     r.tag = my_number;                          // comes back with the grant
//     const sched::request_id id = s.submit(r).value();
//     std::vector<sched::grant> granted;
//     s.take_grants(granted);                     // once per turn: what was decided since
//     s.release(id);                              // the work has ended
//
// Requests wait in queues, one for each job, demand and constraint: what does not fit holds up its
// own queue only. Jobs share by weight; what waited for too many grants gets a place reserved. A
// request that waits for others gives its cpus back meanwhile. docs/design/0006-scheduler.md has
// the rules and their reasons.

#include <skein/core/config.hpp>
#include <skein/core/error.hpp>
#include <skein/core/ids.hpp>
#include <skein/core/result.hpp>
#include <skein/sched/resources.hpp>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace skein::sched {

namespace detail {
struct schedule_state;
}

/// A place where requests run: a worker, a host, another scheduler. The caller chooses the number.
using place_id = strong_id<struct place_tag>;
/// A request of one scheduler, from submit() to release(); never given twice.
using request_id = strong_id<struct request_tag>;
/// A placement group of one scheduler.
using placement_group_id = strong_id<struct placement_group_tag>;

/// Which of the places with enough room is taken.
enum class placement : std::uint8_t {
    pack, ///< the first, in the order in which places came: later ones stay whole for large demands
    spread ///< the one with most room
};

/// What a scheduler is made with.
struct scheduler_options {
    placement policy = placement::pack;
    /// Grants to others that may pass a request which does not fit, before a place is kept free for
    /// it. Never less than the number of places.
    std::uint32_t patience = 256;
    std::string place_is = "place"; ///< what people call a place, in texts
};

/// Where a request may go. Has no part in a job's fair share.
class constraint {
public:
    constraint() = default; ///< anywhere
    /// This place only.
    [[nodiscard]] static constraint on(place_id place);
    /// Places with this label.
    [[nodiscard]] static constraint labelled(std::string label);
    /// Anywhere, on the nodes in turn: on the next one that has room, whatever the scheduler's
    /// policy is. Places with a label "node=..." in common are on one node, others on one of their
    /// own; on a node the policy decides.
    [[nodiscard]] static constraint spread();
    /// The bundle of a group; -1: any bundle of it.
    [[nodiscard]] static constraint in(placement_group_id group, int bundle = -1);
    /// The same without these places; at most 64.
    [[nodiscard]] constraint avoiding(std::vector<place_id> places) const;

    friend bool operator==(const constraint&, const constraint&) = default;
    friend auto operator<=>(const constraint&, const constraint&) = default;

private:
    friend struct detail::schedule_state;
    enum class kind : std::uint8_t { anywhere, place, label, group };
    kind kind_ = kind::anywhere;
    bool spread_ = false;
    int bundle_ = -1;
    std::uint64_t number_ = 0; ///< of the place or group
    std::string label_;
    std::vector<place_id> avoid_; ///< sorted
};

/// What submit() takes.
struct request {
    job_id job{};       ///< whose share it counts for
    resources demand{}; ///< nothing at all is granted at once, on the place with fewest grants
    sched::constraint where{};
    std::uint64_t tag = 0; ///< the caller's own; comes back with everything said about the request
    bool for_life = false; ///< an actor: nobody may count on its end
    /// What no place could ever hold is refused. Otherwise it waits until one comes that can.
    bool fail_if_infeasible = false;
};

/// A request has got room, or goes on after wait_end().
struct grant {
    request_id id;
    std::uint64_t tag = 0;
    place_id place;
    gpu_set gpus;         ///< those it may use, by their index on the place
    int bundle = -1;      ///< of its group, if it asked for one
    bool resumed = false; ///< it has waited and has its cpus again: nothing new starts
};

/// A request that held room where there is none any more. Its id is gone.
struct evicted {
    request_id id;
    std::uint64_t tag = 0;
};

/// What is rare.
struct notice {
    enum class kind : std::uint8_t {
        refused,    ///< the request is gone: it cannot be held, or its group was removed
        infeasible, ///< the request waits for a place that could hold it; said once for its queue,
                    ///< and once more when that was before there was any place
        group_placed,     ///< all bundles have places
        group_infeasible, ///< the group waits: no set of places could hold it
        group_broken      ///< bundles have lost their places; they are placed again
    };
    kind what = kind::refused;
    request_id id;         ///< of a request
    std::uint64_t tag = 0; ///< of the request or group
    placement_group_id group;
    std::vector<place_id> bundles; ///< group_placed, group_broken: the place of each, if it has one
    std::vector<gpu_set> gpus;     ///< group_placed: those of each
    error why{errc::unknown, "no reason"}; ///< what is missing, and where most of it is
};

/// How the bundles of a placement group are spread over places.
enum class group_strategy : std::uint8_t {
    pack,         ///< few places
    spread,       ///< many places
    strict_pack,  ///< one place
    strict_spread ///< each bundle on a place of its own
};

/// Room that is taken together or not at all, for requests to come.
struct group_request {
    job_id job{};
    group_strategy strategy = group_strategy::pack;
    std::vector<resources> bundles{}; ///< 1 to 4096
    std::uint64_t tag = 0;            ///< the caller's own; not 0: errors call the group so
    bool fail_if_infeasible = false;
};

/// Decides. Not thread-safe. Errors of outside input come as results; ids that are unknown or gone
/// are answered with false, for a release may cross an eviction.
class scheduler {
public:
    explicit scheduler(scheduler_options options = {});
    scheduler(scheduler&&) noexcept;
    scheduler& operator=(scheduler&&) noexcept;
    ~scheduler();

    /// name: as messages say it, "worker-3". Labels are compared whole: "zone=a".
    result<void> add_place(place_id id, std::string name, const resources& total,
                           std::vector<std::string> labels = {});
    /// The place has these labels from now on. What runs there goes on. False if it is unknown.
    bool set_labels(place_id id, std::vector<std::string> labels);
    /// Gives back the requests that held something there; bundles there are placed again.
    std::vector<evicted> remove_place(place_id id);
    /// Nothing new goes there, nor into bundles there; what runs goes on. False if it is unknown.
    bool drain(place_id id, bool on = true);
    /// Nothing new goes there for now; it counts as a place that could hold what it could before.
    ///   why     in texts about what waits; "": it takes requests again
    bool rest(place_id id, std::string why);

    /// A job has twice the share of one with half its weight: 1 to 1000; 1 if nothing is said.
    void set_weight(job_id job, std::uint32_t weight);
    /// Forgets the job's queued requests and its groups, and gives back those that held room in
    /// these. What it holds elsewhere it keeps until it is released: stop that first, then say
    /// this.
    std::vector<evicted> remove_job(job_id job);

    /// Queues a request; a grant, a notice or cancel() ends that.
    result<request_id> submit(const request& r);
    /// Books a request that runs already, on a place that held it before this scheduler knew of it.
    /// It passes all that wait: they could not have had the room. No grant comes for it; release()
    /// ends it. In a group: a bundle of it on that place, or any that has room, if it names none.
    /// Cpus are taken even if they are not free: it may wait, or who has them may; say so then with
    /// wait_begin().
    ///   gpus    those it uses there
    ///   errors  not_found (the place), exhausted (of others so much is not free there), those of
    ///           submit()
    result<request_id> adopt(const request& r, place_id at, gpu_set gpus = {});
    /// Takes a queued request back. False if it is not queued (any more): then release() it.
    bool cancel(request_id id);
    /// Gives back what a granted request holds. False if it holds nothing (any more).
    bool release(request_id id);
    /// A granted request has been asked to end: room may be kept for others that counts on it,
    /// though it is for life. Off: it goes on after all. False if it holds nothing.
    bool set_leaving(request_id id, bool on = true);
    /// Keeps the place free, before anybody has passed it, where a queued request fits once what
    /// can be counted on to end there has ended. Given up like any reservation: it got its room, or
    /// what runs there does not end after all. False: there is no such place, or it is not queued
    /// (any more).
    bool keep_room(request_id id);
    /// The same for a group that waits.
    bool keep_room(placement_group_id id);
    /// The granted request waits for others: its cpus are free meanwhile, and nothing else. False
    /// if it is not granted, or waits already.
    bool wait_begin(request_id id);
    /// It could go on. True: it has its cpus and goes on now. False: a grant with `resumed` comes.
    bool wait_end(request_id id);

    /// Asks for room for all bundles. Requests name the group from now on and wait for it.
    result<placement_group_id> create_group(group_request g);
    /// Books a bundle of a group that waits, and that was there before this scheduler knew of it.
    /// It passes all that wait. False: it is placed already, or there is no such place, or not so
    /// much free there; it waits for another one.
    bool adopt_bundle(placement_group_id id, std::size_t bundle, place_id at, gpu_set gpus = {});
    /// Bundles on a drained place that hold nothing lose it and wait for others, if there are
    /// places that could hold the group. Those of a group that must be on one place go together. A
    /// notice tells of each group.
    void move_bundles(place_id from);
    /// Gives its room back, and the requests that held some of it; those queued for it are refused.
    std::vector<evicted> remove_group(placement_group_id id);

    /// Appends what can be granted now, at most `limit`; returns how many. Order: those that
    /// resume, groups, then by fair share.
    std::size_t take_grants(std::vector<grant>& into, std::size_t limit = SIZE_MAX);
    /// Appends the notices; complete only after take_grants().
    void take_notices(std::vector<notice>& into);
    /// Says once more what no place could hold of that for which a job waits: whom it was told may
    /// have lost it.
    void say_again(job_id job);

    // For listings and tests.

    struct totals {
        std::size_t places = 0, queued = 0, granted = 0; ///< granted: also those that wait
        std::size_t waiting = 0,
                    resuming = 0; ///< between wait_begin() and wait_end(), and after it
        std::size_t queues = 0, groups = 0;
        std::uint64_t grants = 0, reservations = 0; ///< since it was made
        std::size_t bytes = 0;                      ///< of the table of requests
        /// All that hold room wait, and nothing queued fits beside them: without a new place
        /// nothing goes on.
        bool stalled = false;
    };
    [[nodiscard]] totals stats() const;

    struct queue_info {
        job_id job;
        resources demand;
        std::string where; ///< the constraint, for people; "" anywhere
        std::size_t queued = 0, granted = 0;
        std::string why; ///< why its first one waits; "" if none does
    };
    [[nodiscard]] std::vector<queue_info> queues() const;

    struct place_info {
        place_id id;
        std::string name;
        resources total, used; ///< used.cpu may be more than total.cpu, see wait_end()
        std::size_t granted = 0;
        bool draining = false;
        bool resting = false;  ///< see rest()
        bool reserved = false; ///< kept free for somebody
    };
    [[nodiscard]] std::vector<place_info> places() const;

    struct group_info {
        placement_group_id id;
        bool placed = false;
        std::vector<place_id> bundles; ///< their places; none: not placed
    };
    [[nodiscard]] std::vector<group_info> groups() const;

    /// What keeps a request: "waits for cpu=2: worker-1 has most free, cpu=1". "" if it is unknown.
    [[nodiscard]] std::string why(request_id id) const;

private:
    std::unique_ptr<detail::schedule_state> state_;
};

} // namespace skein::sched

#if SKEIN_HEADER_ONLY
#include <skein/sched/detail/scheduler.ipp>
#include <skein/sched/detail/scheduler_groups.ipp>
#include <skein/sched/detail/scheduler_places.ipp>
#include <skein/sched/detail/scheduler_pump.ipp>
#include <skein/sched/detail/scheduler_report.ipp>
#endif
