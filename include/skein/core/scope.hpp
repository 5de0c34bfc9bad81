// SPDX-License-Identifier: Apache-2.0
#pragma once
// scope: the owner of concurrent tasks. Children end before the parent goes on.
//
// The first child that fails cancels its siblings, and join() rethrows its error. When the task
// that joins is cancelled, the children are cancelled and still waited for. A scope can be used
// again after a join, unless it was cancelled (by itself, a failed child or the joining task): that
// stays. Destroying a scope with running children is a bug and is checked: join it first.
//
//     scope s;
//     s.spawn(serve(a));
//     s.spawn(serve(b));
//     co_await s.join();
//
// with_scope(f, args...) does the same around a body that may throw.

#include <skein/core/wait.hpp>

#include <cstddef>
#include <exception>
#include <utility>

namespace skein {

/// Owns tasks of one loop. Neither copyable nor movable.
class scope {
public:
    scope() noexcept = default;
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    ~scope() {
        SKEIN_CHECK(running_ == 0,
                    "a scope is destroyed while {} of its tasks run; co_await join() first",
                    running_);
    }

    /// Starts a task; it runs from the loop's queue, not inside this call, under the context of the
    /// caller. Its error is join()'s.
    void spawn(task<void> work) {
        ++running_;
        auto child = run_child(this, std::move(work));
        child.frame.promise().cancel = &cancel_;
        loop::current().post_root(child.frame);
    }

    /// Suspends until all children have ended; resumed by the loop. Throws the first error of a
    /// child, or cancelled if the joining task was cancelled (then all children were).
    [[nodiscard]] task<void> join();

    /// Cancels all children, running and future ones. They still have to be joined.
    void cancel() noexcept { cancel_.request(); }
    [[nodiscard]] bool cancelled() const noexcept { return cancel_.requested(); }
    /// How many children run.
    [[nodiscard]] std::size_t size() const noexcept { return running_; }

private:
    struct parent_link : detail::cancel_hook {
        explicit parent_link(scope& s) noexcept
            : cancel_hook(
                  [](cancel_hook& h) noexcept { static_cast<parent_link&>(h).owner.cancel(); }),
              owner(s) {}
        scope& owner;
    };

    static detail::self_owned run_child(scope* owner, task<void> work);
    void child_ended(std::exception_ptr failure) noexcept;
    template <class Body, class... Args>
    friend task<void> with_scope(Body body, Args... args);
    static bool is_cancelled(const std::exception_ptr& failure) noexcept;

    std::size_t running_ = 0;
    std::exception_ptr failure_;
    detail::cancel_state cancel_;
    detail::cancel_state* body_ = nullptr; // of with_scope: ended by a failed child
    wait_queue idle_;
};

/// Runs body(scope&, args...), then joins the scope. If the body throws, the children are cancelled
/// and waited for, and the body's error is rethrown. If a child fails, the body is cancelled too,
/// and the child's error is rethrown.
template <class Body, class... Args>
[[nodiscard]] task<void> with_scope(Body body, Args... args) {
    auto* outer = co_await detail::current_cancel{};
    detail::cancel_state body_cancel(outer);
    scope children;
    children.body_ = &body_cancel;
    std::exception_ptr failure;
    try {
        auto work = body(children, std::move(args)...);
        detail::await_under<void> inner(std::move(work), &body_cancel);
        co_await inner;
    } catch (...) {
        failure = std::current_exception();
        children.cancel();
    }
    children.body_ = nullptr;
    try {
        auto joined = children.join();
        co_await joined;
    } catch (...) {
        if (!failure || scope::is_cancelled(failure)) failure = std::current_exception();
    }
    if (failure) std::rethrow_exception(std::move(failure));
}

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/core/detail/scope.ipp>
#endif
