// SPDX-License-Identifier: Apache-2.0
#pragma once
// group_desk: the placement groups of a driver. It makes them, asks the source of workers for
// their places, ends them, and answers the workers that hold them.
//
//     asked for       the source of workers looks for places of all bundles
//     placed          all bundles have places; back to `asked for` when a node with some is lost
//     over            removed, refused, or the program ends: `why` says it, what is inside ends
//     gone            over, and the source has said that nothing of it is left
//
// A worker asks by messages (detail/group_message.hpp) under a number of its own or of the driver.
//
//     group_desk desk(dispatch, replies, home, above);
//     const auto group = desk.make(wish);      // its state says what is wrong with the wish
//     desk.placed(group->number, true);        // the source of workers has places
//     desk.on_question(worker, slot, body);    // throws what ends the worker's link
//     desk.end(*group, why);

#include <skein/core/bytes.hpp>
#include <skein/core/counted_ptr.hpp>
#include <skein/core/error.hpp>
#include <skein/rt/detail/dispatch.hpp>
#include <skein/rt/detail/group_message.hpp>
#include <skein/rt/detail/groups.hpp>
#include <skein/rt/detail/peer.hpp>
#include <skein/rt/detail/replies.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace skein::rt::detail {

/// What the desk tells who has the workers and actors of the program.
class group_events {
public:
    /// nullptr: it is lost.
    [[nodiscard]] virtual peer* worker_at(peer_id number) = 0;
    /// A group is asked for: workers are started, if they are not.
    virtual void workers_are_needed() = 0;
    /// A group is over: so are the actors that live in it.
    virtual void end_actors(const group_state& group) = 0;
    /// What waits for places in it fails.
    virtual void refuse_demand(sched::demand_id demand, const error& why) = 0;
    /// A call that waits for a group has left its cores to others.
    virtual void cores_are_free() = 0;

protected:
    ~group_events() = default;
};

/// Why a group cannot be made as it is wished for, but for names that are taken; into: its bundles.
[[nodiscard]] std::optional<error> misread(const group_question& wish, group_state& into);
/// What a worker is told of a group, under the driver's number.
[[nodiscard]] group_answer told_of(const group_state& group, std::uint64_t number);

class group_desk {
public:
    using state_ptr = groups::state_ptr;

    /// home: of the handles of this process
    group_desk(dispatch& parts, replies& answers, group_home& home, group_events& above) noexcept
        : dispatch_(parts), replies_(answers), home_(home), above_(above) {}
    group_desk(const group_desk&) = delete;
    group_desk& operator=(const group_desk&) = delete;
    /// Handles that are left have nobody to ask.
    ~group_desk() {
        for (const auto& group : known_.held()) group->home = nullptr;
    }

    [[nodiscard]] groups& table() noexcept { return known_; }

    /// A group, or that of the same name if the wish allows it.
    [[nodiscard]] state_ptr make(const group_question& wish);
    /// A group that is not in the table yet.
    ///   first  the start of the range of numbers out of which it gets its own
    [[nodiscard]] state_ptr new_group(std::uint64_t first);
    /// A group that can never be placed enters the table as over.
    state_ptr refuse_new(const state_ptr& made, const error& why);
    void end(group_state& group, const error& why);
    /// No handle to the group is left in this process.
    void drop(group_state& group) noexcept;

    /// Null: a demand of no group.
    [[nodiscard]] state_ptr of(sched::demand_id demand) const;
    /// The call is to run in that group, and holds it until it is over.
    ///   errors  not_found, and what the group has ended with
    [[nodiscard]] std::optional<error> keep(call_base& call, std::uint64_t number) const;

    // What the source of workers says:
    void placed(std::uint64_t number, bool on);
    void refused(std::uint64_t number, const error& why);
    void gone(std::uint64_t number);

    /// The program ends.
    void close() noexcept { closing_ = true; }
    /// There are no workers for new groups.
    void give_up(const error& why) { given_up_ = why; }
    /// All groups are over.
    void fail_all(const error& why);

    // Workers:
    /// A worker asks for a group, or gives back handles that it holds.
    void on_question(peer& from, slot_id slot, byte_span body);
    /// A worker does not wait for the answer in that slot any more; nothing happens if it is not
    /// about groups.
    void cancel(peer& from, slot_id slot);

private:
    void find_for(peer& from, slot_id slot, const std::string& name);
    void make_for(const peer& from, const group_question& wish);
    void hold_for(const peer& from, std::uint64_t number);
    void release_for(peer& from, const group_question& what, std::uint64_t number);
    void wait_for(peer& from, slot_id slot, const group_question& what, std::uint64_t number);
    void end_waits(peer& from, group_state& group, std::optional<slot_id> slot, const error& why);
    void changed(group_state& group);
    void tell_drop(std::uint64_t number);
    void forget(std::uint64_t number);

    dispatch& dispatch_;
    replies& replies_;
    group_home& home_;
    group_events& above_;
    groups known_;
    std::optional<error> given_up_;
    bool closing_ = false;
};

} // namespace skein::rt::detail

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/group_desk.ipp>
#endif
