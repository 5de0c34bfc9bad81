// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a program may say about one actor when it makes it.
//
//     auto table = co_await skein::actor<counts>.with({.restarts = 3, .name = "table"})(10);
//     auto same = co_await skein::get_actor<counts>("table");      // in any process of the program
//
// With .restarts the actor is made again on another worker when its own dies. A type that has
// save() and load() gets its state back, as it was before the last call that was answered:
//
//     struct counts {
//         std::map<std::string, int> of;
//         int add(std::string word) { return ++of[word]; }
//         auto save() const { return of; }
//         void load(std::map<std::string, int> saved) { of = std::move(saved); }
//     };
//
// What an actor asks for it holds until it has ended, in a worker process of its own that ends with
// it:
//
//     auto model = co_await skein::actor<server>.with({.gpus = 1, .restarts = 3})(weights);
//
// A detached actor lives on when its program has ended, in a namespace of the cluster, until it is
// killed or leaves:
//
//     auto make = skein::actor<counts>.with({.name = "table", .space = "prod", .detached = true});
//     auto t = co_await make(10);
//     // in another program
//     auto same = co_await skein::get_actor<counts>("table", {.space = "prod"});
//
// Trivially destructible on purpose, as call_options are; .with() copies its texts.

#include <skein/rt/options.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <cstdint>
#include <string_view>
#include <type_traits>

namespace skein {

/// Options of one actor.
struct actor_options {
    quantity cpus = 0; ///< cores that it holds; with nothing at all it shares a worker with others
    quantity gpus = 0; ///< its process sees these alone; more than one: a whole number
    std::uint64_t memory = 0; ///< bytes; counted, not enforced
    option_text resources{};  ///< custom ones: "ssd=1,licence=0.5"
    location
        /// where it lives, see call_options; alone: in a process of its own that holds nothing
        on{};
    option_text env{}; ///< variables of its process, and its folder: see call_options
    option_text cwd{};
    int restarts = 0; ///< times it is made again after its worker died; -1: for ever
    /// With restarts: times a call that was under way is sent again. 0: it fails with worker_lost;
    /// else it may run more than once.
    int call_retries = 0;
    int snapshot_every = 1; ///< a restorable actor is saved after so many calls
    int max_pending = 0;    ///< calls of one process without an outcome; one more fails; 0: any
    /// Coroutine methods under way at a time, of those that are in no method_group; 0: any.
    int max_concurrency = 0;
    option_text name{};         ///< unique among the actors of the program
    bool get_if_exists = false; ///< gives the actor that has the name already, if there is one
    option_text space{};        ///< the namespace of a detached actor
    /// It outlives its program, on a cluster: get_actor finds it by name and namespace.
    bool detached = false;
};
static_assert(std::is_trivially_destructible_v<actor_options>);

/// Where get_actor looks for a name.
struct actor_search {
    option_text space{}; ///< a namespace of the cluster; empty: the actors of this program
};
static_assert(std::is_trivially_destructible_v<actor_search>);

/// An actor whose state can be saved and put into a new instance.
///   laws  what load(save()) gives behaves as the one that was saved; save() changes nothing
template <class T>
concept restorable = requires(const T& from, T& into) {
    requires wire::encodable<std::remove_cvref_t<decltype(from.save())>>;
    into.load(from.save());
};

} // namespace skein
