// SPDX-License-Identifier: Apache-2.0
#include <skein/core/constants.hpp>
#include <skein/rt/detail/backlog.hpp>

#include <catch2/catch_test_macros.hpp>

#include "rt/fake_channel.hpp"

namespace rt_backlog_test {

using namespace skein;
using namespace skein::rt;
using rt_test::far_end;

namespace {

rt::detail::arrival call_of(const far_end& from, std::uint64_t id, std::size_t bytes = 8) {
    return {from.peer, slot_id(id), byte_buffer(bytes), false, {}, {}};
}
far_end caller() { return rt_test::peer_at(rt::detail::peer_role::accepted); }

} // namespace

TEST_CASE("calls wait in the order in which they came") {
    const auto one = caller(), other = caller();
    rt::detail::backlog waiting;
    CHECK_FALSE(waiting.is_open());
    waiting.open();
    waiting.push(call_of(one, 1));
    waiting.push(call_of(other, 1));
    waiting.push(call_of(one, 2));
    CHECK(waiting.take().from == one.peer);
    CHECK(waiting.take().from == other.peer);
    CHECK(waiting.take().slot == slot_id(2));
    CHECK(waiting.empty());
    waiting.close({one.peer.get(), other.peer.get()});
    CHECK_FALSE(waiting.is_open());
}

TEST_CASE("who sends to a full backlog is not read from until half of it has gone") {
    const auto one = caller(), other = caller(), quiet = caller();
    const std::vector<peer*> all{one.peer.get(), other.peer.get(), quiet.peer.get()};
    rt::detail::backlog waiting;
    waiting.open();
    waiting.push(call_of(one, 1, limit::backlog_bytes));
    CHECK(one.wire->is_read); // it is no more than full
    waiting.push(call_of(one, 2, limit::backlog_bytes / 2));
    CHECK_FALSE(one.wire->is_read);
    waiting.push(call_of(other, 1, 0));
    CHECK_FALSE(other.wire->is_read);
    CHECK(quiet.wire->is_read);
    (void)waiting.take();
    waiting.read_on(all);
    CHECK_FALSE(one.wire->is_read); // half is there yet
    (void)waiting.take();
    waiting.read_on(all);
    CHECK(one.wire->is_read);
    CHECK(other.wire->is_read);
}

TEST_CASE("a call that waits is cancelled once, and a closed backlog remembers none") {
    const auto one = caller();
    rt::detail::backlog waiting;
    waiting.cancel(*one.peer, slot_id(1)); // nothing waits
    waiting.open();
    waiting.push(call_of(one, 1));
    waiting.push(call_of(one, 2));
    waiting.cancel(*one.peer, slot_id(2));
    waiting.cancel(*one.peer, slot_id(3)); // its reply is on its way
    CHECK_FALSE(waiting.was_cancelled(waiting.take()));
    const auto second = waiting.take();
    CHECK(waiting.was_cancelled(second));
    CHECK_FALSE(waiting.was_cancelled(second));
    waiting.close({one.peer.get()});
    CHECK(one.peer->inbound.cancelled.empty());
}

TEST_CASE("what waits of a caller that has gone is forgotten, with its bytes") {
    const auto one = caller(), other = caller();
    const std::vector<peer*> all{other.peer.get()};
    rt::detail::backlog waiting;
    waiting.open();
    waiting.push(call_of(one, 1, 2 * limit::backlog_bytes));
    waiting.push(call_of(other, 7));
    waiting.push(call_of(one, 2));
    CHECK_FALSE(other.wire->is_read);
    waiting.drop(*one.peer);
    waiting.read_on(all);
    CHECK(other.wire->is_read);
    CHECK(waiting.take().slot == slot_id(7));
    CHECK(waiting.empty());
}

} // namespace rt_backlog_test
