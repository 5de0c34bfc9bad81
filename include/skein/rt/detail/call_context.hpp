// SPDX-License-Identifier: Apache-2.0
#pragma once
// The context of a task in the runtime: which runtime it calls through, and which call it is part
// of.

#include <skein/core/counted_ptr.hpp>
#include <skein/core/frame_pool.hpp>
#include <skein/core/ids.hpp>
#include <skein/core/intrusive_list.hpp>
#include <skein/core/task_context.hpp>
#include <skein/core/time.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace skein::rt {

class runtime;
struct function_record;

namespace detail {

class call_base;

/// Says where a runtime is, and that it has ended, to those who may outlive it.
class runtime_anchor {
public:
    runtime_anchor() noexcept = default; ///< of none
    explicit runtime_anchor(runtime& of) noexcept : self(&of) {}
    void add_use() noexcept { ++uses_; }
    void drop_use() noexcept {
        if (--uses_ == 0) delete this;
    }
    runtime* self = nullptr; ///< nullptr: it has ended

private:
    std::uint32_t uses_ = 0;
};

/// How the call that asks is related to others: goes along with it.
struct trace_context {
    call_id id;
    call_id trace;  ///< the first call of the tree; its own id if it has no parent
    call_id parent; ///< none: made by a task that is no call
    time_point until = time_point::max(); ///< its deadline, in the time of this loop; max: none
};

/// A call that runs here, or (id: none) the tasks of a driver that are no call.
class call_context final : public task_context, public list_node<call_context> {
public:
    explicit call_context(counted_ptr<runtime_anchor> where) noexcept
        : task_context(&tag_), where_(std::move(where)) {}

    // Each coroutine call has one.
    static void* operator new(std::size_t bytes) {
        return skein::detail::frame_pool::allocate(bytes);
    }
    static void operator delete(void* p, std::size_t bytes) noexcept {
        skein::detail::frame_pool::release(p, bytes);
    }

    /// Of the task that runs now; nullptr if it belongs to no runtime.
    [[nodiscard]] static call_context* current() noexcept {
        auto* c = task_context::current();
        return c != nullptr && c->kind() == &tag_ ? static_cast<call_context*>(c) : nullptr;
    }
    /// The runtime it calls through; nullptr when that has ended.
    [[nodiscard]] runtime* where() const noexcept { return where_->self; }
    [[nodiscard]] bool is_call() const noexcept { return static_cast<bool>(who.id); }

    void add_child(call_base& call) noexcept { children_.push_back(call); }
    /// Cancels what it has called and what has no outcome yet.
    void cancel_children(bool by_force);

    trace_context who;
    const function_record* fn = nullptr;
    actor_id actor; ///< of a method or constructor

    void unlink_wait() noexcept { list_node<call_context>::unlink(); }
    // Of a coroutine task on a worker, see detail/runtime_direct.ipp.
    std::uint32_t direct_calls =
        0;                ///< its calls that do not go through the driver and have no outcome
    bool blocked = false; ///< the driver knows that it waits for them
    time_point waits_since{};

private:
    static constexpr char tag_ = 0;
    counted_ptr<runtime_anchor> where_;
    intrusive_list<call_base, call_base> children_;
};

} // namespace detail
} // namespace skein::rt
