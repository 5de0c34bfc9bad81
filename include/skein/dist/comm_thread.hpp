// SPDX-License-Identifier: Apache-2.0
#pragma once
// A communicator on its own thread, so that collectives run beside the compute thread's work.
//
// Operations are submitted from the compute thread, run one at a time in the order of submission,
// and end with a ticket. Buffers stay with the caller and must live until the ticket is done.
//
//     ticket t = comm.all_reduce(bucket, reduce_op::mean);   // returns at once
//     ... more backward ...
//     t.wait();                                              // throws if the collective failed

#include <skein/core/awaitable.hpp>
#include <skein/core/error.hpp>
#include <skein/core/function.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/dist/communicator.hpp>
#include <skein/dist/doorbell.hpp>
#include <skein/net/loop_thread.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace skein::dist {

/// The end of one submitted operation. Copies share it; any thread may ask or wait.
class [[nodiscard]] ticket {
public:
    /// An already finished one.
    ticket() = default;

    [[nodiscard]] bool done() const noexcept {
        return !state_ || state_->phase.load(std::memory_order_acquire) != running;
    }
    /// Blocks until the operation has ended; throws its error. May be called again.
    void wait() const {
        if (!state_) return;
        for (int spin = 0; spin < spins && !done(); ++spin) cpu_pause();
        while (!done()) state_->phase.wait(running, std::memory_order_acquire);
        if (state_->phase.load(std::memory_order_acquire) == failed) throw *state_->why;
    }

private:
    friend class comm_thread;
    static constexpr std::uint32_t running = 0, succeeded = 1, failed = 2;
    static constexpr int spins = 200; // about 5 us: longer costs the comm thread its core
    struct state {
        std::atomic<std::uint32_t> phase{running};
        std::optional<error> why; // written before phase becomes failed
    };
    explicit ticket(std::shared_ptr<state> s) : state_(std::move(s)) {}
    std::shared_ptr<state> state_;
};

/// Sums of what a comm_thread has done; for overlap and bandwidth reports.
struct comm_stats {
    std::uint64_t operations = 0;
    std::uint64_t bytes = 0; ///< of the buffers given, not of the wire
    duration busy{};         ///< time in which an operation was running
};

/// Owns the loop thread and the communicator. Submit from one thread (the compute thread);
/// abort() and stats() from any. The destructor ends the running operations in order, then leaves
/// the group in an orderly way; when it runs because of an exception, it aborts the group.
class comm_thread {
public:
    /// comm must live on worker's loop. at_end runs first of all in the destructor: it takes back what
    /// others may still call (rendezvous::on_lost).
    comm_thread(std::unique_ptr<net::loop_thread> worker, any_communicator comm,
                unique_function<void()> at_end = {})
        : worker_(std::move(worker)), comm_(std::move(comm)), at_end_(std::move(at_end)),
          rank_(comm_.rank()), world_size_(comm_.world_size()), name_(comm_.name()) {}
    comm_thread(const comm_thread&) = delete;
    comm_thread& operator=(const comm_thread&) = delete;
    ~comm_thread();

    [[nodiscard]] int rank() const noexcept { return rank_; }
    [[nodiscard]] int world_size() const noexcept { return world_size_; }
    [[nodiscard]] const std::string& name() const noexcept { return name_; }

    // Each returns at once; see the communicator concept for the meaning.
    ticket all_reduce(buffer_view io, reduce_op op);
    ticket reduce_scatter(buffer_view in, buffer_view out, reduce_op op);
    ticket all_gather(buffer_view in, buffer_view out);
    ticket all_gather_v(buffer_view in, buffer_view out, std::vector<std::size_t> counts);
    ticket broadcast(buffer_view io, int root);
    ticket barrier();
    ticket send(buffer_view io, int to);
    ticket recv(buffer_view io, int from);

    /// Any thread: fails the running, the queued and every later operation, here and at the peers.
    void abort(error why) noexcept;
    /// Blocks until everything submitted has ended, well or not. Whoever owns buffers calls it before
    /// they go away, after abort() when nobody may wait for peers any more.
    void drain() noexcept;
    /// For the operations submitted after it.
    void set_deadline(duration limit);
    [[nodiscard]] comm_stats stats() const;
    /// The loop it runs on, for other work that should share the thread.
    [[nodiscard]] net::loop_thread& worker() noexcept { return *worker_; }

private:
    struct operation {
        std::shared_ptr<ticket::state> end;
        unique_function<task<void>(any_communicator&)> start;
        std::size_t bytes = 0;
    };
    ticket submit(std::size_t bytes, unique_function<task<void>(any_communicator&)> start);
    task<void> drive();
    /// A model may throw before it gives a task: that is the operation's error too.
    static task<void> started(operation* op, any_communicator* comm) {
        auto work = op->start(*comm);
        co_await std::move(work);
    }
    task<void> leave();
    std::optional<operation> take();
    static task<void> apply_deadline(any_communicator& comm, duration limit) {
        comm.set_deadline(limit);
        co_return;
    }

    std::unique_ptr<net::loop_thread> worker_;
    any_communicator comm_;
    unique_function<void()> at_end_;
    scope tasks_; // of the loop's thread
    int rank_ = 0, world_size_ = 1;
    std::string name_;

    mutable std::mutex guard_; // the fields below
    std::deque<operation> queue_;
    bool driving_ = false;
    std::condition_variable idle_; // driving_ became false
    comm_stats stats_;
};

inline comm_thread::~comm_thread() {
    if (at_end_) at_end_();
    if (std::uncaught_exceptions() > 0) {
        abort(error(errc::aborted, fmt::format("rank {} leaves because of an exception", rank_)));
    }
    worker_->run([this] { return leave(); });
}

inline ticket comm_thread::submit(std::size_t bytes,
                                  unique_function<task<void>(any_communicator&)> start) {
    auto end = std::make_shared<ticket::state>();
    bool wake = false;
    {
        const std::lock_guard lock(guard_);
        queue_.push_back(operation{end, std::move(start), bytes});
        wake = !std::exchange(driving_, true);
    }
    if (wake) worker_->loop().post_from_any_thread([this] { tasks_.spawn(drive()); });
    return ticket(std::move(end));
}

inline std::optional<comm_thread::operation> comm_thread::take() {
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

/// Runs what is queued, in order, on the loop's thread.
inline task<void> comm_thread::drive() {
    while (auto op = take()) {
        const time_point begin = steady_now();
        auto outcome = as_result(started(&*op, &comm_));
        auto ended = co_await std::move(outcome);
        {
            const std::lock_guard lock(guard_);
            stats_.operations += 1;
            stats_.bytes += op->bytes;
            stats_.busy += steady_now() - begin;
        }
        if (!ended) op->end->why = ended.error();
        op->end->phase.store(ended ? ticket::succeeded : ticket::failed, std::memory_order_release);
        op->end->phase.notify_all();
    }
}

inline task<void> comm_thread::leave() {
    auto joined = as_result(tasks_.join());
    auto ignored = co_await std::move(joined);
    (void)ignored;
    auto closing = as_result(comm_.close());
    auto closed = co_await std::move(closing);
    (void)closed;
    comm_ = any_communicator(); // its streams end on their own loop
}

inline ticket comm_thread::all_reduce(buffer_view io, reduce_op op) {
    return submit(io.bytes(), [=](any_communicator& c) { return c.all_reduce(io, op); });
}
inline ticket comm_thread::reduce_scatter(buffer_view in, buffer_view out, reduce_op op) {
    return submit(in.bytes(), [=](any_communicator& c) { return c.reduce_scatter(in, out, op); });
}
inline ticket comm_thread::all_gather(buffer_view in, buffer_view out) {
    return submit(out.bytes(), [=](any_communicator& c) { return c.all_gather(in, out); });
}
inline ticket comm_thread::all_gather_v(buffer_view in, buffer_view out,
                                        std::vector<std::size_t> counts) {
    return submit(out.bytes(), [in, out, counts = std::move(counts)](any_communicator& c) {
        return c.all_gather_v(in, out, counts); // the operation, and so counts, outlives the task
    });
}
inline ticket comm_thread::broadcast(buffer_view io, int root) {
    return submit(io.bytes(), [=](any_communicator& c) { return c.broadcast(io, root); });
}
inline ticket comm_thread::barrier() {
    return submit(0, [](any_communicator& c) { return c.barrier(); });
}
inline ticket comm_thread::send(buffer_view io, int to) {
    return submit(io.bytes(), [=](any_communicator& c) { return c.send(io, to); });
}
inline ticket comm_thread::recv(buffer_view io, int from) {
    return submit(io.bytes(), [=](any_communicator& c) { return c.recv(io, from); });
}

inline void comm_thread::abort(error why) noexcept { comm_.abort(std::move(why)); }

inline void comm_thread::drain() noexcept {
    std::unique_lock lock(guard_);
    idle_.wait(lock, [this] { return !driving_; });
}

inline void comm_thread::set_deadline(duration limit) {
    auto ordered = submit(0, [limit](any_communicator& c) { return apply_deadline(c, limit); });
    (void)ordered;
}

inline comm_stats comm_thread::stats() const {
    const std::lock_guard lock(guard_);
    return stats_;
}

} // namespace skein::dist
