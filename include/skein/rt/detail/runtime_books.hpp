// SPDX-License-Identifier: Apache-2.0
#pragma once
// The books of rt/runtime.hpp: what only the bodies of runtime and of its calls see.

#include <skein/core/event.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/timer_wheel.hpp>
#include <skein/net/connection.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/claims.hpp>
#include <skein/rt/detail/message.hpp>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace skein::rt {

namespace detail {

struct running_call {
    cancel_source stop;
    counted_ptr<call_context> context;
    bool told = false; ///< the submitter knows that it has started
};

struct call_base::rarities {
    std::string name;
    std::unique_ptr<deferred_arguments> arguments;
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
    duration limit = no_deadline;
    time_point until{};        ///< when the deadline is
    bool is_inherited = false; ///< the limit, from the call that made this one
    bool cancel_requested = false;
};

} // namespace detail

using peer_id = strong_id<struct peer_tag>;

/// A connection as the runtime sees it. Owned by the task that serves it.
struct peer {
    std::shared_ptr<net::connection> wire;
    peer_id number;
    std::string who;               ///< "worker-2 (pid 4711 at host)"
    std::uint64_t incarnation = 0; ///< of its process, as it says
    bool up = true;
    bool retiring = false; ///< nothing new goes there
    error why{errc::closed, "closed"}; ///< once it has ended
    bool orderly = false;
    event ended;

    // Placement of tasks: `busy` cores are asked for; up to capacity * window at a time, where the
    // window grows until about a millisecond of work is under way (long tasks: one per core).
    std::uint32_t capacity = 1, busy = 0, window = 1;
    double service = 1e-3; ///< seconds per task, smoothed
    time_point mark{};     ///< since when `finished` counts
    std::uint32_t finished = 0;
    std::size_t actors = 0;

    // What the worker has begun, and the tasks that can be taken back from it, in the order in which they
    // were sent; some are done.
    struct waiting_task {
        slot_id slot;
        std::uint64_t order;
    };
    detail::claims page;
    std::uint64_t sent = 0;                   ///< calls
    const detail::call_base* alone = nullptr; ///< a task behind which no other is sent
    std::deque<waiting_task> tasks;
    std::size_t prune_at = 2 * detail::claims::entries;

    // What runs for this peer: coroutines here, and calls that the driver passed on for a worker.
    std::unordered_map<slot_id, detail::running_call> running;
    std::unordered_map<slot_id, detail::call_base*> forwarded;
};

/// A call or drop that waits behind calls that have run for long.
struct runtime::arrival {
    std::shared_ptr<peer> from;
    slot_id slot;
    byte_buffer body;
    bool is_drop = false;
    time_point came{};
};

struct runtime::books {
    using call_line = std::deque<counted_ptr<detail::call_base>>;
    struct slot {
        counted_ptr<detail::call_base> call;
        std::uint32_t generation = 1;
    };
    struct actor_entry {
        peer* where = nullptr;
        peer_id owner; ///< of the link that holds its handle; none: this process
        const std::type_info* type = nullptr;
    };
    detail::process_name name;
    runtime_stats stats;
    std::vector<std::shared_ptr<peer>> links; ///< of a driver
    peer* upstream = nullptr;                 ///< of a worker
    std::uint64_t incarnation = 0, last_link = 0, last_actor = 0, last_call = 0;
    counted_ptr<detail::runtime_anchor> anchor;
    counted_ptr<detail::call_context> root,
        spare; ///< of tasks that are no call; for the next plain call

    std::vector<slot> slots;
    std::vector<std::uint32_t> free;
    call_line queue, creations;                        ///< wait for a worker
    std::vector<counted_ptr<detail::call_base>> ready; ///< their arguments are there
    bool settling = false;

    std::unordered_map<actor_id, detail::actor_state*> lanes;
    std::unordered_map<actor_id, actor_entry> actors; ///< of a driver
    std::unordered_map<actor_id, std::shared_ptr<detail::actor_box>> boxes;

    unique_function<void()> start_workers;
    std::optional<error> given_up;
    std::size_t expected = 0;
    bool closing = false;
    scope calls;                ///< coroutine calls that run here
    std::vector<slot_id> fresh; ///< started in this turn
    /// Linked from the first call of a turn of the loop to its end.
    struct turn_mark : turn_hook {
        turn_mark() noexcept : turn_hook([](turn_hook&) {}) {}
    } in_turn;
    time_point turn_began{};
    std::deque<arrival> backlog;
    std::size_t backlog_bytes = 0;
    bool backlog_full = false;            ///< nothing more is read for it
    bool has_backlog = false;             ///< calls go there; run_backlog() is at work
    std::unordered_set<slot_id> unwanted; ///< calls in it that were cancelled
    wire::writer scratch;
};

} // namespace skein::rt
