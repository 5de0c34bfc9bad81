// SPDX-License-Identifier: Apache-2.0
#pragma once
// An actor where it lives: its value, the order in which its calls start, and what is kept of its
// options.

#include <skein/core/ids.hpp>
#include <skein/core/wait.hpp>
#include <skein/net/offload.hpp>
#include <skein/wire/reader.hpp>
#include <skein/wire/writer.hpp>

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <typeinfo>
#include <vector>

namespace skein::rt::detail {

/// The line in front of methods of which few may be under way at a time: first come, first started.
class start_gate {
public:
    /// Calls under way at a time; 0: any number, and nobody waits here.
    std::uint32_t limit = 0;

    /// A call that takes a seat would have to wait for one.
    [[nodiscard]] bool is_full() const noexcept { return limit != 0 && taken_ >= limit; }

    /// A place in the line. A plain call that is in no group takes no seat: it starts when all
    /// before it have.
    class turn : public waiter {
    public:
        turn(start_gate& at, bool takes_seat) noexcept : at_(at), takes_seat_(takes_seat) {}
        bool await_ready() noexcept {
            if (!at_.waiting_.empty() || at_.woken_ != 0 || (takes_seat_ && at_.is_full()))
                return false;
            at_.taken_ += takes_seat_ ? 1U : 0U;
            return true;
        }
        template <skein::detail::promise_with_context Promise>
        bool await_suspend(std::coroutine_handle<Promise> h) {
            if (!arm(h)) return false;
            at_.waiting_.push_back(*this);
            at_.admit(); // it may have waited only for those that have been woken
            return true;
        }
        void await_resume() {
            at_.woken_ -= is_admitted_ ? 1U : 0U;
            throw_if_cancelled();
        }

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
        bool is_admitted_ = false;
    };

    /// A seat, given back at the end. Of a gate without a limit: nothing.
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
            if (next.takes_seat_ && is_full()) return;
            taken_ += next.takes_seat_ ? 1U : 0U;
            next.is_admitted_ = true;
            ++woken_;
            next.wake();
        }
    }

    intrusive_list<waiter, waiter> waiting_;
    std::uint32_t taken_ = 0;
    std::uint32_t woken_ = 0; ///< admitted, in the run queue: who comes now stands behind them
};

/// An actor of any type. Its users are counted and all on one loop, as each call is one for a
/// while: a plain call must not pay for counting that threads could share.
struct actor_box {
    explicit actor_box(const std::type_info& t) noexcept : type(t) {}
    actor_box(const actor_box&) = delete;
    actor_box& operator=(const actor_box&) = delete;
    virtual ~actor_box() = default;
    void add_use() noexcept { ++uses_; }
    void drop_use() noexcept {
        if (--uses_ == 0) delete this;
    }
    /// Appends the state that load() takes.
    virtual void save(wire::writer&) const {}
    virtual result<void> load(wire::reader&) { return {}; }
    [[nodiscard]] virtual bool is_restorable() const noexcept { return false; }
    /// Of a group of its methods, by group_number().
    [[nodiscard]] start_gate& gate_of(std::uint16_t group) noexcept {
        return group == 0 ? gate : groups[group - 1U];
    }

    /// The threads of a blocking_group, made when its first call starts. One that has a seat finds
    /// one free.
    [[nodiscard]] net::offload_pool& threads_of(std::uint16_t group) {
        if (threads.size() < group) threads.resize(group);
        auto& mine = threads[group - 1U];
        if (!mine) mine = std::make_unique<net::offload_pool>(gate_of(group).limit);
        return *mine;
    }

    const std::type_info& type;
    std::size_t not_started = 0; ///< calls that arrived and wait in the run queue, in order
    actor_id id;
    std::string name;             ///< "": it has none
    const char* over = nullptr;   ///< why no more calls start: "was killed"
    bool lasts = false;           ///< it is made again elsewhere: its calls go through the driver
    call_id last;                 ///< the actor ends after this one, which has called leave_actor()
    std::size_t made_from = 0;    ///< bytes of the message that made it, without a saved state
    std::uint32_t save_every = 0; ///< calls; 0: nobody keeps its state
    std::uint32_t not_saved = 0;  ///< calls since it was saved
    start_gate gate;              ///< .max_concurrency: of the methods that are in no group
    std::unique_ptr<start_gate[]> groups; ///< of its type, see rt/method_group.hpp
    std::vector<std::unique_ptr<net::offload_pool>> threads; ///< of its blocking groups, by number

private:
    std::uint32_t uses_ = 0;
};

} // namespace skein::rt::detail
