// SPDX-License-Identifier: Apache-2.0
#pragma once
// Each collective as calls of NCCL, and what is ours around them: averages, halves as float32,
// uneven parts.

#include <skein/dist/detail/host_call.hpp>

#include <exception>
#include <optional>
#include <utility>

#include <fmt/core.h>

namespace skein::dist {

SKEIN_INLINE std::string nccl_communicator::name_of(const nccl_options& where, int rank) {
    const auto place = static_cast<std::size_t>(rank);
    return fmt::format("rank {} on cuda:{}", where.labels.empty() ? rank : where.labels[place],
                       where.device);
}

SKEIN_INLINE nccl_communicator::nccl_communicator(std::shared_ptr<nccl_domain> domain, int rank,
                                                  int ranks, const nccl_options& where,
                                                  collective_options limits)
    : runner_(std::move(domain), name_of(where, rank), where.device, where.work, limits.deadline),
      rank_(rank), ranks_(ranks), calls_(std::make_shared<call_record>(name())) {}

SKEIN_INLINE task<std::unique_ptr<nccl_communicator>> nccl_communicator::connect(
    std::shared_ptr<nccl_domain> domain, nccl_unique_id id, int rank, int ranks, nccl_options where,
    collective_options limits) {
    std::unique_ptr<nccl_communicator> made(
        new nccl_communicator(std::move(domain), rank, ranks, where, limits));
    std::optional<error> why;
    try {
        auto joining = made->runner_.join(id, rank, ranks);
        co_await std::move(joining);
    } catch (...) {
        why = to_error(std::current_exception());
    }
    if (why) {
        auto closing = made->close();
        co_await std::move(closing);
        throw detail::error_at(*why, name_of(where, rank));
    }
    co_return made;
}

SKEIN_INLINE std::string nccl_communicator::name() const { return fmt::format("nccl x{}", ranks_); }

SKEIN_INLINE task<void> nccl_communicator::run(detail::signature what, detail::nccl_steps how) {
    what.sequence = ++sequence_;
    note(what);
    return runner_.run(detail::describe(what), std::move(how));
}

SKEIN_INLINE void nccl_communicator::note(detail::signature& what) {
    what.tag = tag_.pack();
    if (what.kind != detail::op_kind::message) (void)calls_->add(what);
}

SKEIN_INLINE task<void> nccl_communicator::nothing(detail::signature what) {
    note(what);
    return runner_.nothing();
}

SKEIN_INLINE task<void> nccl_communicator::close() { return runner_.close(); }

SKEIN_INLINE buffer_view nccl_communicator::own(buffer_view view) const {
    const device here = runner_.where();
    if (view.where != here) {
        throw error(errc::not_supported,
                    fmt::format("not supported: this communicator works in the memory of {}, the "
                                "buffer is on {}",
                                to_string(here), to_string(view.where)))
            .with_hint("copy it there, or choose a communicator for the host's memory");
    }
    view.where = device::cpu(); // the checks below are those of all models
    return view;
}

SKEIN_INLINE device_math& nccl_communicator::math(const char* what) const {
    if (runner_.domain().math() != nullptr) return *runner_.domain().math();
    throw error(errc::not_supported,
                fmt::format("not supported: {} over NCCL without arithmetic on the device", what))
        .with_hint("give the domain a device_math, or sum float32");
}

SKEIN_INLINE nccl_op nccl_communicator::op_of(reduce_op op) noexcept {
    switch (op) {
    case reduce_op::max: return nccl_op::max;
    case reduce_op::min: return nccl_op::min;
    default: return nccl_op::sum;
    }
}
/// Whether the sums are made in another type than the elements have.
SKEIN_INLINE bool nccl_communicator::is_wide(buffer_view io, reduce_op op) noexcept {
    return is_half(io.type) && (op == reduce_op::sum || op == reduce_op::mean);
}

SKEIN_INLINE void nccl_communicator::average(reduce_op op, buffer_view sums) const {
    if (op == reduce_op::mean && sums.count > 0)
        math("an average").divide(runner_.stream(), sums, ranks_);
}

SKEIN_INLINE buffer_view nccl_communicator::part_of(buffer_view io,
                                                    std::span<const std::size_t> counts,
                                                    int rank) const {
    std::size_t first = 0;
    for (int r = 0; r < rank; ++r) first += counts[static_cast<std::size_t>(r)];
    return io.slice(first, counts[static_cast<std::size_t>(rank)]);
}

SKEIN_INLINE task<void> nccl_communicator::all_reduce(buffer_view io, reduce_op op) {
    const auto what = detail::all_reduce_call(own(io), op);
    if (io.count == 0) return nothing(what);
    if (op == reduce_op::mean) (void)math("an average");
    const bool wide = is_wide(io, op);
    if (wide) (void)math("a sum of halves");
    const buffer_view sums = wide ? runner_.scratch(io.count) : io;
    detail::nccl_steps how;
    if (wide) how.before = [=, this] { math("a sum").convert(runner_.stream(), sums, io); };
    how.calls = [=, this](const nccl_library& nccl, nccl_comm comm) {
        return nccl.all_reduce(sums.data, sums.data, sums.count, nccl_type_of(sums.type), op_of(op),
                               comm, runner_.stream());
    };
    how.after = [=, this] {
        average(op, sums);
        if (wide) math("a sum").convert(runner_.stream(), io, sums);
    };
    return run(what, std::move(how));
}

SKEIN_INLINE task<void> nccl_communicator::reduce_scatter(buffer_view in, buffer_view out,
                                                          reduce_op op) {
    const auto what = detail::reduce_scatter_call(own(in), own(out), op, ranks_);
    if (in.count == 0) return nothing(what);
    if (op == reduce_op::mean) (void)math("an average");
    const bool wide = is_wide(in, op);
    if (wide) (void)math("a sum of halves");
    const buffer_view from = wide ? runner_.scratch(in.count) : in;
    const buffer_view part =
        wide ? from.slice(out.count * static_cast<std::size_t>(rank_), out.count) : out;
    detail::nccl_steps how;
    if (wide) how.before = [=, this] { math("a sum").convert(runner_.stream(), from, in); };
    how.calls = [=, this](const nccl_library& nccl, nccl_comm comm) {
        return nccl.reduce_scatter(from.data, part.data, part.count, nccl_type_of(part.type),
                                   op_of(op), comm, runner_.stream());
    };
    how.after = [=, this] {
        average(op, part);
        if (wide) math("a sum").convert(runner_.stream(), out, part);
    };
    return run(what, std::move(how));
}

/// A reduction for each rank that has a part, in one group. own_out: where this rank's goes.
SKEIN_INLINE nccl_communicator::put_calls nccl_communicator::reduce_parts(
    buffer_view io, std::vector<std::size_t> counts, void* own_out, reduce_op op) const {
    return [=, this, counts = std::move(counts)](const nccl_library& nccl, nccl_comm comm) {
        auto outcome = nccl_result::success;
        for (int r = 0; r < ranks_ && outcome == nccl_result::success; ++r) {
            const buffer_view part = part_of(io, counts, r);
            if (part.count == 0) continue;
            outcome = nccl.reduce(part.data, r == rank_ ? own_out : part.data, part.count,
                                  nccl_type_of(part.type), op_of(op), r, comm, runner_.stream());
        }
        return outcome;
    };
}

SKEIN_INLINE task<void> nccl_communicator::reduce_scatter_v(buffer_view io,
                                                            std::span<const std::size_t> counts,
                                                            reduce_op op) {
    const auto what = detail::reduce_scatter_v_call(own(io), counts, op, ranks_);
    if (io.count == 0) return nothing(what);
    if (op == reduce_op::mean) (void)math("an average");
    const bool wide = is_wide(io, op);
    if (wide) (void)math("a sum of halves");
    const buffer_view sums = wide ? runner_.scratch(io.count) : io;
    const buffer_view part = part_of(sums, counts, rank_), result = part_of(io, counts, rank_);
    detail::nccl_steps how;
    how.is_group = true;
    if (wide) how.before = [=, this] { math("a sum").convert(runner_.stream(), sums, io); };
    how.calls = reduce_parts(sums, {counts.begin(), counts.end()}, part.data, op);
    how.after = [=, this] {
        average(op, part);
        if (wide && part.count > 0) math("a sum").convert(runner_.stream(), result, part);
    };
    return run(what, std::move(how));
}

SKEIN_INLINE task<void> nccl_communicator::reduce_scatter_v(buffer_view io,
                                                            std::span<const std::size_t> counts,
                                                            buffer_view out, reduce_op op) {
    const auto what = detail::reduce_scatter_v_call(own(io), counts, own(out), op, rank_, ranks_);
    if (io.count == 0) return nothing(what);
    if (op == reduce_op::mean) (void)math("an average");
    const bool wide = is_half(io.type);
    if (wide) (void)math("a sum of halves into float32");
    const buffer_view sums = wide ? runner_.scratch(io.count) : io;
    detail::nccl_steps how;
    how.is_group = true;
    if (wide) how.before = [=, this] { math("a sum").convert(runner_.stream(), sums, io); };
    how.calls = reduce_parts(sums, {counts.begin(), counts.end()}, out.data, op);
    how.after = [=, this] { average(op, out); };
    return run(what, std::move(how));
}

SKEIN_INLINE task<void> nccl_communicator::all_gather(buffer_view in, buffer_view out) {
    const auto what = detail::all_gather_call(own(in), own(out), ranks_);
    if (out.count == 0) return nothing(what);
    detail::nccl_steps how;
    how.calls = [=, this](const nccl_library& nccl, nccl_comm comm) {
        return nccl.all_gather(in.data, out.data, in.count, nccl_type_of(in.type), comm,
                               runner_.stream());
    };
    return run(what, std::move(how));
}

SKEIN_INLINE task<void> nccl_communicator::all_gather_v(buffer_view in, buffer_view out,
                                                        std::span<const std::size_t> counts) {
    const auto what = detail::all_gather_v_call(own(in), own(out), counts, rank_, ranks_);
    if (out.count == 0) return nothing(what);
    detail::nccl_steps how;
    how.is_group = true;
    how.calls = [=, this, counts = std::vector<std::size_t>(counts.begin(), counts.end())](
                    const nccl_library& nccl, nccl_comm comm) {
        auto outcome = nccl_result::success;
        for (int r = 0; r < ranks_ && outcome == nccl_result::success; ++r) {
            const buffer_view part = part_of(out, counts, r);
            if (part.count == 0) continue;
            outcome = nccl.broadcast(r == rank_ ? in.data : part.data, part.data, part.count,
                                     nccl_type_of(part.type), r, comm, runner_.stream());
        }
        return outcome;
    };
    return run(what, std::move(how));
}

SKEIN_INLINE task<void> nccl_communicator::broadcast(buffer_view io, int root) {
    const auto what = detail::broadcast_call(own(io), root, ranks_);
    if (io.count == 0) return nothing(what);
    detail::nccl_steps how;
    how.calls = [=, this](const nccl_library& nccl, nccl_comm comm) {
        return nccl.broadcast(io.data, io.data, io.count, nccl_type_of(io.type), root, comm,
                              runner_.stream());
    };
    return run(what, std::move(how));
}

SKEIN_INLINE task<void> nccl_communicator::barrier() {
    const buffer_view one = runner_.scratch(1);
    detail::nccl_steps how;
    how.before = [=, this] {
        const cuda_runtime& cuda = runner_.domain().cuda();
        cuda_check(cuda, cuda.set_async(one.data, 0, one.bytes(), runner_.stream()), "a barrier");
    };
    how.calls = [=, this](const nccl_library& nccl, nccl_comm comm) {
        return nccl.all_reduce(one.data, one.data, 1, nccl_type::f32, nccl_op::sum, comm,
                               runner_.stream());
    };
    return run(detail::barrier_call(), std::move(how));
}

SKEIN_INLINE task<std::shared_ptr<group_memory>> nccl_communicator::allocate(std::size_t bytes,
                                                                             memory_kind kind) {
    (void)detail::allocate_call(bytes, kind);
    throw error(errc::not_supported,
                fmt::format("not supported: memory of a group on {}", to_string(runner_.where())))
        .with_hint("allocate it where the device's work is allocated, and give views of it");
}

SKEIN_INLINE task<void> nccl_communicator::send(buffer_view io, int to) {
    const auto what = detail::message_call(own(io), to, rank_, ranks_);
    if (io.count == 0) return nothing(what);
    detail::nccl_steps how;
    how.calls = [=, this](const nccl_library& nccl, nccl_comm comm) {
        return nccl.send(io.data, io.count, nccl_type_of(io.type), to, comm, runner_.stream());
    };
    return run(what, std::move(how));
}

SKEIN_INLINE task<void> nccl_communicator::recv(buffer_view io, int from) {
    const auto what = detail::message_call(own(io), from, rank_, ranks_);
    if (io.count == 0) return nothing(what);
    detail::nccl_steps how;
    how.calls = [=, this](const nccl_library& nccl, nccl_comm comm) {
        return nccl.recv(io.data, io.count, nccl_type_of(io.type), from, comm, runner_.stream());
    };
    return run(what, std::move(how));
}

} // namespace skein::dist
