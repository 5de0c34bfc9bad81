// SPDX-License-Identifier: Apache-2.0
#pragma once
// peer: a link to another process, with all that the runtime keeps of who is at its other end. Part
// of detail/runtime_state.hpp.

#include <skein/core/event.hpp>
#include <skein/net/channel.hpp>
#include <skein/proc/claims.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/inbound_calls.hpp>
#include <skein/rt/detail/peer_id.hpp>
#include <skein/rt/detail/worker_room.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace skein::rt {

namespace detail {

struct direct_state;    // in detail/direct_state.hpp
struct arrived_objects; // in detail/object_traffic.hpp
struct value_turns;     // in detail/object_traffic.ipp

/// What a peer is to this process.
enum class peer_role : std::uint8_t {
    program,  ///< a worker to its driver, or the driver to its worker
    dialled,  ///< another worker, whose actors are called from here
    accepted, ///< another worker, which calls actors that live here
    here,     ///< this worker itself; without a connection
};

/// A peer has sent what cannot be: ends its link.
[[nodiscard]] inline error malformed(std::string text) {
    return {errc::malformed, std::move(text)};
}

} // namespace detail

/// A connection as the runtime sees it. Owned by the task that serves it.
struct peer : std::enable_shared_from_this<peer> {
    std::shared_ptr<net::channel> wire; ///< none of a worker itself
    detail::direct_state* loopback = nullptr;
    detail::peer_role role = detail::peer_role::program;
    peer_id number;
    std::string who;               ///< "worker-2 (pid 4711 at host)"
    std::uint64_t incarnation = 0; ///< of its process, as it says
    std::uint64_t store = 0;       ///< the same: which of several it uses
    bool up = true;
    bool is_space_client = false;      ///< another program: nothing runs there
    error why{errc::closed, "closed"}; ///< once it has ended
    std::string ended_for;             ///< by force, and for which call
    call_id forced;                    ///< that call
    bool orderly = false;
    event ended;

    detail::worker_room room; ///< of a driver's worker: what dispatch knows of it
    /// What calls have of their line's credit that were taken back, and that the worker has still
    /// to pass by.
    struct passing {
        actor_id target; ///< none: a task
        detail::credit_taken taken;
    };
    std::unordered_map<slot_id, passing> taken_back;

    // What the worker has begun, and the tasks that can be taken back from it, in the order in
    // which they were sent; some are done.
    struct waiting_task {
        slot_id slot;
        std::uint64_t order;
    };
    proc::claims page;
    std::uint64_t sent = 0; ///< calls, with those that its link did not take any more
    std::deque<waiting_task> tasks;
    std::size_t prune_at = 2 * proc::claims::entries;
    std::size_t asks = 0; ///< questions for namespaces that have no answer

    // What runs for this peer: here, and calls that the driver passed on for a worker.
    detail::inbound_calls inbound;
    std::unordered_map<slot_id, detail::call_base*> forwarded;
    /// Calls of it that wait here for the values of their objects.
    std::unordered_map<slot_id, std::shared_ptr<detail::arrived_objects>> wants_values;
    std::shared_ptr<detail::value_turns> value_turns; ///< once there were any

    // A worker, as its driver knows it, to others that call its actors.
    std::string near_address, far_address;
    std::vector<peer_id> told_where;   ///< who knows these
    std::vector<peer_id> asks_for_end; ///< who cannot reach it, and wants to know whether it lives
    bool calls_directly = false;       ///< it has calls at others without an outcome

    /// Its link has ended.
    void set_down() noexcept { up = room.up = false; }
    [[nodiscard]] bool is_open() const noexcept { return wire ? wire->is_open() : up; }
    void send(std::uint16_t what, std::uint16_t flags, std::uint64_t id, byte_span body);
    void send(net::frame f);
    /// A method of this process has its result, for a call of this process.
    void finish_here(slot_id id, detail::finisher finish);
    void abort(error reason) noexcept {
        if (wire) wire->abort(std::move(reason));
    }

    /// A task was sent. Those that ended out of order are forgotten now and then.
    void remember_task(waiting_task one) {
        tasks.push_back(one);
        if (tasks.size() < prune_at) return;
        prune_at = std::max<std::size_t>(2 * proc::claims::entries, 2 * prune_tasks());
    }
    /// Forgets the tasks that the worker has begun; gives how many are left to take back.
    std::size_t prune_tasks() {
        while (!tasks.empty() && page.has_begun(tasks.front().order)) tasks.pop_front();
        return tasks.size();
    }
};

} // namespace skein::rt
