// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a driver knows of the actors of its program. Part of detail/runtime_state.hpp.

#include <skein/rt/detail/actor_name.hpp>
#include <skein/rt/detail/actor_terms.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/groups_state.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

/// Why the calls of an actor that has ended fail: "actor "table" was killed".
[[nodiscard]] failure ended(std::string_view title, std::string_view how);
/// "once", "3 times"
[[nodiscard]] std::string times(std::int64_t n);

/// What it takes to make an actor again.
struct actor_plan {
    actor_terms terms;
    const function_record* fn = nullptr;
    byte_buffer arguments; ///< as they were encoded
    std::optional<byte_buffer> snapshot;
    std::int32_t made_again = 0;
    sched::demand_id demand; ///< what it holds
    actor_id beside;         ///< and where: where that actor is

    [[nodiscard]] bool lasts() const noexcept { return terms.restarts != 0; }
    [[nodiscard]] bool may_restart() const noexcept {
        return terms.restarts < 0 || made_again < terms.restarts;
    }
};

struct actor_entry {
    peer* where = nullptr; ///< nullptr: it is being made, or made again
    const std::type_info* type = nullptr;
    std::unique_ptr<actor_plan> plan; ///< of those with options
    /// Links at which there are handles, and how often they were told so. Those of this process are
    /// its queue.
    std::vector<std::pair<peer_id, std::uint32_t>> holders;
    std::deque<counted_ptr<call_base>> waiting; ///< calls of workers, until it is made
    std::vector<peer_id> askers;                ///< workers that want to know where it is
    counted_ptr<call_base> making;              ///< its constructor, while that waits in a line
    counted_ptr<group_state> group;             ///< in which it lives
    std::vector<counted_ptr<call_base>>
        beside;                           ///< that are to run where it is, until it is somewhere
    std::size_t prune_at = fewest_pruned; ///< of these; some are done
    bool is_followed = false;             ///< some may stand in lines of its node
    static constexpr std::size_t fewest_pruned = 64;

    [[nodiscard]] bool lasts() const noexcept { return plan && plan->lasts(); }
    [[nodiscard]] bool is_detached() const noexcept { return plan && plan->terms.is_detached; }
    /// Those that are done are forgotten now and then.
    void add_beside(counted_ptr<call_base> call) {
        beside.push_back(std::move(call));
        if (beside.size() < prune_at) return;
        std::erase_if(beside, [](const auto& one) { return one->is_done(); });
        prune_at = std::max(fewest_pruned, 2 * beside.size());
    }
    void add_hold(peer_id by) {
        for (auto& [link, times] : holders)
            if (link == by) {
                ++times;
                return;
            }
        holders.emplace_back(by, 1);
    }
    /// False: it has not so many.
    [[nodiscard]] bool remove_holds(peer_id by, std::uint32_t n) {
        const auto found =
            std::find_if(holders.begin(), holders.end(), [&](auto& h) { return h.first == by; });
        if (found == holders.end() || found->second < n) return false;
        found->second -= n;
        if (found->second == 0) holders.erase(found);
        return true;
    }
    void remove_all_holds(peer_id by) {
        std::erase_if(holders, [&](auto& h) { return h.first == by; });
    }
    [[nodiscard]] bool is_held_besides(peer_id one) const {
        return std::any_of(holders.begin(), holders.end(), [&](auto& h) { return h.first != one; });
    }
};

/// The constructor of an actor that is made again: who waits for it are the calls in its line.
class remake_call final : public call_base {
protected:
    result<void> take_value(byte_span) override { return {}; }
};

struct actors_state {
    std::unordered_map<actor_id, actor_entry> entries;
    std::map<std::string, actor_id, std::less<>> names;
    /// Links that are lost while actors that lived there are made again: the handles which those
    /// have in their arguments and snapshots count until they are back.
    std::map<peer_id, std::vector<actor_id>> late_holds;
    // Of a worker:
    std::unordered_set<actor_id> borrowed; ///< with handles here that the driver does not know of

    [[nodiscard]] actor_entry* find(actor_id id) {
        const auto at = entries.find(id);
        return at != entries.end() ? &at->second : nullptr;
    }
};

} // namespace detail
} // namespace skein::rt
