// SPDX-License-Identifier: Apache-2.0
#pragma once
// The templates behind rt/actor.hpp: how actors are made, here and where they live, and found by
// name.

#include <skein/rt/actor_options.hpp>
#include <skein/rt/detail/actor_terms.hpp>
#include <skein/rt/detail/remote.hpp>
#include <skein/rt/detail/space_options.hpp>

#include <concepts>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

namespace skein {

template <class T>
class actor_handle;

} // namespace skein

namespace skein::rt::detail {

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

/// Options, arguments, and the state of an actor that is made again.
template <class Arguments>
result<void> decode_creation(incoming_call& call, actor_terms& terms, Arguments& into,
                             byte_span& saved) {
    auto& in = call.arguments;
    if (!call.has_terms) return decode_arguments(in, into);
    if (!terms.decode(in)) {
        (void)in.fail(errc::malformed, "no options of an actor");
        return in.status();
    }
    const auto head = in.position();
    const auto rest = in.rest();
    saved = rest.last(terms.snapshot_bytes);
    wire::reader all(byte_span(rest.data() - head, head + rest.size() - saved.size()));
    byte_span skipped;
    all.raw(head, skipped); // padding counts from the first byte of the message
    return decode_arguments(all, into);
}

template <class T, class... A>
void invoke_create(incoming_call& call) {
    std::tuple<A...> arguments;
    actor_terms terms;
    byte_span saved;
    if (auto decoded = decode_creation(call, terms, arguments, saved); !decoded)
        return call.refuse(decoded.error());
    try {
        auto box = std::apply(
            [](auto&... a) {
                const loop::occupied until_it_returns(loop::current());
                return counted_ptr<actor_box>(new box_of<T>(std::in_place, std::move(a)...));
            },
            arguments);
        const auto all = call.arguments.position() + call.arguments.remaining();
        if (call.has_terms) box->made_from = all - saved.size();
        if (call.has_terms)
            if (auto set = set_terms(*box, terms, saved); !set) return call.refuse(set.error());
        call.by.actors().insert(call.target, std::move(box));
        call.by.answers().reply(*call.from, call.slot, [](wire::writer&) {});
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

/// A call that gives an actor: a constructor, or the question for a name.
class actor_call final : public ref_state<void> {
public:
    counted_ptr<actor_queue> known; ///< the queue of one that there was already
    std::string title;              ///< the name that was asked for, or ""

    void give_back(runtime& of, byte_span bytes) override {
        wire::reader in(bytes);
        actor_id id;
        if (get_actor_id(in, id)) (void)of.hold_actor(id, 0);
    }

protected:
    result<void> take_value(byte_span bytes) override {
        if (!bytes.empty()) {
            wire::reader in(bytes);
            actor_id id;
            std::uint32_t said = 0;
            if (!get_actor_id(in, id) || !in.fixed(said) || !in.finish()) return in.status();
            known = owner->hold_actor(id, said & most_pending);
            if (known->name.empty()) known->name = std::move(title);
            if ((said & detached_handle) != 0) known->is_detached = true;
        }
        return ref_state<void>::take_value({});
    }
};

/// What errors name the actor by, where its name is not known.
template <class T>
[[nodiscard]] actor_handle<T> handle_of(counted_ptr<actor_queue> queue) {
    if (queue) queue->type = &typeid(T);
    return actor_handle<T>(std::move(queue));
}

/// Waits for the reply. Who makes an actor chooses its id, so it holds the queue already: if
/// this task is dropped, before the reply or after it, so is the actor.
template <class T>
task<actor_handle<T>> finish_create(counted_ptr<actor_call> call, counted_ptr<actor_queue> queue) {
    const ref<void> made(call);
    co_await made;
    co_return handle_of<T>(call->known ? std::move(call->known) : std::move(queue));
}
template <class T>
task<actor_handle<T>> give_handle(counted_ptr<actor_queue> queue) {
    co_return handle_of<T>(std::move(queue));
}

/// Makes it through `by`: the arguments are encoded at once.
template <class T, class... A>
[[nodiscard]] task<actor_handle<T>> create(runtime& by, const actor_options& how, A&&... args) {
    using made = create_record<T, typename travelling<A>::type...>;
    (void)made::registered;
    counted_ptr<actor_call> call(new actor_call);
    apply_options(by, *call, made::entry(), {}, call_kind::create);
    call->title = how.name.view(); // .get_if_exists may give a handle from elsewhere
    bool exists = false;
    auto queue = by.declare_actor(*call, how, exists);
    if (exists) return give_handle<T>(std::move(queue));
    if (!call->is_done())
        submission<nullptr, void, std::tuple<typename travelling<A>::type...>, A...>::go(
            by, call, std::forward<A>(args)...);
    return finish_create<T>(std::move(call), std::move(queue));
}

/// A text is kept as a string, all else as it was given.
template <class A>
using kept_argument = std::conditional_t<unwrap_ref<std::remove_cvref_t<A>>::is_ref,
                                         std::decay_t<A>, typename travelling<A>::type>;

/// Makes a detached actor: through a runtime that is a space client of its namespace.
template <class T, class... A>
task<actor_handle<T>> create_detached(space_options how, A... args) {
    how.check();
    auto entering = runtime::current().enter_space(std::string(how.how->space.view()));
    auto* const by = co_await entering;
    auto making = create<T>(*by, *how.how, std::move(args)...);
    co_return co_await std::move(making);
}

template <class T, class... A>
[[nodiscard]] task<actor_handle<T>> make_actor(const actor_options& how, A&&... args) {
    constexpr bool can_make = makes<T, typename travelling<A>::type...>;
    static_assert(can_make,
                  "skein: the actor cannot be made from these arguments: its constructor (or "
                  "its fields) must take their values, or refs to them");
    constexpr bool can_send = (true && ... && wire::encodable<typename travelling<A>::type>);
    static_assert(can_send,
                  "skein: an argument type cannot be sent: make it a plain aggregate of types "
                  "that can, or specialise skein::wire::codec for it");
    if constexpr (can_make && can_send) {
        if (how.detached || !how.space.empty())
            return create_detached<T, kept_argument<A>...>(space_options(how),
                                                           std::forward<A>(args)...);
        return create<T>(runtime::current(), how, std::forward<A>(args)...);
    } else {
        return {};
    }
}

template <class T>
task<actor_handle<T>> look_up_in(std::string space, std::string name) {
    auto entering = runtime::current().enter_space(std::move(space));
    auto* const by = co_await entering;
    counted_ptr<actor_call> call(new actor_call);
    call->title = name;
    // a space client is answered by its space server
    auto queue = by->find_actor(call, name, typeid(T));
    auto found = finish_create<T>(std::move(call), std::move(queue));
    co_return co_await std::move(found);
}
template <class T>
[[nodiscard]] task<actor_handle<T>> look_up(std::string_view name) {
    counted_ptr<actor_call> call(new actor_call);
    call->title = name;
    auto queue = runtime::current().find_actor(call, name, typeid(T));
    if (queue) return give_handle<T>(std::move(queue));
    return finish_create<T>(std::move(call), {});
}

} // namespace skein::rt::detail
