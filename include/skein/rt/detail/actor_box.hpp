// SPDX-License-Identifier: Apache-2.0
#pragma once
// An actor where it lives: its value, the order in which its calls start, and what is kept of its options.

#include <skein/core/ids.hpp>
#include <skein/core/wait.hpp>
#include <skein/wire/reader.hpp>
#include <skein/wire/writer.hpp>

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <typeinfo>

namespace skein::rt::detail {

/// The line in front of an actor that takes few coroutine calls at a time: first come, first started.
class start_gate {
public:
    /// Coroutine calls under way at a time; 0: any number, and nobody waits here.
    std::uint32_t limit = 0;

    /// A place in the line. A plain call takes no seat: it starts when all before it have.
    class turn : public waiter {
    public:
        turn(start_gate& at, bool takes_seat) noexcept : at_(at), takes_seat_(takes_seat) {}
        bool await_ready() noexcept {
            if (!at_.waiting_.empty() || (takes_seat_ && at_.taken_ >= at_.limit)) return false;
            at_.taken_ += takes_seat_ ? 1U : 0U;
            return true;
        }
        template <skein::detail::promise_with_context Promise>
        bool await_suspend(std::coroutine_handle<Promise> h) {
            if (!arm(h)) return false;
            at_.waiting_.push_back(*this);
            return true;
        }
        void await_resume() const { throw_if_cancelled(); }

    protected:
        void cancel_requested() noexcept override {
            auto& at = at_;
            end_cancelled();
            at.admit();
        }

    private:
        friend class start_gate;
        start_gate& at_;
        bool takes_seat_;
    };

    /// A seat, given back at the end. Of an actor without a limit: nothing.
    class seat {
    public:
        explicit seat(start_gate* at) noexcept : at_(at) {}
        seat(const seat&) = delete;
        seat& operator=(const seat&) = delete;
        ~seat() {
            if (at_ == nullptr || at_->limit == 0) return;
            --at_->taken_;
            at_->admit();
        }

    private:
        start_gate* at_;
    };

private:
    void admit() noexcept {
        while (!waiting_.empty()) {
            auto& next = static_cast<turn&>(waiting_.front());
            if (next.takes_seat_ && taken_ >= limit) return;
            taken_ += next.takes_seat_ ? 1U : 0U;
            next.wake();
        }
    }

    intrusive_list<waiter, waiter> waiting_;
    std::uint32_t taken_ = 0;
};

/// An actor of any type.
struct actor_box {
    explicit actor_box(const std::type_info& t) noexcept : type(t) {}
    virtual ~actor_box() = default;
    /// Appends the state that load() takes.
    virtual void save(wire::writer&) const {}
    virtual result<void> load(wire::reader&) { return {}; }
    [[nodiscard]] virtual bool is_restorable() const noexcept { return false; }

    const std::type_info& type;
    std::size_t not_started = 0; ///< calls that arrived and wait in the run queue, in order
    actor_id id;
    const char* over = nullptr;   ///< why no more calls start: "was killed"
    bool lasts = false;           ///< it is made again elsewhere: its calls go through the driver
    call_id last;                 ///< the actor ends after this one, which has called leave_actor()
    std::uint32_t save_every = 0; ///< calls; 0: nobody keeps its state
    std::uint32_t not_saved = 0;  ///< calls since it was saved
    start_gate gate;
};

} // namespace skein::rt::detail
