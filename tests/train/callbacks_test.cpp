// SPDX-License-Identifier: Apache-2.0
#include <skein/train/callbacks.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace skein::train;

TEST_CASE("a callback hears the events it has members for and no others") {
    struct listener {
        std::uint64_t step = 0;
        bool ended = false;
        void on_step(const step_info& s) { step = s.step; }
        void on_end(const fit_result& r) { ended = r.steps == 7; }
    } heard;
    detail::tell(heard, start_info{});
    detail::tell(heard, step_info{.step = 7});
    detail::tell(heard, eval_info{.step = 9});
    detail::tell(heard, checkpoint_info{.step = 9});
    CHECK(heard.step == 7);
    fit_result end;
    end.steps = 7;
    detail::tell(heard, end);
    CHECK(heard.ended);
}

namespace {
struct loose_listener {
    int heard = 0;
    void on_start(start_info) { ++heard; }
    void on_eval(const auto& e) { heard += static_cast<int>(e.step); }
};
} // namespace

TEST_CASE("a callback may take its event by value and be a template") {
    loose_listener l;
    detail::tell(l, start_info{});
    detail::tell(l, eval_info{.step = 4});
    CHECK(l.heard == 5);
}

namespace {
struct stopper {
    action on_step(const step_info& s) { return s.step < 3 ? action::go_on : action::stop; }
    void on_eval(const eval_info&) {}
    std::string state() const { return "three"; }
    void restore(std::string_view) {}
};
struct forgetful {
    void on_step(const step_info&) {}
    std::string state() { return ""; } // not const, and nothing restores it
};
} // namespace

TEST_CASE(
    "a callback may answer with an action, and state counts when it can be saved and restored") {
    stopper s;
    CHECK(detail::tell(s, step_info{.step = 2}).act == action::go_on);
    CHECK(detail::tell(s, step_info{.step = 3}).act == action::stop);
    CHECK(detail::tell(s, eval_info{.step = 3}).act == action::go_on);
    STATIC_CHECK(detail::keeps_state<stopper>);
    STATIC_CHECK_FALSE(detail::keeps_state<forgetful>);
}

namespace {
struct planner {
    decision on_eval(const eval_info& e) {
        return {.plan = step_plan{.global_batch = e.plan->global_batch * 2}, .why = "twice"};
    }
};
struct judging {
    verdict on_agreed(const step_info& s) {
        return s.loss > 2 ? verdict::leave_out : verdict::apply;
    }
};
struct reasoning {
    ruling on_agreed(const step_info&) { return {verdict::end, "enough"}; }
};
struct rate_only {
    static constexpr bool changes_batch = false;
    decision on_step(const step_info&) { return {}; }
};
} // namespace

TEST_CASE("a callback may answer with a plan, and judge a step before it is applied") {
    planner p;
    const step_plan now{.global_batch = 4};
    const auto made = detail::tell(p, eval_info{.plan = &now});
    REQUIRE(made.plan);
    CHECK(made.plan->global_batch == 8);
    CHECK(made.why == "twice");
    CHECK(made.act == action::go_on);
    STATIC_CHECK(detail::plans<planner>);
    STATIC_CHECK(detail::changes_batch<planner>());
    STATIC_CHECK(detail::plans<rate_only>);
    STATIC_CHECK_FALSE(detail::changes_batch<rate_only>());
    STATIC_CHECK_FALSE(detail::plans<stopper>);
    STATIC_CHECK_FALSE(detail::changes_batch<stopper>());

    judging j;
    reasoning r;
    CHECK(detail::judge(j, step_info{.loss = 1}).what == verdict::apply);
    CHECK(detail::judge(j, step_info{.loss = 3}).what == verdict::leave_out);
    CHECK(detail::judge(r, step_info{}).why == "enough");
    CHECK(detail::judge(p, step_info{}).what == verdict::apply);
    STATIC_CHECK(callback<judging>);
    STATIC_CHECK(detail::judges<judging>);
    STATIC_CHECK_FALSE(detail::judges<planner>);
}
