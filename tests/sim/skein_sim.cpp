// SPDX-License-Identifier: Apache-2.0
// skein_sim: runs the protocol scenarios in the simulated world, seed after seed.
//
//   skein_sim --seeds N [--first S] [--scenario NAME] [--jobs J] [--verbose] [--hashes FILE] [--list]
//   skein_sim --seeds 1 --first S --scenario NAME --trace FILE
//
// Each seed runs every scenario (or the one named) in a world of its own: virtual time, a seeded
// network, a mix of faults drawn from the seed. Prints seeds run, simulated hours, faults by kind,
// events and one trace hash over all seeds (the same from every compiler), then the failing seeds
// with the command that replays each. Workers are processes: a crash is a failing seed, not the
// end.
//
// --hashes writes the trace hash of each run to a file, with the sources and the compiler of this
// build: two builds of the same sources are compared by them (tests/sim/compare_hashes.py). --trace
// writes each event of one run, and the log between them: the first line in which the files of two
// builds differ is what they do differently.
#include "sim/scenario.hpp"

#include <skein/core/fnv.hpp>
#include <skein/core/log.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace skein::sim {
extern const char* const sources; ///< a hash over them, written when this program is built
}

namespace {

using namespace skein;

struct options {
    std::uint64_t seeds = 100, first = 1;
    std::string scenario, hashes, trace;
    unsigned jobs = 0;
    bool verbose = false;
};

/// What one run of one scenario leaves behind; plain bytes through a pipe.
struct outcome {
    std::uint64_t seed = 0, hash = 0, events = 0;
    std::int64_t nanoseconds = 0;
    std::uint32_t scenario = 0;
    std::uint8_t failed = 0;
    sim::fault_counts faults{};
    char text[256] = {};
};

/// A text to a number without addresses or library hashes.
std::uint64_t fold(std::string_view text) {
    skein::fnv1a h;
    h.text(text);
    return h.value();
}

/// Sends the log to the file of a trace, without the time of this machine.
void log_to(std::FILE* lines) {
    logging::set_level(logging::level::debug);
    logging::set_sink([lines](const logging::record& one) {
        auto timeless = one;
        timeless.wall = {};
        const auto text = logging::format_text(timeless);
        std::fprintf(lines, "log %s\n", text.c_str() + std::string_view("hh:mm:ss.mmm ").size());
    });
}

/// `lines`: where to write what happens, if anywhere.
outcome run_one(const sim::scenario& what, std::uint32_t index, std::uint64_t seed,
                std::FILE* lines = nullptr) {
    outcome out;
    out.seed = seed;
    out.scenario = index;
    sim::loop loop(seed ^ fold(what.name()));
    loop.set_budget(5'000'000, std::chrono::hours(24));
    if (lines != nullptr) {
        loop.set_trace_sink([lines](std::string_view line) {
            std::fprintf(lines, "%.*s\n", static_cast<int>(line.size()), line.data());
        });
    }
    auto faults = sim::faults::draw(loop.random());
    sim::network network(loop, faults);
    sim::world world{loop, network, seed};
    network.begin_link_faults();
    std::string failure;
    try {
        loop.run(what.run(world));
        if (network.open_streams() != 0) {
            failure =
                fmt::format("invariant broken: {} streams are still open", network.open_streams());
        }
    } catch (const std::exception& e) {
        failure = e.what();
    }
    out.failed = !failure.empty();
    std::strncpy(out.text, failure.c_str(), sizeof out.text - 1);
    out.hash = loop.trace_hash();
    out.events = loop.events();
    out.nanoseconds = loop.elapsed().count();
    out.faults = network.counts();
    return out;
}

void put(int fd, const outcome& o) {
    const char* at = reinterpret_cast<const char*>(&o);
    std::size_t left = sizeof o;
    while (left > 0) {
        const auto n = ::write(fd, at, left);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) _exit(3);
        at += n;
        left -= static_cast<std::size_t>(n);
    }
}
bool get(int fd, outcome& o) {
    char* at = reinterpret_cast<char*>(&o);
    std::size_t have = 0;
    while (have < sizeof o) {
        const auto n = ::read(fd, at + have, sizeof o - have);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        have += static_cast<std::size_t>(n);
    }
    return true;
}

struct plan_item {
    std::uint32_t scenario;
    std::uint64_t seed;
};

/// Runs every step-th item from `from` on and tells through fd.
void work(const std::vector<plan_item>& plan, std::size_t from, std::size_t step, int fd,
          std::size_t* current) {
    for (std::size_t i = from; i < plan.size(); i += step) {
        *current = i;
        put(fd, run_one(*sim::scenario::all()[plan[i].scenario], plan[i].scenario, plan[i].seed));
    }
}

/// One worker: a process that does the work, and this one, which puts another in its place when it
/// crashes.
void supervise(const std::vector<plan_item>& plan, std::size_t from, std::size_t step, int fd) {
    void* const shared = ::mmap(nullptr, sizeof(std::size_t), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) _exit(3);
    auto* const current = static_cast<std::size_t*>(shared);
    for (std::size_t next = from; next < plan.size();) {
        const pid_t pid = ::fork();
        if (pid < 0) _exit(3);
        if (pid == 0) {
            work(plan, next, step, fd, current);
            std::exit(0); // with the checks of leak detectors
        }
        int code = 0;
        ::waitpid(pid, &code, 0);
        if (code == 0) return;
        outcome lost;
        lost.seed = plan[*current].seed;
        lost.scenario = plan[*current].scenario;
        lost.failed = 1;
        const std::string why =
            WIFSIGNALED(code) ? fmt::format("the process was killed by signal {}", WTERMSIG(code))
                              : fmt::format("the process ended with code {}", WEXITSTATUS(code));
        std::strncpy(lost.text, why.c_str(), sizeof lost.text - 1);
        put(fd, lost);
        next = *current + step;
    }
}

[[noreturn]] void usage(int code) {
    std::fputs(
        "skein_sim --seeds N [--first S] [--scenario NAME] [--jobs J] [--verbose] [--hashes FILE] "
        "[--list]\n"
        "skein_sim --seeds 1 --first S --scenario NAME --trace FILE\n",
        code == 0 ? stdout : stderr);
    std::exit(code);
}

options read_options(int argc, char** argv) {
    options o;
    const auto number = [&](int& i) -> std::uint64_t {
        if (i + 1 >= argc) usage(2);
        char* end = nullptr;
        const auto value = std::strtoull(argv[++i], &end, 10);
        if (end == argv[i] || *end != '\0') usage(2);
        return value;
    };
    for (int i = 1; i < argc; ++i) {
        const std::string_view a = argv[i];
        if (a == "--seeds")
            o.seeds = number(i);
        else if (a == "--first")
            o.first = number(i);
        else if (a == "--jobs")
            o.jobs = static_cast<unsigned>(number(i));
        else if (a == "--verbose")
            o.verbose = true;
        else if (a == "--scenario" && i + 1 < argc)
            o.scenario = argv[++i];
        else if (a == "--hashes" && i + 1 < argc)
            o.hashes = argv[++i];
        else if (a == "--trace" && i + 1 < argc)
            o.trace = argv[++i];
        else if (a == "--list") {
            for (const auto* s : sim::scenario::all()) std::printf("%s\n", s->name().c_str());
            std::exit(0);
        } else
            usage(a == "--help" || a == "-h" ? 0 : 2);
    }
    if (!o.trace.empty() && (o.seeds != 1 || o.scenario.empty())) usage(2);
    return o;
}

/// One run, in this process, whose trace goes to a file.
int write_trace(const plan_item& run, const std::string& path) {
    std::FILE* const lines = std::fopen(path.c_str(), "w");
    if (lines == nullptr) return std::perror(path.c_str()), 1;
    log_to(lines);
    const auto one = run_one(*sim::scenario::all()[run.scenario], run.scenario, run.seed, lines);
    logging::set_sink({});
    if (std::fclose(lines) != 0) return std::perror(path.c_str()), 1;
    std::printf("%s, trace %016llx\n", one.failed ? one.text : "ok",
                static_cast<unsigned long long>(one.hash));
    return one.failed ? 1 : 0;
}

#if defined(__clang__)
constexpr const char* compiler = "clang " __clang_version__;
#else
constexpr const char* compiler = "g++ " __VERSION__;
#endif

/// Of all runs, in their order; whole or not at all, as another build may just be reading it.
bool write_hashes(const std::vector<outcome>& runs, const std::string& path) {
    const auto draft = path + ".new";
    std::FILE* const lines = std::fopen(draft.c_str(), "w");
    if (lines == nullptr) return std::perror(draft.c_str()), false;
    std::fprintf(lines, "sources %s\ncompiler %s\n", sim::sources, compiler);
    for (const auto& one : runs) {
        std::fprintf(
            lines, "%s %llu %016llx %llu\n", sim::scenario::all()[one.scenario]->name().c_str(),
            static_cast<unsigned long long>(one.seed), static_cast<unsigned long long>(one.hash),
            static_cast<unsigned long long>(one.events));
    }
    if (std::fclose(lines) != 0 || std::rename(draft.c_str(), path.c_str()) != 0)
        return std::perror(path.c_str()), false;
    return true;
}

} // namespace

int main(int argc, char** argv) {
    // The order of static objects differs between linkers; the order of runs must not.
    auto& all = sim::scenario::all();
    std::sort(all.begin(), all.end(),
              [](const auto* a, const auto* b) { return a->name() < b->name(); });
    const options o = read_options(argc, argv);
    if (!o.verbose)
        logging::set_level(logging::level::off); // broken connections are the point here
    std::signal(SIGPIPE, SIG_IGN);

    std::vector<plan_item> plan;
    for (std::uint64_t s = o.first; s < o.first + o.seeds; ++s) {
        for (std::uint32_t k = 0; k < all.size(); ++k) {
            if (o.scenario.empty() || all[k]->name() == o.scenario) plan.push_back({k, s});
        }
    }
    if (plan.empty()) {
        std::fprintf(stderr, "no scenario is called '%s'; --list shows them\n", o.scenario.c_str());
        return 2;
    }
    if (!o.trace.empty()) return write_trace(plan.front(), o.trace);
    const auto begin = std::chrono::steady_clock::now();
    unsigned jobs = o.jobs != 0 ? o.jobs : std::max(1u, std::thread::hardware_concurrency());
    jobs = static_cast<unsigned>(std::min<std::size_t>(jobs, plan.size()));

    // Everyone is forked before the first thread starts.
    std::vector<std::pair<pid_t, int>> workers;
    for (unsigned j = 0; j < jobs; ++j) {
        int ends[2];
        if (::pipe(ends) != 0) return std::perror("pipe"), 1;
        std::fflush(nullptr);
        const pid_t pid = ::fork();
        if (pid < 0) return std::perror("fork"), 1;
        if (pid == 0) {
            for (const auto& [other, fd] : workers) ::close(fd);
            ::close(ends[0]);
            supervise(plan, j, jobs, ends[1]);
            _exit(0);
        }
        ::close(ends[1]);
        workers.emplace_back(pid, ends[0]);
    }
    std::vector<std::vector<outcome>> results(workers.size());
    std::vector<std::thread> readers;
    for (std::size_t j = 0; j < workers.size(); ++j) {
        readers.emplace_back([&, j] {
            outcome one;
            while (get(workers[j].second, one)) results[j].push_back(one);
            ::close(workers[j].second);
            ::waitpid(workers[j].first, nullptr, 0);
        });
    }
    for (auto& r : readers) r.join();
    std::vector<outcome> done, failures;
    for (const auto& part : results) done.insert(done.end(), part.begin(), part.end());
    if (done.size() != plan.size()) {
        std::printf("only %zu of %zu runs ended: a worker was lost\n", done.size(), plan.size());
        return 1;
    }
    std::sort(done.begin(), done.end(), [](const outcome& a, const outcome& b) {
        return a.seed != b.seed ? a.seed < b.seed : a.scenario < b.scenario;
    });

    if (!o.hashes.empty() && !write_hashes(done, o.hashes)) return 1;

    std::uint64_t hash = 0, events = 0;
    double hours = 0;
    sim::fault_counts faults;
    for (const auto& one : done) {
        hash = (hash ^ one.hash) * 0x9e3779b97f4a7c15ULL;
        hash ^= hash >> 32;
        events += one.events;
        hours += static_cast<double>(one.nanoseconds) / 3.6e12;
        for (std::size_t k = 0; k < sim::fault_kinds; ++k)
            faults.by_kind[k] += one.faults.by_kind[k];
        if (one.failed) failures.push_back(one);
        if (o.verbose) {
            std::printf("%s seed %llu: %s, trace %016llx, %llu events, %.3f s\n",
                        all[one.scenario]->name().c_str(),
                        static_cast<unsigned long long>(one.seed), one.failed ? one.text : "ok",
                        static_cast<unsigned long long>(one.hash),
                        static_cast<unsigned long long>(one.events),
                        static_cast<double>(one.nanoseconds) / 1e9);
        }
    }
    const double took =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf("seeds %llu, runs %zu (", static_cast<unsigned long long>(o.seeds), done.size());
    for (std::size_t k = 0; k < all.size(); ++k)
        std::printf("%s%s", k ? " " : "", all[k]->name().c_str());
    std::printf("), simulated %.4f h, events %llu, %.1f s\n", hours,
                static_cast<unsigned long long>(events), took);
    std::printf("faults %llu:", static_cast<unsigned long long>(faults.total()));
    for (std::size_t k = 0; k < sim::fault_kinds; ++k) {
        const auto kind = static_cast<sim::fault>(k);
        std::printf(" %s %llu", std::string(sim::to_string(kind)).c_str(),
                    static_cast<unsigned long long>(faults.by_kind[k]));
    }
    std::printf("\ntrace %016llx\n", static_cast<unsigned long long>(hash));
    for (const auto& f : failures) {
        const auto& name = all[f.scenario]->name();
        std::printf("FAILED %s seed %llu: %s\n  replay: skein_sim --seeds 1 --first %llu "
                    "--scenario %s --jobs 1 "
                    "--verbose\n",
                    name.c_str(), static_cast<unsigned long long>(f.seed), f.text,
                    static_cast<unsigned long long>(f.seed), name.c_str());
    }
    std::printf("failures %zu\n", failures.size());
    return failures.empty() ? 0 : 1;
}
