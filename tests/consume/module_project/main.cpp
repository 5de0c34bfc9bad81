// SPDX-License-Identifier: Apache-2.0
// What an importer does: a remote task, an actor, coroutines, its own aggregate over the wire, an error from another
// process, and a macro by including the one header that has it. The standard headers are those of this file.
#include <cstdio>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <skein/core/check.hpp>

import skein;

std::size_t size_on_the_wire(const std::string& text);

struct point {
    double x = 0, y = 0;
    std::vector<std::string> tags;
};

point mirrored(point p) {
    std::swap(p.x, p.y);
    p.tags.push_back("mirrored");
    return p;
}

int fails(int value) {
    throw skein::error(skein::errc::invalid_argument, "no " + std::to_string(value));
}

struct counter {
    int total = 0;
    int add(int n) { return total += n; }
    skein::task<int> add_later(int n) {
        co_await skein::yield();
        co_return total += n;
    }
};

skein::task<int> twice(int n) { co_return 2 * n; }

skein::task<int> app() {
    point sent;
    sent.x = 1;
    sent.tags = {"sent"};
    auto there = skein::remote<&mirrored>(sent);
    point back = co_await std::move(there);
    SKEIN_CHECK(back.y == 1 && back.tags.size() == 2, "a point came back with {} tags",
                back.tags.size());

    auto made = skein::actor<counter>();
    auto c = co_await std::move(made);
    auto first = c.call<&counter::add>(40);
    co_await std::move(first);
    auto second = c.call<&counter::add_later>(2);
    int sum = co_await std::move(second);

    auto one = twice(1);
    auto two = twice(2);
    auto both = skein::all(std::move(one), std::move(two));
    auto [a, b] = co_await std::move(both);

    bool caught = false;
    try {
        auto failing = skein::remote<&fails>(7);
        co_await std::move(failing);
    } catch (const skein::error& refused) {
        caught = refused.code() == skein::errc::invalid_argument;
    }
    auto bytes = skein::wire::encode(back);
    auto again = skein::wire::decode<point>(bytes);
    const bool same = again && again->tags == back.tags && size_on_the_wire("ab") > 2;
    std::printf("%d %d %d %d\n", sum, a + b, caught ? 1 : 0, same ? 1 : 0);
    co_return 0;
}

int main(int argc, char** argv) { return skein::run(argc, argv, app); }
