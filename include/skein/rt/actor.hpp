// SPDX-License-Identifier: Apache-2.0
#pragma once
// Actors: an object that lives on one worker and is called through a handle.
//
//     struct counter { int n = 0; int add(int k) { return n += k; } };
//     auto c = co_await skein::actor<counter>(10);
//     auto r = c.call<&counter::add>(5);
//     int n = co_await r;                                    // 15
//
// Calls of one caller run in the order in which they were made, also when an argument is a ref that
// is still pending. Plain methods run one after the other; coroutine methods start in order and
// interleave only where they suspend. A call runs at most once. When the worker dies, the actor is
// gone and its calls fail with worker_lost. The actor ends with the last handle in the process that
// made it; a handle given to a remote call as an argument keeps it for that call.

#include <skein/rt/remote.hpp>

#include <concepts>
#include <string>
#include <type_traits>
#include <utility>

namespace skein {

/// A counted handle to an actor of type T; one pointer wide, copyable, and an argument of calls.
template <class T>
class actor_handle {
public:
    using actor_type = T;

    actor_handle() noexcept = default;
    explicit actor_handle(counted_ptr<rt::detail::actor_state> lane) noexcept
        : lane_(std::move(lane)) {}

    /// False if default-constructed or moved from.
    explicit operator bool() const noexcept { return static_cast<bool>(lane_); }
    /// Which actor; the same in all processes of one run.
    [[nodiscard]] actor_id id() const noexcept { return lane_ ? lane_->id : actor_id{}; }

    /// Submits a call of a method; see remote<>. Calls through copies of one handle stay in order. The
    /// ref may be dropped: the call runs all the same, and a failure that nobody can see is logged.
    /// With options: remote<&T::m>.with({...})(handle, args...).
    template <auto M, class... A>
    auto call(A&&... args) const {
        return rt::detail::call_method<M, T>(call_options(), lane_, std::forward<A>(args)...);
    }
    friend bool operator==(const actor_handle&, const actor_handle&) = default;

    [[nodiscard]] const counted_ptr<rt::detail::actor_state>& lane() const noexcept {
        return lane_;
    }

private:
    counted_ptr<rt::detail::actor_state> lane_;
};

namespace rt::detail {

/// How a constructor argument travels: decayed, text as std::string.
template <class A>
struct travelling {
    using type = std::decay_t<A>;
};
template <class A>
    requires(unwrap_ref<std::remove_cvref_t<A>>::is_ref)
struct travelling<A> {
    using type = typename unwrap_ref<std::remove_cvref_t<A>>::type;
};
template <class A>
    requires(std::is_convertible_v<std::decay_t<A>, std::string_view>)
struct travelling<A> {
    using type = std::string;
};

template <class T, class... A>
void invoke_create(incoming_call& call) {
    std::tuple<A...> arguments;
    if (auto decoded = decode_arguments(call.arguments, arguments); !decoded)
        return call.refuse(decoded.error());
    try {
        auto box = std::apply(
            [](auto&... a) { return std::make_shared<box_of<T>>(std::in_place, std::move(a)...); },
            arguments);
        call.self.insert_actor(call.target, std::move(box));
        call.self.reply(*call.from, call.slot, [](wire::writer&) {});
    } catch (...) {
        call.reply_thrown();
    }
}

/// Names a constructor for the registry.
template <class T, class... A>
struct constructor_of {};

template <class T, class... A>
struct create_record {
    static std::uint64_t signature_hash() { return wire::schema_hash<std::tuple<A...>>(); }
    static std::string signature_text() { return wire::schema_text<std::tuple<A...>>(); }
    static function_record& entry() {
        static function_record made = [] {
            function_record r;
            r.mangled = typeid(constructor_of<T, A...>).name();
            r.is_constructor = true;
            r.actor = &typeid(T);
            r.invoke = &invoke_create<T, A...>;
            r.signature_hash = &signature_hash;
            r.signature_text = &signature_text;
            return r;
        }();
        return made;
    }
    static inline const bool registered = (registry::add(entry()), true);
};

template <class T, class... A>
concept makes =
    std::is_constructible_v<T, A...> || requires(A&&... a) { T{std::forward<A>(a)...}; };

/// Waits for the constructor's reply. Who makes an actor chooses its id, so it holds the lane already: if
/// this task is dropped, before the reply or after it, so is the actor.
template <class T>
task<actor_handle<T>> finish_create(ref<void> made, counted_ptr<actor_state> lane) {
    co_await made;
    co_return actor_handle<T>(std::move(lane));
}

} // namespace rt::detail

/// Makes a T on the worker with the fewest actors, from these arguments (aggregates too).
/// Submitted at once; suspends until the constructor has returned.
///   errors  remote_error (the constructor threw), worker_lost
template <class T, class... A>
[[nodiscard]] task<actor_handle<T>> actor(A&&... args) {
    using namespace rt::detail;
    constexpr bool can_make = makes<T, typename travelling<A>::type...>;
    static_assert(can_make,
                  "skein: the actor cannot be made from these arguments: its constructor (or "
                  "its fields) must take their values, or refs to them");
    constexpr bool can_send = (true && ... && wire::encodable<typename travelling<A>::type>);
    static_assert(can_send,
                  "skein: an argument type cannot be sent: make it a plain aggregate of types "
                  "that can, or specialise skein::wire::codec for it");
    if constexpr (can_make && can_send) {
        (void)create_record<T, typename travelling<A>::type...>::registered;
        auto& by = rt::runtime::current();
        counted_ptr<ref_state<void>> call(new ref_state<void>);
        apply_options(by, *call, create_record<T, typename travelling<A>::type...>::entry(), {},
                      call_kind::create);
        call->target = by.new_actor_id();
        auto lane = by.actor_lane(call->target);
        lane->owned = true; // means nothing until the actor is somewhere
        submission<std::tuple<typename travelling<A>::type...>, A...>::go(by, call,
                                                                          std::forward<A>(args)...);
        return finish_create<T>(ref<void>(std::move(call)), std::move(lane));
    } else {
        return {};
    }
}

} // namespace skein

/// A handle travels as the actor's id; it is decoded while a call runs on a runtime.
template <class T>
struct skein::wire::codec<skein::actor_handle<T>> {
    static constexpr const char* schema = "actor";
    static void encode(writer& to, const skein::actor_handle<T>& h) {
        to.fixed(h.id().value().incarnation);
        to.fixed(h.id().value().number);
        // A handle given as an argument, or inside one, keeps its actor until the call is done.
        using lane = skein::counted_ptr<skein::rt::detail::actor_state>;
        if (auto* call = skein::rt::runtime::encoding(); call != nullptr && h)
            call->keep(std::make_shared<lane>(h.lane()));
    }
    static skein::result<void> decode(reader& from, skein::actor_handle<T>& into) {
        skein::unique_number id;
        if (!from.fixed(id.incarnation) || !from.fixed(id.number)) return from.status();
        auto* here = skein::rt::runtime::executing();
        if (here == nullptr)
            return error(errc::not_supported,
                         "not supported: an actor_handle in the result of a call")
                .with_hint("make the actor in the process that uses it and pass the handle as an "
                           "argument");
        if (actor_id(id)) into = skein::actor_handle<T>(here->actor_lane(actor_id(id)));
        return {};
    }
};
