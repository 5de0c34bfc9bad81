// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which actor a message is about, and how messages to people name one.

#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/core/ids.hpp>
#include <skein/core/type_name.hpp>
#include <skein/rt/detail/actor_terms.hpp>
#include <skein/wire/reader.hpp>

#include <string>
#include <string_view>
#include <typeinfo>

#include <fmt/format.h>

namespace skein::rt::detail {

/// The actor that a message of its number alone is about.
[[nodiscard]] inline actor_id actor_of(byte_span body, const std::string& who) {
    wire::reader in(body);
    actor_id id;
    if (!get_actor_id(in, id) || !in.finish())
        throw error(errc::malformed,
                    fmt::format("a message about an actor that cannot be read from {}", who));
    return id;
}

/// An actor by its name if that is known: actor "table"; else by its class: actor counter#7.
[[nodiscard]] inline std::string actor_title(actor_id id, std::string_view name,
                                             const std::type_info* type) {
    if (!name.empty()) return fmt::format("actor \"{}\"", name);
    if (type == nullptr) return fmt::format("actor {}", id);
    return fmt::format("actor {}#{}", type_name(*type), id);
}

} // namespace skein::rt::detail
