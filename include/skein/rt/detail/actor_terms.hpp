// SPDX-License-Identifier: Apache-2.0
#pragma once
// What travels of an actor's options: in front of a constructor's arguments, if any is set.

#include <skein/core/bytes.hpp>
#include <skein/core/ids.hpp>
#include <skein/wire/reader.hpp>
#include <skein/wire/writer.hpp>

#include <cstdint>
#include <string>

namespace skein::rt::detail {

/// A multiple of 16 bytes, so that what follows stays aligned. A saved state follows the arguments.
struct actor_terms {
    std::int32_t restarts = 0;
    std::uint32_t snapshot_every = 1, max_concurrency = 0, max_pending = 0;
    std::uint16_t call_retries = 0;
    bool get_if_exists = false;
    bool has_snapshot = false;
    bool is_detached = false; ///< it needs nobody who holds it
    std::uint64_t snapshot_bytes = 0;
    std::string name;

    static constexpr std::size_t longest_name = 255;

    void encode(wire::writer& to) const {
        to.fixed(restarts);
        to.fixed(snapshot_every);
        to.fixed(max_concurrency);
        to.fixed(max_pending);
        to.fixed(call_retries);
        to.fixed(static_cast<std::uint8_t>((get_if_exists ? 1 : 0) | (has_snapshot ? 2 : 0) |
                                           (is_detached ? 4 : 0)));
        to.fixed(static_cast<std::uint8_t>(name.size()));
        to.fixed(std::uint32_t{0});
        to.fixed(snapshot_bytes);
        to.raw(as_bytes(name));
        for (auto rest = name.size(); rest % 16 != 0; ++rest) to.fixed(std::uint8_t{0});
    }
    /// False if the bytes are no terms.
    bool decode(wire::reader& from) {
        std::uint8_t flags = 0, length = 0, padding = 0;
        std::uint32_t zero = 0;
        byte_span text;
        if (!from.fixed(restarts) || !from.fixed(snapshot_every) || !from.fixed(max_concurrency) ||
            !from.fixed(max_pending) || !from.fixed(call_retries) || !from.fixed(flags) ||
            !from.fixed(length) || !from.fixed(zero) || !from.fixed(snapshot_bytes) ||
            !from.raw(length, text))
            return false;
        for (std::size_t rest = length; rest % 16 != 0; ++rest)
            if (!from.fixed(padding) || padding != 0) return false;
        get_if_exists = (flags & 1) != 0;
        has_snapshot = (flags & 2) != 0;
        is_detached = (flags & 4) != 0;
        name = skein::to_string(text); // rt has others
        return flags < 8 && zero == 0 && restarts >= -1 && snapshot_every > 0 &&
               snapshot_bytes <= from.remaining() && (has_snapshot || snapshot_bytes == 0);
    }
};

/// The number of an actor in a message.
inline void put_actor(wire::writer& to, actor_id id) {
    to.fixed(id.value().incarnation);
    to.fixed(id.value().number);
}
[[nodiscard]] inline bool get_actor_id(wire::reader& from, actor_id& into) {
    unique_number id;
    if (!from.fixed(id.incarnation) || !from.fixed(id.number)) return false;
    into = actor_id(id);
    return true;
}

} // namespace skein::rt::detail
