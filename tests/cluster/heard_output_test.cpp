// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/detail/heard_output.hpp>
#include <skein/core/sleep.hpp>
#include <skein/sim/loop.hpp>

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace heard_output_test {

using namespace skein;
using namespace skein::cluster;
using namespace std::chrono_literals;

/// A driver of which the test says which workers it knows.
struct fake_driver final : cluster::detail::output_events {
    std::set<std::uint64_t> unknown; ///< leases
    std::vector<std::uint64_t> told; ///< nodes
    bool is_joined = true;

    [[nodiscard]] std::string name_of(std::uint64_t lease) const override {
        return unknown.contains(lease) ? std::string() : "worker-" + std::to_string(lease);
    }
    void printed(std::uint64_t node) override { told.push_back(node); }
    [[nodiscard]] bool is_output_coming() const override { return is_joined; }
};

/// What is heard, printed in 10 ms.
struct world {
    sim::loop loop{5};
    fake_driver driver;
    std::vector<std::string> printed;
    cluster::detail::heard_output output{
        loop, [this](std::vector<proc::worker_lines> some) { return print(this, std::move(some)); },
        driver};

    static task<void> print(world* w, std::vector<proc::worker_lines> some) {
        co_await sleep_for(10ms);
        for (const auto& one : some) {
            if (one.left_out != 0)
                w->printed.push_back(one.worker + " lacks " + std::to_string(one.left_out));
            for (const auto& line : one.lines) w->printed.push_back(one.worker + " " + line.text);
        }
    }
    void hear(std::uint64_t lease, std::uint64_t first, std::vector<std::string> texts) {
        worker_output m{7, "n1", {{lease, first, {}}}};
        for (auto& text : texts) {
            m.from.front().lines.emplace_back();
            m.from.front().lines.back().text = std::move(text);
        }
        output.hear(std::move(m));
    }
    /// How long it took to hear all, after this.
    static task<void> hear_out(world* w, const std::function<void()>* what, duration* took) {
        (*what)();
        const auto begun = w->loop.now();
        auto heard = w->output.hear_out(true, 2s);
        co_await heard;
        *took = w->loop.now() - begun;
    }
    duration after(const std::function<void()>& what) {
        duration took{};
        loop.run(hear_out(this, &what, &took));
        return took;
    }
};

using texts = std::vector<std::string>;

TEST_CASE("lines are printed in order, and the node hears when the last ones are", "[cluster]") {
    world w;
    const auto took = w.after([&] {
        w.hear(1, 1, {"a", "b"});
        w.hear(1, 3, {"c"});
        w.output.end(1, 3);
        CHECK(w.driver.told.empty());
    });
    CHECK(took < 1s);
    CHECK(w.printed == texts{"worker-1 a", "worker-1 b", "worker-1 c"});
    CHECK(w.driver.told == std::vector<std::uint64_t>{7, 7});
}

TEST_CASE("lines that nobody has sent are counted, between others and at a worker's end",
          "[cluster]") {
    world w;
    const auto took = w.after([&] {
        w.hear(1, 4, {"d"});
        w.output.end(1, 6);
        w.output.end(2, 5); // no line of it has come
        w.output.end(3, 0);
    });
    CHECK(took < 1s);
    CHECK(w.printed ==
          texts{"worker-1 lacks 3", "worker-1 d", "worker-1 lacks 2", "worker-2 lacks 5"});
}

TEST_CASE("lines of a worker that is not known any more are printed and not counted", "[cluster]") {
    world w;
    w.driver.unknown = {1};
    const auto took = w.after([&] {
        w.hear(1, 4, {"d"});
        w.output.end(1, 6);
    });
    CHECK(took < 1s);
    CHECK(w.printed == texts{" d"});
}

TEST_CASE("the end of a worker that was there is waited for, not that of a lost one", "[cluster]") {
    world waits;
    CHECK(waits.after([&] { waits.output.expect(1, "n1"); }) == 2s);

    world lost;
    const std::set<std::uint64_t> none;
    CHECK(lost.after([&] {
        lost.output.expect(1, "n1");
        lost.output.lose_others(none); // a head that was started again does not know it
    }) == 0s);

    world alone;
    alone.driver.is_joined = false;
    CHECK(alone.after([&] { alone.output.expect(1, "n1"); }) == 0s);
    alone.hear(1, 1, {"late"}); // nothing is printed any more
    CHECK(alone.printed.empty());
}

} // namespace heard_output_test
