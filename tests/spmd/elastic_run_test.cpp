// SPDX-License-Identifier: Apache-2.0
// Several hosts of an elastic job, each a process here that has its own supervisor.
#include <skein/core/clock.hpp>
#include <skein/proc/process.hpp>
#include <skein/spmd/elastic_run.hpp>
#include <tests/spmd/elastic_hosts.hpp>
#include <tests/spmd/elastic_programs.hpp>
#include <tests/support/temporary_folder.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

namespace elastic_run_test {

using namespace skein;
using namespace skein::spmd;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

/// This process is host a, the coordinator; the others are processes of their own.
struct hosts_run {
    test::temporary_folder folder;
    elastic_run_options options;
    std::vector<spmd::view> views;
    std::vector<std::string> failures, lines;
    std::function<void(const std::string&)> on_line;
    std::map<std::string, proc::child_process> others;
    net::address endpoint;
    supervisor_outcome outcome;

    explicit hosts_run(std::pair<int, int> hosts, int workers) {
        options.job = "tests";
        options.endpoint = net::address::tcp("127.0.0.1", 0);
        options.secret = test_secret();
        options.host = "a";
        options.hosts = hosts;
        options.workers_per_host = workers;
        options.executable = "/proc/self/exe";
        options.argv = {"rank"};
        options.env = {{"SKEIN_TEST_PROGRAM", "works"}, {"SKEIN_TEST_FOLDER", folder.path}};
        options.times.crash_grace = 5s;
        options.takes_signals = false;
    }
    /// `ranks`: what its workers do, of elastic_programs.hpp.
    void add(const std::string& name, const char* ranks = "works") {
        proc::process_options how;
        how.argv = {"host"};
        how.executable = "/proc/self/exe";
        how.die_with_parent = false; // a thread may have started it; it ends with this object
        how.env = {
            {"SKEIN_TEST_PROGRAM", "is a host"},
            {"SKEIN_TEST_FOLDER", folder.path},
            {"SKEIN_TEST_HOST", name},
            {"SKEIN_TEST_RANKS", ranks},
            {"SKEIN_TEST_HOSTS", fmt::format("{}:{}", options.hosts.first, options.hosts.second)},
            {"SKEIN_TEST_WORKERS", std::to_string(options.workers_per_host)},
            {"SKEIN_TEST_ENDPOINT", net::to_string(endpoint)}};
        others[name] = proc::child_process::spawn(how);
    }
    /// Others come when this one listens; `act` is called with each view of ranks; when it says
    /// false the workers are done.
    void live(const std::vector<std::string>& names,
              const std::function<bool(const spmd::view&)>& act) {
        options.on_listening = [&, names](const net::address& at) {
            endpoint = at;
            for (const auto& name : names) add(name);
        };
        options.on_view = [&](const spmd::view& now) {
            views.push_back(now);
            if (!now.is_over && !act(now)) finish();
        };
        options.on_failure = [&](const error& why, int, int) { failures.push_back(why.what()); };
        options.say = [&](const std::string& line) {
            lines.push_back(line);
            if (on_line) on_line(line);
        };
        outcome = run_elastic_host(options);
    }
    void finish() const { std::ofstream(folder.path + "/done") << "done"; }
    [[nodiscard]] std::string story() const {
        std::string all;
        for (const auto& v : views) all += fmt::format("view {}: {}\n", v.generation, v.why);
        for (const auto& f : failures) all += "counted: " + f + "\n";
        for (const auto& l : lines) all += "said: " + l + "\n";
        return all;
    }
};

int count(const spmd::view& now, const std::string& host) {
    int n = 0;
    for (const auto& m : now.members) n += m.host == host ? 1 : 0;
    return n;
}

} // namespace

TEST_CASE("hosts meet at the endpoint, and one whose supervisor is killed is lost at once") {
    hosts_run job({1, 2}, 2);
    bool killed = false;
    job.live({"b"}, [&](const spmd::view& now) {
        if (!killed && count(now, "b") == 2) {
            killed = true;
            job.others["b"].kill(SIGKILL);
        }
        return !killed || count(now, "b") > 0;
    });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    REQUIRE(killed);
    CHECK(job.failures.size() == 1); // a host counts once
    const auto& last = job.views[job.views.size() - 2];
    CHECK(last.members.size() == 2);
    CHECK(count(last, "a") == 2);
}

TEST_CASE("a host that is told to go leaves in order") {
    hosts_run job({1, 2}, 1);
    bool told = false;
    job.live({"b"}, [&](const spmd::view& now) {
        if (!told && count(now, "b") == 1) {
            told = true;
            job.others["b"].kill(SIGTERM);
        }
        return !told || count(now, "b") > 0;
    });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    CHECK(job.failures.empty());
    CHECK(job.others["b"].wait_blocking().code() == 128 + SIGTERM);
}

TEST_CASE("a host that is silent for a second is lost, and comes back as a new one") {
    hosts_run job({1, 2}, 1);
    id_list first;
    job.live({"b"}, [&](const spmd::view& now) {
        if (first.empty() && count(now, "b") == 1) {
            first = ids_of(now);
            job.others["b"].kill(SIGSTOP);
        } else if (!first.empty() && count(now, "b") == 0) {
            job.others["b"].kill(SIGCONT);
        }
        return first.empty() || count(now, "b") == 0 || ids_of(now) == first;
    });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    CHECK(job.failures.size() == 1);
    CHECK(job.others["b"].wait_blocking().success());
}

TEST_CASE("another number of workers is asked for from outside") {
    hosts_run job({1, 2}, 2);
    std::vector<std::thread> tools;
    std::string answer;
    job.live({}, [&](const spmd::view& now) {
        if (now.generation == 1)
            tools.emplace_back([&] {
                try {
                    (void)scale_elastic_job(job.endpoint, test_secret(), "another", 2);
                } catch (const error& why) {
                    answer = why.what();
                }
                answer += "; " + scale_elastic_job(job.endpoint, test_secret(), "tests", 1);
                job.add("b");
                answer += "; " + scale_elastic_job(job.endpoint, test_secret(), "tests", 3);
            });
        return now.members.size() != 3;
    });
    for (auto& tool : tools) tool.join();
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    CHECK_THAT(answer, ContainsSubstring("this is job 'tests'") &&
                           ContainsSubstring("wants 2 workers now") &&
                           ContainsSubstring("wants 3 workers now"));
}

TEST_CASE("a job without an endpoint is scaled by the process that leads it") {
    hosts_run job({1, 1}, 1);
    job.options.endpoint = {};
    job.options.most = 3;
    job.options.least = job.options.start = 1;
    std::string answer, refusal;
    std::vector<std::thread> tools;
    job.live({}, [&](const spmd::view& now) {
        if (now.generation == 1)
            tools.emplace_back([&] {
                const auto door = door_of_job(::getpid());
                try {
                    (void)scale_elastic_job(door, net::token::generate(), "", 2);
                } catch (const error& why) {
                    refusal = why.what();
                }
                answer = scale_elastic_job(door, test_secret(), "", 2);
            });
        return now.members.size() != 2;
    });
    for (auto& tool : tools) tool.join();
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    CHECK_THAT(refusal, ContainsSubstring("token"));
    CHECK_THAT(answer, ContainsSubstring("wants 2 workers now (1 to 3 are possible)"));
    CHECK(job.views.size() == 3);
    CHECK_THROWS_AS(door_of_job(::getpid()), error);
}

TEST_CASE("a host of another job, size or token is refused, and says why") {
    hosts_run job({1, 2}, 1);
    std::vector<std::thread> tools;
    std::vector<std::string> refused;
    job.live({}, [&](const spmd::view& now) {
        if (now.generation > 1) return true;
        tools.emplace_back([&] {
            for (const auto* what : {"job", "size", "token"}) {
                auto other = job.options;
                other.endpoint = job.endpoint;
                other.host = "b";
                other.on_listening = {};
                other.on_view = {};
                if (what == std::string("job")) other.job = "another";
                if (what == std::string("size")) other.workers_per_host = 3;
                if (what == std::string("token")) other.secret = net::token::generate();
                try {
                    const auto how = run_elastic_host(other);
                    refused.push_back(how.failure ? how.failure->what() : "not refused");
                } catch (const error& why) {
                    refused.push_back(why.what());
                }
            }
            std::ofstream(job.folder.path + "/done") << "done";
        });
        return true;
    });
    for (auto& tool : tools) tool.join();
    CHECK_FALSE(job.outcome.failure);
    REQUIRE(refused.size() == 3);
    CHECK_THAT(refused[0], ContainsSubstring("of job 'another'"));
    CHECK_THAT(refused[1], ContainsSubstring("3 to 6 workers"));
    CHECK_THAT(refused[2], ContainsSubstring("token"));
}

TEST_CASE("hosts with other settings and a mistyped option end with 2, and losses are made good") {
    hosts_run job({1, 2}, 2);
    std::vector<int> codes;
    std::thread others;
    id_list first;
    job.live({}, [&](const spmd::view& now) {
        if (now.generation == 1) {
            first = ids_of(now);
            others = std::thread([&, pid = static_cast<pid_t>(now.members[1].pid)] {
                for (const char* ranks : {"later ones differ", "later ones refuse"}) {
                    job.add("b", ranks);
                    codes.push_back(job.others["b"].wait_blocking().code());
                }
                ::kill(pid, SIGKILL);
            });
        }
        return count(now, "a") != 2 || ids_of(now) == first;
    });
    others.join();
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    CHECK(codes == std::vector<int>{2, 2});
    CHECK(job.outcome.restarts == 1);
}

TEST_CASE("a worker that is long in coming is named") {
    hosts_run job({1, 1}, 2);
    const test_gate gate{job.folder.path + "/gate"};
    gate.make();
    job.options.env[0].second = "later ones come late";
    job.options.times.slow_start = 100ms;
    job.on_line = [&](const std::string& line) {
        if (line.find("worker 2 (pid ") != std::string::npos) gate.open();
    };
    job.live({}, [](const spmd::view&) { return false; });
    INFO(job.story());
    CHECK_FALSE(job.outcome.failure);
    CHECK_THAT(job.story(), ContainsSubstring("is not ready after 0.1 s: its program has not come "
                                              "to its Trainer yet"));
}

TEST_CASE("a coordinator that is gone ends the other hosts, with a word on how to resume") {
    hosts_run job({1, 2}, 1);
    job.options.back_limit = 300ms;
    const auto at = job.folder.path + "/address";
    REQUIRE(::mkfifo(at.c_str(), 0600) == 0);
    job.endpoint = job.options.endpoint; // any port, and it says which
    job.add("c");
    std::string listens;
    std::ifstream(at) >> listens; // waits for it
    job.options.endpoint = net::address::parse(listens).value();
    std::string why;
    job.options.env.emplace_back("SKEIN_TEST_KILLS", std::to_string(job.others["c"].pid()));
    try {
        why = "ended";
        const auto how = run_elastic_host(job.options);
        if (how.failure) why = how.failure->what();
    } catch (const error& lost) {
        why = lost.what();
    }
    CHECK_THAT(why, ContainsSubstring("is gone") && ContainsSubstring("last checkpoint"));
}

TEST_CASE("a host leaves when a file appears") {
    hosts_run job({1, 1}, 1);
    job.options.notices.file = job.folder.path + "/go";
    job.options.notices.every = 20ms;
    job.live({}, [&](const spmd::view&) {
        std::ofstream(job.folder.path + "/go") << "now";
        return true;
    });
    CHECK_FALSE(job.outcome.failure);
    CHECK(job.outcome.stop_signal == SIGTERM); // it was the only one
}

TEST_CASE("numbers of workers that contradict each other are refused") {
    for (const auto& [least, most, start] :
         {std::tuple{0, 2, 0}, std::tuple{3, 2, 0}, std::tuple{1, 2, 3}, std::tuple{2, 3, 1}}) {
        elastic_run_options options;
        options.least = least;
        options.most = most;
        options.start = start;
        CHECK_THROWS_AS(run_elastic_host(options), error);
    }
}

TEST_CASE("what cannot be run is said before anybody is asked") {
    hosts_run job({1, 1}, 1);
    job.options.executable.clear();
    job.options.argv = {"/no/such/program"};
    CHECK_THROWS_AS(run_elastic_host(job.options), error);
    job.options.argv = {"no-such-program-in-the-path"};
    CHECK_THROWS_AS(run_elastic_host(job.options), error);
    job.options.hosts = {2, 1};
    CHECK_THROWS_AS(run_elastic_host(job.options), error);
}

} // namespace elastic_run_test
