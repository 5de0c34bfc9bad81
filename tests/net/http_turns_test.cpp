// SPDX-License-Identifier: Apache-2.0
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/http_turns.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/sim/loop.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

using namespace skein;
using namespace std::chrono_literals;

namespace {

/// What has happened: pieces of work by name, and turns of everything else as '.'.
struct course {
    net::http_turns turns;
    std::string text;
    duration piece{0}; ///< that one takes, on a real loop
};

task<void> do_pieces(course* c, std::size_t lane, char name, int pieces) {
    for (int i = 0; i < pieces; ++i) {
        auto turn = c->turns.wait(lane);
        co_await turn;
        const auto until = loop::current().exact_now() + c->piece;
        while (loop::current().exact_now() < until) {}
        c->text += name;
    }
}

task<void> all_else(course* c, const bool* over) {
    while (!*over) {
        co_await yield();
        c->text += '.';
    }
}

task<void> run_all(course* c, std::vector<std::pair<std::size_t, std::string>> lanes, int pieces) {
    bool over = false;
    scope clients, others;
    others.spawn(all_else(c, &over));
    for (const auto& [lane, names] : lanes)
        for (const char name : names) clients.spawn(do_pieces(c, lane, name, pieces));
    auto done = clients.join();
    co_await done;
    over = true;
    auto rest = others.join();
    co_await rest;
}

std::string without_dots(std::string text) {
    std::erase(text, '.');
    return text;
}

} // namespace

TEST_CASE("between two pieces of work everything else has its turn") {
    course c;
    sim::loop loop(1);
    loop.run(run_all(&c, {{1, "abcdefgh"}}, 20));
    const auto work = without_dots(c.text);
    CHECK(work.size() == 160);
    for (std::size_t at = c.text.find_first_not_of('.'); at + 1 < c.text.size(); ++at) {
        INFO(at << " in " << c.text);
        REQUIRE((c.text[at] == '.' || c.text[at + 1] == '.'));
    }
}

TEST_CASE("of one lane nobody is served twice while another one waits") {
    course c;
    sim::loop loop(1);
    loop.run(run_all(&c, {{1, "abcdefgh"}}, 20));
    const auto work = without_dots(c.text); // the first of all may be back before the others come
    for (std::size_t begin = 1; begin + 8 < work.size(); begin += 8) {
        auto names = work.substr(begin, 8);
        std::sort(names.begin(), names.end());
        CHECK(names == "abcdefgh");
    }
}

TEST_CASE("a lane with one client has every second turn, however many wait in another one") {
    course c;
    sim::loop loop(1);
    loop.run(run_all(&c, {{1, std::string(200, 'v')}, {2, "w"}}, 20));
    const auto work = without_dots(c.text);
    CHECK(work.size() == 201 * 20);
    CHECK(work.rfind('w') < 60); // all its twenty
}

TEST_CASE("who stops waiting costs the others no turn") {
    course c;
    sim::loop loop(1);
    loop.run([](course* of) -> task<void> {
        scope leaving, staying;
        staying.spawn(do_pieces(of, 1, 'a', 3));
        leaving.spawn(do_pieces(of, 1, 'x', 1000));
        for (int i = 0; i < 4; ++i) co_await yield();
        leaving.cancel();
        auto gone = leaving.join();
        co_await gone;
        staying.spawn(do_pieces(of, 1, 'b', 3));
        auto done = staying.join();
        co_await done;
        CHECK(of->turns.waiting(1) == 0);
    }(&c));
    const auto work = without_dots(c.text);
    CHECK(std::count(work.begin(), work.end(), 'a') == 3);
    CHECK(std::count(work.begin(), work.end(), 'b') == 3);
}

TEST_CASE("long pieces leave the loop to all else for about as long") {
    course c;
    c.piece = 4ms;
    net::real_loop loop;
    loop.run(run_all(&c, {{1, "abcdef"}}, 5));
    const auto turns = std::count(c.text.begin(), c.text.end(), '.');
    INFO(c.text.size());
    CHECK(without_dots(c.text).size() == 30);
    CHECK(turns > 10 * 30); // one between two pieces would be 30
}
