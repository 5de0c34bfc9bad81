// SPDX-License-Identifier: Apache-2.0
#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/unique_fd.hpp>
#include <skein/net/readable_fd.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/proc/children.hpp>
#include <skein/proc/output.hpp>

#include <cerrno>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>

#include <fmt/format.h>

using namespace skein;

namespace {

std::vector<std::string> texts(const std::vector<proc::output_line>& lines) {
    std::vector<std::string> out;
    for (const auto& line : lines) out.push_back((line.is_error ? "!" : "") + line.text);
    return out;
}

constexpr std::size_t all_of_it = 1 << 30;

/// A pipe as a file of stdio, and its end to read.
struct file_and_reader {
    file_and_reader() {
        auto [reads, writes] = make_pipe();
        ::fcntl(writes.get(), F_SETFL, 0); // as a terminal: who writes waits
        reader = std::move(reads);
        file = ::fdopen(writes.release(), "w");
    }
    file_and_reader(const file_and_reader&) = delete;
    ~file_and_reader() { close(); }
    void close() {
        if (file != nullptr) std::fclose(std::exchange(file, nullptr));
    }
    std::FILE* file = nullptr;
    unique_fd reader;
};

task<std::string> read_bytes(net::real_loop* loop, int fd, std::size_t bytes) {
    std::string out;
    while (out.size() < bytes) {
        auto readable = net::wait_readable(*loop, fd);
        co_await readable;
        char piece[10'000];
        const auto n = ::read(fd, piece, sizeof piece);
        if (n > 0) out.append(piece, static_cast<std::size_t>(n));
        if (n == 0) break;
    }
    co_return out;
}

task<void> print(proc::output_printer* by, std::vector<proc::worker_lines> what, bool* done) {
    auto printing = by->print(std::move(what));
    co_await printing;
    *done = true;
}

std::vector<proc::worker_lines> many_lines(int count, std::size_t length) {
    proc::worker_lines some{"worker-1", "n1", 0, {}};
    for (int i = 0; i < count; ++i)
        some.lines.push_back({false, fmt::format("{} {}", i, std::string(length, 'x'))});
    return {some};
}

} // namespace

TEST_CASE("lines are whole wherever the bytes are cut", "[rt][output]") {
    const std::string text = "one\n\ntwo and more\nthree";
    for (std::size_t cut = 0; cut <= text.size(); ++cut) {
        proc::line_queue q;
        q.add(false, std::string_view(text).substr(0, cut));
        q.add(true, "err\n");
        q.add(false, std::string_view(text).substr(cut));
        CHECK(q.total() == 4);
        q.end();
        REQUIRE(q.total() == 5);
        auto lines = q.take(all_of_it);
        std::erase_if(lines, [](const auto& line) { return line.is_error; });
        CHECK(texts(lines) == std::vector<std::string>{"one", "", "two and more", "three"});
        CHECK(q.empty());
        CHECK(q.next() == 6);
    }
}

TEST_CASE("a line that is too long is cut, and one that just fits is not", "[rt][output]") {
    constexpr auto most = proc::line_queue::most_line;
    for (const bool at_once : {true, false}) {
        proc::line_queue q;
        const auto text = std::string(most, 'a') + "\n" + std::string(most + 1, 'b') + "\n";
        if (at_once) {
            q.add(false, text);
        } else {
            for (const char c : text) q.add(false, {&c, 1});
        }
        q.end();
        std::vector<std::size_t> sizes;
        for (const auto& line : q.take(all_of_it)) sizes.push_back(line.text.size());
        CHECK(sizes == std::vector<std::size_t>{most, most, 1});
    }
}

TEST_CASE("the oldest lines are left out, and their numbers say so", "[rt][output]") {
    proc::line_queue q(10 * (proc::line_queue::line_cost + 4));
    for (int i = 1; i <= 25; ++i) q.add(false, fmt::format("{:04}\n", i));
    CHECK(q.total() == 25);
    CHECK(q.next() == 16);
    const auto some = q.take(3 * (proc::line_queue::line_cost + 4));
    CHECK(texts(some) == std::vector<std::string>{"0016", "0017", "0018"});
    CHECK(q.next() == 19);
    CHECK(q.take(0).size() == 1); // one always
    CHECK(q.take(all_of_it).size() == 6);
    CHECK(q.next() == 26);
}

TEST_CASE("the last lines of the standard error can be part of a message", "[rt][output]") {
    proc::line_queue q;
    CHECK(q.last_errors().empty());
    q.add(false, "fine\n");
    q.add(true, "a\nb\n\nc\n" + std::string(1000, 'd'));
    CHECK(q.last_errors() == "a | b | c");
    q.end();
    CHECK(q.last_errors() == "b | c | " + std::string(300, 'd'));
    (void)q.take(all_of_it);
    CHECK_FALSE(q.last_errors().empty());
}

TEST_CASE("how lines of workers look", "[rt][output]") {
    proc::worker_lines far{"worker-3", "n2", 1234567, {{false, "a"}, {true, "b"}, {true, "c"}}};
    proc::worker_lines here{"worker-1", "", 1, {{true, "d"}}};
    const auto plain = proc::format_lines({far, here}, {});
    REQUIRE(plain.size() == 3);
    CHECK(plain[0].is_error);
    CHECK(plain[0].text == "... 1,234,567 lines of worker-3 were left out\n");
    CHECK_FALSE(plain[1].is_error);
    CHECK(plain[1].text == "(worker-3, n2) a\n");
    CHECK(plain[2].text == "(worker-3, n2) b\n(worker-3, n2) c\n"
                           "... 1 line of worker-1 was left out\n(worker-1) d\n");
    proc::output_style how;
    how.colour_on_error = true;
    CHECK(proc::format_lines({here}, how)[0].text ==
          "... 1 line of worker-1 was left out\n\033[36m(worker-1) \033[0md\n");
    how.prefix = false;
    far.left_out = 0;
    CHECK(proc::format_lines({far}, how)[0].text == "a\n");
}

TEST_CASE("a pipe that is not read holds up who prints, and not its loop", "[rt][output]") {
    net::real_loop loop;
    file_and_reader out;
    std::string got;
    bool done = false, done_early = true;
    const auto what = many_lines(5000, 100);
    std::string wanted;
    for (const auto& line : what[0].lines) wanted += line.text + "\n";
    {
        proc::output_printer printer(false, out.file, out.file);
        // NOLINTNEXTLINE(cppcoreguidelines-avoid-capturing-lambda-coroutines): it outlives the run
        const auto body = [&]() -> task<void> {
            scope beside;
            beside.spawn(print(&printer, what, &done));
            auto readable = net::wait_readable(loop, out.reader.get());
            co_await readable; // the loop goes on
            done_early = done; // a pipe holds a part of it
            auto reading = read_bytes(&loop, out.reader.get(), wanted.size());
            got = co_await reading;
            auto printed = beside.join();
            co_await printed;
        };
        loop.run(body());
    }
    CHECK(got == wanted);
    CHECK(done);
    CHECK_FALSE(done_early);
}

TEST_CASE("who ends does not wait for a pipe that nobody reads", "[rt][output]") {
    for (const std::size_t length : {100U, 200'000U}) { // short lines, and one longer than a pipe
        net::real_loop loop;
        file_and_reader out;
        bool done = false;
        {
            proc::output_printer printer(false, out.file, out.file);
            // NOLINTNEXTLINE(cppcoreguidelines-avoid-capturing-lambda-coroutines): as above
            const auto body = [&]() -> task<void> {
                scope beside;
                beside.spawn(print(&printer, many_lines(2000, length), &done));
                auto readable = net::wait_readable(loop, out.reader.get());
                co_await readable;
                beside.cancel();
                auto ended = as_result(beside.join());
                (void)co_await ended;
            };
            loop.run(body());
        }
        CHECK_FALSE(done);
    }
}

TEST_CASE("lines for an output that is gone are dropped", "[rt][output]") {
    net::real_loop loop;
    file_and_reader out;
    out.reader.reset();
    bool done = false;
    proc::output_printer printer(false, out.file, out.file);
    loop.run(print(&printer, many_lines(2000, 100), &done));
    CHECK(done);
}

TEST_CASE("what this process prints itself is not mixed into lines", "[rt][output]") {
    net::real_loop loop;
    file_and_reader out;
    bool done = false;
    std::string got;
    constexpr int own = 300;
    {
        proc::output_printer printer(false, out.file, out.file);
        const auto what = many_lines(300, 50);
        std::size_t bytes = 0;
        for (const auto& line : what[0].lines) bytes += line.text.size() + 1;
        for (int i = 0; i < own; ++i) bytes += fmt::format("own {}\n", i).size();
        // NOLINTNEXTLINE(cppcoreguidelines-avoid-capturing-lambda-coroutines): as above
        const auto body = [&]() -> task<void> {
            scope beside;
            beside.spawn(print(&printer, what, &done));
            for (int i = 0; i < own; ++i) fmt::print(out.file, "own {}\n", i);
            auto printed = beside.join();
            co_await printed;
            std::fflush(out.file);
            auto reading = read_bytes(&loop, out.reader.get(), bytes);
            got = co_await reading;
        };
        loop.run(body());
    }
    proc::line_queue lines(1 << 20);
    lines.add(false, got);
    int seen = 0;
    for (const auto& line : lines.take(all_of_it)) {
        const bool is_own = line.text.starts_with("own ");
        seen += is_own;
        if (!is_own) CHECK(line.text.ends_with(std::string(50, 'x')));
    }
    CHECK(seen == own);
    CHECK(lines.total() == 600);
}

namespace {

proc::child_options child_of(std::string script) {
    proc::child_options how;
    how.role = "shell";
    how.name = "shell-1";
    how.socket = false;
    how.executable = "/bin/sh";
    how.argv = {"sh", "-c", std::move(script)};
    how.reads_output = true;
    return how;
}

/// What a shell printed, and how it ended.
task<std::string> output_of(net::real_loop* loop, std::string script) {
    proc::local_children here(*loop);
    auto starting = here.start(child_of(std::move(script)));
    const auto child = co_await starting;
    proc::line_queue lines(1 << 24);
    auto reading = proc::read_lines(child.get(), &lines, [] {});
    co_await reading;
    auto ended = child->ended();
    const auto end = co_await ended;
    std::string out;
    for (const auto& text : texts(lines.take(all_of_it))) out += text + "\n";
    co_return out + end.status.describe();
}

} // namespace

TEST_CASE("what a process has written is read to its end, also of one that was killed",
          "[rt][output]") {
    net::real_loop loop;
    CHECK(loop.run(output_of(&loop, "echo a; echo b >&2; exit 3")).ends_with("exited with 3"));
    CHECK(loop.run(output_of(&loop, "printf 'no end'; kill -9 $$")) ==
          "no end\nkilled by signal 9 (SIGKILL)");
    // More than a pipe holds.
    const auto many = loop.run(
        output_of(&loop, "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done"));
    CHECK(many.find("line 19999\nexited with 0") != many.npos);
    // One that it has left behind holds the pipe until it is killed with the group.
    CHECK(loop.run(output_of(&loop, "sleep 1000 & echo left; exit 0")) == "left\nexited with 0");
}

TEST_CASE("what a process prints is passed on in order", "[rt][output]") {
    net::real_loop loop;
    std::string got;
    // NOLINTNEXTLINE(cppcoreguidelines-avoid-capturing-lambda-coroutines): it outlives its
    // coroutines
    const proc::print_lines keep = [&got](std::vector<proc::worker_lines> all) -> task<void> {
        for (const auto& some : all) {
            CHECK(some.worker == "worker-9");
            CHECK(some.left_out == 0);
            for (const auto& line : some.lines) got += line.text + ";";
        }
        co_return;
    };
    // NOLINTNEXTLINE(cppcoreguidelines-avoid-capturing-lambda-coroutines): it outlives the run
    const auto body = [&]() -> task<void> {
        proc::local_children here(loop);
        auto starting = here.start(child_of("for i in 1 2 3 4 5; do echo $i; done"));
        const auto child = co_await starting;
        auto passing = proc::pass_lines_on(child.get(), "worker-9", &keep);
        co_await passing;
    };
    loop.run(body());
    CHECK(got == "1;2;3;4;5;");
}
