// SPDX-License-Identifier: Apache-2.0
#pragma once
// The leases and placement groups of a cluster: what drivers ask for, what they are granted, asked
// to give back, and what ends.
//
//     waits     in the scheduler's queue, or for its group
//     granted   its process runs on a node, or is being started there; may be recalled: its driver is
//               asked to give it back, and may keep it
//     stopping  its node has been told to end its process; its room stays taken until that has ended
//     expected  its driver says that a node has it which has not come (again) yet
//
// A bundle of a placement group is room on a node without a process; leases whose label names the
// group take their room out of it. docs/design/0012-groups.md
//
//     struct head : lease_events { ... };             // tells drivers and nodes
//     lease_table leases(loop, head, options);
//     auto& node = leases.add_node(n1, "n1", total, labels);
//     auto& driver = leases.holder(app);
//     leases.want(driver, {1, "cpu=1"});
//     leases.pump();                                   // head.start_process(): it is granted
//     leases.give_back(driver, 1);                     // head.stop_process()
//     leases.end(*leases.find({app, 1}), true, "exited with 0");

#include <skein/core/config.hpp>
#include <skein/cluster/detail/driver_messages.hpp>
#include <skein/cluster/detail/lease_messages.hpp>
#include <skein/core/error.hpp>
#include <skein/core/function.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/time.hpp>
#include <skein/sched/scheduler.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

namespace skein::cluster::detail {

inline constexpr std::size_t most_groups = 4096;   ///< of one driver
inline constexpr std::size_t most_bundles = 65536; ///< in all of them

struct lease_holder;
struct lease_node;

enum class lease_state : std::uint8_t { waits, granted, expected, stopping };

struct lease {
    lease_holder* of = nullptr;
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
    lease_node* at = nullptr;        ///< granted, stopping
    std::uint64_t expected_node = 0; ///< its incarnation
    time_point until{};              ///< expected
    time_point asked_at{};           ///< waits
    bool is_held_up = false;         ///< its driver was told that it has waited for long
    bool at_once = false;            ///< its worker is to be killed, not asked
    bool is_ordered = false;         ///< of a job: its node has been told
    time_point recalled_at{};        ///< the last time; {}: never
    bool drained = false;            ///< its driver may have heard that it was recalled for a drain
    time_point wanted_at{};          ///< the same of ranks, for any reason, and when; {}: no
    time_point keep_until{};   ///< it is not asked back before: granted just now, or it has actors
    time_point actors_until{}; ///< for its own driver neither: it has actors
    // Of a node that drains, see drains.hpp:
    leave_word word = leave_word::none; ///< what becomes of it
    std::string word_why;               ///< in words
    bool waits_for_room = false;        ///< it stays for want of room elsewhere alone
    bool is_forced = false;             ///< its process was ended for the drain
};

/// A placement group.
struct lease_group {
    lease_holder* of = nullptr;
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

/// What a driver, or an attempt of a job, has and wants.
struct lease_holder {
    std::uint64_t incarnation = 0; ///< of the driver
    std::uint32_t weight = 1;      ///< of its fair share
    std::string name, job;         ///< as people know it; the job that it came out of
    std::string host;              ///< these: of the driver, once it has come
    std::int64_t pid = 0;
    std::map<std::uint64_t, std::unique_ptr<lease>> leases;
    std::map<std::uint64_t, lease_group> groups;
    bool has_ranks = false; ///< it has ranks started, and no workers
    bool ending = false;    ///< it does not come back: its leases are being ended
    std::string attempt_of; ///< no driver: its one lease is the entry process of this job

    [[nodiscard]] job_id id() const noexcept { return job_id(incarnation); }
};

/// A node as one that leases are on.
struct lease_node {
    std::uint64_t incarnation = 0;
    std::string name;
    sched::resources total;
    std::vector<std::string> labels;
    std::map<lease_name, lease*> leases;
    bool draining = false;
    time_point drained_by = time_point::max(); ///< it is to be empty then; max: some time

    [[nodiscard]] sched::place_id place() const noexcept { return sched::place_id(incarnation); }
};

/// What a driver hears of its leases and groups.
using lease_news = std::variant<lease_granted, lease_waits, lease_ended, lease_recalled,
                                group_placed, group_waits, group_refused>;

/// What a table of leases tells the head that has it. Drivers are named by their incarnations.
class lease_events {
public:
    [[nodiscard]] virtual bool is_connected(std::uint64_t driver) const = 0;
    /// Nothing for one that is away: it asks again when it comes.
    virtual void tell_driver(std::uint64_t driver, const lease_news& news) = 0;
    /// A lease has got its room: its node and its driver are to be told.
    virtual void start_process(lease& granted) = 0;
    virtual void stop_process(const lease& stopping, bool at_once) = 0;
    /// A lease has ended, and is forgotten after this call.
    virtual void lease_ends(const lease& last, const std::string& why) = 0;
    /// The lease of an attempt has ended, and is forgotten.
    ///   is_ordered  its node was told to start it
    virtual void entry_ended(const std::string& job, bool started, const std::string& why,
                             const ended_lease& end, bool is_ordered) = 0;
    /// A driver that does not come back has no lease any more: it is about to be forgotten.
    virtual void holder_over(std::uint64_t driver) = 0;

protected:
    lease_events() = default;
    lease_events(const lease_events&) = default;
    lease_events& operator=(const lease_events&) = default;
    ~lease_events() = default;
};

/// See head_options.
struct lease_options {
    duration driver_grace{}, share_quantum{}, keep_grace{}, recall_grace{};
    std::size_t most_leases = std::size_t{1} << 16; ///< of one driver
};

/// Belongs to one loop.
class lease_table {
public:
    /// All must outlive it.
    lease_table(loop& on, lease_events& events, lease_options options);

    /// Why there is no room on other nodes for all of a rank's group; "": there is. Empty: nobody
    /// knows.
    unique_function<std::string(const lease& rank)> no_room_for{};

    // ---- what there is
    [[nodiscard]] const auto& holders() const noexcept { return holders_; } ///< by incarnation
    [[nodiscard]] const auto& nodes() const noexcept { return nodes_; }     ///< by incarnation
    /// nullptr: there is none.
    [[nodiscard]] lease* find(const lease_name& name) const;
    [[nodiscard]] lease_node* find_node(std::uint64_t incarnation) const;
    /// Its places are nodes, its jobs holders.
    [[nodiscard]] sched::scheduler& schedule() noexcept { return schedule_; }
    [[nodiscard]] const sched::scheduler& schedule() const noexcept { return schedule_; }
    /// Grows when a lease is granted or ends.
    [[nodiscard]] std::uint64_t changes() const noexcept { return changes_; }

    // ---- who comes and goes
    /// The holder for a driver; makes it if there is none.
    [[nodiscard]] lease_holder& holder(std::uint64_t incarnation);
    ///   errors  those of sched::scheduler::add_place
    lease_node& add_node(std::uint64_t incarnation, std::string name, const sched::resources& total,
                         std::vector<std::string> labels);
    /// The node is lost: all of its leases end.
    void remove_node(lease_node& gone, const std::string& why);
    /// The driver does not come back: what it asked for is forgotten, and its workers end.
    void leave(lease_holder& d);

    // ---- what a driver asks for and gives back
    void want(lease_holder& d, const want_lease& what);
    void give_back(lease_holder& d, std::uint64_t number, bool at_once = false);
    /// The driver was asked for a lease back: it can give it, or not.
    void answered(lease_holder& d, std::uint64_t number, leave_word word, const std::string& why);
    void block(lease_holder& d, const lease_blocked& what);
    void want_group(lease_holder& d, const known_group& what);
    void drop_group(lease_holder& d, std::uint64_t number);
    /// Its leases are leases of their own from now on, where they are.
    void loosen_group(lease_holder& d, std::uint64_t number);

    // ---- what becomes of a lease
    lease& add(lease_holder& d, std::uint64_t number, const sched::resources& demand);
    /// Puts a lease that waits for room into the scheduler's queue.
    void ask_room(lease& l);
    void stop(lease& l, bool at_once = false);
    void end(lease& l, bool started, const std::string& why, const ended_lease& news = {});
    /// Asks its driver to give it back.
    void recall(lease& l, const std::string& why);
    /// A recall of the lease is void: its end is not to be expected any more.
    void not_recalled(lease& l);
    /// Whether the lease has been asked back, and its driver has not answered yet.
    [[nodiscard]] bool is_coming(const lease& l) const;
    void tell_granted(const lease& l);
    /// Tells the driver that a recall is over and its worker may go on. News that is lost with the
    /// link comes over the next one.
    void tell_withdrawn(lease& l);
    /// Groups that nobody needs any more go with their last lease.
    void close_groups(lease_holder& d);

    // ---- a head that was started again
    /// Books a lease that a node holds. False: its group is not there any more; its worker is to be
    /// stopped, and has its room until it has ended.
    ///   l  the same, if its driver has told of it
    [[nodiscard]] bool take_over(lease_node& n, const held_lease& held,
                                 const sched::resources& demand, lease* l, lease_state as);
    /// Places groups where their drivers say that they are, once their nodes have come.
    void take_groups_over();

    /// Grants what there is room for, and tells what cannot be granted.
    void pump();
    /// Nothing is granted any more.
    void close() noexcept { is_closed_ = true; }

private:
    void erase(lease& l);
    void forget(lease_holder& d);
    void granted(const sched::grant& g);
    void create(lease_group& g);
    void on_group(const sched::notice& n);
    void adopt(lease_group& g);
    [[nodiscard]] bool adopt_bundle(lease_group& g, std::size_t bundle,
                                    std::vector<lease*>& inside);

    loop& loop_;
    lease_events& events_;
    lease_options options_;
    sched::scheduler schedule_{
        sched::scheduler_options{.policy = sched::placement::spread, .place_is = "node"}};
    std::map<std::uint64_t, std::unique_ptr<lease_holder>> holders_;
    std::map<std::uint64_t, std::unique_ptr<lease_node>> nodes_;
    std::unordered_map<std::uint64_t, lease*> by_tag_;
    std::uint64_t last_tag_ = 0, changes_ = 0;
    bool is_closed_ = false;
};

/// A rank that was asked back, and then for long not again: nobody wants its place any more.
///   again  so long after a recall the next one would have come
[[nodiscard]] bool is_wanted_no_more(const lease& l, time_point now, duration again);
/// The placement group out of whose room a lease is taken; nullptr: none.
[[nodiscard]] lease_group* group_of(const lease& l);
/// The gpus of each bundle of its group on the node that it has, in the order of bundles, as
/// placed_bundle has them; empty: no group, or none of them has any.
[[nodiscard]] std::vector<std::uint64_t> gpus_of_group(const lease& granted);
/// The places where a lease may be; nothing: its group is not there, or not yet.
[[nodiscard]] std::optional<sched::constraint> where_of(const lease& l);
/// A rank of a training asks for more gpus than any node has: waiting would not help. Nothing: one has
/// as many, or there is none yet.
[[nodiscard]] std::optional<error> too_many_gpus(
    const std::vector<sched::resources>& bundles,
    const std::map<std::uint64_t, std::unique_ptr<lease_node>>& nodes);

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/lease_places.ipp>
#include <skein/cluster/detail/lease_recalls.ipp>
#include <skein/cluster/detail/lease_table.ipp>
#endif
