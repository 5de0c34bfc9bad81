// SPDX-License-Identifier: Apache-2.0
#pragma once
// Names of types and functions as people write them, for messages.
//
//     type_name(typeid(e))            // "std::runtime_error"

#include <skein/core/config.hpp>

#include <string>
#include <typeinfo>

namespace skein {

/// The name behind a mangled one; a text that is no mangled name comes back as it is.
[[nodiscard]] std::string readable_name(const char* mangled);

/// The name of a type as people write it.
[[nodiscard]] inline std::string type_name(const std::type_info& type) {
    return readable_name(type.name());
}

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/core/detail/type_name.ipp>
#endif
