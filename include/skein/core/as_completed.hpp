// SPDX-License-Identifier: Apache-2.0
#pragma once
// as_completed: outcomes in the order in which tasks end.
//
//     auto results = as_completed(std::move(tasks));
//     while (auto done = co_await results.next()) use(done->index, done->value);
//
// Leaving early is fine, by break or by an exception: the tasks that still run are cancelled, and
// the loop waits for their end. They end after the stream then: they must not refer to what ends
// with its reader (refs do not). co_await close() waits here and now.

#include <skein/core/all.hpp>
#include <skein/core/channel.hpp>
#include <skein/core/result.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace skein {

/// One task's end: which it was and its value or error.
template <class T>
struct completed {
    std::size_t index = 0;
    result<T> value;
};

/// The stream of ends. Move-only; runs its tasks from construction on.
template <class T>
class completion_stream {
public:
    explicit completion_stream(std::vector<task<T>> work)
        : state_(std::make_unique<state>(work.size())) {
        for (std::size_t i = 0; i < work.size(); ++i) {
            state_->children.spawn(report(std::move(work[i]), i, state_.get()));
        }
    }

    /// The next that ended, or nothing when all have. Resumed by the loop; throws cancelled.
    [[nodiscard]] task<std::optional<completed<T>>> next() {
        if (state_->left == 0) {
            auto joined = state_->children.join();
            co_await joined;
            co_return std::nullopt;
        }
        auto received = co_await state_->ended.receive();
        --state_->left;
        co_return received;
    }
    /// Cancels what still runs and waits for its end.
    [[nodiscard]] task<void> close() {
        state_->children.cancel();
        auto joined = state_->children.join();
        auto sure = shield(std::move(joined));
        co_await sure;
    }

    completion_stream(completion_stream&&) noexcept = default;
    completion_stream& operator=(completion_stream&& other) noexcept {
        std::swap(state_, other.state_);
        return *this;
    }
    ~completion_stream() {
        if (!state_ || state_->children.size() == 0) return;
        state_->children.cancel();
        loop::current().adopt(clear(std::move(state_)));
    }

private:
    struct state {
        explicit state(std::size_t n) : left(n), ended(n) {}
        std::size_t left;
        channel<completed<T>> ended;
        scope children;
    };
    static task<void> report(task<T> work, std::size_t index, state* s) {
        auto guarded = as_result(std::move(work));
        auto value = co_await guarded;
        (void)s->ended.try_send(completed<T>{index, std::move(value)});
    }

    static task<void> clear(std::unique_ptr<state> left) {
        auto joined = left->children.join();
        co_await joined;
    }

    std::unique_ptr<state> state_;
};

template <class T>
[[nodiscard]] completion_stream<T> as_completed(std::vector<task<T>> work) {
    return completion_stream<T>(std::move(work));
}
/// The same for refs.
template <task_like A>
    requires(!requires { typename A::promise_type; })
[[nodiscard]] auto as_completed(std::vector<A> work) {
    std::vector<decltype(as_task(std::declval<A>()))> tasks;
    tasks.reserve(work.size());
    for (auto& w : work) tasks.push_back(as_task(std::move(w)));
    return as_completed(std::move(tasks));
}

} // namespace skein
