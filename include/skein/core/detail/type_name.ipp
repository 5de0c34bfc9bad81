// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/core/type_name.hpp>.

#include <cstdlib>
#include <memory>

#include <cxxabi.h>

namespace skein {

SKEIN_INLINE std::string readable_name(const char* mangled) {
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> text(
        abi::__cxa_demangle(mangled, nullptr, nullptr, &status), &std::free);
    return status == 0 ? std::string(text.get()) : std::string(mangled);
}

} // namespace skein
