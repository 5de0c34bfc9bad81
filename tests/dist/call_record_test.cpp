// SPDX-License-Identifier: Apache-2.0
// label: cuda
#include <skein/dist/call_record.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string>
#include <vector>

using namespace skein;
using namespace skein::dist;

namespace call_record_test {

dist::detail::signature call(dist::detail::op_kind kind, std::uint64_t count,
                             std::uint64_t root = 0) {
    dist::detail::signature s;
    s.kind = kind;
    s.count = count;
    s.detail = root;
    return s;
}

} // namespace call_record_test

TEST_CASE("records of the same calls have one mark, and of any other call another") {
    using namespace call_record_test;
    using skein::dist::detail::op_kind;
    call_record a("nccl x2"), b("nccl x2");
    CHECK(a.mark() == b.mark());
    CHECK(a.add(call(op_kind::all_reduce, 4)).sequence == 1);
    CHECK(a.mark() != b.mark());
    (void)b.add(call(op_kind::all_reduce, 4));
    CHECK(a.mark() == b.mark());
    const auto differs = [](dist::detail::signature one, dist::detail::signature other) {
        call_record x("x"), y("y");
        (void)x.add(one);
        (void)y.add(other);
        return x.mark() != y.mark();
    };
    const auto all = call(op_kind::all_reduce, 4);
    auto other = all;
    other.type = dtype::i64;
    CHECK(differs(all, other));
    other = all;
    other.op = reduce_op::max;
    CHECK(differs(all, other));
    other = all;
    other.tag = collective_tag{.unit = 1}.pack();
    CHECK(differs(all, other));
    other = all;
    other.into = dtype::f64;
    CHECK(differs(all, other));
    CHECK(differs(all, call(op_kind::all_reduce, 5)));
    CHECK(differs(all, call(op_kind::broadcast, 4)));
    CHECK(differs(call(op_kind::broadcast, 4, 0), call(op_kind::broadcast, 4, 1)));
    CHECK(!differs(all, all));
}

TEST_CASE("the first unlike call is named with both ranks, and only the last calls are kept") {
    using namespace call_record_test;
    using skein::dist::detail::op_kind;
    call_record a("a"), b("b"), c("c");
    for (int i = 0; i < 100; ++i)
        for (auto* each : {&a, &b, &c}) (void)each->add(call(op_kind::all_reduce, 4));
    CHECK(a.last().size() == call_record::most);
    CHECK(a.last().front().sequence == 37);
    const auto lists = [&] { return std::vector{a.last(), b.last(), c.last()}; };
    CHECK(!unlike_calls(lists()));
    (void)a.add(call(op_kind::broadcast, 8, 0));
    (void)b.add(call(op_kind::broadcast, 8, 0));
    (void)c.add(call(op_kind::broadcast, 8, 1));
    auto why = unlike_calls(lists());
    REQUIRE(why);
    CHECK(why->code() == errc::mismatch);
    const std::string said = why->what();
    CHECK(said.find("rank 0 is in broadcast #101 (f32 x 8, root 0), rank 2 in broadcast #101") !=
          std::string::npos);
    // A rank that has called less.
    call_record d("d"), e("e");
    (void)d.add(call(op_kind::barrier, 0));
    why = unlike_calls(std::vector{d.last(), e.last()});
    REQUIRE(why);
    CHECK(std::string(why->what()).find("rank 0 is in barrier #1, rank 1 in no collective") !=
          std::string::npos);
    CHECK(!unlike_calls(std::vector<std::vector<dist::detail::signature>>{}));
}
