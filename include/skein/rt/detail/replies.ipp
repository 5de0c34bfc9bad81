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
        above_.send_along(above_.keep_lent(lent_));
        return send(to, reply_ok, id);
    }
    lending_reply::append(scratch_, lent_.known());
    send(to, reply_lends, id);
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

SKEIN_INLINE void replies::send(peer& to, std::uint16_t outcome, slot_id id) {
    send_by(way_of(to, outcome, id), to, outcome, id);
}

/// The memory of a large reply goes with it, so that it is given back.
SKEIN_INLINE void replies::send_by(way how, peer& to, std::uint16_t outcome, slot_id id) {
    if (how == way::by_driver) return relay(to, outcome, id);
    if (driver_ != nullptr && to.role == peer_role::program && news_.take_busy() && to.is_open())
        to.send(message_busy, 1, 0, {});
    if (scratch_.size() < limit::inline_bytes)
        return to.send(message_reply, outcome, id.value(), scratch_.bytes());
    net::frame f;
    f.kind = message_reply;
    f.flags = outcome;
    f.id = id.value();
    f.body = std::move(scratch_).take();
    to.send(std::move(f));
}

/// Of a call that ends now. Tells the driver of a worker what it has to know before the reply leaves.
SKEIN_INLINE replies::way replies::way_of(peer& to, std::uint16_t outcome, slot_id id) {
    if (driver_ == nullptr || to.role == peer_role::here) return way::straight;
    if (has_untold_handles()) {
        above_.tell_holds();
        told_driver();
    }
    const bool first = news_.take_next();
    if (to.role != peer_role::accepted) return way::straight;
    if (first || (outcome & reply_lends) != 0) return way::by_driver;
    if (!news_.has_any()) return way::straight;
    const auto* const call = to.inbound.running.find(id); // news may have been of its handles
    return call != nullptr && news_.came_after((*call)->news) ? way::by_driver : way::straight;
}

SKEIN_INLINE void replies::relay(const peer& to, std::uint16_t outcome, slot_id id) {
    if (driver_ == nullptr || !driver_->is_open()) return;
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

SKEIN_INLINE void replies::lost_store(const error& why) {
    if (driver_ == nullptr) return;
    driver_->abort(
        error(why.code(), "the store of this worker's node is lost").with_cause(why.what()));
}

// ---- replies that wait for the store ------------------------------------------------------------

/// Whose outcome, and which way it takes.
struct replies::later_reply {
    later_reply(replies& out, std::shared_ptr<peer> whose, slot_id slot, std::uint16_t outcome)
        : by(&out), to(std::move(whose)), id(slot), flags(outcome),
          how(out.way_of(*to, outcome, slot)), mine(out.objects_.leaving()) {}

    replies* by;
    std::shared_ptr<peer> to;
    slot_id id;
    std::uint16_t flags;
    way how;
    departures::place mine;
    kept_actors kept; ///< of a caller in this process

    [[nodiscard]] objects::process_id caller() const {
        return objects::process_id(to->incarnation);
    }
    void send(std::uint16_t outcome, encoder encode) {
        if (!to->is_open()) return;
        by->scratch_.clear();
        encode(by->scratch_);
        if (!kept.empty()) by->above_.send_along(std::move(kept));
        by->send_by(how, *to, outcome, id);
    }
    void fail(const failure& why) {
        send(reply_failed, [&](wire::writer& w) { encode_failure(w, why); });
    }
    /// Its caller hears of it in any case: why it cannot have the value, if it cannot.
    template <class Reply>
    void reply_or_fail(Reply reply) {
        std::optional<error> why;
        try {
            reply();
        } catch (const error& e) {
            why = e;
        } catch (const std::exception& e) {
            why = error(errc::exhausted, e.what());
        }
        if (why) fail({std::move(*why), nullptr});
    }

    static task<void> with_value(later_reply self, std::unique_ptr<outgoing_value> value) {
        auto& objects = self.by->objects_;
        auto reaching = objects.reach(self.to->store);
        std::optional<objects::object_name> made;
        if (co_await reaching) {
            auto making = as_result(objects.make_for(self.caller(), value->stored()));
            const auto name = co_await making;
            if (!name && name.error().code() == errc::cancelled) throw name.error();
            if (name) made = *name;
        }
        self.reply_or_fail([&] {
            if (made)
                self.send(reply_object, [&](wire::writer& w) { wire::encode(w, *made); });
            else
                self.send(reply_ok, [&](wire::writer& w) { value->encode(w); });
        });
    }
    static task<void> with_refs(later_reply self, byte_buffer body,
                                std::vector<objects::object_ptr> all) {
        auto& objects = self.by->objects_;
        auto giving = as_result(objects.give(all, self.caller(), self.to->store));
        const auto given = co_await giving;
        if (!given && given.error().code() == errc::cancelled) throw given.error();
        std::optional<error> why;
        if (given && !*given) {
            auto packing = as_result(with_values(&objects, self.flags, std::move(body), all));
            auto packed = co_await packing;
            if (!packed && packed.error().code() == errc::cancelled) throw packed.error();
            if (packed)
                body = std::move(*packed);
            else
                why = packed.error();
        }
        self.reply_or_fail([&] {
            if (why) throw *why;
            if (!given) throw given.error();
            if (*given && self.flags != reply_object) body = without_values(std::move(body));
            self.send(self.flags, [&](wire::writer& w) { w.raw(body); });
        });
    }
    /// Of a reply that is passed on as it came: who gets it holds its objects, and takes no bytes.
    static byte_buffer without_values(byte_buffer body) {
        std::vector<object_use> uses;
        byte_span value = body;
        if (!take_uses(value, uses))
            throw error(errc::malformed, "a reply whose objects cannot be read");
        bool have_come = false;
        for (auto& one : uses) have_come |= std::exchange(one.comes_along, 0) != 0;
        if (!have_come) return body;
        wire::writer out;
        out.raw(value);
        append_uses(out, uses);
        return std::move(out).take();
    }
    /// The same reply, with the bytes of its objects in it.
    static task<byte_buffer> with_values(object_traffic* objects, std::uint16_t flags,
                                         byte_buffer body, std::vector<objects::object_ptr> all) {
        std::vector<object_use> uses;
        byte_span value = body;
        if (flags == reply_object)
            uses.push_back({all.front()->name(), named_inside, 0});
        else if (!take_uses(value, uses) || uses.size() != all.size())
            throw error(errc::malformed, "a reply whose objects cannot be read");
        auto reading = objects->store().read(all);
        const auto got = co_await reading;
        wire::writer out;
        if (flags == reply_object) {
            wire::encode(out, all.front()->name());
            out.raw(got.front()->bytes());
        } else {
            out.raw(value);
            append_values(out, std::move(uses), got);
        }
        co_return std::move(out).take();
    }
};

/// There are refs of objects in the value: who gets it holds them first.
SKEIN_INLINE void replies::reply_with_objects(peer& to, slot_id id) {
    auto all = std::exchange(lent_objects_, {});
    std::uint16_t flags = reply_refs;
    kept_actors kept;
    if (!lent_.empty()) {
        if (to.role == peer_role::here) {
            kept = above_.keep_lent(lent_);
        } else {
            lending_reply::append(scratch_, lent_.known());
            flags |= reply_lends;
        }
    }
    std::vector<object_use> uses;
    for (const auto& one : all) uses.push_back({one->name(), named_inside, 0});
    append_uses(scratch_, uses);
    auto body = std::move(scratch_).take();
    later_reply mine(*this, to.shared_from_this(), id, flags);
    mine.kept = std::move(kept);
    objects_.spawn(later_reply::with_refs(std::move(mine), std::move(body), std::move(all)));
}

SKEIN_INLINE void replies::send_object(std::shared_ptr<peer> to, slot_id id,
                                       std::unique_ptr<outgoing_value> value) {
    later_reply mine(*this, std::move(to), id, reply_object);
    objects_.spawn(later_reply::with_value(std::move(mine), std::move(value)));
}

SKEIN_INLINE void replies::pass_on(std::shared_ptr<peer> to, slot_id id, std::uint16_t flags,
                                   byte_buffer body, std::vector<objects::object_ptr> all) {
    later_reply mine(*this, std::move(to), id, flags);
    objects_.spawn(later_reply::with_refs(std::move(mine), std::move(body), std::move(all)));
}

} // namespace skein::rt::detail
