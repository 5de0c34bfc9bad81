// SPDX-License-Identifier: Apache-2.0
// Who holds which bytes: by steps, and against a model over many of them.
#include <skein/objects/store_book.hpp>

#include <skein/core/random.hpp>

#include <map>
#include <set>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>

namespace store_book_test {

using namespace skein;
using namespace skein::objects;

constexpr process_id ann(1), bob(2), cyd(3);
constexpr std::uint64_t page = 4096;

TEST_CASE("an object is there until nobody holds it, then its bytes are granted again",
          "[objects][store_book]") {
    store_book book(4 * page);
    book.begin(ann);
    const auto first = book.create(ann, 3 * page);
    REQUIRE(first);
    CHECK(!book.create(ann, 2 * page));
    CHECK(book.seal(ann, first->number));
    CHECK(book.claim(bob, first->number) == extent{first->at, 3 * page});
    CHECK(book.release(ann, first->number, 1));
    CHECK(!book.create(ann, 2 * page));
    CHECK(book.usage().sealed == 3 * page);
    CHECK(book.release(bob, first->number, 1));
    CHECK(book.usage().objects == 0);
    const auto second = book.create(ann, 4 * page);
    REQUIRE(second);
    CHECK(second->number != first->number);
    CHECK(!book.claim(bob, first->number)); // it is gone, whatever has its bytes now
}

TEST_CASE("what a process says of what it cannot know is refused", "[objects][store_book]") {
    store_book book(4 * page);
    book.begin(ann);
    book.begin(bob);
    const auto made = book.create(ann, page);
    REQUIRE(made);
    CHECK(!book.claim(bob, made->number)); // not sealed
    CHECK(!book.give(ann, made->number, bob));
    CHECK(!book.seal(bob, made->number));
    CHECK(book.seal(ann, made->number));
    CHECK(!book.seal(ann, made->number));
    CHECK(!book.release(bob, made->number, 1));
    CHECK(!book.give(bob, made->number, cyd));
    CHECK(!book.release(ann, made->number, 2));
    CHECK(!book.release(ann, made->number, 0));
    CHECK(!book.release(ann, object_number(77), 1));
    CHECK(book.held(ann, made->number) == 1);
    CHECK(!book.fits(0));
    CHECK(!book.fits(4 * page + 1));
    CHECK(!book.create(ann, 0));
}

TEST_CASE("a process that ends takes along what it alone held and what it was writing",
          "[objects][store_book]") {
    store_book book(8 * page);
    for (const auto one : {ann, bob}) book.begin(one);
    const auto mine = book.create(ann, page), shared = book.create(ann, page),
               unfinished = book.create(ann, page);
    CHECK(book.seal(ann, mine->number));
    CHECK(book.seal(ann, shared->number));
    CHECK(book.give(ann, shared->number, bob));
    book.end(ann);
    CHECK(!book.claim(bob, mine->number));
    CHECK(!book.claim(bob, unfinished->number));
    CHECK(book.held(bob, shared->number) == 1);
    CHECK(book.usage().granted == 0);
    CHECK(book.usage().sealed == page);
    CHECK(!book.create(ann, page)); // it never comes back
    CHECK(book.give(bob, shared->number, ann));
    book.end(bob);
    CHECK(book.usage().objects == 0);
}

TEST_CASE("what is given to a process that has not come yet waits for it, or for its end",
          "[objects][store_book]") {
    store_book book(8 * page);
    book.begin(ann);
    const auto one = book.create(ann, page), other = book.create(ann, page);
    for (const auto& made : {one, other}) CHECK(book.seal(ann, made->number));
    CHECK(book.give(ann, one->number, bob));
    CHECK(book.give(ann, other->number, cyd));
    book.begin(bob);
    book.end_unseen(bob); // its own link will say so
    book.end_unseen(cyd);
    CHECK(book.held(bob, one->number) == 1);
    CHECK(book.held(cyd, other->number) == 0);
    CHECK(book.has_ended(cyd));
}

TEST_CASE("free bytes are one piece again, and their pages are given back once",
          "[objects][store_book]") {
    store_book book(8 * page);
    book.begin(ann);
    std::vector<object_number> all;
    for (int i = 0; i < 6; ++i) all.push_back(book.create(ann, page)->number);
    CHECK(book.take_free_pages().empty()); // what was never written has none
    for (const int i : {0, 2, 1}) CHECK(book.release(ann, all[std::size_t(i)], 1));
    CHECK(book.create(ann, 3 * page)->at == 0);
    for (const int i : {3, 5}) CHECK(book.release(ann, all[std::size_t(i)], 1));
    CHECK(book.take_free_pages() == std::vector<extent>{{3 * page, page}, {5 * page, page}});
    CHECK(book.release(ann, all[4], 1));
    CHECK(book.create(ann, 5 * page)->at == 3 * page);
}

TEST_CASE("a gift whose news is lost with its giver is declined, one that was taken stays",
          "[objects][store_book]") {
    store_book book(8 * page);
    for (const auto one : {ann, bob, cyd}) book.begin(one);
    const auto first = book.create(ann, page), second = book.create(ann, page);
    for (const auto& made : {first, second}) CHECK(book.seal(ann, made->number));
    for (const auto& made : {first, second}) CHECK(book.give(ann, made->number, bob));
    CHECK(book.give(ann, second->number, cyd));
    CHECK(!book.take(bob, first->number, cyd));
    CHECK(book.take(bob, first->number, ann));
    CHECK(!book.take(bob, first->number, ann));
    book.end(ann);
    CHECK(book.held(bob, second->number) == 1); // its news may be on the way
    book.decline(bob, ann);
    CHECK(book.held(bob, first->number) == 1);
    CHECK(book.held(bob, second->number) == 0);
    CHECK(book.held(cyd, second->number) == 1);
    book.decline(bob, ann); // nothing is left
    const auto late =
        book.create(cyd, page); // what it said before its end comes behind the news of it
    CHECK(book.seal(cyd, late->number));
    book.decline(bob, cyd);
    CHECK(book.give(cyd, late->number, bob));
    CHECK(book.held(bob, late->number) == 0);
    CHECK(book.release(cyd, late->number, 1));
    book.decline(cyd, ann);
    CHECK(book.usage().objects == 1);
}

/// What the book should say, in the simplest way.
struct model {
    struct object {
        std::uint64_t at = 0, bytes = 0;
        bool is_sealed = false;
        process_id maker;
        std::map<process_id, std::uint32_t> holds;
    };
    std::map<object_number, object> all;

    void end(process_id who) {
        for (auto at = all.begin(); at != all.end();) {
            at->second.holds.erase(who);
            at = at->second.holds.empty() ? all.erase(at) : std::next(at);
        }
    }
    void check(const store_book& book) const {
        std::map<std::uint64_t, std::uint64_t> taken;
        std::uint64_t sealed = 0, granted = 0;
        for (const auto& [number, one] : all) {
            const auto whole = (one.bytes + page - 1) / page * page;
            taken[one.at] = whole;
            (one.is_sealed ? sealed : granted) += whole;
            for (const auto& [who, times] : one.holds) REQUIRE(book.held(who, number) == times);
        }
        std::uint64_t last = 0;
        for (const auto& [at, bytes] : taken) { // none lies over another
            REQUIRE(at >= last);
            last = at + bytes;
        }
        REQUIRE(last <= book.usage().bytes);
        REQUIRE(book.usage().sealed == sealed);
        REQUIRE(book.usage().granted == granted);
        REQUIRE(book.usage().objects == all.size());
    }
};

TEST_CASE("over many steps a book says what a model says", "[objects][store_book]") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        seeded_random random(seed);
        store_book book(64 * page);
        model right;
        std::uint64_t last_process = 4;
        std::vector<process_id> who{process_id(1), process_id(2), process_id(3), process_id(4)};
        for (const auto one : who) book.begin(one);
        const auto any = [&](auto& of) -> auto& { return of[random.next() % of.size()]; };
        for (int step = 0; step < 2000; ++step) {
            auto& by = any(who);
            object_number which;
            if (!right.all.empty())
                which = std::next(right.all.begin(),
                                  static_cast<std::ptrdiff_t>(random.next() % right.all.size()))
                            ->first;
            const auto found = right.all.find(which);
            const bool is_held = found != right.all.end() && found->second.holds.contains(by);
            switch (random.next() % 8) {
            case 0:
            case 1: {
                const auto bytes = random.next() % (8 * page) + 1;
                if (const auto made = book.create(by, bytes))
                    right.all[made->number] = {made->at, bytes, false, by, {{by, 1}}};
                break;
            }
            case 2: {
                const bool good = found != right.all.end() && !found->second.is_sealed &&
                                  found->second.maker == by;
                REQUIRE(book.seal(by, which).has_value() == good);
                if (good) found->second.is_sealed = true;
                break;
            }
            case 3: {
                const auto to = any(who);
                const bool good = is_held && found->second.is_sealed;
                REQUIRE(book.give(by, which, to).has_value() == good);
                if (good) ++found->second.holds[to];
                break;
            }
            case 4: {
                const bool good = found != right.all.end() && found->second.is_sealed;
                REQUIRE(book.claim(by, which).has_value() == good);
                if (good) ++found->second.holds[by];
                break;
            }
            case 5:
            case 6: {
                REQUIRE(book.release(by, which, 1).has_value() == is_held);
                if (!is_held) break;
                if (--found->second.holds[by] == 0) found->second.holds.erase(by);
                if (found->second.holds.empty()) right.all.erase(found);
                break;
            }
            default:
                if (random.next() % 16 != 0) break;
                book.end(by);
                right.end(by);
                by = process_id(++last_process);
                book.begin(by);
            }
            right.check(book);
        }
        for (const auto one : who) book.end(one);
        CHECK(book.usage().objects == 0);
        CHECK(book.create(process_id(999), 64 * page)); // all is one piece again
    }
}

constexpr std::uint64_t leaf = 4096;

TEST_CASE("what goes is a row, and the one that was not used for longest", "[objects][book]") {
    store_book book(8 * leaf);
    const process_id a(1);
    book.begin(a);
    std::vector<object_number> all;
    for (int i = 0; i < 8; ++i) {
        all.push_back(book.create(a, leaf)->number);
        REQUIRE(book.seal(a, all.back()));
    }
    CHECK(book.least_used(2 * leaf) == std::vector{all[0], all[1]});
    (void)book.pin(a, all[1]);
    CHECK(book.least_used(2 * leaf) == std::vector{all[2], all[3]});
    CHECK(book.least_used(leaf) == std::vector{all[0]});
    CHECK(book.least_used(7 * leaf).empty()); // the pin is in the way
    REQUIRE(book.unpin(a, all[1], 1));
    CHECK(book.least_used(8 * leaf).size() == 8);
    REQUIRE(book.release(a, all[4], 1)); // a free place is a part of a row
    CHECK(book.least_used(2 * leaf) == std::vector{all[3]});
    const auto used = book.claim(a, all[3]);
    CHECK(used);
    CHECK(book.least_used(2 * leaf) == std::vector{all[5]});
}

TEST_CASE("what is away has no place, and is given another one", "[objects][book]") {
    store_book book(4 * leaf);
    const process_id a(1), b(2);
    book.begin(a);
    book.begin(b);
    const auto first = book.create(a, 2 * leaf)->number;
    REQUIRE(book.seal(a, first));
    CHECK(!book.send_away(first)); // there is no file with it
    book.set_copy(first, true);
    REQUIRE(book.send_away(first));
    CHECK(book.find(a, first) == store_book::presence::away);
    CHECK(book.find(b, first) == store_book::presence::gone);
    CHECK(book.usage().away == 2 * leaf);
    CHECK(book.usage().sealed == 0);
    CHECK(book.claim(b, first)); // it can be held
    const auto all = book.create(a, 4 * leaf);
    REQUIRE(all);
    book.keep(first);
    CHECK(!book.place(first));
    REQUIRE(book.release(a, all->number, 1));
    REQUIRE(book.place(first));
    REQUIRE(book.release(a, first, 1));
    REQUIRE(book.release(b, first, 1)); // while it is read back
    CHECK(!book.claim(a, first));
    book.placed(first, true);
    CHECK(book.take_gone().empty());
    book.let(first);
    CHECK(book.take_gone() == std::vector{first});
    CHECK(book.usage().objects == 0);
    CHECK(book.usage().sealed == 0);
    CHECK(book.usage().away == 0);
    CHECK(book.create(a, 4 * leaf));
}

TEST_CASE("who reads freely has all pinned that it holds, until it says what it reads",
          "[objects][book]") {
    store_book book(4 * leaf);
    const process_id a(1), b(2);
    book.begin(a);
    book.begin(b);
    book.read_freely(a);
    const auto first = book.create(a, 2 * leaf)->number, second = book.create(a, 2 * leaf)->number;
    REQUIRE(book.seal(a, first));
    REQUIRE(book.seal(a, second));
    CHECK(book.usage().pinned == 4 * leaf);
    CHECK(book.most_pinned() == std::vector{std::pair{4 * leaf, a}});
    REQUIRE(book.give(a, first, b));
    CHECK(book.least_used(leaf).empty());
    CHECK(!book.read_only_what_is_pinned(a, {{object_number(9), 1, 0}}));
    REQUIRE(book.read_only_what_is_pinned(a, {{second, 2, 0}}));
    CHECK(book.usage().pinned == 2 * leaf);
    CHECK(book.least_used(leaf) == std::vector{first});
    CHECK(!book.unpin(a, first, 1));
    REQUIRE(book.unpin(a, second, 2));
    CHECK(!book.unpin(a, second, 1));
    CHECK(book.usage().pinned == 0);
    (void)book.pin(b, first);
    book.end(b);
    CHECK(book.usage().pinned == 0);
    book.end(a);
    CHECK(book.usage().objects == 0);
}

} // namespace store_book_test
