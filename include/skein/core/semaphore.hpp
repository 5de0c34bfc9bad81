// SPDX-License-Identifier: Apache-2.0
#pragma once
// semaphore: a counted budget (bytes, slots) shared by tasks of one loop. First come first served,
// so a large request is not starved by small ones.

#include <skein/core/wait.hpp>

#include <cstddef>

namespace skein {

/// A number of units that tasks of one loop take and give back. Neither copyable nor movable.
class semaphore {
public:
    explicit semaphore(std::size_t available) noexcept : available_(available) {}
    semaphore(const semaphore&) = delete;
    semaphore& operator=(const semaphore&) = delete;

    class awaiter : public waiter {
    public:
        awaiter(semaphore& s, std::size_t n) noexcept : semaphore_(s), need_(n) {}
        bool await_ready() noexcept { return semaphore_.try_acquire(need_); }
        template <detail::promise_with_context Promise>
        bool await_suspend(std::coroutine_handle<Promise> h) {
            if (!arm(h)) return false;
            semaphore_.waiting_.push_back(*this);
            return true;
        }
        void await_resume() const { throw_if_cancelled(); }

    protected:
        void cancel_requested() noexcept override {
            end_cancelled();
            semaphore_.serve(); // the next in line may need less
        }

    private:
        friend class semaphore;
        semaphore& semaphore_;
        std::size_t need_;
    };
    /// Suspends until n units are this task's; resumed by the loop. Throws cancelled; then none are
    /// taken.
    [[nodiscard]] awaiter acquire(std::size_t n = 1) noexcept { return awaiter(*this, n); }
    /// Takes n units if they are there and nobody waits.
    [[nodiscard]] bool try_acquire(std::size_t n = 1) noexcept {
        if (!waiting_.empty() || available_ < n) return false;
        available_ -= n;
        return true;
    }
    void release(std::size_t n = 1) noexcept {
        available_ += n;
        serve();
    }
    [[nodiscard]] std::size_t available() const noexcept { return available_; }

private:
    void serve() noexcept {
        while (!waiting_.empty()) {
            auto& first = static_cast<awaiter&>(waiting_.front());
            if (first.need_ > available_) return;
            available_ -= first.need_;
            first.wake();
        }
    }

    std::size_t available_;
    intrusive_list<waiter, waiter> waiting_;
};

/// Gives one unit back at its end, which its task has acquired. The semaphore must outlive it.
///
///     co_await turns.acquire();
///     const semaphore_permit mine(turns);
class semaphore_permit {
public:
    explicit semaphore_permit(semaphore& of) noexcept : of_(of) {}
    semaphore_permit(const semaphore_permit&) = delete;
    semaphore_permit& operator=(const semaphore_permit&) = delete;
    ~semaphore_permit() { of_.release(); }

private:
    semaphore& of_;
};

} // namespace skein
