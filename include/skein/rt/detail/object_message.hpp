// SPDX-License-Identifier: Apache-2.0
#pragma once
// Objects in the messages of calls.
//
//     call with objects_bit      behind the arguments: which objects they name, or come as
//     reply with reply_object    the body is the name of an object, which is the value
//     reply with reply_refs      behind the value: which objects its refs name
//
// Where two stores do not reach each other the bytes come along: behind the name in a reply_object,
// else in front of the list. For a call they are asked for (message_values_wanted).
//
// Who sends a call holds its objects until the call has ended; who gets one claims them before it
// runs. Who sends a reply has the store hold its objects for who gets it, and then lets go.

#include <skein/core/bytes.hpp>
#include <skein/objects/object.hpp>
#include <skein/objects/object_name.hpp>
#include <skein/wire/writer.hpp>

#include <cstdint>
#include <vector>

namespace skein::rt::detail {

/// An object in a call.
struct object_use {
    objects::object_name name;
    std::uint32_t place = 0;       ///< the argument that it is, from 0 on; or one of those below
    std::uint32_t comes_along = 0; ///< 1: its bytes stand in front of the list
};
/// A ref or view somewhere in the arguments names it.
inline constexpr std::uint32_t named_inside = 0xffffffff;
/// It is all the arguments, as they would stand in the message.
inline constexpr std::uint32_t all_arguments = 0xfffffffe;

/// Behind the end of a body.
void append_uses(wire::writer& to, const std::vector<object_use>& all);
/// Takes them from the end of a body, which is shorter then. False: they cannot be read.
///   values  the bytes of those that come along, in the same order; of others nothing
[[nodiscard]] bool take_uses(byte_span& body, std::vector<object_use>& into,
                             std::vector<byte_span>* values = nullptr);
/// Behind the end of a body: their bytes, and what they are. One for each use.
void append_values(wire::writer& to, std::vector<object_use> all,
                   const std::vector<objects::reading_ptr>& values);

/// In the stead of a reference in a message: what it is.
enum class ref_tag : std::uint8_t {
    none = 0,    ///< an empty ref
    value = 1,   ///< the value follows
    failure = 2, ///< the call has failed: why follows
    object = 3,  ///< the name of an object follows
};

} // namespace skein::rt::detail

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/object_message.ipp>
#endif
