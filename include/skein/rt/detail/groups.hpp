// SPDX-License-Identifier: Apache-2.0
#pragma once
// groups: the placement groups that a process knows, by number and by name; of a driver also which
// of its workers hold them, and under which numbers those know them.
//
// A group is a group_state with a count of its uses: handles, calls that are to run in it, actors
// that live in it. The table does not keep it alive, but for workers that hold it.
//
//     groups known;
//     group->number = known.new_number();
//     known.enter(*group);                       // found by its number from now on
//     known.name(*group);                        // and by its name
//     known.hold(worker, group->number);         // a handle leaves for a worker: the group lasts
//     if (!known.give_back(worker, group->number, 1)) ...; // more than it has: it lies
//
// States of an entry; who places groups is the source of workers:
//
//     held --last use gone--> dropped (the source is told, the name is free) --gone--> no entry
//       \--removed or refused--> held, without a name; gone when the source has said so

#include <skein/core/error.hpp>
#include <skein/rt/detail/groups_state.hpp>
#include <skein/rt/detail/holds.hpp>
#include <skein/rt/options.hpp>
#include <skein/sched/demands.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace skein::rt::detail {

/// Kept until nobody holds the group and whoever placed it has said that nothing of it is left.
struct group_entry {
    group_state* state = nullptr;         ///< nullptr: nobody holds it
    counted_ptr<group_state> for_workers; ///< while some of them hold it
    bool dropped = false;                 ///< the source of workers has been told
    bool is_gone = false;
};

class groups {
public:
    using state_ptr = counted_ptr<group_state>;

    [[nodiscard]] std::uint64_t new_number() noexcept { return ++last_; }
    void enter(group_state& group) { entries_[group.number].state = &group; }
    /// nullptr: there is none of that number.
    [[nodiscard]] group_entry* find(std::uint64_t number);
    [[nodiscard]] const group_entry* find(std::uint64_t number) const;
    /// Null: there is none of that number, or nobody holds it.
    [[nodiscard]] state_ptr state_of(std::uint64_t number) const;
    void erase(std::uint64_t number) { entries_.erase(number); }
    [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
    /// All groups that are held, as owners: who goes through them may end some of them meanwhile.
    [[nodiscard]] std::vector<state_ptr> held() const;

    // Names, at a driver:
    /// Null: no group has that name.
    [[nodiscard]] state_ptr named(std::string_view name) const;
    void name(const group_state& group);
    void forget_name(const group_state& group);
    /// not_found, with the names that there are.
    [[nodiscard]] error no_such(std::string_view name) const;
    /// A name in a location becomes a number.
    ///   errors  not_found
    [[nodiscard]] std::optional<error> resolve(location& on) const;
    /// The same of the place in a worker's call: a name, or a number that the worker gave.
    ///   errors  not_found, invalid_argument
    [[nodiscard]] std::optional<error> resolve(peer_id worker, sched::place& on) const;

    // Workers that hold groups, at a driver:
    /// A worker is told of a group, or tells of it.
    ///   is_lent  the handle came to it in a call
    void hold(peer_id worker, std::uint64_t number, bool is_lent = false);
    /// A worker gives handles back; the caller keeps the group alive meanwhile. False: the worker
    /// has not so many.
    [[nodiscard]] bool give_back(peer_id worker, std::uint64_t number, std::uint32_t times);
    /// It is lost, with what it holds. keeps_lent: but for what it got in calls, until lose_lent().
    void lose(peer_id worker, bool keeps_lent);
    /// That is over, too. Nothing happens if the worker has kept nothing, or lose() is still to come.
    void lose_lent(peer_id worker);
    [[nodiscard]] bool is_held_by(peer_id worker, std::uint64_t number) const {
        return held_.is_held_by(worker, number);
    }
    [[nodiscard]] std::size_t count_held(peer_id worker) const { return held_.count(worker); }
    /// Null: it had ended before a worker told of it.
    [[nodiscard]] state_ptr for_workers(std::uint64_t number) const;
    /// The group about which that question of a worker waits for an answer, if it does.
    [[nodiscard]] state_ptr asked_by(peer_id worker, slot_id slot) const;

    // Numbers that workers gave to groups of theirs, at a driver:
    void enter_alias(peer_id worker, std::uint64_t its, std::uint64_t number) {
        aliases_[worker].emplace(its, number);
    }
    void forget_alias(peer_id worker, std::uint64_t its);
    /// This process's number for a worker's; the same if it is none that the worker gave.
    [[nodiscard]] std::uint64_t number_of(peer_id worker, std::uint64_t its) const;
    [[nodiscard]] bool has_alias(peer_id worker, std::uint64_t its) const;
    [[nodiscard]] std::size_t count_aliases(peer_id worker) const;

private:
    void let_go(std::uint64_t number);

    std::map<std::uint64_t, group_entry> entries_;
    std::map<std::string, std::uint64_t, std::less<>> names_;
    std::uint64_t last_ = 0;
    holds<std::uint64_t> held_; ///< by workers
    std::set<peer_id> late_;    ///< lost ones that have kept what they got in calls
    std::map<peer_id, std::map<std::uint64_t, std::uint64_t>> aliases_;
};

} // namespace skein::rt::detail

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/groups.ipp>
#endif
