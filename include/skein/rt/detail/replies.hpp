// SPDX-License-Identifier: Apache-2.0
#pragma once
// replies: the outcomes of calls on their way back to who has called.
//
// A value is encoded into memory that is used again, a failure is a text that travels. Three ways
// lead back:
//
//     a link          the reply is a frame
//     this process    a value goes to its call as it is, if that is as good as decoding its bytes
//     the driver      of a worker: a reply to another worker that must come behind what the driver
//                     was told, see driver_news
//
// Handles in a value are collected while it is encoded: who gets the value holds them from then on.
//
//     replies out(here, home, borrowed, above);
//     out.reply(to, slot, [](wire::writer& w) { wire::encode(w, 7); });
//     out.reply_failure(to, slot, why);

#include <skein/core/bytes.hpp>
#include <skein/core/counted_ptr.hpp>
#include <skein/core/ids.hpp>
#include <skein/rt/detail/call.hpp>
#include <skein/rt/detail/call_context.hpp>
#include <skein/rt/detail/driver_news.hpp>
#include <skein/rt/detail/holds.hpp>
#include <skein/rt/detail/object_traffic.hpp>
#include <skein/rt/remote_error.hpp>
#include <skein/wire/writer.hpp>

#include <cstdint>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

namespace skein::rt::detail {

/// The actors whose handles are in one value; foreign: those of other namespaces.
using lent_actors = lent_handles<actor_id, counted_ptr<actor_queue>>;

/// What keeps them alive.
using kept_actors = std::vector<counted_ptr<actor_queue>>;

/// What replies ask of who keeps the handles of this process.
class reply_events {
public:
    /// The driver is to hear of the handles here that it does not know of.
    virtual void tell_holds() = 0;
    /// The handles of a value for this process.
    [[nodiscard]] virtual kept_actors keep_lent(const lent_actors& all) = 0;
    /// The value is in the next frame of this process to itself: they live until that has been read.
    virtual void send_along(kept_actors all) = 0;

protected:
    ~reply_events() = default;
};

class replies {
public:
    ///   here      the process, as failures name it
    ///   home      the runtime that codecs of handles see
    ///   borrowed  handles here of which the driver may not know; must outlive it
    replies(process_name here, counted_ptr<runtime_anchor> home, const borrows<actor_id>& borrowed,
            reply_events& above);

    /// The driver that this worker has from now on; nullptr: none.
    void follow(peer* driver) noexcept { driver_ = driver; }
    /// The driver was told something that the next reply must not overtake.
    void told_driver() noexcept {
        if (driver_ != nullptr) news_.told();
    }
    [[nodiscard]] driver_news& news() noexcept { return news_; }
    /// The objects in calls and replies of this process.
    [[nodiscard]] object_traffic& objects() noexcept { return objects_; }
    /// Handles came as arguments, and the driver does not know that they are held here.
    [[nodiscard]] bool has_untold_handles() const noexcept { return borrowed_.has_untold(); }

    /// may_be_object: if it is large, and nothing in it belongs to a process.
    void reply(peer& to, slot_id id, encoder encode, bool may_be_object = false);
    /// The value of a call of this process, as it is. False: another process has called.
    [[nodiscard]] bool reply_here(peer& to, slot_id id, finisher finish);
    /// A value that is encoded already. lends: its handles stand behind it.
    void pass_reply(peer& to, slot_id id, byte_span value, bool lends);
    // These two wait for the store before they leave, and take the way that is theirs now.

    /// With a value as an object, or, where there is no room, in a message.
    void send_object(std::shared_ptr<peer> to, slot_id id, std::unique_ptr<outgoing_value> value);
    /// A reply with objects that this process holds, as it came.
    void pass_on(std::shared_ptr<peer> to, slot_id id, std::uint16_t flags, byte_buffer body,
                 std::vector<objects::object_ptr> all);
    void reply_failure(peer& to, slot_id id, const failure& why);
    /// The exception that is being handled is what the call of `fn` has thrown.
    void reply_thrown(peer& to, slot_id id, const function_record& fn);
    /// A stream has ended behind so many items; why: the generator of `fn` has thrown that.
    void reply_end(peer& to, slot_id id, std::uint64_t items, const std::exception_ptr& why,
                   const function_record& fn);
    /// The store of this worker's node is lost: it cannot run what others may.
    void lost_store(const error& why);
    /// An item of a stream, encoded for who gets it.
    ///   errors  not_supported: there are handles in it; what its codec throws
    void encode_item(wire::writer& to, encoder encode);

    // A handle is in the value that is being encoded:
    void lend(actor_id id) { lent_.add(id); }
    void lend_abroad(counted_ptr<actor_queue> queue) { lent_.add_foreign(std::move(queue)); }
    /// A ref or view of an object is.
    void lend_object(objects::object_ptr one) { lent_objects_.push_back(std::move(one)); }

private:
    /// How a reply gets to its caller: settled when the call ends, see driver_news.
    enum class way : std::uint8_t { straight, by_driver };
    struct later_reply;

    void reply_with_objects(peer& to, slot_id id);
    void send(peer& to, std::uint16_t outcome, slot_id id);
    void send_by(way how, peer& to, std::uint16_t outcome, slot_id id);
    [[nodiscard]] way way_of(peer& to, std::uint16_t outcome, slot_id id);
    void relay(const peer& to, std::uint16_t outcome, slot_id id);

    process_name here_;
    counted_ptr<runtime_anchor> home_;
    const borrows<actor_id>& borrowed_;
    reply_events& above_;
    peer* driver_ = nullptr;
    driver_news news_;
    lent_actors lent_;
    std::vector<objects::object_ptr> lent_objects_;
    wire::writer scratch_; ///< the encoded outcome
    object_traffic objects_;
};

} // namespace skein::rt::detail

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/replies.ipp>
#endif
