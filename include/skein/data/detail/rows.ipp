// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/data/detail/rows.hpp>.

#include <fmt/format.h>

namespace skein::data::detail {

SKEIN_INLINE std::string text_of(const cell& shape) {
    static constexpr const char* names[] = {"uint8", "int8",    "int16",   "int32",
                                            "int64", "float32", "float64", "bool"};
    std::string out = names[static_cast<std::size_t>(shape.type)];
    if (shape.rank == 0) return out;
    for (int i = 0; i < shape.rank; ++i)
        out += fmt::format("{}{}", i == 0 ? "[" : ", ", shape.dims[std::size_t(i)]);
    return out + "]";
}

SKEIN_INLINE const std::byte* read_values(wire::reader& from, std::uint64_t bytes) {
    byte_span view;
    if (bytes > from.remaining() || !from.raw(static_cast<std::size_t>(bytes), view)) {
        (void)from.fail(errc::malformed, "a field that is longer than its message");
        return nullptr;
    }
    auto* const kept = arena::current().allocate(view.size() + 1); // never null, empty ones too
    if (!view.empty()) std::memcpy(kept, view.data(), view.size());
    return kept;
}

} // namespace skein::data::detail
