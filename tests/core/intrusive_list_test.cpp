// SPDX-License-Identifier: Apache-2.0
#include <skein/core/intrusive_list.hpp>

#include <catch2/catch_test_macros.hpp>

#include <memory>
#include <string>

namespace {
struct one_tag;
struct other_tag;
struct item : skein::list_node<one_tag>, skein::list_node<other_tag> {
    explicit item(char n) : name(n) {}
    char name;
};
using one_list = skein::intrusive_list<item, one_tag>;
using other_list = skein::intrusive_list<item, other_tag>;

template <class List>
std::string names(List& list) {
    std::string all;
    list.for_each([&](item& i) { all += i.name; });
    return all;
}
} // namespace

TEST_CASE("elements come out in the order they went in") {
    item a('a'), b('b'), c('c');
    one_list list;
    CHECK(list.empty());
    list.push_back(a);
    list.push_back(b);
    list.push_back(c);
    CHECK(names(list) == "abc");
    CHECK(&list.front() == &a);
    CHECK(&list.pop_front() == &a);
    CHECK_FALSE(a.skein::list_node<one_tag>::is_linked());
    CHECK(names(list) == "bc");
}

TEST_CASE("an element leaves from anywhere, and may come back") {
    item a('a'), b('b'), c('c');
    one_list list;
    for (auto* i : {&a, &b, &c}) list.push_back(*i);
    b.skein::list_node<one_tag>::unlink();
    b.skein::list_node<one_tag>::unlink();
    CHECK(names(list) == "ac");
    list.push_back(b);
    CHECK(names(list) == "acb");
}

TEST_CASE("an element may be in lists of different tags") {
    item a('a'), b('b');
    one_list one;
    other_list other;
    one.push_back(a);
    one.push_back(b);
    other.push_back(b);
    other.push_back(a);
    CHECK(names(one) == "ab");
    CHECK(names(other) == "ba");
    a.skein::list_node<one_tag>::unlink();
    CHECK(names(other) == "ba");
}

TEST_CASE("a destroyed element leaves its list, a destroyed list its elements") {
    item a('a');
    {
        one_list list;
        list.push_back(a);
        {
            item gone('g');
            list.push_back(gone);
        }
        CHECK(names(list) == "a");
        CHECK(a.skein::list_node<one_tag>::is_linked());
    }
    CHECK_FALSE(a.skein::list_node<one_tag>::is_linked());
}

TEST_CASE("splicing moves all elements in order, also from and to empty lists") {
    item a('a'), b('b'), c('c'), d('d');
    one_list to, from;
    to.splice_back(from);
    CHECK(to.empty());
    from.push_back(a);
    from.push_back(b);
    to.splice_back(from);
    CHECK(from.empty());
    CHECK(names(to) == "ab");
    from.push_back(c);
    from.push_back(d);
    to.splice_back(from);
    CHECK(names(to) == "abcd");
    to.pop_front();
    d.skein::list_node<one_tag>::unlink();
    CHECK(names(to) == "bc");
}
