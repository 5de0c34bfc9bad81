// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a ring fails and ends.
//
// The first error wins, goes to both neighbours, and ends what runs.

#include <skein/dist/detail/ring_core.ipp>

namespace skein::dist {

/// Looks at the deadline who has not done his part, and ends the collective if it is a neighbour.
class ring_communicator::core::late_watch final : public timer_node {
public:
    explicit late_watch(core& c)
        : timer_node([](timer_node& t) { static_cast<late_watch&>(t).look(); }), owner_(c) {}
    /// The world rank that is to blame; negative: none that is known.
    [[nodiscard]] int culprit() const noexcept { return culprit_; }

private:
    void look() {
        if (std::exchange(first_, false)) { // this thread may be the late one: look again
            owner_.here_.set_timer(*this, owner_.here_.now() + times.ring_late_again);
            return;
        }
        // A neighbour that has not begun, or does not read, is to blame. If it has, the cause is
        // further away, and its news may still be on the way.
        if (!owner_.heard_)
            culprit_ = owner_.previous();
        else if (owner_.writing_)
            culprit_ = owner_.next();
        else
            return;
        owner_.stop_.request();
    }

    core& owner_;
    bool first_ = true;
    int culprit_ = -1;
};

/// Runs a collective to its end or to the failure of the group, within the deadline.
SKEIN_INLINE task<void> ring_communicator::core::finish_in_time(task<void> body) {
    late_watch watch(*this);
    const time_point until = deadline_after(here_.now(), deadline_);
    const time_span grace =
        std::min<duration>(deadline_ / 4 + times.ring_grace_least, times.ring_grace_most);
    if (doing_.kind != detail::op_kind::message) here_.set_timer(watch, until);

    auto stoppable = with_cancel(stop_.token(), std::move(body));
    auto limited = with_deadline(std::move(stoppable), until + grace);
    auto outcome = as_result(std::move(limited));
    auto ended = co_await std::move(outcome);
    watch.cancel();
    busy_ = false;
    quiet_.set();
    if (ended) co_return;
    auto judging = judge(ended.error(), watch.culprit());
    co_await std::move(judging);
    throw_if_failed();
}

/// Makes the end of a collective the failure of the group, with the right rank to blame.
SKEIN_INLINE task<void> ring_communicator::core::judge(error why, int late_rank) {
    if (failed_) co_return;
    const bool message = doing_.kind == detail::op_kind::message;
    if (late_rank < 0 && why.code() == errc::timeout) {
        late_rank = message ? static_cast<int>(doing_.detail) : previous();
    }
    if (late_rank >= 0) {
        const auto late =
            fmt::format("it has not done its part within {:.3g} s", to_seconds(deadline_));
        fail(blamed(errc::timeout, late_rank, late));
        co_return;
    }
    if (why.code() == errc::peer_lost && size() > 2) {
        // The neighbour may only be the messenger of a failure further away.
        auto news = with_timeout(wait_for_failure(), times.ring_news);
        auto settled = as_result(std::move(news));
        auto ignored = co_await std::move(settled);
        (void)ignored;
    }
    if (!failed_) fail(why);
}

SKEIN_INLINE task<void> ring_communicator::core::wait_for_failure() {
    auto known = failure_known_.wait();
    co_await known;
}

/// Listens on the silent direction of the link to the next rank, as long as the group lives.
SKEIN_INLINE task<void> ring_communicator::core::watch_next() {
    std::array<std::byte, detail::ring_header::size> head{};
    auto reading = as_result(detail::read_exact(*out_, head));
    auto got = co_await std::move(reading);
    if (closed_ || (!got && got.error().code() == errc::cancelled)) co_return;
    if (!got) {
        fail(blamed(errc::peer_lost, next(), got.error().what()));
        co_return;
    }
    const auto h = detail::ring_header::decode(head.data());
    if (!h) {
        fail(h.error());
    } else if (h->kind == detail::ring_kind::bye) {
        next_left_ = true; // what runs now can still end well: the next rank has done its part
    } else {
        auto notice = as_result(read_notice(*out_, *h, next(), byte_span{}));
        auto why = co_await std::move(notice);
        fail(why ? *why : why.error());
    }
}

/// The error that a notice carries. already: bytes behind the header that have been read.
SKEIN_INLINE task<error> ring_communicator::core::read_notice(net::stream& s, detail::ring_header h,
                                                              int from, byte_span already) {
    if (h.kind != detail::ring_kind::abort) {
        co_return blamed(errc::peer_lost, from, "it has closed its communicator");
    }
    byte_buffer body(std::min(h.bytes, detail::ring_header::max_notice));
    const std::size_t have = std::min(already.size(), body.size());
    std::copy_n(already.begin(), have, body.begin());
    auto rest = detail::read_exact(s, mut_byte_span(body).subspan(have));
    co_await std::move(rest);
    co_return detail::decode_abort(body, fmt::format("rank {}", from));
}

SKEIN_INLINE void ring_communicator::core::fail(error why) {
    if (failed_ || closed_) return;
    failed_ = why;
    failure_known_.set();
    stop_.request();
    if (failure_listener_) failure_listener_(why);
    tasks_.spawn(tell_neighbours(std::move(why)));
}

SKEIN_INLINE task<void> ring_communicator::core::tell_neighbours(error why) {
    auto pause = quiet_.wait();
    co_await pause;
    const byte_buffer notice = detail::abort_notice(why);
    if (in_ != nullptr) {
        auto up = as_result(with_timeout(detail::write_exact(*in_, notice), times.ring_notice));
        auto ignored = co_await std::move(up);
        (void)ignored;
        in_->close_send();
    }
    if (out_ != nullptr && !writing_) { // in the middle of a frame nothing can be said downstream
        auto down = as_result(with_timeout(detail::write_exact(*out_, notice), times.ring_notice));
        auto ignored = co_await std::move(down);
        (void)ignored;
    }
    if (out_ != nullptr) out_->close_send();
    neighbours_told_.set();
}

SKEIN_INLINE task<void> ring_communicator::core::close() {
    if (closed_) co_return;
    if (!failed_ && in_ != nullptr && out_ != nullptr && !writing_) {
        const byte_buffer bye = detail::bye_notice();
        auto up = as_result(with_timeout(detail::write_exact(*in_, bye), times.ring_notice));
        auto first = co_await std::move(up);
        (void)first;
        auto down = as_result(with_timeout(detail::write_exact(*out_, bye), times.ring_notice));
        auto second = co_await std::move(down);
        (void)second;
    }
    const bool was_failed = failed_.has_value();
    closed_ = true;
    if (was_failed) { // the notices get their time
        auto patience = as_result(with_timeout(wait_until_told(), times.ring_goodbye));
        auto ignored = co_await std::move(patience);
        (void)ignored;
    }
    tasks_.cancel();
    auto joined = as_result(shield(tasks_.join()));
    auto ignored = co_await std::move(joined);
    (void)ignored;
    auto stopping = net_->stop();
    co_await std::move(stopping);
    in_ = out_ = nullptr;
}

SKEIN_INLINE task<void> ring_communicator::core::wait_until_told() {
    auto done = neighbours_told_.wait();
    co_await done;
}

SKEIN_INLINE error ring_communicator::core::blamed(errc code, int culprit,
                                                   const std::string& what) const {
    return error(code,
                 fmt::format("rank {} failed in {}: {}", culprit, detail::describe(doing_), what));
}

SKEIN_INLINE std::string ring_communicator::core::where() const {
    return fmt::format("rank {}, {}", label(position_), detail::describe(doing_));
}

SKEIN_INLINE void ring_communicator::core::throw_if_failed() const {
    if (failed_) throw detail::error_at(*failed_, where());
}

} // namespace skein::dist
