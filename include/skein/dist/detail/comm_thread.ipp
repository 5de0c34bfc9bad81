// SPDX-License-Identifier: Apache-2.0
#pragma once
// The queue of a comm_thread, and the operations that go into it.

#include <skein/core/awaitable.hpp>
#include <skein/core/constants.hpp>
#include <skein/core/sleep.hpp>
#include <skein/dist/doorbell.hpp>
#include <skein/net/loop_thread.hpp>

#include <exception>
#include <utility>

#include <fmt/core.h>

namespace skein::dist {

SKEIN_INLINE void ticket::wait() const {
    if (!state_) return;
    (void)comm_thread::go_on(*state_);
    for (int spin = 0; spin < spins && !done(); ++spin) cpu_pause();
    while (!done()) state_->phase.wait(running, std::memory_order_acquire);
    if (state_->phase.load(std::memory_order_acquire) == failed) throw *state_->why;
}

/// To the loop's thread, if nobody has taken it.
SKEIN_INLINE void ticket::hand_over() const noexcept {
    void* const rest = state_->rest.exchange(nullptr, std::memory_order_acq_rel);
    if (rest == nullptr) return;
    auto& loop = state_->owner->worker_->loop(); // it cannot go away before the rest has run
    loop.post_from_any_thread([s = state_, rest] { comm_thread::go_on_with(rest, *s); });
}

SKEIN_INLINE comm_thread::comm_thread(std::unique_ptr<net::loop_thread> worker,
                                      std::unique_ptr<communicator> comm,
                                      unique_function<void()> at_end)
    : worker_(std::move(worker)), comm_(std::move(comm)), at_end_(std::move(at_end)),
      rank_(comm_->rank()), world_size_(comm_->world_size()), name_(comm_->name()),
      prompt_(comm_->prompt()) {}

SKEIN_INLINE comm_thread::~comm_thread() {
    if (at_end_) at_end_();
    if (std::uncaught_exceptions() > 0) {
        abort(error(errc::aborted, fmt::format("rank {} leaves because of an exception", rank_)));
    }
    drain(); // also what another thread goes on with
    worker_->run([this] { return leave(); });
}

SKEIN_INLINE ticket comm_thread::submit(std::size_t bytes,
                                        unique_function<task<void>(communicator&)> start,
                                        collective_tag tag) {
    auto end = std::make_shared<ticket::state>();
    std::shared_ptr<ticket::state> before;
    bool wake = false;
    {
        const std::lock_guard lock(guard_);
        queue_.push_back(operation{end, std::move(start), bytes, tag});
        wake = !std::exchange(driving_, true);
        before = std::move(waiting_);
    }
    if (before) hand_over(std::move(before));
    if (wake) worker_->loop().post_from_any_thread([this] { tasks_.spawn(drive()); });
    return ticket(std::move(end));
}

/// submit() for collectives: on this thread as far as it goes.
SKEIN_INLINE ticket comm_thread::begin_here(std::size_t bytes,
                                            unique_function<task<void>(communicator&)> start,
                                            collective_tag tag) {
    bool mine = false;
    if (prompt_ != nullptr) {
        const std::lock_guard lock(guard_);
        mine = !std::exchange(driving_, true); // as if the loop ran: nobody else begins anything
    }
    if (!mine) return submit(bytes, std::move(start), tag);
    here_.emplace(operation{nullptr, std::move(start), bytes, tag});
    here_since_ = steady_now();
    here_ended_.reset();
    prompt_->begin_here();
    const task_context::use none(nullptr); // the rest may run on another thread
    loop::resume(run_here(this).frame);
    const auto parked = prompt_->end_here();
    if (!parked.rest) return end_here();
    // Without memory for it there is no way back: the collective has begun.
    auto state = []() noexcept { return std::make_shared<ticket::state>(); }();
    state->owner = this;
    state->rest.store(parked.rest.address(), std::memory_order_release);
    if (parked.others_wait) {
        hand_over(state);
        return ticket(std::move(state));
    }
    bool look = false;
    {
        const std::lock_guard lock(guard_);
        waiting_ = state;
        look = !std::exchange(looking_after_, true);
    }
    if (look) worker_->loop().post_from_any_thread([this] { tasks_.spawn(look_after()); });
    return ticket(std::move(state));
}

/// The loop's thread goes on with it, or a thread that waits for the ticket before.
SKEIN_INLINE void comm_thread::hand_over(std::shared_ptr<ticket::state> end) {
    worker_->loop().post_from_any_thread([end = std::move(end)] { (void)go_on(*end); });
}

/// Ends what began in its call if nobody waits for it, so that errors and deadlines are noticed.
SKEIN_INLINE task<void> comm_thread::look_after() {
    std::shared_ptr<ticket::state> seen;
    for (bool again = false; !again;) {
        auto pause = sleep_for(time_constants::lan().unwaited_collective);
        co_await pause;
        const std::lock_guard lock(guard_);
        again = waiting_ == seen; // null: nothing to look after any more
        seen = again ? std::exchange(waiting_, nullptr) : waiting_;
        if (again || !seen) looking_after_ = false;
        if (!seen) co_return;
    }
    (void)go_on(*seen);
}

/// It has an owner: begin_here() or finish_here() see it end before anything else runs.
SKEIN_INLINE skein::detail::self_owned comm_thread::run_here(comm_thread* self) {
    auto outcome = as_result(started(&*self->here_, self->comm_.get()));
    self->here_ended_.emplace(co_await std::move(outcome));
}

/// Everything went well or badly on this thread.
SKEIN_INLINE ticket comm_thread::end_here() {
    SKEIN_CHECK(here_ended_, "a collective was suspended without a place to go on");
    ticket end;
    if (!*here_ended_) {
        end = ticket(std::make_shared<ticket::state>());
        tell(*end.state_, *here_ended_);
    }
    hand_on();
    return end;
}

/// Runs the rest of a collective that began in its call, if nobody has taken it. Any thread.
SKEIN_INLINE bool comm_thread::go_on(ticket::state& end) {
    void* const rest = end.rest.exchange(nullptr, std::memory_order_acq_rel);
    if (rest == nullptr) return false;
    go_on_with(rest, end);
    return true;
}

/// driving_ is still true: the owner cannot go away before it is not.
SKEIN_INLINE void comm_thread::go_on_with(void* rest, ticket::state& end) {
    auto* const owner = end.owner;
    loop::resume(std::coroutine_handle<>::from_address(rest));
    owner->finish_here(end);
}

SKEIN_INLINE void comm_thread::finish_here(ticket::state& end) {
    SKEIN_CHECK(here_ended_, "a collective was suspended a second time");
    {
        const std::lock_guard lock(guard_);
        forget_here();
    }
    tell(end, *here_ended_);
    hand_on();
}

/// It has ended: nothing of the caller's is touched from here on. guard_ is held.
SKEIN_INLINE void comm_thread::forget_here() {
    record(*here_, here_since_);
    here_.reset();
    waiting_ = nullptr;
}

/// Lets the loop's thread go on with what is queued.
SKEIN_INLINE void comm_thread::hand_on() {
    bool more = false;
    {
        const std::lock_guard lock(guard_);
        if (here_) forget_here();
        more = driving_ = !queue_.empty();
        if (!more) idle_.notify_all();
    }
    if (more) worker_->loop().post_from_any_thread([this] { tasks_.spawn(drive()); });
}

/// For stats(); guard_ is held.
SKEIN_INLINE void comm_thread::record(const operation& op, time_point begin) {
    stats_.operations += 1;
    stats_.bytes += op.bytes;
    stats_.busy += steady_now() - begin;
}

SKEIN_INLINE void comm_thread::tell(ticket::state& end, const result<void>& outcome) {
    if (!outcome) end.why = outcome.error();
    end.phase.store(outcome ? ticket::succeeded : ticket::failed, std::memory_order_release);
    end.phase.notify_all();
}

SKEIN_INLINE std::optional<comm_thread::operation> comm_thread::take() {
    const std::lock_guard lock(guard_);
    if (queue_.empty()) {
        driving_ = false;
        idle_.notify_all();
        return std::nullopt;
    }
    std::optional<operation> next(std::move(queue_.front()));
    queue_.pop_front();
    return next;
}

SKEIN_INLINE task<void> comm_thread::started(operation* op, communicator* comm) {
    comm->set_tag(op->tag);
    auto work = op->start(*comm);
    co_await std::move(work);
}

/// Runs what is queued, in order, on the loop's thread.
SKEIN_INLINE task<void> comm_thread::drive() {
    while (auto op = take()) {
        const time_point begin = steady_now();
        auto outcome = as_result(started(&*op, comm_.get()));
        auto ended = co_await std::move(outcome);
        {
            const std::lock_guard lock(guard_);
            record(*op, begin);
        }
        tell(*op->end, ended);
    }
}

SKEIN_INLINE task<void> comm_thread::leave() {
    tasks_.cancel(); // look_after(): everything else has ended
    auto joined = as_result(tasks_.join());
    auto ignored = co_await std::move(joined);
    (void)ignored;
    auto closing = as_result(comm_->close());
    auto closed = co_await std::move(closing);
    (void)closed;
    comm_.reset(); // its streams end on their own loop
}

SKEIN_INLINE ticket comm_thread::all_reduce(buffer_view io, reduce_op op, collective_tag tag) {
    return begin_here(io.bytes(), [=](communicator& c) { return c.all_reduce(io, op); }, tag);
}
SKEIN_INLINE ticket comm_thread::reduce_scatter(buffer_view in, buffer_view out, reduce_op op,
                                                collective_tag tag) {
    return begin_here(
        in.bytes(), [=](communicator& c) { return c.reduce_scatter(in, out, op); }, tag);
}
SKEIN_INLINE ticket comm_thread::reduce_scatter_v(buffer_view io, std::vector<std::size_t> counts,
                                                  reduce_op op, collective_tag tag) {
    auto start = [io, op, counts = std::move(counts)](communicator& c) {
        return c.reduce_scatter_v(io, counts, op);
    };
    return begin_here(io.bytes(), std::move(start), tag);
}
SKEIN_INLINE ticket comm_thread::reduce_scatter_v(buffer_view io, std::vector<std::size_t> counts,
                                                  buffer_view out, reduce_op op,
                                                  collective_tag tag) {
    auto start = [io, out, op, counts = std::move(counts)](communicator& c) {
        return c.reduce_scatter_v(io, counts, out, op);
    };
    return begin_here(io.bytes(), std::move(start), tag);
}
SKEIN_INLINE ticket comm_thread::all_gather(buffer_view in, buffer_view out, collective_tag tag) {
    return begin_here(out.bytes(), [=](communicator& c) { return c.all_gather(in, out); }, tag);
}
SKEIN_INLINE ticket comm_thread::all_gather_v(buffer_view in, buffer_view out,
                                              std::vector<std::size_t> counts, collective_tag tag) {
    auto start = [in, out, counts = std::move(counts)](communicator& c) {
        return c.all_gather_v(in, out, counts); // the operation, and so counts, outlives the task
    };
    return begin_here(out.bytes(), std::move(start), tag);
}
SKEIN_INLINE ticket comm_thread::broadcast(buffer_view io, int root, collective_tag tag) {
    return begin_here(io.bytes(), [=](communicator& c) { return c.broadcast(io, root); }, tag);
}
SKEIN_INLINE ticket comm_thread::barrier(collective_tag tag) {
    return begin_here(0, [](communicator& c) { return c.barrier(); }, tag);
}
SKEIN_INLINE task<void> comm_thread::allocate_into(communicator& comm, std::size_t bytes,
                                                   memory_kind kind,
                                                   std::shared_ptr<group_memory>* made) {
    auto making = comm.allocate(bytes, kind);
    *made = co_await std::move(making);
}

SKEIN_INLINE std::shared_ptr<group_memory> comm_thread::allocate(std::size_t bytes,
                                                                 memory_kind kind) {
    std::shared_ptr<group_memory> made;
    auto end =
        submit(0, [=, to = &made](communicator& c) { return allocate_into(c, bytes, kind, to); });
    end.wait();
    return made;
}
SKEIN_INLINE ticket comm_thread::send(buffer_view io, int to) {
    return submit(io.bytes(), [=](communicator& c) { return c.send(io, to); });
}
SKEIN_INLINE ticket comm_thread::recv(buffer_view io, int from) {
    return submit(io.bytes(), [=](communicator& c) { return c.recv(io, from); });
}

SKEIN_INLINE void comm_thread::abort(error why) noexcept { comm_->abort(std::move(why)); }

SKEIN_INLINE void comm_thread::drain() noexcept {
    std::unique_lock lock(guard_);
    if (waiting_) hand_over(std::exchange(waiting_, nullptr));
    idle_.wait(lock, [this] { return !driving_; });
}

SKEIN_INLINE task<void> comm_thread::apply_deadline(communicator& comm, duration limit) {
    comm.set_deadline(limit);
    co_return;
}

SKEIN_INLINE void comm_thread::set_deadline(time_span limit) {
    auto ordered = submit(0, [limit](communicator& c) { return apply_deadline(c, limit); });
    (void)ordered;
}

SKEIN_INLINE comm_stats comm_thread::stats() const {
    const std::lock_guard lock(guard_);
    return stats_;
}

SKEIN_INLINE std::shared_ptr<const call_record> calls_of(const comm_thread& comm) {
    return comm.comm_->calls();
}

SKEIN_INLINE bool reaches(const comm_thread& comm, device where) noexcept {
    return comm.comm_->reaches(where);
}

} // namespace skein::dist
