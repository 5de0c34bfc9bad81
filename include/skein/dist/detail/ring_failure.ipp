// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a ring fails and ends.
//
// The first error wins, goes to both neighbours, and ends what runs.

#include <skein/dist/detail/ring_core.ipp>

namespace skein::dist {

/// Runs a collective to its end or to the failure of the group, within the deadline.
SKEIN_INLINE task<void> ring_communicator::core::guarded(task<void> body) {
    struct judge final : timer_node {
        explicit judge(core& c)
            : timer_node([](timer_node& t) {
                  auto& self = static_cast<judge&>(t);
                  if (std::exchange(self.first,
                                    false)) { // this thread may be the late one: look again
                      self.owner.here.set_timer(self, self.owner.here.now() +
                                                          std::chrono::milliseconds(50));
                      return;
                  }
                  // A neighbour that has not begun, or does not read, is to blame. If it has, the
                  // cause is further away, and its news may still be on the way: hence the grace.
                  if (!self.owner.heard)
                      self.culprit = self.owner.previous();
                  else if (self.owner.writing)
                      self.culprit = self.owner.next();
                  else
                      return;
                  self.owner.stop.request();
              }),
              owner(c) {}
        core& owner;
        bool first = true;
        int culprit = -1;
    } at_deadline(*this);
    const time_point until = deadline_after(here.now(), deadline);
    const duration grace =
        std::min<duration>(deadline / 4 + std::chrono::milliseconds(500), std::chrono::seconds(2));
    if (doing.kind != detail::op_kind::message) here.set_timer(at_deadline, until);

    auto stoppable = with_cancel(stop.token(), std::move(body));
    auto limited = with_deadline(std::move(stoppable), until + grace);
    auto outcome = as_result(std::move(limited));
    auto ended = co_await std::move(outcome);
    at_deadline.cancel();
    busy = false;
    quiet.set();
    if (ended) co_return;

    if (!failed) {
        const error why = ended.error();
        const auto late =
            fmt::format("it has not done its part within {:.3g} s", to_seconds(deadline));
        if (at_deadline.culprit >= 0) {
            fail(blamed(errc::timeout, at_deadline.culprit, late));
        } else if (why.code() == errc::timeout) {
            const bool message = doing.kind == detail::op_kind::message;
            fail(
                blamed(errc::timeout, message ? static_cast<int>(doing.detail) : previous(), late));
        } else {
            if (why.code() == errc::peer_lost && size() > 2) {
                // The neighbour may only be the messenger of a failure further away.
                auto news = with_timeout(wait_for_failure(), std::chrono::milliseconds(300));
                auto settled = as_result(std::move(news));
                auto ignored = co_await std::move(settled);
                (void)ignored;
            }
            if (!failed) fail(why);
        }
    }
    throw_if_failed();
}

SKEIN_INLINE task<void> ring_communicator::core::wait_for_failure() {
    auto known = failure_known.wait();
    co_await known;
}

/// Listens on the silent direction of the link to the next rank, as long as the group lives.
SKEIN_INLINE task<void> ring_communicator::core::watch_next() {
    std::array<std::byte, detail::ring_header::size> head{};
    auto reading = as_result(detail::read_exact(*out, head));
    auto got = co_await std::move(reading);
    if (closed || (!got && got.error().code() == errc::cancelled)) co_return;
    if (!got) {
        fail(blamed(errc::peer_lost, next(), got.error().what()));
        co_return;
    }
    auto decoding = decode_notice(head);
    auto outcome = as_result(std::move(decoding));
    auto h = co_await std::move(outcome);
    if (!h) {
        fail(h.error());
    } else if (h->kind == detail::ring_kind::bye) {
        next_left = true; // what runs now can still end well: the next rank has done its part
    } else {
        auto notice = as_result(read_notice(*out, *h, next(), byte_span{}));
        auto why = co_await std::move(notice);
        fail(why ? *why : why.error());
    }
}

SKEIN_INLINE task<detail::ring_header> ring_communicator::core::decode_notice(byte_span head) {
    co_return detail::ring_header::decode(head.data());
}

/// The error that a notice carries. already: bytes behind the header that have been read.
SKEIN_INLINE task<error> ring_communicator::core::read_notice(net::stream& s, detail::ring_header h,
                                                              int from, byte_span already) {
    if (h.kind != detail::ring_kind::abort) {
        co_return blamed(errc::peer_lost, from, "it has closed its communicator");
    }
    byte_buffer text(std::min(h.bytes, detail::ring_header::max_text));
    const std::size_t have = std::min(already.size(), text.size());
    std::copy_n(already.begin(), have, text.begin());
    auto rest = detail::read_exact(s, mut_byte_span(text).subspan(have));
    co_await std::move(rest);
    const bool known = h.step >= 1 && h.step <= static_cast<std::uint32_t>(errc::internal);
    co_return error(known ? static_cast<errc>(h.step) : errc::aborted,
                    skein::to_string(byte_span(text)));
}

SKEIN_INLINE void ring_communicator::core::fail(error why) {
    if (failed || closed) return;
    failed = why;
    failure_known.set();
    stop.request();
    if (told) told(why);
    tasks.spawn(spread(std::move(why)));
}

SKEIN_INLINE task<void> ring_communicator::core::spread(error why) {
    auto pause = quiet.wait();
    co_await pause;
    const byte_buffer notice = detail::abort_notice(why);
    constexpr duration patience = std::chrono::milliseconds(500);
    if (in != nullptr) {
        auto up = as_result(with_timeout(detail::write_exact(*in, notice), patience));
        auto ignored = co_await std::move(up);
        (void)ignored;
        in->close_send();
    }
    if (out != nullptr && !writing) { // in the middle of a frame nothing can be said downstream
        auto down = as_result(with_timeout(detail::write_exact(*out, notice), patience));
        auto ignored = co_await std::move(down);
        (void)ignored;
    }
    if (out != nullptr) out->close_send();
    spread_done.set();
}

SKEIN_INLINE task<void> ring_communicator::core::close() {
    if (closed) co_return;
    if (!failed && in != nullptr && out != nullptr && !writing) {
        const byte_buffer bye = detail::bye_notice();
        constexpr duration patience = std::chrono::milliseconds(500);
        auto up = as_result(with_timeout(detail::write_exact(*in, bye), patience));
        auto first = co_await std::move(up);
        (void)first;
        auto down = as_result(with_timeout(detail::write_exact(*out, bye), patience));
        auto second = co_await std::move(down);
        (void)second;
    }
    const bool was_failed = failed.has_value();
    closed = true;
    if (was_failed) { // the notices get their time
        auto patience = as_result(with_timeout(wait_until_spread(), std::chrono::seconds(1)));
        auto ignored = co_await std::move(patience);
        (void)ignored;
    }
    tasks.cancel();
    auto joined = as_result(shield(tasks.join()));
    auto ignored = co_await std::move(joined);
    (void)ignored;
    auto stopping = net->stop();
    co_await std::move(stopping);
    in = out = nullptr;
}

SKEIN_INLINE task<void> ring_communicator::core::wait_until_spread() {
    auto done = spread_done.wait();
    co_await done;
}

SKEIN_INLINE error ring_communicator::core::blamed(errc code, int culprit,
                                                   const std::string& what) const {
    return error(code,
                 fmt::format("rank {} failed in {}: {}", culprit, detail::describe(doing), what));
}

SKEIN_INLINE std::string ring_communicator::core::where() const {
    return fmt::format("rank {}, {}", label(position), detail::describe(doing));
}

SKEIN_INLINE void ring_communicator::core::throw_if_failed() const {
    if (failed) throw error(failed->code(), failed->what()).with_where(where());
}

} // namespace skein::dist
