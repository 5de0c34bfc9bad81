// SPDX-License-Identifier: Apache-2.0
#pragma once
// Strong ids: a node id is not an actor id, though both are 64 bits.
//
// An id compares, hashes and prints as its value, and nothing else: no arithmetic, no conversion.
//
//     struct blob_tag;
//     using blob_id = skein::strong_id<blob_tag>;

#include <skein/core/config.hpp>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

#include <fmt/core.h>

namespace skein {

/// A value of Rep that is only comparable with ids of the same Tag. Zero is "none".
template <class Tag, class Rep = std::uint64_t>
class strong_id {
public:
    using tag_type = Tag;
    using rep = Rep;

    constexpr strong_id() noexcept = default;
    constexpr explicit strong_id(Rep value) noexcept : value_(value) {}

    [[nodiscard]] constexpr Rep value() const noexcept { return value_; }
    /// True unless this is the "none" id.
    constexpr explicit operator bool() const noexcept { return value_ != Rep{}; }
    friend constexpr auto operator<=>(const strong_id&, const strong_id&) = default;

private:
    Rep value_{};
};

/// A process of a cluster.
using node_id = strong_id<struct node_tag>;
/// A worker process.
using worker_id = strong_id<struct worker_tag>;
/// A task that was submitted.
using task_id = strong_id<struct task_tag>;
/// An actor, unique in the process that made it.
using actor_id = strong_id<struct actor_tag>;
/// A call on its way, unique in the process that made it.
using call_id = strong_id<struct call_tag>;
/// A stored value.
using object_id = strong_id<struct object_tag>;
/// A job, the same for all of its processes.
using job_id = strong_id<struct job_tag>;

} // namespace skein

template <class Tag, class Rep>
struct std::hash<skein::strong_id<Tag, Rep>> {
    std::size_t operator()(const skein::strong_id<Tag, Rep>& id) const noexcept {
        return std::hash<Rep>{}(id.value());
    }
};

template <class Tag, class Rep>
struct fmt::formatter<skein::strong_id<Tag, Rep>> : fmt::formatter<Rep> {
    template <class Context>
    auto format(const skein::strong_id<Tag, Rep>& id, Context& context) const {
        return fmt::formatter<Rep>::format(id.value(), context);
    }
};
