// SPDX-License-Identifier: Apache-2.0
#pragma once
// One collective of a ring as frames.
//
// A collective is a row of frames on each link: step s, piece i. In a reducing step rank r sends slice
// r-1-s and adds what it receives to slice r-2-s, so that slice c starts at rank c+1 and is complete at
// rank c. In a gathering step t it sends slice r-t and receives r-1-t. So a frame may be sent as soon as
// the same piece of the step before has arrived: sender and receiver run side by side, coupled only by
// the number of frames received.

#include <skein/dist/detail/ring_core.ipp>

#include <cstring>

namespace skein::dist {

struct ring_communicator::core::plan {
    std::byte* base = nullptr;
    std::vector<slice> slices;
    int reducing = 0; // so many steps reduce, before the gathering ones
    int gathering = 0;
    bool chain = false; // broadcast: one step from root along the ring, forwarding
    int root = 0;
    dtype type = dtype::f32;
    reduce_op op = reduce_op::sum;
    // filled in by run()
    std::size_t piece = 0;      // bytes
    std::uint32_t per_step = 0; // frames
    std::uint32_t frames = 0;
    std::uint32_t received = 0;
};

SKEIN_INLINE std::vector<ring_communicator::core::slice> ring_communicator::core::even_slices(
    std::size_t count, std::size_t width) const {
    const std::size_t ranks = group.size(), line = 64 / width;
    const std::size_t share = ((count + ranks - 1) / ranks + line - 1) / line * line;
    std::vector<slice> out_slices;
    for (std::size_t p = 0; p < ranks; ++p) {
        const std::size_t from = std::min(p * share, count), to = std::min(from + share, count);
        out_slices.push_back(slice{from * width, (to - from) * width});
    }
    return out_slices;
}

SKEIN_INLINE task<void> ring_communicator::core::meet() {
    SKEIN_CHECK(size() >= 2, "a ring of {} ranks", size());
    const time_point until = deadline_after(here.now(), deadline);
    auto opening = net->to(next(), links::ring, until);
    out = co_await std::move(opening);
    auto waiting = net->from(previous(), links::ring, until);
    in = co_await std::move(waiting);
    quiet.set();
    tasks.spawn(watch_next());
}

SKEIN_INLINE void ring_communicator::core::begin(detail::op_kind kind, std::uint64_t count,
                                                 dtype type, reduce_op op, std::uint64_t more) {
    SKEIN_CHECK(!busy, "two collectives at a time on rank {}", label(position));
    if (kind != detail::op_kind::message) doing.sequence += 1;
    doing.kind = kind;
    doing.count = count;
    doing.type = type;
    doing.op = op;
    doing.outer = outer;
    doing.detail = more;
    throw_if_failed();
    if (closed) throw error(errc::closed, "this communicator is closed").with_where(where());
    if (next_left && kind != detail::op_kind::message) {
        fail(blamed(errc::peer_lost, next(), "it has closed its communicator"));
        throw_if_failed();
    }
    busy = true;
    heard = false;
    quiet.reset();
    stop = cancel_source();
}

SKEIN_INLINE task<void> ring_communicator::core::run(plan& p) {
    p.piece = pieces.piece_bytes / 64 * 64;
    SKEIN_CHECK(p.piece > 0 && p.piece < (std::size_t{1} << 31), "pieces of {} bytes",
                pieces.piece_bytes);
    std::size_t longest = 0;
    for (const slice& s : p.slices) longest = std::max(longest, s.bytes);
    p.per_step =
        static_cast<std::uint32_t>(std::max<std::size_t>(1, (longest + p.piece - 1) / p.piece));
    p.frames = p.per_step * static_cast<std::uint32_t>(p.chain ? 1 : p.reducing + p.gathering);
    const std::size_t room = 64 + std::max<std::size_t>(p.piece, detail::ring_header::max_text);
    if (scratch.size() < room) scratch.resize(room);

    auto both = all(run_sender(p), run_receiver(p));
    auto done = co_await std::move(both);
    (void)done;
}

/// One frame to the next rank: step f, the given bytes of the user's buffer.
SKEIN_INLINE task<void> ring_communicator::core::send_frame(std::uint32_t step, byte_span data) {
    std::array<std::byte, detail::ring_header::size> head{};
    detail::ring_header h;
    h.what = doing;
    h.step = step;
    h.bytes = static_cast<std::uint32_t>(data.size());
    h.encode(head.data());
    const std::array<byte_span, 2> batch{byte_span(head), data};
    writing = true;
    auto wrote = as_result(out->write_all(std::span(batch).first(data.empty() ? 1 : 2)));
    auto result = co_await std::move(wrote);
    if (!result) {
        if (result.error().code() == errc::cancelled) throw result.error();
        throw blamed(errc::peer_lost, next(), result.error().what());
    }
    writing = false;
}

SKEIN_INLINE task<void> ring_communicator::core::run_sender(plan& p) {
    if (p.chain) { // says that this rank has come, also to the root
        auto here_i_am = send_frame(first_word, byte_span{});
        co_await std::move(here_i_am);
        if ((position + 1) % size() == p.root) co_return;
    }
    const bool is_root = p.chain && position == p.root;
    const int ranks = size();
    for (std::uint32_t f = 0; f < p.frames; ++f) {
        // What has to be here before frame f can leave.
        const std::uint32_t lag = p.chain ? 0 : p.per_step; // the same piece, one step earlier
        const std::uint32_t need = is_root || f < lag ? 0 : f + 1 - lag;
        while (p.received < need) {
            auto more = moved.wait();
            co_await more;
        }
        const int step = static_cast<int>(f / p.per_step);
        const int back = step < p.reducing ? 1 + step : step - p.reducing;
        const slice s =
            p.chain ? p.slices[0]
                    : p.slices[static_cast<std::size_t>((position - back % ranks + ranks) % ranks)];
        const std::size_t from = std::min(s.bytes, (f % p.per_step) * p.piece);
        auto sending =
            send_frame(f, byte_span(p.base + s.at + from, std::min(p.piece, s.bytes - from)));
        co_await std::move(sending);
    }
}

SKEIN_INLINE task<void> ring_communicator::core::run_receiver(plan& p) {
    if (p.chain) {
        auto hearing = hear(first_word, 0, nullptr);
        co_await std::move(hearing);
        if (position == p.root) co_return;
    }
    const int ranks = size();
    for (std::uint32_t f = 0; f < p.frames; ++f) {
        const int step = static_cast<int>(f / p.per_step);
        const bool reduces = !p.chain && step < p.reducing;
        const int back = reduces ? 2 + step : 1 + step - p.reducing;
        const slice s =
            p.chain ? p.slices[0]
                    : p.slices[static_cast<std::size_t>((position - back % ranks + ranks) % ranks)];
        const std::size_t from = std::min(s.bytes, (f % p.per_step) * p.piece);
        const std::size_t n = std::min(p.piece, s.bytes - from);
        std::byte* const mine = p.base + s.at + from;
        auto hearing = hear(f, n, reduces ? nullptr : mine);
        co_await std::move(hearing);
        if (reduces && n > 0) {
            const std::byte* const theirs = scratch.data() + 64;
            const bool last = step + 1 == p.reducing;
            const reduce_op op = p.op == reduce_op::mean && !last ? reduce_op::sum : p.op;
            // Rank 0 puts its own value first, so that two ranks always compute p0 + p1.
            const bool own_first = position == 0;
            reduce(mine, own_first ? mine : theirs, own_first ? theirs : mine, n / size_of(p.type),
                   p.type, op, divisor);
        }
        p.received = f + 1;
        moved.wake_all();
    }
}

/// read_frame, with the neighbour to blame when the stream breaks.
SKEIN_INLINE task<void> ring_communicator::core::hear(std::uint32_t step, std::size_t n,
                                                      std::byte* direct) {
    auto reading = as_result(read_frame(step, n, direct));
    auto came = co_await std::move(reading);
    if (came) co_return;
    const errc code = came.error().code();
    if (code == errc::reset || code == errc::closed || code == errc::io) {
        throw blamed(errc::peer_lost, previous(), came.error().what());
    }
    throw came.error();
}

/// Reads frame number `step` of `n` bytes from the previous rank, into `direct` or behind the header in
/// scratch + 64. Throws what a notice says, mismatch, or the error of the stream.
SKEIN_INLINE task<void> ring_communicator::core::read_frame(std::uint32_t step, std::size_t n,
                                                            std::byte* direct) {
    constexpr std::size_t head_size = detail::ring_header::size, head_at = 64 - head_size;
    // Small payloads come with their header in one read.
    const bool together = direct == nullptr || n <= 4096;
    std::byte* const buffer = scratch.data() + head_at;
    const std::size_t wanted = head_size + (together ? n : 0);
    std::size_t have = 0;
    while (have < head_size) {
        auto some = in->read_some(mut_byte_span(buffer + have, wanted - have));
        const std::size_t got = co_await std::move(some);
        if (got == 0) throw error(errc::reset, "the connection ended");
        have += got;
    }
    const auto h = detail::ring_header::decode(buffer);
    if (h.kind != detail::ring_kind::data) {
        auto notice =
            read_notice(*in, h, previous(), byte_span(buffer + head_size, have - head_size));
        const error why = co_await std::move(notice);
        fail(why);
        throw why;
    }
    if (h.what != doing) {
        const bool first = previous() < label(position);
        throw detail::mismatch_error(first ? previous() : label(position), first ? h.what : doing,
                                     first ? label(position) : previous(), first ? doing : h.what);
    }
    if (h.step != step || h.bytes != n) {
        throw error(errc::mismatch,
                    fmt::format("rank {} sent piece {} of {} bytes, rank {} expected piece "
                                "{} of {}",
                                previous(), h.step, h.bytes, label(position), step, n))
            .with_hint("are the ranks the same build with the same ring_options?");
    }
    heard = true;
    if (together) {
        auto rest = detail::read_exact(*in, mut_byte_span(buffer + have, wanted - have));
        co_await std::move(rest);
        if (direct != nullptr && n > 0) std::memcpy(direct, scratch.data() + 64, n);
    } else {
        auto rest = detail::read_exact(*in, mut_byte_span(direct, n));
        co_await std::move(rest);
    }
}

SKEIN_INLINE task<void> ring_communicator::core::all_reduce(buffer_view io, reduce_op op) {
    SKEIN_CHECK(io.type != dtype::u8, "u8 can be copied but not reduced");
    begin(detail::op_kind::all_reduce, io.count, io.type, op, 0);
    plan p;
    p.type = io.type;
    p.op = op;
    if (io.bytes() > pieces.small_bytes) {
        p.base = io.begin();
        p.slices = even_slices(io.count, size_of(io.type));
        p.reducing = p.gathering = size() - 1;
        auto safe = guarded(run(p));
        co_await std::move(safe);
        co_return;
    }
    work.resize(std::max(work.size(), io.bytes() * group.size()));
    p.base = work.data();
    for (std::size_t r = 0; r < group.size(); ++r)
        p.slices.push_back(slice{r * io.bytes(), io.bytes()});
    p.gathering = size() - 1;
    if (io.count > 0) {
        std::memcpy(p.base + static_cast<std::size_t>(position) * io.bytes(), io.data, io.bytes());
    }
    auto safe = guarded(run(p));
    co_await std::move(safe);
    std::vector<const void*> sources;
    for (const slice& s : p.slices) sources.push_back(p.base + s.at);
    reduce(io.data, sources, io.count, io.type, op, divisor);
}

SKEIN_INLINE task<void> ring_communicator::core::reduce_scatter(buffer_view in_view,
                                                                buffer_view out_view,
                                                                reduce_op op) {
    SKEIN_CHECK(in_view.type == out_view.type && in_view.type != dtype::u8 &&
                    in_view.count == out_view.count * group.size(),
                "reduce_scatter of {} elements into {} on {} ranks", in_view.count, out_view.count,
                size());
    begin(detail::op_kind::reduce_scatter, in_view.count, in_view.type, op, 0);
    work.resize(std::max(work.size(), in_view.bytes()));
    if (in_view.count > 0) std::memcpy(work.data(), in_view.data, in_view.bytes());
    plan p;
    p.type = in_view.type;
    p.op = op;
    p.base = work.data();
    for (std::size_t r = 0; r < group.size(); ++r) {
        p.slices.push_back(slice{r * out_view.bytes(), out_view.bytes()});
    }
    p.reducing = size() - 1;
    auto safe = guarded(run(p));
    co_await std::move(safe);
    if (out_view.count > 0) {
        std::memcpy(out_view.data, p.base + static_cast<std::size_t>(position) * out_view.bytes(),
                    out_view.bytes());
    }
}

SKEIN_INLINE task<void> ring_communicator::core::all_gather(buffer_view in_view,
                                                            buffer_view out_view) {
    SKEIN_CHECK(in_view.type == out_view.type && out_view.count == in_view.count * group.size(),
                "all_gather of {} elements into {} on {} ranks", in_view.count, out_view.count,
                size());
    begin(detail::op_kind::all_gather, out_view.count, in_view.type, reduce_op::sum, 0);
    plan p;
    p.base = out_view.begin();
    for (std::size_t r = 0; r < group.size(); ++r) {
        p.slices.push_back(slice{r * in_view.bytes(), in_view.bytes()});
    }
    std::byte* const own = p.base + p.slices[static_cast<std::size_t>(position)].at;
    if (in_view.count > 0 && own != in_view.begin())
        std::memcpy(own, in_view.data, in_view.bytes());
    p.gathering = size() - 1;
    auto safe = guarded(run(p));
    co_await std::move(safe);
}

SKEIN_INLINE task<void> ring_communicator::core::all_gather_v(buffer_view in_view,
                                                              buffer_view out_view,
                                                              std::span<const std::size_t> counts) {
    SKEIN_CHECK(counts.size() == group.size() && in_view.type == out_view.type &&
                    in_view.count == counts[static_cast<std::size_t>(position)],
                "all_gather_v: {} counts for {} ranks, own part {}", counts.size(), size(),
                in_view.count);
    plan p;
    p.base = out_view.begin();
    std::size_t total = 0;
    const std::size_t width = size_of(in_view.type);
    for (const std::size_t c : counts) {
        p.slices.push_back(slice{total * width, c * width});
        total += c;
    }
    SKEIN_CHECK(out_view.count == total, "all_gather_v: counts add up to {}, out has {}", total,
                out_view.count);
    begin(detail::op_kind::all_gather_v, total, in_view.type, reduce_op::sum,
          detail::hash_counts(counts));
    std::byte* const own = p.base + p.slices[static_cast<std::size_t>(position)].at;
    if (in_view.count > 0 && own != in_view.begin())
        std::memcpy(own, in_view.data, in_view.bytes());
    p.gathering = size() - 1;
    auto safe = guarded(run(p));
    co_await std::move(safe);
}

SKEIN_INLINE task<void> ring_communicator::core::broadcast(buffer_view io, int root) {
    begin(detail::op_kind::broadcast, io.count, io.type, reduce_op::sum,
          static_cast<std::uint64_t>(label(root)));
    plan p;
    p.base = io.begin();
    p.slices.push_back(slice{0, io.bytes()});
    p.chain = true;
    p.root = root;
    auto safe = guarded(run(p));
    co_await std::move(safe);
}

/// Empty slices once around: after N-1 steps everybody has heard of everybody.
SKEIN_INLINE task<void> ring_communicator::core::barrier() {
    begin(detail::op_kind::barrier, 0, dtype::u8, reduce_op::sum, 0);
    plan p;
    p.slices.resize(group.size());
    p.gathering = size() - 1;
    auto safe = guarded(run(p));
    co_await std::move(safe);
}

SKEIN_INLINE task<void> ring_communicator::core::send(buffer_view io, int to) {
    SKEIN_CHECK(to >= 0 && to < net->world_size() && to != net->rank(), "send from rank {} to {}",
                net->rank(), to);
    begin(detail::op_kind::message, io.count, io.type, reduce_op::sum,
          static_cast<std::uint64_t>(to));
    auto safe =
        guarded(detail::send_message(*net, io, to, doing, deadline_after(here.now(), deadline)));
    co_await std::move(safe);
}

SKEIN_INLINE task<void> ring_communicator::core::recv(buffer_view io, int from) {
    SKEIN_CHECK(from >= 0 && from < net->world_size() && from != net->rank(),
                "recv on rank {} from {}", net->rank(), from);
    begin(detail::op_kind::message, io.count, io.type, reduce_op::sum,
          static_cast<std::uint64_t>(from));
    auto safe =
        guarded(detail::recv_message(*net, io, from, doing, deadline_after(here.now(), deadline)));
    co_await std::move(safe);
}

} // namespace skein::dist
