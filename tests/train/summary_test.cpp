// SPDX-License-Identifier: Apache-2.0
#include <skein/train/summary.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace skein::train;
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
  ./train --text corpus.txt --resume
      train on from the last checkpoint (give more steps)
  tensorboard --logdir runs/gpt
      curves in the browser
  xdg-open runs/gpt/loss.svg
      the loss curve
)");
}

TEST_CASE("a run that ended early says why and how to go on") {
    auto run = sample();
    run.steps = 120;
    run.stopped = "interrupted";
    run.restarts = 0;
    run.command = "./train --resume";
    const auto text = summary_text(run);
    CHECK_THAT(text,
               ContainsSubstring("gpt stopped: interrupted") && ContainsSubstring("120 of 2000") &&
                   ContainsSubstring("  ./train --resume\n      go on from the last checkpoint") &&
                   !ContainsSubstring("--resume --resume") && !ContainsSubstring("failures"));
    run.checkpoint.clear();
    CHECK_THAT(summary_text(run),
               !ContainsSubstring("--resume") && !ContainsSubstring("checkpoint"));
}

TEST_CASE("the summary as JSON carries the same numbers") {
    const auto j = summary_json(sample());
    CHECK(j["event"] == "summary");
    CHECK(j["steps"] == 2000);
    CHECK(j["results"]["val_loss"] == 1.9051);
    CHECK(j["checkpoint"] == "runs/gpt/checkpoints/step-00002000");
    CHECK_FALSE(j.contains("stopped"));
}
