// SPDX-License-Identifier: Apache-2.0
#pragma once
// channel<T>: a bounded queue between tasks of one loop. Values come out in the order they went in,
// each to exactly one receiver; a full channel makes its senders wait (back-pressure). Capacity 0
// is a rendezvous: a send ends when its value is received.
//
//     while (auto item = co_await jobs.receive()) use(*item);

#include <skein/core/wait.hpp>

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

namespace skein {

/// A queue of at most `capacity` values between tasks of one loop. Neither copyable nor movable.
template <class T>
class channel {
public:
    explicit channel(std::size_t capacity) noexcept : capacity_(capacity) {}
    channel(const channel&) = delete;
    channel& operator=(const channel&) = delete;

    class send_awaiter : public waiter {
    public:
        send_awaiter(channel& c, T value) : channel_(c), value_(std::move(value)) {}
        bool await_ready() {
            if (channel_.closed_) return true;
            sent_ = channel_.offer(value_);
            return sent_;
        }
        template <detail::promise_with_context Promise>
        bool await_suspend(std::coroutine_handle<Promise> h) {
            if (!arm(h)) return false;
            channel_.senders_.push_back(*this);
            return true;
        }
        void await_resume() const {
            if (sent_) return;
            throw_if_cancelled();
            throw error(errc::closed, "send on a closed channel");
        }

    private:
        friend class channel;
        channel& channel_;
        T value_;
        bool sent_ = false;
    };

    class receive_awaiter : public waiter {
    public:
        explicit receive_awaiter(channel& c) noexcept : channel_(c) {}
        bool await_ready() {
            value_ = channel_.try_receive();
            return value_.has_value() || channel_.closed_;
        }
        template <detail::promise_with_context Promise>
        bool await_suspend(std::coroutine_handle<Promise> h) {
            if (!arm(h)) return false;
            channel_.receivers_.push_back(*this);
            return true;
        }
        std::optional<T> await_resume() {
            if (!value_) throw_if_cancelled();
            return std::move(value_);
        }

    private:
        friend class channel;
        channel& channel_;
        std::optional<T> value_;
    };

    /// Suspends while the channel is full; resumed by the loop. Throws closed, or cancelled (then
    /// the value was not sent).
    [[nodiscard]] send_awaiter send(T value) { return send_awaiter(*this, std::move(value)); }
    /// Suspends until there is a value; nothing when the channel is closed and empty. Throws
    /// cancelled; then no value is taken.
    [[nodiscard]] receive_awaiter receive() noexcept { return receive_awaiter(*this); }

    /// Sends if there is space; false if not, or if closed (value is then unchanged).
    [[nodiscard]] bool try_send(T& value) { return !closed_ && offer(value); }
    [[nodiscard]] bool try_send(T&& value) { return !closed_ && offer(value); }

    /// Takes a value if there is one.
    [[nodiscard]] std::optional<T> try_receive() {
        std::optional<T> out;
        if (!queue_.empty()) {
            out.emplace(std::move(queue_.front()));
            queue_.pop_front();
            if (!senders_.empty()) queue_.push_back(take_from_sender());
        } else if (!senders_.empty()) {
            out.emplace(take_from_sender());
        }
        return out;
    }

    /// No more sends: those that wait throw closed, receivers drain what is queued and then get
    /// nothing.
    void close() noexcept {
        closed_ = true;
        while (!senders_.empty()) senders_.front().wake();
        while (!receivers_.empty()) receivers_.front().wake();
    }
    [[nodiscard]] bool is_closed() const noexcept { return closed_; }
    [[nodiscard]] std::size_t size() const noexcept { return queue_.size(); }

private:
    bool offer(T& value) {
        if (!receivers_.empty()) {
            auto& first = static_cast<receive_awaiter&>(receivers_.front());
            first.value_.emplace(std::move(value));
            first.wake();
            return true;
        }
        if (queue_.size() >= capacity_) return false;
        queue_.push_back(std::move(value));
        return true;
    }
    T take_from_sender() {
        auto& first = static_cast<send_awaiter&>(senders_.front());
        T value = std::move(first.value_);
        first.sent_ = true;
        first.wake();
        return value;
    }

    std::size_t capacity_;
    bool closed_ = false;
    std::deque<T> queue_;
    intrusive_list<waiter, waiter> senders_, receivers_;
};

} // namespace skein
