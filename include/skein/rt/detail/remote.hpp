// SPDX-License-Identifier: Apache-2.0
#pragma once
// The templates behind rt/remote.hpp: what a function's record does with a call that arrives, and how a
// call's arguments leave. All that does not depend on the function is in runtime.

#include <skein/rt/detail/given_call.hpp>
#include <skein/rt/method_group.hpp>
#include <skein/rt/ref.hpp>
#include <skein/rt/runtime.hpp>
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

// ---- executing side ----------------------------------------------------------------------------

template <class Tuple>
inline constexpr bool has_span = false;
template <class... T>
inline constexpr bool has_span<std::tuple<T...>> =
    ((is_view<T> && !std::is_same_v<T, std::string_view>) || ...);
/// An actor of type T.
template <class T>
struct box_of : actor_box {
    template <class... A>
    explicit box_of(std::in_place_t, A&&... args)
        : actor_box(typeid(T)), value(make(std::forward<A>(args)...)) {
        using of_type = typename groups_of<T>::type;
        if constexpr (of_type::count > 0) {
            groups = std::make_unique<start_gate[]>(of_type::count);
            for (std::size_t i = 0; i < of_type::count; ++i) groups[i].limit = of_type::bounds[i];
        }
    }
    void save(wire::writer& to) const override {
        if constexpr (restorable<T>) wire::encode(to, value.save());
    }
    result<void> load(wire::reader& from) override {
        if constexpr (restorable<T>) {
            std::remove_cvref_t<decltype(value.save())> saved;
            if (auto decoded = wire::decode(from, saved); !decoded) return decoded.error();
            value.load(std::move(saved));
        }
        return {};
    }
    [[nodiscard]] bool is_restorable() const noexcept override { return restorable<T>; }

    T value;

private:
    template <class... A>
    static T make(A&&... args) {
        if constexpr (std::is_constructible_v<T, A&&...>) {
            return T(std::forward<A>(args)...);
        } else {
            return T{std::forward<A>(args)...};
        }
    }
};

/// Calls F with decoded arguments; a member gets its object first.
template <auto F, class T, class Arguments>
decltype(auto) call_now(actor_box* box, Arguments& arguments) {
    return std::apply(
        [&](auto&... a) -> decltype(auto) {
            if constexpr (std::is_void_v<T>) {
                (void)box;
                return F(std::move(a)...);
            } else {
                return (static_cast<box_of<T>*>(box)->value.*F)(std::move(a)...);
            }
        },
        arguments);
}

template <class M>
inline constexpr bool is_const_method = false;
template <class R, class C, class... P>
inline constexpr bool is_const_method<R (C::*)(P...) const> = true;
template <class R, class C, class... P>
inline constexpr bool is_const_method<R (C::*)(P...) const noexcept> = true;

/// What follows a method and precedes its reply: its arguments go, so that handles which it has not kept are not told
/// as held, and its actor is saved or ends.
template <auto F, class Arguments>
void after_call(runtime& self, peer& to, actor_box* box, Arguments& arguments) {
    if constexpr (std::is_move_assignable_v<Arguments>)
        if (self.has_borrowed()) arguments = Arguments();
    if (box != nullptr) self.method_ended(to, *box, !is_const_method<decltype(F)>);
}

/// Replies with a value. A method's goes to this process as it is, if that is as good as decoding its bytes.
template <class T, class R>
void reply_value(runtime& self, peer& to, slot_id id, R&& value) {
    using result_type = std::remove_cvref_t<R>;
    if constexpr (!std::is_void_v<T> && travels_as_it_is<result_type>()) {
        const auto finish = [&](call_base& call) {
            static_cast<ref_state<result_type>&>(call).finish_with(std::forward<R>(value));
        };
        if (self.reply_here(to, id, finish)) return;
    }
    self.reply(to, id, [&](wire::writer& w) { wire::encode(w, value); });
}
template <class T>
void reply_nothing(runtime& self, peer& to, slot_id id) {
    if constexpr (!std::is_void_v<T>) {
        const auto finish = [](call_base& call) {
            static_cast<ref_state<void>&>(call).finish_with();
        };
        if (self.reply_here(to, id, finish)) return;
    }
    self.reply(to, id, [](wire::writer&) {});
}

/// Begins a call that does not end at once. box: stays until it has.
template <auto F, class T, class Arguments>
auto begin_now(actor_box* box, std::uint16_t group, Arguments& arguments) {
    if constexpr (is_blocking<F, T>()) {
        using result_type = typename signature<decltype(F)>::result;
        return net::offload(
            [box, &arguments]() -> result_type { return call_now<F, T>(box, arguments); },
            &box->threads_of(group));
    } else {
        (void)group;
        return call_now<F, T>(box, arguments);
    }
}

/// A coroutine call, or one on a thread: owns its arguments and its actor until it has replied.
template <auto F, class T>
task<void> run_coroutine(runtime* self, std::shared_ptr<peer> from, slot_id id,
                         const function_record* fn, std::shared_ptr<actor_box> box,
                         typename signature<decltype(F)>::arguments arguments) {
    using result_type = typename signature<decltype(F)>::result;
    auto* const gate = box ? &box->gate_of(fn->group) : nullptr;
    if (box && gate->limit != 0) {
        auto turn = self->take_turn(from, id, fn, box);
        const bool may_start = co_await turn;
        if (!may_start) co_return;
    } else if (box) {
        --box->not_started;
        if (box->over != nullptr) {
            self->reply_over(*from, id, *fn, *box);
            co_return;
        }
    }
    const start_gate::seat seat(gate);
    try {
        if constexpr (std::is_void_v<result_type>) {
            {
                auto work = begin_now<F, T>(box.get(), fn->group, arguments);
                co_await work;
            }
            after_call<F>(*self, *from, box.get(), arguments);
            reply_nothing<T>(*self, *from, id);
        } else {
            auto work = begin_now<F, T>(box.get(), fn->group, arguments);
            auto value = co_await work;
            after_call<F>(*self, *from, box.get(), arguments);
            reply_value<T>(*self, *from, id, std::move(value));
        }
    } catch (...) {
        if (box) self->method_failed(*from, *box, !is_const_method<decltype(F)>);
        self->reply_thrown(*from, id, *fn);
    }
}

/// Decodes into `into`, from an aligned copy if it holds views that need one.
template <class Arguments>
result<void> decode_arguments(wire::reader& in, Arguments& into) {
    auto done = wire::decode(in, into);
    if (done && !in.finish()) return in.status();
    return done;
}

/// Runs or starts a call whose arguments are there.
template <auto F, class T, class Arguments>
void invoke_with(incoming_call& call, Arguments& arguments) {
    using traits = signature<decltype(F)>;
    if constexpr (traits::is_coroutine || is_blocking<F, T>()) {
        if (call.box) ++call.box->not_started;
        call.self.start(call, run_coroutine<F, T>(&call.self, call.from, call.slot, &call.fn,
                                                  call.box, std::move(arguments)));
    } else {
        try {
            if constexpr (std::is_void_v<typename traits::result>) {
                call_now<F, T>(call.box.get(), arguments);
                after_call<F>(call.self, *call.from, call.box.get(), arguments);
                reply_nothing<T>(call.self, *call.from, call.slot);
            } else if constexpr (std::is_reference_v<decltype(call_now<F, T>(nullptr,
                                                                             arguments))>) {
                const auto& value =
                    call_now<F, T>(call.box.get(), arguments); // of an argument, perhaps
                if (call.box)
                    call.self.method_ended(*call.from, *call.box, !is_const_method<decltype(F)>);
                reply_value<T>(call.self, *call.from, call.slot, value);
            } else {
                auto value = call_now<F, T>(call.box.get(), arguments);
                after_call<F>(call.self, *call.from, call.box.get(), arguments);
                reply_value<T>(call.self, *call.from, call.slot, std::move(value));
            }
        } catch (...) {
            if (call.box)
                call.self.method_failed(*call.from, *call.box, !is_const_method<decltype(F)>);
            call.reply_thrown();
        }
    }
}

/// What a record of function F (of actor type T, or void) does with a call.
template <auto F, class T>
void invoke(incoming_call& call) {
    using traits = signature<decltype(F)>;
    typename traits::arguments arguments;
    byte_buffer aligned;
    result<void> decoded;
    if constexpr (has_span<typename traits::arguments>) {
        // Views need their elements aligned in memory: a frame's body may start anywhere.
        const auto head = call.arguments.position();
        const auto rest = call.arguments.rest();
        aligned.resize(head);
        append(aligned, rest);
        wire::reader in(aligned);
        byte_span skipped;
        in.raw(head, skipped);
        decoded = decode_arguments(in, arguments);
    } else {
        decoded = decode_arguments(call.arguments, arguments);
    }
    if (!decoded) return call.refuse(decoded.error());
    invoke_with<F, T>(call, arguments);
}

/// A call of method F of T within a process, with parameters of these types.
template <auto F, class T, class... P>
class given_method final : public given_call {
public:
    template <class... A>
    explicit given_method(std::in_place_t, A&&... args)
        : held_(own_argument<P>(std::forward<A>(args))...) {}
    void run(incoming_call& call) override {
        if constexpr ((false || ... || is_view<P>)) {
            auto arguments = std::apply(
                [](auto&... held) { return std::tuple<P...>(parameter_of<P>(held)...); }, held_);
            invoke_with<F, T>(call, arguments);
        } else {
            invoke_with<F, T>(call, held_);
        }
    }

private:
    std::tuple<typename held_as<P>::type...> held_;
};

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
        return hash_mix(wire::schema_hash<typename traits::arguments>(),
                        wire::schema_hash<typename traits::result>());
    }
    static std::string signature_text() {
        return wire::schema_text<typename traits::arguments>() + " -> " +
               wire::schema_text<typename traits::result>();
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
            r.invoke = &invoke<F, T>;
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
    if constexpr (unwrap_ref<given>::is_ref) {
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

/// Appends an argument as a P.
template <class P, class A>
void encode_argument(wire::writer& to, const A& a) {
    if constexpr (unwrap_ref<A>::is_ref) {
        encode_argument<P>(to, *a.state()->value);
    } else if constexpr (std::is_same_v<A, P>) {
        wire::encode(to, a);
    } else {
        const P converted(a);
        wire::encode(to, converted);
    }
}

template <class Parameters, class... Held>
class held_arguments;
template <class... P, class... Held>
class held_arguments<std::tuple<P...>, Held...> final : public deferred_arguments {
public:
    explicit held_arguments(Held... held) : held_(std::move(held)...) {}
    void encode(wire::writer& to) override {
        std::apply([&](const auto&... a) { (encode_argument<P>(to, a), ...); }, held_);
    }
    const failure* failed() const noexcept override {
        const failure* found = nullptr;
        const auto look = [&](const auto& a) {
            if constexpr (unwrap_ref<std::remove_cvref_t<decltype(a)>>::is_ref)
                if (found == nullptr && a.state()->failed()) found = &a.state()->why();
        };
        std::apply([&](const auto&... a) { (look(a), ...); }, held_);
        return found;
    }

private:
    std::tuple<Held...> held_;
};

/// The actors whose handles are in an argument stay until the call has ended: its codec knows where they are.
template <class P, class A>
void keep_handles(const A& a) {
    if constexpr (!is_view<P>)
        if constexpr (makeup_of<P>() == makeup::handles) {
            wire::writer unused;
            encode_argument<P>(unused, a);
        }
}

/// Submits: at once if every argument is there, else when the last one is. F: of actor type T, or (void) none that
/// this process could have given its arguments to.
template <auto F, class T, class Arguments, class... A>
struct submission;
template <auto F, class T, class... P, class... A>
struct submission<F, T, std::tuple<P...>, A...> {
    static constexpr bool any_ref = (false || ... || unwrap_ref<std::remove_cvref_t<A>>::is_ref);

    static void go(runtime& by, const counted_ptr<call_base>& call, A&&... args) {
        if constexpr (any_ref) {
            std::size_t pending = 0;
            bool failed = false;
            const auto look = [&](const auto& a) {
                if constexpr (unwrap_ref<std::remove_cvref_t<decltype(a)>>::is_ref) {
                    pending += !a.ready();
                    failed |= a.ready() && a.state()->failed();
                }
            };
            (look(args), ...);
            if (pending != 0 || failed)
                return wait_for(by, call, pending, std::forward<A>(args)...);
        }
        const auto encode = [&](wire::writer& to) { (encode_argument<P>(to, args), ...); };
        if constexpr (can_be_given<std::tuple<P...>> && !std::is_void_v<T>) {
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

    static void wait_for(runtime& by, const counted_ptr<call_base>& call, std::size_t pending,
                         A&&... args) {
        using held =
            held_arguments<std::tuple<P...>, decltype(hold_argument<P>(std::forward<A>(args)))...>;
        const auto depend = [&](const auto& a) {
            if constexpr (unwrap_ref<std::remove_cvref_t<decltype(a)>>::is_ref)
                if (!a.ready()) a.state()->add_dependent(call);
        };
        (depend(args), ...);
        // One more than the refs that are waited for: the call is looked at once at the end.
        by.submit_deferred(call, pending + 1,
                           std::make_unique<held>(hold_argument<P>(std::forward<A>(args))...));
        by.argument_ready(*call);
    }
};

template <auto F>
auto call_function(runtime& by, const call_options& how, auto&&... args) {
    using traits = signature<decltype(F)>;
    using result_type = typename traits::result;
    if constexpr (parameter_check<typename traits::parameters>::ok && check_result<result_type>() &&
                  argument_check<typename traits::parameters, decltype(args)...>::ok) {
        static_assert(
            !traits::is_coroutine || !any_holds_view<typename traits::arguments>,
            "skein: a remote coroutine cannot take a span or string_view: it outlives the "
            "message the view points into; take a vector or string");
        (void)record<F, void>::registered;
        counted_ptr<ref_state<result_type>> call(new ref_state<result_type>);
        apply_options(by, *call, record<F, void>::entry(), how, call_kind::task);
        submission<F, void, typename traits::arguments, decltype(args)...>::go(
            by, call, std::forward<decltype(args)>(args)...);
        return ref<result_type>(std::move(call));
    } else {
        return ref<result_type>(); // a static_assert above has said why
    }
}

template <auto M, class T>
auto call_method(const call_options& how, const counted_ptr<actor_state>& lane, auto&&... args) {
    using traits = signature<decltype(M)>;
    using result_type = typename traits::result;
    static_assert(traits::is_member && (std::is_same_v<typename traits::class_type, T> ||
                                        std::is_base_of_v<typename traits::class_type, T>),
                  "skein: call<&T::m> needs a member function of the actor's own type");
    if constexpr (parameter_check<typename traits::parameters>::ok && check_result<result_type>() &&
                  argument_check<typename traits::parameters, decltype(args)...>::ok) {
        static_assert(
            !traits::is_coroutine || !any_holds_view<typename traits::arguments>,
            "skein: a remote coroutine cannot take a span or string_view: it outlives the "
            "message the view points into; take a vector or string");
        static_assert(!is_blocking<M, T>() || !any_holds_view<typename traits::arguments>,
                      "skein: a method of a blocking_group cannot take a span or string_view: it "
                      "outlives the "
                      "message the view points into; take a vector or string");
        (void)record<M, T>::registered;
        auto& by = runtime_of(lane);
        counted_ptr<ref_state<result_type>> call(new ref_state<result_type>);
        apply_options(by, *call, record<M, T>::entry(), how, call_kind::method);
        call->lane = lane;
        call->target = lane->id;
        submission<M, T, typename traits::arguments, decltype(args)...>::go(
            by, call, std::forward<decltype(args)>(args)...);
        return ref<result_type>(std::move(call));
    } else {
        return ref<result_type>();
    }
}

} // namespace skein::rt::detail
