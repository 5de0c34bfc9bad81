// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/train/collective.hpp>

#include <tests/dist/ranks.hpp>
#include <tests/support/expect.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string>

using namespace skein;
using namespace skein::report;
using namespace skein::train;
using test::expect;

namespace {

/// body(ctx) on two ranks of one host; the errors by rank.
ranks::outcome two(const std::function<void(context&)>& body) {
    return ranks::group(ranks::hosts_for("shm", 2), "shm", [&](ranks::rank_view& r) {
        context ctx({.rank = r.rank,
                     .world_size = 2,
                     .local_rank = r.rank,
                     .local_size = 2,
                     .attempt = 0,
                     .host = "h",
                     .job_id = ""},
                    nullptr, &r.comm);
        body(ctx);
    });
}

} // namespace

TEST_CASE("blobs of different and zero length reach every rank in rank order") {
    const auto errors = two([](context& ctx) {
        const std::string mine = ctx.rank() == 0 ? "" : "from one";
        const auto all = gather_bytes(ctx, as_bytes(mine));
        expect(all.size() == 2);
        expect(all[0].empty());
        expect(as_text(all[1]) == "from one");
        expect(gather_bytes(ctx, {})[1].empty());
        expect(from_first(ctx, "rank " + std::to_string(ctx.rank())) == "rank 0");
    });
    CHECK(ranks::first_error(errors).empty());
}

TEST_CASE("require_same names the odd rank on both") {
    const auto errors = two([](context& ctx) {
        require_same(ctx, 5, "the model");
        require_same(ctx, static_cast<std::uint64_t>(ctx.rank()), "the model");
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        CHECK(e->code() == errc::mismatch);
        CHECK(e->text() == "the model of rank 1 differs from that of rank 0");
    }
}

TEST_CASE("metrics are merged by kind, and other names on one rank are an error on both") {
    const auto errors = two([](context& ctx) {
        metric_set m;
        const double r = ctx.rank();
        m.mean("loss", r, 1 + 2 * r).sum("n", 2).max("most", r).min("least", r).last("lr", 5 - r);
        const auto merged = merge(ctx, m);
        expect(*find_metric(merged, "loss") == 0.75);
        expect(*find_metric(merged, "n") == 4);
        expect(*find_metric(merged, "most") == 1);
        expect(*find_metric(merged, "least") == 0);
        expect(*find_metric(merged, "lr") == 5);
        metric_set other;
        other.sum(ctx.rank() == 0 ? "a" : "b", 1);
        (void)merge(ctx, other);
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        CHECK(e->code() == errc::mismatch);
    }
}

TEST_CASE("what the user's code throws breaks no world, whatever its code") {
    const auto lost = error(errc::reset, "connection reset");
    CHECK(skein::train::detail::is_of_world(lost));
    for (const auto* const where : {"the loss on rank 1 at step 7", "sample 7 (a.jpg), map(fetch)"})
        CHECK_FALSE(skein::train::detail::is_of_world(error(lost).with_where(where)));
}

TEST_CASE("alone, every exchange is the identity") {
    const auto ctx = context::single();
    CHECK(from_first(ctx, "me") == "me");
    metric_set m;
    m.sum("n", 3);
    CHECK(*find_metric(merge(ctx, m), "n") == 3);
    double value = 2;
    all_reduce(ctx, std::span(&value, 1), dist::reduce_op::sum);
    CHECK(value == 2);
    CHECK_NOTHROW(require_same(ctx, 1, "x"));
    CHECK(make_checkpoint_world(ctx).size == 1);
}
