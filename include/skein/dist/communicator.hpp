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

/// Element types of collectives. u8 is for opaque bytes: it can be copied but not reduced.
enum class dtype : std::uint8_t { f32 = 0, bf16 = 1, f64 = 2, i64 = 3, u8 = 4 };

/// mean is the sum divided by the world size (integers: truncated towards zero).
enum class reduce_op : std::uint8_t { sum = 0, mean = 1, max = 2, min = 3 };

/// Bytes per element.
[[nodiscard]] constexpr std::size_t size_of(dtype type) noexcept {
    switch (type) {
    case dtype::f32: return 4;
    case dtype::bf16: return 2;
    case dtype::f64: return 8;
    case dtype::i64: return 8;
    case dtype::u8: return 1;
    }
    return 0;
}

[[nodiscard]] constexpr std::string_view to_string(dtype type) noexcept {
    switch (type) {
    case dtype::f32: return "f32";
    case dtype::bf16: return "bf16";
    case dtype::f64: return "f64";
    case dtype::i64: return "i64";
    case dtype::u8: return "u8";
    }
    return "?";
}

[[nodiscard]] constexpr std::string_view to_string(reduce_op op) noexcept {
    switch (op) {
    case reduce_op::sum: return "sum";
    case reduce_op::mean: return "mean";
    case reduce_op::max: return "max";
    case reduce_op::min: return "min";
    }
    return "?";
}

/// A bfloat16 as its 16 bits: the upper half of a float32.
struct bf16_t {
    std::uint16_t bits = 0;
    friend constexpr bool operator==(bf16_t, bf16_t) = default;
};

/// Contiguous elements in memory of the caller. Must stay alive until the collective has ended.
struct buffer_view {
    void* data = nullptr;
    std::size_t count = 0;
    dtype type = dtype::f32;

    [[nodiscard]] std::size_t bytes() const noexcept { return count * size_of(type); }
    [[nodiscard]] std::byte* begin() const noexcept { return static_cast<std::byte*>(data); }
    /// Elements [first, first + n).
    [[nodiscard]] buffer_view slice(std::size_t first, std::size_t n) const noexcept {
        return buffer_view{begin() + first * size_of(type), n, type};
    }
};

template <class T>
inline constexpr bool is_element = false;
template <>
inline constexpr bool is_element<float> = true;
template <>
inline constexpr bool is_element<bf16_t> = true;
template <>
inline constexpr bool is_element<double> = true;
template <>
inline constexpr bool is_element<std::int64_t> = true;
template <>
inline constexpr bool is_element<std::byte> = true;
template <>
inline constexpr bool is_element<std::uint8_t> = true;

/// The dtype of a C++ element type.
template <class T>
    requires is_element<T>
[[nodiscard]] constexpr dtype dtype_of() noexcept {
    if constexpr (std::same_as<T, float>)
        return dtype::f32;
    else if constexpr (std::same_as<T, bf16_t>)
        return dtype::bf16;
    else if constexpr (std::same_as<T, double>)
        return dtype::f64;
    else if constexpr (std::same_as<T, std::int64_t>)
        return dtype::i64;
    else
        return dtype::u8;
}

/// A view of a span of elements. Collectives do not write to buffers documented as input.
template <class T>
    requires is_element<std::remove_const_t<T>>
[[nodiscard]] buffer_view view_of(std::span<T> elements) noexcept {
    using plain = std::remove_const_t<T>;
    return buffer_view{const_cast<plain*>(elements.data()), elements.size(), dtype_of<plain>()};
}

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
