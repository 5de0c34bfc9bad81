// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the workers of the elastic tests do, by name: steps that are one exchange each, until a file
// "done" is there.

#include <skein/core/constants.hpp>
#include <skein/core/this_process.hpp>
#include <skein/proc/process.hpp>
#include <skein/spmd/elastic_member.hpp>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

/// A FIFO of the test's folder: whoever opens it and whoever reads it wait for each other.
struct test_gate {
    std::string path;
    void make() const { ::mkfifo(path.c_str(), 0600); }
    void open() const { const std::ofstream opened(path); }
    void read() const { const std::ifstream opened(path); }
};

/// A worker's life.
class elastic_worker {
public:
    elastic_worker(std::string_view program, skein::spmd::elastic_member& me)
        : program_(program), me_(me), folder_(std::getenv("SKEIN_TEST_FOLDER")) {}

    int live() {
        using namespace skein;
        auto last = spmd::world_end::none;
        std::string broken;
        for (;;) {
            const auto world = me_.next(last, std::exchange(broken, {}));
            if (!world) {
                note("left", me_.change().why);
                return 0;
            }
            try {
                const int code = work(*world);
                if (code >= 0) return code;
                last = spmd::world_end::paused;
            } catch (const error& why) {
                if (why.code() != errc::peer_lost) throw;
                last = spmd::world_end::broken;
                broken = why.what();
            }
        }
    }

    /// SIGTERM: it is told to go.
    static std::atomic<bool>& told_to_go() {
        static std::atomic<bool> told{false};
        return told;
    }

private:
    /// An exit code, or -1: all pause.
    int work(skein::spmd::rendezvous& world) {
        using namespace skein;
        for (int step = 0;; ++step) {
            act(world, step);
            if (told_to_go() && !asked_) {
                asked_ = true;
                me_.ask_to_leave("it was told to go" +
                                 std::string(program_ == "says much" ? 5 << 20 : 0, '!'));
            }
            std::string row = "---";
            if (me_.change_wanted()) row[0] = 'c';
            if (me_.stop_wanted()) row[1] = 's';
            if (std::filesystem::exists(folder_ + "/done")) row[2] = 'd';
            me_.wait_while_held();
            bool change = false, stop = false, done = false;
            for (const auto& theirs : world.exchange(std::to_string(step), as_bytes(row))) {
                const auto text = as_text(theirs);
                change = change || text[0] == 'c';
                stop = stop || text[1] == 's';
                done = done || text[2] == 'd';
            }
            if (done && program_ == "loses the last one late") {
                if (me_.id() == 2) ::raise(SIGKILL);
                gate().read(); // the next view is there
            }
            if (done && program_ == "loses one after another is done" && me_.id() == 2) {
                gate().read();
                ::raise(SIGKILL);
            }
            if (stop || done) {
                me_.leave();
                if (program_ == "loses one after another is done") gate().open();
                return stop && me_.stop_signal() != 0 ? 128 + me_.stop_signal() : 0;
            }
            if (change) return -1;
        }
    }
    void act(skein::spmd::rendezvous& world, int step) {
        using namespace skein;
        const bool second = me_.id() == 2 && step == 3;
        // The supervisor of another host, when its workers are there.
        const char* const kills = std::getenv("SKEIN_TEST_KILLS");
        if (kills != nullptr && world.world_size() == 2 && step == 3)
            ::kill(static_cast<pid_t>(std::atol(kills)), SIGKILL);
        // What a failed collective is to the rank that has waited for the one that hangs.
        if (program_ == "hangs" && world.generation() == 1 && step == 3) {
            if (me_.id() == 1) throw error(errc::peer_lost, "a collective has timed out");
            for (;;) ::pause();
        }
        if (program_ == "has a failed collective" && second && world.generation() == 1)
            throw error(errc::peer_lost, "the sum of bucket 3 has timed out");
        if (program_ == "exits early" && second) ::_exit(0);
        if (program_ == "gives its state up" && second) // not said by fail(): it is a loss
            throw error(errc::aborted, "half a copy of the state has come");
        if (program_ == "fails" && second)
            throw error(errc::io, "the disk made a noise").with_hint("listen to it");
        if (program_ == "joins badly" && me_.id() > 2 && world.generation() > 1)
            throw error(errc::mismatch, "my model has 3 layers, theirs has 4");
        if (program_ == "tells" && world.rank() == 0 && step == 0)
            me_.tell("answer", as_bytes(std::string(as_text(me_.given())) + "!"));
        if (program_ == "dies in each world" && me_.id() > 1) ::raise(SIGKILL);
        if (program_ == "ignores the stop" && me_.stop_wanted()) ::pause();
    }
    [[nodiscard]] test_gate gate() const { return {folder_ + "/gate"}; }
    void note(const std::string& name, const std::string& text) {
        std::ofstream(fmt::format("{}/{}-{}", folder_, name, me_.id())) << text;
    }

    std::string program_;
    skein::spmd::elastic_member& me_;
    std::string folder_;
    bool asked_ = false;
};

inline int run_elastic_program(std::string_view program) {
    using namespace skein;
    ::prctl(PR_SET_DUMPABLE, 0); // no core files from the tests that crash
    ::signal(SIGTERM, [](int) { elastic_worker::told_to_go() = true; });
    const auto id = spmd::process_environment()(spmd::elastic_id_variable).value();
    if (program == "dies on every start") ::_exit(3);
    if (program == "later ones die on every start" && id > "2") ::_exit(3);
    if (program == "later ones refuse" && id > "2") ::_exit(exit_code::usage);
    spmd::elastic_member_options options;
    options.settings = {{"seed", program == "later ones differ" && id > "2" ? "2" : "1"}};
    if ((program == "later ones never ask" && id > "1") ||
        (program == "replacements never ask" && id > "2")) {
        spmd::elastic_member me(options);
        ::pause();
    }
    if (program == "later ones come late" && id > "1")
        test_gate{std::string(std::getenv("SKEIN_TEST_FOLDER")) + "/gate"}.read();
    std::optional<spmd::elastic_member> me;
    try {
        me.emplace(options);
        return elastic_worker(program, *me).live();
    } catch (const error& why) {
        proc::leave_last_words(why.what());
        if (why.code() == errc::cancelled) return 128 + me->stop_signal();
        if (me && why.code() != errc::aborted) me->fail(why);
        return 1;
    }
}
