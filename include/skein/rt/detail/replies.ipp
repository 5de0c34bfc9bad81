// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of rt/detail/replies.hpp.

#include <skein/core/awaitable.hpp>
#include <skein/core/constants.hpp>
#include <skein/objects/store_client.hpp>
#include <skein/rt/detail/direct_message.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/rt/detail/object_message.hpp>
#include <skein/rt/detail/peer.hpp>
#include <skein/rt/detail/runtime_mark.hpp>
#include <skein/wire/encode.hpp>

#include <cstring>
#include <exception>
#include <optional>
#include <utility>

namespace skein::rt::detail {

SKEIN_INLINE replies::replies(process_name here, counted_ptr<runtime_anchor> home,
                              const borrows<actor_id>& borrowed, reply_events& above)
    : here_(std::move(here)), home_(std::move(home)), borrowed_(borrowed), above_(above) {}

/// A value that is encoded, on its way into an object.
class encoded_value final : public outgoing_value {
public:
    explicit encoded_value(byte_buffer bytes) : bytes_(std::move(bytes)) {}
    [[nodiscard]] byte_span stored() const override { return bytes_; }
    void encode(wire::writer& to) const override { to.raw(bytes_); }

private:
    byte_buffer bytes_;
};

SKEIN_INLINE void replies::reply(peer& to, slot_id id, encoder encode, bool may_be_object) {
    if (!to.is_open()) return;
    scratch_.clear();
    lent_.clear();
    lent_objects_.clear();
    {
        const replying_mark by(home_->self);
        encode(scratch_);
    }
    if (!lent_objects_.empty()) [[unlikely]]
        return reply_with_objects(to, id);
    if (may_be_object && objects_.takes(scratch_.size()) && lent_.empty() &&
        to.role != peer_role::here)
        return send_object(to.shared_from_this(), id,
                           std::make_unique<encoded_value>(std::move(scratch_).take()));
    if (lent_.empty()) return send(to, reply_ok, id);
    if (to.role == peer_role::here) {
        above_.keep_lent(lent_);
        return send(to, reply_ok, id);
    }
    lending_reply::append(scratch_, lent_.known());
    send(to, reply_lends, id);
}

/// There are refs of objects in the value: who gets it holds them first.
SKEIN_INLINE void replies::reply_with_objects(peer& to, slot_id id) {
    auto all = std::exchange(lent_objects_, {});
    std::uint16_t flags = reply_refs;
    if (!lent_.empty()) {
        if (to.role == peer_role::here) {
            above_.keep_lent(lent_);
        } else {
            lending_reply::append(scratch_, lent_.known());
            flags |= reply_lends;
        }
    }
    std::vector<object_use> uses;
    for (const auto& one : all) uses.push_back({one->name(), named_inside, 0});
    append_uses(scratch_, uses);
    pass_on(to.shared_from_this(), id, flags, std::move(scratch_).take(), std::move(all));
}

SKEIN_INLINE void replies::reply_as(peer& to, slot_id id, std::uint16_t flags, encoder encode) {
    if (!to.is_open()) return;
    scratch_.clear();
    encode(scratch_);
    send(to, flags, id);
}

SKEIN_INLINE bool replies::reply_here(peer& to, slot_id id, finisher finish) {
    if (to.role != peer_role::here) return false;
    to.finish_here(id, finish);
    return true;
}

SKEIN_INLINE void replies::pass_reply(peer& to, slot_id id, byte_span value, bool lends) {
    if (!to.is_open()) return;
    scratch_.clear();
    scratch_.raw(value);
    send(to, lends ? reply_lends : reply_ok, id);
}

SKEIN_INLINE void replies::reply_failure(peer& to, slot_id id, const failure& why) {
    if (!to.is_open()) return;
    scratch_.clear();
    encode_failure(scratch_, why);
    send(to, reply_failed, id);
}

SKEIN_INLINE void replies::reply_thrown(peer& to, slot_id id, const function_record& fn) {
    reply_failure(to, id, failure_of(std::current_exception(), fn, here_));
}

SKEIN_INLINE void replies::reply_end(peer& to, slot_id id, std::uint64_t items,
                                     const std::exception_ptr& why, const function_record& fn) {
    if (!to.is_open()) return;
    scratch_.clear();
    scratch_.fixed(items);
    if (why) encode_failure(scratch_, failure_of(why, fn, here_));
    send(to, why ? reply_failed | reply_counted : reply_ok, id);
}

SKEIN_INLINE void replies::encode_item(wire::writer& to, encoder encode) {
    lent_.clear();
    lent_objects_.clear();
    {
        const replying_mark by(home_->self);
        encode(to);
    }
    const bool has_view = !lent_objects_.empty();
    lent_objects_.clear();
    if (has_view)
        throw error(errc::not_supported,
                    "not supported: an item of a stream with a view of an object in it")
            .with_hint("give the value itself, or return the view as a result");
    if (lent_.empty()) return;
    throw error(errc::not_supported, "not supported: an item of a stream with a handle in it: who "
                                     "takes it would not hold the actor")
        .with_hint("give its name, and let who takes it call get_actor(), or return the handle");
}

/// The memory of a large reply goes with it, so that it is given back.
SKEIN_INLINE void replies::send(peer& to, std::uint16_t outcome, slot_id id) {
    if (driver_ != nullptr && must_relay(to, outcome, id)) return relay(to, outcome, id);
    if (scratch_.size() < limit::inline_bytes)
        return to.send(message_reply, outcome, id.value(), scratch_.bytes());
    net::frame f;
    f.kind = message_reply;
    f.flags = outcome;
    f.id = id.value();
    f.body = std::move(scratch_).take();
    to.send(std::move(f));
}

/// Tells the driver of a worker what it has to know before a reply leaves. True: the reply goes
/// through the driver, too.
SKEIN_INLINE bool replies::must_relay(peer& to, std::uint16_t outcome, slot_id id) {
    if (to.role == peer_role::here) return false;
    if (has_untold_handles()) {
        above_.tell_holds();
        told_driver();
    }
    const bool first = news_.take_next();
    if (to.role == peer_role::accepted) {
        if (first || (outcome & reply_lends) != 0) return true;
        if (!news_.has_any()) return false;
        const auto* const call =
            to.inbound.running.find(id); // that news may have been of its handles
        return call != nullptr && news_.came_after((*call)->news);
    }
    if (news_.take_busy() && to.is_open()) to.send(message_busy, 1, 0, {});
    return false;
}

SKEIN_INLINE void replies::relay(const peer& to, std::uint16_t outcome, slot_id id) {
    if (!driver_->is_open()) return;
    wire::writer body;
    relay_head{to.incarnation}.encode(body);
    body.raw(scratch_.bytes());
    net::frame f;
    f.kind = message_relay;
    f.flags = outcome;
    f.id = id.value();
    f.body = std::move(body).take();
    driver_->send(std::move(f));
}

// ---- values that are objects --------------------------------------------------------------------

/// An object that its maker holds for somebody else from the start; nothing: no room, or no store.
SKEIN_INLINE task<std::optional<objects::object_name>> make_for(
    std::shared_ptr<objects::store_client> store, const outgoing_value* value,
    objects::process_id to) {
    const auto bytes = value->stored();
    auto creating = store->create(bytes.size(), room_patience);
    auto made = co_await creating;
    if (!made) co_return std::nullopt;
    const auto name = made->name();
    std::memcpy(made->bytes().data(), bytes.data(), bytes.size());
    auto sealing = store->seal(std::move(*made), to);
    (void)co_await sealing;
    co_return name;
}

/// Its caller hears of it in any case: why it cannot have the value, if it cannot.
template <class Reply>
void reply_or_fail(replies& by, peer& to, slot_id id, Reply reply) {
    std::optional<error> why;
    try {
        reply();
    } catch (const error& e) {
        why = e;
    } catch (const std::exception& e) {
        why = error(errc::exhausted, e.what());
    }
    if (why) by.reply_failure(to, id, {std::move(*why), nullptr});
}

SKEIN_INLINE task<void> send_value(replies* by, std::shared_ptr<objects::store_client> store,
                                   std::shared_ptr<peer> to, slot_id id,
                                   std::unique_ptr<outgoing_value> value) {
    auto making = as_result(make_for(store, value.get(), objects::process_id(to->incarnation)));
    const auto name = co_await making;
    if (!name && name.error().code() == errc::cancelled) throw name.error();
    reply_or_fail(*by, *to, id, [&] {
        if (name && *name)
            by->reply_as(*to, id, reply_object, [&](wire::writer& w) { wire::encode(w, **name); });
        else
            by->reply_as(*to, id, reply_ok, [&](wire::writer& w) { value->encode(w); });
    });
}

SKEIN_INLINE void replies::send_object(std::shared_ptr<peer> to, slot_id id,
                                       std::unique_ptr<outgoing_value> value) {
    objects_.spawn(send_value(this, objects_.shared_store(), std::move(to), id, std::move(value)));
}

SKEIN_INLINE task<void> pass_on_held(replies* by, std::shared_ptr<objects::store_client> store,
                                     std::shared_ptr<peer> to, slot_id id, std::uint16_t flags,
                                     byte_buffer body, std::vector<objects::object_ptr> all) {
    auto giving = as_result(store->give(all, objects::process_id(to->incarnation)));
    const auto given = co_await giving;
    if (!given && given.error().code() == errc::cancelled) throw given.error();
    reply_or_fail(*by, *to, id, [&] {
        if (!given) throw given.error();
        by->reply_as(*to, id, flags, [&](wire::writer& w) { w.raw(body); });
    });
}

SKEIN_INLINE void replies::pass_on(std::shared_ptr<peer> to, slot_id id, std::uint16_t flags,
                                   byte_buffer body, std::vector<objects::object_ptr> all) {
    objects_.spawn(pass_on_held(this, objects_.shared_store(), std::move(to), id, flags,
                                std::move(body), std::move(all)));
}

} // namespace skein::rt::detail
