// SPDX-License-Identifier: Apache-2.0
#include <skein/report/run_dir.hpp>

#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/wire/json.hpp>

#include <support/no_free_descriptors.hpp>
#include <support/temporary_folder.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <thread>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace skein;
using namespace skein::report;
using Catch::Matchers::ContainsSubstring;

namespace {

std::string text_of(const std::string& path) {
    posix_disk disk;
    return skein::to_string(byte_span(disk.read_whole(path).value()));
}

metrics_row row(std::uint64_t step, double loss, double speed) {
    return {.step = step,
            .values = {{"loss", loss}, {"lr", 0.1}},
            .timings = {{"tokens_per_s", speed}}};
}

std::string events_name(const run_dir& run) {
    const auto entries = posix_disk().list(run.path()).value();
    for (auto& entry : entries)
        if (entry.name.starts_with("events.")) return entry.name;
    return {};
}

/// Steps [first, last] of a run whose numbers depend on the step only, an evaluation every 4.
void steps(run_dir& run, std::uint64_t first, std::uint64_t last, double speed) {
    for (auto step = first; step <= last; ++step) {
        auto r = row(step, 3.0 / static_cast<double>(step), speed);
        if (step % 4 == 0) r.values.push_back({"val_loss", 3.5 / static_cast<double>(step)});
        run.append(r);
    }
}

} // namespace

TEST_CASE("a run folder gets rows, events, configuration and a curve") {
    test::temporary_folder folder;
    auto run = run_dir::create(folder.path + "/runs", "gpt");
    CHECK(run.path() == folder.path + "/runs/gpt");
    run.write_config("{\"layers\": 4}\n");
    CHECK(run.read_config() == "{\"layers\": 4}\n");
    CHECK(text_of(run.file("config.json")) == "{\"layers\": 4}\n");
    run.append(row(1, 2.5, 1000));
    run.append(row(2, 0.1, 2000));
    CHECK(text_of(run.file("metrics.csv")) == "step,loss,lr\n1,2.5,0.1\n2,0.1,0.1\n");
    CHECK(text_of(run.file("metrics.jsonl")) ==
          "{\"step\":1,\"loss\":2.5,\"lr\":0.1,\"tokens_per_s\":1000.0}\n"
          "{\"step\":2,\"loss\":0.1,\"lr\":0.1,\"tokens_per_s\":2000.0}\n");
    CHECK(run.curve("loss") == std::vector<curve_point>{{1, 2.5}, {2, 0.1}});
    CHECK(run.curve("nothing").empty());
    run.write_svg();
    CHECK_THAT(text_of(run.file("loss.svg")),
               ContainsSubstring("train") && ContainsSubstring("gpt"));
}

TEST_CASE("decisions are lines of their own file, cut like rows when a run is resumed") {
    test::temporary_folder folder;
    {
        auto run = run_dir::create(folder.path, "r");
        steps(run, 1, 4, 100);
        CHECK_FALSE(std::filesystem::exists(run.file("events.jsonl")));
        for (const char* object :
             {R"({"step":2,"rule":"a"})", R"({"step":2,"rule":"b"})", R"({"step":4,"rule":"a"})"})
            run.append_event(object);
        posix_disk disk;
        disk.open(run.file("events.jsonl"), open_mode::append)
            .value()
            ->append(as_bytes(std::string_view("{\"step\":1"))) // torn by a kill
            .value();
    }
    auto run = run_dir::create(folder.path, "r", {.resume = true});
    run.truncate_after(2);
    const std::string kept = "{\"step\":2,\"rule\":\"a\"}\n{\"step\":2,\"rule\":\"b\"}\n";
    CHECK(text_of(run.file("events.jsonl")) == kept);
    run.append_event(R"({"step":3})");
    CHECK(text_of(run.file("events.jsonl")) == kept + "{\"step\":3}\n");
    run.clear();
    CHECK(text_of(run.file("events.jsonl")).empty());
}

TEST_CASE("a row that is written again is in the files until then") {
    test::temporary_folder folder;
    const auto row = [](std::uint64_t step, double loss) {
        return metrics_row{.step = step, .values = {{"loss", loss}}, .timings = {}, .arrays = {}};
    };
    const auto csv = [&] { return text_of(folder.path + "/r/metrics.csv"); };
    const std::string before = "step,loss\n1,4\n2,3\n3,2\n";
    {
        auto run = run_dir::create(folder.path, "r");
        for (std::uint64_t step = 1; step <= 3; ++step) {
            run.append(row(step, 5.0 - static_cast<double>(step)));
            run.append_event(fmt::format(R"({{"step":{},"rule":"a"}})", step));
        }
        run.rewrite_after(2); // and dies before it writes
    }
    CHECK(csv() == before);
    auto run = run_dir::create(folder.path, "r", {.resume = true});
    run.rewrite_after(2);
    CHECK(csv() == before);
    run.append(row(3, 2.5));
    run.append_event(R"({"step":3,"rule":"b"})");
    run.append_event(R"({"step":3,"rule":"c"})");
    run.append(row(4, 1.5));
    CHECK(csv() == "step,loss\n1,4\n2,3\n3,2.5\n4,1.5\n");
    CHECK(text_of(run.file("metrics.jsonl")) ==
          "{\"step\":1,\"loss\":4.0}\n{\"step\":2,\"loss\":3.0}\n"
          "{\"step\":3,\"loss\":2.5}\n{\"step\":4,\"loss\":1.5}\n");
    CHECK(text_of(run.file("events.jsonl")) ==
          "{\"step\":1,\"rule\":\"a\"}\n{\"step\":2,\"rule\":\"a\"}\n"
          "{\"step\":3,\"rule\":\"b\"}\n{\"step\":3,\"rule\":\"c\"}\n");
}

TEST_CASE("a column that appears later is empty in the rows before") {
    test::temporary_folder folder;
    auto run = run_dir::create(folder.path, "r");
    steps(run, 3, 5, 1);
    CHECK(text_of(run.file("metrics.csv")) ==
          "step,loss,lr,val_loss\n3,1,0.1,\n4,0.75,0.1,0.875\n5,0.6,0.1,\n");
    CHECK(run.curve("val_loss") == std::vector<curve_point>{{4, 0.875}});
}

TEST_CASE("a run interrupted anywhere and resumed leaves the rows of an undisturbed run") {
    test::temporary_folder folder;
    std::string wanted;
    {
        auto run = run_dir::create(folder.path, "undisturbed");
        steps(run, 1, 12, 100);
        wanted = text_of(run.file("metrics.csv"));
    }
    for (std::uint64_t died : {1, 5, 8, 11})
        for (std::uint64_t checkpoint : {0, 3, 4, 8}) {
            if (checkpoint > died) continue;
            const auto name = "r" + std::to_string(died) + "-" + std::to_string(checkpoint);
            {
                auto run = run_dir::create(folder.path, name);
                steps(run, 1, died, 100);
                // Torn by the kill: half a row at the end.
                posix_disk disk;
                for (const char* file : {"metrics.csv", "metrics.jsonl"})
                    disk.open(run.file(file), open_mode::append)
                        .value()
                        ->append(as_bytes(std::string_view("99,0.1")))
                        .value();
            }
            auto run = run_dir::create(folder.path, name, {.resume = true});
            CHECK(run.name() == name);
            if (checkpoint == 0)
                run.clear();
            else
                run.truncate_after(checkpoint);
            steps(run, checkpoint + 1, 12, 200);
            INFO("died after " << died << ", resumed at " << checkpoint);
            REQUIRE(text_of(run.file("metrics.csv")) == wanted);
            const auto lines = text_of(run.file("metrics.jsonl"));
            REQUIRE(std::count(lines.begin(), lines.end(), '\n') == 12);
        }
}

TEST_CASE("a taken name gets a number, unless the run is resumed") {
    test::temporary_folder folder;
    CHECK(run_dir::create(folder.path, "gpt").name() == "gpt");
    CHECK(run_dir::create(folder.path, "gpt").name() == "gpt.2");
    CHECK(run_dir::create(folder.path, "gpt").name() == "gpt.3");
    CHECK(run_dir::create(folder.path, "gpt", {.resume = true}).name() == "gpt");
    CHECK(run_dir::create(folder.path, "new", {.resume = true}).name() == "new");
    CHECK(run_dir::create(folder.path, "other").notices().empty());
    CHECK(run_dir::create(folder.path, "gpt").notices() ==
          std::vector<std::string>{folder.path + "/gpt exists: this run is " + folder.path +
                                   "/gpt.4 (resume it to go on with the old one)"});
}

TEST_CASE("a folder in use is refused to a run that resumes it, with the process that has it") {
    test::temporary_folder folder;
    const run_dir_options resume{.resume = true, .patience = std::chrono::milliseconds(0)};
    {
        auto run = run_dir::create(folder.path, "gpt");
        try {
            (void)run_dir::create(folder.path, "gpt", resume);
            FAIL("accepted");
        } catch (const error& e) {
            CHECK(e.code() == errc::usage);
            CHECK_THAT(e.what(), ContainsSubstring(folder.path + "/gpt is in use by pid " +
                                                   std::to_string(::getpid()) + " on ") &&
                                     ContainsSubstring("give the run another name"));
        }
        auto moved = std::move(run); // the lock moves along
        CHECK_THROWS(run_dir::create(folder.path, "gpt", resume));
    }
    CHECK(run_dir::create(folder.path, "gpt", resume).name() == "gpt");
}

TEST_CASE("a job takes its own folder from a process that does not let go, which writes no more") {
    test::temporary_folder folder;
    const auto row = [](std::uint64_t step, double loss) {
        return metrics_row{.step = step, .values = {{"loss", loss}}, .timings = {}, .arrays = {}};
    };
    auto still = run_dir::create(folder.path, "gpt");
    still.write_config(R"({"job_id": "J"})");
    still.append(row(1, 0.5));
    run_dir_options how{.resume = true, .patience = std::chrono::milliseconds(0)};
    how.job = "K"; // another job's
    CHECK_THROWS(run_dir::create(folder.path, "gpt", how));
    how.job = "J";
    auto next = run_dir::create(folder.path, "gpt", how);
    CHECK_THAT(next.notices().at(0),
               ContainsSubstring("was still held by pid") && ContainsSubstring("taken over"));
    next.append(row(2, 0.25));
    try {
        still.append(row(2, 99.0));
        FAIL("the one that stood still has written");
    } catch (const error& e) {
        CHECK(e.code() == errc::aborted);
        CHECK_THAT(e.what(), ContainsSubstring("was taken over by pid"));
    }
    CHECK_THROWS(still.truncate_after(0));
    CHECK_THROWS(still.write_config("{}"));
    next.append(row(3, 0.125));
    CHECK(text_of(next.file("metrics.csv")) == "step,loss\n1,0.5\n2,0.25\n3,0.125\n");
    { const auto gone = std::move(still); } // its end frees what it has, not what was taken
    CHECK_THROWS(run_dir::create(folder.path, "gpt",
                                 {.resume = true, .patience = std::chrono::milliseconds(0)}));
}

TEST_CASE("runs of one name that begin at the same time get folders of their own") {
    test::temporary_folder folder;
    ::mkdir((folder.path + "/gpt").c_str(), 0777); // made by hand: free, for one of them
    std::vector<std::optional<run_dir>> runs(8);
    std::vector<std::thread> threads;
    std::barrier begin(static_cast<std::ptrdiff_t>(runs.size()));
    for (auto& run : runs)
        threads.emplace_back([&] {
            begin.arrive_and_wait();
            run.emplace(run_dir::create(folder.path, "gpt"));
        });
    for (auto& t : threads) t.join();
    std::set<std::string> names;
    for (auto& run : runs) names.insert(run->name());
    CHECK(names.size() == runs.size());
    CHECK(names.contains("gpt"));
}

TEST_CASE("a name that is not one folder is a usage error") {
    test::temporary_folder folder;
    for (const char* name : {"", ".", "..", "a/b"}) {
        try {
            (void)run_dir::create(folder.path, name);
            FAIL("accepted");
        } catch (const error& e) {
            CHECK(e.code() == errc::usage);
        }
    }
}

TEST_CASE("an unwritable run folder is named with a way out") {
    test::temporary_folder folder;
    posix_disk disk;
    disk.write_whole(folder.path + "/file", {}).value();
    // A file where the folder should be: also root cannot write below it.
    CHECK_THROWS_WITH(run_dir::create(folder.path + "/file", "gpt"),
                      ContainsSubstring("run folder " + folder.path + "/file") &&
                          ContainsSubstring("choose another folder"));
    CHECK_THROWS_WITH(run_dir::create("/proc/skein-runs", "gpt"),
                      ContainsSubstring("run folder /proc/skein-runs cannot be used"));
    if (::geteuid() != 0) {
        REQUIRE(::chmod(folder.path.c_str(), 0500) == 0);
        CHECK_THROWS_WITH(run_dir::create(folder.path, "gpt"),
                          ContainsSubstring("permission denied"));
        ::chmod(folder.path.c_str(), 0700);
    }
}

TEST_CASE("a read-only file system is named with a way out") {
    test::temporary_folder folder;
    if (!folder.mount_tmpfs("size=64k")) SKIP("mounting a small tmpfs needs root");
    REQUIRE(::mount(nullptr, folder.path.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0);
    try {
        (void)run_dir::create(folder.path + "/runs", "gpt");
        FAIL("accepted");
    } catch (const error& e) {
        CHECK(e.code() == errc::permission_denied);
        CHECK_THAT(e.what(), ContainsSubstring("read-only file system") &&
                                 ContainsSubstring("choose another folder"));
    }
}

TEST_CASE("a full disk stops a row with a clear error") {
    test::temporary_folder folder;
    if (!folder.mount_tmpfs("size=64k")) SKIP("mounting a small tmpfs needs root");
    auto run = run_dir::create(folder.path, "gpt");
    errc code{};
    try {
        for (std::uint64_t step = 1; step < 100'000; ++step) run.append(row(step, 1.0, 1.0));
    } catch (const error& e) {
        code = e.code();
    }
    CHECK(code == errc::disk_full);
}

TEST_CASE("rows that a full disk refuses are kept and written when there is room again") {
    test::temporary_folder folder;
    std::string wanted;
    {
        auto run = run_dir::create(folder.path, "undisturbed");
        steps(run, 1, 12, 100);
        wanted = text_of(run.file("metrics.csv"));
    }
    auto run = run_dir::create(folder.path, "disturbed");
    steps(run, 1, 2, 100);
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    const auto old = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit tight{60,
                       before.rlim_max}; // bytes per file: the rows so far, and a part of the next
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &tight) == 0);
    int failed = 0;
    for (std::uint64_t step = 3; step <= 9; ++step) {
        try {
            steps(run, step, step, 100); // step 4 brings a new column
        } catch (const error&) {
            ++failed;
        }
    }
    ::setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, old);
    CHECK(failed == 7);
    CHECK(run.waiting() == 7);
    steps(run, 10, 12, 100);
    CHECK(run.waiting() == 0);
    CHECK(text_of(run.file("metrics.csv")) == wanted);
    const auto lines = text_of(run.file("metrics.jsonl"));
    CHECK(std::count(lines.begin(), lines.end(), '\n') == 12);
    const auto bytes =
        posix_disk().read_whole(folder.path + "/disturbed/" + events_name(run)).value();
    int events = 0;
    for (byte_span rest = bytes; !rest.empty(); ++events)
        rest = rest.subspan(read_record(rest).value().file_bytes);
    CHECK(events == 13); // and the version line
}

TEST_CASE("rows, a new column and the curve are written when no descriptor is free") {
    if (!test::no_free_descriptors::works) SKIP("UBSan needs descriptors itself");
    test::temporary_folder folder;
    auto undisturbed = run_dir::create(folder.path, "undisturbed");
    steps(undisturbed, 1, 8, 100);
    auto run = run_dir::create(folder.path, "disturbed");
    {
        const test::no_free_descriptors tight;
        steps(run, 1, 8, 100); // step 4 brings a new column
        run.write_svg();
        CHECK(run.waiting() == 0);
    }
    CHECK(text_of(run.file("metrics.csv")) == text_of(undisturbed.file("metrics.csv")));
    CHECK(text_of(run.file("loss.svg")).find("validation") != std::string::npos);
}

TEST_CASE("links in the place of a run's files are not followed") {
    test::temporary_folder folder;
    { auto run = run_dir::create(folder.path, "gpt"); }
    posix_disk disk;
    disk.write_whole(folder.path + "/mine", as_bytes(std::string_view("precious"))).value();
    for (const char* name : {"metrics.csv", "metrics.jsonl", ".lock"}) {
        const auto path = folder.path + "/gpt/" + name;
        disk.remove_tree(path).value();
        REQUIRE(::symlink((folder.path + "/mine").c_str(), path.c_str()) == 0);
        CHECK_THROWS_AS(run_dir::create(folder.path, "gpt", {.resume = true}), error);
        CHECK(text_of(folder.path + "/mine") == "precious");
        disk.remove(path).value();
    }
    CHECK(run_dir::create(folder.path, "gpt", {.resume = true}).name() == "gpt");
}

TEST_CASE("a folder of another owner is not taken") {
    if (::geteuid() != 0) SKIP("giving a folder away needs root");
    test::temporary_folder folder;
    { auto run = run_dir::create(folder.path, "gpt"); }
    REQUIRE(::chown((folder.path + "/gpt").c_str(), 65534, 65534) == 0);
    CHECK_THROWS_WITH(run_dir::create(folder.path, "gpt", {.resume = true}),
                      ContainsSubstring("belongs to user 65534") &&
                          ContainsSubstring("choose another folder"));
    ::mkdir((folder.path + "/new").c_str(), 0777);
    REQUIRE(::chown((folder.path + "/new").c_str(), 65534, 65534) == 0);
    CHECK(run_dir::create(folder.path, "new").name() == "new.2"); // a fresh run goes elsewhere
}

TEST_CASE("names with slashes, quotes, spaces and other scripts come back from every file") {
    test::temporary_folder folder;
    const std::string names[] = {
        "val_top 5/accuracy", "val_a,b",  "val_say \"x\"", "val_\u00c4pfel",
        "val_\u635f\u5931",   "val_=1+1", "val_'{}%",      "val_" + std::string(300, 'm')};
    metrics_row many{.step = 7};
    for (const auto& name : names)
        many.values.push_back({name, 0.5 + static_cast<double>(many.values.size())});
    const auto path = [&] {
        auto run = run_dir::create(folder.path, "r");
        run.append({.step = 1, .values = {{"loss", 1.0}}}); // the others are new columns
        run.append(many);
        return run.path();
    }();
    auto resumed = run_dir::create(folder.path, "r", {.resume = true});
    many.step = 8;
    resumed.append(many);
    const auto columns = read_metrics(path);
    REQUIRE(columns.size() == 1 + std::size(names)); // none twice after a resume
    const auto lines = text_of(path + "/metrics.jsonl");
    const auto last =
        skein::parse_json(lines.substr(lines.rfind('\n', lines.size() - 2) + 1)).value();
    for (std::size_t i = 0; i < std::size(names); ++i) {
        const double value = 0.5 + static_cast<double>(i);
        CHECK(columns[i + 1].name == names[i]);
        CHECK(columns[i + 1].points == std::vector<curve_point>{{7, value}, {8, value}});
        CHECK(last.at(names[i]).get<double>() == value);
    }
}

TEST_CASE("names with commas and numbers that are not finite survive the CSV") {
    test::temporary_folder folder;
    const double nan = std::numeric_limits<double>::quiet_NaN();
    run_dir::create(folder.path, "r")
        .append({.step = 1, .values = {{"a,b", 1.0}, {"say \"x\"", nan}}, .timings = {}});
    auto run = run_dir::create(folder.path, "r", {.resume = true});
    run.append({.step = 2, .values = {{"a,b", 2.0}, {"say \"x\"", 0.5}}, .timings = {}});
    CHECK(run.curve("a,b") == std::vector<curve_point>{{1, 1.0}, {2, 2.0}});
    const auto points = run.curve("say \"x\"");
    REQUIRE(points.size() == 2);
    CHECK(std::isnan(points[0].y));
    CHECK(points[1].y == 0.5);
    CHECK(text_of(run.file("metrics.csv")).starts_with("step,\"a,b\",\"say \"\"x\"\"\"\n"));
}

TEST_CASE("all columns of a run's metrics are read while it is at work") {
    test::temporary_folder folder;
    CHECK(read_metrics(folder.path).empty());
    auto run = run_dir::create(folder.path, "r");
    run.append({.step = 1, .values = {{"loss", 1.0}}, .timings = {{"tokens_per_s", 5}}});
    run.append({.step = 2, .values = {{"loss", 0.5}, {"a,b", 4.0}}, .timings = {}});
    const auto columns = read_metrics(run.path());
    REQUIRE(columns.size() == 2);
    CHECK(columns[0].name == "loss");
    CHECK(columns[0].points == std::vector<curve_point>{{1, 1.0}, {2, 0.5}});
    CHECK(columns[1].name == "a,b");
    CHECK(columns[1].points == std::vector<curve_point>{{2, 4.0}});
    posix_disk().write_whole(run.file("metrics.csv"), as_bytes("loss,step\n1,2\n")).value();
    CHECK_THROWS_WITH(read_metrics(run.path()), ContainsSubstring("column 'step'"));
}

TEST_CASE("a result is taken away when its run goes on, and none is no failure") {
    test::temporary_folder folder;
    auto run = run_dir::create(folder.path, "r");
    run.remove_result();
    posix_disk().write_whole(run.file("result.json"), as_bytes("{}\n")).value();
    run.remove_result();
    CHECK(text_of(run.file("metrics.csv")).starts_with("step"));
    CHECK_FALSE(posix_disk().status(run.file("result.json")));
}
