// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where a stream's items are made: what the record of a function that gives a generator does with a
// call. One item at a time is made ahead: it waits, encoded, until the window has room, and only
// then is the next one asked for.
//
// A call that is cancelled ends its generator: inside an await of its own if it is in one, else at
// the co_yield where it stands; its clean-up there is out of reach of the cancellation. The reply
// comes when it has ended.

#include <skein/core/cancel.hpp>
#include <skein/core/generator.hpp>
#include <skein/core/sleep.hpp>
#include <skein/rt/detail/invoke.hpp>
#include <skein/rt/detail/next_turn.hpp>
#include <skein/rt/detail/stream_window.hpp>
#include <skein/wire/encode.hpp>
#include <skein/wire/writer.hpp>

#include <cstdint>
#include <exception>
#include <memory>
#include <tuple>
#include <utility>

namespace skein::rt::detail {

/// The items of one call on their way out.
class item_sender {
public:
    item_sender(executor& by, std::shared_ptr<peer> to, slot_id id, stream_window window);
    item_sender(const item_sender&) = delete;
    item_sender& operator=(const item_sender&) = delete;
    ~item_sender();

    /// Encodes the item that is sent next.
    ///   errors  not_supported: a handle in it, more than one message may have
    void encode(encoder item);
    [[nodiscard]] bool has_room() const noexcept { return credit_.has_room(); }
    /// Suspends until there may be room; the task's cores are others' meanwhile. Throws cancelled.
    [[nodiscard]] task<void> room();
    /// Sends what was encoded. Throws cancelled.
    void send();
    /// True: others of this loop should have their turn.
    [[nodiscard]] bool ran_for_long();
    /// Lets the loop send and read. Throws cancelled.
    [[nodiscard]] task<void> pause();

    /// The outcome, behind all that was sent.
    void reply(const std::exception_ptr& why, const function_record& fn);

private:
    executor& by_;
    std::shared_ptr<peer> to_;
    slot_id id_;
    item_credit credit_;
    running_call& call_;
    wire::writer item_;
    time_point began_{};
    std::uint32_t since_look_ = 0;
};

/// Asks the generator for item after item, and sends them; gives why it ended, if not by itself.
template <class T>
task<std::exception_ptr> send_items(item_sender* out, generator<T>* items) {
    std::exception_ptr failure;
    try {
        while (auto item = co_await items->next()) {
            out->encode([&](wire::writer& to) { encode_result(to, *item); });
            while (!out->has_room()) {
                auto waiting = out->room();
                co_await waiting;
            }
            out->send();
            if (!out->ran_for_long()) continue;
            auto resting = out->pause();
            co_await resting;
        }
    } catch (...) {
        failure = std::current_exception();
    }
    try {
        auto closing = shield(items->close());
        co_await closing;
    } catch (...) {
        if (!failure) failure = std::current_exception();
    }
    co_return failure;
}

/// The stream of one call: owns its arguments and its actor until it has replied.
template <auto F, class T>
task<void> run_stream(executor* by, std::shared_ptr<peer> from, slot_id id,
                      const function_record* fn, counted_ptr<actor_box> box, stream_window window,
                      typename signature<decltype(F)>::arguments arguments) {
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
    item_sender out(*by, from, id, window);
    std::exception_ptr failure;
    try {
        auto items = call_now<F, T>(box.get(), arguments);
        auto sending = send_items(&out, &items);
        failure = co_await sending;
    } catch (...) { // it threw before there was a generator
        failure = std::current_exception();
    }
    if (!failure) {
        try {
            after_call<F>(*by, *from, box.get(), arguments);
        } catch (...) {
            failure = std::current_exception();
        }
    }
    if (failure && box) by->actors().method_failed(*from, *box, !is_const_method<decltype(F)>);
    out.reply(failure, *fn);
}

/// With the window that its caller has in front of the arguments.
template <class Arguments>
struct windowed;
template <class... A>
struct windowed<std::tuple<A...>> {
    using type = std::tuple<stream_window, A...>;
    static std::tuple<A...> rest(type& all) {
        return std::apply([](stream_window&, A&... a) { return std::tuple<A...>(std::move(a)...); },
                          all);
    }
};

template <auto F, class T>
void invoke_stream(incoming_call& call) {
    using with_window = windowed<typename signature<decltype(F)>::arguments>;
    typename with_window::type arguments;
    const bool has_objects = call.objects != nullptr && call.objects->are_arguments();
    const auto decoded = has_objects ? decode_arguments(call.arguments, arguments, *call.objects)
                                     : decode_arguments(call.arguments, arguments);
    if (!decoded) return call.refuse(decoded.error());
    const auto window = std::get<0>(arguments);
    if (!window.is_open())
        return call.refuse(error(errc::invalid_argument, "a stream with a window of nothing"));
    if (call.box) ++call.box->not_started;
    call.by.start(call, run_stream<F, T>(&call.by, call.from, call.slot, &call.fn, call.box, window,
                                         with_window::rest(arguments)));
}

} // namespace skein::rt::detail

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/stream_producer.ipp>
#endif
