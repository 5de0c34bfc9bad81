// SPDX-License-Identifier: Apache-2.0
#pragma once
// backlog: calls that have come and wait behind others that have run for long.
//
//     closed   arrivals run as they come
//     open     arrivals wait here, in their order
//     full     the same, and nothing more is read from those whose calls wait: until half of the
//              bytes have gone
//
// A call that is cancelled meanwhile keeps its place, and is told apart when its turn comes.
//
//     backlog waiting;
//     waiting.open();
//     waiting.push(std::move(one));
//     while (!waiting.empty()) run(waiting.take());
//     waiting.read_on(callers);
//     waiting.close(callers);

#include <skein/rt/detail/arrived_call.hpp>

#include <cstddef>
#include <deque>
#include <vector>

namespace skein::rt::detail {

class backlog {
public:
    [[nodiscard]] bool is_open() const noexcept { return is_open_; }
    void open() noexcept { is_open_ = true; }
    [[nodiscard]] bool empty() const noexcept { return waiting_.empty(); }

    void push(arrival one);
    /// The first one.
    [[nodiscard]] arrival take();
    [[nodiscard]] std::size_t size() const noexcept { return waiting_.size(); }
    /// The objects that one of them names; null: it names none.
    [[nodiscard]] const std::shared_ptr<arrived_objects>& objects_of(std::size_t i) const {
        return waiting_[i].objects;
    }
    /// So many calls have their objects read: while one runs those of the next come back from files.
    static constexpr std::size_t read_ahead = 2;
    /// Reads again from those callers that were paused, if there is room.
    void read_on(const std::vector<peer*>& callers);
    /// All that waited has run.
    void close(const std::vector<peer*>& callers);

    /// The caller does not want the outcome of a call that may wait here.
    void cancel(peer& caller, slot_id id);
    /// Whether a call that was taken has been cancelled.
    [[nodiscard]] static bool was_cancelled(const arrival& one);
    /// What waits of a caller that has gone never runs.
    void drop(const peer& caller);

private:
    std::deque<arrival> waiting_;
    std::size_t bytes_ = 0;
    bool is_open_ = false;
    bool is_full_ = false;
};

} // namespace skein::rt::detail

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/backlog.ipp>
#endif
