// SPDX-License-Identifier: Apache-2.0
#pragma once
// The coroutines of a scope: g++ would put them into every object file that sees them.

#include <exception>
#include <utility>

namespace skein {

SKEIN_INLINE task<void> scope::join() {
    auto* outer = co_await detail::current_cancel{};
    parent_link link(*this);
    if (outer != nullptr) outer->add(link);
    while (running_ != 0) {
        auto ended = idle_.wait_uncancellable();
        co_await ended;
    }
    link.unlink();
    if (auto failure = std::exchange(failure_, nullptr)) std::rethrow_exception(std::move(failure));
    if (outer != nullptr && outer->requested()) throw cancelled_error();
}

SKEIN_INLINE detail::self_owned scope::run_child(scope* owner, task<void> work) {
    std::exception_ptr failure;
    try {
        co_await work;
    } catch (...) {
        failure = std::current_exception();
    }
    work = {};
    owner->child_ended(std::move(failure));
}

SKEIN_INLINE void scope::child_ended(std::exception_ptr failure) noexcept {
    if (failure && !failure_ && !(cancel_.requested() && is_cancelled(failure))) {
        failure_ = std::move(failure);
        cancel_.request();
        if (body_ != nullptr) body_->request();
    }
    if (--running_ == 0) idle_.wake_all();
}

SKEIN_INLINE bool scope::is_cancelled(const std::exception_ptr& failure) noexcept {
    try {
        std::rethrow_exception(failure);
    } catch (const error& e) {
        return e.code() == errc::cancelled;
    } catch (...) {
        return false;
    }
}

} // namespace skein
