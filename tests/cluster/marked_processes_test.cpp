// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/detail/marked_processes.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/sim/loop.hpp>

#include <csignal>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>

using namespace skein;
using namespace std::chrono_literals;

namespace {

/// Processes by their marks, of a host that counts how often it is looked at.
class host final : public proc::children {
public:
    task<std::unique_ptr<proc::child>> start(proc::child_options) override { co_return nullptr; }
    void signal_marked(std::span<proc::marked_signal* const> all) override {
        ++looks;
        for (auto* const one : all) {
            one->found = there[one->mark];
            heard[one->mark].push_back(one->number);
            if (one->number == SIGKILL) there[one->mark] = 0;
        }
    }
    proc::host_resources resources() override { return {}; }

    std::map<std::string, std::size_t> there;
    std::map<std::string, std::vector<int>> heard;
    int looks = 0;
};

} // namespace

TEST_CASE("all who ask within a moment share one look at the processes of the host", "[cluster]") {
    host h;
    sim::loop loop(1);
    loop.run([](host* of) -> task<void> {
        cluster::detail::marked_processes marked(*of);
        scope asking;
        std::vector<std::size_t> found(600);
        const auto ask = [&](int i) -> task<void> { // NOLINT: it outlives them
            auto looking = marked.signal("JOB=" + std::to_string(i), SIGTERM);
            found[static_cast<std::size_t>(i)] = co_await looking;
        };
        for (int i = 0; i < 600; ++i) {
            of->there["JOB=" + std::to_string(i)] = static_cast<std::size_t>(i);
            asking.spawn(ask(i));
        }
        auto asked = asking.join();
        co_await asked;
        CHECK(of->looks == 1);
        for (std::size_t i = 0; i < 600; ++i) CHECK(found[i] == i);
        CHECK(of->heard["JOB=17"] == std::vector<int>{SIGTERM});
        auto again = marked.signal("JOB=17", SIGKILL); // a later one has a look of its own
        const auto again_found = co_await again;
        CHECK(again_found == 17);
        CHECK(of->looks == 2);
        auto gone = marked.signal("JOB=17", 0);
        const auto gone_found = co_await gone;
        CHECK(gone_found == 0);
    }(&h));
}

TEST_CASE("who asks while others are answered is not forgotten", "[cluster]") {
    host h;
    h.there["JOB=1"] = 1;
    sim::loop loop(1);
    loop.run([](host* of) -> task<void> {
        cluster::detail::marked_processes marked(*of);
        scope asking;
        int answered = 0;
        const auto ask = [&](duration after) -> task<void> { // NOLINT: it outlives them
            co_await sleep_for(after);
            for (int i = 0; i < 3; ++i) {
                auto looking = marked.signal("JOB=1", 0);
                answered += static_cast<int>(co_await looking);
            }
        };
        for (int i = 0; i < 20; ++i) asking.spawn(ask(i * 300us));
        auto asked = asking.join();
        co_await asked;
        CHECK(answered == 60);
        CHECK(of->looks < 20);
    }(&h));
}

TEST_CASE("what an agent that was killed has left is ended once, and until nothing is left",
          "[cluster]") {
    host h;
    h.there["SKEIN_JOB_NODE=/storage"] = 3;
    cluster::detail::marked_processes marked(h);
    marked.end_leftovers("");
    CHECK(h.looks == 0);
    CHECK(marked.storage().empty());
    marked.end_leftovers("/storage");
    CHECK(h.looks == 2);
    CHECK(marked.storage() == "/storage");
    marked.end_leftovers("/storage");
    CHECK(h.looks == 2);
}
