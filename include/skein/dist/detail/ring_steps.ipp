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
    /// What the ranks bring, as one buffer that slices cut; only reducing steps read it.
    std::byte* source = nullptr;
    /// Where the sum of the own slice goes; chains and gathering steps do not write it.
    std::byte* own = nullptr;
    /// What slices are gathered into, or broadcast in.
    std::byte* whole = nullptr;
    dtype type = dtype::f32; // of source: what the first step sends
    dtype wide = dtype::f32; // of partial sums: what the other reducing steps send
    dtype into = dtype::f32; // of own and whole
    reduce_op op = reduce_op::sum;
    bool in_place = true; // partial sums lie where the source lay (wide == type), else in work_
    std::vector<slice> slices;
    int reducing = 0; // so many steps reduce, before the gathering ones
    int gathering = 0;
    bool chain = false; // broadcast: one step from root along the ring, forwarding
    int root = 0;
    // filled in by prepare()
    std::size_t piece = 0;      // elements
    std::uint32_t per_step = 0; // frames
    std::uint32_t frames = 0;
    std::size_t half_bytes = 0; // bytes of one of the two places for partial sums
    std::byte* partial = nullptr;
    std::uint32_t received = 0, sent = 0;

    [[nodiscard]] int step_of(std::uint32_t frame) const {
        return static_cast<int>(frame / per_step);
    }
    /// The part of a slice that a frame carries.
    [[nodiscard]] slice part(std::uint32_t frame, const slice& s) const {
        const std::size_t from = std::min(s.count, (frame % per_step) * piece);
        return slice{from, std::min(piece, s.count - from)};
    }
    /// As what a step's elements travel.
    [[nodiscard]] dtype type_of(int step) const {
        if (chain || step >= reducing) return into;
        return step == 0 ? type : wide;
    }
    [[nodiscard]] std::byte* at_source(const slice& s, const slice& part) const {
        return source + (s.at + part.at) * size_of(type);
    }
    [[nodiscard]] std::byte* at_whole(const slice& s, const slice& part) const {
        return whole + (s.at + part.at) * size_of(into);
    }
    /// The partial sums that reducing step `step` makes of slice s: two places in turn.
    [[nodiscard]] std::byte* at_partial(int step, const slice& s, const slice& part) const {
        if (in_place) return at_source(s, part);
        return partial + static_cast<std::size_t>(step & 1) * half_bytes + part.at * size_of(wide);
    }
};

SKEIN_INLINE std::vector<ring_communicator::core::slice> ring_communicator::core::even_slices(
    std::size_t count, std::size_t width) const {
    const std::size_t ranks = group_.size(), line = 64 / width;
    const std::size_t share = ((count + ranks - 1) / ranks + line - 1) / line * line;
    std::vector<slice> out_slices;
    for (std::size_t p = 0; p < ranks; ++p) {
        const std::size_t from = std::min(p * share, count), to = std::min(from + share, count);
        out_slices.push_back(slice{from, to - from});
    }
    return out_slices;
}

/// The same number of elements for every rank.
SKEIN_INLINE std::vector<ring_communicator::core::slice> ring_communicator::core::equal_slices(
    std::size_t count) const {
    std::vector<slice> slices;
    for (std::size_t r = 0; r < group_.size(); ++r) slices.push_back(slice{r * count, count});
    return slices;
}

SKEIN_INLINE std::vector<ring_communicator::core::slice> ring_communicator::core::uneven_slices(
    std::span<const std::size_t> counts) {
    std::vector<slice> slices;
    std::size_t at = 0;
    for (const std::size_t c : counts) {
        slices.push_back(slice{at, c});
        at += c;
    }
    return slices;
}

/// The reducing steps over `in`. in_place: partial sums may overwrite it, if they have its type.
/// Only sums need to be wider: the maximum of two halves is a half.
SKEIN_INLINE ring_communicator::core::plan ring_communicator::core::reduction(buffer_view in,
                                                                              dtype into,
                                                                              reduce_op op,
                                                                              bool in_place) const {
    const bool adds = op == reduce_op::sum || op == reduce_op::mean;
    plan p;
    p.source = in.begin();
    p.type = in.type;
    p.wide = is_half(in.type) && adds ? dtype::f32 : in.type;
    p.into = into;
    p.op = op;
    p.in_place = in_place && p.wide == p.type;
    p.reducing = size() - 1;
    return p;
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

SKEIN_INLINE void ring_communicator::core::prepare(plan& p) {
    std::size_t longest = 0, widest = size_of(p.type);
    for (const slice& s : p.slices) longest = std::max(longest, s.count);
    if (p.reducing > 1) widest = std::max(widest, size_of(p.wide));
    if (p.gathering > 0) widest = std::max(widest, size_of(p.into));
    const std::size_t bytes = pieces_.piece_bytes / 64 * 64;
    SKEIN_CHECK(bytes > 0 && bytes < (std::size_t{1} << 31), "pieces of {} bytes",
                pieces_.piece_bytes);
    p.piece = bytes / widest;
    p.per_step =
        static_cast<std::uint32_t>(std::max<std::size_t>(1, (longest + p.piece - 1) / p.piece));
    p.frames = p.per_step * static_cast<std::uint32_t>(p.chain ? 1 : p.reducing + p.gathering);
    const std::size_t head = 64 + std::max<std::size_t>(bytes, detail::ring_header::max_notice);
    if (scratch_.size() < head) scratch_.resize(head);
    if (p.in_place || p.reducing < 2) return;
    p.half_bytes = longest * size_of(p.wide);
    const std::size_t places = p.reducing > 2 ? 2 : 1;
    if (work_.size() < places * p.half_bytes) work_.resize(places * p.half_bytes);
    p.partial = work_.data();
}

SKEIN_INLINE task<void> ring_communicator::core::run(plan& p) {
    prepare(p);
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
        const int step = p.step_of(f);
        const int back = step < p.reducing ? 1 + step : step - p.reducing;
        const slice s =
            p.chain
                ? p.slices[0]
                : p.slices[static_cast<std::size_t>((position_ - back % ranks + ranks) % ranks)];
        const slice part = p.part(f, s);
        const std::byte* const from = p.chain || step >= p.reducing ? p.at_whole(s, part)
                                      : step == 0                   ? p.at_source(s, part)
                                                  : p.at_partial(step - 1, s, part);
        auto sending = send_frame(f, byte_span(from, part.count * size_of(p.type_of(step))));
        co_await std::move(sending);
        p.sent = f + 1;
        moved_.wake_all();
    }
}

/// Waits until the place for the partial sums of frame f is free: the step before the last one has
/// been sent. No cycle of waits: each rank would have to be a step behind the one before it.
SKEIN_INLINE task<void> ring_communicator::core::wait_for_place(const plan& p, std::uint32_t frame,
                                                                int step) {
    const bool kept = step + 1 < p.reducing;
    while (kept && step >= 2 && p.sent + p.per_step < frame + 1) {
        auto more = moved_.wait();
        co_await more;
    }
}

/// The elements of frame f, which lie behind the header in scratch, and the own ones, to dst.
SKEIN_INLINE void ring_communicator::core::add(const plan& p, std::uint32_t frame, std::byte* dst) {
    const int step = p.step_of(frame), back = 2 + step, ranks = size();
    const slice s = p.slices[static_cast<std::size_t>((position_ - back % ranks + ranks) % ranks)];
    const slice part = p.part(frame, s);
    const operand mine{p.at_source(s, part), p.type};
    const operand theirs{scratch_.data() + 64, p.type_of(step)};
    const bool last = step + 1 == p.reducing;
    const reduce_op op = p.op == reduce_op::mean && !last ? reduce_op::sum : p.op;
    const dtype to = last ? p.into : p.wide;
    // Rank 0 puts its own value first, so that two ranks always compute p0 + p1.
    const bool own_first = position_ == 0;
    const operand both[2] = {own_first ? mine : theirs, own_first ? theirs : mine};
    if (to == p.type && theirs.type == p.type)
        reduce(dst, both[0].data, both[1].data, part.count, to, op, divisor_);
    else
        reduce_wide(dst, to, both, part.count, op, divisor_);
}

SKEIN_INLINE task<void> ring_communicator::core::run_receiver(plan& p) {
    if (p.chain) {
        auto receiving = receive_frame(first_word, 0, nullptr);
        co_await std::move(receiving);
        if (position_ == p.root) co_return;
    }
    const int ranks = size();
    for (std::uint32_t f = 0; f < p.frames; ++f) {
        const int step = p.step_of(f);
        const bool reduces = !p.chain && step < p.reducing;
        const int back = reduces ? 2 + step : 1 + step - p.reducing;
        const slice s =
            p.chain
                ? p.slices[0]
                : p.slices[static_cast<std::size_t>((position_ - back % ranks + ranks) % ranks)];
        const slice part = p.part(f, s);
        const std::size_t n = part.count * size_of(p.type_of(step));
        auto receiving = receive_frame(f, n, reduces ? nullptr : p.at_whole(s, part));
        co_await std::move(receiving);
        if (reduces && n > 0) {
            if (!p.in_place) {
                auto place = wait_for_place(p, f, step);
                co_await std::move(place);
            }
            add(p, f,
                step + 1 == p.reducing ? p.own + part.at * size_of(p.into)
                                       : p.at_partial(step, s, part));
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
    std::byte* const slot = p.at_whole(p.slices[static_cast<std::size_t>(position_)], slice{});
    if (own.count > 0 && slot != own.begin()) std::memcpy(slot, own.data, own.bytes());
    p.gathering = size() - 1;
    auto work = finish_in_time(run(p));
    co_await std::move(work);
}

SKEIN_INLINE task<void> ring_communicator::core::all_reduce(buffer_view in, buffer_view out,
                                                            reduce_op op) {
    auto what = detail::all_reduce_call(in, op);
    what.into = out.type;
    begin(what);
    if (in.bytes() > pieces_.small_bytes) {
        plan p = reduction(in, out.type, op, true);
        p.slices = even_slices(in.count, size_of(in.type));
        p.whole = out.begin();
        p.own = p.at_whole(p.slices[static_cast<std::size_t>(position_)], slice{});
        p.gathering = size() - 1;
        auto work = finish_in_time(run(p));
        co_await std::move(work);
        co_return;
    }
    work_.resize(std::max(work_.size(), in.bytes() * group_.size()));
    plan p;
    p.type = p.into = in.type;
    p.whole = work_.data();
    p.slices = equal_slices(in.count);
    auto gathering = gather(p, in);
    co_await std::move(gathering);
    std::vector<const void*> sources;
    for (const slice& s : p.slices) sources.push_back(p.at_whole(s, slice{}));
    reduce(out.data, out.type, sources, in.count, in.type, op, divisor_);
}

SKEIN_INLINE task<void> ring_communicator::core::reduce_scatter(buffer_view in, buffer_view out,
                                                                reduce_op op) {
    begin(detail::reduce_scatter_call(in, out, op, size()));
    plan p = reduction(in, out.type, op, false);
    p.own = out.begin();
    p.slices = equal_slices(out.count);
    auto work = finish_in_time(run(p));
    co_await std::move(work);
}

SKEIN_INLINE task<void> ring_communicator::core::reduce_scatter_v(
    buffer_view io, std::span<const std::size_t> counts, reduce_op op) {
    begin(detail::reduce_scatter_v_call(io, counts, op, size()));
    plan p = reduction(io, io.type, op, true);
    p.slices = uneven_slices(counts);
    p.own = p.at_source(p.slices[static_cast<std::size_t>(position_)], slice{});
    auto work = finish_in_time(run(p));
    co_await std::move(work);
}

SKEIN_INLINE task<void> ring_communicator::core::reduce_scatter_v(
    buffer_view io, std::span<const std::size_t> counts, buffer_view out, reduce_op op) {
    begin(detail::reduce_scatter_v_call(io, counts, out, op, position_, size()));
    plan p = reduction(io, out.type, op, true);
    p.slices = uneven_slices(counts);
    p.own = out.begin();
    auto work = finish_in_time(run(p));
    co_await std::move(work);
}

SKEIN_INLINE task<void> ring_communicator::core::all_gather(buffer_view in, buffer_view out) {
    begin(detail::all_gather_call(in, out, size()));
    plan p;
    p.type = p.into = in.type;
    p.whole = out.begin();
    p.slices = equal_slices(in.count);
    auto gathering = gather(p, in);
    co_await std::move(gathering);
}

SKEIN_INLINE task<void> ring_communicator::core::all_gather_v(buffer_view in, buffer_view out,
                                                              std::span<const std::size_t> counts) {
    begin(detail::all_gather_v_call(in, out, counts, position_, size()));
    plan p;
    p.type = p.into = in.type;
    p.whole = out.begin();
    p.slices = uneven_slices(counts);
    auto gathering = gather(p, in);
    co_await std::move(gathering);
}

SKEIN_INLINE task<void> ring_communicator::core::broadcast(buffer_view io, int root) {
    auto what = detail::broadcast_call(io, root, size());
    what.detail = static_cast<std::uint64_t>(label(root));
    begin(what);
    plan p;
    p.type = p.into = io.type;
    p.whole = io.begin();
    p.slices.push_back(slice{0, io.count});
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
