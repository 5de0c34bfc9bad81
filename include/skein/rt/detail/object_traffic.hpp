// SPDX-License-Identifier: Apache-2.0
#pragma once
// object_traffic: the objects in the calls and replies of a process. Without a store all that would
// be an object travels in messages.
//
//     objects.use(client);                              // of its node; before the first call
//     if (objects.takes(bytes)) ...;                    // so much becomes an object
//     auto claims = objects.claim(uses);                // a call has come: they are held here

#include <skein/core/bytes.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/error.hpp>
#include <skein/core/event.hpp>
#include <skein/core/function.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/objects/object.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/departures.hpp>
#include <skein/rt/detail/object_message.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::objects {
class store_client;
}

namespace skein::rt {

struct peer;

namespace detail {

/// For room in the store: who waits longer goes on without it.
inline constexpr time_span room_patience = std::chrono::seconds(10);

/// The objects of a call that has come.
struct arrived_objects {
    std::vector<object_use> uses;
    bool reads_inside = false; ///< there are views in the arguments
    bool is_next = false;      ///< its call is about to run
    bool is_claimed = false;
    std::vector<objects::object_ptr> held;   ///< in the same order, once `ready` is set
    std::vector<objects::reading_ptr> bytes; ///< the same of those that are read; null: it is not
    std::optional<error> why;                ///< they are not there
    event ready;
    event values_came; ///< from the caller, or `why` not

    [[nodiscard]] bool reads(const object_use& one) const noexcept {
        return reads_inside || one.place != named_inside;
    }
    /// The one that is an argument; null: that stands in the message.
    [[nodiscard]] const objects::reading* at(std::uint32_t place) const noexcept {
        for (std::size_t i = 0; i < bytes.size(); ++i)
            if (uses[i].place == place) return bytes[i].get();
        return nullptr;
    }
    [[nodiscard]] bool are_arguments() const noexcept {
        for (const auto& one : uses)
            if (one.place != named_inside) return true;
        return false;
    }
};

/// A value that is to become an object, or a message after all.
class outgoing_value {
public:
    virtual ~outgoing_value() = default;
    /// As it lies in an object.
    [[nodiscard]] virtual byte_span stored() const = 0;
    /// As it stands in a message.
    virtual void encode(wire::writer& to) const = 0;
};

class object_traffic {
public:
    object_traffic() = default;
    object_traffic(const object_traffic&) = delete;
    object_traffic& operator=(const object_traffic&) = delete;

    /// Once. start: of a driver, has its store begin; gives where that listens for those of other
    /// nodes, if there may be any.
    void use(std::shared_ptr<objects::store_client> store,
             unique_function<std::string()> start = {});
    [[nodiscard]] bool has_store() const noexcept { return store_ != nullptr; }
    /// Which one that is, or will be, of several; 0: there are no others.
    void set_store_number(std::uint64_t number) noexcept { number_ = number; }
    [[nodiscard]] std::uint64_t store_number() const noexcept { return number_; }
    /// Nothing comes from the store any more: what this process holds it can read, no more.
    [[nodiscard]] bool has_lost_store() const noexcept;
    [[nodiscard]] objects::store_client& store() noexcept { return *store_; }
    /// There are stores on other nodes.
    [[nodiscard]] bool has_peers() const noexcept;
    [[nodiscard]] std::shared_ptr<objects::store_client> shared_store() const { return store_; }
    /// A worker is about to use the store of its driver, or of its node; gives what `start` has.
    ///   errors  those of net::network::listen
    [[nodiscard]] std::string start();
    /// So many bytes are an object rather than a part of a message.
    [[nodiscard]] bool takes(std::size_t bytes) const noexcept {
        return store_ != nullptr && bytes > limit::inline_bytes;
    }

    /// Holds the objects of a call that has come, and reads those whose bytes need not be asked for.
    /// What cannot be had from where it is, its caller gives.
    ///   reads_views  the function has views in its arguments
    [[nodiscard]] std::shared_ptr<arrived_objects> claim(std::vector<object_use> uses,
                                                         bool reads_views,
                                                         const std::shared_ptr<peer>& from,
                                                         slot_id call);
    /// The caller of a call that waits for them gives the values of its objects.
    ///   errors  malformed
    void take_values(peer& from, slot_id call, bool has_failed, byte_span body);
    /// A call is not wanted any more: it waits for none.
    static void forget_values(peer& from, slot_id call);
    /// The values of objects that are held here, for who cannot reach them; `uses` say which.
    ///   errors  those of reading them
    [[nodiscard]] task<byte_buffer> values_of(std::vector<object_use> uses,
                                              std::vector<objects::object_ptr> all);
    /// The call is about to run: what it reads is read. Until then it may be in files.
    void read(const std::shared_ptr<arrived_objects>& all);
    /// The objects of a reply of that process, which has given them to this one; the body is without
    /// their list then.
    ///   errors  malformed, mismatch, not_supported; exhausted: no room for one that comes along
    [[nodiscard]] std::vector<objects::object_ptr> adopt(std::uint64_t from, std::uint16_t flags,
                                                         byte_span& body);
    /// Whether a process that uses that store gets what this one makes; waits for their stores to meet.
    ///   errors  cancelled
    [[nodiscard]] task<bool> reach(std::uint64_t store_number);
    /// Has that process hold them: true. Where the stores cannot: false, and their values go in the
    /// message.
    ///   errors  those of store_client::give()
    [[nodiscard]] task<bool> give(std::vector<objects::object_ptr> all, objects::process_id to,
                                  std::uint64_t store_number);
    /// The same of a reply that nobody waits for any more.
    void drop(std::uint64_t from, std::uint16_t flags, byte_span& body);
    /// That process has ended, and all its replies were read.
    ///   has_ended  this is the driver, which knows that it has ended
    void lost(std::uint64_t incarnation, bool has_ended = false);
    /// Worker: where the driver's store listens; `host`: that of the driver, as it is seen here.
    ///   errors  malformed
    void hear_hub(std::string_view door, const std::string& host);
    /// All can be read here.
    [[nodiscard]] static bool are_here(const std::vector<objects::object_ptr>& all) noexcept;
    /// Brings them to this node.
    ///   errors  those of store_client::bring()
    [[nodiscard]] task<void> bring(std::vector<objects::object_ptr> all);
    // An object of bytes, which must stay until the task has ended. Nothing: no room, or no store.
    //   errors  those of the link with the store; cancelled

    /// Held by this process.
    [[nodiscard]] task<objects::object_ptr> make(byte_span bytes);
    /// Held by another process from the start.
    [[nodiscard]] task<std::optional<objects::object_name>> make_for(objects::process_id to,
                                                                     byte_span bytes);
    /// Replies of this process that have to get through the store.
    [[nodiscard]] departures& leaving() noexcept { return leaving_; }
    /// Does work of a call that has objects; its errors are nobody's.
    void spawn(task<void> work);

    /// What waits for the store is cancelled, and ends. Never throws.
    [[nodiscard]] task<void> close();

private:
    std::shared_ptr<objects::store_client> store_;
    std::uint64_t number_ = 0;
    unique_function<std::string()> start_;
    departures leaving_;
    scope tasks_;
};

} // namespace detail
} // namespace skein::rt

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/object_traffic.ipp>
#endif
