// SPDX-License-Identifier: Apache-2.0
#pragma once
// The frames that have arrived over a connection or a link, on their way to a handler, or, while
// there is none, to who receives them.
//
// Its owner reads on unless the inbox is held: by the user, who has paused it, or by its queue,
// which is full until half of it was taken.
//
//     if (in.deliver(view)) pause();                   // it is held from now on
//     frame next = in.take();
//     if (in.eases()) read_on();
//     in.wake_next();

#include <skein/core/function.hpp>
#include <skein/core/wait.hpp>
#include <skein/net/frame.hpp>

#include <cstddef>
#include <deque>
#include <utility>

namespace skein::net::detail {

class inbox {
public:
    using handler = unique_function<void(const frame_view&)>;

    explicit inbox(std::size_t most_bytes) noexcept : most_bytes_(most_bytes) {}

    /// Hands a frame to the handler, whose exceptions pass, or queues it. True: it is full by that.
    bool deliver(const frame_view& f) {
        if (handler_) {
            call(f);
            return false;
        }
        queue_.push_back({f.kind, f.flags, f.id, f.take_body()});
        bytes_ += size_of(queue_.back());
        const bool was_full = std::exchange(full_, full_ || bytes_ > most_bytes_);
        arrived_.wake_one();
        return full_ && !was_full;
    }
    [[nodiscard]] bool is_empty() const noexcept { return queue_.empty(); }
    /// Waits until a frame arrives or wake_all(); throws cancelled.
    [[nodiscard]] wait_queue::awaiter wait() noexcept { return arrived_.wait(); }
    void wake_all() noexcept { arrived_.wake_all(); }
    /// The oldest frame; there must be one. Then eases() says whether there is room again, and
    /// wake_next() passes on a wake that a cancelled receiver took with it.
    [[nodiscard]] frame take() {
        frame f = std::move(queue_.front());
        queue_.pop_front();
        bytes_ -= size_of(f);
        return f;
    }
    void wake_next() noexcept {
        if (!queue_.empty()) arrived_.wake_one();
    }
    /// From now on frames go there; first those that wait. In a handler: from the next frame on. What
    /// it throws passes.
    void set_handler(handler to) {
        if (in_handler_) {
            replacement_ = std::move(to);
            replaced_ = true;
            return;
        }
        handler_ = std::move(to);
        while (handler_ && !queue_.empty()) {
            frame f = take();
            call({f.kind, f.flags, f.id, f.body, &f.body});
        }
    }
    /// What arrives from now on is dropped, and nothing holds it any more.
    void discard() {
        handler_ = [](const frame_view&) {};
        paused_ = full_ = false;
    }
    void clear() noexcept {
        queue_.clear();
        bytes_ = 0;
    }
    /// Lets go of the handler, and of what it keeps alive.
    void drop_handler() noexcept { handler_ = nullptr; }

    [[nodiscard]] bool is_held() const noexcept { return paused_ || full_; }
    void pause() noexcept { paused_ = true; }
    /// True: it was held by that alone.
    [[nodiscard]] bool resumes() noexcept { return std::exchange(paused_, false) && !full_; }
    /// True: it was full, has room again, and nothing else holds it.
    [[nodiscard]] bool eases() noexcept {
        if (!full_ || bytes_ > most_bytes_ / 2) return false;
        full_ = false;
        return !paused_;
    }

private:
    [[nodiscard]] static std::size_t size_of(const frame& f) noexcept {
        return f.body.size() + frame_header::bytes;
    }
    /// Keeps the handler alive while it runs, also when it sets another one.
    void call(const frame_view& f) {
        struct running {
            explicit running(inbox& of) noexcept : in(of) { of.in_handler_ = true; }
            running(const running&) = delete;
            ~running() {
                in.in_handler_ = false;
                if (std::exchange(in.replaced_, false)) in.handler_ = std::move(in.replacement_);
            }
            inbox& in;
        } guard(*this);
        handler_(f);
    }

    std::size_t most_bytes_;
    handler handler_, replacement_;
    bool in_handler_ = false, replaced_ = false;
    bool paused_ = false, full_ = false;
    std::deque<frame> queue_;
    std::size_t bytes_ = 0;
    wait_queue arrived_;
};

} // namespace skein::net::detail
