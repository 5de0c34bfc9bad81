// SPDX-License-Identifier: Apache-2.0
#pragma once
// store_client: how one process makes, holds and shares the objects of its node.
//
//     auto mine = objects::store_client::make(loop, memory, incarnation, connect);
//     auto asking = mine->create(70'000, 1s);
//     if (auto made = co_await asking) {                       // else there is no room
//         std::memcpy(made->bytes().data(), from, 70'000);
//         auto sealing = mine->seal(std::move(*made));
//         objects::object_ptr o = co_await sealing;
//     }
//     auto claiming = mine->claim({name});                     // that another process has told
//     auto reading = mine->read({o});                          // stays where it is while it is read
//
// It connects when it is first used. A store that cannot be reached has no room for anything; what
// this process holds of it can still be read.

#include <skein/core/bytes.hpp>
#include <skein/core/event.hpp>
#include <skein/core/function.hpp>
#include <skein/core/result.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/semaphore.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/requests.hpp>
#include <skein/objects/arena.hpp>
#include <skein/objects/object.hpp>
#include <skein/objects/store_messages.hpp>
#include <skein/objects/store_reach.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace skein::objects {

class store_client;

/// Room for an object that is being written. Dropped without store_client::seal() it goes back.
class fresh_object {
public:
    fresh_object(fresh_object&& other) noexcept = default;
    fresh_object& operator=(fresh_object&& other) noexcept {
        std::swap(name_, other.name_);
        std::swap(window_, other.window_);
        std::swap(back_, other.back_);
        return *this;
    }
    ~fresh_object();
    /// To write into. Not the right size for more.
    [[nodiscard]] mut_byte_span bytes() const noexcept { return window_.bytes(); }
    [[nodiscard]] const object_name& name() const noexcept { return name_; }

private:
    friend class store_client;
    fresh_object(object_name name, arena::window window,
                 std::shared_ptr<detail::let_go_box> back) noexcept
        : name_(name), window_(std::move(window)), back_(std::move(back)) {}
    object_name name_;
    arena::window window_;
    std::shared_ptr<detail::let_go_box> back_; ///< null: moved from, or sealed
};

/// On one loop. What it gives may be used on any thread.
class store_client : public std::enable_shared_from_this<store_client> {
public:
    using connector = unique_function<task<net::connection::handle>()>;

    ///   on       whose tasks use it; it need not run yet
    ///   self     of this process, never used again
    ///   connect  asked once, when the first object is made or held here; gives a connection with
    ///            store_hello as its identity::extra
    ///   has_peers  the program has stores on other nodes: see far_objects
    ///   number     of the store, if that is known
    [[nodiscard]] static std::shared_ptr<store_client> make(loop& on, arena memory, process_id self,
                                                            connector connect,
                                                            bool has_peers = false,
                                                            std::uint64_t number = 0);
    store_client(const store_client&) = delete;
    store_client& operator=(const store_client&) = delete;
    /// close() first.
    ~store_client();

    [[nodiscard]] process_id self() const noexcept { return self_; }

    /// Room for an object; nothing: there is none for so long, or ever, or no store.
    ///   errors  cancelled
    [[nodiscard]] task<std::optional<fresh_object>> create(std::uint64_t bytes, time_span patience);
    /// Nobody writes it any more. to: who holds it from now on, instead of this process, which gets
    /// null then.
    ///   errors  those of the link; cancelled
    [[nodiscard]] task<object_ptr> seal(fresh_object made, process_id to = {});
    /// Holds objects that other processes have told of and hold, and brings those of other nodes
    /// here; null for those that are gone.
    ///   errors  those of the link; mismatch: objects of another program; of other nodes also
    ///           not_found, object_lost, exhausted (no room for a copy); cancelled
    [[nodiscard]] task<std::vector<object_ptr>> claim(std::vector<object_name> names);
    /// Reads what is held here, in the same order. What is in a file comes back first; where there
    /// is no room for that, this process gets a copy of its own.
    ///   errors  io, corrupt: a file cannot be read; not_found; those of the link; cancelled
    [[nodiscard]] task<std::vector<reading_ptr>> read(std::vector<object_ptr> which);
    /// The same at once; null: it is to be asked for.
    [[nodiscard]] reading_ptr read_now(const object_ptr& which);
    /// Reads one for somebody who is called when that is over, on this loop: perhaps at once.
    using reader = unique_function<void(result<reading_ptr>)>;
    void read_then(object_ptr which, reader then);
    /// The objects that a process has given to this one, and told of.
    ///   errors  mismatch, malformed: they are none of this store
    [[nodiscard]] std::vector<object_ptr> adopt(const std::vector<object_name>& names,
                                                process_id from);
    /// Brings objects that are held here and on another node. They are here then.
    ///   errors  as claim()
    [[nodiscard]] task<void> bring(std::vector<object_ptr> all);
    /// Which stores its objects get to, and back.
    [[nodiscard]] store_reach& others() noexcept { return others_; }
    /// Where the store of the driver is, for that of this node.
    void tell_hub(const std::string& door, bool is_for_hosts);
    [[nodiscard]] bool has_peers() const noexcept { return has_peers_; }
    /// That process has ended, and tells of nothing more: what it has given and not told of goes.
    ///   has_ended  this is the driver, which knows that it has ended
    void lost(process_id from, bool has_ended);
    /// Dials the store now: by itself it does when it needs that.
    void open() { want_link(); }
    /// Called once if the link ends before close() does, and not because the store has: `why`.
    void set_lost_handler(unique_function<void(const error& why)> handler) {
        when_lost_ = std::move(handler);
    }
    /// Nothing comes from the store any more; what is held here stays as it is as long as this process.
    [[nodiscard]] bool is_lost() const noexcept { return lost_ && !is_closed_; }
    /// Has another process hold these, too.
    ///   to_store  that of the other process, if that is known
    ///   errors    those of the link; object_lost: the home of one of them is lost, or has no link with
    ///             to_store; cancelled
    [[nodiscard]] task<void> give(std::vector<object_ptr> all, process_id to,
                                  std::uint64_t to_store = 0);
    /// One that is held here; null: it is not.
    [[nodiscard]] object_ptr find(const object_key& which) const;

    /// Says goodbye; what is held here is let go of, but can be read as long as there is a pointer.
    [[nodiscard]] task<void> close();

private:
    friend object_ptr adopt_value(store_client& by, const object_name& name, byte_span bytes);
    store_client(loop& on, arena memory, process_id self, connector connect, bool has_peers,
                 std::uint64_t number);
    struct creation;
    struct far_claim;
    struct pinning;
    static task<void> create_for(store_client* self, std::shared_ptr<creation> asked,
                                 std::uint64_t bytes, time_span patience);
    [[nodiscard]] task<std::optional<fresh_object>> create_alone(std::uint64_t bytes,
                                                                 time_span patience);
    [[nodiscard]] task<net::requests::handle> link();
    static task<void> connect(store_client* self);
    void link_is_lost(const error& why);
    template <class Note>
    void tell_in_order(const Note& what);
    [[nodiscard]] object_ptr keep(const object_name& name, std::optional<std::uint64_t> at);
    [[nodiscard]] task<std::vector<object_ptr>> claim_far(std::vector<object_name> names);
    static task<void> claim_far_for(store_client* self, std::shared_ptr<far_claim> asked);
    template <class Note>
    void send_back(const std::vector<far_let_go>& all);
    [[nodiscard]] reading_ptr pinned(const object_ptr& which, std::uint64_t at);
    static task<void> pin_for(store_client* self, std::shared_ptr<pinning> asked);
    static task<void> read_for(std::shared_ptr<store_client> self, object_ptr which, reader then);
    static task<reading_ptr> fetch(store_client* self, object_ptr which);
    void set_roomy(bool is_roomy);
    void want_link();
    void send_back();
    void refuse_others(const object_name& name);

    arena memory_;
    process_id self_;
    connector connect_;
    std::uint64_t store_; ///< its number, once it is known
    net::requests::handle link_;
    std::vector<unique_function<void()>> early_; ///< what is told when there is a link
    std::optional<error> lost_;
    unique_function<void(const error&)> when_lost_;
    bool has_peers_, is_connecting_ = false, is_closed_ = false;
    bool is_roomy_ = false; ///< what is held stays where it is
    store_reach others_;
    std::size_t forget_at_ = 256; ///< so many are known
    event settled_;               ///< there is a link, or never will be
    semaphore creating_, pinning_;
    semaphore fetching_; ///< copies of what there is no room for
    std::shared_ptr<net::request_service> news_;
    std::unordered_map<object_key, std::weak_ptr<object>> known_;
    std::shared_ptr<detail::let_go_box> back_;
    scope tasks_;
};

/// An object that came in a message, in memory of this process.
///   errors  malformed; exhausted
[[nodiscard]] object_ptr adopt_value(store_client& by, const object_name& name, byte_span bytes);

} // namespace skein::objects

#if SKEIN_HEADER_ONLY
#include <skein/objects/detail/client_values.ipp>
#include <skein/objects/detail/store_client.ipp>
#endif
