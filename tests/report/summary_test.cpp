// SPDX-License-Identifier: Apache-2.0
#include <skein/report/summary.hpp>
#include <skein/wire/json.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace skein::report;
using Catch::Matchers::ContainsSubstring;

namespace {

run_summary sample() {
    run_summary run;
    run.name = "gpt";
    run.path = "runs/gpt";
    run.steps = 2000;
    run.total = 2000;
    run.seconds = 372;
    run.tokens_per_s = 5230;
    run.peak_rss_bytes = 212e6;
    run.workers = 2;
    run.restarts = 1;
    run.results = {{"loss", 1.8312}, {"val_loss", 1.9051}};
    run.checkpoint = "runs/gpt/checkpoints/step-00002000";
    run.command = "./train --text corpus.txt";
    return run;
}

} // namespace

TEST_CASE("summaries: a long name of a number keeps its distance from the value") {
    run_summary run{.name = "digits", .steps = 10, .total = 10};
    run.results = {{"loss", 0.5}, {"val_accuracy", 0.8099}, {"val_epoch_average_precision", 0.25}};
    const auto text = summary_text(run);
    CHECK(text.find("val_accuracy                 0.8099") != std::string::npos);
    CHECK(text.find("val_epoch_average_precision  0.2500") != std::string::npos);
}

TEST_CASE("the summary says what came out, where it is and what to type next") {
    CHECK(summary_text(sample()) == R"(
gpt finished

  steps       2000 of 2000 in 06:12
  speed       5.23k tokens/s, 2 workers, at most 212 MB each
  failures    1 restart from a checkpoint
  loss        1.8312
  val_loss    1.9051
  folder      runs/gpt
  checkpoint  runs/gpt/checkpoints/step-00002000

next
  ./train --text corpus.txt --steps 4000 --resume
      train on from the last checkpoint
  tensorboard --logdir runs/gpt
      curves in the browser
  xdg-open runs/gpt/loss.svg
      the loss curve
)");
}

TEST_CASE("a run that ended early says why and how to go on") {
    auto run = sample();
    run.steps = 120;
    run.stopped = "by SIGINT";
    run.restarts = 0;
    run.command = "./train --resume";
    const auto text = summary_text(run);
    CHECK_THAT(text,
               ContainsSubstring("gpt stopped by SIGINT") && ContainsSubstring("120 of 2000") &&
                   ContainsSubstring("  ./train --resume\n      go on from the last checkpoint") &&
                   !ContainsSubstring("--resume --resume") && !ContainsSubstring("failures"));
    run.checkpoint.clear();
    CHECK_THAT(summary_text(run),
               !ContainsSubstring("--resume") && !ContainsSubstring("checkpoint"));
}

TEST_CASE("the next command has twice the steps in place of those it had") {
    auto run = sample();
    const auto next = [&](const char* command) {
        run.command = command;
        return next_command(run);
    };
    CHECK(next("./t") == "./t --steps 4000 --resume");
    CHECK(next("./t --steps 2000 --resume --x") == "./t --steps 4000 --resume --x");
    CHECK(next("./t --steps=2000") == "./t --steps=4000 --resume");
    CHECK(next("./t --steps-per-epoch 3") == "./t --steps-per-epoch 3 --steps 4000 --resume");
    run.steps = 120;
    CHECK(next("./t --steps 2000") == "./t --steps 2000 --resume");
    run.resume_flag = run.steps_flag = "";
    CHECK(next("./t") == "./t");
    CHECK_THAT(summary_text(run), ContainsSubstring("resume_mode::latest"));
    run.launcher = "openmpi";
    CHECK_THAT(summary_text(run), ContainsSubstring("\n  under the same launcher: ./t\n"));
}

TEST_CASE("the next command of a run by epochs has twice the epochs, or no number at all") {
    auto run = sample();
    run.epochs = 4;
    run.command = "./t --epochs 4";
    run.steps_flag = "--epochs";
    CHECK(next_command(run) == "./t --epochs 8 --resume");
    run.steps_flag = "";
    CHECK(next_command(run) == "./t --epochs 4 --resume");
    CHECK_THAT(summary_text(run), ContainsSubstring("train on from the last checkpoint, with more "
                                                    "epochs"));
}

TEST_CASE("the next command of a run whose name was taken names the run that there is") {
    auto run = sample();
    run.name = "gpt.2";
    run.asked = "gpt";
    const auto next = [&](const char* command) {
        run.command = command;
        return next_command(run);
    };
    CHECK(next("./t") == "./t --steps 4000 --run gpt.2 --resume");
    CHECK(next("./t --run gpt --x") == "./t --run gpt.2 --x --steps 4000 --resume");
    CHECK(next("./t --run=gpt --steps=10") == "./t --run=gpt.2 --steps=4000 --resume");
    CHECK(next("./t --run 'my gpt' --text \"a --run b\"") ==
          "./t --run gpt.2 --text \"a --run b\" --steps 4000 --resume");
    run.name = "my gpt.2";
    CHECK(next("./t --run 'my gpt'") == "./t --run 'my gpt.2' --steps 4000 --resume");
    run.asked = run.name; // the name was free
    CHECK(next("./t") == "./t --steps 4000 --resume");
}

TEST_CASE("numbers of the summary say which steps they are of") {
    auto run = sample();
    run.steps = 237;
    run.total = 600;
    run.first = 100;
    run.seconds = 49;
    run.val_step = 200;
    run.stopped = "by SIGTERM";
    CHECK_THAT(summary_text(run),
               ContainsSubstring("237 of 600, 137 of them since the restart in 00:49\n") &&
                   ContainsSubstring("val_loss    1.9051 (step 200)\n"));
    run.restarts = 0;
    CHECK_THAT(summary_text(run), ContainsSubstring("137 of them since the resume"));
    run.val_step = 237;
    CHECK_THAT(summary_text(run), !ContainsSubstring("(step"));
}

TEST_CASE("speed is in samples when tokens are unknown, and absent when no step was run") {
    auto run = sample();
    run.samples = true;
    CHECK_THAT(summary_text(run), ContainsSubstring("5.23k samples/s, 2 workers"));
    CHECK_THAT(summary_json(run),
               ContainsSubstring("\"samples_per_s\":") && !ContainsSubstring("tokens_per_s"));
    run.tokens_per_s.reset();
    CHECK_THAT(summary_text(run), !ContainsSubstring("speed") &&
                                      ContainsSubstring("world       2 workers, at most 212 MB"));
}

TEST_CASE("the summary as JSON carries the same numbers") {
    auto run = sample();
    run.texts = {{"sample", "to be\n"}};
    const auto j = skein::parse_json(summary_json(run)).value();
    CHECK(j["event"] == "summary");
    CHECK(j["steps"] == 2000);
    CHECK(j["results"]["val_loss"] == 1.9051);
    CHECK(j["checkpoint"] == "runs/gpt/checkpoints/step-00002000");
    CHECK_FALSE(j.contains("stopped"));
    CHECK(j["sample"] == "to be\n");
}
