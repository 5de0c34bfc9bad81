// SPDX-License-Identifier: Apache-2.0
#pragma once
// Programs that the tests start as processes of their own (SKEIN_TEST_APP=name), and the functions
// and actors that all tests of this folder call remotely.

#include <skein/core/sleep.hpp>
#include <skein/program/run.hpp>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

namespace rt_test {

/// What the child of children_test.cpp does.
int helper_main();
/// Runs one of the programs below as skein::run would; gives its exit code.
int run_app(const std::string& name, int argc, char** argv);

/// Whether it is a main() of surroundings_support.cpp, which its workers go through as well; and
/// what it does.
bool is_own_main(std::string_view name);
int run_own_main(std::string_view name, int argc, char** argv);

// Not for the linker to fold into one: each translation unit calls the same function.
inline int twice(int x) { return 2 * x; }
inline long where() { return ::getpid(); }
inline int fail_with_text(std::string text) { throw std::out_of_range(text); }
inline int fail_with_code(int code) {
    throw skein::error(skein::errc(code), "it broke here")
        .with_cause("a cause")
        .with_hint("a hint");
}
inline int throw_number() { throw 7; } // not a std::exception
inline std::string join(const std::vector<std::string>& parts, std::string_view separator) {
    std::string out;
    for (auto& p : parts) out += (out.empty() ? "" : std::string(separator)) + p;
    return out;
}
inline double sum(std::span<const double> values) {
    double total = 0;
    for (double v : values) total += v;
    return total;
}
inline skein::task<int> later(int value, int ms) {
    co_await skein::sleep_for(std::chrono::milliseconds(ms));
    co_return value;
}
inline skein::task<int> nested(int x) {
    auto inner = skein::remote<&twice>(x);
    int y = co_await inner;
    co_return y + 1;
}
inline skein::task<int> nested_failure(std::string text) {
    auto inner = skein::remote<&fail_with_text>(text);
    co_return co_await inner;
}
inline void die() { ::kill(::getpid(), SIGKILL); }
inline void nothing() {}
inline int counted_here = 0; // in each process another one
inline int count_here() { return ++counted_here; }
inline int good_at_third() {
    if (++counted_here < 3) throw std::out_of_range("not yet");
    return counted_here;
}
inline skein::task<std::string> give_back_later(const std::string& text, int ms) {
    co_await skein::sleep_for(std::chrono::milliseconds(ms));
    co_return text;
}
/// Computes for so long.
void spend(int ms);
/// Waits for a file without letting anybody else in; throws after a minute.
void wait_for_file(const std::string& path);
/// The variables of this process that tell a child how it was started.
std::vector<std::string> skein_variables();
/// What `top` calls this process.
std::string process_title();
/// Its child holds the worker's end of the link and waits for ever.
void clone_and_exit(int code);
/// Gives 42 once there is a file `go`, and ends the process when that is under way, like
/// clone_and_exit.
int clone_reply_and_exit(int code, std::string go);
/// The pid of a child that waits for ever.
long fork_child();
/// Returns the pid once two processes are in it at the same time.
long meet_in(std::string folder);

struct row {
    std::string key;
    std::vector<float> v;
    bool operator==(const row&) const = default;
};
inline row scale(row r, float by) {
    for (float& x : r.v) x *= by;
    return r;
}

struct counter {
    int n = 0;
    int add(int k) { return n += k; }
    int add_slowly(int k, int ms) {
        spend(ms);
        return n += k;
    }
    /// Waits for a file, then works on for a while.
    int add_after(int k, std::string file, int ms) {
        wait_for_file(file);
        spend(ms);
        return n += k;
    }
    int get() const { return n; }
    long pid() { return ::getpid(); }
    int fail(std::string why) { throw std::runtime_error(why); }
    void die() { ::kill(::getpid(), SIGKILL); }
    skein::task<int> add_later(int k, int ms) {
        const int before = n;
        co_await skein::sleep_for(std::chrono::milliseconds(ms));
        n += k;
        co_return before;
    }
};

struct journal {
    std::vector<int> seen;
    void note(int i) { seen.push_back(i); }
    void note_slowly(int i, int ms) {
        spend(ms);
        seen.push_back(i);
    }
    skein::task<void> note_async(int i) {
        seen.push_back(i);
        co_await skein::yield();
        seen.push_back(-i);
    }
    std::vector<int> all() { return seen; }
    std::vector<int> echo(std::vector<int> what) { return what; }
};

struct picky {
    explicit picky(int n) {
        if (n < 0) throw std::domain_error("negative");
        value = n;
    }
    int value;
    int get() { return value; }
};

inline skein::task<int> add_through(skein::actor_handle<counter> c, int k) {
    auto r = c.call<&counter::add>(k);
    co_return co_await r;
}
inline skein::task<int> add_through_first(std::vector<skein::actor_handle<counter>> team, int k) {
    auto r = team.at(0).call<&counter::add>(k);
    co_return co_await r;
}
inline skein::task<int> own_actor(int start) {
    auto c = co_await skein::actor<counter>(start);
    auto r = c.call<&counter::add>(1);
    co_return co_await r;
}

/// Runs app in this process as a driver with real worker processes; gives its exit code.
template <class App>
int drive(int workers, App app) {
    std::string program = "rt_tests", flag = "--workers=" + std::to_string(workers);
    char* argv[] = {program.data(), flag.data(), nullptr};
    return skein::run(2, argv, app);
}

inline bool contains(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}

/// What is written to a pipe until its last writer has gone.
inline std::string drain(int fd) {
    std::string text;
    std::array<char, 4096> piece;
    for (ssize_t n = 0; (n = ::read(fd, piece.data(), piece.size())) > 0;)
        text.append(piece.data(), std::size_t(n));
    return text;
}

} // namespace rt_test
