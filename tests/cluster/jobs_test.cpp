// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>

#include <skein/cluster/detail/submitted_job.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/sim/disk.hpp>
#include <tests/support/sim_jobs.hpp>
#include <tests/support/sim_nodes.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <functional>
#include <string>
#include <vector>

using namespace skein;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using cluster::job_info;
using cluster::job_state;

namespace {

/// A head with so many nodes of one cpu each.
void with_nodes(std::uint64_t seed, int nodes,
                const std::function<task<void>(test::sim_nodes&, test::sim_jobs&)>& body,
                sim::disk* disk = nullptr, duration lost_after = 6s) {
    test::sim_jobs jobs;
    test::in_world_of_nodes(seed,
                            [&](test::sim_nodes& c) -> task<void> { // NOLINT: outlives the run
                                c.head_disk = disk;
                                c.head_defaults.lost_after = lost_after;
                                c.start_head();
                                jobs.attach(c);
                                for (int i = 0; i < nodes; ++i) jobs.add_node(1);
                                auto there = jobs.until_nodes(static_cast<std::size_t>(nodes));
                                co_await there;
                                auto rest = body(c, jobs);
                                co_await rest;
                            });
}

/// A job that does that.
cluster::job_request job(std::string id, std::vector<std::string> does) {
    cluster::job_request what;
    what.id = std::move(id);
    what.command = {"/bin/sh"};
    what.command.insert(what.command.end(), does.begin(), does.end());
    what.demand = "cpu=1";
    what.by = "ann@desk";
    return what;
}

std::vector<std::string> texts(const std::vector<proc::output_line>& lines) {
    std::vector<std::string> out;
    for (const auto& line : lines) out.push_back(line.text);
    return out;
}

proc::output_line line(std::string text) { return {false, std::move(text)}; }

} // namespace

// ---- lines that are kept -------------------------------------------------------------------------

TEST_CASE("lines of a job are numbered from 1, and given from any number on", "[cluster][jobs]") {
    cluster::detail::kept_lines kept;
    CHECK(kept.from(1, 1000).first == 1);
    CHECK(kept.from(1, 1000).lines.empty());
    for (const auto* text : {"a", "b", "c"}) kept.add(line(text));
    CHECK(kept.total() == 3);
    CHECK(texts(kept.from(1, 1000).lines) == std::vector<std::string>{"a", "b", "c"});
    const auto two = kept.from(2, 1000);
    CHECK(two.first == 2);
    CHECK(texts(two.lines) == std::vector<std::string>{"b", "c"});
    CHECK(kept.from(4, 1000).first == 4); // the next one
    CHECK(kept.from(9, 1000).first == 9); // who asks for it waits
    CHECK(kept.from(9, 1000).lines.empty());
    CHECK(kept.last(2) == std::vector<std::string>{"b", "c"});
    CHECK(kept.last(9).size() == 3);
}

TEST_CASE("an answer ends before a gap, and the next one says where it goes on",
          "[cluster][jobs]") {
    cluster::detail::kept_lines kept;
    kept.add(line("a"));
    kept.skip(10);
    kept.add(line("b"));
    kept.skip(3);
    CHECK(kept.total() == 15);
    CHECK(kept.left_out() == 13);
    CHECK(texts(kept.from(1, 1000).lines) == std::vector<std::string>{"a"});
    const auto behind = kept.from(2, 1000);
    CHECK(behind.first == 12);
    CHECK(texts(behind.lines) == std::vector<std::string>{"b"});
    CHECK(kept.from(13, 1000).first == 16); // nothing will come of those
    CHECK(kept.from(13, 1000).lines.empty());
}

TEST_CASE("of many lines the last MiB is kept, and an answer has at least one", "[cluster][jobs]") {
    using cluster::detail::kept_lines;
    kept_lines kept;
    for (int i = 1; i <= 3000; ++i) kept.add(line(std::to_string(i) + std::string(1000, 'x')));
    CHECK(kept.total() == 3000);
    CHECK(kept.left_out() == 0); // whoever asked in time has them
    const auto all = kept.from(1, SIZE_MAX);
    CHECK(all.first == 3001 - all.lines.size());
    std::size_t bytes = 0;
    for (const auto& one : all.lines) bytes += one.text.size() + proc::line_queue::line_cost;
    CHECK(bytes <= kept_lines::most_bytes);
    CHECK(bytes > kept_lines::most_bytes * 9 / 10);
    CHECK(all.lines.front().text.starts_with(std::to_string(all.first) + "x"));
    const auto some = kept.from(2900, 5000);
    CHECK(some.first == 2900);
    CHECK(some.lines.size() == 4);
    CHECK(kept.from(2900, 1).lines.size() == 1);
    kept.add(line(std::string(2 * kept_lines::most_bytes, 'y')));
    CHECK(kept.from(1, 1).first == 3001); // one is kept, however long it is
    CHECK(kept.last(1).front().size() == 512);
}

// ---- from the submission to the end --------------------------------------------------------------

TEST_CASE("a job is placed, runs, and ends as its entry process does", "[cluster][jobs]") {
    with_nodes(1, 1, [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
        auto submitting = jobs.submit(job("hello", {"print", "3", "sleep", "2000", "exit", "0"}));
        const auto taken = co_await submitting;
        CHECK(taken.id == "hello");
        CHECK(taken.not_durable.empty());
        auto running = jobs.until("hello", job_state::running);
        const auto now = co_await running;
        CHECK(now.node == "n1");
        CHECK(now.attempt == 1);
        CHECK(now.by == "ann@desk");
        CHECK(now.started >= now.submitted);
        CHECK(now.ended == 0);
        CHECK(c.head().status().nodes[0].used == "cpu=1");
        auto following = jobs.follow("hello");
        const auto said = co_await following;
        CHECK(said.end.state == static_cast<std::uint8_t>(job_state::succeeded));
        CHECK(said.lines == std::vector<std::string>{"1", "2", "3"});
        CHECK(said.left_out == 0);
        CHECK(said.end.exit_code == 0);
        CHECK(said.end.lines == 3);
        CHECK(said.end.reason.empty());
        CHECK(said.end.ended >= said.end.started);
        CHECK(said.end.last_lines.empty());
        CHECK(c.processes() == 0);
        CHECK(c.head().status().nodes[0].workers == 0);
        CHECK(c.head().status().jobs.empty());
    });
}

TEST_CASE("an entry process knows its job, its attempt, its head and its own environment",
          "[cluster][jobs]") {
    with_nodes(2, 1, [](test::sim_nodes&, test::sim_jobs& jobs) -> task<void> {
        auto what = job("env", {"env"});
        what.env = {"COLOUR=blue", "EMPTY="};
        auto running = jobs.run(std::move(what));
        const auto said = co_await running;
        std::string all;
        for (const auto& text : said.lines) all += text + "\n";
        CHECK_THAT(all, ContainsSubstring("COLOUR=blue\n") && ContainsSubstring("EMPTY=\n"));
        CHECK_THAT(all, ContainsSubstring("SKEIN_ADDRESS=sim:head:1\n"));
        CHECK_THAT(all, ContainsSubstring("SKEIN_JOB_ATTEMPT=1\n"));
        CHECK_THAT(all, ContainsSubstring("SKEIN_JOB_MARK=env.1."));
        CHECK_THAT(all, ContainsSubstring("SKEIN_JOB=env\n"));
    });
}

TEST_CASE("a job that fails says how, with its last lines", "[cluster][jobs]") {
    with_nodes(3, 1, [](test::sim_nodes&, test::sim_jobs& jobs) -> task<void> {
        auto failing = jobs.run(job("seven", {"print", "30", "exit", "7"}));
        const auto seven = co_await failing;
        CHECK(seven.end.state == static_cast<std::uint8_t>(job_state::failed));
        CHECK(seven.end.exit_code == 7);
        CHECK(seven.end.signal == 0);
        CHECK_THAT(seven.end.reason, ContainsSubstring("exited with code 7") ||
                                         ContainsSubstring("exit code 7") ||
                                         ContainsSubstring("exited with 7"));
        REQUIRE(seven.end.last_lines.size() == 20);
        CHECK(seven.end.last_lines.front() == "11");
        CHECK(seven.end.last_lines.back() == "30");

        auto dying = jobs.run(job("killed", {"print", "1", "die"}));
        const auto killed = co_await dying;
        CHECK(killed.end.state == static_cast<std::uint8_t>(job_state::failed));
        CHECK(killed.end.exit_code == -1);
        CHECK(killed.end.signal == 9);
        CHECK_THAT(killed.end.reason, ContainsSubstring("SIGKILL"));
    });
}

TEST_CASE("a command that is not there fails at once, whatever retries there are",
          "[cluster][jobs]") {
    with_nodes(4, 1, [](test::sim_nodes&, test::sim_jobs& jobs) -> task<void> {
        auto what = job("nothing", {});
        what.command = {"/no/such/program"};
        what.retries = 5;
        auto running = jobs.run(std::move(what));
        const auto gone = co_await running;
        CHECK(gone.end.state == static_cast<std::uint8_t>(job_state::failed));
        CHECK(gone.end.attempt == 1);
        CHECK(gone.end.started == 0);
        CHECK(gone.end.exit_code == -1);
        CHECK_THAT(gone.end.reason, ContainsSubstring("it did not start: ") &&
                                        ContainsSubstring("there is no /no/such/program"));
        auto word = job("word", {});
        word.command = {"no-such-command-anywhere"};
        word.env = {"PATH=/usr/bin:/bin"};
        auto looking = jobs.run(std::move(word));
        const auto missing = co_await looking;
        CHECK_THAT(missing.end.reason, ContainsSubstring("no-such-command-anywhere in the PATH"));
        auto folder = job("folder", {"exit", "0"});
        folder.folder = "/no/such/folder";
        auto entering = jobs.run(std::move(folder));
        const auto outside = co_await entering;
        CHECK_THAT(outside.end.reason,
                   ContainsSubstring("the folder /no/such/folder is not there"));
    });
}

TEST_CASE("a job that fails is tried again after growing pauses, as often as was asked for",
          "[cluster][jobs]") {
    with_nodes(5, 1, [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
        auto what = job("again", {"print", "2", "exit", "3"});
        what.retries = 3;
        const auto begin = c.loop().now();
        auto submitting = jobs.submit(what);
        (void)co_await submitting;
        auto retrying = jobs.until("again", job_state::retrying);
        const auto first = co_await retrying;
        CHECK_THAT(first.reason, ContainsSubstring("attempt 1 of 4 has failed: "));
        auto following = jobs.follow("again");
        const auto said = co_await following;
        CHECK(said.end.state == static_cast<std::uint8_t>(job_state::failed));
        CHECK(said.end.attempt == 4);
        CHECK(said.lines == std::vector<std::string>{"1", "2", "1", "2", "1", "2", "1", "2"});
        CHECK(jobs.starts_of("again") == std::vector<int>{1, 2, 3, 4});
        CHECK(c.loop().now() - begin >= 7s); // 1 + 2 + 4
        CHECK(c.loop().now() - begin < 10s);

        auto third = job("third", {"exit-after", "2"}); // fails twice
        third.retries = 3;
        auto running = jobs.run(std::move(third));
        const auto good = co_await running;
        CHECK(good.end.state == static_cast<std::uint8_t>(job_state::succeeded));
        CHECK(good.end.attempt == 3);
        CHECK(good.end.reason.empty());
    });
}

TEST_CASE("who waits says why, and for so long as was asked for", "[cluster][jobs]") {
    with_nodes(6, 1, [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
        auto large = job("large", {"exit", "0"});
        large.demand = "cpu=64";
        large.pending_ms = 5000;
        large.retries = 4; // of no use
        const auto begin = c.loop().now();
        auto submitting = jobs.submit(std::move(large));
        (void)co_await submitting;
        co_await sleep_for(1s);
        auto asking = jobs.info("large");
        const auto waits = co_await asking;
        CHECK(waits.state == static_cast<std::uint8_t>(job_state::pending));
        CHECK_THAT(waits.reason, ContainsSubstring("cpu=64"));
        auto following = jobs.follow("large");
        const auto said = co_await following;
        CHECK(said.end.state == static_cast<std::uint8_t>(job_state::failed));
        CHECK_THAT(said.end.reason, ContainsSubstring("no node had room for it within 5 s: ") &&
                                        ContainsSubstring("cpu=64"));
        CHECK(c.loop().now() - begin < 6s);

        auto here = job("here", {"sleep", "3000", "exit", "0"});
        auto first = jobs.submit(std::move(here));
        (void)co_await first;
        auto behind = job("behind", {"exit", "0"}); // the only cpu is taken, and comes back
        behind.pending_ms = 60'000;
        auto second = jobs.run(std::move(behind));
        const auto after = co_await second;
        CHECK(after.end.state == static_cast<std::uint8_t>(job_state::succeeded));

        auto elsewhere = job("elsewhere", {"exit", "0"});
        elsewhere.label = "zone=z";
        elsewhere.pending_ms = 1000;
        auto third = jobs.run(std::move(elsewhere));
        const auto nowhere = co_await third;
        CHECK(nowhere.end.state == static_cast<std::uint8_t>(job_state::failed));
        CHECK_THAT(nowhere.end.reason, ContainsSubstring("zone=z"));
    });
}

TEST_CASE("a job that runs longer than it may is ended", "[cluster][jobs]") {
    with_nodes(7, 1, [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
        auto what = job("long", {"sleep", "100000", "exit", "0"});
        what.timeout_ms = 3000;
        what.retries = 2; // it would be as long again
        const auto begin = c.loop().now();
        auto running = jobs.run(std::move(what));
        const auto said = co_await running;
        CHECK(said.end.state == static_cast<std::uint8_t>(job_state::failed));
        CHECK_THAT(said.end.reason, ContainsSubstring("longer than its time limit of 3 s"));
        CHECK(said.end.attempt == 1);
        CHECK(c.loop().now() - begin < 5s);
        CHECK(c.processes() == 0);
    });
}

// ---- stop and delete -----------------------------------------------------------------------------

TEST_CASE("a job is stopped wherever it is on its way, and stopping it twice changes nothing",
          "[cluster][jobs]") {
    with_nodes(8, 1, [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
        auto first = jobs.submit(job("first", {"sleep", "100000", "exit", "0"}));
        (void)co_await first;
        auto running = jobs.until("first", job_state::running);
        (void)co_await running;

        auto second = jobs.submit(job("waiting", {"exit", "0"}));
        (void)co_await second;
        auto stopping = jobs.stop("waiting");
        (void)co_await stopping;
        auto waited = jobs.follow("waiting");
        const auto waiting = co_await waited;
        CHECK(waiting.end.state == static_cast<std::uint8_t>(job_state::stopped));
        CHECK_THAT(waiting.end.reason, ContainsSubstring("stopped by "));
        CHECK(jobs.starts_of("waiting").empty());

        auto ending = jobs.stop("first");
        const auto told = co_await ending;
        CHECK(told.now.reason == "it is being stopped");
        auto twice = jobs.stop("first");
        (void)co_await twice;
        auto followed = jobs.follow("first");
        const auto ran = co_await followed;
        CHECK(ran.end.state == static_cast<std::uint8_t>(job_state::stopped));
        CHECK(ran.end.signal == 15);
        auto later = jobs.stop("first");
        const auto same = co_await later;
        CHECK(same.now.state == static_cast<std::uint8_t>(job_state::stopped));
        CHECK(same.now.ended == ran.end.ended);

        auto failing = job("between", {"exit", "1"});
        failing.retries = 9;
        auto third = jobs.submit(std::move(failing));
        (void)co_await third;
        auto retrying = jobs.until("between", job_state::retrying);
        (void)co_await retrying;
        auto ended = jobs.stop("between");
        (void)co_await ended;
        co_await sleep_for(5s);
        auto asking = jobs.info("between");
        const auto between = co_await asking;
        CHECK(between.state == static_cast<std::uint8_t>(job_state::stopped));
        CHECK(between.attempt == 1);
        CHECK(jobs.starts_of("between") == std::vector<int>{1});
        CHECK(c.processes() == 0);

        auto good = jobs.run(job("good", {"exit", "0"}));
        (void)co_await good;
        auto late = jobs.stop("good"); // one that has ended stays as it is
        const auto stays = co_await late;
        CHECK(stays.now.state == static_cast<std::uint8_t>(job_state::succeeded));
    });
}

TEST_CASE("a job that is stopped while it starts does not run on", "[cluster][jobs]") {
    for (const int us : {0, 300, 1000, 2000, 3000, 5000, 8000})
        with_nodes(9 + static_cast<std::uint64_t>(us), 1,
                   [us](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
                       auto submitting = jobs.submit(job("soon", {"sleep", "60000", "exit", "0"}));
                       (void)co_await submitting;
                       co_await sleep_for(std::chrono::microseconds(us));
                       const auto begin = c.loop().now();
                       auto stopping = jobs.stop("soon");
                       (void)co_await stopping;
                       auto following = jobs.follow("soon");
                       const auto said = co_await following;
                       CHECK(said.end.state == static_cast<std::uint8_t>(job_state::stopped));
                       CHECK(c.loop().now() - begin < 1s);
                       co_await sleep_for(1s);
                       CHECK(c.processes() == 0);
                       CHECK(c.head().status().nodes[0].workers == 0);
                   });
}

TEST_CASE("an entry process that ignores SIGTERM is killed after the grace", "[cluster][jobs]") {
    with_nodes(10, 1, [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
        auto submitting = jobs.submit(job("deaf", {"ignore", "sleep", "100000"}));
        (void)co_await submitting;
        auto running = jobs.until("deaf", job_state::running);
        (void)co_await running;
        co_await sleep_for(1s);
        const auto begin = c.loop().now();
        auto stopping = jobs.stop("deaf");
        (void)co_await stopping;
        auto following = jobs.follow("deaf");
        const auto said = co_await following;
        CHECK(said.end.state == static_cast<std::uint8_t>(job_state::stopped));
        CHECK(said.end.signal == 9);
        CHECK(c.loop().now() - begin >= 2s);
        CHECK(c.loop().now() - begin < 4s);
        CHECK(c.processes() == 0);
    });
}

TEST_CASE("a job that has ended can be deleted, one that runs cannot", "[cluster][jobs]") {
    with_nodes(11, 1, [](test::sim_nodes&, test::sim_jobs& jobs) -> task<void> {
        auto submitting = jobs.submit(job("busy", {"sleep", "1000", "exit", "0"}));
        (void)co_await submitting;
        auto running = jobs.until("busy", job_state::running);
        (void)co_await running;
        auto deleting = jobs.refusal_of(jobs.stop("busy", true));
        const auto why = co_await deleting;
        CHECK_THAT(why, ContainsSubstring("job busy is RUNNING: it cannot be deleted"));
        auto following = jobs.follow("busy");
        (void)co_await following;
        auto gone = jobs.stop("busy", true);
        (void)co_await gone;
        const std::string none = "not_found: there is no job \"busy\"";
        auto asking = jobs.refusal_of(jobs.info("busy"));
        const auto asked = co_await asking;
        CHECK(asked == none);
        auto again = jobs.refusal_of(jobs.stop("busy", true));
        const auto deleted = co_await again;
        CHECK(deleted == none);
        auto reading = jobs.refusal_of(jobs.lines("busy", 1));
        const auto read = co_await reading;
        CHECK(read == none);
    });
}

// ---- what is refused -----------------------------------------------------------------------------

TEST_CASE("what nobody could run or find again is refused when it is submitted",
          "[cluster][jobs]") {
    with_nodes(12, 1, [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
        struct wrong {
            std::function<void(cluster::job_request&)> change;
            const char* said;
        };
        using request = cluster::job_request;
        const std::vector<wrong> all{
            {[](request& r) { r.id = "a b"; }, "a job cannot be called \"a b\""},
            {[](request& r) { r.id = "../x"; }, "a job cannot be called"},
            {[](request& r) { r.id = ".x"; }, "a job cannot be called"},
            {[](request& r) { r.id = "-x"; }, "a job cannot be called"},
            {[](request& r) { r.id = "a/b"; }, "a job cannot be called"},
            {[](request& r) { r.id = "a\x1b[2J"; }, "a job cannot be called \"a\\x1b[2J\""},
            {[](request& r) { r.id = std::string(65, 'x'); }, "a job cannot be called"},
            {[](request& r) { r.id = "taken"; }, "already_exists: there is a job taken already"},
            {[](request& r) { r.command.clear(); }, "a job without a command"},
            {[](request& r) { r.command = {""}; }, "a job without a command"},
            {[](request& r) { r.command.push_back(std::string("a\0b", 3)); }, "a zero byte"},
            {[](request& r) { r.command.push_back(std::string(70'000, 'x')); },
             "too_large: command and environment of the job have 70"},
            {[](request& r) { r.env = {"=x"}; }, "\"=x\" is no variable of an environment"},
            {[](request& r) { r.env = {"x"}; }, "\"x\" is no variable of an environment"},
            {[](request& r) { r.env = {""}; }, "\"\" is no variable of an environment"},
            {[](request& r) { r.demand = "cpu=many"; }, "cpu=many"},
            {[](request& r) { r.demand = "gpu=1.5"; }, "gpu"},
            {[](request& r) { r.demand = "cpu=-1"; }, "cpu"},
            {[](request& r) { r.label = "@1"; }, "no node can have the label @1"},
            {[](request& r) { r.label = std::string(300, 'z'); }, "no node can have the label zzz"},
            {[](request& r) { r.folder = "runs"; }, "the folder runs is no absolute path"},
            {[](request& r) { r.package = "0123"; },
             "not_supported: not supported: this head keeps"},
            {[](request& r) { r.by = std::string(5000, 'x'); }, "a text of the job is too long"},
        };
        auto first = jobs.submit(job("taken", {"exit", "0"}));
        (void)co_await first;
        std::size_t at = 0;
        for (const auto& one : all) {
            auto what = job("fine", {"exit", "0"});
            one.change(what);
            auto submitting = jobs.refusal_of(jobs.submit(std::move(what)));
            const auto why = co_await submitting;
            INFO("case " << at++ << ": " << why);
            CHECK_THAT(why, ContainsSubstring(one.said));
        }
        auto listing = jobs.list();
        const auto there = co_await listing;
        CHECK(there.total == 1);
        auto unnamed = job("", {"exit", "0"});
        auto drawing = jobs.submit(std::move(unnamed));
        const auto drawn = co_await drawing;
        CHECK(drawn.id.starts_with("job_"));
        CHECK(drawn.id.size() == 20);
        auto ending = jobs.follow(drawn.id);
        (void)co_await ending;
        CHECK(c.processes() == 0);
    });
}

TEST_CASE("a list has the newest job first, and as many as was asked for", "[cluster][jobs]") {
    with_nodes(13, 0, [](test::sim_nodes&, test::sim_jobs& jobs) -> task<void> {
        for (int i = 1; i <= 5; ++i) {
            auto submitting = jobs.submit(job("j" + std::to_string(i), {"exit", "0"}));
            (void)co_await submitting;
        }
        const auto ids = [](const cluster::job_list& all) {
            std::string out;
            for (const auto& one : all.jobs) out += one.id + " ";
            return out;
        };
        auto everything = jobs.list();
        const auto all = co_await everything;
        CHECK(ids(all) == "j5 j4 j3 j2 j1 ");
        CHECK(all.total == 5);
        auto asking = jobs.list(1, 2);
        const auto some = co_await asking;
        CHECK(ids(some) == "j4 j3 ");
        CHECK(some.total == 5);
        auto beyond = jobs.list(7, 2);
        const auto none = co_await beyond;
        CHECK(none.jobs.empty());
        auto one = jobs.info("j2");
        const auto second = co_await one;
        CHECK(second.id == "j2");
    });
}

// ---- nodes and heads that go ---------------------------------------------------------------------

TEST_CASE("a job whose node dies is tried again elsewhere, if it may", "[cluster][jobs]") {
    with_nodes(14, 2, [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
        auto what = job("moves", {"print", "2", "sleep", "5000", "exit", "0"});
        what.retries = 1;
        auto only = job("stays", {"sleep", "5000", "exit", "0"});
        auto first = jobs.submit(std::move(what));
        (void)co_await first;
        auto running = jobs.until("moves", job_state::running);
        const auto there = co_await running;
        auto second = jobs.submit(std::move(only));
        (void)co_await second;
        auto beside = jobs.until("stays", job_state::running);
        const auto other = co_await beside;
        REQUIRE(other.node != there.node);
        for (std::size_t i = 0; i < 2; ++i)
            if (c.at(i).host == other.node) {
                auto killed = c.kill_agent(c.at(i));
                co_await killed;
            }
        auto lost = jobs.follow("stays");
        const auto stays = co_await lost;
        CHECK(stays.end.state == static_cast<std::uint8_t>(job_state::failed));
        CHECK_THAT(stays.end.reason, ContainsSubstring("node " + other.node + " was lost"));
        for (std::size_t i = 0; i < 2; ++i)
            if (c.at(i).host == there.node) {
                auto killed = c.kill_agent(c.at(i), true);
                co_await killed;
            } else {
                c.start_agent(c.at(i));
            }
        auto following = jobs.follow("moves");
        const auto moves = co_await following;
        CHECK(moves.end.state == static_cast<std::uint8_t>(job_state::succeeded));
        CHECK(moves.end.attempt == 2);
        CHECK(moves.end.node == other.node);
        CHECK(moves.lines == std::vector<std::string>{"1", "2", "1", "2"});
    });
}

TEST_CASE("a job goes on while its node cannot reach the head", "[cluster][jobs]") {
    with_nodes(15, 1, [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
        auto submitting =
            jobs.submit(job("goes-on", {"print", "2", "sleep", "4000", "print", "2", "exit", "0"}));
        (void)co_await submitting;
        auto running = jobs.until("goes-on", job_state::running);
        (void)co_await running;
        c.network().crash("n1"); // its connections; the agent lives
        auto following = jobs.follow("goes-on");
        const auto said = co_await following;
        CHECK(said.end.state == static_cast<std::uint8_t>(job_state::succeeded));
        CHECK(said.end.attempt == 1);
        CHECK(said.lines == std::vector<std::string>{"1", "2", "1", "2"});
        CHECK(jobs.starts_of("goes-on") == std::vector<int>{1});
    });
}

TEST_CASE("a node that is silent for less than the time that was set keeps its job, and says so",
          "[cluster][jobs]") {
    const auto length = GENERATE(4s, 8s, 25s); // with the link, after its end, long after
    with_nodes(
        15, 1,
        [length](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
            auto submitting =
                jobs.submit(job("keeps", {"print", "2", "sleep", "28000", "print", "2"}));
            (void)co_await submitting;
            auto running = jobs.until("keeps", job_state::running);
            (void)co_await running;
            c.network().partition("n1", "head");
            co_await sleep_for(length - 500ms);
            auto asking = jobs.info("keeps");
            const auto now = co_await asking;
            CHECK(cluster::state_of(now) == job_state::running);
            CHECK_THAT(now.reason, ContainsSubstring("node n1 is silent for ") &&
                                       ContainsSubstring("given up at 30 s"));
            const auto seen = c.head().status();
            REQUIRE(seen.nodes.size() == 1);
            CHECK(seen.lost_after_ms == 30'000);
            CHECK(seen.nodes[0].suspect);
            CHECK(seen.nodes[0].given_up_ms == 30'000);
            CHECK(static_cast<double>(seen.nodes[0].silent_ms) > to_seconds(length) * 1000 - 2000);
            co_await sleep_for(500ms);
            c.network().heal_all();
            auto following = jobs.follow("keeps");
            const auto said = co_await following;
            CHECK(cluster::state_of(said.end) == job_state::succeeded);
            CHECK(said.end.attempt == 1);
            CHECK(said.lines == std::vector<std::string>{"1", "2", "1", "2"});
            CHECK(jobs.starts_of("keeps") == std::vector<int>{1});
            CHECK_FALSE(c.head().status().nodes.at(0).suspect);
        },
        nullptr, 30s);
}

TEST_CASE("a node that is silent for longer is lost, and its job has failed with that reason",
          "[cluster][jobs]") {
    with_nodes(
        15, 1,
        [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
            auto submitting = jobs.submit(job("goes", {"sleep", "500000"}));
            (void)co_await submitting;
            auto running = jobs.until("goes", job_state::running);
            (void)co_await running;
            const auto since = c.loop().now();
            c.network().partition("n1", "head");
            auto following = jobs.follow("goes");
            const auto said = co_await following;
            CHECK(cluster::state_of(said.end) == job_state::failed);
            CHECK_THAT(said.end.reason, ContainsSubstring("node n1 was lost: it was silent for 3"));
            CHECK(c.loop().now() - since < 5s);
            c.network().heal_all();
            auto back = jobs.until_nodes(1);
            co_await back;
            co_await sleep_for(3s);
            CHECK(jobs.alive("goes") == 0); // it was told
        },
        nullptr, 3s);
}

TEST_CASE("a silent node gets nothing new until it is heard again", "[cluster][jobs]") {
    with_nodes(
        16, 2,
        [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
            c.network().partition("n1", "head");
            co_await sleep_for(2s);
            for (const auto* id : {"one", "two"}) {
                auto submitting = jobs.submit(job(id, {"sleep", "6000"}));
                (void)co_await submitting;
            }
            auto running = jobs.until("one", job_state::running);
            const auto running_said = co_await running;
            CHECK(running_said.node == "n2");
            co_await sleep_for(2s);
            auto asking = jobs.info("two");
            const auto asking_said = co_await asking;
            CHECK(cluster::state_of(asking_said) == job_state::pending);
            c.network().heal_all();
            auto second = jobs.until("two", job_state::running);
            const auto second_said = co_await second;
            CHECK(second_said.node == "n1");
        },
        nullptr, 30s);
}

TEST_CASE("the next attempt begins when the one on a node that was given up has ended",
          "[cluster][jobs]") {
    const bool comes_back = GENERATE(false, true); // else its agent ends it, alone
    const bool has_new_head = GENERATE(false, true);
    sim::disk disk;
    with_nodes(
        17, 2,
        [=](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
            auto what = job("moves", {"sleep", "100000", "exit", "0"});
            what.retries = 1;
            auto submitting = jobs.submit(std::move(what));
            (void)co_await submitting;
            auto running = jobs.until("moves", job_state::running);
            const auto before = co_await running;
            const auto since = c.loop().now();
            c.network().partition(before.node, "head");
            auto retrying = jobs.until("moves", job_state::retrying);
            const auto lost = co_await retrying;
            CHECK(c.loop().now() - since >= 30s);
            CHECK_THAT(lost.reason, ContainsSubstring("it may run there still"));
            if (has_new_head) {
                auto killed = c.kill_head();
                co_await killed;
                c.start_head();
            }
            co_await sleep_for(2s);
            CHECK(jobs.alive("moves") == 1);
            CHECK(jobs.starts_of("moves") == std::vector<int>{1});
            if (comes_back) c.network().heal_all();
            auto again = jobs.until("moves", job_state::running);
            const auto after = co_await again;
            CHECK(after.attempt == 2);
            CHECK(jobs.attempts().at({"moves", 2}).others == 0);
            const auto took = c.loop().now() - since;
            CHECK(took < (comes_back ? 39s : has_new_head ? 75s : 45s));
            c.network().heal_all();
        },
        &disk, 30s);
}

TEST_CASE("a head that is started again takes jobs over, and their lines keep their numbers",
          "[cluster][jobs]") {
    sim::disk disk;
    with_nodes(
        16, 1,
        [&disk](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
            auto first = jobs.submit(
                job("runs", {"print", "5", "sleep", "9000", "print", "4", "exit", "0"}));
            (void)co_await first;
            auto running = jobs.until("runs", job_state::running);
            const auto before = co_await running;
            auto reading = jobs.lines("runs", 1);
            const auto some = co_await reading;
            CHECK(texts(some.lines) == std::vector<std::string>{"1", "2", "3", "4", "5"});
            auto second = jobs.submit(job("waits", {"print", "1", "exit", "0"}));
            (void)co_await second;
            auto done = jobs.submit(job("ended", {"exit", "0"}));
            (void)co_await done;
            auto ended = jobs.stop("ended");
            (void)co_await ended;
            auto stopped = jobs.until("ended", job_state::stopped);
            (void)co_await stopped;

            auto killed = c.kill_head();
            co_await killed;
            disk.crash();
            co_await sleep_for(1s);
            c.start_head();
            auto asking = jobs.info("runs");
            const auto now = co_await asking;
            CHECK(now.state == static_cast<std::uint8_t>(job_state::running));
            CHECK(now.started == before.started);
            auto following = jobs.follow("runs", 6);
            const auto said = co_await following;
            CHECK(said.end.state == static_cast<std::uint8_t>(job_state::succeeded));
            CHECK(said.end.attempt == 1);
            CHECK(said.end.lines == 9);
            CHECK(said.lines == std::vector<std::string>{"1", "2", "3", "4"});
            CHECK(said.left_out == 0);
            auto from_one =
                jobs.follow("runs", 1); // the head before had those, and has not said so
            const auto late = co_await from_one;
            CHECK(late.left_out + late.lines.size() == 9);
            auto behind = jobs.follow("waits");
            const auto waits = co_await behind;
            CHECK(waits.end.state == static_cast<std::uint8_t>(job_state::succeeded));
            CHECK(waits.end.attempt == 1);
            CHECK(waits.lines == std::vector<std::string>{"1"});
            CHECK(jobs.starts_of("runs") == std::vector<int>{1});
            CHECK(jobs.starts_of("waits") == std::vector<int>{1});
            auto old = jobs.info("ended");
            const auto still = co_await old;
            CHECK(still.state == static_cast<std::uint8_t>(job_state::stopped));

            auto once_more = c.kill_head();
            co_await once_more;
            disk.crash();
            c.start_head();
            auto again = jobs.info("runs");
            const auto over = co_await again;
            CHECK(over.state == static_cast<std::uint8_t>(job_state::succeeded));
            CHECK(over.ended == said.end.ended);
            CHECK(over.lines == 9);
            auto nothing = jobs.follow("runs", 10);
            const auto all = co_await nothing;
            CHECK(all.lines.empty());
            CHECK(all.left_out == 0);
        },
        &disk);
}

TEST_CASE("who follows a job goes on when the head is started again", "[cluster][jobs]") {
    sim::disk disk;
    with_nodes(
        17, 2,
        [&disk](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
            auto what = job("twice", {"print", "5", "sleep", "9000", "print", "3", "exit", "0"});
            what.retries = 1;
            auto submitting = jobs.submit(std::move(what));
            (void)co_await submitting;
            scope following;
            test::sim_jobs::story said;
            const auto follows = [&]() -> task<void> { // NOLINT: outlives it
                auto all = jobs.follow("twice");
                said = co_await all;
            };
            following.spawn(follows());
            auto running = jobs.until("twice", job_state::running);
            const auto there = co_await running;
            co_await sleep_for(1s);
            auto killed = c.kill_head();
            co_await killed;
            disk.crash();
            for (std::size_t i = 0; i < 2; ++i)
                if (c.at(i).host == there.node) { // with all that it has not said yet
                    auto gone = c.kill_agent(c.at(i), true);
                    co_await gone;
                }
            co_await sleep_for(1s);
            c.start_head();
            auto joined = following.join();
            co_await joined;
            CHECK(said.end.state == static_cast<std::uint8_t>(job_state::succeeded));
            CHECK(said.end.attempt == 2);
            CHECK(said.lines == std::vector<std::string>{"1", "2", "3", "4", "5", // of the first
                                                         "1", "2", "3", "4", "5", "1", "2", "3"});
        },
        &disk);
}

TEST_CASE("the end of a job that no head has written down is told to the next one",
          "[cluster][jobs]") {
    sim::disk disk;
    with_nodes(
        18, 1,
        [&disk](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
            auto submitting = jobs.submit(job("ends", {"sleep", "3000", "exit", "0"}));
            (void)co_await submitting;
            auto running = jobs.until("ends", job_state::running);
            (void)co_await running;
            while (c.processes() != 0) co_await sleep_for(1ms);
            co_await sleep_for(5ms); // its end is with the head now, or on its way there
            auto killed = c.kill_head();
            co_await killed;
            disk.crash();
            c.start_head();
            auto following = jobs.follow("ends");
            const auto said = co_await following;
            CHECK(said.end.state == static_cast<std::uint8_t>(job_state::succeeded));
            CHECK(jobs.starts_of("ends") == std::vector<int>{1});

            auto next = jobs.submit(job("alone", {"sleep", "3000", "exit", "4"}));
            (void)co_await next;
            auto starts = jobs.until("alone", job_state::running);
            (void)co_await starts;
            auto away = c.kill_head();
            co_await away;
            co_await sleep_for(5s);
            CHECK(c.processes() == 0);
            c.start_head();
            auto finding = jobs.follow("alone");
            const auto alone = co_await finding;
            CHECK(alone.end.state == static_cast<std::uint8_t>(job_state::failed));
            CHECK(alone.end.exit_code == 4);
        },
        &disk);
}

TEST_CASE("a job that was told to stop is stopped by the next head", "[cluster][jobs]") {
    sim::disk disk;
    with_nodes(
        19, 1,
        [&disk](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
            auto submitting = jobs.submit(job("deaf", {"ignore", "sleep", "100000"}));
            (void)co_await submitting;
            auto running = jobs.until("deaf", job_state::running);
            (void)co_await running;
            co_await sleep_for(1s);
            auto stopping = jobs.stop("deaf");
            (void)co_await stopping;
            auto killed = c.kill_head();
            co_await killed;
            disk.crash();
            c.start_head();
            auto again = jobs.stop("deaf"); // its node may not be back yet
            (void)co_await again;
            auto following = jobs.follow("deaf");
            const auto said = co_await following;
            CHECK(said.end.state == static_cast<std::uint8_t>(job_state::stopped));
            CHECK(c.processes() == 0);
        },
        &disk);
}

TEST_CASE("a head without a log knows of no job, and the entry process ends", "[cluster][jobs]") {
    with_nodes(20, 1, [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
        auto submitting = jobs.submit(job("forgotten", {"sleep", "100000", "exit", "0"}));
        (void)co_await submitting;
        auto running = jobs.until("forgotten", job_state::running);
        (void)co_await running;
        std::string why;
        scope following;
        const auto follows = [&]() -> task<void> { // NOLINT: outlives it
            auto all = jobs.refusal_of(jobs.follow("forgotten"));
            why = co_await all;
        };
        following.spawn(follows());
        co_await sleep_for(1s);
        auto killed = c.kill_head();
        co_await killed;
        c.start_head();
        auto joined = following.join();
        co_await joined;
        CHECK(why == "not_found: there is no job \"forgotten\"");
        co_await sleep_for(15s);
        CHECK(c.processes() == 0);
        CHECK(c.head().status().jobs.empty());
        auto next = jobs.run(job("forgotten", {"exit", "0"})); // the node is free again
        const auto said = co_await next;
        CHECK(said.end.state == static_cast<std::uint8_t>(job_state::succeeded));
    });
}

TEST_CASE("a job that takes its node down as it starts has had its attempt", "[cluster][jobs]") {
    with_nodes(21, 2, [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
        for (std::size_t i = 0; i < 2; ++i) c.at(i).children->faults().hang = 1; // never started
        auto submitting = jobs.submit(job("poison", {"exit", "0"}));             // no retries
        (void)co_await submitting;
        auto starting = jobs.until("poison", job_state::starting);
        const auto at = co_await starting;
        co_await sleep_for(100ms); // the order is there
        for (std::size_t i = 0; i < 2; ++i) {
            c.at(i).children->stop_faults();
            if (c.at(i).host != at.node) continue;
            c.network().partition(at.node, "head"); // its last words are not heard
            auto killed = c.kill_agent(c.at(i));
            co_await killed;
        }
        auto following = jobs.follow("poison");
        const auto said = co_await following;
        CHECK(cluster::state_of(said.end) == job_state::failed);
        CHECK_THAT(said.end.reason, ContainsSubstring("node " + at.node + " was lost"));
        CHECK(said.end.attempt == 1);
        CHECK(jobs.starts_of("poison").empty());
    });
}

TEST_CASE("an order that was lost with a link costs no retry: its node says that it never came",
          "[cluster][jobs]") {
    with_nodes(
        21, 1,
        [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
            c.network().partition("head", "n1"); // not noticed yet
            auto submitting = jobs.submit(job("lost", {"print", "1", "exit", "0"})); // no retries
            (void)co_await submitting;
            auto starting = jobs.until("lost", job_state::starting);
            (void)co_await starting;
            co_await sleep_for(10s); // the link has ended
            c.network().heal_all();
            auto following = jobs.follow("lost");
            const auto said = co_await following;
            CHECK(cluster::state_of(said.end) == job_state::succeeded);
            CHECK(jobs.starts_of("lost").size() == 1);
        },
        nullptr, 30s);
}

TEST_CASE("a new head settles at once what a node that is back does not have", "[cluster][jobs]") {
    const bool is_other_agent = GENERATE(false, true); // else the order died with the head
    sim::disk disk;
    with_nodes(
        23, 1,
        [=](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
            if (!is_other_agent) c.network().block("head", "n1");
            auto submitting = jobs.submit(job("short", {"sleep", "2000", "exit", "0"}));
            (void)co_await submitting;
            auto coming =
                jobs.until("short", is_other_agent ? job_state::running : job_state::starting);
            (void)co_await coming;
            auto killed = c.kill_head();
            co_await killed;
            if (is_other_agent) {
                auto died = c.kill_agent(c.at(0));
                co_await died;
                c.start_agent(c.at(0));
            }
            c.network().heal_all();
            c.start_head();
            const auto since = c.loop().now();
            auto back = jobs.until_nodes(1);
            co_await back;
            auto following = jobs.follow("short");
            const auto said = co_await following;
            CHECK(c.loop().now() - since < 8s); // of which 2 s are its own
            if (is_other_agent) {
                CHECK(cluster::state_of(said.end) == job_state::failed);
                CHECK_THAT(said.end.reason, ContainsSubstring("its agent was started again"));
                CHECK(said.end.attempt == 1);
            } else {
                CHECK(cluster::state_of(said.end) == job_state::succeeded);
                CHECK(said.end.attempt == 2);
                CHECK(said.end.not_counted == 1); // "attempt 2 of 2"
                CHECK(jobs.starts_of("short") == std::vector<int>{2});
            }
        },
        &disk);
}

TEST_CASE("a tool looks for a head for as long as it may, and says so once", "[cluster][jobs]") {
    with_nodes(24, 1, [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
        auto killed = c.kill_head();
        co_await killed;
        auto how = jobs.as_tool();
        int told = 0;
        how.on_wait = [&told](const error&, time_span) { ++told; };
        auto at_once = as_result(cluster::ask_for_jobs(jobs.tool(), how));
        const auto at_once_said = co_await at_once;
        CHECK_FALSE(at_once_said.has_value());
        how.patience = 3s;
        const auto since = c.loop().now();
        auto in_vain = as_result(cluster::ask_for_jobs(jobs.tool(), how));
        const auto in_vain_said = co_await in_vain;
        CHECK_FALSE(in_vain_said.has_value());
        CHECK(c.loop().now() - since >= 3s);
        CHECK(told == 1);
        scope beside;
        const auto later = [](test::sim_nodes* of) -> task<void> {
            co_await sleep_for(2s);
            of->start_head();
        };
        beside.spawn(later(&c));
        auto submitting = cluster::ask_to_submit(jobs.tool(), how, job("", {"exit", "0"}));
        const auto taken = co_await submitting;
        CHECK(taken.id.starts_with("job_"));
        CHECK(told == 2);
        auto joined = beside.join();
        co_await joined;
        auto following = jobs.follow(taken.id);
        const auto following_said = co_await following;
        CHECK(cluster::state_of(following_said.end) == job_state::succeeded);
    });
}

TEST_CASE("a job that is submitted again because the answer was lost is the same one",
          "[cluster][jobs]") {
    with_nodes(25, 1, [](test::sim_nodes&, test::sim_jobs& jobs) -> task<void> {
        cluster::submit_job asked;
        asked.what = job("mine", {"print", "1", "exit", "0"});
        const auto ask = [&jobs](cluster::submit_job what) {
            return cluster::detail::ask_head_once<cluster::submit_reply>(
                &jobs.tool(), jobs.as_tool(), std::move(what), &jobs.was_asked);
        };
        auto first = ask(asked);
        const auto first_said = co_await first;
        CHECK(first_said.id == "mine");
        auto following = jobs.follow("mine");
        (void)co_await following;
        auto taken = jobs.refusal_of(ask(asked));
        const auto taken_said = co_await taken;
        CHECK_THAT(taken_said, ContainsSubstring("already_exists"));
        asked.again = true;
        auto again = ask(asked);
        const auto again_said = co_await again;
        CHECK(again_said.id == "mine");
        asked.what.command.emplace_back("other");
        auto other = jobs.refusal_of(ask(asked));
        const auto other_said = co_await other;
        CHECK_THAT(other_said, ContainsSubstring("already_exists"));
        CHECK(jobs.starts_of("mine") == std::vector<int>{1});
    });
}

TEST_CASE("lines that were lost with a link come over the next one, each once", "[cluster][jobs]") {
    with_nodes(
        26, 1,
        [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
            std::vector<std::string> does;
            for (int i = 0; i < 40; ++i) {
                does.insert(does.end(), {"talk", "5", "sleep", "500"});
            }
            auto submitting = jobs.submit(job("talks", does));
            (void)co_await submitting;
            auto running = jobs.until("talks", job_state::running);
            (void)co_await running;
            co_await sleep_for(3s);
            c.network().block("n1", "head");
            co_await sleep_for(8s);
            c.network().heal_all();
            auto following = jobs.follow("talks");
            const auto said = co_await following;
            CHECK(cluster::state_of(said.end) == job_state::succeeded);
            CHECK(said.left_out == 0);
            std::vector<std::string> wanted;
            for (int i = 1; i <= 200; ++i) wanted.push_back(fmt::format("1 {}", i));
            CHECK(said.lines == wanted);
        },
        nullptr, 30s);
}

// ---- reports of strangers ------------------------------------------------------------------------

// Nomad 19729: an allocation that fails while its client is disconnected never gets to an end.
TEST_CASE("an attempt that ends while its node is silent has that end when it is heard",
          "[cluster][jobs]") {
    with_nodes(
        27, 1,
        [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
            auto submitting =
                jobs.submit(job("ends", {"sleep", "9000", "print", "3", "exit", "7"}));
            (void)co_await submitting;
            auto running = jobs.until("ends", job_state::running);
            (void)co_await running;
            c.network().partition("n1", "head");
            co_await sleep_for(15s);
            CHECK(jobs.alive("ends") == 0);
            auto asking = jobs.info("ends");
            const auto asking_said = co_await asking;
            CHECK(cluster::state_of(asking_said) == job_state::running); // as far as one knows
            c.network().heal_all();
            auto following = jobs.follow("ends");
            const auto said = co_await following;
            CHECK(cluster::state_of(said.end) == job_state::failed);
            CHECK(said.end.exit_code == 7);
            CHECK(said.lines.size() + said.left_out == 3);
        },
        nullptr, 30s);
}

// Nomad 12680: what is bound to one client is started beside itself when that client is back.
TEST_CASE("a job that may be on one node alone is never started beside itself there",
          "[cluster][jobs]") {
    with_nodes(
        28, 2,
        [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
            auto what = job("bound", {"ignore", "sleep", "50000", "exit", "0"});
            what.label = "node=n1";
            what.retries = 3;
            auto submitting = jobs.submit(std::move(what));
            (void)co_await submitting;
            auto running = jobs.until("bound", job_state::running);
            (void)co_await running;
            c.network().partition("n1", "head");
            auto retrying = jobs.until("bound", job_state::retrying);
            (void)co_await retrying;
            c.network().heal_all();
            auto following = jobs.follow("bound");
            const auto said = co_await following;
            CHECK(cluster::state_of(said.end) == job_state::succeeded);
            CHECK(jobs.starts_of("bound") == std::vector<int>{1, 2});
            CHECK(jobs.attempts().at({"bound", 2}).others == 0);
        },
        nullptr, 30s);
}

// Argo 1832: a step on a node that has died is Running for ever, past its deadline.
TEST_CASE("a time limit that passes while its node is silent ends a job, also if that never comes",
          "[cluster][jobs]") {
    const bool comes_back = GENERATE(false, true);
    with_nodes(
        29, 1,
        [=](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
            auto what = job("late", {"sleep", "900000"});
            what.timeout_ms = 3000;
            what.retries = 2;
            auto submitting = jobs.submit(std::move(what));
            (void)co_await submitting;
            auto running = jobs.until("late", job_state::running);
            (void)co_await running;
            const auto since = c.loop().now();
            c.network().partition("n1", "head");
            co_await sleep_for(10s);
            if (comes_back) {
                c.network().heal_all();
            } else {
                auto died = c.kill_agent(c.at(0), true);
                co_await died;
            }
            auto following = jobs.follow("late");
            const auto said = co_await following;
            CHECK(cluster::state_of(said.end) == job_state::failed);
            CHECK_THAT(said.end.reason, ContainsSubstring("time limit of 3 s"));
            CHECK(c.loop().now() - since < (comes_back ? 16s : 33s));
            CHECK(jobs.starts_of("late") == std::vector<int>{1});
            CHECK(jobs.alive("late") == 0);
        },
        nullptr, 30s);
}

// ---- lines ---------------------------------------------------------------------------------------

TEST_CASE("a slow follower stops nobody, and hears what was left out", "[cluster][jobs]") {
    with_nodes(22, 1, [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
        const auto begin = c.loop().now();
        auto submitting = jobs.submit(job("loud", {"print", "200000", "exit", "0"}));
        (void)co_await submitting;
        auto ended = jobs.until("loud", job_state::succeeded);
        const auto end = co_await ended;
        CHECK(c.loop().now() - begin < 60s);
        CHECK(end.lines == 200'000);
        auto following = jobs.follow("loud"); // long after
        const auto said = co_await following;
        CHECK(said.lines.size() + said.left_out == 200'000);
        CHECK(said.lines.size() > 1000);
        CHECK(said.in_order);
        CHECK_FALSE(said.lines.empty());
        auto asking = jobs.lines("loud", 0);
        const auto last = co_await asking; // those that are kept
        CHECK(last.first > 1);
        CHECK_FALSE(last.lines.empty());
    });
}

TEST_CASE("who follows a job hears of its lines and states as they come", "[cluster][jobs]") {
    with_nodes(23, 1, [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
        auto submitting = jobs.submit(job(
            "slow", {"print", "1", "sleep", "3000", "print", "1", "sleep", "3000", "exit", "0"}));
        (void)co_await submitting;
        auto running = jobs.until("slow", job_state::running);
        (void)co_await running;
        const auto state = static_cast<std::uint8_t>(job_state::running);
        auto first = jobs.lines("slow", 1, state);
        const auto one = co_await first;
        CHECK(one.lines.size() == 1);
        CHECK_FALSE(one.is_all);
        const auto begin = c.loop().now();
        auto patient = jobs.lines("slow", 2, state, 500ms);
        const auto none = co_await patient;
        CHECK(none.lines.empty());
        CHECK(none.first == 2);
        CHECK(c.loop().now() - begin < 1s);
        auto second = jobs.lines("slow", 2, state, 20s);
        const auto two = co_await second;
        CHECK(two.lines.size() == 1);
        CHECK(c.loop().now() - begin < 4s);
        auto third = jobs.lines("slow", 3, state, 20s); // the end
        const auto end = co_await third;
        CHECK(end.is_all);
        CHECK(end.lines.empty());
        CHECK(end.now.state == static_cast<std::uint8_t>(job_state::succeeded));
    });
}

// ---- the end of all ------------------------------------------------------------------------------

TEST_CASE(
    "who follows a job, and asks for more a moment after its cluster was stopped, hears its end",
    "[cluster][jobs]") {
    with_nodes(25, 1, [](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
        auto submitting = jobs.submit(job("runs", {"sleep", "100000", "exit", "0"}));
        (void)co_await submitting;
        auto running = jobs.until("runs", job_state::running);
        (void)co_await running;
        auto reaching = cluster::detail::reach_head_once(&jobs.tool(), jobs.as_tool());
        const auto way = co_await reaching;
        cluster::follow_job asked;
        asked.id = "runs";
        auto first = way->call<cluster::job_lines>(asked);
        const auto now = co_await first;
        CHECK_FALSE(now.is_all);
        scope beside;
        beside.spawn(c.end());
        co_await sleep_for(1s); // the job has ended long ago
        asked.known = now.now.state;
        auto second = way->call<cluster::job_lines>(asked);
        const auto end = co_await second;
        CHECK(end.is_all);
        CHECK(end.now.state == static_cast<std::uint8_t>(job_state::stopped));
        const auto asks_no_more = c.loop().now();
        auto ended = beside.join();
        co_await ended;
        CHECK(c.loop().now() - asks_no_more < 1s); // nobody is waited for
        auto closing = way->close();
        co_await closing;
    });
}

TEST_CASE("jobs of a cluster that is stopped are stopped, and who follows them hears it",
          "[cluster][jobs]") {
    sim::disk disk;
    const bool has_log = GENERATE(false, true);
    with_nodes(
        24, 1,
        [&disk](test::sim_nodes& c, test::sim_jobs& jobs) -> task<void> {
            auto first = jobs.submit(job("runs", {"sleep", "100000", "exit", "0"}));
            (void)co_await first;
            auto running = jobs.until("runs", job_state::running);
            (void)co_await running;
            auto second = jobs.submit(job("waits", {"exit", "0"}));
            (void)co_await second;
            std::vector<test::sim_jobs::story> said(2);
            scope following;
            const auto follows = [&](std::string id, std::size_t at) -> task<void> { // NOLINT
                auto all = jobs.follow(std::move(id));
                said[at] = co_await all;
            };
            following.spawn(follows("runs", 0));
            following.spawn(follows("waits", 1));
            co_await sleep_for(1s);
            auto ended = c.end();
            co_await ended;
            auto joined = following.join();
            co_await joined;
            for (const auto& one : said) {
                CHECK(one.end.state == static_cast<std::uint8_t>(job_state::stopped));
                CHECK(one.end.reason == "the cluster was stopped");
            }
            CHECK(c.processes() == 0);
            if (c.head_disk == nullptr) co_return;
            disk.crash();
            c.start_head();
            auto asking = jobs.list();
            const auto all = co_await asking;
            REQUIRE(all.jobs.size() == 2);
            for (const auto& one : all.jobs)
                CHECK(one.state == static_cast<std::uint8_t>(job_state::stopped));
        },
        has_log ? &disk : nullptr);
}
