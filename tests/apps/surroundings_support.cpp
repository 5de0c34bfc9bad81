// SPDX-License-Identifier: Apache-2.0
// Programs whose workers go through main: what surrounds a process, and what it prints.
#include <tests/apps/apps.hpp>

#include <skein/program/session.hpp>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include <fcntl.h>
#include <unistd.h>

namespace rt_test {
namespace {

std::string my_folder() { return std::filesystem::current_path().string(); }

/// As programs that give each run a folder of its own: main has gone to "out", wherever it began.
skein::task<int> tell_folders() {
    auto first = skein::remote<&my_folder>();
    const auto shared = co_await first;
    auto second = skein::remote<&my_folder>.with({.resources = "ssd=1"})();
    const auto own = co_await second;
    if (::chdir("/") != 0) co_return 4;
    auto third = skein::remote<&my_folder>.with({.env = "NEW=1"})();
    const auto later = co_await third;
    fmt::print("{}\n{}\n{}\n", shared, own, later);
    co_return 0;
}

/// Says something in each usual way, then ends its process so, without a chance to do anything
/// about it.
int print_and_end(const std::string& how) {
    fmt::print("{}: fmt\n", how);
    std::printf("%s: printf\n", how.c_str());
    std::cout << how << ": " << "cout\n";
    if (how == "segfault") ::raise(SIGSEGV);
    if (how == "abort") ::raise(SIGABRT);
    if (how == "_exit") ::_exit(3);
    if (how == "sigkill") ::raise(SIGKILL);
    return 0;
}
skein::task<int> let_print_and_end(std::vector<std::string> rest) {
    auto r = skein::as_result(
        skein::as_task(skein::remote<&print_and_end>.with({.retries = 0})(rest.at(0))));
    (void)co_await r;
    co_return 0;
}

/// Notes in a file that it runs, and prints a line.
int note_and_print(int i, const std::string& notes) {
    const int fd = ::open(notes.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (::write(fd, "x", 1) != 1) return -1;
    ::close(fd);
    fmt::print("result {}\n", i);
    std::fflush(stdout);
    return i;
}
/// What the pipe of a child of a task does: by default it ends whoever writes there.
int signal_of_child() {
    const int status = std::system("kill -s PIPE $$"); // NOLINT(cert-env33-c)
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) - 128;
}
/// Prints more than a pipe holds: whoever ends the reading of it does so in the middle of a print.
int print_much(const std::string& notes) {
    const int fd = ::open(notes.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (::write(fd, "begun ", 6) != 6) return -1;
    for (int i = 0; i < 20'000; ++i) fmt::print(stderr, "line {}\n", i);
    const bool noted = ::write(fd, "done ", 5) == 5;
    ::close(fd);
    return noted ? 0 : -1;
}
skein::task<int> stop_reading(std::vector<std::string> rest) {
    auto printing = skein::remote<&print_much>(rest.at(0));
    co_return co_await printing;
}
skein::task<int> go_on_unread(std::vector<std::string> rest) {
    std::vector<skein::ref<int>> all;
    for (int i = 0; i < 40; ++i) all.push_back(skein::remote<&note_and_print>(i, rest.at(0)));
    for (auto& r : all) (void)co_await r;
    auto asked = skein::remote<&signal_of_child>();
    const int of_child = co_await asked;
    fmt::print(stderr, "all done, {}\n", of_child);
    co_return 0;
}

std::string threads_here() {
    const char* const value = std::getenv("OMP_NUM_THREADS");
    return value != nullptr ? value : "none";
}
struct worker_of_threads {
    std::string look() { return threads_here(); }
};
/// A driver of its own, in a task.
std::string threads_of_inner() {
    skein::run_options how;
    how.workers = 1;
    skein::session inner(how);
    return inner.submit<&threads_here>().get();
}
skein::task<int> tell_threads() {
    std::string line;
    for (const int cpus : {1, 2, 0, 1}) {
        auto r = skein::remote<&threads_here>.with({.cpus = double(cpus)})();
        line += co_await r;
        line += ' ';
    }
    auto plain = co_await skein::actor<worker_of_threads>();
    auto first = plain.call<&worker_of_threads::look>();
    line += co_await first;
    { // it holds its cpus as long as there is a handle
        auto wide = co_await skein::actor<worker_of_threads>.with({.cpus = 2})();
        auto second = wide.call<&worker_of_threads::look>();
        line += ' ' + co_await second;
    }
    auto said = skein::remote<&threads_here>.with({.cpus = 2, .env = "OMP_NUM_THREADS=7"})();
    line += ' ' + co_await said;
    auto inner = skein::remote<&threads_of_inner>.with({.cpus = 2})();
    line += ' ' + co_await inner;
    fmt::print("{}\n", line);
    co_return 0;
}

/// What blocks with a loop of its own, in a task.
int run_inside() {
    return skein::run(0, nullptr, []() -> skein::task<int> { co_return 0; });
}
int session_inside() {
    skein::run_options how;
    how.workers = 1;
    skein::session inner(how);
    return inner.submit<&twice>(4).get();
}
skein::task<int> run_in_task() {
    auto r = skein::as_result(skein::as_task(skein::remote<&run_inside>()));
    const auto got = co_await r;
    fmt::print("{} {}\n", got ? "done" : to_string(got.error().code()),
               got ? "" : got.error().what());
    std::string here = "done";
    try {
        (void)run_inside();
    } catch (const skein::error& e) {
        here = to_string(e.code());
    }
    auto s = skein::remote<&session_inside>();
    const int eight = co_await s;
    fmt::print("{} {}\n", here, eight);
    co_return 0;
}

skein::task<int> lose_a_worker() {
    auto a = skein::as_result(
        skein::as_task(skein::remote<&print_and_end>.with({.retries = 0})(std::string("sigkill"))));
    (void)co_await a;
    auto b = skein::remote<&twice>(1);
    co_return co_await b == 2 ? 0 : 1;
}

} // namespace

bool is_own_main(std::string_view name) { return name.starts_with("own "); }

int run_own_main(std::string_view name, int argc, char** argv) {
    skein::run_options how;
    if (name == "own folder") {
        std::filesystem::create_directories("out");
        if (::chdir("out") != 0) return 3;
        how.processes.offers = skein::sched::parse_resources("ssd=1").value();
        return skein::run(argc, argv, tell_folders, how);
    }
    if (name == "own much") return skein::run(argc, argv, stop_reading);
    if (name == "own print") return skein::run(argc, argv, let_print_and_end);
    if (name == "own print unsynced") {
        std::ios_base::sync_with_stdio(false);
        return skein::run(argc, argv, let_print_and_end);
    }
    if (name == "own unread") return skein::run(argc, argv, go_on_unread);
    if (name == "own threads") return skein::run(argc, argv, tell_threads);
    if (name == "own nested") return skein::run(argc, argv, run_in_task);
    if (name == "own loss") return skein::run(argc, argv, lose_a_worker);
    return 99;
}

} // namespace rt_test
