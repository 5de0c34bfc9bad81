// SPDX-License-Identifier: Apache-2.0
#pragma once
// Any Asio operation, awaited in a skein::task that runs on a real_loop.
//
//     asio::steady_timer timer(loop.context(), 10ms);
//     co_await timer.async_wait(skein::use_task);                    // throws skein::error
//     auto n = co_await socket.async_read_some(buffer, skein::use_task_result);   // result<size_t>
//
// The operation starts when it is awaited and ends before the await does: a cancelled task asks
// Asio to cancel the operation (terminal) and goes on when its handler has been called. An
// operation that drops its handler without calling it gives errc::cancelled.

#include <skein/core/error.hpp>
#include <skein/core/result.hpp>
#include <skein/core/wait.hpp>
#include <skein/net/asio.hpp>
#include <skein/net/detail/asio_context.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/system_error.hpp>

#include <coroutine>
#include <exception>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace skein {

/// The completion token; use the objects below.
template <bool AsResult>
struct use_task_t {};

/// Throws skein::error; gives what follows the error code: nothing, one value, or a tuple.
inline constexpr use_task_t<false> use_task{};
/// Gives result<...> instead of throwing (cancellation of the task still throws).
inline constexpr use_task_t<true> use_task_result{};

inline auto& net::real_loop::context() noexcept { return context_->io; }

namespace net::detail {

/// What an operation's signature means: a leading error_code or exception_ptr is a failure.
template <class... Args>
struct completion {
    using value = std::conditional_t<sizeof...(Args) == 0, void, std::tuple<Args...>>;
    static std::optional<error> failure(const std::tuple<Args...>&) { return std::nullopt; }
    static std::tuple<Args...> rest(std::tuple<Args...>&& all) { return std::move(all); }
};
template <class... Args>
struct completion<std::error_code, Args...> {
    using value = std::conditional_t<sizeof...(Args) == 0, void, std::tuple<Args...>>;
    static std::optional<error> failure(const std::tuple<std::error_code, Args...>& all) {
        if (!std::get<0>(all)) return std::nullopt;
        return code_error(std::get<0>(all), "asio operation failed");
    }
    static std::tuple<Args...> rest(std::tuple<std::error_code, Args...>&& all) {
        return std::apply([](auto&&, auto&&... r) { return std::tuple<Args...>(std::move(r)...); },
                          std::move(all));
    }
};
template <class... Args>
struct completion<std::exception_ptr, Args...> {
    using value = std::conditional_t<sizeof...(Args) == 0, void, std::tuple<Args...>>;
    static std::optional<error> failure(const std::tuple<std::exception_ptr, Args...>& all) {
        if (!std::get<0>(all)) return std::nullopt;
        return skein::to_error(std::get<0>(all));
    }
    static std::tuple<Args...> rest(std::tuple<std::exception_ptr, Args...>&& all) {
        return std::apply([](auto&&, auto&&... r) { return std::tuple<Args...>(std::move(r)...); },
                          std::move(all));
    }
};

template <class Tuple>
struct single_or_tuple {
    using type = Tuple;
};
template <>
struct single_or_tuple<void> {
    using type = void;
};
template <class T>
struct single_or_tuple<std::tuple<T>> {
    using type = T;
};

/// One operation under way; lives in the awaiting frame.
template <class... Args>
class asio_operation : public waiter {
public:
    void complete(Args... args) {
        outcome_.emplace(std::move(args)...);
        finish();
    }
    void abandoned() noexcept { finish(); }
    [[nodiscard]] asio::cancellation_slot slot() noexcept { return signal_.slot(); }

protected:
    void cancel_requested() noexcept override {
        cancel_asked_ = true;
        signal_.emit(asio::cancellation_type::terminal);
    }
    std::optional<std::tuple<Args...>> outcome_;

private:
    void finish() noexcept {
        const bool lost = !outcome_ || is_abort(*outcome_);
        if (cancel_asked_ && lost) {
            end_cancelled();
        } else {
            wake();
        }
    }
    template <class First, class... More>
    static bool is_abort(const std::tuple<First, More...>& all) noexcept {
        if constexpr (std::is_same_v<First, std::error_code>) {
            return std::get<0>(all) == asio::error::operation_aborted;
        } else {
            return false;
        }
    }
    static bool is_abort(const std::tuple<>&) noexcept { return false; }

    asio::cancellation_signal signal_;
    bool cancel_asked_ = false;
};

/// The handler given to Asio: owns the right to end the operation.
template <class... Args>
class asio_handler {
public:
    using cancellation_slot_type = asio::cancellation_slot;

    explicit asio_handler(asio_operation<Args...>& op) noexcept : op_(&op), slot_(op.slot()) {}
    asio_handler(asio_handler&& other) noexcept
        : op_(std::exchange(other.op_, nullptr)), slot_(other.slot_) {}
    asio_handler& operator=(asio_handler&&) = delete;
    ~asio_handler() {
        if (op_ != nullptr) op_->abandoned();
    }
    void operator()(Args... args) { std::exchange(op_, nullptr)->complete(std::move(args)...); }
    [[nodiscard]] cancellation_slot_type get_cancellation_slot() const noexcept { return slot_; }

private:
    asio_operation<Args...>* op_;
    asio::cancellation_slot slot_;
};

/// What an initiating function returns for use_task: starts the operation when awaited.
template <bool AsResult, class Initiation, class Arguments, class... Args>
class asio_awaitable : public asio_operation<Args...> {
    using meaning = completion<Args...>;
    using value_type = typename single_or_tuple<typename meaning::value>::type;
    using return_type = std::conditional_t<AsResult, result<value_type>, value_type>;

public:
    template <class I, class... Rest>
    explicit asio_awaitable(I&& initiation, Rest&&... rest)
        : initiation_(std::forward<I>(initiation)), arguments_(std::forward<Rest>(rest)...) {}

    // Moved only before it is awaited.
    asio_awaitable(asio_awaitable&& other) noexcept
        : asio_operation<Args...>(), initiation_(std::move(other.initiation_)),
          arguments_(std::move(other.arguments_)) {}

    bool await_ready() const noexcept { return false; }

    template <skein::detail::promise_with_context Promise>
    bool await_suspend(std::coroutine_handle<Promise> h) {
        if (!this->arm(h)) return false;
        // The caller may be resumed only by the loop, so `this` outlives the call.
        // An initiation that throws has dropped its handler, which may have queued this frame: the
        // exception must not resume it a second time, so await_resume throws it.
        try {
            std::apply(
                [this](auto&&... rest) {
                    std::move(initiation_)(asio_handler<Args...>(*this), std::move(rest)...);
                },
                std::move(arguments_));
        } catch (...) {
            initiation_failure_ = std::current_exception();
            this->wake();
        }
        return true;
    }

    return_type await_resume() {
        if (initiation_failure_) std::rethrow_exception(std::move(initiation_failure_));
        this->throw_if_cancelled();
        std::optional<error> failure;
        if (!this->outcome_) {
            failure = error(errc::cancelled, "asio operation dropped its handler");
        } else {
            failure = meaning::failure(*this->outcome_);
        }
        if constexpr (AsResult) {
            if (failure) return *failure;
        } else {
            if (failure) throw *failure;
        }
        if constexpr (std::is_void_v<value_type>) {
            return return_type();
        } else {
            auto rest = meaning::rest(std::move(*this->outcome_));
            if constexpr (std::tuple_size_v<decltype(rest)> == 1) {
                return return_type(std::get<0>(std::move(rest)));
            } else {
                return return_type(std::move(rest));
            }
        }
    }

private:
    Initiation initiation_;
    Arguments arguments_;
    std::exception_ptr initiation_failure_;
};

} // namespace net::detail
} // namespace skein

template <bool AsResult, class... Args>
class asio::async_result<skein::use_task_t<AsResult>, void(Args...)> {
public:
    template <class Initiation, class... Rest>
    static auto initiate(Initiation&& initiation, skein::use_task_t<AsResult>, Rest&&... rest) {
        using awaitable = skein::net::detail::asio_awaitable<AsResult, std::decay_t<Initiation>,
                                                             std::tuple<std::decay_t<Rest>...>,
                                                             std::decay_t<Args>...>;
        return awaitable(std::forward<Initiation>(initiation), std::forward<Rest>(rest)...);
    }
};
