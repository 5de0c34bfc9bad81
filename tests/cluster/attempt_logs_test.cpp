// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/attempt_logs.hpp>
#include <skein/core/error.hpp>
#include <tests/support/temporary_folder.hpp>

#include <catch2/catch_test_macros.hpp>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace attempt_logs_test {

using namespace skein;
using namespace skein::cluster;
using skein::test::temporary_folder;
namespace fs = std::filesystem;

namespace {

constexpr std::size_t plenty = std::size_t{1} << 20;

/// "line N", every third to standard error.
void write_lines(attempt_logs::writer& to, std::uint64_t first, std::uint64_t count) {
    log_piece piece;
    for (auto n = first; n < first + count; ++n)
        piece.add(n, n % 3 == 0, fmt::format("line {}", n));
    REQUIRE(piece.count == count);
    to.add(piece);
}

/// The numbers that are given, from there on, by asking again and again.
std::vector<std::uint64_t> numbers(attempt_logs& from, const attempt_name& name,
                                   std::uint64_t first = 1, std::size_t bytes = plenty) {
    std::vector<std::uint64_t> out;
    for (;;) {
        const auto some = from.read(name, first, bytes);
        if (some.lines.empty()) return out;
        for (std::size_t i = 0; i < some.lines.size(); ++i) {
            const auto n = some.first + i;
            REQUIRE(some.lines[i].text == fmt::format("line {}", n));
            REQUIRE(some.lines[i].is_error == (n % 3 == 0));
            out.push_back(n);
        }
        first = some.first + some.lines.size();
    }
}

std::vector<std::uint64_t> range(std::uint64_t first, std::uint64_t end) {
    std::vector<std::uint64_t> out;
    for (; first < end; ++first) out.push_back(first);
    return out;
}

std::uintmax_t bytes_of(const std::string& folder) {
    std::uintmax_t out = 0;
    for (const auto& one : fs::recursive_directory_iterator(folder))
        if (one.is_regular_file()) out += one.file_size();
    return out;
}

} // namespace

TEST_CASE("lines of all attempts of a job are read by their numbers, in pieces of any size") {
    const temporary_folder folder;
    auto logs = std::make_shared<attempt_logs>(folder.path);
    {
        const auto first = logs->begin({"train", 7, 1}, 1);
        write_lines(*first, 1, 5);
        write_lines(*first, 6, 5);
        const auto second = logs->begin({"train", 7, 2}, 11);
        write_lines(*second, 11, 3);
        const auto other = logs->begin({"train-2", 7, 1}, 1);
        write_lines(*other, 1, 2);
    }
    for (const auto& again : {logs, std::make_shared<attempt_logs>(folder.path)}) {
        for (const std::size_t bytes : {std::size_t{1}, std::size_t{60}, plenty})
            CHECK(numbers(*again, {"train", 7, 0}, 1, bytes) == range(1, 14));
        CHECK(numbers(*again, {"train", 7, 0}, 9) == range(9, 14));
        CHECK(numbers(*again, {"train", 7, 1}) == range(1, 11));
        CHECK(numbers(*again, {"train", 7, 2}) == range(11, 14));
        CHECK(numbers(*again, {"train", 8, 0}).empty()); // another job of that name
        CHECK(numbers(*again, {"train", 7, 3}).empty());
        CHECK(again->read({"train", 7, 0}, 1, plenty, 4).first == 10);
        CHECK(again->read({"train", 7, 1}, 1, plenty, 4).first == 7);
        CHECK(again->read({"train", 7, 0}, 1, plenty, 100).first == 1);
        CHECK(again->read({"train", 7, 0}, 14, plenty).lines.empty());
    }
}

TEST_CASE("lines that are missing have their numbers") {
    const temporary_folder folder;
    const auto logs = std::make_shared<attempt_logs>(folder.path);
    const auto to = logs->begin({"gap", 1, 1}, 1);
    write_lines(*to, 3, 2);
    write_lines(*to, 10, 2);
    CHECK(numbers(*logs, {"gap", 1, 0}) == std::vector<std::uint64_t>{3, 4, 10, 11});
    CHECK(logs->read({"gap", 1, 0}, 5, plenty).first == 10);
    log_piece full;
    const std::string line(std::size_t{1} << 20, 'x');
    for (std::uint64_t n = 1; n <= 20; ++n) full.add(n, false, line);
    CHECK(full.first == 1);
    CHECK(full.count == 7); // what is more than it takes is not taken, and nothing behind that
    full.add(21, false, "short");
    CHECK(full.count == 7);
}

TEST_CASE("half a line of an agent that was killed is none") {
    const temporary_folder folder;
    const auto logs = std::make_shared<attempt_logs>(folder.path);
    write_lines(*logs->begin({"cut", 1, 1}, 1), 1, 3);
    for (const auto& one : fs::recursive_directory_iterator(folder.path))
        if (one.is_regular_file()) std::ofstream(one.path(), std::ios::app) << "1 line 4";
    CHECK(numbers(*logs, {"cut", 1, 0}) == range(1, 4));
}

TEST_CASE(
    "an attempt has two halves, and all of them a bound that those which run do not lose by") {
    const temporary_folder folder;
    const auto logs = std::make_shared<attempt_logs>(folder.path, attempt_log_bounds{4000, 20'000});
    const auto runs = logs->begin({"runs", 1, 1}, 1);
    for (std::uint64_t n = 0; n < 200; ++n) write_lines(*runs, 1 + n * 10, 10);
    const auto kept = numbers(*logs, {"runs", 1, 0});
    CHECK(kept.back() == 2000);
    CHECK(kept == range(kept.front(), 2001));
    CHECK(bytes_of(folder.path) <= 8000);
    CHECK(bytes_of(folder.path) >= 4000);
    for (int job = 0; job < 10; ++job) {
        const auto to = logs->begin({fmt::format("job{}", job), 1, 1}, 1);
        for (std::uint64_t n = 0; n < 30; ++n) write_lines(*to, 1 + n * 10, 10);
        const auto path = fmt::format("{}/job{}@1@1", folder.path, job);
        fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(20 - job));
    }
    CHECK(bytes_of(folder.path) <= 24'000); // and the file that is written now
    CHECK(numbers(*logs, {"runs", 1, 0}) == kept);
    CHECK(numbers(*logs, {"job9", 1, 0}) == range(1, 301));
    CHECK(numbers(*logs, {"job0", 1, 0}).empty());
}

TEST_CASE("a table stays when the folder of its job has gone") {
    const temporary_folder folder;
    const auto logs = std::make_shared<attempt_logs>(folder.path + "/logs");
    const auto table = folder.path + "/metrics.csv";
    std::ofstream(table) << "step,loss\n1,2.5\n2,1.5\n3,";
    const attempt_name name{"gpt", 1, 1};
    logs->keep_table(name, "run", table); // it has no log
    CHECK(logs->table(name).second.empty());
    const auto to = logs->begin(name, 1);
    logs->keep_table(name, "run", table);
    CHECK(logs->table(name) ==
          std::pair<std::string, std::string>("run", "step,loss\n1,2.5\n2,1.5\n"));
    CHECK(logs->table({"gpt", 2, 1}).first.empty());
}

} // namespace attempt_logs_test
