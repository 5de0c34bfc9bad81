// SPDX-License-Identifier: Apache-2.0
// What can be sent, and how failures come back.
//
//     040_values_and_errors [--workers N]
// [types]
#include <skein/skein.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

// A plain aggregate travels as it is, and so does all that it is made of.
struct document {
    std::string title;
    std::vector<std::string> words;
    std::optional<int> year;
};
// [/types]

// [functions]
std::map<std::string, int> count(document d) {
    std::map<std::string, int> times;
    for (const auto& word : d.words) ++times[word];
    return times;
}

int most(std::map<std::string, int> times) {
    int found = 0;
    for (const auto& [word, n] : times) found = std::max(found, n);
    return found;
}

std::string word_at(document d, std::size_t at) {
    if (at >= d.words.size()) throw std::out_of_range(fmt::format("no word {}", at));
    return d.words[at];
}

double mean(std::vector<double> values) {
    if (values.empty())
        throw skein::error(skein::errc::invalid_argument, "the mean of nothing")
            .with_hint("give a value");
    double sum = 0;
    for (double v : values) sum += v;
    return sum / static_cast<double>(values.size());
}
// [/functions]

// [values]
skein::task<void> values(document poem) {
    auto times = skein::remote<&count>(poem); // a copy of the poem is on its way
    auto top = skein::remote<&most>(times);   // sent when the counts are there

    const auto counted = co_await times;
    fmt::print("rose: {}, at most {}\n", counted.at("rose"), co_await top);
}
// [/values]

// [errors]
skein::task<void> errors(document poem) {
    try {
        co_await skein::remote<&word_at>(poem, 100);
    } catch (const skein::remote_error& e) { // any exception: its type and text, and who threw it
        fmt::print("{}: {}\n", e.remote_type(), e.remote_text());
    }
    try {
        auto none = std::vector<double>();
        co_await skein::remote<&mean>(none);
    } catch (const skein::error& e) { // skein::error keeps its code and its hint
        fmt::print("{}; {}\n", to_string(e.code()), e.hint());
    }
}
// [/errors]

// [app]
skein::task<int> app() {
    const document poem{.title = "Sacred Emily",
                        .words = {"rose", "is", "a", "rose", "is", "a", "rose"},
                        .year = 1913};
    auto first = values(poem); // tasks are lazy: named here, run where they are awaited
    co_await std::move(first);
    auto second = errors(poem);
    co_await std::move(second);
    co_return 0;
}

int main(int argc, char** argv) { return skein::run(argc, argv, app); }
// [/app]
