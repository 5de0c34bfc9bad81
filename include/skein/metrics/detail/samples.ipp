// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/metrics/samples.hpp>.

#include <skein/core/error.hpp>

#include <fmt/core.h>

namespace skein::metrics {

SKEIN_INLINE array_view::array_view(const void* data, element type,
                                    std::span<const std::size_t> shape)
    : data_(data), dimensions_(shape.size()), size_(1), type_(type), given_(true) {
    if (shape.size() > most_dimensions)
        throw error(errc::not_supported,
                    fmt::format("not supported: an array of {} dimensions", shape.size()))
            .with_hint(fmt::format("metrics take up to {}: flatten it", most_dimensions));
    for (std::size_t d = 0; d < shape.size(); ++d) {
        shape_[d] = shape[d];
        size_ *= shape[d];
    }
}

SKEIN_INLINE std::string array_view::text() const {
    if (!given_) return "nothing";
    std::string out(to_string(type_));
    out += " [";
    for (std::size_t d = 0; d < dimensions_; ++d)
        out += fmt::format("{}{}", d == 0 ? "" : ", ", shape_[d]);
    return out + "]";
}

} // namespace skein::metrics
