// SPDX-License-Identifier: Apache-2.0
#include <skein/cluster/detail/job_book.hpp>
#include <skein/cluster/jobs.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/sim/loop.hpp>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace job_book_test {

using namespace skein;
namespace parts = skein::cluster::detail;
using Catch::Matchers::ContainsSubstring;
using cluster::job_request;
using cluster::job_state;
using parts::job_ptr;
using parts::submitted_job;

/// A head of which the test says what it knows.
struct fake_head final : parts::job_sources {
    std::string pending, silence;
    parts::texts_by_job held_up;
    cluster::node_log on_nodes;
    std::vector<cluster::ask_node_log> asked;

    [[nodiscard]] std::string why_pending(const submitted_job&) const override { return pending; }
    [[nodiscard]] std::string silence_of(const submitted_job&) const override { return silence; }
    [[nodiscard]] parts::texts_by_job held_up_jobs() const override { return held_up; }
    task<cluster::node_log> ask_nodes(job_ptr, cluster::ask_node_log what) override {
        asked.push_back(what);
        return answer(this);
    }
    static task<cluster::node_log> answer(fake_head* self) { co_return self->on_nodes; }
};

struct world {
    sim::loop loop{9};
    fake_head head;
    parts::head_memory memory{loop}; // without a log: what is kept is kept at once
    parts::left_attempts given_up;
    parts::job_book jobs{loop, memory, given_up, head};
};

job_request request(std::string id) {
    job_request out;
    out.id = std::move(id);
    out.command = {"/bin/true"};
    out.demand = "cpu=1";
    return out;
}

std::vector<cluster::printed_lines> lines(std::uint64_t first, std::vector<std::string> texts) {
    cluster::printed_lines out;
    out.lease = parts::entry_lease;
    out.first = first;
    for (auto& text : texts) out.lines.emplace_back().text = std::move(text);
    return {std::move(out)};
}

void run(world& w, std::function<task<void>(world&)> work) {
    auto body = [](world* in, std::function<task<void>(world&)> does) -> task<void> {
        auto doing = does(*in);
        co_await doing;
    };
    w.loop.run(body(&w, std::move(work)));
}

TEST_CASE("jobs are listed with the newest first, under ids that are chosen or drawn",
          "[cluster][jobs]") {
    world w;
    const auto first = w.jobs.add(request("one"), {});
    const auto drawn = w.jobs.add(request(""), {});
    CHECK(drawn->what.id.starts_with("job_"));
    CHECK(w.jobs.find("one") == first);
    CHECK(w.jobs.find("two") == nullptr);
    CHECK_THROWS_WITH(w.jobs.called("two"), ContainsSubstring("no job \"two\""));
    CHECK_THROWS_WITH(w.jobs.add(request("one"), {}), ContainsSubstring("already"));
    CHECK_THROWS(w.jobs.add(request("../x"), {}));
    auto list = w.jobs.list({}, 10);
    REQUIRE(list.jobs.size() == 2);
    CHECK(list.jobs[0].id == drawn->what.id);
    CHECK(list.total == 2);
    cluster::submit_job again;
    again.what = request("one");
    CHECK(w.jobs.same(again) == nullptr);
    again.again = true;
    CHECK(w.jobs.same(again) == first);
    again.what.demand = "cpu=2";
    CHECK(w.jobs.same(again) == nullptr); // another one of this name
}

TEST_CASE("what a job waits for is asked of the head", "[cluster][jobs]") {
    world w;
    const auto job = w.jobs.add(request("one"), {});
    w.head.pending = "no node has 1 cpu";
    CHECK(w.jobs.info_of(*job).reason == "no node has 1 cpu");
    w.jobs.change(*job, job_state::running, "");
    CHECK(w.jobs.info_of(*job).reason.empty());
    w.head.held_up["one"] = "app waits for cpu=1";
    CHECK(w.jobs.info_of(*job).reason == "app waits for cpu=1");
    w.head.silence = "node n1 is silent";
    CHECK(w.jobs.info_of(*job).reason == "node n1 is silent");
    CHECK(w.jobs.list({}, 10).jobs.front().reason == "node n1 is silent");
}

TEST_CASE("an end is shown when it is kept, and a job that has ended can be forgotten",
          "[cluster][jobs]") {
    world w;
    run(w, [](world& in) -> task<void> {
        const auto job = in.jobs.add(request("one"), {});
        in.jobs.change(*job, job_state::running, "");
        CHECK(job->shown == job_state::running);
        const auto before = in.jobs.changes();
        in.jobs.change(*job, job_state::succeeded, "");
        in.jobs.note(*job);
        CHECK(in.jobs.changes() > before);
        CHECK(job->shown == job_state::running);
        CHECK(in.jobs.info_of(*job).reason == "it has just ended");
        CHECK_THROWS(in.jobs.forget("one"));
        auto showing = in.jobs.show_end(job);
        co_await showing;
        CHECK(job->shown == job_state::succeeded);
        in.jobs.forget("one");
        CHECK(in.jobs.all().empty());
        CHECK_THROWS_WITH(in.jobs.add(request("one"), {}), ContainsSubstring("was forgotten"));
    });
}

TEST_CASE("lines of a job have numbers, whatever was lost or came twice", "[cluster][jobs]") {
    world w;
    const auto job = w.jobs.add(request("one"), {});
    w.jobs.keep_lines(*job, lines(1, {"a", "b"}));
    w.jobs.keep_lines(*job, lines(2, {"b", "c"})); // again over another link
    w.jobs.keep_lines(*job, lines(6, {"f"}));      // two were left out
    CHECK(job->said.total() == 6);
    CHECK(job->said.left_out() == 2);
    auto said = w.jobs.lines_of(*job, 1);
    REQUIRE(said.lines.size() == 3);
    CHECK(said.lines[2].text == "c");
    CHECK_FALSE(said.is_all);
    said = w.jobs.lines_of(*job, 4);
    CHECK(said.first == 6);
}

TEST_CASE("lines that are not kept here are asked for on nodes", "[cluster][jobs]") {
    world w;
    run(w, [](world& in) -> task<void> {
        const auto job = in.jobs.add(request("one"), {});
        job->attempt = 1;
        job->begins[1] = 1;
        in.jobs.keep_lines(*job, lines(3, {"c"}));
        in.head.on_nodes.first = 1;
        for (const auto* text : {"a", "b", "c again"})
            in.head.on_nodes.lines.emplace_back().text = text;
        cluster::ask_log asked;
        asked.id = "one";
        auto reading = in.jobs.read_log(asked);
        const auto log = co_await reading;
        REQUIRE(in.head.asked.size() == 1);
        CHECK(in.head.asked[0].from == 1);
        REQUIRE(log.lines.size() == 2); // the third is kept here
        CHECK(log.lines[1].text == "b");
        asked.from = 3;
        auto rest = in.jobs.read_log(asked);
        const auto here = co_await rest;
        CHECK(in.head.asked.size() == 1);
        REQUIRE(here.lines.size() == 1);
        CHECK(here.lines[0].text == "c");
        CHECK(here.is_all);
    });
}

TEST_CASE("a table that is begun anew is another edition", "[cluster][jobs]") {
    world w;
    const auto job = w.jobs.add(request("one"), {});
    const auto rows = [](std::uint64_t offset, const std::string& text) {
        cluster::job_rows out;
        out.folder = "/runs/a";
        out.run = "a";
        out.offset = offset;
        const auto bytes = as_bytes(text);
        out.bytes.assign(bytes.begin(), bytes.end());
        return out;
    };
    w.jobs.keep_rows(*job, rows(0, "step,loss\n"));
    w.jobs.keep_rows(*job, rows(10, "1,0.5\n"));
    w.jobs.keep_rows(*job, rows(99, "of a place that is not there"));
    CHECK(job->rows == "step,loss\n1,0.5\n");
    CHECK(job->rows_edition == 1);
    w.jobs.keep_rows(*job, rows(0, "step,loss\n"));
    CHECK(job->rows_edition == 2);
    CHECK(job->rows == "step,loss\n");
}

TEST_CASE("the log has what the next head needs of a job", "[cluster][jobs]") {
    world w;
    const auto job = w.jobs.add(request("one"), {});
    job->attempt = 2;
    w.jobs.keep_lines(*job, lines(1, {"a"}));
    w.jobs.change(*job, job_state::failed, "it ran into a wall");
    w.jobs.note(*job);
    const auto known = parts::job_of_record(w.memory.jobs().at("one"));
    CHECK(known->state == job_state::failed);
    CHECK(known->reason == "it ran into a wall");
    CHECK(known->attempt == 2);
    CHECK(known->said.total() == 1);
    world next;
    next.jobs.restore(known);
    CHECK(next.jobs.add(request("two"), {})->number == known->number + 1);
}

} // namespace job_book_test
