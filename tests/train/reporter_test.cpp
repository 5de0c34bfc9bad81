// SPDX-License-Identifier: Apache-2.0
#include <skein/core/this_process.hpp>
#include <skein/train/reporter.hpp>
#include <skein/wire/json.hpp>

#include <tests/support/temporary_folder.hpp>

#include <catch2/catch_test_macros.hpp>

#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <tuple>
#include <utility>

#include <unistd.h>

using namespace skein;
using namespace skein::report;
using namespace skein::train;

namespace {

using folder = test::temporary_folder;

context attempt_of(const std::string& job, int attempt, const std::string& why = {}) {
    return context({.rank = 0,
                    .world_size = 1,
                    .local_rank = 0,
                    .local_size = 1,
                    .attempt = attempt,
                    .last_failure = why,
                    .host = "h",
                    .job_id = job},
                   nullptr, nullptr);
}

run_config config_in(const folder& where) {
    run_config c;
    c.runs_dir = where.path;
    c.output = output_mode::quiet;
    return c;
}

step_info row(std::uint64_t step, const std::vector<metric_value>& metrics) {
    return {.rank = 0,
            .step = step,
            .loss = metrics[0].value,
            .lr = 0.1,
            .grad_norm = 1,
            .seconds = 0.5,
            .tokens_per_s = 100,
            .metrics = &metrics};
}

} // namespace

TEST_CASE("rows, evaluation and settings reach the run's files") {
    folder where;
    const auto config = config_in(where);
    const auto ctx = context::single();
    reporter report(ctx, config, settings{{"dim", 64}});
    report.begin({.total_steps = 2});
    const std::vector<metric_value> one{{"loss", 2.5}}, two{{"loss", 1.5}};
    report.step(row(1, one), {});
    report.step(row(2, two), {{"val_loss", 1.75}});
    report.finish({});
    CHECK(where.text("run/metrics.csv") == "step,loss,val_loss\n1,2.5,\n2,1.5,1.75\n");
    CHECK(where.text("run/config.json").find("\"dim\": 64") != std::string::npos);
    CHECK(where.text("run/loss.svg").find("<svg") != std::string::npos);
}

TEST_CASE("the configuration on disk has the settings of processes, checkpoints and failures") {
    folder where;
    auto config = config_in(where);
    config.scaling.workers = 3;
    config.checkpoint = {.every = 7,
                         .keep_best = {.k = 2, .metric = "val_f1", .order = metric_order::highest},
                         .on_stop = false};
    config.failure.backoff = std::chrono::milliseconds(1500);
    const auto ctx = context::single();
    const reporter report(ctx, config, {});
    const auto told = parse_json(where.text("run/config.json")).value();
    CHECK(told["scaling"] ==
          parse_json(R"({"workers": 3, "threads": 1, "gpus": 0.0, "logical_shards": 0})").value());
    CHECK(told["checkpoint"] == parse_json(R"({
        "enabled": true, "every": 7, "keep_last": 2, "on_stop": false,
        "keep_best": {"k": 2, "metric": "val_f1", "order": "highest",
                      "value": "evaluated"}})")
                                    .value());
    CHECK(told["failure"] == parse_json(R"({"max_failures": 3, "backoff_s": 1.5,
        "collective_timeout_s": 300.0, "silence_s": 0.0, "stop_grace_s": 300.0})")
                                 .value());
}

TEST_CASE("a resumed run drops the rows after its checkpoint") {
    folder where;
    auto config = config_in(where);
    const auto ctx = context::single();
    const std::vector<metric_value> m{{"loss", 2.5}};
    {
        reporter report(ctx, config, {});
        report.begin({.total_steps = 5});
        for (std::uint64_t s = 1; s <= 3; ++s) report.step(row(s, m), {});
    }
    config.resume = resume_mode::latest;
    reporter report(ctx, config, {});
    report.begin({.first_step = 2, .total_steps = 5, .resumed_from = "somewhere"});
    CHECK(where.text("run/metrics.csv") == "step,loss\n1,2.5\n2,2.5\n");
}

TEST_CASE("a taken name gets a number, and each job's restart finds its own folder") {
    folder where;
    const auto config = config_in(where);
    const auto a0 = attempt_of("a", 0), b0 = attempt_of("b", 0), a1 = attempt_of("a", 1),
               b1 = attempt_of("b", 1), c1 = attempt_of("c", 1);
    CHECK(reporter(a0, config, {}).name() == "run");
    CHECK(reporter(b0, config, {}).name() == "run.2");
    CHECK(reporter(a1, config, {}).name() == "run");
    CHECK(reporter(b1, config, {}).name() == "run.2");
    CHECK(reporter(c1, config, {}).name() == "run.3"); // its first attempt came to nothing
}

TEST_CASE(
    "without a job id of its own a restart finds the folder that the same launcher's job made") {
    folder where;
    const auto config = config_in(where);
    const auto yesterday = attempt_of("another", 0);
    CHECK(reporter(yesterday, config, {}).name() == "run");
    for (const char* none : {"", "none"}) { // torchrun's default is "none", for every job
        const auto first = attempt_of(none, 0), again = attempt_of(none, 1);
        const auto name = reporter(first, config, {}).name();
        CHECK(name != "run");
        if (std::string(none).empty()) CHECK(reporter(again, config, {}).name() == name);
    }
}

TEST_CASE("a restart looks into other runs without writing there") {
    folder where;
    const auto config = config_in(where);
    const auto other = attempt_of("other", 0), mine = attempt_of("mine", 1);
    CHECK(reporter(other, config, {}).name() == "run");
    const auto before = where.text("run/config.json");
    const auto list = [&] {
        std::vector<std::string> names;
        for (const auto& e : std::filesystem::directory_iterator(where.path + "/run"))
            names.push_back(e.path().filename());
        return names;
    };
    const auto files = list();
    CHECK(reporter(mine, config, {}).name() == "run.2");
    CHECK(where.text("run/config.json") == before);
    CHECK(list() == files);
}

TEST_CASE("the configuration on disk has the name that is in use") {
    folder where;
    const auto config = config_in(where);
    const auto a = attempt_of("a", 0), b = attempt_of("b", 0);
    reporter first(a, config, {}), second(b, config, {});
    CHECK(where.text("run/config.json").find("\"name\": \"run\"") != std::string::npos);
    CHECK(where.text("run.2/config.json").find("\"name\": \"run.2\"") != std::string::npos);
}

TEST_CASE("the parts of a run's time and the rest add up to 100 %") {
    using shares = std::array<int, 6>;
    CHECK(skein::train::detail::whole_shares({1.0, 2.0, 3.0, 0.5, 0.5}, 10.0) ==
          shares{10, 20, 30, 5, 5, 30});
    CHECK(skein::train::detail::whole_shares({0, 0, 0, 0, 0}, 2.0) == shares{0, 0, 0, 0, 0, 100});
    for (int i = 1; i < 200; ++i) { // whatever is rounded
        const double part = i / 1000.0;
        const auto all = skein::train::detail::whole_shares({part, part, part, part, part}, 1.0);
        int sum = 0;
        for (const int each : all) sum += each;
        CHECK(sum == 100);
    }
}

TEST_CASE("samples per second are not called tokens per second") {
    folder where;
    auto config = config_in(where);
    const auto ctx = context::single();
    const std::vector<metric_value> m{{"loss", 2.5}};
    for (const std::int64_t tokens : {0, 32}) {
        config.tokens_per_sample = tokens;
        config.name = tokens == 0 ? "samples" : "tokens";
        reporter report(ctx, config, {});
        report.begin({.total_steps = 1});
        report.step(row(1, m), {});
        CHECK(where.text(config.name + "/metrics.jsonl").find(config.name + "_per_s") !=
              std::string::npos);
        CHECK(summarize(ctx, config, {}).samples == (tokens == 0));
    }
}

TEST_CASE("rows say what the run has cost so far: also over its starts, and what they threw away") {
    folder where;
    auto config = config_in(where);
    const auto ctx = context::single();
    const std::vector<metric_value> m{{"loss", 2.5}};
    const auto rows = [&] { return read_costs(where.path + "/run", "loss").rows; };
    {
        reporter report(ctx, config, {});
        report.begin({.total_steps = 3});
        report.step(row(1, m), {});
        report.step(row(2, m), {});
    }
    const auto first = rows();
    REQUIRE(first.size() == 2);
    CHECK(first[0].workers == 1);
    CHECK(first[0].spent.seconds > 0.0);
    CHECK(first[1].spent.seconds > first[0].spent.seconds);
    CHECK(first[1].spent.worker_seconds == first[1].spent.seconds); // of one worker
    CHECK(first[1].spent.by_kind.empty());
    CHECK(where.text("run/metrics.csv") == "step,loss\n1,2.5\n2,2.5\n");
    config.resume = resume_mode::latest;
    ::setenv("SKEIN_WORKER_KIND", "spot", 1);
    {
        reporter report(ctx, config, {});
        report.begin({.first_step = 1, .total_steps = 3}); // step 2 is lost, and was paid for
        report.step(row(2, m), {});
    }
    const auto second = rows();
    REQUIRE(second.size() == 2);
    CHECK(second[0] == first[0]);
    CHECK(second[1].spent.seconds > first[1].spent.seconds);
    const double since = second[1].spent.seconds - first[1].spent.seconds;
    CHECK(std::abs(second[1].spent.by_kind.at("spot") - since) < 1e-9);
    ::setenv("SKEIN_WORKER_KIND", "spot 2", 1);
    try {
        reporter refused(ctx, config, {});
        FAIL("a kind that is none");
    } catch (const error& why) {
        CHECK(why.code() == errc::usage);
        CHECK(std::string(why.what()).find("SKEIN_WORKER_KIND is 'spot 2'") != std::string::npos);
    }
    ::unsetenv("SKEIN_WORKER_KIND");
}

TEST_CASE(
    "the time in which a job is started again is paid for, that until a person resumes is not") {
    const std::vector<metric_value> m{{"loss", 2.5}};
    const auto seconds_of = [&](int attempt, double ago) {
        folder where;
        auto config = config_in(where);
        const auto first = attempt_of("job", 0), next = attempt_of("job", attempt);
        {
            reporter report(first, config, {});
            report.begin({.total_steps = 3});
            report.step(row(1, m), {});
        }
        auto text = where.text("run/metrics.jsonl"); // so long ago
        auto it = parse_json(std::string_view(text).substr(0, text.size() - 1)).value();
        it["unix_s"] = it["unix_s"].get<double>() - ago;
        const double before = it["run_s"];
        std::ofstream(where.path + "/run/metrics.jsonl") << dump_json(it) << "\n";
        config.resume = resume_mode::latest;
        reporter report(next, config, {});
        report.begin({.first_step = 1, .total_steps = 3});
        report.step(row(2, m), {});
        return read_costs(where.path + "/run", "loss").rows.back().spent.seconds - before;
    };
    CHECK(seconds_of(1, 100.0) >= 100.0);
    CHECK(seconds_of(1, 100.0) < 400.0);
    CHECK(seconds_of(0, 1e6) < 300.0);
    CHECK(seconds_of(1, 1e6) < 900.0); // nobody has waited for it so long
    CHECK(seconds_of(1, 1e6) >= 600.0);
    CHECK(seconds_of(1, -1e6) < 300.0); // a clock that has gone back
}

TEST_CASE("workers are listed by process, and by host when there are several") {
    const auto text = [](std::vector<std::string_view> ranks) {
        std::vector<byte_buffer> all;
        for (const auto r : ranks)
            all.push_back(byte_buffer(as_bytes(r).begin(), as_bytes(r).end()));
        return places_text(all);
    };
    CHECK(text({"7 "}) == "pid 7");
    CHECK(text({"7 a", "8 a"}) == "pid 7 8");
    CHECK(text({"7 a", "8 a", "9 b"}) == "pid 7 8 on a, 9 on b");
    CHECK(text(std::vector<std::string_view>(17, "1 a")) ==
          "pid 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 ...");
}

TEST_CASE("a run says beside its table how far it has come, and why it stopped") {
    folder where;
    auto config = config_in(where);
    config.epochs = 3;
    config.tokens_per_sample = 8;
    const auto ctx = context::single();
    reporter report(ctx, config, {});
    const auto told = [&] {
        return parse_json(std::string_view(where.text("run/progress.json"))).value();
    };
    report.begin({.first_step = 4, .total_steps = 90});
    CHECK(told() == json{{"format", "skein-progress-1"},
                         {"step", 4},
                         {"steps", 90},
                         {"epoch", 0},
                         {"epochs", 3},
                         {"workers", 1},
                         {"is_over", false},
                         {"stopped_by", ""}});
    const std::vector<metric_value> m{{"loss", 2.5}};
    auto made = row(5, m);
    made.epoch = 1;
    report.step(made, {});
    fit_result ended;
    ended.steps = 5;
    ended.stopped = true;
    ended.stop_reason = "early stopping: val_loss has not improved in 3 evaluations";
    report.finish(ended);
    CHECK(told() == json{{"format", "skein-progress-1"},
                         {"step", 5},
                         {"steps", 90},
                         {"epoch", 1},
                         {"epochs", 3},
                         {"workers", 1},
                         {"tokens_per_s", 100.0},
                         {"is_over", true},
                         {"stopped_by", ended.stop_reason}});
    CHECK(where.text("run/metrics.csv") == "step,loss\n5,2.5\n"); // nothing of it is a column
}

TEST_CASE("a run that was started again says beside its table how often, and why") {
    folder where;
    const auto config = config_in(where);
    const auto ctx = attempt_of("a", 2, "worker 1 was killed" + std::string(2000, '!'));
    reporter report(ctx, config, {});
    report.begin({.first_step = 4, .total_steps = 90});
    const auto told = parse_json(std::string_view(where.text("run/progress.json"))).value();
    CHECK(told.at("worlds") == 3);
    CHECK(told.at("last_change").get<std::string>() == ctx.last_failure().substr(0, 1024));
}

TEST_CASE("a run without files and checkpoints leaves no folder") {
    folder where;
    auto config = config_in(where);
    config.write_files = config.checkpoint.enabled = false;
    const auto ctx = context::single();
    reporter report(ctx, config, {});
    report.begin({.total_steps = 1});
    const std::vector<metric_value> m{{"loss", 2.5}};
    report.step(row(1, m), {});
    report.finish({});
    CHECK(report.path().empty());
    CHECK(std::filesystem::is_empty(where.path));
}

TEST_CASE("the last screen names folders that are there where the program was started") {
    const folder elsewhere;
    const auto start = std::filesystem::current_path();
    const auto ctx = attempt_of("a", 0);
    fit_result result;
    result.run_path = "runs/run";
    result.checkpoint = "runs/run/checkpoints/step-00000005";
    CHECK(summarize(ctx, {}, result).path == "runs/run");
    std::filesystem::current_path(elsewhere.path); // as main() may do before it trains
    const auto s = summarize(ctx, {}, result);
    const auto here = std::filesystem::current_path().string();
    result.run_path = "/data/runs/run";
    const auto whole = summarize(ctx, {}, result);
    std::filesystem::current_path(start);
    CHECK(s.path == here + "/runs/run");
    CHECK(s.checkpoint == here + "/runs/run/checkpoints/step-00000005");
    CHECK(whole.path == "/data/runs/run");
    CHECK(summary_text(s).find("tensorboard --logdir " + here + "/runs/run\n") !=
          std::string::npos);
}

TEST_CASE("the summary takes over what fit() returned") {
    const auto ctx = attempt_of("a", 2);
    run_config config;
    config.command = "./train";
    fit_result result;
    result.steps = 5;
    result.loss = 1.5;
    result.val_loss = 1.75;
    result.run_name = "run.2";
    result.stopped = true;
    const auto s = summarize(ctx, config, result);
    CHECK(s.name == "run.2");
    CHECK(s.restarts == 2);
    CHECK(s.total == 1000);
    CHECK(*find_metric(s.results, "val_loss") == 1.75);
    CHECK(s.stopped == "on request");
    CHECK(s.command == "./train");
    CHECK(s.resume_flag == "--resume");
    result.stop_signal = SIGINT;
    CHECK(summarize(ctx, config, result).stopped == "by SIGINT");
    result.stop_signal = SIGTERM;
    CHECK(summarize(ctx, config, result).stopped == "by SIGTERM");
    config.command.clear(); // a program that says nothing about its flags
    const auto unknown = summarize(ctx, config, result);
    CHECK(unknown.command.find("skein_train_tests") != std::string::npos);
    CHECK(unknown.resume_flag.empty());
    CHECK(unknown.steps_flag.empty());
}

TEST_CASE("a run by epochs ends with a command without a flag for steps, unless one is named") {
    const auto ctx = context::single();
    run_config config;
    config.command = "./train --epochs 2";
    config.epochs = 2;
    fit_result result;
    result.steps = result.total = 8;
    CHECK(next_command(summarize(ctx, config, result)) == "./train --epochs 2 --resume");
    config.steps_flag = "--epochs";
    CHECK(next_command(summarize(ctx, config, result)) == "./train --epochs 4 --resume");
    config.epochs = 0;
    config.steps_flag.reset();
    CHECK(next_command(summarize(ctx, config, result)) == "./train --epochs 2 --steps 16 --resume");
}

namespace {

/// What is written to stdout and stderr meanwhile.
std::pair<std::string, std::string> printed(const std::function<void()>& call) {
    std::pair<std::string, std::string> out;
    std::fflush(stdout);
    std::FILE* const files[] = {std::tmpfile(), std::tmpfile()};
    const int before[] = {::dup(1), ::dup(2)};
    for (int i = 0; i < 2; ++i) ::dup2(::fileno(files[i]), i + 1);
    call();
    std::fflush(stdout);
    for (int i = 0; i < 2; ++i) {
        ::dup2(before[i], i + 1);
        ::close(before[i]);
        std::rewind(files[i]);
        char text[4096];
        const auto n = std::fread(text, 1, sizeof text, files[i]);
        (i == 0 ? out.first : out.second).assign(text, n);
        std::fclose(files[i]);
    }
    return out;
}

} // namespace

TEST_CASE("a run in a relative folder is told as it was typed, and is that folder for good") {
    if (has_left_start_folder()) SKIP("another test has gone to another folder");
    auto config = run_config{};
    config.runs_dir = "skein-reporter-test";
    config.output = output_mode::plain;
    const auto ctx = context::single();
    const auto start = std::filesystem::current_path();
    std::string told;
    {
        reporter first(ctx, config, {});
        reporter second(ctx, config, {}); // the first one's name is taken
        told = printed([&] { second.begin({.total_steps = 5}); }).second;
        CHECK(first.path() == (start / "skein-reporter-test/run").string());
    }
    std::filesystem::remove_all("skein-reporter-test");
    INFO(told);
    CHECK(told.find("files in skein-reporter-test/run.2") != std::string::npos);
    CHECK(told.find("skein-reporter-test/run exists: this run is skein-reporter-test/run.2 ") !=
          std::string::npos);
    CHECK(told.find(start.string()) == std::string::npos);
}

TEST_CASE("settings that differ from the run's earlier ones are told with both values") {
    folder where;
    auto run = run_dir::create(where.path, "run");
    CHECK(changed_settings(run, settings{{"dim", 64}}).empty()); // nothing to compare with
    run.write_config(R"({"settings": {"text": "a", "heads": 2, "lr": 0.5}})");
    CHECK(changed_settings(run, settings{{"text", "a"}, {"heads", 2}, {"more", 1}}).empty());
    CHECK(changed_settings(run, settings{{"text", "b"}, {"heads", 4}, {"lr", 0.5}}) ==
          "heads: 2 -> 4, text: \"a\" -> \"b\"");
    std::ofstream(where.path + "/run/config.json") << "{"; // damaged: no reason to refuse a run
    CHECK(changed_settings(run, settings{{"text", "b"}}).empty());
}

TEST_CASE("all that steers a run is told with both values when it goes on with another") {
    folder where;
    auto config = config_in(where);
    config.output = output_mode::plain;
    config.global_batch = 8;
    const auto ctx = context::single();
    {
        reporter first(ctx, config, settings{{"dim", 64}});
        (void)printed([&] { first.begin({.total_steps = 5}); });
    }
    config.resume = resume_mode::latest;
    const auto told = [&](const run_config& now) {
        reporter next(ctx, now, settings{{"dim", 64}});
        return printed(
                   [&] { next.begin({.first_step = 2, .total_steps = 9, .resumed_from = "x"}); })
            .second;
    };
    auto other = config;
    other.max_steps = 9000; // longer, elsewhere, and with other things kept: without a word
    other.scaling.workers = 3;
    other.checkpoint.every = 7;
    CHECK(told(other).find("other settings") == std::string::npos);
    const std::pair<std::function<void(run_config&)>, const char*> steering[] = {
        {[](run_config& c) { c.global_batch = 16; }, "global_batch: 8 -> 16"},
        {[](run_config& c) { c.accumulation = 2; }, "accumulation: 1 -> 2"},
        {[](run_config& c) { c.clip = 0.5; }, "clip: 1.0 -> 0.5"},
        {[](run_config& c) { c.clip_value = 2; }, "clip_value: 0.0 -> 2.0"},
        {[](run_config& c) { c.last = last_batch::carry; }, "last_batch: \"drop\" -> \"carry\""},
        {[](run_config& c) { c.precision = "bf16"; }, "precision: \"float32\" -> \"bf16\""},
        {[](run_config& c) { c.eval_every += 3; }, "eval_every: "},
        {[](run_config& c) { c.eval_samples = 3; }, "eval_samples: 0 -> 3"},
        {[](run_config& c) { c.scaling.threads = 2; }, "scaling.threads: 1 -> 2"},
        {[](run_config& c) { c.checkpoint.keep_best.metric = "val_f1"; },
         "checkpoint.keep_best.metric: \"val_loss\" -> \"val_f1\""},
    };
    for (const auto& [change, words] : steering) {
        auto now = config;
        change(now);
        INFO(words);
        CHECK(told(now).find(std::string("other settings: ") + words) != std::string::npos);
        (void)told(config); // back
    }
}

TEST_CASE("config.json of a run that is there changes only when it is known to go on") {
    folder where;
    auto config = config_in(where);
    const auto ctx = context::single();
    {
        reporter first(ctx, config, settings{{"dim", 64}});
        first.begin({.total_steps = 5});
    }
    const auto before = where.text("run/config.json");
    config.resume = resume_mode::latest;
    {
        reporter refused(ctx, config, settings{{"dim", 128}}); // no begin(): it was refused
    }
    CHECK(where.text("run/config.json") == before);
    reporter goes_on(ctx, config, settings{{"dim", 128}});
    goes_on.begin({.total_steps = 5, .resumed_from = "somewhere"});
    CHECK(where.text("run/config.json").find("\"dim\": 128") != std::string::npos);
}

TEST_CASE("the command that goes on with a run whose name was taken names the run in use") {
    const auto ctx = context::single();
    run_config config;
    config.name = "gpt";
    config.command = "./train --run gpt";
    fit_result result;
    result.run_name = "gpt.2";
    result.steps = 10;
    auto s = summarize(ctx, config, result);
    CHECK(next_command(s) == "./train --run gpt.2 --resume");
}

TEST_CASE(
    "the last screen comes when the context ends, unless the program prints its own or is quiet") {
    run_config config;
    config.output = output_mode::plain;
    config.command = "./mine --name a";
    config.resume_flag = "--again";
    config.steps_flag = "";
    fit_result result;
    result.steps = 1000;
    result.run_name = "run";
    const test::temporary_folder folder; // where its result.json goes
    result.run_path = folder.path;
    result.checkpoint = folder.path + "/checkpoints/step-00001000";
    auto [out, err] = printed([&] {
        auto ctx = context::single();
        leave_screen(ctx, config, result);
        std::printf("mine\n");
    });
    CHECK(out == "mine\n");
    CHECK(err.find("run finished") != std::string::npos);
    CHECK(err.find("./mine --name a --again\n") !=
          std::string::npos); // its own flag, and no --steps

    config.command.clear(); // flags that nobody knows: the command line as it was
    std::tie(out, err) = printed([&] {
        auto ctx = context::single();
        leave_screen(ctx, config, result);
    });
    CHECK(err.find("skein_train_tests") != std::string::npos);
    CHECK(err.find("resume_mode::latest") != std::string::npos);

    result.stopped = true;
    result.stop_reason = "early stopping: val_loss has not improved in 2 evaluations";
    std::tie(out, err) = printed([&] {
        auto ctx = context::single();
        leave_screen(ctx, config, result); // of a fit() before, whose screen is not the program's
        leave_screen(ctx, config, result);
        CHECK(summarize(ctx, config, result).stopped == "by " + result.stop_reason);
    });
    CHECK(err.find("run stopped by early stopping: val_loss") != std::string::npos);
    CHECK(err.find("run stopped", err.find("run stopped") + 1) == std::string::npos);

    config.output = output_mode::json;
    std::tie(out, err) = printed([&] {
        auto ctx = context::single();
        leave_screen(ctx, config, result);
    });
    CHECK(err.empty());
    CHECK(out.starts_with("{\"event\":\"summary\""));
    CHECK(out.ends_with("}\n"));

    config.output = output_mode::quiet;
    std::tie(out, err) = printed([&] {
        auto ctx = context::single();
        leave_screen(ctx, config, result);
    });
    CHECK((out + err).empty());
}
