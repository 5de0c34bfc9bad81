// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of rt/detail/ref_codec.hpp.

#include <skein/objects/store_client.hpp>
#include <skein/rt/detail/call_rarities.hpp>
#include <skein/rt/detail/message.hpp>
#include <skein/rt/detail/object_traffic.hpp>
#include <skein/rt/detail/replies.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <memory>

#include <fmt/format.h>

namespace skein::rt::detail {

SKEIN_INLINE void note_pending(wire::writer& to, call_base& call) {
    auto* const collected = pending_refs::current();
    if (collected == nullptr)
        throw error(
            errc::not_supported,
            "not supported: a ref whose call has no outcome yet, in a result or a saved state")
            .with_hint("co_await it first, or give its value");
    collected->all.emplace_back(&call);
    to.fixed(ref_tag::none);
}

SKEIN_INLINE void encode_ref_failure(wire::writer& to, const failure& why) {
    to.fixed(ref_tag::failure);
    wire::writer text;
    encode_failure(text, why);
    const auto bytes = std::move(text).take();
    wire::encode(to, bytes);
}

/// What takes part in a call has the call hold it.
SKEIN_INLINE bool note_use(const objects::object_ptr& object, std::uint32_t place) {
    auto* const call = runtime::encoding();
    if (call == nullptr || call->owner == nullptr || !call->owner->answers().objects().has_store())
        return false;
    // What it takes to make an actor again is kept for longer than its objects.
    if (call->kind == call_kind::create) return false;
    call->extra().objects.push_back({object->name(), place, 0});
    call->keep(std::const_pointer_cast<objects::object>(object));
    return true;
}

SKEIN_INLINE bool place_object(const objects::object_ptr& object, std::uint32_t place) {
    return note_use(object, place);
}

SKEIN_INLINE bool encode_object(wire::writer& to, const objects::object_ptr& object) {
    if (pending_refs::current() != nullptr) { // nobody reads it
        to.fixed(ref_tag::none);
        return true;
    }
    if (!note_use(object, named_inside)) {
        auto* const by = runtime::replying();
        if (runtime::encoding() != nullptr || by == nullptr || !by->answers().objects().has_store())
            return false;
        by->answers().lend_object(object);
    }
    to.fixed(ref_tag::object);
    wire::encode(to, object->name());
    return true;
}

SKEIN_INLINE bool decode_ref_head(wire::reader& from, ref_tag& what, failure& why,
                                  objects::object_ptr& object) {
    if (!from.fixed(what)) return false;
    if (what == ref_tag::none || what == ref_tag::value) return true;
    if (what == ref_tag::failure) {
        byte_buffer bytes;
        if (!wire::decode(from, bytes)) return false;
        why = decode_failure(bytes);
        return true;
    }
    objects::object_name name;
    if (what != ref_tag::object || !wire::decode(from, name))
        return from.fail(errc::malformed, "neither a ref nor a view");
    auto* const here = runtime::executing();
    if (here == nullptr || !here->answers().objects().has_store())
        return from.fail(
            error(errc::not_supported,
                  "not supported: a ref of an object that is decoded outside of a call, or on "
                  "another host than the object's")
                .with_hint("refs travel in the arguments and results of calls"));
    object = here->answers().objects().store().find(name.key());
    if (object && object->name() == name && object->is_here()) return true;
    return from.fail(error(errc::not_found, "an object is named that was not sent along"));
}

SKEIN_INLINE objects::reading_ptr bytes_of(const objects::object_ptr& object) {
    if (auto now = objects::read_now(object)) return now;
    throw error(errc::malformed, fmt::format("a view of object {}, which nobody has read",
                                             object->name().number.value()));
}

SKEIN_INLINE void refuse_shared_value() {
    throw error(errc::invalid_argument,
                "the value of this ref has views in this process, and cannot be copied")
        .with_hint("co_await skein::view(ref) once more");
}

} // namespace skein::rt::detail
