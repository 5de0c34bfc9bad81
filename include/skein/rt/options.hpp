// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a caller may say about one call.
//
//     auto r = skein::remote<&score>.with({.cpus = 2, .retries = 5, .deadline = 200ms})(row);
//     auto s = skein::remote<&train>.with({.gpus = 1, .on = skein::label("zone=a")})(shard);
//
// A task that asks for no more than cpus goes to any worker with that many. For one that asks for
// gpus, memory, custom resources, more cpus than a worker has, or an environment, a worker is
// started that has exactly this; it serves further tasks with the same demand, and ends when there
// have been none for a moment.
//
// Trivially destructible on purpose: braces in an expression with co_await are safe with it on g++
// 12. Its texts are borrowed until .with(), which copies them: f = remote<&score>.with({...}) may
// be kept. The struct itself may not be kept longer than the texts it names.

#include <skein/core/ids.hpp>
#include <skein/core/time.hpp>
#include <skein/rt/failures.hpp>
#include <skein/rt/option_text.hpp>

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

/// Where a task may run or an actor live; has its text in itself. Made by label(), node_named(),
/// group_named(), and from an actor_handle, a shared_actor or a placement_group; `spread` and
/// `anywhere` are two.
class location {
public:
    constexpr location() noexcept { clear(); } ///< any
    constexpr location(const location& other) noexcept { copy(other); }
    constexpr location& operator=(const location& other) noexcept {
        if (this != &other) copy(other);
        return *this;
    }
    template <class Text>
        requires(std::convertible_to<const Text&, std::string_view>)
    constexpr location(const Text&) noexcept { // NOLINT: to say this
        static_assert(std::is_void_v<Text>,
                      "skein: .on takes a place, not a text: skein::label(\"zone=a\"), "
                      "skein::node_named(\"n1\") or skein::group_named(\"ingest\")");
    }
    [[nodiscard]] constexpr std::string_view text() const noexcept { return {text_, size_}; }
    [[nodiscard]] constexpr bool is_any() const noexcept {
        return kind_ == kind::any || kind_ == kind::anywhere;
    }
    /// It was said so, which a call without `.on` does not.
    [[nodiscard]] constexpr bool is_anywhere() const noexcept { return kind_ == kind::anywhere; }
    [[nodiscard]] constexpr bool is_node() const noexcept { return kind_ == kind::node; }
    [[nodiscard]] constexpr bool is_group() const noexcept { return kind_ == kind::group; }
    /// A placement group by its name, which is text().
    [[nodiscard]] constexpr bool is_named_group() const noexcept {
        return kind_ == kind::named_group;
    }
    [[nodiscard]] constexpr bool is_actor() const noexcept { return kind_ == kind::actor; }
    [[nodiscard]] constexpr bool is_spread() const noexcept { return kind_ == kind::spread; }
    /// The number of a placement group; 0: it is none, or an empty one.
    [[nodiscard]] constexpr std::uint64_t group() const noexcept {
        return is_group() ? number_ : 0;
    }
    /// Which of its bundles; -1: any.
    [[nodiscard]] constexpr int bundle() const noexcept { return bundle_; }
    /// The actor where this is; none: it is no actor, or that of an empty handle.
    [[nodiscard]] constexpr actor_id actor() const noexcept {
        return is_actor() ? actor_id({incarnation_, number_}) : actor_id();
    }
    /// Of a placement group: tasks and actors that are made there are in it, too, if they name no
    /// place.
    [[nodiscard]] constexpr bool has_children() const noexcept { return children_; }
    [[nodiscard]] constexpr location with_children() const noexcept {
        auto copy = *this;
        copy.children_ = true;
        return copy;
    }

    /// Where this actor is.
    [[nodiscard]] static constexpr location beside(actor_id actor) noexcept {
        location made({}, kind::actor);
        made.incarnation_ = actor.value().incarnation;
        made.number_ = actor.value().number;
        return made;
    }
    /// On all nodes in turn.
    [[nodiscard]] static constexpr location over_nodes() noexcept { return {{}, kind::spread}; }
    /// Wherever there is room.
    [[nodiscard]] static constexpr location everywhere() noexcept { return {{}, kind::anywhere}; }
    /// In a placement group, by its number.
    [[nodiscard]] static constexpr location in_group(std::uint64_t group, int bundle) noexcept {
        location made({}, kind::group);
        made.number_ = group;
        made.bundle_ = bundle;
        return made;
    }

private:
    friend constexpr location label(std::string_view) noexcept;
    friend constexpr location node_named(std::string_view) noexcept;
    friend constexpr location group_named(std::string_view, int) noexcept;
    enum class kind : std::uint8_t {
        any,
        anywhere,
        label,
        node,
        group,
        named_group,
        actor,
        spread
    };
    /// Of a label or name; a longer one is cut there, and is refused where it is used.
    static constexpr std::size_t most_text = 257;
    constexpr location(std::string_view text, kind what) noexcept
        : size_(static_cast<std::uint16_t>(text.size() < most_text ? text.size() : most_text)),
          kind_(what) {
        clear();
        for (std::size_t i = 0; i < size_; ++i) text_[i] = text[i];
    }
    /// What is constant has no byte without a value; elsewhere those behind the text have none.
    constexpr void clear() noexcept {
        if (std::is_constant_evaluated())
            for (char& c : text_) c = 0;
    }
    constexpr void copy(const location& other) noexcept {
        clear();
        size_ = other.size_;
        kind_ = other.kind_;
        children_ = other.children_;
        bundle_ = other.bundle_;
        number_ = other.number_;
        incarnation_ = other.incarnation_;
        for (std::size_t i = 0; i < size_; ++i) text_[i] = other.text_[i];
    }
    std::uint16_t size_ = 0;
    kind kind_ = kind::any;
    bool children_ = false;
    int bundle_ = -1;
    std::uint64_t number_ = 0;      ///< of a group or an actor
    std::uint64_t incarnation_ = 0; ///< of an actor's number
    char text_[most_text];          // NOLINT: as far as size_ says
};
/// Nodes with this label, compared whole: "zone=a".
[[nodiscard]] constexpr location label(std::string_view text) noexcept {
    return {text, location::kind::label};
}
/// This node, by the name that `skein status` shows; on one host that of the host.
[[nodiscard]] constexpr location node_named(std::string_view name) noexcept {
    return {name, location::kind::node};
}

/// The placement group of that name, in any process of the program; one of its bundles, counted
/// from 0, or any.
[[nodiscard]] constexpr location group_named(std::string_view name, int bundle = -1) noexcept {
    location made(name, location::kind::named_group);
    made.bundle_ = bundle;
    return made;
}

/// Wherever there is room: as if nothing were said, but not in the placement group of the call that
/// makes this one.
inline constexpr location anywhere = location::everywhere();

/// The nodes in turn, each time the next one that has room: evenly, as well as that can be said
/// beforehand. On one host it says nothing.
inline constexpr location spread = location::over_nodes();

/// Options of one call.
struct call_options {
    quantity cpus = 1;        ///< cores a task occupies on its worker; 0: waits only, runs at once
    quantity gpus = 0;        ///< the worker sees these alone; more than one: a whole number
    std::uint64_t memory = 0; ///< bytes; counted, not enforced
    option_text resources{};  ///< custom ones: "ssd=1,licence=0.5"
    /// Which nodes: by label or name, all in turn (spread), that of an actor; or a placement group.
    /// With methods: it is where the actor is.
    location on{};
    /// Variables of its process beside those that it inherits, one a line:
    /// "OMP_NUM_THREADS=4\nTITLE=two words".
    option_text env{};
    option_text cwd{}; ///< working directory of its process: an absolute path, where that runs
    int retries = -1;  ///< times a task runs again after its worker died; -1: 3. Actors: always 0
    /// Failures after which a task runs again, too, at the end of its line; they count as .retries
    /// do.
    failures retry_on{};
    /// From now; then the ref fails with timeout and the call is cancelled. Zero or less, as what
    /// is left of a budget may be: at once, and the call is not sent.
    time_span deadline = no_deadline;
    option_text name{}; ///< shown in errors instead of the function's name
};
static_assert(std::is_trivially_destructible_v<call_options>);

/// Times a task is run again when its worker dies, unless .retries says otherwise.
inline constexpr int default_task_retries = 3;

} // namespace skein
