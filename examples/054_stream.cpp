// SPDX-License-Identifier: Apache-2.0
// Streams: tasks that give many values, one by one, while they run. Each reads a log on a worker; the
// app merges their lines by time, and holds one line of each at a time, however long the logs are.
//
//     054_stream --workers 3
// [includes]
#include <skein/skein.hpp>

#include <fmt/core.h>

#include <cstdio>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

using skein::task;
// [/includes]

// [generator]
struct log_line {
    long ms = 0;
    std::string text;
};

/// The lines of a file as they are asked for: "1250 disk is hot".
skein::generator<log_line> lines_of(std::string path) {
    std::ifstream file(path);
    if (!file) throw std::runtime_error(path + " cannot be read");
    for (std::string line; std::getline(file, line);) {
        std::size_t behind = 0;
        log_line one; // named: see docs/traps.md
        one.ms = std::stol(line, &behind);
        one.text = line.substr(behind + 1);
        co_yield std::move(one);
    }
}
// [/generator]

// [merge]
/// One log, and the line that it stands at.
struct reader {
    std::string name;
    skein::item_stream<log_line> lines;
    std::optional<log_line> next;
};

task<void> merge(std::vector<std::string> names) {
    std::vector<reader> all;
    for (const auto& name : names) {
        auto lines = skein::stream<&lines_of>.with({.items = 16})(name); // runs from now on
        all.push_back(reader{name, std::move(lines), std::nullopt});
    }
    for (auto& one : all) one.next = co_await one.lines.next();
    long count = 0, last = 0;
    while (true) {
        reader* first = nullptr;
        for (auto& one : all)
            if (one.next && (first == nullptr || one.next->ms < first->next->ms)) first = &one;
        if (first == nullptr) break;
        if (count < 6) fmt::print("{:5} {}: {}\n", first->next->ms, first->name, first->next->text);
        if (first->next->ms < last) fmt::print("out of order\n");
        last = first->next->ms;
        ++count;
        first->next = co_await first->lines.next();
    }
    fmt::print("{} lines, the last one at {} ms\n", count, last);
}
// [/merge]

// [ends]
/// Endless, but for its reader; what it has to tidy up may await.
skein::generator<int> ticks(std::string file) {
    bool is_over = false;
    std::ofstream(file) << "open\n";
    try {
        for (int i = 0;; ++i) {
            co_await skein::sleep_for(std::chrono::milliseconds(1));
            co_yield i;
        }
    } catch (const skein::error&) {
        is_over = true;
    }
    if (is_over) std::remove(file.c_str());
}

task<void> early_ends() {
    auto missing = skein::stream<&lines_of>("none.log");
    try {
        (void)co_await missing.next();
    } catch (const skein::error& e) {
        fmt::print("{}\n", e.text());
    }
    auto s = skein::stream<&ticks>("ticks.lock");
    int sum = 0;
    for (int i = 0; i < 5; ++i) {
        const auto tick = co_await s.next();
        sum += *tick;
    }
    auto closing = s.close(); // dropping it ends the task, too; this waits until it has
    co_await closing;
    const bool is_gone = !std::ifstream("ticks.lock");
    fmt::print("sum {}, the lock file is {}\n", sum, is_gone ? "gone" : "there");
}
// [/ends]

// [app]
/// So many lines of a log, one each `every` ms.
void write_log(const std::string& name, int lines, int every, const char* text) {
    std::ofstream file(name);
    for (int i = 0; i < lines; ++i) file << i * every << ' ' << text << ' ' << i << '\n';
}

task<int> app() {
    write_log("disk.log", 4000, 25, "disk read");
    write_log("net.log", 10'000, 10, "packet");
    write_log("user.log", 300, 333, "click");

    auto merging = merge({"disk.log", "net.log", "user.log"});
    co_await std::move(merging);
    auto ending = early_ends();
    co_await std::move(ending);
    for (const char* name : {"disk.log", "net.log", "user.log"}) std::remove(name);
    co_return 0;
}

int main(int argc, char** argv) { return skein::run(argc, argv, app); }
// [/app]
