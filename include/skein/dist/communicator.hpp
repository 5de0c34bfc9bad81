// SPDX-License-Identifier: Apache-2.0
#pragma once
// The communicator: what N ranks can do together, and the words every model of it shares.
//
// Models: stub_communicator (one rank), shm_communicator (one host), ring_communicator (TCP, also on
// the simulated network), hierarchical_communicator (shared memory inside hosts, a ring between them).
// any_communicator owns one of them behind one virtual call per collective.
//
//     any_communicator comm = ...;
//     auto sum = comm.all_reduce(view_of(std::span<float>(grads)), reduce_op::mean);
//     co_await std::move(sum);

#include <skein/core/check.hpp>
#include <skein/core/error.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/dist/buffer.hpp>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace skein::dist {

/// Limits of one communicator.
struct collective_options {
    /// From the start of a collective on this rank: a rank that has not done its part by then is
    /// named in errc::timeout on all ranks. Lost processes are noticed at once, not by this.
    duration deadline = std::chrono::minutes(5);
};

/// A group of ranks that call the same collectives in the same order.
///
/// Laws: every rank calls with the same counts, types and roots, else all of them get
/// errc::mismatch naming the ranks; the same inputs give the same bits on every rank, in every run
/// with the same world size and model, and N=2 gives the same bits in all models; after any error
/// the group is unusable and every later call throws that error; one collective at a time per rank.
/// abort() may be called from any thread, everything else from the thread of the loop.
///   all_reduce(io, op)            io of every rank holds the reduction
///   reduce_scatter(in, out, op)   in.count = N * out.count; rank r gets slice r; in unchanged
///   all_gather(in, out)           out.count = N * in.count; in may be the own slice of out
///   all_gather_v(in, out, counts) counts[r] elements of rank r, in rank order; counts must outlive
///   broadcast(io, root)           io of every rank holds the root's
///   barrier()                     nobody leaves before everybody came
///   send(io, to) / recv(io, from) one message, in order per pair; counts must agree
///   close()                       orderly leave; peers that go on without this rank get peer_lost
template <class C>
concept communicator = requires(C& c, buffer_view view, reduce_op op, int rank, const error& why,
                                duration limit, std::span<const std::size_t> counts) {
    { c.rank() } -> std::convertible_to<int>;
    { c.world_size() } -> std::convertible_to<int>;
    { c.all_reduce(view, op) } -> std::same_as<task<void>>;
    { c.reduce_scatter(view, view, op) } -> std::same_as<task<void>>;
    { c.all_gather(view, view) } -> std::same_as<task<void>>;
    { c.all_gather_v(view, view, counts) } -> std::same_as<task<void>>;
    { c.broadcast(view, rank) } -> std::same_as<task<void>>;
    { c.barrier() } -> std::same_as<task<void>>;
    { c.send(view, rank) } -> std::same_as<task<void>>;
    { c.recv(view, rank) } -> std::same_as<task<void>>;
    { c.close() } -> std::same_as<task<void>>;
    { c.abort(why) } noexcept;
    c.set_deadline(limit);
    { c.name() } -> std::convertible_to<std::string>;
};

/// Owns a communicator of any model. Same members, same laws.
class any_communicator {
public:
    any_communicator() = default;
    template <class C>
        requires(!std::same_as<std::remove_cvref_t<C>, any_communicator> && communicator<C>)
    explicit any_communicator(std::unique_ptr<C> model)
        : held_(std::make_unique<holder<C>>(std::move(model))) {}

    explicit operator bool() const noexcept { return held_ != nullptr; }

    [[nodiscard]] int rank() const { return at().rank(); }
    [[nodiscard]] int world_size() const { return at().world_size(); }
    /// What it is, for people: "shm x2", "ring x4", "hierarchical 2x4".
    [[nodiscard]] std::string name() const { return at().name(); }

    task<void> all_reduce(buffer_view io, reduce_op op) { return at().all_reduce(io, op); }
    task<void> reduce_scatter(buffer_view in, buffer_view out, reduce_op op) {
        return at().reduce_scatter(in, out, op);
    }
    task<void> all_gather(buffer_view in, buffer_view out) { return at().all_gather(in, out); }
    task<void> all_gather_v(buffer_view in, buffer_view out, std::span<const std::size_t> counts) {
        return at().all_gather_v(in, out, counts);
    }
    task<void> broadcast(buffer_view io, int root) { return at().broadcast(io, root); }
    task<void> barrier() { return at().barrier(); }
    task<void> send(buffer_view io, int to) { return at().send(io, to); }
    task<void> recv(buffer_view io, int from) { return at().recv(io, from); }
    task<void> close() { return at().close(); }
    /// Any thread. Fails the running and every later collective on all ranks it can reach.
    void abort(error why) noexcept { at().abort(std::move(why)); }
    void set_deadline(duration limit) { at().set_deadline(limit); }

private:
    struct base {
        virtual ~base() = default;
        virtual int rank() const = 0;
        virtual int world_size() const = 0;
        virtual std::string name() const = 0;
        virtual task<void> all_reduce(buffer_view, reduce_op) = 0;
        virtual task<void> reduce_scatter(buffer_view, buffer_view, reduce_op) = 0;
        virtual task<void> all_gather(buffer_view, buffer_view) = 0;
        virtual task<void> all_gather_v(buffer_view, buffer_view, std::span<const std::size_t>) = 0;
        virtual task<void> broadcast(buffer_view, int) = 0;
        virtual task<void> barrier() = 0;
        virtual task<void> send(buffer_view, int) = 0;
        virtual task<void> recv(buffer_view, int) = 0;
        virtual task<void> close() = 0;
        virtual void abort(error) noexcept = 0;
        virtual void set_deadline(duration) = 0;
    };
    template <class C>
    struct holder final : base {
        explicit holder(std::unique_ptr<C> m) : model(std::move(m)) {}
        int rank() const override { return model->rank(); }
        int world_size() const override { return model->world_size(); }
        std::string name() const override { return model->name(); }
        task<void> all_reduce(buffer_view v, reduce_op op) override {
            return model->all_reduce(v, op);
        }
        task<void> reduce_scatter(buffer_view in, buffer_view out, reduce_op op) override {
            return model->reduce_scatter(in, out, op);
        }
        task<void> all_gather(buffer_view in, buffer_view out) override {
            return model->all_gather(in, out);
        }
        task<void> all_gather_v(buffer_view in, buffer_view out,
                                std::span<const std::size_t> counts) override {
            return model->all_gather_v(in, out, counts);
        }
        task<void> broadcast(buffer_view v, int root) override { return model->broadcast(v, root); }
        task<void> barrier() override { return model->barrier(); }
        task<void> send(buffer_view v, int to) override { return model->send(v, to); }
        task<void> recv(buffer_view v, int from) override { return model->recv(v, from); }
        task<void> close() override { return model->close(); }
        void abort(error why) noexcept override { model->abort(std::move(why)); }
        void set_deadline(duration limit) override { model->set_deadline(limit); }
        std::unique_ptr<C> model;
    };

    base& at() const {
        SKEIN_CHECK(held_ != nullptr, "this any_communicator is empty");
        return *held_;
    }
    std::unique_ptr<base> held_;
};

} // namespace skein::dist
