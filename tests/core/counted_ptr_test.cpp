// SPDX-License-Identifier: Apache-2.0
#include <skein/core/counted_ptr.hpp>

#include <catch2/catch_test_macros.hpp>

#include <utility>

namespace {

struct thing {
    explicit thing(int* ended) : ended_(ended) {}
    virtual ~thing() { ++*ended_; }
    void add_use() { ++uses; }
    void drop_use() {
        if (--uses == 0) delete this;
    }
    int uses = 0;

private:
    int* ended_;
};
struct special : thing {
    using thing::thing;
};

} // namespace

TEST_CASE("a counted thing ends with its last user") {
    int ended = 0;
    {
        skein::counted_ptr<thing> a(new thing(&ended));
        auto b = a;
        CHECK(a->uses == 2);
        CHECK(a == b);
        const auto c = std::move(b);
        CHECK(!b);
        CHECK(c->uses == 2);
        a = c; // the same one
        a = {};
        CHECK(ended == 0);
        CHECK(c.get()->uses == 1);
    }
    CHECK(ended == 1);
}

TEST_CASE("a counted base shares the count of what is derived") {
    int ended = 0;
    {
        skein::counted_ptr<thing> base;
        {
            const skein::counted_ptr<special> derived(new special(&ended));
            base = derived;
            CHECK(derived->uses == 2);
        }
        CHECK(base->uses == 1);
        CHECK(ended == 0);
    }
    CHECK(ended == 1);
    CHECK(!skein::counted_ptr<thing>(nullptr));
}
