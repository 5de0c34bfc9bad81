// SPDX-License-Identifier: Apache-2.0
#pragma once
// task_context: what a task belongs to, handed down to all that it awaits and spawns, as its
// cancellation is.
//
// core knows that there is such a thing, not what it holds: the runtime derives the context of a
// call from it (which process's runtime, which call, until when). So two runtimes can live on one
// thread, and a call that a task makes is known as its child, without thread-local state that must
// be set and reset by hand.
//
//     auto work = with_context(context, body());      // body and all below it run under `context`
//     co_await work;
//     task_context* mine = task_context::current();   // in any function that a task calls

#include <skein/core/counted_ptr.hpp>

#include <cstdint>

namespace skein {

class task_context;

namespace detail {
/// The context of the coroutine that runs on this thread; nullptr outside of one, and under none.
inline constinit thread_local task_context* current_context = nullptr;
} // namespace detail

/// Counted by those who run under it: a spawned task may outlive the one that spawned it. One loop.
class task_context {
public:
    /// `kind` tells apart what is derived: the address of something that each such class has.
    explicit task_context(const void* kind) noexcept : kind_(kind) {}
    task_context(const task_context&) = delete;
    task_context& operator=(const task_context&) = delete;

    /// Of the task that runs now on this thread; nullptr outside of tasks and under none.
    [[nodiscard]] static task_context* current() noexcept { return detail::current_context; }

    [[nodiscard]] const void* kind() const noexcept { return kind_; }
    void add_use() noexcept { ++uses_; }
    void drop_use() noexcept {
        if (--uses_ == 0) delete this;
    }
    [[nodiscard]] std::uint32_t uses() const noexcept { return uses_; }

    /// Makes it the current one of this thread while it lives, for plain functions that a task or a
    /// handler calls.
    class use {
    public:
        explicit use(task_context* c) noexcept : before_(detail::current_context) {
            detail::current_context = c;
        }
        use(const use&) = delete;
        use& operator=(const use&) = delete;
        ~use() { detail::current_context = before_; }

    private:
        task_context* before_;
    };

protected:
    virtual ~task_context() = default;

private:
    const void* kind_;
    std::uint32_t uses_ = 0;
};

} // namespace skein
