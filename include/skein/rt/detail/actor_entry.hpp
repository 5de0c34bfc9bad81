// SPDX-License-Identifier: Apache-2.0
#pragma once
// actor_entry: what a driver knows of one actor of its program, see detail/actor_owner.hpp.

#include <skein/rt/detail/actor_name.hpp>
#include <skein/rt/detail/actor_terms.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/groups_state.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>
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
    std::unique_ptr<actor_plan> plan;           ///< of those with options
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
};

/// The constructor of an actor that is made again: who waits for it are the calls in its line.
class remake_call final : public call_base {
protected:
    result<void> take_value(byte_span) override { return {}; }
};

} // namespace detail
} // namespace skein::rt
