// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/core/type_name.hpp>.

#include <cstdlib>
#include <memory>
#include <string_view>

#include <cxxabi.h>

namespace skein {

SKEIN_INLINE std::string readable_name(const char* mangled) {
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> text(
        abi::__cxa_demangle(mangled, nullptr, nullptr, &status), &std::free);
    if (status != 0) return mangled;
    // The compiler's mark of functions that have to do with std::string says nothing to people.
    constexpr std::string_view mark = "[abi:cxx11]";
    std::string name(text.get());
    for (auto at = name.find(mark); at != name.npos; at = name.find(mark, at))
        name.erase(at, mark.size());
    return name;
}

} // namespace skein
