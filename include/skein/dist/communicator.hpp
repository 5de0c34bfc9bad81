// SPDX-License-Identifier: Apache-2.0
#pragma once
// The communicator: what N ranks can do together, and the words every model of it shares.
//
// Models: stub_communicator (one rank), shm_communicator (one host), ring_communicator (TCP, also
// on the simulated network), hierarchical_communicator (shared memory inside hosts, a ring between
// them), host_communicator (buffers of devices, over one of these), and what a program adds
// (models.hpp). A process may have several at once, over the same or other ranks; each has its own
// order of collectives.
//
//     std::unique_ptr<communicator> comm = ...;                // on its loop; comm_thread has one
//     auto sum = comm->all_reduce(view_of(std::span<float>(grads)), reduce_op::mean);
//     co_await std::move(sum);

#include <skein/core/constants.hpp>
#include <skein/core/error.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/dist/buffer.hpp>
#include <skein/dist/group_memory.hpp>
#include <skein/dist/tag.hpp>

#include <coroutine>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace skein::dist {

class call_record;

/// Limits of one communicator.
struct collective_options {
    /// From the start of a collective on this rank: a rank that has not done its part by then is
    /// named in errc::timeout on all ranks. Lost processes are noticed at once, not by this.
    time_span deadline = time_constants::lan().collective_timeout;
};

/// A collective that stopped on the thread which began it. `rest` blocks the thread that resumes
/// it.
struct suspended_start {
    std::coroutine_handle<> rest; ///< null: it ended
    bool others_wait = false;     ///< for what this rank does in `rest`; else it has done its part
};

/// What a model offers whose small collectives can begin on the thread that submits them
/// (comm_thread uses it). One thread at a time calls the communicator; who lets another one call it
/// synchronizes the two.
class prompt_start {
public:
    /// From here on, a task that must wait for longer than a look, or is not small, is suspended.
    virtual void begin_here() noexcept = 0;
    /// No more of that. What was suspended wants to be resumed before anything else is called.
    [[nodiscard]] virtual suspended_start end_here() noexcept = 0;

protected:
    prompt_start() = default;
    prompt_start(const prompt_start&) = default;
    prompt_start& operator=(const prompt_start&) = default;
    ~prompt_start() = default;
};

/// A group of ranks that call the same collectives in the same order.
///
/// Laws: every rank calls with the same counts, types, roots and tags, else all of them get
/// errc::mismatch naming the ranks, or, where the model cannot see it, calls() tells; sums of bf16
/// and f16 are made in float32 and rounded once, also between hosts; the same inputs give the same
/// bits on every rank, in every run with the same world size and model, and N=2 gives the same bits
/// in all models; after any error the group is unusable and every later call throws that error; one
/// collective at a time per rank. A task has ended when the result can be used: by the host, or,
/// for a model whose memory is a device's, by what is put on the device's stream from then on.
/// Buffers that a model cannot reach are refused with errc::not_supported before anything is sent.
/// abort() may be called from any thread, everything else from the thread of the loop.
class communicator {
public:
    communicator(const communicator&) = delete;
    communicator& operator=(const communicator&) = delete;
    virtual ~communicator();

    /// In [0, world_size()): the ranks of this group, which may be fewer than those of the job.
    [[nodiscard]] virtual int rank() const noexcept = 0;
    [[nodiscard]] virtual int world_size() const noexcept = 0;
    /// What it is, for people: "shm x2", "ring x4", "hierarchical x4 on 2 hosts".
    [[nodiscard]] virtual std::string name() const = 0;

    /// Whether it takes buffers that are there. Any thread.
    [[nodiscard]] virtual bool reaches(device where) const noexcept { return where.is_cpu(); }

    /// io of every rank holds the reduction.
    virtual task<void> all_reduce(buffer_view io, reduce_op op) = 0;
    /// in.count = N * out.count; rank r gets slice r; in is unchanged.
    virtual task<void> reduce_scatter(buffer_view in, buffer_view out, reduce_op op) = 0;
    /// In place and uneven: io.count = sum of counts, and counts[r] elements behind those of the
    /// ranks before it are rank r's. They hold the reduction on rank r, whatever else io held is
    /// lost. counts may have zeros, must be the same on all ranks, and must outlive the task.
    virtual task<void> reduce_scatter_v(buffer_view io, std::span<const std::size_t> counts,
                                        reduce_op op) = 0;
    /// The same with the own part in `out`: io is f32, bf16 or f16, out is f32 x counts[rank()].
    /// The sums are made in float32 and not rounded again. What io holds afterwards is not
    /// promised.
    virtual task<void> reduce_scatter_v(buffer_view io, std::span<const std::size_t> counts,
                                        buffer_view out, reduce_op op) = 0;
    /// out.count = N * in.count; in may be the own slice of out.
    virtual task<void> all_gather(buffer_view in, buffer_view out) = 0;
    /// counts[r] elements of rank r, in rank order; counts must outlive the task.
    virtual task<void> all_gather_v(buffer_view in, buffer_view out,
                                    std::span<const std::size_t> counts) = 0;
    /// io of every rank holds the root's.
    virtual task<void> broadcast(buffer_view io, int root) = 0;
    /// Nobody leaves before everybody came.
    virtual task<void> barrier() = 0;
    /// Memory in which collectives of this communicator need no copies (group_memory.hpp). All
    /// ranks call it with the same bytes, more than none, and kind.
    ///   errors  exhausted, io; on all ranks if on one
    virtual task<std::shared_ptr<group_memory>> allocate(std::size_t bytes, memory_kind kind) = 0;
    /// One message, in order per pair; counts must agree.
    virtual task<void> send(buffer_view io, int to) = 0;
    virtual task<void> recv(buffer_view io, int from) = 0;

    /// Orderly leave, awaited before destruction; peers that go on without this rank get peer_lost.
    virtual task<void> close() = 0;
    /// Any thread. Fails the running and every later collective on all ranks it can reach.
    virtual void abort(error why) noexcept = 0;
    /// Of the collectives that begin after it.
    virtual void set_deadline(time_span limit) = 0;
    /// What the collectives that begin after it are for. Messages have none to agree on.
    virtual void set_tag(collective_tag tag) = 0;
    /// Null: everything runs on the loop's thread.
    [[nodiscard]] virtual prompt_start* prompt() noexcept { return nullptr; }
    /// What this rank has called, of a model that does not compare the calls of its ranks; who uses
    /// it compares them (call_record.hpp). Null: it compares each call. Any thread.
    [[nodiscard]] virtual std::shared_ptr<const call_record> calls() const;

protected:
    communicator() = default;
};

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/communicator.ipp>
#endif
