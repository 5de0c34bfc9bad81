// SPDX-License-Identifier: Apache-2.0
#pragma once
// placement_group: room for several tasks or actors that is taken together or not at all.
//
//     skein::placement_group group({"cpu=1", "cpu=1,gpu=1"}, skein::group_strategy::spread);
//     co_await group.ready();                                  // all bundles have places
//     auto r = skein::remote<&load>.with({.on = group.bundle(0)})(7);
//     auto a = co_await skein::actor<model>.with({.cpus = 1, .gpus = 1, .on = group.bundle(1)})();
//     co_await group.remove();                                 // or with the last handle
//
// It is asked for when it is made; tasks and actors may be put into it at once, and wait for it.
// What a task asks for comes out of a bundle, beside what others hold of that. When a node is lost,
// the bundles that were there get places again, all of them together, and tasks run again there.
//
// The room is given back when nobody holds the group any more: no handle, no task that is to run in
// it, no actor that lives in it. Tasks and actors make groups as the program does. A handle is an
// argument like others; who gets it holds the group, too. One with a name is found by it in any
// process:
//
//     // in the driver, say, which keeps it
//     skein::placement_group group({"cpu=1"}, {.name = "ingest"});
//     // in a worker, or the driver
//     auto r = skein::remote<&load>.with({.on = skein::group_named("ingest")})(7);
//     // the same, as a handle
//     auto same = co_await skein::get_placement_group("ingest");

#include <skein/rt/runtime.hpp> // before its parts

#include <skein/core/task.hpp>
#include <skein/rt/detail/group_handles.hpp>
#include <skein/rt/detail/groups_state.hpp>
#include <skein/rt/options.hpp>
#include <skein/sched/scheduler.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace skein {

using sched::group_strategy;

/// What a program may say about one placement group.
struct placement_options {
    sched::group_strategy strategy = sched::group_strategy::pack;
    option_text name{}; ///< unique among the groups of the program; copied; at most 255 bytes
    /// Gives the group that has the name already, if there is one; its bundles are those that it
    /// was made with.
    bool get_if_exists = false;
};
static_assert(std::is_trivially_destructible_v<placement_options>);

/// A counted handle to a placement group; copyable, one pointer wide.
class placement_group {
public:
    placement_group() noexcept = default;
    /// Asks for room for all of these, "cpu=1,gpu=1,memory=4GiB,ssd=1" each; 1 to 4096. What is
    /// wrong with them, and that they can never be held, is told by ready() and by the tasks that
    /// are put into it.
    explicit placement_group(std::vector<std::string> bundles,
                             sched::group_strategy how = sched::group_strategy::pack)
        : placement_group(std::move(bundles), placement_options{how, {}, false}) {}
    /// The same with a name. One that is taken is told by ready(), too: already_exists.
    placement_group(std::vector<std::string> bundles, placement_options how)
        : state_(rt::runtime::current().groups().make(bundles, how.strategy, how.name,
                                                      how.get_if_exists)) {}

    /// False if default-constructed or moved from.
    explicit operator bool() const noexcept { return static_cast<bool>(state_); }
    [[nodiscard]] std::size_t size() const noexcept { return state_ ? state_->bundles.size() : 0; }
    /// All bundles have places now; on a worker: as it has heard last.
    [[nodiscard]] bool is_placed() const noexcept { return state_ && state_->placed; }

    /// Suspends until all bundles have places; at once if they have. On one host also until the
    /// cores that they take are free.
    ///   errors  invalid_argument (a bundle that is no demand), exhausted (this host could never
    ///           hold them; on a cluster it waits for nodes that can), closed (it was removed, or
    ///           the program ends)
    [[nodiscard]] task<void> ready() const { return rt::detail::group_is_ready(state_); }
    /// Ends it for all who hold it: tasks that wait for it fail, those that run go on to their end,
    /// its actors are killed. Suspends until nothing of it is left, but not in a task or an actor
    /// of the group itself.
    ///   errors  cancelled (it ends all the same)
    [[nodiscard]] task<void> remove() const { return rt::detail::remove_group(state_); }

    /// For `.on`: this bundle of it, counted from 0.
    [[nodiscard]] location bundle(std::size_t index) const noexcept {
        constexpr std::size_t most = 1'000'000; // is none, too
        return location::in_group(number(), static_cast<int>(index < most ? index : most));
    }
    /// For `.on`: whichever of its bundles has room.
    operator location() const noexcept {
        return location::in_group(number(), -1);
    } // NOLINT: reads as it is meant
    /// The same; tasks and actors that are made there are in the group, too, if they name no place.
    [[nodiscard]] location with_children() const noexcept {
        return location(*this).with_children();
    }
    friend bool operator==(const placement_group&, const placement_group&) = default;

private:
    friend task<placement_group> get_placement_group(std::string_view name);
    friend wire::codec<placement_group>;
    explicit placement_group(counted_ptr<rt::detail::group_state> state) noexcept
        : state_(std::move(state)) {}
    [[nodiscard]] static task<placement_group> from(
        task<counted_ptr<rt::detail::group_state>> found) {
        co_return placement_group(co_await std::move(found));
    }
    [[nodiscard]] std::uint64_t number() const noexcept { return state_ ? state_->number : 0; }
    counted_ptr<rt::detail::group_state> state_;
};

/// The placement group of that name, in any process of the program; who gets it holds it.
///   errors  not_found (the text lists some names that there are), closed (the program ends)
[[nodiscard]] inline task<placement_group> get_placement_group(std::string_view name) {
    return placement_group::from(rt::runtime::current().groups().look_up(std::string(name)));
}

} // namespace skein

/// How a handle travels: in arguments of calls.
template <>
struct skein::wire::codec<skein::placement_group> {
    static constexpr const char* schema = "placement group";
    static void encode(writer& to, const skein::placement_group& g) {
        skein::rt::detail::encode_group(to, g.state_);
    }
    static skein::result<void> decode(reader& from, skein::placement_group& into) {
        return skein::rt::detail::decode_group(from, into.state_);
    }
};
