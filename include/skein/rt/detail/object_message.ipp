// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of rt/detail/object_message.hpp.

#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <limits>

namespace skein::rt::detail {

SKEIN_INLINE void append_uses(wire::writer& to, const std::vector<object_use>& all) {
    const auto list = wire::encode(all);
    to.raw(list);
    to.fixed(static_cast<std::uint32_t>(list.size()));
}

SKEIN_INLINE bool take_uses(byte_span& body, std::vector<object_use>& into) {
    constexpr std::size_t length = sizeof(std::uint32_t);
    if (body.size() < length) return false;
    const auto bytes = load_le<std::uint32_t>(body.data() + body.size() - length);
    if (bytes > body.size() - length) return false;
    const auto list = body.subspan(body.size() - length - bytes, bytes);
    if (!wire::decode(list, into)) return false;
    body = body.first(body.size() - length - bytes);
    return true;
}

} // namespace skein::rt::detail
