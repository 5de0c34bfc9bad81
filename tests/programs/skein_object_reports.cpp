// SPDX-License-Identifier: Apache-2.0
// What users of other object stores have run into, as small programs: skein_object_reports CASE N.
// Each prints one line. docs/testing.md lists the reports.
#include <skein/core/awaitable.hpp>
#include <skein/core/generator.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/program/run.hpp>
#include <skein/rt/actor.hpp>
#include <skein/rt/put.hpp>
#include <skein/rt/remote.hpp>
#include <skein/rt/stream.hpp>
#include <skein/rt/view.hpp>
#include <skein/rt/wait_refs.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <fmt/core.h>

namespace object_reports {

using namespace std::chrono_literals;
using numbers = std::vector<std::uint32_t>;
constexpr std::size_t mebi = std::size_t{1} << 20;

numbers make(std::size_t bytes, std::uint32_t with) {
    return numbers(bytes / sizeof(std::uint32_t), with);
}
numbers again(numbers of) { return of; }
std::uint64_t total(std::span<const std::uint32_t> all) {
    std::uint64_t sum = 0;
    for (const auto one : all) sum += one;
    return sum;
}
std::uint64_t add(skein::view<numbers> of) { return total(*of); }

/// MiB that the memory of objects has now.
std::int64_t store_mebibytes() {
    for (const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code none;
        const auto what = std::filesystem::read_symlink(one.path(), none).string();
        struct stat info{};
        if (what.find("skein-objects") != what.npos && ::stat(one.path().c_str(), &info) == 0)
            return info.st_blocks / 2048;
    }
    return 0;
}

/// A loop that puts, calls with it and gets takes the room of its first rounds, for ever.
skein::task<void> a_loop(int n) {
    std::int64_t most = 0;
    bool is_right = true;
    for (int i = 0; i < n; ++i) {
        const auto value = make(16 * mebi, static_cast<std::uint32_t>(i));
        auto putting = skein::put(value);
        const auto data = co_await putting;
        const auto back = skein::remote<&again>(data);
        const auto got = co_await back;
        is_right = is_right && got == value;
        most = std::max(most, store_mebibytes());
    }
    fmt::print("{} {}\n", is_right ? "right" : "wrong", most <= 96 ? "few" : std::to_string(most));
}

struct producer {
    numbers give() { return make(8 * mebi, 1); }
};

/// Actors whose results together are larger than the store: all come, one after the other.
skein::task<void> more_than_the_store(int n) {
    std::vector<skein::actor_handle<producer>> all;
    for (int i = 0; i < 5; ++i) {
        auto making = skein::actor<producer>();
        all.push_back(co_await making);
    }
    std::uint64_t sum = 0;
    for (int i = 0; i < n; ++i) {
        std::vector<skein::ref<numbers>> pending;
        for (auto& one : all) pending.push_back(one.call<&producer::give>());
        for (auto& one : pending) {
            auto looking = skein::view(one);
            const auto seen = co_await looking;
            sum += total(*seen);
            one = {};
        }
    }
    fmt::print("{}\n", sum == static_cast<std::uint64_t>(n) * 5 * 2 * mebi ? "right" : "wrong");
}

/// More is put than fits, and all of it is held: each has its value.
skein::task<void> held_beyond_the_store(int n) {
    std::vector<skein::ref<numbers>> held;
    for (int i = 0; i < n; ++i) {
        const auto value = make(8 * mebi, static_cast<std::uint32_t>(i));
        auto putting = skein::put(value);
        held.push_back(co_await putting);
    }
    bool is_right = true;
    for (int i = 0; i < n; ++i) {
        const auto got = co_await held[static_cast<std::size_t>(i)];
        is_right = is_right && got == make(8 * mebi, static_cast<std::uint32_t>(i));
    }
    fmt::print("{}\n", is_right ? "right" : "wrong");
}

skein::task<std::vector<skein::ref<numbers>>> put_many(int n, std::uint32_t with) {
    std::vector<skein::ref<numbers>> out;
    for (int i = 0; i < n; ++i) {
        const auto value = make(128 << 10, with + static_cast<std::uint32_t>(i));
        auto putting = skein::put(value);
        out.push_back(co_await putting);
    }
    co_return out;
}

/// Many tasks put at the same time, and give what they have put to others.
skein::task<void> many_put(int n) {
    std::vector<skein::ref<std::vector<skein::ref<numbers>>>> lists;
    for (int i = 0; i < 16; ++i)
        lists.push_back(skein::remote<&put_many>(n, static_cast<std::uint32_t>(i)));
    std::uint64_t sum = 0, wanted = 0;
    for (std::uint32_t i = 0; i < 16; ++i) {
        const auto refs = co_await lists[i];
        std::vector<skein::ref<std::uint64_t>> sums;
        for (const auto& one : refs) sums.push_back(skein::remote<&add>(one));
        for (const auto& one : sums) sum += co_await one;
        for (std::uint32_t k = 0; k < static_cast<std::uint32_t>(n); ++k)
            wanted += std::uint64_t{i + k} * (32 << 10);
    }
    fmt::print("{}\n", sum == wanted ? "right" : "wrong");
}

numbers throws(skein::view<numbers> of) {
    if (total(*of) != 0) throw std::runtime_error("no");
    return {};
}

/// Tasks that throw hold nothing of what they were given.
skein::task<void> failures(int n) {
    std::int64_t most = 0;
    int caught = 0;
    for (int i = 0; i < n; ++i) {
        auto putting = skein::put(make(8 * mebi, 1));
        const auto given = co_await putting;
        auto failing = skein::as_result(skein::remote<&throws>(given));
        const auto r = co_await failing;
        caught += !r;
        most = std::max(most, store_mebibytes());
    }
    fmt::print("{} of {} {}\n", caught, n, most <= 64 ? "few" : std::to_string(most));
}

/// Dies when its result is in the store, the first time, before it is told.
numbers dies_behind(std::string file) {
    if (std::remove(file.c_str()) == 0) {
        std::raise(SIGKILL);
    }
    return make(8 * mebi, 5);
}

skein::task<void> dies(int n) {
    bool is_right = true;
    for (int i = 0; i < n; ++i) {
        std::string mark = std::filesystem::temp_directory_path() / "skein-reports-XXXXXX";
        if (const int file = ::mkstemp(mark.data()); file >= 0) ::close(file);
        const auto got = skein::remote<&dies_behind>.with({.retries = 3})(mark);
        auto looking = skein::view(got);
        const auto seen = co_await looking;
        is_right = is_right && total(*seen) == std::uint64_t{5} * 2 * mebi;
    }
    fmt::print("{}\n", is_right ? "right" : "wrong");
}

struct row {
    std::uint32_t id = 0;
    double weight = 0;
};
std::vector<row> rows(std::uint32_t n) {
    std::vector<row> out(n);
    for (std::uint32_t i = 0; i < n; ++i) out[i] = {i, i * 0.5};
    return out;
}

/// Records of plain fields: their values are right, however they are laid out.
skein::task<void> records(int n) {
    const auto made = skein::remote<&rows>(static_cast<std::uint32_t>(n));
    auto looking = skein::view(made);
    const auto seen = co_await looking;
    bool is_right = (*seen).size() == static_cast<std::size_t>(n);
    for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(n); ++i)
        is_right = is_right && (*seen)[i].id == i && (*seen)[i].weight == i * 0.5;
    fmt::print("{}\n", is_right ? "right" : "wrong");
}

skein::generator<int> count(int n) {
    for (int i = 0; i < n; ++i) co_yield i;
}

/// Many streams that are asked in turns: no item is lost, each ends.
skein::task<void> many_streams(int n) {
    std::vector<skein::item_stream<int>> all;
    for (int i = 0; i < n; ++i) all.push_back(skein::stream<&count>(50));
    std::vector<int> got(all.size());
    bool is_right = true;
    for (std::size_t open = all.size(); open > 0;)
        for (std::size_t i = 0; i < all.size(); ++i) {
            if (!all[i]) continue;
            const auto one = co_await all[i].next();
            if (one) {
                is_right = is_right && *one == got[i]++;
            } else {
                all[i] = {};
                --open;
            }
        }
    for (const auto each : got) is_right = is_right && each == 50;
    fmt::print("{}\n", is_right ? "right" : "wrong");
}

struct counts {
    long made = 0;
    skein::generator<numbers> large() {
        for (;;) {
            ++made;
            co_yield make(mebi, 1);
        }
    }
    long so_far() const { return made; }
};

/// A reader that stands still holds up its producer, and one that goes away ends it.
skein::task<void> slow_reader(int n) {
    auto making = skein::actor<counts>();
    auto maker = co_await making;
    long most_ahead = 0;
    for (int i = 0; i < n; ++i) {
        auto s = maker.stream<&counts::large>();
        const auto before = co_await maker.call<&counts::so_far>();
        for (int k = 0; k < 3; ++k) (void)co_await s.next();
        co_await skein::sleep_for(20ms);
        const auto now = co_await maker.call<&counts::so_far>();
        most_ahead = std::max(most_ahead, now - before);
        auto closing = s.close();
        co_await closing;
        const auto ended = co_await maker.call<&counts::so_far>();
        co_await skein::sleep_for(5ms);
        const auto later = co_await maker.call<&counts::so_far>();
        if (ended != later) fmt::print("it goes on\n");
    }
    fmt::print("{}\n", most_ahead <= 12 ? "few" : std::to_string(most_ahead));
}

skein::generator<std::uint64_t> sums_of(numbers of, int n) {
    for (int i = 0; i < n; ++i) co_yield total(of) + static_cast<std::uint64_t>(i);
}

/// Streams whose argument is large, or an object.
skein::task<void> large_argument(int n) {
    auto putting = skein::put(make(4 * mebi, 1));
    const auto stored = co_await putting;
    std::uint64_t at = 0;
    bool is_right = true;
    for (const bool by_ref : {false, true}) {
        auto s = by_ref ? skein::stream<&sums_of>(stored, n)
                        : skein::stream<&sums_of>(make(4 * mebi, 1), n);
        at = 0;
        while (const auto one = co_await s.next()) is_right = is_right && *one == mebi + at++;
    }
    fmt::print("{} {}\n", is_right ? "right" : "wrong", at);
}

skein::task<int> app(std::vector<std::string> arguments) {
    const auto what = arguments.empty() ? std::string() : arguments[0];
    const int n = arguments.size() > 1 ? std::atoi(arguments[1].c_str()) : 1;
    auto work = what == "loop"       ? a_loop(n)
                : what == "more"     ? more_than_the_store(n)
                : what == "held"     ? held_beyond_the_store(n)
                : what == "many"     ? many_put(n)
                : what == "failures" ? failures(n)
                : what == "dies"     ? dies(n)
                : what == "records"  ? records(n)
                : what == "streams"  ? many_streams(n)
                : what == "slow"     ? slow_reader(n)
                                     : large_argument(n);
    co_await work;
    co_return 0;
}

} // namespace object_reports

int main(int argc, char** argv) { return skein::run(argc, argv, object_reports::app); }
