// SPDX-License-Identifier: Apache-2.0
#pragma once
// One collective of a ring as frames.
//
// A collective is a row of frames on each link: step s, piece i. In a reducing step rank r sends
// slice r-1-s and adds what it receives to slice r-2-s, so that slice c starts at rank c+1 and is
// complete at rank c. In a gathering step t it sends slice r-t and receives r-1-t. So a frame may
// be sent as soon as the same piece of the step before has arrived: sender and receiver run side by
// side, coupled only by the number of frames received.

#include <skein/dist/detail/host_call.hpp>
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
    const std::size_t ranks = group_.size(), line = 64 / width;
    const std::size_t share = ((count + ranks - 1) / ranks + line - 1) / line * line;
    std::vector<slice> out_slices;
    for (std::size_t p = 0; p < ranks; ++p) {
        const std::size_t from = std::min(p * share, count), to = std::min(from + share, count);
        out_slices.push_back(slice{from * width, (to - from) * width});
    }
    return out_slices;
}

/// The same number of bytes for every rank.
SKEIN_INLINE std::vector<ring_communicator::core::slice> ring_communicator::core::equal_slices(
    std::size_t bytes) const {
    std::vector<slice> slices;
    for (std::size_t r = 0; r < group_.size(); ++r) slices.push_back(slice{r * bytes, bytes});
    return slices;
}

SKEIN_INLINE std::vector<ring_communicator::core::slice> ring_communicator::core::uneven_slices(
    std::span<const std::size_t> counts, std::size_t width) {
    std::vector<slice> slices;
    std::size_t at = 0;
    for (const std::size_t c : counts) {
        slices.push_back(slice{at, c * width});
        at += slices.back().bytes;
    }
    return slices;
}

SKEIN_INLINE task<void> ring_communicator::core::connect_neighbours() {
    SKEIN_CHECK(size() >= 2, "a ring of {} ranks", size());
    const time_point until = deadline_after(here_.now(), deadline_);
    auto opening = net_->to(next(), links::ring, until);
    out_ = co_await std::move(opening);
    auto waiting = net_->from(previous(), links::ring, until);
    in_ = co_await std::move(waiting);
    quiet_.set();
    tasks_.spawn(watch_next());
}

SKEIN_INLINE void ring_communicator::core::begin(detail::signature what) {
    SKEIN_CHECK(!busy_, "two collectives at a time on rank {}", label(position_));
    const bool message = what.kind == detail::op_kind::message;
    what.sequence = doing_.sequence + (message ? 0 : 1);
    what.outer = outer_;
    what.tag = tag_;
    doing_ = what;
    throw_if_failed();
    if (closed_) throw error(errc::closed, "this communicator is closed").with_where(where());
    if (next_left_ && !message) {
        fail(blamed(errc::peer_lost, next(), "it has closed its communicator"));
        throw_if_failed();
    }
    busy_ = true;
    heard_ = false;
    quiet_.reset();
    stop_ = cancel_source();
}

SKEIN_INLINE task<void> ring_communicator::core::run(plan& p) {
    p.piece = pieces_.piece_bytes / 64 * 64;
    SKEIN_CHECK(p.piece > 0 && p.piece < (std::size_t{1} << 31), "pieces of {} bytes",
                pieces_.piece_bytes);
    std::size_t longest = 0;
    for (const slice& s : p.slices) longest = std::max(longest, s.bytes);
    p.per_step =
        static_cast<std::uint32_t>(std::max<std::size_t>(1, (longest + p.piece - 1) / p.piece));
    p.frames = p.per_step * static_cast<std::uint32_t>(p.chain ? 1 : p.reducing + p.gathering);
    const std::size_t room = 64 + std::max<std::size_t>(p.piece, detail::ring_header::max_notice);
    if (scratch_.size() < room) scratch_.resize(room);

    auto both = all(run_sender(p), run_receiver(p));
    auto done = co_await std::move(both);
    (void)done;
}

/// One frame to the next rank: step f, the given bytes of the user's buffer.
SKEIN_INLINE task<void> ring_communicator::core::send_frame(std::uint32_t step, byte_span data) {
    std::array<std::byte, detail::ring_header::size> head{};
    detail::ring_header h;
    h.what = doing_;
    h.step = step;
    h.bytes = static_cast<std::uint32_t>(data.size());
    h.encode(head.data());
    const std::array<byte_span, 2> batch{byte_span(head), data};
    writing_ = true;
    auto wrote = as_result(out_->write_all(std::span(batch).first(data.empty() ? 1 : 2)));
    auto result = co_await std::move(wrote);
    if (!result) {
        if (result.error().code() == errc::cancelled) throw result.error();
        throw blamed(errc::peer_lost, next(), result.error().what());
    }
    writing_ = false;
}

SKEIN_INLINE task<void> ring_communicator::core::run_sender(plan& p) {
    if (p.chain) { // says that this rank has come, also to the root
        auto here_i_am = send_frame(first_word, byte_span{});
        co_await std::move(here_i_am);
        if ((position_ + 1) % size() == p.root) co_return;
    }
    const bool is_root = p.chain && position_ == p.root;
    const int ranks = size();
    for (std::uint32_t f = 0; f < p.frames; ++f) {
        // What has to be here before frame f can leave.
        const std::uint32_t lag = p.chain ? 0 : p.per_step; // the same piece, one step earlier
        const std::uint32_t need = is_root || f < lag ? 0 : f + 1 - lag;
        while (p.received < need) {
            auto more = moved_.wait();
            co_await more;
        }
        const int step = static_cast<int>(f / p.per_step);
        const int back = step < p.reducing ? 1 + step : step - p.reducing;
        const slice s =
            p.chain
                ? p.slices[0]
                : p.slices[static_cast<std::size_t>((position_ - back % ranks + ranks) % ranks)];
        const std::size_t from = std::min(s.bytes, (f % p.per_step) * p.piece);
        auto sending =
            send_frame(f, byte_span(p.base + s.at + from, std::min(p.piece, s.bytes - from)));
        co_await std::move(sending);
    }
}

SKEIN_INLINE task<void> ring_communicator::core::run_receiver(plan& p) {
    if (p.chain) {
        auto receiving = receive_frame(first_word, 0, nullptr);
        co_await std::move(receiving);
        if (position_ == p.root) co_return;
    }
    const int ranks = size();
    for (std::uint32_t f = 0; f < p.frames; ++f) {
        const int step = static_cast<int>(f / p.per_step);
        const bool reduces = !p.chain && step < p.reducing;
        const int back = reduces ? 2 + step : 1 + step - p.reducing;
        const slice s =
            p.chain
                ? p.slices[0]
                : p.slices[static_cast<std::size_t>((position_ - back % ranks + ranks) % ranks)];
        const std::size_t from = std::min(s.bytes, (f % p.per_step) * p.piece);
        const std::size_t n = std::min(p.piece, s.bytes - from);
        std::byte* const mine = p.base + s.at + from;
        auto receiving = receive_frame(f, n, reduces ? nullptr : mine);
        co_await std::move(receiving);
        if (reduces && n > 0) {
            const std::byte* const theirs = scratch_.data() + 64;
            const bool last = step + 1 == p.reducing;
            const reduce_op op = p.op == reduce_op::mean && !last ? reduce_op::sum : p.op;
            // Rank 0 puts its own value first, so that two ranks always compute p0 + p1.
            const bool own_first = position_ == 0;
            reduce(mine, own_first ? mine : theirs, own_first ? theirs : mine, n / size_of(p.type),
                   p.type, op, divisor_);
        }
        p.received = f + 1;
        moved_.wake_all();
    }
}

/// read_frame, with the neighbour to blame when the stream breaks.
SKEIN_INLINE task<void> ring_communicator::core::receive_frame(std::uint32_t step, std::size_t n,
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

/// Reads frame number `step` of `n` bytes from the previous rank, into `direct` or behind the
/// header in scratch + 64. Throws what a notice says, mismatch, or the error of the stream.
SKEIN_INLINE task<void> ring_communicator::core::read_frame(std::uint32_t step, std::size_t n,
                                                            std::byte* direct) {
    constexpr std::size_t head_size = detail::ring_header::size, head_at = 64 - head_size;
    // Small payloads come with their header in one read.
    const bool together = direct == nullptr || n <= 4096;
    std::byte* const buffer = scratch_.data() + head_at;
    const std::size_t wanted = head_size + (together ? n : 0);
    std::size_t have = 0;
    while (have < head_size) {
        auto some = in_->read_some(mut_byte_span(buffer + have, wanted - have));
        const std::size_t got = co_await std::move(some);
        if (got == 0) throw error(errc::reset, "the connection ended");
        have += got;
    }
    const auto h = detail::ring_header::decode(buffer).value();
    if (h.kind != detail::ring_kind::data) {
        auto notice =
            read_notice(*in_, h, previous(), byte_span(buffer + head_size, have - head_size));
        const error why = co_await std::move(notice);
        fail(why);
        throw why;
    }
    check_frame(h, step, n);
    heard_ = true;
    if (together) {
        auto rest = detail::read_exact(*in_, mut_byte_span(buffer + have, wanted - have));
        co_await std::move(rest);
        if (direct != nullptr && n > 0) std::memcpy(direct, scratch_.data() + 64, n);
    } else {
        auto rest = detail::read_exact(*in_, mut_byte_span(direct, n));
        co_await std::move(rest);
    }
}

/// Throws mismatch if the previous rank is not where this one is.
SKEIN_INLINE void ring_communicator::core::check_frame(const detail::ring_header& h,
                                                       std::uint32_t step, std::size_t n) const {
    if (h.what != doing_) {
        const bool first = previous() < label(position_);
        throw detail::mismatch_error(first ? previous() : label(position_), first ? h.what : doing_,
                                     first ? label(position_) : previous(),
                                     first ? doing_ : h.what);
    }
    if (h.step != step || h.bytes != n) {
        throw error(errc::mismatch,
                    fmt::format("rank {} sent piece {} of {} bytes, rank {} expected piece "
                                "{} of {}",
                                previous(), h.step, h.bytes, label(position_), step, n))
            .with_hint("are the ranks the same build with the same ring_options?");
    }
}

/// `own` into its slice of p, then everybody's into all slices.
SKEIN_INLINE task<void> ring_communicator::core::gather(plan& p, buffer_view own) {
    std::byte* const slot = p.base + p.slices[static_cast<std::size_t>(position_)].at;
    if (own.count > 0 && slot != own.begin()) std::memcpy(slot, own.data, own.bytes());
    p.gathering = size() - 1;
    auto work = finish_in_time(run(p));
    co_await std::move(work);
}

SKEIN_INLINE task<void> ring_communicator::core::all_reduce(buffer_view io, reduce_op op) {
    begin(detail::all_reduce_call(io, op));
    plan p;
    p.type = io.type;
    p.op = op;
    if (io.bytes() > pieces_.small_bytes) {
        p.base = io.begin();
        p.slices = even_slices(io.count, size_of(io.type));
        p.reducing = p.gathering = size() - 1;
        auto work = finish_in_time(run(p));
        co_await std::move(work);
        co_return;
    }
    work_.resize(std::max(work_.size(), io.bytes() * group_.size()));
    p.base = work_.data();
    p.slices = equal_slices(io.bytes());
    auto gathering = gather(p, io);
    co_await std::move(gathering);
    std::vector<const void*> sources;
    for (const slice& s : p.slices) sources.push_back(p.base + s.at);
    reduce(io.data, sources, io.count, io.type, op, divisor_);
}

SKEIN_INLINE task<void> ring_communicator::core::reduce_scatter(buffer_view in, buffer_view out,
                                                                reduce_op op) {
    begin(detail::reduce_scatter_call(in, out, op, size()));
    work_.resize(std::max(work_.size(), in.bytes()));
    if (in.count > 0) std::memcpy(work_.data(), in.data, in.bytes());
    plan p;
    p.type = in.type;
    p.op = op;
    p.base = work_.data();
    p.slices = equal_slices(out.bytes());
    p.reducing = size() - 1;
    auto work = finish_in_time(run(p));
    co_await std::move(work);
    const std::byte* const own = p.base + static_cast<std::size_t>(position_) * out.bytes();
    if (out.count > 0) std::memcpy(out.data, own, out.bytes());
}

SKEIN_INLINE task<void> ring_communicator::core::reduce_scatter_v(
    buffer_view io, std::span<const std::size_t> counts, reduce_op op) {
    begin(detail::reduce_scatter_v_call(io, counts, op, size()));
    plan p;
    p.type = io.type;
    p.op = op;
    p.base = io.begin();
    p.slices = uneven_slices(counts, size_of(io.type));
    p.reducing = size() - 1;
    auto work = finish_in_time(run(p));
    co_await std::move(work);
}

SKEIN_INLINE task<void> ring_communicator::core::all_gather(buffer_view in, buffer_view out) {
    begin(detail::all_gather_call(in, out, size()));
    plan p;
    p.base = out.begin();
    p.slices = equal_slices(in.bytes());
    auto gathering = gather(p, in);
    co_await std::move(gathering);
}

SKEIN_INLINE task<void> ring_communicator::core::all_gather_v(buffer_view in, buffer_view out,
                                                              std::span<const std::size_t> counts) {
    begin(detail::all_gather_v_call(in, out, counts, position_, size()));
    plan p;
    p.base = out.begin();
    p.slices = uneven_slices(counts, size_of(in.type));
    auto gathering = gather(p, in);
    co_await std::move(gathering);
}

SKEIN_INLINE task<void> ring_communicator::core::broadcast(buffer_view io, int root) {
    auto what = detail::broadcast_call(io, root, size());
    what.detail = static_cast<std::uint64_t>(label(root));
    begin(what);
    plan p;
    p.base = io.begin();
    p.slices.push_back(slice{0, io.bytes()});
    p.chain = true;
    p.root = root;
    auto work = finish_in_time(run(p));
    co_await std::move(work);
}

/// Empty slices once around: after N-1 steps everybody has heard of everybody.
SKEIN_INLINE task<void> ring_communicator::core::barrier() { return agree(detail::barrier_call()); }

SKEIN_INLINE task<void> ring_communicator::core::agree(detail::signature what) {
    begin(what);
    plan p;
    p.slices.resize(group_.size());
    p.gathering = size() - 1;
    auto work = finish_in_time(run(p));
    co_await std::move(work);
}

/// Private memory: a rank that got none tells the others.
SKEIN_INLINE task<std::shared_ptr<group_memory>> ring_communicator::core::allocate(
    std::size_t bytes, memory_kind kind) {
    const auto what = detail::allocate_call(bytes, kind);
    std::shared_ptr<group_memory> made;
    try {
        made = group_memory::alone(bytes, kind, false);
    } catch (const error& e) {
        fail(detail::no_memory(label(position_), what, e));
    }
    auto meeting = agree(what);
    co_await std::move(meeting);
    co_return made;
}

SKEIN_INLINE task<void> ring_communicator::core::send(buffer_view io, int to) {
    auto what = detail::message_call(io, to, position_, size());
    what.detail = static_cast<std::uint64_t>(label(to));
    begin(what);
    const time_point until = deadline_after(here_.now(), deadline_);
    auto work = finish_in_time(detail::send_message(*net_, io, label(to), doing_, until));
    co_await std::move(work);
}

SKEIN_INLINE task<void> ring_communicator::core::recv(buffer_view io, int from) {
    auto what = detail::message_call(io, from, position_, size());
    what.detail = static_cast<std::uint64_t>(label(from));
    begin(what);
    const time_point until = deadline_after(here_.now(), deadline_);
    auto work = finish_in_time(detail::recv_message(*net_, io, label(from), doing_, until));
    co_await std::move(work);
}

} // namespace skein::dist
