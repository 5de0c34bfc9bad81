// SPDX-License-Identifier: Apache-2.0
// Programs whose workers go through main: what surrounds a process, and what it prints.
#include <tests/apps/apps.hpp>

#include <skein/program/session.hpp>

#include <skein/core/posix_disk.hpp>
#include <skein/core/sleep.hpp>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
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

/// Writes 100,000 bytes; the error's kind and text.
std::string write_much(const std::string& path) {
    skein::posix_disk disk;
    const auto opened = disk.open(path, skein::open_mode::write);
    if (!opened) return opened.error().what();
    const std::string much(100'000, 'x');
    const auto done = (*opened)->write_at(0, skein::as_bytes(std::string_view(much)));
    if (done) return "written";
    return fmt::format("{} {}", to_string(done.error().code()), done.error().text());
}
int print_past_limit() {
    for (int i = 0; i < 1000; ++i) fmt::print("{}\n", std::string(99, 'x'));
    std::fflush(stdout);
    return 100'000;
}
int end_of_child() {
    const int status = std::system("ulimit -c 0; kill -s XFSZ $$"); // NOLINT(cert-env33-c)
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) - 128;
}
skein::task<int> meet_limit(std::vector<std::string> rest) {
    auto writes = skein::remote<&write_much>(rest.at(0));
    fmt::print(stderr, "task: {}\n", co_await writes);
    fmt::print(stderr, "driver: {}\n", write_much(rest.at(0) + "2"));
    auto asks = skein::remote<&end_of_child>();
    fmt::print(stderr, "child: signal {}\n", co_await asks);
    auto prints = skein::remote<&print_past_limit>();
    fmt::print(stderr, "printed: {}\n", co_await prints);
    co_return 0;
}
/// From now on, for this process and what it starts.
void limit_files(rlim_t bytes) {
    const struct ::rlimit how{bytes, bytes};
    (void)::setrlimit(RLIMIT_FSIZE, &how);
}

skein::task<int> work_nowhere() {
    auto r = skein::remote<&twice>(2);
    fmt::print("{}\n", co_await r);
    const auto opened = skein::posix_disk().open("notes", skein::open_mode::write);
    fmt::print("{} {}\n", to_string(opened.error().code()), opened.error().what());
    co_return 0;
}

/// A child that ends at once with that code. Its number.
int start_child(int code) {
    const ::pid_t pid = ::fork();
    if (pid == 0) ::_exit(code);
    ::siginfo_t seen{}; // it has ended, and is not reaped
    (void)::waitid(P_PID, static_cast<::id_t>(pid), &seen, WEXITED | WNOWAIT);
    return pid;
}
int wait_for_child(int pid) {
    int status = 0;
    return ::waitpid(pid, &status, 0) == pid ? WEXITSTATUS(status) : -1;
}
int forget_three() {
    for (int i = 0; i < 3; ++i) (void)start_child(0);
    return 3;
}
/// Whether there is a child of this process that has ended.
int ended_children() {
    ::siginfo_t seen{};
    const int got = ::waitid(P_ALL, 0, &seen, WEXITED | WNOHANG | WNOWAIT);
    return got == 0 && seen.si_pid != 0 ? 1 : 0;
}
/// A worker looks once a second, and its second look would take the child. In the worker this is a
/// timer of the same loop, behind theirs however slow the machine is; a driver only gives them time.
constexpr auto two_looks = std::chrono::milliseconds(2500);
skein::task<int> wait_later() {
    const int pid = start_child(7);
    auto pause = skein::sleep_for(two_looks);
    co_await pause;
    co_return wait_for_child(pid);
}
struct has_child {
    int pid = 0;
    int start() { return pid = start_child(7); }
    int wait() { return wait_for_child(pid); }
};
skein::task<int> look_after_children() {
    auto forgets = skein::remote<&forget_three>();
    const int three = co_await forgets;
    int left = 1;
    while (left != 0) {
        auto looks = skein::remote<&ended_children>();
        left = co_await looks;
    }
    fmt::print("forgotten: {}, then {}\n", three, left);
    auto waits = skein::remote<&wait_later>();
    fmt::print("of a coroutine: {}\n", co_await waits);
    auto owner = co_await skein::actor<has_child>();
    auto starts = owner.call<&has_child::start>();
    (void)co_await starts;
    auto pause = skein::sleep_for(two_looks);
    co_await pause;
    auto ends = owner.call<&has_child::wait>();
    fmt::print("of an actor: {}\n", co_await ends);
    co_return 0;
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
    if (name == "own limit") {
        limit_files(65'536);
        return skein::run(argc, argv, meet_limit);
    }
    if (name == "own no files") {
        limit_files(0);
        return skein::run(argc, argv, work_nowhere);
    }
    if (name == "own removed folder") return skein::run(argc, argv, work_nowhere);
    if (name == "own children") return skein::run(argc, argv, look_after_children);
    if (name == "own loss") return skein::run(argc, argv, lose_a_worker);
    return 99;
}

} // namespace rt_test
