// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who wants to know that a rank is lost: any number of listeners, each until its subscription ends.
//
//     loss_listeners losses;
//     auto watching = losses.add([&](int rank, const error& why) { abort(rank, why); });
//     losses.tell(3, why);      // on any thread; once
//     watching.reset();         // from here on the listener does not run

#include <skein/core/config.hpp>
#include <skein/core/error.hpp>
#include <skein/core/function.hpp>
#include <skein/core/time.hpp>

#include <memory>
#include <utility>

namespace skein::spmd {

/// A listener is heard while this lives. It may outlive what it listens to.
class [[nodiscard]] subscription {
public:
    subscription() = default;
    explicit subscription(unique_function<void()> end) : end_(std::move(end)) {}
    subscription(subscription&& other) noexcept : end_(std::move(other.end_)) {}
    subscription& operator=(subscription&& other) noexcept {
        reset();
        end_ = std::move(other.end_);
        return *this;
    }
    ~subscription() { reset(); }

    /// Ends it: when this returns the listener has ended and does not run again. The listener
    /// itself may call it.
    void reset() noexcept {
        if (!end_) return;
        auto end = std::move(end_);
        end();
    }
    [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(end_); }

private:
    unique_function<void()> end_;
};

/// The listeners of one world and the loss they wait for. Every member may be called on any thread.
class loss_listeners {
public:
    using listener = unique_function<void(int rank, const error& why)>;

    loss_listeners();

    /// The listener runs once: on the thread that calls tell(), or here and now if that has
    /// happened.
    [[nodiscard]] subscription add(listener told);
    /// Says who is lost. Only the first call counts: what is lost later is mostly an echo.
    void tell(int rank, const error& why);
    /// Blocks until tell(), at most so long; false if nothing was told.
    [[nodiscard]] bool wait(time_span limit);

private:
    struct state;
    std::shared_ptr<state> state_;
};

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/loss_listeners.ipp>
#endif
