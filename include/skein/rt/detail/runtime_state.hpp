// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of rt/runtime.hpp: what only the bodies of runtime and of its calls see.

#include <skein/core/cancel.hpp>
#include <skein/core/event.hpp>
#include <skein/core/frame_pool.hpp>
#include <skein/core/id_map.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/timer_wheel.hpp>
#include <skein/net/channel.hpp>
#include <skein/proc/claims.hpp>
#include <skein/rt/detail/actors_state.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/credit_state.hpp>
#include <skein/rt/detail/executor.hpp>
#include <skein/rt/detail/follower_state.hpp>
#include <skein/rt/detail/given_call.hpp>
#include <skein/rt/detail/group_desk.hpp>
#include <skein/rt/detail/groups.hpp>
#include <skein/rt/detail/lease_line.hpp>
#include <skein/rt/detail/local_actors.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/rt/detail/peer.hpp>
#include <skein/rt/detail/replies.hpp>
#include <skein/rt/worker_source.hpp>
#include <skein/sched/demands.hpp>
#include <skein/sched/scheduler.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace skein::rt {

namespace detail {

struct lease_line;

struct call_base::rarities {
    std::string name;
    std::unique_ptr<deferred_arguments> arguments;
    std::unique_ptr<actor_terms> terms;             ///< of a constructor, if it has options
    std::size_t pending = 0;                        ///< refs among the arguments not done yet
    std::vector<counted_ptr<call_base>> dependents; ///< calls that take this one's ref
    std::vector<std::shared_ptr<void>> kept;        ///< handles that must live until the end
    struct deadline_timer : timer_node {
        explicit deadline_timer(call_base& c)
            : timer_node([](timer_node& t) { static_cast<deadline_timer&>(t).passed(); }), call(c) {
        }
        void passed();
        call_base& call;
    };
    std::optional<deadline_timer> deadline;
    struct force_timer : timer_node {
        explicit force_timer(call_base& c)
            : timer_node([](timer_node& t) { static_cast<force_timer&>(t).passed(); }), call(c) {}
        void passed();
        call_base& call;
    };
    std::optional<force_timer> force; ///< it was cancelled by force
    std::optional<error> bad_options;
    std::optional<known_failures> retry_on;
    std::uint16_t failed_attempts = 0; ///< that ended with one of them
    actor_id beside;                   ///< it is to run where that actor is
    std::string label;                 ///< worker: where its driver is to have it run, if not ""
    duration limit = no_deadline;
    time_point until{};        ///< when the deadline is
    bool is_inherited = false; ///< the limit, from the call that made this one
    bool cancel_requested = false;
};

struct direct_state; // in detail/direct_state.hpp
struct space_state;  // in detail/space_state.hpp

/// The number of what a caller asks for.
///   errors  invalid_argument (no place could have it), exhausted (so many different ones)
[[nodiscard]] result<sched::demand_id> demand_of(sched::demand_table& demands,
                                                 const call_options& how, bool for_life = false);

/// Driver: which tasks wait for which cores, and who holds some. Bodies in runtime_leases.ipp.
struct lease_state {
    using peers = std::vector<std::shared_ptr<peer>>;
    struct suspect {
        counted_ptr<call_base> call;
        std::uint64_t turn = 0; ///< it is tried when so many tasks have left
    };
    /// A coroutine task at a worker. While calls that it has made have no outcome it may wait for
    /// them, and holds no core.
    struct parent {
        call_base* call = nullptr;
        peer* at = nullptr;
        std::uint32_t children = 0;
        explicit operator bool() const noexcept { return call != nullptr; }
    };

    sched::scheduler places{sched::scheduler_options{sched::placement::spread, 16}};
    sched::demand_table demands;
    std::map<sched::demand_id, lease_line> lines;
    std::deque<suspect> suspects;
    id_map<call_id, parent> parents;
    std::uint64_t incarnation = 0; ///< of the driver
    std::unordered_map<sched::place_id, peer*> workers;
    std::size_t expected = 0;  ///< so many of them there are or will soon be
    std::uint32_t largest = 0; ///< cores of the largest worker; 0: there is none
    std::size_t waiting = 0;   ///< tasks in lines
    std::uint64_t gone = 0;    ///< tasks that have left their line
    std::uint64_t state = 1;   ///< changes when room may have come
    std::size_t asking = 0;    ///< lines that ask for a lease
    bool all_own = false;      ///< no line is served by workers for all
    bool is_changed = false;   ///< take() has something to look at
    bool pumping = false, again = false;
    std::size_t crowded = 0;   ///< workers with more tasks than cores
    std::uint32_t lent = 0;    ///< cores that were asked for, see lend()
    std::uint32_t resting = 0; ///< cores of tasks at workers of their own that wait for others
    event worker_idle;         ///< set when one has become so, or is lent no more
    worker_source* source = nullptr;
    std::uint64_t freed = 0;         ///< changes when one becomes free:
    intrusive_list<peer, peer> free; ///< workers with nothing to do whose loop nobody needs

    /// Tasks that occupy cores. Not a nested one that has killed a worker: it would wait for a
    /// worker with nothing to do, and others wait for it.
    [[nodiscard]] static bool is_leased(const call_base& call) noexcept {
        return call.kind == call_kind::task && call.cpus > 0 && !(call.nested && call.alone != 0);
    }
    [[nodiscard]] bool waits() const noexcept { return waiting > 0 || !suspects.empty(); }
    /// Another line waits: this one gets no more than its turn.
    [[nodiscard]] bool others_wait(const lease_line& line) const noexcept {
        return asking > (line.asked ? 1U : 0U);
    }

    [[nodiscard]] lease_line& line_of(sched::demand_id demand);
    /// An actor that holds what it asks for waits in a line as tasks do.
    [[nodiscard]] static bool is_lined_up(const call_base& call) noexcept {
        return is_leased(call) || (call.kind == call_kind::create && call.demand);
    }
    /// Its line is served by workers of its own.
    [[nodiscard]] bool has_own(const call_base& call) const {
        const auto line = lines.find(call.demand);
        return line != lines.end() && line->second.by == lease_line::service::own;
    }
    void decide(lease_line& line);
    void lend_now();
    [[nodiscard]] bool has_lent() const;
    [[nodiscard]] std::uint32_t cores_of(const call_base& call) const;
    [[nodiscard]] static bool has_label(const peer& worker, const std::string& label);
    [[nodiscard]] bool any_has(const std::string& label) const;
    [[nodiscard]] static lease_share* share_of(const peer& at, const lease_line& line) noexcept;
    void add(peer& worker);
    void remove(peer& worker);
    void retire(peer& worker, bool on);
    void push(counted_ptr<call_base> call);
    void run_again(const std::vector<counted_ptr<call_base>>& calls);
    [[nodiscard]] call_base* front(lease_line& line);
    [[nodiscard]] counted_ptr<call_base> pop(lease_line& line);
    void take_waiting(std::vector<counted_ptr<call_base>>& into);

    [[nodiscard]] sched::request_id request_lease(const lease_line& line,
                                                  const sched::constraint& where);
    [[nodiscard]] sched::request_id submit(sched::request r);
    [[nodiscard]] bool ask(lease_line& line);
    void withdraw(lease_line& line);
    bool take();
    void book(const sched::grant& g);
    [[nodiscard]] bool lease_on(peer& worker, lease_line& line);
    [[nodiscard]] peer* take_whole(const peers& links, const sched::demand& what);
    bool is_thinned = false; ///< calls were taken out of lines, which may be empty now
    void take_followers(actor_id of, std::vector<counted_ptr<call_base>>& into);
    void release_unused(lease_share& share);
    bool reclaim();
    void forget_idle_lines();
    [[nodiscard]] peer* pick(lease_line& line, lease_line::list where) const;
    [[nodiscard]] peer* pick_free(lease_line& line);
    [[nodiscard]] peer* choose(lease_line& line);
    void note_use(peer& at) noexcept;
    void count_coroutine(peer& at, const call_base& call, int by) noexcept;
    [[nodiscard]] static bool is_needed(const peer& at) noexcept {
        return at.actors + at.coroutines > 0;
    }
    [[nodiscard]] bool needs_aside(const peer& at, const call_base& call) const noexcept;
    [[nodiscard]] bool awaits_others(const peer& at, const call_base& call) const noexcept;
    [[nodiscard]] bool may_go_to(peer& at, const call_base& call);
    [[nodiscard]] bool stand_beside(peer& second, const peers& links, const net::channel& of);
    static void part(peer& one) noexcept;
    [[nodiscard]] peer* straight_to(const call_base& call);
    void occupy(peer& at, std::uint32_t cores) noexcept;
    void settle_in(peer& at);
    void spend(peer& at);
    void sent(peer& to, call_base& call);
    void settled(peer& from, const call_base& call, bool had_cores);
    [[nodiscard]] call_id id_of(const call_base& call) const;
    void begin_wait(const peer& at, call_id id);
    void end_wait(const peer& at, call_id id);
    [[nodiscard]] bool forget_parent(const call_base& call);
    [[nodiscard]] static lease_share& share_for(peer& at, lease_line& line);
};

/// A call of a worker that the driver passes on: its outcome goes back as a reply.
class forwarded_call : public call_base {
public:
    forwarded_call(runtime& self, lease_state& leases, std::shared_ptr<peer> origin,
                   slot_id origin_id, const trace_context& who)
        : id(who.id), self_(self), leases_(leases), origin_(std::move(origin)),
          origin_id_(origin_id), asker_(who.parent) {}

    const call_id id;   ///< as its worker numbers it
    bool lends = false; ///< the value is that of a reply that lends

    [[nodiscard]] const peer& origin() const noexcept { return *origin_; }
    [[nodiscard]] call_id asker() const noexcept { return asker_; }
    /// What its worker says of it goes on to who made it.
    void pass_on(std::uint16_t what) const {
        if (!is_done() && origin_->is_open()) origin_->send(what, 0, origin_id_.value(), {});
    }

protected:
    result<void> take_value(byte_span bytes) override {
        if (!origin_->up) return {};
        self_.pass_reply(*origin_, origin_id_, bytes, lends);
        return {};
    }
    void take_failure(const failure& why) override {
        if (origin_->up) self_.reply_failure(*origin_, origin_id_, why);
    }
    void on_finished() override {
        origin_->forwarded.erase(origin_id_);
        leases_.end_wait(*origin_, asker_);
    }

private:
    runtime& self_;
    lease_state& leases_;
    std::shared_ptr<peer> origin_;
    slot_id origin_id_;
    call_id asker_;
};

} // namespace detail

struct runtime::state {
    using call_line = std::deque<counted_ptr<detail::call_base>>;
    struct slot {
        counted_ptr<detail::call_base> call;
        std::uint32_t generation = 1;
    };
    detail::process_name name;
    state(runtime& self, runtime_options who);
    ~state();

    /// What the parts of this process tell its runtime.
    struct listener final : detail::reply_events, detail::actor_events {
        explicit listener(runtime& of) noexcept : self(of) {}
        void tell_holds() override { self.tell_holds(); }
        void keep_lent(const detail::lent_actors& all) override;
        [[nodiscard]] std::string title_of(actor_id id) const override;
        void actor_has_left(actor_id id) override;
        runtime& self;
    } heard;

    runtime_stats stats;
    std::vector<std::shared_ptr<peer>> links; ///< of a driver
    peer* upstream = nullptr;                 ///< of a worker
    std::uint64_t incarnation = 0, last_link = 0, last_actor = 0, last_call = 0;
    std::uint32_t last_line = 1, credit_calls = 0; ///< see credits
    std::uint32_t credit_batch = 1; ///< that comes back before more is sent in a turn
    std::size_t credit_bytes = 0;
    counted_ptr<detail::runtime_anchor> anchor;
    counted_ptr<detail::call_context> root; ///< of tasks that are no call

    std::vector<slot> slots;
    std::vector<std::uint32_t> free;
    call_line queue, creations; ///< wait for a worker: tasks that need no free core, new actors
    detail::lease_state leases;
    std::vector<counted_ptr<detail::call_base>> ready; ///< their arguments are there
    bool settling = false;

    std::unordered_map<actor_id, detail::actor_queue*> actor_queues;
    detail::actors_state actors;
    detail::groups groups;
    detail::borrows<std::uint64_t> borrowed_groups; ///< of a worker
    detail::replies replies; ///< of what runs here, and of calls that are passed on
    detail::local_actors local_actors;
    detail::executor executor;

    unique_function<void()> start_workers;
    std::optional<error> given_up;
    std::size_t expected = 0;
    bool closing = false;
    bool is_visiting = false; ///< the source of workers serves namespaces alone so far
    std::string space; ///< that it keeps, whose actors live here, or whose space client it is
    std::uint64_t space_server = 0;   ///< of that namespace, if it is another process
    runtime* home = nullptr;          ///< of a space client: that of this process
    bool awaits_space_server = false; ///< a space client that has not met it yet: calls wait
    std::vector<actor_id> kills;      ///< for it then
    exit_reason after_space_server;   ///< of a space client
    std::optional<error> space_server_end;
    std::unique_ptr<detail::space_state> spaces; ///< namespaces that are called from here
    wire::writer scratch;
    std::unique_ptr<detail::direct_state> direct; ///< calls between workers

    [[gnu::noinline]] void add_slot() {
        free.push_back(static_cast<std::uint32_t>(slots.size()));
        slots.emplace_back();
    }
    /// Takes the call out of a slot that has one.
    [[nodiscard]] counted_ptr<detail::call_base> take_out(std::uint32_t index) {
        auto& s = slots[index];
        ++s.generation;
        free.push_back(index);
        return std::move(s.call);
    }
    /// Something needs workers: the first time they are started.
    void begin_work() {
        if (!start_workers && !is_visiting) [[likely]]
            return;
        const task_context::use none(nullptr); // they do not belong to the call that came first
        const bool serves_spaces = std::exchange(is_visiting, false);
        if (start_workers)
            std::exchange(start_workers, {})();
        else if (serves_spaces && leases.source != nullptr)
            leases.source->need();
    }
    /// Takes all calls that wait for a worker out of their lines.
    std::vector<counted_ptr<detail::call_base>> take_waiting() {
        std::vector<counted_ptr<detail::call_base>> all;
        leases.take_waiting(all);
        for (auto* line : {&creations, &queue})
            for (auto& call : std::exchange(*line, {})) all.push_back(std::move(call));
        for (auto& [id, entry] : actors.entries)
            for (auto& call : std::exchange(entry.beside, {})) all.push_back(std::move(call));
        return all;
    }
};

} // namespace skein::rt
