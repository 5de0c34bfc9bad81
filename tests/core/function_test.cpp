// SPDX-License-Identifier: Apache-2.0
#include <skein/core/function.hpp>

#include <catch2/catch_test_macros.hpp>

#include <array>
#include <memory>
#include <stdexcept>
#include <string>

#include "../support/counted.hpp"
#include "../support/death.hpp"

using skein::unique_function;
using skein_test::counted;
using skein_test::tally;

TEST_CASE("small and large callables are called and give their result") {
    unique_function<int(int)> small = [](int x) { return x + 1; };
    CHECK(small(1) == 2);
    std::array<int, 100> many{};
    many[99] = 5;
    unique_function<int(int)> large = [many](int x) { return many[99] + x; };
    CHECK(large(2) == 7);
    unique_function<std::size_t(const std::string&)> member = &std::string::size;
    CHECK(member("four") == 4);
    unique_function<void(int)> ignores = [](int x) { return x; };
    ignores(1);
}

TEST_CASE("what can only be moved may be captured and passed") {
    auto owner = std::make_unique<int>(3);
    unique_function<int(std::unique_ptr<int>)> f =
        [held = std::move(owner)](std::unique_ptr<int> other) { return *held + *other; };
    auto moved = std::move(f);
    CHECK_FALSE(f);
    CHECK(moved(std::make_unique<int>(4)) == 7);
}

TEST_CASE("captures are destroyed once, wherever they live") {
    tally t;
    {
        unique_function<int()> small = [c = counted(t, 1)] { return c.value(); };
        struct wide {
            counted c;
            std::array<char, 200> bytes;
        };
        unique_function<int()> large = [w = wide{counted(t, 2), {}}] { return w.c.value(); };
        CHECK(t.alive == 2);
        auto a = std::move(small);
        auto b = std::move(large);
        CHECK(a() + b() == 3);
        a = std::move(b);
        CHECK(t.alive == 1);
        CHECK(a() == 2);
        a = nullptr;
        CHECK_FALSE(a);
        CHECK(t.alive == 0);
    }
    CHECK(t.alive == 0);
}

TEST_CASE("exceptions pass through, references are references") {
    unique_function<void()> throws = [] { throw std::runtime_error("x"); };
    CHECK_THROWS_AS(throws(), std::runtime_error);
    int value = 1;
    unique_function<int&(int&)> refer = [](int& x) -> int& { return ++x; };
    CHECK(&refer(value) == &value);
    CHECK(value == 2);
}

TEST_CASE("state inside changes from call to call") {
    unique_function<int()> count = [n = 0]() mutable { return ++n; };
    count();
    CHECK(count() == 2);
}

TEST_CASE("calling an empty function ends the program with a message") {
    const auto said = skein_test::abort_text([] {
        unique_function<void()> none;
        none();
    });
    CHECK(said.find("an empty unique_function was called") != std::string::npos);
}
