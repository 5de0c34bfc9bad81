// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a caller may say about one call.
//
//     auto r = skein::remote<&score>.with({.cpus = 2, .retries = 5, .deadline = 200ms})(row);
//     auto s = skein::remote<&train>.with({.gpus = 1, .on = skein::label("zone=a")})(shard);
//
// A task that asks for no more than cpus goes to any worker with that many. For one that asks for gpus, memory,
// custom resources, more cpus than a worker has, or an environment, a worker is started that has exactly this; it serves further
// tasks with the same demand, and ends when there have been none for a moment.
//
// Trivially destructible on purpose: braces in an expression with co_await are safe with it on g++ 12.

#include <skein/core/time.hpp>
#include <skein/rt/failures.hpp>

#include <concepts>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace skein {

/// The .deadline of a call that may take as long as it likes.
inline constexpr duration no_deadline = duration::max();

/// A number of cpus or gpus; counts in steps of 1/10000.
struct quantity {
    template <class N>
        requires(std::integral<N> || std::floating_point<N>)
    constexpr quantity(N n) noexcept : value(static_cast<double>(n)) {} // NOLINT: as a number
    double value;
};

/// Where a task may run or an actor live; borrows its text. Made by label(), node_named() and placement groups
/// (rt/placement_group.hpp).
class location {
public:
    constexpr location() noexcept = default; ///< any
    [[nodiscard]] constexpr std::string_view text() const noexcept { return text_; }
    [[nodiscard]] constexpr bool is_any() const noexcept { return kind_ == kind::any; }
    [[nodiscard]] constexpr bool is_node() const noexcept { return kind_ == kind::node; }
    [[nodiscard]] constexpr bool is_group() const noexcept { return kind_ == kind::group; }
    /// The number of a placement group; 0: it is none, or an empty one.
    [[nodiscard]] constexpr std::uint64_t group() const noexcept { return group_; }
    /// Which of its bundles; -1: any.
    [[nodiscard]] constexpr int bundle() const noexcept { return bundle_; }

private:
    friend class placement_group;
    friend constexpr location label(std::string_view) noexcept;
    friend constexpr location node_named(std::string_view) noexcept;
    enum class kind : std::uint8_t { any, label, node, group };
    constexpr location(std::string_view text, kind what) noexcept : text_(text), kind_(what) {}
    constexpr location(std::uint64_t group, int bundle) noexcept
        : kind_(kind::group), bundle_(bundle), group_(group) {}
    std::string_view text_;
    kind kind_ = kind::any;
    int bundle_ = -1;
    std::uint64_t group_ = 0;
};
/// Nodes with this label, compared whole: "zone=a".
[[nodiscard]] constexpr location label(std::string_view text) noexcept {
    return {text, location::kind::label};
}
/// This node, by the name that `skein status` shows; on one host that of the host.
[[nodiscard]] constexpr location node_named(std::string_view name) noexcept {
    return {name, location::kind::node};
}

/// Options of one call.
struct call_options {
    quantity cpus = 1;        ///< cores a task occupies on its worker; 0: waits only, runs at once
    quantity gpus = 0;        ///< the worker sees these alone; more than one: a whole number
    std::uint64_t memory = 0; ///< bytes; counted, not enforced
    std::string_view resources{}; ///< custom ones: "ssd=1,licence=0.5"
    location on{}; ///< which nodes, or a placement group; with methods: it is where the actor is
    /// Variables of its process beside those that it inherits, one a line: "OMP_NUM_THREADS=4\nTITLE=two words".
    std::string_view env{};
    std::string_view cwd{}; ///< working directory of its process: an absolute path, where that runs
    int retries = -1; ///< times a task runs again after its worker died; -1: 3. Actors: always 0
    /// Failures after which a task runs again, too, at the end of its line; they count as .retries do.
    failures retry_on{};
    /// From now; then the ref fails with timeout and the call is cancelled. Zero or less, as what is left
    /// of a budget may be: at once, and the call is not sent.
    duration deadline = no_deadline;
    std::string_view name{}; ///< shown in errors instead of the function's name; copied at submit
};
static_assert(std::is_trivially_destructible_v<call_options>);

/// Times a task is run again when its worker dies, unless .retries says otherwise.
inline constexpr int default_task_retries = 3;

} // namespace skein
