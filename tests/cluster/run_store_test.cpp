// SPDX-License-Identifier: Apache-2.0
#include "net/requests_support.hpp"

#include <skein/cluster/detail/coming_files.hpp>
#include <skein/cluster/detail/fetched_files.hpp>
#include <skein/cluster/detail/head_runs.hpp>
#include <skein/cluster/detail/result_files.hpp>
#include <skein/cluster/detail/step_sender.hpp>
#include <skein/cluster/digest_cache.hpp>
#include <skein/cluster/run_shelf.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/sha256.hpp>
#include <tests/support/temporary_folder.hpp>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>

namespace run_store_test {

using namespace net_test;
using namespace skein::cluster;
namespace parts = skein::cluster::detail;
namespace fs = std::filesystem;

void write_file(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << text;
}
std::string text_of(const std::string& path) {
    std::ifstream from(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(from), {}};
}

package_entry entry(const std::string& path, const std::string& text) {
    package_entry out;
    out.path = path;
    out.mode = 0644;
    out.size = text.size();
    out.digest = sha256_of(as_bytes(text));
    return out;
}

package_manifest one_file(const std::string& path, const std::string& text) {
    package_manifest out;
    out.entries.push_back(entry(path, text));
    return out;
}

stored_set set_of(const std::string& name, const std::string& id) {
    stored_set out;
    out.name = name;
    out.id = id;
    return out;
}

/// Keeps a set of one file.
std::string keep(run_shelf& on, const std::string& key, const std::string& name,
                 const std::string& text, bool holds) {
    const auto files = one_file("a", text);
    const auto pin = on.files().pin(files);
    if (!on.files().has(files.entries[0].digest))
        on.files().put(files.entries[0].digest, as_bytes(text));
    on.commit(key, set_of(name, pin.id()), holds);
    return pin.id();
}

template <class Work>
errc fault_of(Work work) {
    try {
        work();
    } catch (const error& why) {
        return why.code();
    }
    return errc{};
}

// ---- the shelf ----------------------------------------------------------------------------------

TEST_CASE("a set is seen when all of its files are there, and after a new start",
          "[cluster][results]") {
    const test::temporary_folder folder;
    std::string id;
    {
        run_shelf on(folder.path + "/results", 1 << 20);
        const auto files = one_file("a", "text");
        const auto pin = on.files().pin(files);
        CHECK(fault_of([&] { on.commit("job-1", set_of("attempt-1", pin.id()), true); }) ==
              errc::not_found);
        CHECK(on.sets_of("job-1").empty());
        CHECK(fault_of([&] { on.commit("job-1", set_of("x", std::string(64, 'a')), true); }) ==
              errc::not_found);
        id = keep(on, "job-1", "attempt-1", "text", true);
        CHECK(on.has_set("job-1", id));
        CHECK_FALSE(on.has_set("job-2", id));
        CHECK(on.digest_of(id, 0) == files.entries[0].digest);
        CHECK(fault_of([&] { (void)on.digest_of(id, 1); }) == errc::not_found);
    }
    run_shelf again(folder.path + "/results", 1 << 20);
    const auto sets = again.sets_of("job-1");
    REQUIRE(sets.size() == 1);
    CHECK(sets[0].id == id);
    CHECK(sets[0].files == 1);
    CHECK(sets[0].bytes == 4);
    again.forget("job-1");
    CHECK(again.sets_of("job-1").empty());
    CHECK(fs::is_empty(folder.path + "/results/sets"));
}

TEST_CASE("a set of the same name takes the place of the one before, and the oldest of many go",
          "[cluster][results]") {
    const test::temporary_folder folder;
    run_shelf on(folder.path + "/results", 1 << 20);
    (void)keep(on, "job", "same", "one", true);
    const auto id = keep(on, "job", "same", "two", true);
    REQUIRE(on.sets_of("job").size() == 1);
    CHECK(on.sets_of("job")[0].id == id);
    for (std::size_t i = 0; i < run_shelf::most_sets; ++i) {
        auto none = set_of("n" + std::to_string(i), "");
        none.trouble = "no room";
        on.commit("job", none, false);
    }
    CHECK(on.sets_of("job").size() == run_shelf::most_sets);
    CHECK(on.sets_of("job").front().name == "n0");
    on.drop("job", "n0");
    CHECK(on.sets_of("job").front().name == "n1");
}

TEST_CASE("what is held stays; what is not goes for others, and its set says so",
          "[cluster][results]") {
    const test::temporary_folder folder;
    run_shelf on(folder.path + "/results", 5000);
    const std::string large(2000, 'x');
    (void)keep(on, "held", "a", large + "1", true);
    (void)keep(on, "free", "a", large + "2", false);
    CHECK(on.sets_of("held")[0].trouble.empty());
    (void)keep(on, "new", "a", large + "3", true);
    CHECK(on.sets_of("free")[0].id.empty());
    CHECK(on.sets_of("free")[0].trouble == set_is_gone);
    CHECK_FALSE(on.sets_of("held")[0].id.empty());
    CHECK(fault_of([&] { (void)keep(on, "more", "a", large + "4", true); }) == errc::exhausted);
    on.keep([](const std::string& key) { return key == "new"; },
            [](const std::string& key) { return key != "free"; });
    CHECK(on.sets_of("free").empty());
    (void)keep(on, "more", "a", large + "4", true);
    CHECK(on.sets_of("held")[0].id.empty());
    CHECK_FALSE(on.sets_of("new")[0].id.empty());
}

TEST_CASE("pages of a shelf that are damaged count as none", "[cluster][results]") {
    const test::temporary_folder folder;
    {
        run_shelf on(folder.path + "/results", 1 << 20);
        (void)keep(on, "a", "one", "1", false);
        (void)keep(on, "b", "one", "2", false);
    }
    const auto page = folder.path + "/results/sets/a";
    fs::resize_file(page, fs::file_size(page) / 2);
    write_file(folder.path + "/results/sets/c", std::string(2'000'000, 'x'));
    run_shelf again(folder.path + "/results", 1 << 20);
    CHECK(again.sets_of("a").empty());
    CHECK(again.sets_of("c").empty());
    CHECK(again.sets_of("b").size() == 1);
}

TEST_CASE("after a new start what jobs that live have is held again", "[cluster][results]") {
    const test::temporary_folder folder;
    const std::string large(2000, 'x');
    {
        run_shelf on(folder.path + "/results", 10'000);
        (void)keep(on, "lives", "attempt-1", large + "1", true);
        (void)keep(on, "lives", "run/step-1", large + "2", true);
        (void)keep(on, "lives", "attempt-2", large + "3", true);
    }
    run_shelf on(folder.path + "/results", 10'000);
    on.keep([](const std::string&) { return true; }, [](const std::string&) { return true; });
    (void)keep(on, "other", "a", large + "4", true);
    (void)keep(on, "third", "a", large + "5", true);
    CHECK(fault_of([&] { (void)keep(on, "fourth", "a", large + "6", true); }) == errc::exhausted);
    const auto sets = on.sets_of("lives");
    REQUIRE(sets.size() == 3);
    CHECK(sets[0].id.empty()); // an attempt before the newest
    CHECK_FALSE(sets[1].id.empty());
    CHECK_FALSE(sets[2].id.empty());
}

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

// ---- where they are fetched to ------------------------------------------------------------------

TEST_CASE("a fetched file is written beside its place, and a part of it goes on",
          "[cluster][results]") {
    const test::temporary_folder folder;
    const auto to = folder.path + "/to";
    const auto what = entry("deep/er/file", "some bytes");
    {
        const parts::fetched_folder in(to);
        CHECK(in.look_at(what) == parts::place_is::free);
        auto file = in.begin(what);
        CHECK(file.bytes() == 0);
        file.append(as_bytes(std::string("some ")));
    }
    const parts::fetched_folder in(to);
    CHECK(in.look_at(what) == parts::place_is::free);
    auto file = in.begin(what);
    REQUIRE(file.bytes() == 5);
    file.append(as_bytes(std::string("bytes")));
    CHECK(fault_of([&] { file.append(as_bytes(std::string("!"))); }) == errc::too_large);
    file.commit();
    CHECK(text_of(to + "/deep/er/file") == "some bytes");
    CHECK(in.look_at(what) == parts::place_is::whole);
    CHECK(std::distance(fs::directory_iterator(to + "/deep/er"), fs::directory_iterator()) == 1);
    write_file(to + "/deep/er/file", "same bytes");
    CHECK(in.look_at(what) == parts::place_is::other);
}

TEST_CASE("a part that was damaged is found, and removed", "[cluster][results]") {
    const test::temporary_folder folder;
    const auto what = entry("file", "some bytes");
    const parts::fetched_folder in(folder.path + "/to");
    {
        auto file = in.begin(what);
        file.append(as_bytes(std::string("same ")));
    }
    auto file = in.begin(what);
    file.append(as_bytes(std::string("bytes")));
    CHECK(fault_of([&] { file.commit(); }) == errc::mismatch);
    CHECK(in.begin(what).bytes() == 0);
    CHECK(in.look_at(what) == parts::place_is::free);
}

TEST_CASE("nothing is written through a link, nor out of the folder", "[cluster][results]") {
    const test::temporary_folder folder;
    const auto to = folder.path + "/to", away = folder.path + "/away";
    fs::create_directories(to);
    fs::create_directories(away);
    fs::create_symlink(away, to + "/link");
    write_file(to + "/file", "x");
    const parts::fetched_folder in(to);
    for (const char* path : {"link/a", "link", "file/a"}) {
        const auto what = entry(path, "text");
        CHECK(fault_of([&] { (void)in.look_at(what); }) == errc::already_exists);
    }
    for (const char* path : {"link/a", "file/a"})
        CHECK(fault_of([&] { (void)in.begin(entry(path, "text")); }) == errc::already_exists);
    fs::create_symlink(away + "/made", to + "/dangling");
    auto over = in.begin(entry("dangling", "text")); // with force: the link itself is replaced
    over.append(as_bytes(std::string("text")));
    over.commit();
    CHECK(fs::is_empty(away));
    for (const char* path : {"../x", "/etc/x", "a/../../x", "a//b", ""}) {
        package_manifest bad = one_file(path, "text");
        CHECK(fault_of([&] { (void)parts::read_set(wire::encode(bad)); }) == errc::malformed);
    }
    package_manifest link;
    link.entries.push_back({"a", 1, 0, 0, {}, "b"});
    CHECK(fault_of([&] { (void)parts::read_set(wire::encode(link)); }) == errc::malformed);
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
    const auto found = parts::find_steps(runs);
    REQUIRE(found.size() == 2);
    CHECK(found[0].set_name() == "a/step-00000009");
    CHECK(found[1].step == 10);
    CHECK(parts::find_steps(folder.path + "/nothing").empty());
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

TEST_CASE("of a run's steps those are kept that its node has, and the two newest",
          "[cluster][results]") {
    const test::temporary_folder folder;
    run_shelf on(folder.path + "/results", 1 << 20);
    for (const char* name :
         {"a/step-1", "b/step-1", "attempt-1", "a/step-2", "a/step-3", "a/step-4"})
        (void)keep(on, "job", name, name, true);
    on.keep_steps("job", "a/", {"a/step-1", "a/step-4"});
    std::vector<std::string> names;
    for (const auto& one : on.sets_of("job")) names.push_back(one.name);
    CHECK(names ==
          std::vector<std::string>{"a/step-1", "b/step-1", "attempt-1", "a/step-3", "a/step-4"});
    on.keep_steps("nobody", "a/", {});
}

// ---- files that were read before ----------------------------------------------------------------

struct stat status_of(const std::string& path) {
    struct stat out{};
    REQUIRE(::stat(path.c_str(), &out) == 0);
    return out;
}

TEST_CASE("a file that is as it was is known by its digest, over processes", "[cluster][results]") {
    const test::temporary_folder folder;
    const auto path = folder.path + "/cache/skein/digests", file = folder.path + "/file";
    write_file(file, "text");
    const auto is = status_of(file);
    const auto digest = sha256_of(as_bytes(std::string("text")));
    const auto later = digest_cache::now() + 10'000'000'000;
    {
        digest_cache known(path);
        CHECK_FALSE(known.find(is));
        known.learn(is, digest, digest_cache::now()); // too young: it may change in this tick
        CHECK_FALSE(known.find(is));
        known.learn(is, digest, later);
        CHECK(known.find(is) == digest);
        CHECK(known.save());
    }
    digest_cache known(path);
    CHECK(known.find(is) == digest);
    auto other = is;
    ++other.st_size;
    CHECK_FALSE(known.find(other));
    other = is;
    ++other.st_ctim.tv_nsec;
    CHECK_FALSE(known.find(other));
    other = is;
    ++other.st_ino;
    CHECK_FALSE(known.find(other));
    other = is;
    ++other.st_mtim.tv_nsec;
    CHECK_FALSE(known.find(other));
}

TEST_CASE("what does not fit is no list of digests, and is replaced", "[cluster][results]") {
    const test::temporary_folder folder;
    const auto path = folder.path + "/digests", file = folder.path + "/file";
    write_file(file, "text");
    const auto is = status_of(file);
    const auto later = digest_cache::now() + 10'000'000'000;
    {
        digest_cache known(path);
        known.learn(is, sha256_of(as_bytes(std::string("text"))), later);
        REQUIRE(known.save());
    }
    const auto whole = text_of(path);
    for (std::size_t n = 0; n <= whole.size(); ++n) {
        auto bad = whole.substr(0, n);
        if (n == whole.size()) bad[n / 2] = static_cast<char>(bad[n / 2] ^ 1);
        write_file(path, bad);
        CHECK(digest_cache(path).files() == 0);
    }
    write_file(path, whole);
    CHECK(digest_cache(path).files() == 1);
    ::chmod(path.c_str(), 0666); // others may have written it
    CHECK(digest_cache(path).files() == 0);
    digest_cache known(path);
    known.learn(is, sha256_of({}), later);
    REQUIRE(known.save());
    CHECK((status_of(path).st_mode & 0777) == 0600);
    CHECK(digest_cache(path).files() == 1);
    CHECK(digest_cache("").save());
}

} // namespace run_store_test
