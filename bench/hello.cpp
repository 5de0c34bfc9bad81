// SPDX-License-Identifier: Apache-2.0
// From exec to the first result: 010_hello_task starts, starts its workers, calls two of them and
// prints. Beside it: how long starting and reaping a process that does nothing takes.
#include "bench.hpp"

#include <skein/proc/process.hpp>

#include <cstdlib>
#include <string>

namespace {

using namespace skein;

/// Milliseconds from before the fork to the first byte of output.
double until_first_output(const std::string& program) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw error(errc::io, "pipe failed");
    proc::process_options how;
    how.argv = {program, "--workers", "2"};
    how.stdout_fd = ends[1];
    const auto begin = std::chrono::steady_clock::now();
    auto child = proc::child_process::spawn(how);
    ::close(ends[1]);
    char first = 0;
    const bool came = ::read(ends[0], &first, 1) == 1;
    const auto end = std::chrono::steady_clock::now();
    while (came && ::read(ends[0], &first, 1) == 1) {}
    ::close(ends[0]);
    if (!came || !child.wait_blocking().success())
        throw error(errc::io, fmt::format("{} printed nothing: {}", program,
                                          child.wait_blocking().describe()));
    return std::chrono::duration<double, std::milli>(end - begin).count();
}

double empty_process() {
    proc::process_options how;
    how.argv = {"/bin/true"};
    return 1e3 * bench::seconds([&] {
               auto child = proc::child_process::spawn(how);
               child.wait_blocking();
           });
}

} // namespace

int main() {
    const char* build = std::getenv("SKEIN_BUILD_DIR");
    const auto program = std::string(build != nullptr ? build : ".") + "/examples/010_hello_task";
    try {
        const auto [hello, nothing] = bench::in_turns<2>(
            21, {[&] { return until_first_output(program); }, [] { return empty_process(); }});
        bench::figure("rt.start_empty_process", nothing.median, "ms").print();
        return bench::figure("rt.hello_exec_to_first_result", hello.median, "ms")
                       .at_most(50)
                       .print()
                   ? 0
                   : 1;
    } catch (const std::exception& e) {
        fmt::print(stderr, "hello: {}\n", e.what());
        return 1;
    }
}
