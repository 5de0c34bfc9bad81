// SPDX-License-Identifier: Apache-2.0
#pragma once
// A communicator on its own thread, so that collectives run beside the compute thread's work.
//
// Operations are submitted from the compute thread, run one at a time in the order of submission,
// and end with a ticket. Buffers stay with the caller and must live until the ticket is done.
//
// When nothing is queued or running, a small collective of a model that can (communicator::prompt)
// begins in the call itself: what this rank brings is there for the others when it returns. It
// looks for them for a microsecond or two; if they have come, the ticket is done at once. Else a
// thread that waits for the ticket ends it, and the communicator's thread is not woken; that one
// does it if the ticket is asked (done()), if something is submitted behind it, or after some
// milliseconds. Larger collectives, whose other ranks wait for this one's work, go to that thread
// at once, and whoever is first does them: it, or a thread that waits for the ticket.
//
//     ticket t = comm.all_reduce(bucket, reduce_op::mean);   // returns at once
//     ... more backward ...
//     t.wait();                                              // throws if the collective failed

#include <skein/core/error.hpp>
#include <skein/core/function.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/result.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/dist/communicator.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace skein::net {
class loop_thread;
}

namespace skein::dist {

class comm_thread;

/// The end of one submitted operation, for the host. Copies share it; any thread may ask or wait. A
/// model that orders its work on a device's stream will keep its event in the shared state.
class [[nodiscard]] ticket {
public:
    /// An already finished one.
    ticket() = default;

    [[nodiscard]] bool done() const noexcept {
        if (!state_ || state_->phase.load(std::memory_order_acquire) != running) return true;
        hand_over(); // for the next time
        return false;
    }
    /// Blocks until the operation has ended; throws its error. May be called again.
    void wait() const;

private:
    friend class comm_thread;
    static constexpr std::uint32_t running = 0, succeeded = 1, failed = 2;
    static constexpr int spins = 200; // about 5 us: longer costs the comm thread its core
    struct state {
        std::atomic<std::uint32_t> phase{running};
        std::optional<error> why; // written before phase becomes failed
        // A collective that was suspended in its call, for whoever takes it first; and whose it is.
        std::atomic<void*> rest{nullptr};
        comm_thread* owner = nullptr; // lives until the phase has changed
    };
    explicit ticket(std::shared_ptr<state> s) : state_(std::move(s)) {}
    void hand_over() const noexcept;
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
    friend class ticket;
    friend std::shared_ptr<const call_record> calls_of(const comm_thread& comm);
    friend bool reaches(const comm_thread& comm, device where) noexcept;

public:
    /// comm must live on worker's loop. at_end runs first of all in the destructor: it takes back
    /// what others may still call (rendezvous::on_lost).
    comm_thread(std::unique_ptr<net::loop_thread> worker, std::unique_ptr<communicator> comm,
                unique_function<void()> at_end = {});
    comm_thread(const comm_thread&) = delete;
    comm_thread& operator=(const comm_thread&) = delete;
    ~comm_thread();

    [[nodiscard]] int rank() const noexcept { return rank_; }
    [[nodiscard]] int world_size() const noexcept { return world_size_; }
    [[nodiscard]] const std::string& name() const noexcept { return name_; }

    /// Any work on the communicator as an operation; returns at once. What `start` holds lives
    /// until the operation has ended.
    ///   bytes  of the buffers, for stats()
    ///   tag    of every collective in it that sets none itself
    ticket submit(std::size_t bytes, unique_function<task<void>(communicator&)> start,
                  collective_tag tag = {});

    // The same for each collective; see communicator for the meaning.
    ticket all_reduce(buffer_view io, reduce_op op, collective_tag tag = {});
    ticket reduce_scatter(buffer_view in, buffer_view out, reduce_op op, collective_tag tag = {});
    ticket reduce_scatter_v(buffer_view io, std::vector<std::size_t> counts, reduce_op op,
                            collective_tag tag = {});
    ticket reduce_scatter_v(buffer_view io, std::vector<std::size_t> counts, buffer_view out,
                            reduce_op op, collective_tag tag = {});
    ticket all_gather(buffer_view in, buffer_view out, collective_tag tag = {});
    ticket all_gather_v(buffer_view in, buffer_view out, std::vector<std::size_t> counts,
                        collective_tag tag = {});
    ticket broadcast(buffer_view io, int root, collective_tag tag = {});
    ticket barrier(collective_tag tag = {});
    /// Blocks until the operations before it have ended and all ranks have called it.
    [[nodiscard]] std::shared_ptr<group_memory> allocate(std::size_t bytes, memory_kind kind);
    ticket send(buffer_view io, int to);
    ticket recv(buffer_view io, int from);

    /// Any thread: fails the running, the queued and every later operation, here and at the peers.
    void abort(error why) noexcept;
    /// Blocks until everything submitted has ended, well or not. Whoever owns buffers calls it
    /// before they go away, after abort() when nobody may wait for peers any more.
    void drain() noexcept;
    /// For the operations submitted after it.
    void set_deadline(time_span limit);
    [[nodiscard]] comm_stats stats() const;
    /// The loop it runs on, for other work that should share the thread.
    [[nodiscard]] net::loop_thread& worker() noexcept { return *worker_; }

private:
    struct operation {
        std::shared_ptr<ticket::state> end;
        unique_function<task<void>(communicator&)> start;
        std::size_t bytes = 0;
        collective_tag tag;
    };
    ticket begin_here(std::size_t bytes, unique_function<task<void>(communicator&)> start,
                      collective_tag tag);
    static skein::detail::self_owned run_here(comm_thread* self);
    ticket end_here();
    static bool go_on(ticket::state& end);
    static void go_on_with(void* rest, ticket::state& end);
    void finish_here(ticket::state& end);
    void hand_over(std::shared_ptr<ticket::state> end);
    task<void> look_after();
    void forget_here();
    void hand_on();
    void record(const operation& op, time_point begin);
    static void tell(ticket::state& end, const result<void>& outcome);
    task<void> drive();
    /// A model may throw before it gives a task: that is the operation's error too.
    static task<void> started(operation* op, communicator* comm);
    task<void> leave();
    std::optional<operation> take();
    static task<void> allocate_into(communicator& comm, std::size_t bytes, memory_kind kind,
                                    std::shared_ptr<group_memory>* made);
    static task<void> apply_deadline(communicator& comm, duration limit);

    std::unique_ptr<net::loop_thread> worker_;
    std::unique_ptr<communicator> comm_;
    unique_function<void()> at_end_;
    scope tasks_; // of the loop's thread
    int rank_ = 0, world_size_ = 1;
    std::string name_;

    // What began in its call. Of the thread that made driving_ true for it; then of who took the
    // rest.
    prompt_start* prompt_ = nullptr;
    std::optional<operation> here_;
    time_point here_since_{};
    std::optional<result<void>> here_ended_;

    mutable std::mutex guard_; // the fields below
    std::deque<operation> queue_;
    bool driving_ = false;
    std::shared_ptr<ticket::state> waiting_; // began here, for who waits for it; null: handed over
    bool looking_after_ = false;             // the loop does
    std::condition_variable idle_;           // driving_ became false
    comm_stats stats_;
};

/// What a rank has called on its communicator, if that compares no calls: communicator::calls().
[[nodiscard]] std::shared_ptr<const call_record> calls_of(const comm_thread& comm);
/// Any thread: whether its collectives take buffers that are there.
[[nodiscard]] bool reaches(const comm_thread& comm, device where) noexcept;

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/comm_thread.ipp>
#endif
