// SPDX-License-Identifier: Apache-2.0
#pragma once
// The templates behind rt/remote.hpp: a function's record, and how a call's arguments leave. What a
// record does with a call that arrives is in detail/invoke.hpp; all that does not depend on the
// function is in runtime.

#include <skein/rt/detail/given_call.hpp>
#include <skein/rt/detail/invoke.hpp>
#include <skein/rt/detail/loops_own.hpp>
#include <skein/rt/detail/stream_window.hpp>
#include <skein/rt/method_group.hpp>
#include <skein/rt/ref.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/rt/view.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>
#include <skein/wire/schema.hpp>

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace skein::rt::detail {

/// Names a function for the registry.
template <auto F, class T>
struct function_tag {};

template <auto F>
struct plain_name {};

/// The record of one function; odr-using `registered` puts it into the registry before main.
template <auto F, class T>
struct record {
    using traits = signature<decltype(F)>;
    static std::uint64_t signature_hash() {
        const auto result = wire::schema_hash<typename traits::result>();
        return hash_mix(wire::schema_hash<typename traits::arguments>(),
                        traits::is_generator ? ~result : result);
    }
    static std::string signature_text() {
        return wire::schema_text<typename traits::arguments>() + " -> " +
               wire::schema_text<typename traits::result>() + (traits::is_generator ? "..." : "");
    }
    static function_record& entry() {
        static function_record made = [] {
            function_record r;
            r.mangled = std::is_void_v<T> ? typeid(plain_name<F>).name()
                                          : typeid(function_tag<F, T>).name();
            r.shown = typeid(plain_name<F>).name();
            if constexpr (!std::is_void_v<T>) {
                r.actor = &typeid(T);
                r.group = group_number<F, T>();
                if constexpr (group_number<F, T>() != 0)
                    r.group_name = groups_of<T>::type::names[group_number<F, T>() - 1U];
            }
            if constexpr (traits::is_generator)
                r.invoke = &invoke_stream<F, T>;
            else
                r.invoke = &invoke<F, T>;
            r.is_stream = traits::is_generator;
            r.reads_views = holds_any<object_views, typename traits::arguments>();
            r.gives_views = holds_any<object_views, typename traits::result>();
            r.is_coroutine = traits::is_coroutine || is_blocking<F, T>();
            r.signature_hash = &signature_hash;
            r.signature_text = &signature_text;
            return r;
        }();
        return made;
    }
    static inline const bool registered = (registry::add(entry()), true);
};

// ---- calling side ------------------------------------------------------------------------------

/// An argument that may have to wait: a ref, or a value already converted.
template <class P, class A>
auto hold_argument(A&& a) {
    using given = std::remove_cvref_t<A>;
    if constexpr (unwrap_ref<given>::is_ref || is_twin<given, P>) {
        return given(std::forward<A>(a));
    } else if constexpr (is_view<P>) {
        // A view would not outlive the caller's object.
        if constexpr (std::is_same_v<P, std::string_view>) {
            return std::string(std::string_view(a));
        } else {
            const P view(a);
            return std::vector<std::remove_const_t<typename P::element_type>>(view.begin(),
                                                                              view.end());
        }
    } else {
        return P(std::forward<A>(a));
    }
}

/// Appends an argument as a P. place: which one it is; it may go along as an object instead.
template <class P, class A>
void encode_argument(wire::writer& to, const A& a, std::uint32_t place = named_inside) {
    if constexpr (is_twin<A, P> || (takes_ref<P> && std::is_same_v<A, P>)) {
        wire::encode(to, a);
    } else if constexpr (unwrap_ref<A>::is_ref) {
        using given = typename unwrap_ref<A>::type;
        auto& state = *a.state();
        if (!state.value && state.object()) [[unlikely]] {
            if constexpr (takes_object<P, given>())
                if (place_object(state.object(), place)) return;
            const auto copy = state.copy_of_object();
            encode_argument<P>(to, copy);
        } else {
            encode_argument<P>(to, state.get());
        }
    } else if constexpr (std::is_same_v<A, P>) {
        wire::encode(to, a);
    } else {
        const P converted(a);
        wire::encode(to, converted);
    }
}

/// An argument that is a ref has failed, and so does the call: but if it takes the ref itself.
template <class P, class A>
void look_at_failure(const A& a, const failure*& found) {
    if constexpr (unwrap_ref<A>::is_ref && !unwrap_ref<P>::is_ref)
        if (found == nullptr && a && a.ready() && a.state()->failed()) found = &a.state()->why();
}

/// An argument for a parameter of type P whose value is in an object is copied out of it.
template <class P, class T>
[[nodiscard]] bool copies_object(const call_base& call, bool may_be_given) noexcept {
    if (call.kind == call_kind::create) return true;
    if constexpr (unwrap_ref<P>::is_ref)
        return false;
    else
        return may_be_given || !takes_object<P, T>();
}

/// Whether such an argument must be read first.
template <class P, class A>
void look_for_unread(const call_base& call, const A& a, std::vector<counted_ptr<call_base>>& into,
                     bool may_be_given) {
    if constexpr (unwrap_ref<A>::is_ref) {
        using given = typename unwrap_ref<A>::type;
        if (a && a.ready() && a.state()->is_unread() && copies_object<P, given>(call, may_be_given))
            into.emplace_back(a.state().get());
    }
}

/// There is a ref or view in it.
template <class A>
inline constexpr bool may_hold_refs = false;
template <class T>
inline constexpr bool may_hold_refs<view<T>> = false;
template <class T>
inline constexpr bool may_hold_refs<ref<T>> = true;
template <class T>
    requires(!takes_ref<T> && holds_loops_own<T>())
inline constexpr bool may_hold_refs<T> = true;

template <class Parameters, class... Held>
class held_arguments;
template <class... P, class... Held>
class held_arguments<std::tuple<P...>, Held...> final : public deferred_arguments {
public:
    explicit held_arguments(Held... held) : held_(std::move(held)...) {}
    void encode(wire::writer& to) override {
        std::uint32_t place = 0;
        std::apply([&](const auto&... a) { (encode_argument<P>(to, a, place++), ...); }, held_);
    }
    const failure* failed() const noexcept override {
        const failure* found = nullptr;
        std::apply([&](const auto&... a) { (look_at_failure<P>(a, found), ...); }, held_);
        return found;
    }
    void unread(const call_base& call, std::vector<counted_ptr<call_base>>& into) const override {
        const auto look = [&]<class Parameter>(const Parameter*, const auto& a) {
            using given = std::remove_cvref_t<decltype(a)>;
            if constexpr (!unwrap_ref<given>::is_ref && may_hold_refs<given>) {
                if (call.kind != call_kind::create) return;
                pending_refs inside(true);
                wire::writer unused;
                encode_argument<Parameter>(unused, a);
                into.insert(into.end(), inside.all.begin(), inside.all.end());
            } else {
                look_for_unread<Parameter>(call, a, into, false);
            }
        };
        std::apply([&](const auto&... a) { (look(static_cast<const P*>(nullptr), a), ...); },
                   held_);
    }

private:
    std::tuple<Held...> held_;
};

/// The actors whose handles are in an argument stay until the call has ended: its codec knows where
/// they are.
template <class P, class A>
void keep_handles(const A& a) {
    if constexpr (!is_view<P>)
        if constexpr (makeup_of<P>() == makeup::handles) {
            wire::writer unused;
            encode_argument<P>(unused, a);
        }
}

/// Submits: at once if every argument is there, else when the last one is. F: of actor type T, or
/// (void) none that this process could have given its arguments to.
template <auto F, class T, class Arguments, class... A>
struct submission;
template <auto F, class T, class... P, class... A>
struct submission<F, T, std::tuple<P...>, A...> {
    static constexpr bool any_ref = (false || ... || unwrap_ref<std::remove_cvref_t<A>>::is_ref);

    /// Refs inside of arguments, too.
    static constexpr bool any_inside =
        (false || ... ||
         (may_hold_refs<std::remove_cvref_t<A>> &&
          (!unwrap_ref<std::remove_cvref_t<A>>::is_ref || unwrap_ref<P>::is_ref)));

    static constexpr bool may_be_given = can_be_given<std::tuple<P...>> && !std::is_void_v<T>;

    static void go(runtime& by, const counted_ptr<call_base>& call, A&&... args) {
        if constexpr (any_ref || any_inside) {
            std::vector<counted_ptr<call_base>> pending;
            const failure* failed = nullptr;
            const auto look = [&]<class Parameter>(const Parameter*, const auto& a) {
                using given = std::remove_cvref_t<decltype(a)>;
                if constexpr (unwrap_ref<given>::is_ref) {
                    if (a && !a.ready()) pending.emplace_back(a.state().get());
                    look_for_unread<Parameter>(*call, a, pending, may_be_given);
                } else if constexpr (may_hold_refs<given>) {
                    pending_refs inside(call->kind == call_kind::create);
                    wire::writer unused;
                    encode_argument<Parameter>(unused, a);
                    pending.insert(pending.end(), inside.all.begin(), inside.all.end());
                }
                look_at_failure<Parameter>(a, failed);
            };
            (look(static_cast<const P*>(nullptr), args), ...);
            if (!pending.empty() || failed != nullptr)
                return wait_for(by, call, pending, std::forward<A>(args)...);
        }
        const auto encode = [&](wire::writer& to) {
            std::uint32_t place = 0;
            (encode_argument<P>(to, args, place++), ...);
        };
        if constexpr (may_be_given) {
            const auto give = [&]() -> std::unique_ptr<given_call> {
                (keep_handles<P>(args), ...);
                return std::make_unique<given_method<F, T, P...>>(std::in_place,
                                                                  std::forward<A>(args)...);
            };
            by.submit(call, encode, given_maker(give));
        } else {
            by.submit(call, encode);
        }
    }

    static void wait_for(runtime& by, const counted_ptr<call_base>& call,
                         const std::vector<counted_ptr<call_base>>& pending, A&&... args) {
        using held =
            held_arguments<std::tuple<P...>, decltype(hold_argument<P>(std::forward<A>(args)))...>;
        for (const auto& one : pending) one->add_dependent(call);
        // One more than the refs that are waited for: the call is looked at once at the end.
        by.submit_deferred(call, pending.size() + 1,
                           std::make_unique<held>(hold_argument<P>(std::forward<A>(args))...));
        for (const auto& one : pending)
            if (one->is_done()) one->read_value();
        by.argument_ready(*call);
    }
};

/// Submits a call of a function, or of a method of T through its handle's queue, with arguments
/// that have been checked.
template <auto F, class T, class R, class... A>
void begin_call(runtime& by, const call_options& how, const counted_ptr<ref_state<R>>& call,
                counted_ptr<actor_queue> queue, A&&... args) {
    using traits = signature<decltype(F)>;
    (void)record<F, T>::registered;
    apply_options(by, *call, record<F, T>::entry(), how,
                  traits::is_member ? call_kind::method : call_kind::task);
    if constexpr (traits::is_member) {
        call->target = queue->id;
        call->queue = std::move(queue);
    }
    submission<F, T, typename traits::arguments, A...>::go(by, call, std::forward<A>(args)...);
}

/// Whether F, of T if it is a method, can be called with such arguments; a static_assert says why
/// not.
template <auto F, class T, class... A>
consteval bool check_call() {
    using traits = signature<decltype(F)>;
    if constexpr (traits::is_member)
        static_assert(std::is_same_v<typename traits::class_type, T> ||
                          std::is_base_of_v<typename traits::class_type, T>,
                      "skein: call<&T::m> needs a member function of the actor's own type");
    if constexpr (parameter_check<typename traits::parameters>::ok &&
                  check_result<typename traits::result>() &&
                  argument_check<typename traits::parameters, A...>::ok) {
        static_assert(
            !traits::is_coroutine || !any_holds_view<typename traits::arguments>,
            "skein: a remote coroutine cannot take a span or string_view: it outlives the "
            "message the view points into; take a vector or string");
        static_assert(
            !is_blocking<F, T>() || !holds_loops_own<typename traits::arguments>(),
            "skein: a method of a blocking_group cannot take an actor_handle or a "
            "placement_group: it runs on a thread, and they are counted on the loop; take "
            "them in a coroutine method, or a group's name");
        static_assert(!is_blocking<F, T>() || !any_holds_view<typename traits::arguments>,
                      "skein: a method of a blocking_group cannot take a span or string_view: it "
                      "outlives the "
                      "message the view points into; take a vector or string");
        return true;
    } else {
        return false;
    }
}

/// A call that gives items, in rt/stream.hpp.
template <auto F, class T, class... A>
auto begin_stream(runtime& by, const call_options& how, const stream_window& window,
                  counted_ptr<actor_queue> queue, A&&... args);

/// What gives one value is called so; a generator is not.
template <auto F>
consteval bool gives_a_value() {
    constexpr bool is_value = !signature<decltype(F)>::is_generator;
    static_assert(is_value, "skein: this function gives a generator: auto items = "
                            "skein::stream<&f>(args...), or handle.stream<&T::m>(args...)");
    return is_value;
}

template <auto F, class... A>
auto call_function(runtime& by, const call_options& how, A&&... args) {
    using result_type = typename signature<decltype(F)>::result;
    if constexpr (!gives_a_value<F>()) {
        return ref<result_type>(); // a static_assert above has said why
    } else if constexpr (check_call<F, void, A...>()) {
        counted_ptr<ref_state<result_type>> call(new ref_state<result_type>);
        begin_call<F, void>(by, how, call, {}, std::forward<A>(args)...);
        return ref<result_type>(std::move(call));
    } else {
        return ref<result_type>(); // a static_assert above has said why
    }
}

template <auto M, class T, class... A>
auto call_method(const call_options& how, const counted_ptr<actor_queue>& queue, A&&... args) {
    using traits = signature<decltype(M)>;
    using result_type = typename traits::result;
    static_assert(traits::is_member,
                  "skein: call<&T::m> needs a member function of the actor's own type");
    if constexpr (!gives_a_value<M>()) {
        return ref<result_type>();
    } else if constexpr (check_call<M, T, A...>()) {
        auto& by = runtime_of(queue);
        counted_ptr<ref_state<result_type>> call(new ref_state<result_type>);
        begin_call<M, T>(by, how, call, queue, std::forward<A>(args)...);
        return ref<result_type>(std::move(call));
    } else {
        return ref<result_type>();
    }
}

} // namespace skein::rt::detail
