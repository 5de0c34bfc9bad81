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

/// A number that no two processes give: the incarnation of a process (drawn once for each start of
/// one, so it never returns) and a count in it. It prints as the count.
struct unique_number {
    std::uint64_t incarnation = 0, number = 0;
    friend constexpr auto operator<=>(const unique_number&, const unique_number&) = default;
};

/// A host of a cluster.
using node_id = strong_id<struct node_tag>;
/// A worker process.
using worker_id = strong_id<struct worker_tag>;
/// A task that was submitted.
using task_id = strong_id<struct task_tag>;
/// An actor: who made it, and the how manieth it is there.
using actor_id = strong_id<struct actor_tag, unique_number>;
/// A call of a remote function or method: who made it, and the how manieth it is there.
using call_id = strong_id<struct call_tag, unique_number>;
/// A stored value.
using object_id = strong_id<struct object_tag>;
/// A job, the same for all of its processes.
using job_id = strong_id<struct job_tag>;

} // namespace skein

template <>
struct std::hash<skein::unique_number> {
    std::size_t operator()(const skein::unique_number& n) const noexcept {
        return std::hash<std::uint64_t>{}(n.number * 0x9e3779b97f4a7c15 ^ n.incarnation);
    }
};

template <>
struct fmt::formatter<skein::unique_number> : fmt::formatter<std::uint64_t> {
    template <class Context>
    auto format(const skein::unique_number& n, Context& context) const {
        return fmt::formatter<std::uint64_t>::format(n.number, context);
    }
};

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
