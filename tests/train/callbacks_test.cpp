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
