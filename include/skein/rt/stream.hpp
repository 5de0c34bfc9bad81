// SPDX-License-Identifier: Apache-2.0
#pragma once
// stream<&f>(args...): calls a function on some worker that gives items one by one, and takes them
// while it runs.
//
//     skein::generator<row> rows(std::string file);      // a coroutine, or a function that gives one
//     auto s = skein::stream<&rows>("a.csv");            // runs now
//     while (auto r = co_await s.next()) use(*r);        // in order; nothing when it has ended
//
// A method of an actor: handle.stream<&T::m>(args...). Options as for remote<>; the window says how
// far the producer may be ahead:
//
//     skein::stream<&rows>.with({.cpus = 2}).with({.items = 8, .bytes = 1 << 20})("a.csv")
//
// Who reads slowly holds up the producer. Dropping the stream ends it: its generator unwinds. An
// error, or the worker's death, comes behind the items before it. A task runs again as others do
// (.retries) while nobody has taken an item of it, and not after.

#include <skein/core/generator.hpp>
#include <skein/core/timeout.hpp>
#include <skein/rt/actor.hpp>
#include <skein/rt/detail/remote.hpp>
#include <skein/rt/detail/stream_call.hpp>
#include <skein/rt/detail/stream_producer.hpp>
#include <skein/rt/options.hpp>
#include <skein/rt/runtime.hpp>
#include <skein/wire/decode.hpp>

#include <coroutine>
#include <optional>
#include <type_traits>
#include <utility>

namespace skein {

/// The items of one call. Move-only; belongs to one loop, and one task at a time asks for items.
template <class T>
class [[nodiscard]] item_stream {
public:
    using value_type = T;

    item_stream() noexcept = default; ///< it has no items
    explicit item_stream(counted_ptr<rt::detail::stream_call> call) noexcept
        : call_(std::move(call)) {}
    item_stream(item_stream&& other) noexcept : call_(std::move(other.call_)) {}
    item_stream& operator=(item_stream&& other) noexcept {
        if (this != &other) {
            drop();
            call_ = std::move(other.call_);
        }
        return *this;
    }
    /// Ends the producer, if it has not ended; waits for nothing: see close().
    ~item_stream() { drop(); }

    /// False if default-constructed or moved from.
    explicit operator bool() const noexcept { return static_cast<bool>(call_); }

    class next_awaiter : public rt::detail::stream_call::item_waiter {
    public:
        explicit next_awaiter(counted_ptr<rt::detail::stream_call> call)
            : item_waiter(*call), call_(std::move(call)) {}
        std::optional<T> await_resume() {
            const auto bytes = item_waiter::await_resume();
            if (!bytes) return {};
            wire::reader in(*bytes);
            auto decoded = wire::detail::fresh<T>();
            if (!wire::detail::read(in, decoded) || !in.finish()) [[unlikely]] {
                call_->leave();
                throw error(errc::malformed, "an item of " + call_->name() +
                                                 " cannot be read: " + in.status().error().text());
            }
            return std::optional<T>(std::move(decoded));
        }

    private:
        counted_ptr<rt::detail::stream_call> call_;
    };
    /// Suspends until there is an item; nothing when the generator has ended. Resumed by the loop.
    ///   errors  remote_error (the generator threw), worker_lost, timeout (.deadline), each time it
    ///           is asked again; cancelled: then no item is taken, and the next one is still there
    [[nodiscard]] next_awaiter next() {
        SKEIN_CHECK(call_, "an item is asked for of a stream that is empty or was moved from");
        return next_awaiter(call_);
    }
    /// Asks the producer to end. Items that have come can still be taken; then cancelled is thrown,
    /// unless it has ended otherwise.
    void cancel() const noexcept {
        if (call_) rt::detail::cancel_call(*call_, false);
    }
    /// Ends the producer, and suspends until its clean-up has ended or cannot any more. Items that
    /// have come are dropped; how it ended is not told.
    ///   errors  cancelled: the producer ends all the same
    [[nodiscard]] task<void> close() {
        if (!call_) return nothing();
        auto call = std::move(call_);
        call->leave();
        return wait_end(std::move(call));
    }

    /// Says what to write instead.
    template <class Never = void>
    [[noreturn]] std::suspend_never operator co_await() const {
        static_assert(!std::is_void_v<Never>,
                      "skein: a stream has many values: while (auto item = co_await s.next()) ...");
    }

private:
    static task<void> nothing() { co_return; }
    static task<void> wait_end(counted_ptr<rt::detail::stream_call> call) {
        rt::detail::stream_call::item_waiter ended(*call);
        try {
            (void)co_await ended;
        } catch (const error& e) {
            if (!call->is_done()) throw;
        }
    }
    void drop() noexcept {
        if (call_) call_->leave();
        call_ = {};
    }

    counted_ptr<rt::detail::stream_call> call_;
};

namespace rt::detail {

template <auto F>
consteval bool gives_items() {
    constexpr bool is_generator = signature<decltype(F)>::is_generator;
    static_assert(is_generator, "skein: this function gives no generator<T>, and so no items: "
                                "auto r = skein::remote<&f>(args...) calls it");
    return is_generator;
}

/// Submits the call of a function, or of a method of T, behind its window.
template <auto F, class T, class... A>
auto begin_stream(runtime& by, const call_options& how, const stream_window& window,
                  counted_ptr<actor_queue> queue, A&&... args) {
    using traits = signature<decltype(F)>;
    using item = typename traits::result;
    if constexpr (!gives_items<F>()) {
        return item_stream<item>(); // a static_assert above has said why
    } else if constexpr (check_call<F, T, A...>()) {
        static_assert(!holds_loops_own<item>(),
                      "skein: not supported: items of a stream with an actor_handle, a ref or a "
                      "placement_group in them; give names, or return the handle");
        counted_ptr<stream_call> call(new stream_call(window));
        (void)record<F, T>::registered;
        apply_options(by, *call, record<F, T>::entry(), how,
                      traits::is_member ? call_kind::method : call_kind::task);
        if (!window.is_open()) refuse_window(*call, window);
        if constexpr (traits::is_member) {
            call->target = queue->id;
            call->queue = std::move(queue);
        }
        using arguments = typename windowed<typename traits::arguments>::type;
        submission<F, void, arguments, const stream_window&, A...>::go(by, call, window,
                                                                       std::forward<A>(args)...);
        return item_stream<item>(std::move(call));
    } else {
        return item_stream<item>();
    }
}

} // namespace rt::detail

/// stream<&f> with its options; call it like f, as often as you like.
template <auto F, class Options = rt::detail::default_options<call_options>>
class stream_function {
    static_assert((std::is_pointer_v<decltype(F)> &&
                   std::is_function_v<std::remove_pointer_t<decltype(F)>>) ||
                      std::is_member_function_pointer_v<decltype(F)>,
                  "skein: stream<> takes the address of a function that gives a generator: "
                  "stream<&f>, or stream<&T::m> of an actor's method");
    using kept = rt::detail::owned_options<call_options>;

public:
    constexpr stream_function() noexcept = default;
    constexpr stream_function(rt::runtime* by, Options how, const stream_window& window) noexcept
        : how_(std::move(how)), window_(window), by_(by) {}

    /// The same function with options for its calls. Their texts are copied: it may be kept.
    [[nodiscard]] auto with(const call_options& how) const {
        return stream_function<F, kept>(by_, kept(how), window_);
    }
    /// The same function with another window.
    [[nodiscard]] constexpr stream_function with(const stream_window& window) const {
        return stream_function(by_, how_, window);
    }
    /// The same function, submitted to this runtime instead of the thread's current one.
    [[nodiscard]] constexpr stream_function on(rt::runtime& by) const {
        return stream_function(&by, how_, window_);
    }

    /// Submits the call and returns at once.
    ///   args    the function's arguments, or refs to them; a method takes its handle first
    ///   errors  none here: they come from next(). invalid_argument: a window of nothing
    template <class... A>
        requires(!rt::detail::signature<decltype(F)>::is_member)
    [[nodiscard]] auto operator()(A&&... args) const {
        return rt::detail::begin_stream<F, void>(by_ != nullptr ? *by_ : rt::runtime::current(),
                                                 *how_, window_, {}, std::forward<A>(args)...);
    }
    template <class T, class... A>
        requires(rt::detail::signature<decltype(F)>::is_member)
    [[nodiscard]] auto operator()(const actor_handle<T>& actor, A&&... args) const {
        return rt::detail::begin_stream<F, T>(rt::detail::runtime_of(actor.queue()), *how_, window_,
                                              actor.queue(), std::forward<A>(args)...);
    }

private:
    Options how_;
    stream_window window_;
    rt::runtime* by_ = nullptr;
};

/// stream<&f>(args...), stream<&f>.with({...})(args...), stream<&T::m>(handle, args...).
template <auto F>
inline constexpr stream_function<F> stream{};

} // namespace skein
