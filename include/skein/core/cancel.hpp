// SPDX-License-Identifier: Apache-2.0
#pragma once
// Cooperative cancellation.
//
// A cancel_source asks; the tasks that run under its token notice at their next await that has to
// wait: that await throws error(errc::cancelled), and so does every later one, so that the task
// unwinds. What was awaited stays usable (a mutex, channel or stream is not harmed, nothing it held
// is lost). A value that had already been handed over is delivered, not dropped. Everything happens
// on the loop's thread; a source is not thread-safe.
//
//     cancel_source stop;
//     auto work = with_cancel(stop.token(), serve(connection));   // elsewhere: stop.request();
//     co_await std::move(work);

#include <skein/core/error.hpp>
#include <skein/core/intrusive_list.hpp>
#include <skein/core/task.hpp>

#include <memory>
#include <utility>

namespace skein {

/// What a cancelled await throws.
[[nodiscard]] inline error cancelled_error() { return error(errc::cancelled, "cancelled"); }

namespace detail {

/// Told once when its state is cancelled; unlinks itself when destroyed.
class cancel_hook : public list_node<cancel_hook> {
public:
    explicit cancel_hook(void (*cancelled)(cancel_hook&) noexcept) noexcept
        : cancelled_(cancelled) {}

private:
    friend class cancel_state;
    void (*cancelled_)(cancel_hook&) noexcept;
};

/// One node of the cancellation tree. A task points at the state it runs under.
class cancel_state {
public:
    cancel_state() noexcept = default;
    /// A child: cancelled with its parent (may be null), and by itself.
    explicit cancel_state(cancel_state* parent) noexcept { link(parent); }
    cancel_state(const cancel_state&) = delete;
    cancel_state& operator=(const cancel_state&) = delete;

    [[nodiscard]] bool requested() const noexcept { return requested_; }

    /// Cancels everything below. The first call counts.
    void request() noexcept {
        if (std::exchange(requested_, true)) return;
        while (!hooks_.empty()) {
            auto& hook = hooks_.pop_front();
            hook.cancelled_(hook);
        }
    }
    /// hook is told at request(); at once if that has been.
    void add(cancel_hook& hook) noexcept {
        if (requested_) {
            hook.cancelled_(hook);
        } else {
            hooks_.push_back(hook);
        }
    }
    /// Makes this a child of parent (one parent at a time).
    void link(cancel_state* parent) noexcept {
        if (parent != nullptr) parent->add(to_parent_);
    }

private:
    struct parent_hook : cancel_hook {
        explicit parent_hook(cancel_state& child) noexcept
            : cancel_hook(
                  [](cancel_hook& h) noexcept { static_cast<parent_hook&>(h).child_.request(); }),
              child_(child) {}
        cancel_state& child_;
    };

    bool requested_ = false;
    intrusive_list<cancel_hook, cancel_hook> hooks_;
    parent_hook to_parent_{*this};
};

/// `co_await current_cancel{}` gives the state the running task is under (may be null); never
/// suspends.
struct current_cancel {
    cancel_state* state = nullptr;
    bool await_ready() const noexcept { return false; }
    template <promise_with_context Promise>
    bool await_suspend(std::coroutine_handle<Promise> h) noexcept {
        state = h.promise().cancel;
        return false;
    }
    cancel_state* await_resume() const noexcept { return state; }
};

} // namespace detail

/// Shares in a cancel_source. Cheap to copy; an empty token is never cancelled.
class cancel_token {
public:
    cancel_token() noexcept = default;
    [[nodiscard]] bool requested() const noexcept { return state_ && state_->requested(); }

private:
    friend class cancel_source;
    template <class T>
    friend task<T> with_cancel(cancel_token token, task<T> work);
    explicit cancel_token(std::shared_ptr<detail::cancel_state> state) noexcept
        : state_(std::move(state)) {}
    std::shared_ptr<detail::cancel_state> state_;
};

/// Where a cancellation comes from.
class cancel_source {
public:
    cancel_source() : state_(std::make_shared<detail::cancel_state>()) {}
    [[nodiscard]] cancel_token token() const noexcept { return cancel_token(state_); }
    [[nodiscard]] bool requested() const noexcept { return state_->requested(); }
    /// Cancels all work under the token. Their waits end in the loop's next turn, not in this call.
    void request() noexcept { state_->request(); }

private:
    std::shared_ptr<detail::cancel_state> state_;
};

/// Runs work so that it is cancelled by the token as well as by the awaiting task.
template <class T>
[[nodiscard]] task<T> with_cancel(cancel_token token, task<T> work) {
    auto* outer = co_await detail::current_cancel{};
    detail::cancel_state both(outer);
    struct second_parent : detail::cancel_hook {
        explicit second_parent(detail::cancel_state& state) noexcept
            : cancel_hook(
                  [](cancel_hook& h) noexcept { static_cast<second_parent&>(h).child.request(); }),
              child(state) {}
        detail::cancel_state& child;
    } link(both);
    if (token.state_) token.state_->add(link);
    detail::await_under<T> inner(std::move(work), &both);
    co_return co_await inner;
}

/// Runs work out of reach of the awaiting task's cancellation: for clean-up that has to finish.
template <class T>
[[nodiscard]] task<T> shield(task<T> work) {
    detail::await_under<T> inner(std::move(work), nullptr);
    co_return co_await inner;
}

} // namespace skein
