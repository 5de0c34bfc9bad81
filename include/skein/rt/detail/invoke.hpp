// SPDX-License-Identifier: Apache-2.0
#pragma once
// The executing side of rt/remote.hpp: an actor where it lives, and what a function's record does
// with a call that has arrived, or that this process gives to itself. All that does not depend on
// the function is in executor.

#include <skein/core/loop.hpp>
#include <skein/net/offload.hpp>
#include <skein/rt/detail/actor_box.hpp>
#include <skein/rt/detail/executor.hpp>
#include <skein/rt/detail/given_call.hpp>
#include <skein/rt/detail/object_traffic.hpp>
#include <skein/rt/detail/peer.hpp>
#include <skein/rt/detail/stored.hpp>
#include <skein/rt/method_group.hpp>
#include <skein/rt/ref.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <cstdint>
#include <memory>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

namespace skein::rt::detail {

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

/// What a record of a function that gives a generator does with a call, in
/// detail/stream_producer.hpp.
template <auto F, class T>
void invoke_stream(incoming_call& call);

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

/// The same of a plain function: the calls that it makes leave while it runs.
template <auto F, class T, class Arguments>
decltype(auto) call_plain(actor_box* box, Arguments& arguments) {
    const loop::occupied until_it_returns(loop::current());
    return call_now<F, T>(box, arguments);
}

template <class M>
inline constexpr bool is_const_method = false;
template <class R, class C, class... P>
inline constexpr bool is_const_method<R (C::*)(P...) const> = true;
template <class R, class C, class... P>
inline constexpr bool is_const_method<R (C::*)(P...) const noexcept> = true;

/// What follows a method and precedes its reply: its arguments go, so that handles which it has not
/// kept are not told as held, and its actor is saved or ends.
template <auto F, class Arguments>
void after_call(executor& by, peer& to, actor_box* box, Arguments& arguments) {
    if constexpr (std::is_move_assignable_v<Arguments>)
        if (by.answers().has_untold_handles()) arguments = Arguments();
    if (box != nullptr) by.actors().method_ended(to, *box, !is_const_method<decltype(F)>);
}

/// Appends a result; one that its reader would refuse is refused here.
template <class R>
void encode_result(wire::writer& to, const R& value) {
    try {
        wire::encode(to, value);
    } catch (const error& e) {
        if (e.code() != errc::too_large) throw; // a codec has thrown
        throw error(e.code(), "its result cannot be sent: " + e.text()).with_hint(e.hint());
    }
}

/// A vector or text on its way into an object: it is copied there once.
template <class R>
class flat_value final : public outgoing_value {
public:
    template <class V>
    explicit flat_value(V&& value) : value_(std::forward<V>(value)) {}
    [[nodiscard]] byte_span stored() const override { return flat_bytes(value_); }
    void encode(wire::writer& to) const override { encode_result(to, value_); }

private:
    const R value_;
};

/// Replies with a value. A method's goes to this process as it is, if that is as good as decoding
/// its bytes.
template <class T, class R>
void reply_value(replies& out, peer& to, slot_id id, R&& value) {
    using result_type = std::remove_cvref_t<R>;
    if constexpr (!std::is_void_v<T> && travels_as_it_is<result_type>()) {
        const auto finish = [&](call_base& call) {
            static_cast<ref_state<result_type>&>(call).finish_with(std::forward<R>(value));
        };
        if (out.reply_here(to, id, finish)) return;
    }
    if constexpr (is_flat<result_type>) {
        if (out.objects().takes(flat_bytes(value).size()) && to.role != peer_role::here)
            return out.send_object(
                to.shared_from_this(), id,
                std::make_unique<flat_value<result_type>>(std::forward<R>(value)));
    }
    out.reply(
        to, id, [&](wire::writer& w) { encode_result(w, value); },
        storable<result_type> && !is_flat<result_type>);
}
template <class T>
void reply_nothing(replies& out, peer& to, slot_id id) {
    if constexpr (!std::is_void_v<T>) {
        const auto finish = [](call_base& call) {
            static_cast<ref_state<void>&>(call).finish_with();
        };
        if (out.reply_here(to, id, finish)) return;
    }
    out.reply(to, id, [](wire::writer&) {});
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
task<void> run_coroutine(executor* by, std::shared_ptr<peer> from, slot_id id,
                         const function_record* fn, counted_ptr<actor_box> box,
                         typename signature<decltype(F)>::arguments arguments) {
    using result_type = typename signature<decltype(F)>::result;
    auto* const gate = box ? &box->gate_of(fn->group) : nullptr;
    if (box && gate->limit != 0) {
        auto turn = by->take_turn(from, id, fn, box);
        const bool may_start = co_await turn;
        if (!may_start) co_return;
    } else if (box) {
        --box->not_started;
        if (box->over != nullptr) {
            by->reply_over(*from, id, *fn, *box);
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
            after_call<F>(*by, *from, box.get(), arguments);
            reply_nothing<T>(by->answers(), *from, id);
        } else {
            auto work = begin_now<F, T>(box.get(), fn->group, arguments);
            auto value = co_await work;
            after_call<F>(*by, *from, box.get(), arguments);
            reply_value<T>(by->answers(), *from, id, std::move(value));
        }
    } catch (...) {
        if (box) by->actors().method_failed(*from, *box, !is_const_method<decltype(F)>);
        by->answers().reply_thrown(*from, id, *fn);
    }
}

/// Decodes into `into`, from an aligned copy if it holds views that need one.
template <class Arguments>
result<void> decode_arguments(wire::reader& in, Arguments& into) {
    auto done = wire::decode(in, into);
    if (done && !in.finish()) return in.status();
    return done;
}

/// One argument that may have come as an object.
template <class P>
bool decode_one(wire::reader& in, P& into, const arrived_objects& objects, std::uint32_t place,
                result<void>& bad) {
    if constexpr (may_come_as_object<P>()) {
        if (const auto* const object = objects.at(place)) {
            bad = read_argument(object->bytes(), into);
            if constexpr (!is_view<P>) objects::count_copied_out(object->bytes().size());
            return bad.has_value();
        }
    }
    return wire::detail::read(in, into);
}

/// The same of arguments some of which have come as objects.
template <class Arguments>
result<void> decode_arguments(wire::reader& in, Arguments& into, const arrived_objects& objects) {
    result<void> bad;
    std::uint32_t place = 0;
    const bool good = std::apply(
        [&](auto&... one) { return (decode_one(in, one, objects, place++, bad) && ...); }, into);
    if (!bad) return bad;
    if (good && in.finish()) return {};
    return in.status();
}

/// Runs or starts a call whose arguments are there.
template <auto F, class T, class Arguments>
void invoke_with(incoming_call& call, Arguments& arguments) {
    using traits = signature<decltype(F)>;
    if constexpr (traits::is_coroutine || is_blocking<F, T>()) {
        if (call.box) ++call.box->not_started;
        call.by.start(call, run_coroutine<F, T>(&call.by, call.from, call.slot, &call.fn, call.box,
                                                std::move(arguments)));
    } else {
        try {
            if constexpr (std::is_void_v<typename traits::result>) {
                call_plain<F, T>(call.box.get(), arguments);
                after_call<F>(call.by, *call.from, call.box.get(), arguments);
                reply_nothing<T>(call.by.answers(), *call.from, call.slot);
            } else if constexpr (std::is_reference_v<decltype(call_now<F, T>(nullptr,
                                                                             arguments))>) {
                const auto& value =
                    call_plain<F, T>(call.box.get(), arguments); // of an argument, perhaps
                if (call.box)
                    call.by.actors().method_ended(*call.from, *call.box,
                                                  !is_const_method<decltype(F)>);
                reply_value<T>(call.by.answers(), *call.from, call.slot, value);
            } else {
                auto value = call_plain<F, T>(call.box.get(), arguments);
                after_call<F>(call.by, *call.from, call.box.get(), arguments);
                reply_value<T>(call.by.answers(), *call.from, call.slot, std::move(value));
            }
        } catch (...) {
            if (call.box)
                call.by.actors().method_failed(*call.from, *call.box,
                                               !is_const_method<decltype(F)>);
            call.reply_thrown();
        }
    }
}

/// What a record of function F (of actor type T, or void) does with a call.
template <auto F, class T>
void invoke(incoming_call& call) {
    using traits = signature<decltype(F)>;
    typename traits::arguments arguments;
    [[maybe_unused]] byte_buffer aligned;
    if (call.objects != nullptr && call.objects->are_arguments()) {
        if (const auto decoded = decode_arguments(call.arguments, arguments, *call.objects);
            !decoded)
            return call.refuse(decoded.error());
        return invoke_with<F, T>(call, arguments);
    }
    if constexpr (has_span<typename traits::arguments>) {
        // Views need their elements aligned in memory: a frame's body may start anywhere.
        const auto head = call.arguments.position();
        const auto rest = call.arguments.rest();
        aligned.resize(head);
        append(aligned, rest);
        wire::reader in(aligned);
        byte_span skipped;
        in.raw(head, skipped);
        if (const auto decoded = decode_arguments(in, arguments); !decoded)
            return call.refuse(decoded.error());
    } else {
        if (const auto decoded = decode_arguments(call.arguments, arguments); !decoded)
            return call.refuse(decoded.error());
    }
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

} // namespace skein::rt::detail
