// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a head makes of nodes that say nothing: since when, and which attempts of jobs it has given
// up with one that may run them still.

#include <skein/cluster/detail/lease_messages.hpp>
#include <skein/core/time.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace skein::cluster::detail {

/// The orphan_grace (see agent_options) that a head assumes of an agent which has not told its own.
inline constexpr std::uint64_t agents_wait_ms = 30'000;

/// Since when nothing has come from a node, as far as a look now and then sees it.
class node_silence {
public:
    /// `noticed_after`: a peer is called silent when it has been for so long.
    void look(bool is_silent, time_point now, duration noticed_after) {
        if (!is_silent)
            since_.reset();
        else if (!since_)
            since_ = now - noticed_after;
    }
    /// Takes the time in which this head itself stood still, and could hear nobody, out of a
    /// silence.
    void forgive(duration how_long) {
        if (since_) *since_ += how_long;
    }
    [[nodiscard]] bool is_there() const noexcept { return since_.has_value(); }
    [[nodiscard]] duration length(time_point now) const {
        return since_ && now > *since_ ? now - *since_ : duration{};
    }

private:
    std::optional<time_point> since_;
};

/// Attempts of jobs that were given up with their node, by their driver: the next one waits until
/// the node has said that nothing of it runs, or has surely ended it by itself.
class left_attempts {
public:
    struct one {
        std::uint64_t node = 0; ///< its incarnation
        std::string name;       ///< of the node
        duration fence{};       ///< so long after its last word it has ended it
        time_point until{};     ///< that moment
    };

    void leave(std::uint64_t driver, one what) { all_.insert_or_assign(driver, std::move(what)); }
    /// The node of an attempt is there again, and was told to end it: news of that end will come.
    void is_back(std::uint64_t driver) {
        if (const auto found = all_.find(driver); found != all_.end())
            found->second.until = time_point::max();
    }
    /// A node has fallen silent again before it has told of the attempt's end.
    void is_gone(std::uint64_t node, time_point heard_at) {
        for (auto& [driver, of] : all_)
            if (of.node == node) of.until = deadline_after(heard_at, of.fence);
    }
    void over(std::uint64_t driver) { all_.erase(driver); }
    void node_died(std::uint64_t node) {
        std::erase_if(all_, [node](const auto& of) { return of.second.node == node; });
    }
    /// A node has said all that it holds. Of its name there is one agent: the one before has died.
    void node_came(std::uint64_t node, const std::string& name, const std::set<lease_name>& holds) {
        std::erase_if(all_, [&](const auto& of) {
            if (of.second.node != node) return of.second.name == name;
            const auto held = holds.lower_bound({of.first, 0});
            return held == holds.end() || held->driver != of.first;
        });
    }
    /// Whether an attempt may still run: its end is neither known nor certain.
    [[nodiscard]] bool may_run(std::uint64_t driver, time_point now) const {
        const auto found = all_.find(driver);
        return found != all_.end() && now < found->second.until;
    }

private:
    std::map<std::uint64_t, one> all_;
};

} // namespace skein::cluster::detail
