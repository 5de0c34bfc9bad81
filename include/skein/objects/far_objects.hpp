// SPDX-License-Identifier: Apache-2.0
#pragma once
// far_objects: what the processes of one node hold of objects whose home is another node. A part of
// that node's store, beside its books.
//
//     objects::store here(memory, number);
//     objects::far_objects far(here, network, how);      // before the first process comes
//     far.listen(net::address::any(0));
//     far.join(hub, false);                              // the store of the driver
//     ...
//     co_await far.close();                              // before here.close()
//
// The home of an object counts a store once for each time that this has registered, and frees the
// object when no store and no process of its own holds it. A store registers while a process of its
// own holds. The bytes come when a process claims the object: once, for all that ask meanwhile and
// after; they are a copy in the arena here, which the store itself holds in its books. When the last
// process lets go so does the store, and a transfer stops. A copy that is there stays for a while, or
// until its room is needed: the next process that claims the object finds it, once the home has said
// that there is one still.
//
// A gift (see store_book) lies at the home of its object. Who gets it says so to its own store, which
// tells the home, again after the loss of a link that may have lost the word.

#include <skein/core/cancel.hpp>
#include <skein/core/error.hpp>
#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/objects/object_name.hpp>
#include <skein/objects/peer_messages.hpp>
#include <skein/objects/store.hpp>
#include <skein/objects/store_peers.hpp>

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace skein::objects {

/// Counts since the start.
struct far_statistics {
    std::uint64_t transfers = 0, bytes_in = 0; ///< objects that were brought here
    std::size_t idle = 0;                      ///< copies that no process holds
    std::size_t held = 0, copies = 0;          ///< far objects now, and those that are here
};

/// On the loop of its store.
class far_objects final : other_nodes, peer_events {
public:
    ///   of, via  must outlive this
    far_objects(store& of, net::network& via, store_peer_options how);
    ~far_objects();

    void listen(const net::address& at) { peers_.listen(at); }
    [[nodiscard]] net::address local() const { return peers_.local(); }
    [[nodiscard]] store_peers& peers() noexcept { return peers_; }
    /// Of others; listens at all addresses, or on this host alone if the hub does.
    void join(const net::address& hub, bool is_for_hosts);
    [[nodiscard]] far_statistics statistics() const;
    /// An object is here, and the program is, or may be: the link with its driver's store was lost
    /// a while ago.
    [[nodiscard]] bool is_needed() const;
    [[nodiscard]] task<void> close();

private:
    struct attempt;
    struct entry;
    class claim_holds;
    class giving;
    using entry_ptr = std::shared_ptr<entry>;

    // of processes
    void add_to(net::request_service& service, process_id who) override;
    void decline(process_id by, const decline_note& what) override;
    void end(process_id who) override;
    [[nodiscard]] bool make_room() override;
    void greet(net::requests& process) override;
    static task<far_claim_reply> claim(far_objects* self, process_id by, far_claim_request what);
    static task<far_read_reply> read(far_objects* self, process_id by, far_read_request what);
    static task<done_reply> give(far_objects* self, process_id by, far_give_request what);
    void take(process_id by, const far_take_note& what);
    void release(process_id by, const far_release_note& what);

    // the table
    [[nodiscard]] entry_ptr hold(process_id by, const object_name& name);
    [[nodiscard]] bool let_go(process_id by, const object_key& which, std::uint32_t times);
    void drop(const object_key& which, std::uint64_t times);
    void give_back(const store_book::grant& copy);
    static task<void> keep_tidy(far_objects* self);
    [[nodiscard]] std::shared_ptr<attempt> want(const entry_ptr& one);
    static task<void> bring(far_objects* self, entry_ptr one, std::shared_ptr<attempt> mine);
    static task<void> bring_now(far_objects* self, entry_ptr one);
    static task<void> register_at(far_objects* self, entry_ptr one,
                                  std::shared_ptr<store_peer> home);
    static task<void> copy(far_objects* self, entry_ptr one, std::shared_ptr<store_peer> home);
    [[nodiscard]] static error lost_with(const object_name& name, const store_peer& home,
                                         const error& why);

    // of other stores
    void serve_peer(net::request_service& service, store_peer& one) override;
    void peer_came(store_peer& one) override;
    void peer_lost(store_peer& one) override;
    void reach_changed() override;
    [[nodiscard]] std::optional<held_bytes> bytes_of(object_number which) override;
    [[nodiscard]] hold_reply hold_for(process_id from, const hold_request& what);
    void take_for(process_id from, const take_for_note& what);
    void let_go_of(process_id from, const let_go_note& what);
    void give_for(process_id from, const give_for_request& what);
    void take_back(const give_back_note& what);

    store& store_;
    process_id self_; ///< as which the store itself holds, in its books
    net::address listens_at_;
    store_peers peers_;
    std::map<object_key, entry_ptr> entries_;
    /// A copy that no process holds.
    struct idle_copy {
        object_key which;
        store_book::grant copy;
        time_point since;
    };
    std::list<idle_copy> idle_; ///< the oldest first
    bool is_tidying_ = false;
    /// What a home may not have heard of: it would keep gifts that nobody takes any more.
    struct debts {
        std::deque<take_for_note> told; ///< and not confirmed
        std::vector<take_for_note> owed;
        std::vector<give_back_note> undone;
    };
    std::map<std::uint64_t, debts> debts_;
    /// For stores that come later, as long as gifts may be on the way.
    struct told_ends {
        struct one {
            ended_note what;
            time_point since;
        };
        std::vector<declined_note> declined;
        std::deque<one> ended;

        /// Of who has ended nothing is left to decline.
        void forget(process_id who) {
            std::erase_if(declined, [&](const auto& n) { return n.by == who || n.from == who; });
        }
    };
    told_ends told_;
    std::uint64_t transfers_ = 0, bytes_in_ = 0;
    bool is_closed_ = false;
    scope tasks_;
};

} // namespace skein::objects

#if SKEIN_HEADER_ONLY
#include <skein/objects/detail/far_objects.ipp>
#include <skein/objects/detail/far_peers.ipp>
#endif
