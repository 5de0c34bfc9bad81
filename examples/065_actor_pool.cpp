// SPDX-License-Identifier: Apache-2.0
// Actors with options: a name, a saved state, groups of methods, and many that stand for each other.
//
//     065_actor_pool --workers 2
// [includes]
#include <skein/skein.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

using namespace std::chrono_literals;
using skein::task;
// [/includes]

// [state]
// What it knows outlives the worker that it is on: save() and load() move it to the next.
struct word_counts {
    std::map<std::string, int> of;
    int add(std::string word) { return ++of[word]; }
    std::map<std::string, int> all() const { return of; }

    std::map<std::string, int> save() const { return of; }
    void load(std::map<std::string, int> saved) { of = std::move(saved); }
};

/// Runs on any worker, and finds the counts by their name.
task<int> count_words(std::string text) {
    auto counts = co_await skein::get_actor<word_counts>("counts");
    int words = 0;
    for (std::size_t at = 0; at < text.size(); ++words) {
        const auto end = std::min(text.find(' ', at), text.size());
        auto added = counts.call<&word_counts::add>(text.substr(at, end - at));
        co_await added;
        at = end + 1;
    }
    co_return words;
}

task<void> named() {
    auto counts = co_await skein::actor<word_counts>.with({.restarts = 3, .name = "counts"})();
    auto a = skein::remote<&count_words>("red green red");
    auto b = skein::remote<&count_words>("green blue");
    const int words = co_await a + co_await b;
    fmt::print("{} words:", words);
    const auto all = co_await counts.call<&word_counts::all>();
    for (const auto& [word, n] : all) fmt::print(" {} {}", word, n);
    fmt::print("\n");
}
// [/state]

// [groups]
// Two readers at a time, and one who tidies up. Who looks waits for neither.
struct archive {
    int reading = 0, most = 0;
    task<int> read(int page) {
        most = std::max(most, ++reading);
        co_await skein::sleep_for(100ms);
        --reading;
        co_return page;
    }
    task<void> tidy_up() { co_await skein::sleep_for(1h); }
    int most_readers() const { return most; }

    using concurrency_groups =
        skein::method_groups<skein::method_group<"reading", 2, &archive::read>,
                             skein::method_group<"upkeep", 1, &archive::tidy_up>>;
};

task<void> grouped() {
    auto papers = co_await skein::actor<archive>();
    auto tidied = papers.call<&archive::tidy_up>();
    auto again = papers.call<&archive::tidy_up>(); // waits until the first has ended
    std::vector<skein::ref<int>> pages;
    for (int i = 0; i < 6; ++i) pages.push_back(papers.call<&archive::read>(i));
    for (auto& page : pages) co_await page;
    const int most = co_await papers.call<&archive::most_readers>();
    fmt::print("{} pages, {} at a time\n", pages.size(), most);
    again.cancel(); // it has not run
    tidied.cancel();
}
// [/groups]

// [pool]
struct scorer {
    int scale = 1;
    int score(int x) { return scale * x * x; }
};

task<void> pooled() {
    std::vector<skein::actor_handle<scorer>> team;
    for (int i = 0; i < 3; ++i) {
        auto made = co_await skein::actor<scorer>(2);
        team.push_back(made);
    }
    skein::actor_pool<scorer> pool(std::move(team));

    auto scores = pool.map<&scorer::score>(std::vector<int>{1, 2, 3, 4, 5}); // in order
    const auto values = co_await std::move(scores);
    for (const int v : values) fmt::print("{} ", v);

    auto one = pool.submit<&scorer::score>(10); // a ref, to whoever has the least to do
    fmt::print("{}\n", co_await one);
}
// [/pool]

// [wait]
task<int> take_ms(int ms) {
    co_await skein::sleep_for(std::chrono::milliseconds(ms));
    co_return ms;
}

task<void> some_of_them() {
    std::vector<skein::ref<int>> refs;
    for (const int ms : {3'600'000, 1, 2})
        refs.push_back(skein::remote<&take_ms>.with({.cpus = 0})(ms));
    auto two = skein::wait(refs, 2); // with a third argument: no longer than that
    auto now = co_await std::move(two);
    fmt::print("{} done, {} pending\n", now.done.size(), now.pending.size());
    for (const auto& r : now.pending) r.cancel();
}
// [/wait]

// [app]
task<int> app() {
    auto first = named();
    co_await std::move(first);
    auto second = grouped();
    co_await std::move(second);
    auto third = pooled();
    co_await std::move(third);
    auto fourth = some_of_them();
    co_await std::move(fourth);
    co_return 0;
}

int main(int argc, char** argv) { return skein::run(argc, argv, app); }
// [/app]
