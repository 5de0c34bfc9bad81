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

SKEIN_INLINE bool take_uses(byte_span& body, std::vector<object_use>& into,
                            std::vector<byte_span>* values) {
    constexpr std::size_t length = sizeof(std::uint32_t);
    if (body.size() < length) return false;
    const auto bytes = load_le<std::uint32_t>(body.data() + body.size() - length);
    if (bytes > body.size() - length) return false;
    const auto list = body.subspan(body.size() - length - bytes, bytes);
    if (!wire::decode(list, into)) return false;
    body = body.first(body.size() - length - bytes);
    if (values != nullptr) values->assign(into.size(), {});
    for (std::size_t i = into.size(); i-- > 0;) {
        if (into[i].comes_along == 0) continue;
        const auto size = into[i].name.bytes;
        if (size == 0 || size > body.size()) return false;
        const auto at = body.size() - static_cast<std::size_t>(size);
        if (values != nullptr) (*values)[i] = body.subspan(at);
        body = body.first(at);
    }
    return true;
}

SKEIN_INLINE void append_values(wire::writer& to, std::vector<object_use> all,
                                const std::vector<objects::reading_ptr>& values) {
    for (std::size_t i = 0; i < all.size(); ++i) {
        to.raw(values[i]->bytes());
        all[i].comes_along = 1;
    }
    append_uses(to, all);
}

} // namespace skein::rt::detail
