// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the ranks of the supervisor's tests do, by name.

#include <skein/core/constants.hpp>
#include <skein/core/this_process.hpp>
#include <skein/spmd/joined_group.hpp>
#include <skein/spmd/meeting.hpp>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <sys/prctl.h>
#include <unistd.h>

/// What a program prints that this process starts.
inline std::string output_of(const std::string& command) {
    std::string all;
    std::FILE* const from = ::popen(command.c_str(), "r");
    char part[4096];
    for (std::size_t n = 0; from && (n = std::fread(part, 1, sizeof part, from)) > 0;)
        all.append(part, n);
    if (from) ::pclose(from);
    return all;
}

/// What a rank's children see of its being a rank: the environment they get, and what this very
/// program takes itself for when the rank starts it again.
inline std::string seen_by_children() {
    const auto self = std::filesystem::read_symlink("/proc/self/exe").string();
    // What a test is given by its runner is not the rank's: variables it had itself, the standard
    // files.
    const char* const had = std::getenv("SKEIN_TEST_HAD");
    std::string seen = output_of("env | grep ^SKEIN_ | grep -vE '^(SKEIN_TEST_[A-Z]*" +
                                 std::string(had ? had : "") + ")='");
    seen += output_of("ls -l /proc/self/fd | grep -e pipe -e socket | grep -v ' [012] ->'");
    return seen + output_of("SKEIN_TEST_PROGRAM='says what it is' '" + self + "' rank");
}

inline int run_rank_program(std::string_view program) {
    using namespace skein;
    ::prctl(PR_SET_DUMPABLE, 0); // no core files from the tests that crash
    const auto where = spmd::discover();
    if (program == "says what it is") {
        std::printf("%s\n", where.is_launched() ? "a rank" : "nobody's rank");
        return 0;
    }
    const bool second = where.rank == 1;
    const bool first_attempt = where.attempt == 0;
    if (program == "exits before it joins" && second) ::_exit(3);
    if (program == "refuses its command line" && second) ::_exit(exit_code::usage);
    if (program == "is done as it is asked to move" && !second) { // threads come later
        sigset_t later;
        sigemptyset(&later);
        sigaddset(&later, SIGTERM);
        ::pthread_sigmask(SIG_BLOCK, &later, nullptr);
    }
    if (program == "never joins" && second) {
        ::pause();
    }
    try {
        spmd::joined_group world(where, spmd::group_token());
        const auto mine = std::to_string(where.rank);
        const auto all = world.exchange("rank", as_bytes(mine));
        for (std::size_t r = 0; r < all.size(); ++r) {
            if (to_string(all[r]) != std::to_string(r)) return 1;
        }
        if (program == "waits to be stopped") ::pause(); // SIGTERM ends it
        if (program == "tells") {
            const auto order = spmd::process_environment()("SKEIN_TEST_ORDER").value_or("none");
            if (std::getenv("SKEIN_TEST_ORDER") != nullptr) return 1; // not for its children
            const auto answer = order + " of " + std::string(as_text(world.given()));
            if (!second) world.tell("answer", as_bytes(answer));
            world.leave();
            return 0;
        }
        if (program == "waits to be moved" && first_attempt) ::pause(); // SIGTERM ends it
        if (program == "is killed once" && second && first_attempt) ::raise(SIGKILL);
        if (program == "is always killed" && second) ::raise(SIGKILL);
        if (program == "hangs once" && second && first_attempt) ::raise(SIGSTOP);
        if (program == "is stopped when all are asked to stop" && second) {
            sigset_t quiet; // a pending SIGTERM must not end it before it is stopped
            sigemptyset(&quiet);
            sigaddset(&quiet, SIGTERM);
            ::pthread_sigmask(SIG_BLOCK, &quiet, nullptr);
            ::kill(::getppid(), SIGTERM);
            ::kill(::getpid(), SIGSTOP); // every thread, also the one that answers
        }
        if (program == "stops its supervisor for a while") {
            if (second) ::kill(::getppid(), SIGSTOP);
            // The supervisor's silence is nobody's loss: a rank that minded would know by then.
            if (second && world.wait_lost(std::chrono::milliseconds(3500))) return 1;
            if (second) ::kill(::getppid(), SIGCONT);
        }
        if (program == "starts other programs" && second) {
            const auto secret = world.secret().to_hex();
            const auto environment = read_small_file("/proc/self/environ");
            std::ofstream(std::getenv("SKEIN_TEST_FILE"))
                << seen_by_children()
                << (environment.find(secret) == std::string::npos ? "no token" : "the token");
        }
        if (program == "tells its surroundings" && second) {
            const char* const threads = std::getenv("OMP_NUM_THREADS");
            std::ofstream(std::getenv("SKEIN_TEST_FILE"))
                << std::filesystem::current_path().string() << ' ' << (threads ? threads : "none");
        }
        if (program == "has no reader" && second) ::raise(SIGPIPE);
        if (program == "returns without leaving" && second) std::_Exit(0);
        if (program == "fails" && second) {
            world.fail(error(errc::io, "the disk made a noise").with_hint("listen to it"));
            return 1;
        }
        if (program == "fails at a step" && second) {
            world.fail(error(errc::io, "on_step of writer on rank 1 at step 4: no answer"));
            return 1;
        }
        if (program == "finds a nan" && second) {
            world.fail(error(errc::not_finite, "loss is nan at step 3"));
            return 1;
        }
        const bool reports = program == "writes a report after it has left";
        const bool is_done = program == "is done as it is asked to move";
        if (program != "is fine" && program != "waits to be moved" && !is_done &&
            program != "stops its supervisor for a while" && program != "starts other programs" &&
            !reports)
            (void)world.exchange("again", as_bytes(mine)); // waits for the lost rank
        world.leave();
        if (is_done && !second && first_attempt) {
            sigset_t asked;
            sigemptyset(&asked);
            sigaddset(&asked, SIGTERM);
            int which = 0;
            ::sigwait(&asked, &which);
        }
        if (reports && second) {
            for (volatile long work = 0; work < 200'000'000; work = work + 1) {}
            std::ofstream(std::getenv("SKEIN_TEST_FILE")) << "done";
        }
        return 0;
    } catch (const error& e) {
        return e.code() == errc::peer_lost || e.code() == errc::io ||
                       e.code() == errc::not_finite || e.code() == errc::worker_lost ||
                       e.code() == errc::timeout
                   ? 1
                   : 4;
    }
}
