// SPDX-License-Identifier: Apache-2.0
#include <tests/apps/apps.hpp>

#include <skein/proc/boot.hpp>
#include <skein/proc/process.hpp>
#include <skein/program/session.hpp>

#include <barrier>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#include <vector>

#include <linux/sockios.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace rt_test {

long meet_in(std::string folder) {
    std::ofstream(folder + "/" + std::to_string(::getpid())) << "here";
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < until) {
        int here = 0;
        for (const auto& e : std::filesystem::directory_iterator(folder))
            here += e.exists() ? 1 : 0;
        if (here == 2) return ::getpid();
        ::sched_yield();
    }
    throw skein::error(skein::errc::timeout, "nobody else came");
}

std::string process_title() {
    std::string title;
    std::getline(std::ifstream("/proc/self/comm"), title);
    return title;
}

void spend(int ms) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
    while (std::chrono::steady_clock::now() < until) {}
}

void wait_for_file(const std::string& path) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!std::filesystem::exists(path)) {
        if (std::chrono::steady_clock::now() > until)
            throw skein::error(skein::errc::timeout, "no file " + path);
        ::sched_yield();
    }
}

std::vector<std::string> skein_variables() {
    std::vector<std::string> names;
    for (const char* name : {"SKEIN_BOOT_FD", "SKEIN_LAST_WORDS_FD", "SKEIN_TOKEN"})
        if (std::getenv(name) != nullptr) names.emplace_back(name);
    return names;
}

long fork_child() {
    const pid_t child = ::fork();
    if (child != 0) return child;
    for (;;) ::pause();
}

namespace {

/// A child that has all descriptors of this process: fork() would close those that the other end
/// watches (core/fork_guard.hpp).
void clone_child() {
    if (::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) != 0) return;
    for (;;) ::pause();
}

} // namespace

void clone_and_exit(int code) {
    clone_child();
    ::_exit(code);
}

int clone_reply_and_exit(int code, std::string go) {
    clone_child();
    while (!std::filesystem::exists(go)) ::sched_yield();
    std::thread([code] {
        const int link = 4; // in every worker that has a socket pair
        for (int unread = 0; unread == 0; ::sched_yield())
            if (::ioctl(link, SIOCOUTQ, &unread) != 0) ::_exit(99);
        ::_exit(code);
    }).detach();
    return 42;
}

namespace {

/// Prints its pid and those of its workers, then waits for ever.
skein::task<int> print_pids_and_wait() {
    std::vector<skein::ref<long>> pids;
    auto a = co_await skein::actor<counter>(0);
    auto b = co_await skein::actor<counter>(0);
    auto first = a.call<&counter::pid>();
    auto second = b.call<&counter::pid>();
    const long p = co_await first, q = co_await second;
    fmt::print("{} {} {}\n", ::getpid(), p, q);
    std::fflush(stdout);
    co_await skein::sleep_for(std::chrono::hours(1));
    co_return 0;
}

/// Does not end when it is cancelled, but says so.
skein::task<int> cling_to_life() {
    fmt::print("ready\n");
    std::fflush(stdout);
    try {
        co_await skein::sleep_for(std::chrono::hours(1));
    } catch (const skein::error&) {
        fmt::print("asked\n");
        std::fflush(stdout);
    }
    auto rest = skein::shield(later(0, 3'600'000));
    (void)co_await rest;
    co_return 0;
}

skein::task<void> hello() {
    auto r = skein::remote<&twice>(21);
    const int x = co_await r;
    fmt::print("{}\n", x);
}

void say_here(std::string line) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
    fmt::print(stderr, "{}, too\n", line);
}

skein::task<void> let_a_worker_speak() {
    auto r = skein::remote<&say_here>("from a worker");
    co_await r;
}

skein::task<int> exit_with_seven() { co_return 7; }

skein::task<int> uncaught() {
    auto r = skein::remote<&fail_with_text>("the text");
    co_return co_await r;
}

skein::task<int> with_arguments(std::vector<std::string> rest) {
    for (auto& a : rest) fmt::print("[{}]", a);
    fmt::print("\n");
    co_return 0;
}

skein::task<int> throw_a_number() {
    co_await skein::yield();
    throw 7;
}

skein::task<void> leave_a_child() {
    auto made = skein::remote<&fork_child>();
    const long pid = co_await made;
    fmt::print("{}\n", pid);
}

/// What a main that calls run() twice prints in the driver; in a worker nothing after the first.
int run_twice(int argc, char** argv) {
    const auto app = [](std::vector<std::string> arguments) -> skein::task<int> {
        auto r = skein::remote<&twice>(21);
        const int x = co_await r;
        fmt::print("{} {}\n", arguments.size(), x);
        co_return x;
    };
    const int first = skein::run(argc, argv, app);
    const int second = skein::run(argc, argv, app);
    fmt::print("main ends: {} {}\n", first, second);
    return 0;
}

/// A plain main: what stands behind the session happens in the driver only.
int plain_main(int argc, char** argv) {
    fmt::print(stderr, "main\n");
    skein::session cluster(argc, argv);
    for (const auto& a : cluster.arguments()) fmt::print("[{}]", a);
    auto c = cluster.actor<counter>(10);
    const int n = cluster.submit<&twice>(21).get() + c.call<&counter::add>(5).get();
    fmt::print("{} {}\n", n, skein::program::is_worker());
    return 0;
}

/// Prints its pid and those of its workers, and waits for a call that never ends.
int wait_for_a_call() {
    skein::run_options how;
    how.workers = 2;
    skein::session cluster(how);
    auto a = cluster.actor<counter>(0), b = cluster.actor<counter>(0);
    fmt::print("{} {} {}\n", ::getpid(), a.call<&counter::pid>().get(),
               b.call<&counter::pid>().get());
    std::fflush(stdout);
    return cluster.submit<&later>(1, 3'600'000).get();
}

/// Its workers are another program: this one's copy with bytes appended is the same build,
/// /bin/true is none.
skein::task<int> needs_worker() {
    auto r = skein::remote<&twice>(1);
    co_return co_await r;
}

} // namespace

int helper_main() {
    const auto mine = skein::proc::take_boot("test-helper");
    if (!mine || skein::proc::take_boot("test-helper")) return 90;
    const auto say = [&](std::string_view text) {
        return ::write(mine->socket.get(), text.data(), text.size()) == ssize_t(text.size());
    };
    const auto order = skein::to_string(mine->message);
    if (order == "echo") {
        (void)skein::proc::leave_last_words("done with it");
        return say(mine->role + " " + mine->name) ? 3 : 91;
    }
    if (order == "leave on all threads") {
        std::barrier together(4);
        const auto leave = [&] {
            together.arrive_and_wait();
            (void)skein::proc::leave_last_words("done with it");
            ::_exit(3);
        };
        std::vector<std::jthread> threads;
        for (int i = 0; i < 4; ++i) threads.emplace_back(leave);
    }
    if (order == "look around") {
        // A copy, so that the inner program has an output: the socket itself must not reach it.
        if (::dup2(mine->socket.get(), 1) < 0) return 92;
        return std::system("env; printf 'files:'; for f in /proc/self/fd/*; do "
                           "printf ' %s' \"${f##*/}\"; done; echo");
    }
    if (order == "leave a child") {
        (void)fork_child();
        return say("bye") ? 0 : 93;
    }
    for (const int s : {SIGTERM, SIGINT}) ::signal(s, SIG_IGN);
    (void)say("r");
    for (;;) ::pause();
}

int run_app(const std::string& name, int argc, char** argv) {
    if (name == "wait") return skein::run(argc, argv, print_pids_and_wait);
    if (name == "hello") return skein::run(argc, argv, hello);
    if (name == "speaks") return skein::run(argc, argv, let_a_worker_speak);
    if (name == "clings") return skein::run(argc, argv, cling_to_life);
    if (name == "seven") return skein::run(argc, argv, exit_with_seven);
    if (name == "uncaught") return skein::run(argc, argv, uncaught);
    if (name == "arguments") return skein::run(argc, argv, with_arguments);
    if (name == "twice") return run_twice(argc, argv);
    if (name == "session") return plain_main(argc, argv);
    if (name == "session waits") return wait_for_a_call();
    if (name == "number") return skein::run(argc, argv, throw_a_number);
    if (name == "child") return skein::run(argc, argv, leave_a_child);
    if (name == "foreign") {
        skein::run_options how;
        how.processes.executable = std::getenv("SKEIN_TEST_EXE");
        return skein::run(argc, argv, needs_worker, how);
    }
    fmt::print(stderr, "no test app {}\n", name);
    return 99;
}

} // namespace rt_test
