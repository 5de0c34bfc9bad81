// SPDX-License-Identifier: Apache-2.0
#include <skein/core/posix_disk.hpp>
#include <skein/train/checkpoint.hpp>
#include <skein/train/context.hpp>
#include <skein/train/run_result.hpp>
#include <skein/wire/json.hpp>

#include <support/temporary_folder.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

using namespace skein;
using namespace skein::train;
using Catch::Matchers::ContainsSubstring;

namespace {

/// A run of six steps with checkpoints after 2, 4 and 6; val_loss is best at 4.
run_note write_run(const std::string& root) {
    auto run = report::run_dir::create(root, "r");
    posix_disk disk;
    checkpointer saver(disk, run.checkpoints(), {.keep_last = 3});
    for (std::uint64_t step = 1; step <= 6; ++step) {
        report::metrics_row row{step, {{"loss", 1.0 / static_cast<double>(step)}}, {}};
        if (step % 2 == 0) row.values.push_back({"val_loss", step == 4 ? 0.25 : 0.5});
        run.append(row);
        if (step % 2 != 0) continue;
        checkpoint_state state;
        state.step = step;
        state.metrics["val_loss"] = row.values[1].value;
        (void)saver.save(state);
    }
    run_note note;
    note.name = run.name();
    note.path = run.path();
    note.best_metric = "val_loss";
    note.has_ended = true;
    note.steps = 6;
    note.seconds = 1.5;
    return note;
}

std::string what_of(const std::string& text) {
    try {
        (void)train::detail::result_of(text, "runs/r");
    } catch (const error& why) {
        return why.what();
    }
    return "read";
}

} // namespace

TEST_CASE("a run's folder tells its last and best numbers and its checkpoints") {
    const test::temporary_folder folder;
    auto note = write_run(folder.path);
    auto run = train::detail::finished_of(note);
    CHECK(run.name == "r");
    CHECK(run.steps == 6);
    CHECK(run.metric("loss") == 1.0 / 6);
    CHECK_FALSE(run.metric("accuracy"));
    CHECK(run.best == measured{"val_loss", 0.25, 4});
    CHECK(run.newest_checkpoint.ends_with("checkpoints/step-00000006"));
    CHECK(run.best_checkpoint.ends_with("checkpoints/step-00000004"));
    const auto history = run.history();
    CHECK(history.at("loss").size() == 6);
    CHECK(history.at("val_loss") ==
          std::vector<report::curve_point>{{2, 0.5}, {4, 0.25}, {6, 0.5}});

    note.best_is_lowest = false;
    CHECK(train::detail::finished_of(note).best == measured{"val_loss", 0.5, 2});
    note.best_metric = "accuracy"; // never measured
    CHECK_FALSE(train::detail::finished_of(note).best);
    CHECK(train::detail::finished_of(note).best_checkpoint.empty());
}

TEST_CASE("a run whose fit did not end tells the steps that its rows have") {
    const test::temporary_folder folder;
    auto note = write_run(folder.path);
    note.has_ended = false;
    note.steps = 0;
    CHECK(train::detail::finished_of(note).steps == 6);
}

TEST_CASE("a run without a folder tells what its fit() said, and has no history") {
    run_note note;
    note.has_ended = true;
    note.steps = 3;
    note.loss = 0.5;
    note.metrics.emplace_back("val_f1", 0.75);
    const auto run = train::detail::finished_of(note);
    CHECK(run.metric("loss") == 0.5);
    CHECK(run.metric("val_f1") == 0.75);
    CHECK_FALSE(run.metric("val_loss"));
    CHECK_THROWS_WITH(run.history(), ContainsSubstring("it wrote no folder"));
    train::detail::write_result(run); // nowhere
}

TEST_CASE("a result is read back as it was written, also where its folder has moved") {
    const test::temporary_folder folder;
    auto run = train::detail::finished_of(write_run(folder.path));
    run.world_size = 3;
    run.restarts = 2;
    run.worlds = 3;
    run.last_change = "worker 1 (pid 7) was killed by signal 9 (SIGKILL)";
    run.stopped_by = "SIGTERM";
    run.value_json = R"({"accuracy": 0.5, "name": "a \"b\""})";
    constexpr double infinite = std::numeric_limits<double>::infinity();
    const std::string names[] = {"val_top 5/accuracy", "val_say \"x\", y", "val_\u635f\u5931",
                                 "val_" + std::string(300, 'm')};
    for (const auto& name : names) run.metrics.push_back({name, 0.1, 6});
    run.metrics.push_back({"psnr", infinite, 6});
    run.metrics.push_back({"log_p", -infinite, 6});
    run.metrics.push_back({"ratio", std::numeric_limits<double>::quiet_NaN(), 6});
    run.failure = error(errc::io, "no digits").with_where("rank 1 of 3").with_hint("look");
    run.failed_rank = 1;
    train::detail::write_result(run);
    std::filesystem::rename(folder.path + "/r", folder.path + "/moved");

    const auto back = load_result(folder.path + "/moved");
    CHECK(back.path == folder.path + "/moved");
    CHECK(back.steps == 6);
    CHECK(back.seconds == 1.5);
    CHECK(back.world_size == 3);
    CHECK(back.restarts == 2);
    CHECK(back.worlds == 3);
    CHECK(back.last_change == run.last_change);
    CHECK(back.stopped_by == "SIGTERM");
    CHECK(back.best == run.best);
    CHECK(back.metric("loss") == 1.0 / 6);
    for (const auto& name : names) CHECK(back.metric(name) == 0.1);
    CHECK(back.metric("psnr") == infinite);
    CHECK(back.metric("log_p") == -infinite);
    CHECK(std::isnan(back.metric("ratio").value()));
    posix_disk disk; // and all of it is JSON, which has no words for the last three
    const auto text = disk.read_whole(folder.path + "/moved/result.json").value();
    CHECK(parse_json(text).has_value());
    CHECK(back.newest_checkpoint == folder.path + "/moved/checkpoints/step-00000006");
    CHECK(back.best_checkpoint == folder.path + "/moved/checkpoints/step-00000004");
    CHECK_THAT(back.value_json, ContainsSubstring("0.5"));
    REQUIRE_FALSE(back.ok());
    CHECK(back.error().code() == errc::io);
    CHECK(std::string(back.error().what()) == run.failure->what());
    CHECK(back.failed_rank == 1);
    CHECK(back.history().at("loss").size() == 6);
    CHECK(load_result(folder.path + "/moved/result.json").steps == 6);
}

TEST_CASE("what is no result says so") {
    const test::temporary_folder folder;
    CHECK_THROWS_WITH(load_result(folder.path), ContainsSubstring("result.json is not there") &&
                                                    ContainsSubstring("still at work"));
    const finished_run plain{.name = "r"};
    const auto text = train::detail::result_text(plain);
    CHECK(what_of(text) == "read");
    for (std::size_t length = 0; length < text.size(); ++length)
        CHECK_THAT(what_of(text.substr(0, length)),
                   ContainsSubstring("cut short after " + std::to_string(length) + " bytes"));
    CHECK_THAT(what_of("{\"name\": }\n"), ContainsSubstring("not JSON"));
    CHECK_THAT(what_of("{\"name\": 1}\n"), ContainsSubstring("not the result of a run"));
    auto newer = text;
    newer.replace(newer.find("result-1"), 8, "result-2");
    CHECK_THAT(what_of(newer), ContainsSubstring("not supported: format skein-result-2"));
    for (const auto* key : {"name", "steps", "seconds", "world_size", "restarts", "stopped_by",
                            "metrics", "best", "value", "error", "newest_checkpoint"}) {
        auto without = text;
        without.replace(without.find('"' + std::string(key) + '"') + 1, 1, "X");
        CHECK_THAT(what_of(without), ContainsSubstring(std::string("'") + key + "' is missing"));
    }
}

TEST_CASE("a result that failed throws its error where its value is asked for") {
    const run_result<int> good(finished_run{}, 3);
    CHECK(good.value() == 3);
    CHECK(good.ok());
    finished_run how;
    how.failure = error(errc::worker_lost, "gone");
    const run_result<int> bad(how);
    CHECK_THROWS_WITH(bad.value(), ContainsSubstring("gone"));
    CHECK_THROWS_WITH(run_result<void>(how).value(), ContainsSubstring("gone"));
    CHECK_NOTHROW(run_result<void>(finished_run{}).value());
}
