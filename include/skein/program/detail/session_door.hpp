// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the threads of a program share with the loop of their session: a door through which calls go
// in, and the handles that came out.
//
//     open     calls of threads go in, in the order in which they come
//     closed   they are refused; what was taken before still runs, and handles are given back
//     shut     the loop takes nothing; handles that are left hold nothing any more

#include <skein/core/error.hpp>
#include <skein/core/function.hpp>
#include <skein/core/intrusive_list.hpp>
#include <skein/core/loop.hpp>
#include <skein/rt/detail/call.hpp>

#include <memory>
#include <mutex>
#include <utility>

namespace skein::program::detail {

class session_door;

/// A handle that threads share: its queue is the loop's, and is touched nowhere else.
struct actor_cell : list_node<actor_cell> {
    actor_cell(std::shared_ptr<session_door> of, counted_ptr<rt::detail::actor_queue> to)
        : door(std::move(of)), id(to->id), queue(std::move(to)) {}
    using list_node<actor_cell>::unlink;

    const std::shared_ptr<session_door> door;
    const actor_id id;
    counted_ptr<rt::detail::actor_queue> queue; ///< empty: the session has ended
};

/// Shared by a session and all that it has given out; outlives the loop.
class session_door : public std::enable_shared_from_this<session_door> {
public:
    session_door(loop& to, rt::runtime& calls_through) noexcept
        : self(&calls_through), loop_(&to), inside_(&to) {}

    /// Any thread: queues a call on the loop and wakes it. The call must not throw. False: closed,
    /// and it was not taken.
    [[nodiscard]] bool post(unique_function<void()> call);
    /// Any thread but the loop's: true there, where waiting for the loop would never end.
    [[nodiscard]] bool is_inside() const noexcept { return loop::try_current() == inside_; }
    /// Throws if it is called inside.
    void refuse_inside(const char* what) const;
    [[nodiscard]] bool is_open() const;
    /// Any thread: threads are refused from now on.
    void close();

    // The loop's:

    /// A handle for threads; its last copy, wherever it goes, brings the queue back here.
    [[nodiscard]] std::shared_ptr<actor_cell> adopt(counted_ptr<rt::detail::actor_queue> queue);
    /// Lets go of the queues of all handles that are out.
    void drop_handles() noexcept;
    void shut();

    rt::runtime* const self; ///< what calls go through; only on the loop's thread, until it is shut

private:
    static void give_back(actor_cell* cell) noexcept;

    mutable std::mutex mutex_; // guards loop_ and open_
    loop* loop_;               ///< nullptr: shut
    bool open_ = true;
    const loop* const inside_; ///< to compare with, never to use
    intrusive_list<actor_cell, actor_cell> cells_;
};

/// What all threads are told that come too late.
[[nodiscard]] error session_closed(const rt::function_record* fn, const char* progress);

} // namespace skein::program::detail

#if SKEIN_HEADER_ONLY
#include <skein/program/detail/session_door.ipp>
#endif
