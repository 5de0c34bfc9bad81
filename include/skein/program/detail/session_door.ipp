// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of program/detail/session_door.hpp.

#include <string>

namespace skein::program::detail {

SKEIN_INLINE bool session_door::post(unique_function<void()> call) {
    const std::lock_guard lock(mutex_);
    if (!open_ || loop_ == nullptr) return false;
    loop_->post_from_any_thread(std::move(call));
    return true;
}

SKEIN_INLINE void session_door::refuse_inside(const char* what) const {
    if (is_inside())
        throw error(errc::invalid_argument,
                    std::string(what) + " on the session's own thread would wait for itself")
            .with_hint("tasks of a session await: co_await skein::remote<&f>(...) instead of "
                       "submit<&f>(...).get()");
}

SKEIN_INLINE bool session_door::is_open() const {
    const std::lock_guard lock(mutex_);
    return open_;
}

SKEIN_INLINE void session_door::close() {
    const std::lock_guard lock(mutex_);
    open_ = false;
}

SKEIN_INLINE void session_door::shut() {
    drop_handles();
    const std::lock_guard lock(mutex_);
    open_ = false;
    loop_ = nullptr;
}

SKEIN_INLINE std::shared_ptr<actor_cell> session_door::adopt(
    counted_ptr<rt::detail::actor_queue> queue) {
    std::shared_ptr<actor_cell> cell(new actor_cell(shared_from_this(), std::move(queue)),
                                     &session_door::give_back);
    cells_.push_back(*cell);
    return cell;
}

SKEIN_INLINE void session_door::drop_handles() noexcept {
    while (!cells_.empty()) {
        const auto queue = std::exchange(cells_.pop_front().queue, {});
        (void)queue;
    }
}

SKEIN_INLINE void session_door::give_back(actor_cell* cell) noexcept {
    const auto door = cell->door;
    if (!door->is_inside()) {
        const std::lock_guard lock(door->mutex_);
        if (door->loop_ != nullptr)
            return door->loop_->post_from_any_thread([cell] { delete cell; });
    }
    delete cell; // on the loop's thread, or it holds nothing
}

SKEIN_INLINE error session_closed(const rt::function_record* fn, const char* progress) {
    const std::string who = fn != nullptr && !fn->name.empty() ? fn->name : "a call";
    return error(errc::closed, who + " " + progress + ": the session was closed");
}

} // namespace skein::program::detail
