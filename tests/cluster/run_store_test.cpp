// SPDX-License-Identifier: Apache-2.0
#include "cluster/results_support.hpp"
#include "net/requests_support.hpp"

#include <skein/cluster/detail/coming_files.hpp>
#include <skein/cluster/detail/head_runs.hpp>
#include <skein/cluster/detail/result_files.hpp>
#include <skein/cluster/detail/step_sender.hpp>
#include <skein/cluster/run_shelf.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/sha256.hpp>
#include <tests/support/temporary_folder.hpp>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>

namespace run_store_test {

using namespace net_test;
using namespace results_support;
namespace parts = skein::cluster::detail;

// ---- pieces over a link -------------------------------------------------------------------------

/// A store whose files come over a simulated link.
struct world {
    sim::loop loop{7};
    sim::network network{loop, sim::faults()};
    test::temporary_folder folder;
    std::shared_ptr<run_shelf> shelf =
        std::make_shared<run_shelf>(folder.path + "/results", std::uint64_t{16} << 20);
    std::shared_ptr<parts::coming_files> coming = std::make_shared<parts::coming_files>();

    using body = std::function<task<void>(net::requests&)>;

    static task<piece_taken> put(world* w, put_run_piece m) {
        run_piece piece{m.file, m.size, m.offset, std::move(m.bytes), m.is_last, m.digest};
        parts::store_opener open = [on = w->shelf]() -> package_store& { return on->files(); };
        auto putting = parts::put_piece(w->coming, std::move(open), std::move(piece));
        co_await putting;
        co_return piece_taken();
    }
    static task<void> talk(world* w, body work) {
        auto service = std::make_shared<net::request_service>();
        service->on<put_run_piece, piece_taken>(
            [w](put_run_piece m, const net::caller&) { return put(w, std::move(m)); });
        auto talking = with_client(&w->network, std::move(service),
                                   [&](net::requests& client) { return work(client); });
        co_await talking;
    }
    void run(body work) { loop.run(talk(this, std::move(work))); }
};

put_run_piece piece_of(std::uint64_t file, const std::string& text, std::size_t from,
                       std::size_t to) {
    put_run_piece out;
    out.file = file;
    out.size = text.size();
    out.offset = from;
    const auto bytes = as_bytes(text).subspan(from, to - from);
    out.bytes.assign(bytes.begin(), bytes.end());
    out.is_last = to == text.size();
    if (out.is_last) out.digest = to_hex(sha256_of(as_bytes(text)));
    return out;
}

task<errc> refusal_of(net::requests* from, put_run_piece m) {
    auto asking = error_of(drop_value(from->call<piece_taken>(std::move(m))));
    const auto fault = co_await asking;
    co_return fault ? fault->code() : errc{};
}

TEST_CASE("pieces of several files come at once; wrong ones are refused, and harm no other file",
          "[cluster][results]") {
    world w;
    w.run([&w](net::requests& at) -> task<void> {
        const std::string one = "first file", two = "second";
        auto a = at.call<piece_taken>(piece_of(1, one, 0, 4));
        (void)co_await a;
        auto b = at.call<piece_taken>(piece_of(2, two, 0, 2));
        (void)co_await b;
        auto gap = refusal_of(&at, piece_of(1, one, 6, one.size()));
        const auto gap_code = co_await gap;
        CHECK(gap_code == errc::malformed);
        auto stranger = refusal_of(&at, piece_of(9, one, 4, one.size()));
        const auto stranger_code = co_await stranger;
        CHECK(stranger_code == errc::malformed);
        auto beyond = piece_of(2, two, 2, two.size());
        beyond.size = 3;
        auto too_much = refusal_of(&at, std::move(beyond));
        const auto too_much_code = co_await too_much;
        CHECK(too_much_code == errc::malformed);
        auto c = at.call<piece_taken>(piece_of(1, one, 4, one.size()));
        (void)co_await c;
        CHECK(w.shelf->files().has(sha256_of(as_bytes(one))));
        auto wrong = piece_of(2, two, 2, two.size());
        wrong.digest = std::string(64, '0');
        auto other = refusal_of(&at, std::move(wrong));
        const auto other_code = co_await other;
        CHECK(other_code == errc::mismatch);
        auto no_digest = piece_of(3, two, 0, two.size());
        no_digest.digest = "short";
        auto bad = refusal_of(&at, std::move(no_digest));
        const auto bad_code = co_await bad;
        CHECK(bad_code == errc::malformed);
        CHECK(w.coming->all.empty());
        CHECK(w.shelf->files().usage().blobs == 1);
    });
}

TEST_CASE("a file is hashed as it is sent, piece by piece; one that changes is given up",
          "[cluster][results]") {
    world w;
    const test::temporary_folder from;
    std::string text;
    for (int i = 0; i < 400'000; ++i) text += "line " + std::to_string(i) + "\n"; // some pieces
    write_file(from.path + "/deep/large", text);
    write_file(from.path + "/small", "small");
    w.run([&](net::requests& at) -> task<void> {
        parts::file_sender sender([&at](run_piece m) -> task<void> {
            put_run_piece out{m.file, m.size, m.offset, std::move(m.bytes), m.is_last, m.digest};
            return drop_value(at.call<piece_taken>(std::move(out)));
        });
        for (const std::string path : {"deep/large", "small"}) {
            parts::file_sender::opener open = [folder = from.path, path] {
                return std::make_shared<parts::source_file>(folder, path);
            };
            auto sending = sender.send(std::move(open));
            const auto sent = co_await sending;
            CHECK(sent.digest == sha256_of(as_bytes(text_of(from.path + "/" + path))));
        }
        auto finishing = sender.finish();
        co_await finishing;
        CHECK(w.shelf->files().usage().blobs == 2);

        parts::file_sender again([&](run_piece m) -> task<void> {
            if (m.offset == 0) fs::resize_file(from.path + "/deep/large", 100);
            put_run_piece out{m.file, m.size, m.offset, std::move(m.bytes), m.is_last, m.digest};
            return drop_value(at.call<piece_taken>(std::move(out)));
        });
        parts::file_sender::opener open = [folder = from.path] {
            return std::make_shared<parts::source_file>(folder, "deep/large");
        };
        auto sending = error_of(drop_value(again.send(std::move(open))));
        const auto fault = co_await sending;
        REQUIRE(fault);
        CHECK(fault->code() == errc::aborted);
        auto ending = error_of(again.finish());
        (void)co_await ending;
        CHECK(w.coming->all.empty()); // nothing waits for the rest
        CHECK(w.shelf->files().usage().blobs == 2);
    });
}

TEST_CASE("a way that is gone before a piece is taken is the sender's failure, and no wait",
          "[cluster][results]") {
    world w;
    const test::temporary_folder from;
    write_file(from.path + "/large", std::string(12 * most_blob_piece, 'x'));
    w.run([&](net::requests& at) -> task<void> {
        std::size_t taken = 0;
        parts::file_sender sender([&](run_piece m) -> task<void> { // no coroutine: it throws here
            if (++taken > 3) throw error(errc::closed, "there is no link");
            put_run_piece out{m.file, m.size, m.offset, std::move(m.bytes), m.is_last, m.digest};
            return drop_value(at.call<piece_taken>(std::move(out)));
        });
        for (int tries = 0; tries < 2; ++tries) {
            parts::file_sender::opener open = [folder = from.path] {
                return std::make_shared<parts::source_file>(folder, "large");
            };
            auto sending = error_of(drop_value(sender.send(std::move(open))));
            const auto fault = co_await sending;
            REQUIRE(fault);
            CHECK(fault->code() == errc::closed);
        }
        auto finishing = error_of(sender.finish());
        const auto fault = co_await finishing;
        REQUIRE(fault);
        CHECK(fault->code() == errc::closed);
    });
}

// ---- which files are results --------------------------------------------------------------------

std::vector<std::string> paths_of(const package_manifest& of) {
    std::vector<std::string> out;
    for (const auto& one : of.entries) out.push_back(one.path);
    return out;
}

TEST_CASE("patterns name files of the job's folder, links lead nowhere", "[cluster][results]") {
    const test::temporary_folder folder;
    const auto at = folder.path + "/job";
    for (const char* path : {"runs/a/metrics.csv", "runs/a/c/step-1/x", "runs/.hidden", "out/a.txt",
                             "out/b.log", "out/deep/c.txt", "model", "src/main.py"})
        write_file(at + "/" + path, path);
    write_file(folder.path + "/secret/key", "secret");
    fs::create_symlink(folder.path + "/secret", at + "/out/away");
    fs::create_symlink(folder.path + "/secret/key", at + "/out/key.txt");
    const auto found = [&](std::string runs, std::vector<std::string> patterns) {
        parts::result_question what{at, std::move(runs), std::move(patterns)};
        return paths_of(parts::find_results(what, nullptr, {}).files);
    };
    using all = std::vector<std::string>;
    CHECK(found("runs", {}) == all{"runs/.hidden", "runs/a/c/step-1/x", "runs/a/metrics.csv"});
    CHECK(found("", {"out/*.txt"}) == all{"out/a.txt"});
    CHECK(found("", {"out/**"}) == all{"out/a.txt", "out/b.log", "out/deep/c.txt"});
    CHECK(found("", {"**/*.txt"}) == all{"out/a.txt", "out/deep/c.txt"});
    CHECK(found("", {"out", "model", "out/a.txt"}) ==
          all{"model", "out/a.txt", "out/b.log", "out/deep/c.txt"});
    CHECK(found("", {"out/away/key", "out/away", "out/key.txt"}).empty());
    CHECK(found("", {"m?del", "[st]rc/*"}) == all{"model", "src/main.py"});
    CHECK(found("nothing", {"no/such/*"}).empty());
    fs::remove_all(at + "/runs");
    fs::create_symlink(folder.path + "/secret", at + "/runs");
    CHECK(found("runs", {}).empty());
}

TEST_CASE("what a job has brought and left as it was is none of its runs' results",
          "[cluster][results]") {
    const test::temporary_folder folder;
    write_file(folder.path + "/runs/old", "old");
    write_file(folder.path + "/runs/kept", "new text");
    write_file(folder.path + "/runs/fresh", "fresh");
    package_manifest brought;
    brought.entries = {entry("runs/kept", "old text"), entry("runs/old", "old")};
    const parts::result_question runs{folder.path, "runs", {}};
    CHECK(paths_of(parts::find_results(runs, &brought, {}).files) ==
          std::vector<std::string>{"runs/fresh", "runs/kept"});
    const parts::result_question named{folder.path, "runs", {"runs/old"}};
    CHECK(paths_of(parts::find_results(named, &brought, {}).files).size() == 3);
}

TEST_CASE("patterns that lead out of the folder are refused", "[cluster][results]") {
    for (const char* bad : {"", "/", "/etc/*", "..", "a/../b", "./a", "a//b"})
        CHECK_FALSE(parts::check_result_pattern(bad).has_value());
    CHECK_FALSE(parts::check_result_pattern(std::string(5000, 'x')).has_value());
    for (const char* good : {"a", "a/", "a/*", "**", "[ab]/?"})
        CHECK(parts::check_result_pattern(good).has_value());
    CHECK(parts::read_result_patterns("a\n\n../b\nc/*\n") == std::vector<std::string>{"a", "c/*"});
}

TEST_CASE("a folder that cannot be opened for want of descriptors is not taken for an empty one",
          "[cluster][results]") {
    const test::temporary_folder folder;
    write_file(folder.path + "/runs/a/metrics.csv", "table");
    struct few_files {
        rlimit before{};
        few_files() {
            const int next = ::open("/", O_RDONLY | O_CLOEXEC); // the first one that is free
            ::close(next);
            (void)::getrlimit(RLIMIT_NOFILE, &before);
            auto now = before;
            now.rlim_cur = static_cast<rlim_t>(next) + 1;
            (void)::setrlimit(RLIMIT_NOFILE, &now);
        }
        few_files(const few_files&) = delete;
        few_files& operator=(const few_files&) = delete;
        ~few_files() { (void)::setrlimit(RLIMIT_NOFILE, &before); }
    };
    const parts::result_question runs{folder.path, "runs", {}};
    errc fault{};
    {
        const few_files few;
        fault = fault_of([&] { (void)parts::find_results(runs, nullptr, {}); });
    }
    CHECK(fault == errc::exhausted);
    CHECK(parts::find_results(runs, nullptr, {}).files.entries.size() == 1);
}

// ---- steps of trainings -------------------------------------------------------------------------

TEST_CASE("a step is what has its whole name; it is snapped with the files of its run",
          "[cluster][results]") {
    const test::temporary_folder folder;
    const auto job = folder.path + "/job", runs = job + "/runs", to = folder.path + "/beside/1";
    write_file(runs + "/a/checkpoints/step-00000010/shard", "ten");
    write_file(runs + "/a/checkpoints/step-00000009/shard", "nine");
    write_file(runs + "/a/checkpoints/step-11.part-1/shard", "part");
    write_file(runs + "/a/checkpoints/step-12.broken/shard", "broken");
    write_file(runs + "/a/checkpoints/step-/shard", "none");
    write_file(runs + "/a/metrics.csv", "table");
    write_file(runs + "/a/.hidden", "hidden");
    write_file(runs + "/b/other", "no steps");
    const auto there = parts::find_steps(job, "runs", 9);
    const auto& found = there.steps;
    CHECK(there.left_out.empty());
    REQUIRE(found.size() == 2);
    CHECK(found[0].set_name() == "a/step-00000009");
    CHECK(found[1].step == 10);
    CHECK(found[1].is_newest);
    CHECK(parts::find_steps(folder.path, "nothing", 9).steps.empty());
    CHECK(parts::step_of_set("a/step-00000010").step == 10);
    for (const char* none :
         {"attempt-1", "a/b", "a/step-", "a/step-1x", "step-1", "a/step-99999999999999999999"})
        CHECK(parts::step_of_set(none).run.empty());

    parts::snap_step(job, "runs", found[1], to);
    fs::remove_all(runs + "/a/checkpoints/step-00000010");
    write_file(runs + "/a/metrics.csv", "another table");
    CHECK(text_of(to + "/runs/a/checkpoints/step-00000010/shard") == "ten");
    CHECK(text_of(to + "/runs/a/metrics.csv") == "table");
    const parts::result_question all{to, "runs", {}};
    CHECK(paths_of(parts::find_results(all, nullptr, {}).files).size() == 2);
    CHECK(fault_of([&] { parts::snap_step(job, "runs", found[1], to + "2"); }) == errc::not_found);
}

TEST_CASE("a step that comes is none before all of it is there", "[cluster][results]") {
    const test::temporary_folder folder;
    const auto job = folder.path + "/job";
    package_manifest set;
    set.entries = {entry("runs/a/checkpoints/step-7/large", "large"),
                   entry("runs/a/checkpoints/step-7/small", "small"), entry("runs/a/table", "t")};
    parts::coming_step step;
    step.inside = "runs/a/checkpoints";
    step.name = "step-7";
    step.part = parts::part_of_step(step.name, set.id());
    CHECK(step.part.starts_with("step-7.part-"));
    CHECK(step.part.size() == std::string("step-7.part-").size() + 16);
    CHECK(parts::step_of_set("a/" + step.part).run.empty());
    const auto there = [&] { return parts::find_steps(job, "runs", 9).steps.size(); };
    const auto bring = [&](const package_entry& one, const std::string& text) {
        const parts::fetched_folder to(job);
        auto file = to.begin(one);
        file.append(as_bytes(text));
        file.commit();
    };
    const auto in_part = parts::step_in_part(set, step);
    CHECK(in_part.entries[2].path == "runs/a/table");
    bring(in_part.entries[0], "large");
    CHECK(there() == 0);
    CHECK(fault_of([&] { parts::place_step(job, step, in_part); }) == errc::not_found);
    CHECK(there() == 0);
    bring(in_part.entries[1], "small");
    parts::place_step(job, step, in_part);
    CHECK(there() == 1);
    CHECK(text_of(job + "/runs/a/checkpoints/step-7/large") == "large");
    bring(in_part.entries[0], "large");
    CHECK(fault_of([&] { parts::place_step(job, step, set); }) == errc::already_exists);
    parts::drop_part(job, step);
    CHECK_FALSE(fs::exists(job + "/runs/a/checkpoints/" + step.part));
    CHECK(there() == 1);
}

TEST_CASE("steps behind links are neither found nor snapped, and that is said",
          "[cluster][results]") {
    const test::temporary_folder folder;
    const auto job = folder.path + "/job", away = folder.path + "/away";
    write_file(away + "/a/checkpoints/step-1/shard", "secret");
    write_file(job + "/runs/b/checkpoints/step-1/shard", "mine");
    fs::create_symlink(away + "/a", job + "/runs/a");
    fs::create_directories(job + "/runs/c");
    fs::create_symlink(away + "/a/checkpoints", job + "/runs/c/checkpoints");
    fs::create_symlink(away, job + "/linked");
    const auto found = parts::find_steps(job, "runs", 9);
    REQUIRE(found.steps.size() == 1);
    CHECK(found.steps[0].run == "b");
    CHECK(found.left_out.find("link") != std::string::npos);
    CHECK(parts::find_steps(job, "linked", 9).steps.empty());
    CHECK_FALSE(parts::find_steps(job, "linked", 9).left_out.empty());
    auto other = found.steps[0];
    for (const char* run : {"a", "c"}) {
        other.run = run;
        CHECK(fault_of([&] { parts::snap_step(job, "runs", other, folder.path + "/to"); }) !=
              errc{});
    }
    CHECK_FALSE(fs::exists(folder.path + "/to/runs/a/checkpoints/step-1/shard"));
}

TEST_CASE("of many runs those are looked at whose steps are the newest", "[cluster][results]") {
    const test::temporary_folder folder;
    const auto now = fs::file_time_type::clock::now();
    int age = 0;
    for (const char* run : {"b", "c", "a"}) { // the first one is the newest
        const auto steps = folder.path + "/runs/" + run + "/checkpoints";
        write_file(steps + "/step-1/shard", "1");
        write_file(steps + "/step-2/shard", "2");
        fs::last_write_time(steps + "/step-2", now - std::chrono::seconds(age));
        fs::last_write_time(steps + "/step-1", now);
        fs::last_write_time(steps, now - std::chrono::seconds(age++));
    }
    const auto found = parts::find_steps(folder.path, "runs", 2);
    REQUIRE(found.steps.size() == 4);
    CHECK(found.steps[3].set_name() == "b/step-2");
    CHECK(found.steps[2].set_name() == "c/step-2");
    CHECK_FALSE(found.steps[1].is_newest);
    CHECK(found.left_out == "only the 2 newest of 3 runs are looked at");
}

} // namespace run_store_test
