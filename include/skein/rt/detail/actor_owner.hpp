// SPDX-License-Identifier: Apache-2.0
#pragma once
// actor_owner: the actors of a driver's program: their names, where each one lives, who holds it,
// what waits for it, and what it takes to make it again.
//
//     being made      no worker yet: its calls wait, and so does what is to run where it is
//     placed          it lives on a worker
//     made again      its worker was lost, and `.restarts` allows it: as being made
//     ended           forgotten: nobody holds it, it was killed or left, its constructor failed, or
//                     its worker was lost for good; who waits for it hears why
//
// A worker's constructor, handles and questions come as frames; calls and handles of this process
// are the business of those above.
//
//     actor_owner actors(dispatch, groups, replies, above);
//     actors.declare(id, terms, type);       // a constructor is called: a name may be taken
//     actors.settle(worker, call, false);    // it lives there: what waits goes
//     actors.kill(id);
//     auto lost = actors.lose(worker);       // its link has broken
//     for (auto id : lost.moving) actors.make_again(id);

#include <skein/core/result.hpp>
#include <skein/rt/detail/actor_entry.hpp>
#include <skein/rt/detail/dispatch.hpp>
#include <skein/rt/detail/group_desk.hpp>
#include <skein/rt/detail/holds.hpp>
#include <skein/rt/detail/replies.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>
#include <unordered_map>
#include <vector>

namespace skein::net {
struct frame_view;
}

namespace skein::rt::detail {

struct call_head;

/// What the owner of actors tells who has the calls, handles and links of the process.
class owner_events {
public:
    /// As messages name it, whether or not it is known.
    [[nodiscard]] virtual std::string title_of(actor_id id) const = 0;

    // Handles of this process:
    [[nodiscard]] virtual bool has_handles(actor_id id) const = 0;
    /// The actor lives there from now on; nullptr: it is made again.
    virtual void handles_follow(actor_id id, peer* worker) = 0;
    /// The actor has ended. Gives their queue for fail_queue(), if there is one.
    [[nodiscard]] virtual counted_ptr<actor_queue> handles_lose(actor_id id,
                                                                const failure& why) = 0;
    virtual void fail_queue(actor_queue& queue) = 0;
    /// Why the actor has ended, if they have heard it.
    [[nodiscard]] virtual std::optional<error> why_lost(actor_id id) const = 0;

    // Calls:
    /// One that has waited goes on.
    virtual void place(counted_ptr<call_base> call) = 0;
    /// Methods that the actor's worker has not begun.
    virtual void take_back_calls(actor_id id, std::vector<counted_ptr<call_base>>& into) = 0;
    /// What makes the actor once more. Null: it has failed.
    [[nodiscard]] virtual counted_ptr<call_base> new_constructor(actor_id id,
                                                                 const actor_plan& plan) = 0;
    /// Others may go.
    virtual void pump() = 0;

    /// A worker has asked where the actor is. how: it has ended.
    virtual void tell_where(peer_id asker, actor_id id, peer* worker, std::string_view how) = 0;

protected:
    ~owner_events() = default;
};

/// The actors that a broken link took along.
struct lost_actors {
    std::vector<actor_id> moving;                 ///< are made again
    std::vector<actor_id> orphaned;               ///< were held by nobody else
    std::vector<counted_ptr<call_base>> stranded; ///< were to run where one was that is lost
    std::map<actor_id, std::string> notes;        ///< of those that were made again too often

    [[nodiscard]] std::string note_of(actor_id id) const {
        const auto found = notes.find(id);
        return found != notes.end() ? found->second : std::string();
    }
};

/// "actor "table" is a counter, not a queue"
[[nodiscard]] error wrong_type(std::string_view name, const char* is, const char* wanted);
/// A frame that says no more than an actor.
void send_actor(peer& to, std::uint16_t kind, actor_id id);

class actor_owner {
public:
    using calls = std::vector<counted_ptr<call_base>>;

    actor_owner(dispatch& parts, group_desk& groups, replies& answers, owner_events& above) noexcept
        : dispatch_(parts), groups_(groups), replies_(answers), above_(above) {}

    /// nullptr: it has ended, or is none of this program.
    [[nodiscard]] const actor_entry* find(actor_id id) const;
    [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
    /// Those of which this holds, in order.
    template <class Holds>
    [[nodiscard]] std::vector<actor_id> ids_of(Holds holds) const;
    /// The program ends: nothing is made again.
    void close() noexcept { closing_ = true; }

    // Making:
    /// Of an actor that this process makes.
    [[nodiscard]] std::uint64_t new_number() noexcept { return ++last_; }
    /// Gives the actor, or one that has the name already and may be used instead. terms: none.
    ///   errors  already_exists, mismatch
    [[nodiscard]] result<actor_id> declare(actor_id id, const actor_terms* terms,
                                           const std::type_info& type);
    /// A worker makes an actor. False: it has its answer already.
    [[nodiscard]] bool admit(peer& from, slot_id slot, const function_record& fn,
                             const call_head& head, wire::reader& in);
    /// It holds what its constructor's call asks for.
    void keep_demand(const call_base& call);
    /// Its constructor leaves for a worker: what it takes to do so again stays here.
    void remember_plan(const call_base& call);
    /// Its constructor has an outcome.
    void settle(peer& from, const call_base& call, bool failed);
    void create_failed(actor_id id, const failure& why);
    /// One that was to live on that worker does not, or has ended.
    void has_left(peer& at);

    // Names:
    ///   errors  not_found, with the names that there are
    [[nodiscard]] result<actor_id> named(std::string_view name) const;

    // Who holds them:
    /// That worker has got a handle. One that has ended is not counted.
    void hold(peer_id worker, actor_id id) {
        if (find(id) != nullptr) held_.add(worker, id);
    }
    /// A handle of this process or of a worker is gone; it may have been the last one.
    void let_go(actor_id id);

    // Calls:
    /// A method waits until the actor is somewhere.
    void wait_for(actor_id id, counted_ptr<call_base> call) {
        entries_.at(id).waiting.push_back(std::move(call));
    }
    /// Those that were at its worker come first. They go at once if it has ended.
    void wait_first(actor_id id, calls again);
    /// Gives a call the node of the actor where it is to run. False: it waits for the actor to be
    /// somewhere, or has failed.
    [[nodiscard]] bool may_go(const counted_ptr<call_base>& call);
    /// A task or constructor, to the end of its line.
    void line_up(counted_ptr<call_base> call);
    /// Takes all that wait for actors to be somewhere, to run there.
    void take_followers(calls& into);
    /// The node of a worker has its name now: what waits for actors there goes.
    void labels_known(const peer& at);

    // Ends:
    void kill(actor_id id);
    /// Forgets it. tell: what its worker hears, 0: nothing. why: what calls that wait hear.
    void end(actor_id id, std::uint16_t tell, const failure* why);
    /// The group is over in which they live.
    void end_group(const group_state& group);

    // A worker is lost:
    /// Its actors end or are being made again, and its handles are gone.
    [[nodiscard]] lost_actors lose(peer& worker);
    /// Whether a constructor or method that was there goes on elsewhere. sent: it may have begun.
    [[nodiscard]] bool moves(call_base& call, bool sent);
    void make_again(actor_id id);
    /// Some of the lost worker's actors are made again: handles that these had count until then.
    [[nodiscard]] bool keeps_lent(peer_id worker) const { return late_.contains(worker); }

    /// What a worker says of actors.
    void on_frame(peer& from, const net::frame_view& f);
    /// It wants to hear where an actor is, once that is somewhere.
    void ask_where(actor_id id, peer_id asker) { entries_.at(id).askers.push_back(asker); }

private:
    [[nodiscard]] actor_entry* entry_of(actor_id id) { return const_cast<actor_entry*>(find(id)); }
    void reply_handle(peer& to, slot_id slot, actor_id id);
    void on_find(peer& from, slot_id slot, byte_span body);
    void on_snapshot(const peer& from, byte_span body);
    void on_release(const peer& from, byte_span body);
    void is_placed(actor_id id);
    void release_followers(actor_id id);
    void take_followers(actor_id id, calls& into);
    void give_late_holds_back(actor_id settled);

    dispatch& dispatch_;
    group_desk& groups_;
    replies& replies_;
    owner_events& above_;
    std::unordered_map<actor_id, actor_entry> entries_;
    std::map<std::string, actor_id, std::less<>> names_;
    holds<actor_id> held_; ///< by workers; a handle of this process has its queue
    late_holders late_;    ///< lost workers whose actors are made again
    std::uint64_t last_ = 0;
    bool closing_ = false;
};

} // namespace skein::rt::detail

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/actor_owner.ipp>
#endif
