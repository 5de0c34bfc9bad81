// SPDX-License-Identifier: Apache-2.0
#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/random.hpp>
#include <skein/sim/disk.hpp>
#include <skein/train/checkpoint.hpp>

#include <support/temporary_folder.hpp>
#include <support/thread_world.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <fmt/core.h>

#include <atomic>
#include <mutex>

#include <sys/stat.h>
#include <unistd.h>

using namespace skein;
using namespace skein::train;
using Catch::Matchers::ContainsSubstring;
using crash_disk = skein::sim::disk;
using skein::sim::crash_mode;

namespace {

/// A few tensors whose bytes are a function of the step.
struct model {
    std::vector<byte_buffer> store;
    std::vector<tensor_part> tensors;

    explicit model(std::uint64_t step, std::size_t scale = 1) {
        add("wte", "F32", {static_cast<std::int64_t>(5 * scale), 4}, step);
        add("block.0.w", "BF16", {3, 3}, step);
        add("block.1.w", "F64", {static_cast<std::int64_t>(2 * scale)}, step);
        add("step", "I64", {}, step);
        add("empty", "F32", {0, 7}, step);
    }
    model(const model&) = delete;

    void add(std::string name, std::string dtype, std::vector<std::int64_t> shape,
             std::uint64_t step) {
        byte_buffer bytes(tensor_bytes(dtype, shape).value());
        for (std::size_t i = 0; i < bytes.size(); ++i)
            bytes[i] = static_cast<std::byte>(step * 31 + i * 7 + name.size());
        store.push_back(std::move(bytes));
        tensors.push_back({std::move(name), std::move(dtype), std::move(shape), store.back()});
    }
};

checkpoint_state state_of(const model& m, std::uint64_t step) {
    checkpoint_state state;
    state.step = step;
    state.tensors = m.tensors;
    state.extra = fmt::format(R"({{"cursor":{},"seed":1}})", step * 64);
    state.metrics = {{"val_loss", 10.0 / static_cast<double>(step + 1)}};
    state.config_hash = "abc";
    return state;
}

/// Options that do not write warnings to the screen.
checkpoint_options quiet() {
    checkpoint_options o;
    o.warn = [](const std::string&) {};
    return o;
}

saved_checkpoint save_step(disk& d, std::uint64_t step, checkpoint_options options = quiet(),
                           std::string dir = "run/checkpoints") {
    model m(step);
    return checkpointer(d, std::move(dir), options).save(state_of(m, step));
}

/// True when what was loaded is bit for bit what step `found->step()` saved.
bool is_intact(const loaded_checkpoint& found) {
    model m(found.step());
    for (auto& t : m.tensors) {
        if (!found.contains(t.name)) return false;
        const auto bytes = found.read(t.name);
        if (!std::equal(bytes.begin(), bytes.end(), t.bytes.begin(), t.bytes.end())) return false;
    }
    return found.tensors().size() == m.tensors.size() &&
           found.extra() == fmt::format(R"({{"cursor":{},"seed":1}})", found.step() * 64);
}

struct warnings {
    std::vector<std::string> lines;
    checkpoint_options options(std::size_t keep_last = 2) {
        checkpoint_options o;
        o.keep_last = keep_last;
        o.chunk_bytes = 64;
        o.warn = [this](const std::string& line) { lines.push_back(line); };
        return o;
    }
};

std::vector<std::string> names_in(disk& d, const std::string& dir = "run/checkpoints") {
    std::vector<std::string> names;
    const auto entries = d.list(dir).value();
    for (auto& entry : entries) names.push_back(entry.name);
    return names;
}

errc code_of(const std::function<void()>& f) {
    try {
        f();
    } catch (const error& e) {
        return e.code();
    }
    return errc{};
}

} // namespace

TEST_CASE("a checkpoint gives back every byte, the extra state and what the run was") {
    crash_disk d;
    save_step(d, 7);
    checkpointer c(d, "run/checkpoints");
    auto found = c.load_latest();
    REQUIRE(found);
    CHECK(found->step() == 7);
    CHECK(is_intact(*found));
    CHECK(found->manifest().world_size == 1);
    CHECK(found->manifest().config_hash == "abc");
    CHECK(found->manifest().skein_version == SKEIN_VERSION_STRING);
    CHECK(found->manifest().metrics.at("val_loss") == 10.0 / 8.0);
    CHECK(names_in(d) == std::vector<std::string>{"step-00000007"});
}

TEST_CASE("a run without a checkpoint folder, or with an empty one, starts anew") {
    crash_disk d;
    CHECK_FALSE(checkpointer(d, "run/checkpoints").load_latest());
    d.make_dirs("run/checkpoints").value();
    CHECK_FALSE(checkpointer(d, "run/checkpoints").load_latest());
}

TEST_CASE("reading a tensor the checkpoint does not have, or of another shape, says both sides") {
    crash_disk d;
    save_step(d, 1);
    auto found = checkpointer(d, "run/checkpoints").load_latest();
    REQUIRE(found);
    byte_buffer bytes(80), wrong(79);
    const std::vector<std::int64_t> shape{5, 4}, other{4, 5};
    found->read("wte", "F32", shape, bytes);
    CHECK(code_of([&] { found->read("wpe", bytes); }) == errc::not_found);
    CHECK(code_of([&] { found->read("wte", wrong); }) == errc::mismatch);
    CHECK_THROWS_WITH(found->read("wte", "F32", other, bytes),
                      ContainsSubstring("saved as F32 [5, 4], the model has F32 [4, 5]"));
}

TEST_CASE("a checkpoint of any number of writers is read by any number of readers") {
    for (int writers : {1, 2, 3, 7}) {
        crash_disk d;
        test::run_ranks(writers, [&](int rank, test::exchange_fn exchange) {
            model m(40);
            checkpointer c(d, "run/checkpoints", {}, {rank, writers, exchange});
            const auto saved = c.save(state_of(m, 40));
            if (saved.step != 40 || saved.bytes == 0) throw std::runtime_error("wrong outcome");
        });
        CHECK(d.list("run/checkpoints/step-00000040").value().size() ==
              static_cast<std::size_t>(writers) + 1);
        for (int readers : {1, 2, 3}) {
            std::atomic<int> intact = 0;
            test::run_ranks(readers, [&](int rank, test::exchange_fn exchange) {
                checkpointer c(d, "run/checkpoints", {}, {rank, readers, exchange});
                auto found = c.load_latest();
                if (found && found->manifest().world_size == writers && is_intact(*found)) ++intact;
            });
            CHECK(intact == readers);
        }
    }
}

TEST_CASE("tensors are dealt so that no rank writes much more than another") {
    std::vector<byte_buffer> store;
    std::vector<tensor_part> tensors;
    for (std::size_t i = 0; i < 40; ++i) store.emplace_back((i % 7 + 1) * 100);
    for (std::size_t i = 0; i < 40; ++i)
        tensors.push_back({"t" + std::to_string(i),
                           "U8",
                           {static_cast<std::int64_t>(store[i].size())},
                           store[i]});
    const auto owner = train::detail::deal_tensors(tensors, 3);
    std::array<std::size_t, 3> load{};
    for (std::size_t i = 0; i < 40; ++i)
        load[static_cast<std::size_t>(owner[i])] += store[i].size();
    CHECK(*std::max_element(load.begin(), load.end()) -
              *std::min_element(load.begin(), load.end()) <=
          700);
}

TEST_CASE("a crash at any point of a save leaves the new checkpoint or the one before") {
    const auto total = [] {
        crash_disk d;
        save_step(d, 10);
        const auto before = d.changes();
        save_step(d, 20);
        return d.changes() - before;
    }();
    REQUIRE(total >= 10);
    int kept_old = 0, got_new = 0;
    for (std::uint64_t point = 0; point <= total; ++point) {
        crash_disk d;
        save_step(d, 10);
        d.power_off_after(point);
        bool reported = false;
        try {
            reported = save_step(d, 20).durable;
        } catch (const error&) {}
        std::vector<std::unique_ptr<crash_disk>> worlds;
        worlds.push_back(d.crash(crash_mode::all_written));
        worlds.push_back(d.crash(crash_mode::only_synced));
        for (std::uint64_t seed = 0; seed < 20; ++seed)
            worlds.push_back(d.crash(crash_mode::mixed, seed));
        for (auto& after : worlds) {
            warnings w;
            auto found = checkpointer(*after, "run/checkpoints", w.options()).load_latest();
            INFO("crash after " << point << " of " << total << " changes");
            REQUIRE(found);
            REQUIRE(is_intact(*found));
            REQUIRE((found->step() == 10 || found->step() == 20));
            REQUIRE((!reported || found->step() == 20)); // what was reported as saved is saved
            REQUIRE(w.lines.empty()); // and no crash leaves anything broken behind
            for (auto& name : names_in(*after)) REQUIRE(name.find('.') == std::string::npos);
            ++(found->step() == 10 ? kept_old : got_new);
        }
    }
    CHECK(kept_old > 0);
    CHECK(got_new > 0);
}

TEST_CASE("a save after one whose folders could not be synced makes their names durable") {
    crash_disk d;
    d.fail_once(2, errc::io); // two folders are made, then the sync of the upper one fails
    REQUIRE(code_of([&] { save_step(d, 10); }) == errc::io);
    save_step(d, 20);
    const auto after = d.crash(crash_mode::only_synced);
    const auto found = checkpointer(*after, "run/checkpoints", quiet()).load_latest();
    REQUIRE(found);
    CHECK(found->step() == 20);
    CHECK(is_intact(*found));
}

TEST_CASE(
    "a crash at any point of a save by two ranks leaves the new checkpoint or the one before") {
    auto save_by_two = [](crash_disk& d, std::uint64_t step) {
        test::run_ranks(2, [&](int rank, test::exchange_fn exchange) {
            model m(step);
            auto options = quiet();
            options.keep_last = 1; // with removal of the old one
            checkpointer(d, "run/checkpoints", options, {rank, 2, exchange})
                .save(state_of(m, step));
        });
    };
    crash_disk count;
    save_by_two(count, 10);
    const auto before = count.changes();
    save_by_two(count, 20);
    const auto total = count.changes() - before;
    for (std::uint64_t point = 0; point <= total; ++point) {
        crash_disk d;
        save_by_two(d, 10);
        d.power_off_after(point);
        try {
            save_by_two(d, 20);
        } catch (const error&) {}
        for (std::uint64_t seed = 0; seed < 6; ++seed) {
            const auto mode = seed == 0   ? crash_mode::all_written
                              : seed == 1 ? crash_mode::only_synced
                                          : crash_mode::mixed;
            auto after = d.crash(mode, seed);
            warnings w;
            auto found = checkpointer(*after, "run/checkpoints", w.options()).load_latest();
            INFO("crash after " << point << " of " << total << " changes, seed " << seed);
            REQUIRE(found);
            REQUIRE(is_intact(*found));
            REQUIRE(w.lines.empty());
        }
    }
}

TEST_CASE("saving a step again replaces it, and a crash in between loses nothing") {
    crash_disk d;
    save_step(d, 10);
    const auto before = d.changes();
    save_step(d, 10);
    const auto total = d.changes() - before;
    CHECK(names_in(d) == std::vector<std::string>{"step-00000010"});
    for (std::uint64_t point = 0; point <= total; ++point) {
        crash_disk again;
        save_step(again, 10);
        again.power_off_after(point);
        try {
            save_step(again, 10);
        } catch (const error&) {}
        for (std::uint64_t seed = 0; seed < 6; ++seed) {
            auto after = again.crash(seed == 0 ? crash_mode::all_written : crash_mode::mixed, seed);
            auto found = checkpointer(*after, "run/checkpoints").load_latest();
            INFO("crash after " << point << " of " << total << " changes, seed " << seed);
            REQUIRE(found);
            REQUIRE(is_intact(*found));
        }
    }
}

TEST_CASE("every flipped bit of a checkpoint is found, named, and the one before is used") {
    crash_disk good;
    warnings silent;
    save_step(good, 10, silent.options());
    test::run_ranks(2, [&](int rank, test::exchange_fn exchange) {
        model m(20);
        checkpointer(good, "run/checkpoints", silent.options(), {rank, 2, exchange})
            .save(state_of(m, 20));
    });
    const std::string folder = "run/checkpoints/step-00000020/";
    for (std::string name :
         {"manifest.json", "shard-0-of-2.safetensors", "shard-1-of-2.safetensors"}) {
        const auto bits = good.content(folder + name).size() * 8;
        REQUIRE(bits > 0);
        for (std::size_t bit = 0; bit < bits; ++bit) {
            auto& bytes = good.content(folder + name);
            bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
            auto opened = checkpointer::open(good, "run/checkpoints/step-00000020");
            bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
            INFO(name << " bit " << bit);
            REQUIRE_FALSE(opened);
            REQUIRE(std::string(opened.error().what()).find(name) != std::string::npos);
        }
        // The whole way once per file: refused with file and reason, renamed, the older one used.
        auto damaged = good.crash(crash_mode::all_written);
        damaged->content(folder + name)[bits / 16] ^= std::byte{1};
        warnings w;
        auto found = checkpointer(*damaged, "run/checkpoints", w.options()).load_latest();
        REQUIRE(found);
        CHECK(found->step() == 10);
        CHECK(is_intact(*found));
        REQUIRE(w.lines.size() == 1);
        CHECK_THAT(w.lines[0], ContainsSubstring(name) && ContainsSubstring("step 20 refused") &&
                                   ContainsSubstring("renamed to step-00000020.broken") &&
                                   ContainsSubstring("trying step 10"));
        CHECK(names_in(*damaged) ==
              std::vector<std::string>{"step-00000010", "step-00000020.broken"});
    }
}

TEST_CASE("a checkpoint cut off at any byte is refused, and so is one with a file missing") {
    crash_disk d;
    warnings silent;
    save_step(d, 10, silent.options());
    save_step(d, 20, silent.options());
    const std::string folder = "run/checkpoints/step-00000020/";
    for (std::string name : {"manifest.json", "shard-0-of-1.safetensors"}) {
        const auto whole = d.content(folder + name);
        for (std::size_t length = 0; length < whole.size(); ++length) {
            d.content(folder + name).resize(length);
            auto opened = checkpointer::open(d, "run/checkpoints/step-00000020");
            INFO(name << " cut to " << length);
            REQUIRE_FALSE(opened);
            d.content(folder + name) = whole;
        }
        d.content(folder + name).resize(whole.size() + 1);
        CHECK_FALSE(checkpointer::open(d, "run/checkpoints/step-00000020"));
        d.content(folder + name) = whole;
        REQUIRE(checkpointer::open(d, "run/checkpoints/step-00000020"));

        auto damaged = d.crash(crash_mode::all_written);
        damaged->remove(folder + name).value();
        warnings w;
        auto found = checkpointer(*damaged, "run/checkpoints", w.options()).load_latest();
        REQUIRE(found);
        CHECK(found->step() == 10);
        REQUIRE(w.lines.size() == 1);
        CHECK_THAT(w.lines[0], ContainsSubstring(name) && ContainsSubstring("no such file"));
    }
}

TEST_CASE("when every checkpoint is broken loading is refused and nothing on disk changes") {
    crash_disk d;
    save_step(d, 10);
    save_step(d, 20);
    for (std::string step : {"step-00000010", "step-00000020"})
        d.content("run/checkpoints/" + step + "/manifest.json").resize(3);
    warnings w;
    const auto changes = d.changes();
    for (int again = 0; again < 2; ++again) {
        try {
            (void)checkpointer(d, "run/checkpoints", w.options()).load_latest();
            FAIL("started anew");
        } catch (const error& e) {
            CHECK(e.code() == errc::not_found);
            CHECK_THAT(e.what(), ContainsSubstring("no checkpoint in run/checkpoints is whole") &&
                                     ContainsSubstring("step-00000020/manifest.json") &&
                                     ContainsSubstring("another run name"));
        }
    }
    CHECK(d.changes() == changes);
    CHECK(w.lines.empty());
    d.rename("run/checkpoints/step-00000010", "run/checkpoints/step-00000010.broken").value();
    d.remove_tree("run/checkpoints/step-00000020").value();
    CHECK_THROWS_WITH(checkpointer(d, "run/checkpoints", w.options()).load_latest(),
                      ContainsSubstring("renamed to .broken before"));
}

TEST_CASE("a folder that cannot be synced after the rename is a warning, the checkpoint is good") {
    crash_disk count;
    save_step(count, 10);
    auto before = count.changes();
    save_step(count, 20);
    int warned = 0;
    for (std::uint64_t n = 0; n < count.changes() - before; ++n) {
        crash_disk d;
        save_step(d, 10);
        d.fail_once(n, errc::io);
        warnings w;
        try {
            save_step(d, 20, w.options());
        } catch (const error& e) {
            INFO("operation " << n);
            CHECK_THAT(e.what(), ContainsSubstring("not written"));
            CHECK(names_in(d) == std::vector<std::string>{"step-00000010"}); // it told the truth
            continue;
        }
        if (w.lines.empty()) continue;
        ++warned;
        CHECK_THAT(w.lines[0], ContainsSubstring("checkpoint of step 20 is written and whole") &&
                                   ContainsSubstring("could not be synced"));
        CHECK(names_in(d) == std::vector<std::string>{"step-00000010", "step-00000020"});
        CHECK(is_intact(checkpointer(d, "run/checkpoints").load_latest().value()));
    }
    CHECK(warned >= 1);
}

TEST_CASE("a half-written folder is cleared away and never loaded") {
    crash_disk d;
    save_step(d, 10);
    d.make_dirs("run/checkpoints/step-00000020.part-00000000000000ff").value();
    d.write_whole("run/checkpoints/step-00000020.part-00000000000000ff/manifest.json",
                  as_bytes(std::string_view("{}")))
        .value();
    warnings w;
    auto found = checkpointer(d, "run/checkpoints", w.options()).load_latest();
    REQUIRE(found);
    CHECK(found->step() == 10);
    CHECK(w.lines.empty());
    CHECK(names_in(d) == std::vector<std::string>{"step-00000010"});
}

TEST_CASE("a checkpoint of a newer format is not touched: a person decides") {
    crash_disk d;
    save_step(d, 10);
    checkpoint_manifest m;
    auto text = dump_manifest(m);
    text.replace(text.find("skein-checkpoint-2"), 18, "skein-checkpoint-9");
    const auto body = text.substr(0, text.size() - train::detail::manifest_tail.size());
    text = body + train::detail::make_manifest_tail(body);
    d.make_dirs("run/checkpoints/step-00000020").value();
    d.write_whole("run/checkpoints/step-00000020/manifest.json", as_bytes(std::string_view(text)))
        .value();
    CHECK(code_of([&] { (void)checkpointer(d, "run/checkpoints").load_latest(); }) ==
          errc::not_supported);
    CHECK(names_in(d) == std::vector<std::string>{"step-00000010", "step-00000020"});
}

TEST_CASE("a disk that runs full at any byte fails the save and keeps the checkpoint before") {
    crash_disk probe;
    save_step(probe, 10);
    const auto used = UINT64_MAX - probe.free_space("").value();
    save_step(probe, 20);
    const auto both = UINT64_MAX - probe.free_space("").value();
    int failures = 0;
    for (auto capacity = used; capacity <= both; capacity += 13) {
        crash_disk d;
        save_step(d, 10);
        d.set_capacity(capacity);
        try {
            save_step(d, 20);
        } catch (const error& e) {
            ++failures;
            INFO("capacity " << capacity << " of " << both);
            REQUIRE(e.code() == errc::disk_full);
            REQUIRE_THAT(e.what(), ContainsSubstring("checkpoint of step 20 not written") &&
                                       ContainsSubstring("no space left on device") &&
                                       ContainsSubstring("free some space") &&
                                       ContainsSubstring("checkpoint of step 10 is kept"));
            REQUIRE(names_in(d) == std::vector<std::string>{"step-00000010"});
            auto found = checkpointer(d, "run/checkpoints").load_latest();
            REQUIRE(found);
            REQUIRE(is_intact(*found));
        }
    }
    CHECK(failures > 20);
}

TEST_CASE("any single failing operation of a save is reported to every rank and leaves no debris") {
    for (std::uint64_t n = 0;; ++n) {
        crash_disk d;
        save_step(d, 10);
        const auto before = d.changes();
        d.fail_once(n, errc::io);
        std::atomic<int> failed = 0;
        warnings w;
        std::mutex guard;
        test::run_ranks(2, [&](int rank, test::exchange_fn exchange) {
            model m(20);
            auto options = w.options();
            options.warn = [&](const std::string& line) {
                std::lock_guard lock(guard);
                w.lines.push_back(line);
            };
            try {
                checkpointer(d, "run/checkpoints", options, {rank, 2, exchange})
                    .save(state_of(m, 20));
            } catch (const error&) {
                ++failed;
            }
        });
        INFO("operation " << n);
        REQUIRE((failed == 0 || failed == 2));
        auto found = checkpointer(d, "run/checkpoints", w.options()).load_latest();
        REQUIRE(found);
        REQUIRE(is_intact(*found));
        REQUIRE((failed == 2 || found->step() == 20));
        for (auto& name : names_in(d)) REQUIRE(name.find('.') == std::string::npos);
        if (d.changes() - before <= n) { // behind the last operation: nothing failed
            REQUIRE(failed == 0);
            break;
        }
    }
}

TEST_CASE("ranks that save different things all learn it and nothing is left") {
    crash_disk d;
    std::atomic<int> mismatches = 0;
    test::run_ranks(3, [&](int rank, test::exchange_fn exchange) {
        model m(5);
        auto state = state_of(m, 5);
        if (rank == 2) state.tensors.pop_back();
        try {
            checkpointer(d, "run/checkpoints", {}, {rank, 3, exchange}).save(state);
        } catch (const error& e) {
            if (e.code() == errc::mismatch &&
                std::string(e.what()).find("rank 2") != std::string::npos)
                ++mismatches;
        }
    });
    CHECK(mismatches == 3);
    CHECK(names_in(d).empty());
}

TEST_CASE("all readers pass over a broken checkpoint to the same older one") {
    crash_disk d;
    save_step(d, 10);
    save_step(d, 20);
    d.content("run/checkpoints/step-00000020/shard-0-of-1.safetensors").back() ^= std::byte{1};
    std::atomic<int> at_10 = 0;
    test::run_ranks(3, [&](int rank, test::exchange_fn exchange) {
        auto found = checkpointer(d, "run/checkpoints", quiet(), {rank, 3, exchange}).load_latest();
        if (found && found->step() == 10 && is_intact(*found)) ++at_10;
    });
    CHECK(at_10 == 3);
}

TEST_CASE("a rank that does not see the run folder stops all of them with a way out") {
    crash_disk shared, other;
    std::atomic<int> told = 0;
    auto disk_of = [&](int rank) -> disk& { return rank == 1 ? other : shared; };
    auto expect_hint = [&](const std::function<void()>& f) {
        try {
            f();
        } catch (const error& e) {
            const std::string what = e.what();
            if (what.find("rank 1") != std::string::npos &&
                what.find("file system all hosts share") != std::string::npos)
                ++told;
        }
    };
    test::run_ranks(2, [&](int rank, test::exchange_fn exchange) {
        model m(1);
        checkpointer c(disk_of(rank), "run/checkpoints", quiet(), {rank, 2, exchange});
        expect_hint([&] { c.save(state_of(m, 1)); });
    });
    CHECK(told == 2);
    CHECK(names_in(shared).empty());

    told = 0;
    save_step(shared, 1);
    test::run_ranks(2, [&](int rank, test::exchange_fn exchange) {
        checkpointer c(disk_of(rank), "run/checkpoints", quiet(), {rank, 2, exchange});
        expect_hint([&] { (void)c.load_latest(); });
    });
    CHECK(told == 2);
}

TEST_CASE("two tensors of one name cannot be saved") {
    crash_disk d;
    model m(1);
    auto state = state_of(m, 1);
    state.tensors.push_back(state.tensors[0]);
    CHECK(code_of([&] { checkpointer(d, "run/checkpoints").save(state); }) ==
          errc::invalid_argument);
    CHECK(names_in(d).empty());
}

TEST_CASE("retention keeps the last k and the best k by metric") {
    crash_disk d;
    checkpoint_options options;
    options.keep_last = 2;
    options.keep_best = 2;
    const std::vector<double> losses{5.0, 2.0, 4.0, 1.0, 3.0, 6.0, 7.0};
    model m(0);
    for (std::size_t i = 0; i < losses.size(); ++i) {
        auto state = state_of(m, i);
        state.metrics = {{"val_loss", losses[i]}};
        checkpointer(d, "run/checkpoints", options).save(state);
    }
    CHECK(checkpointer(d, "run/checkpoints").steps() == std::vector<std::uint64_t>{1, 3, 5, 6});

    options.lower_is_better = false;
    options.keep_best = 1;
    options.keep_last = 1;
    auto state = state_of(m, 7);
    state.metrics = {{"val_loss", 0.5}};
    checkpointer(d, "run/checkpoints", options).save(state);
    CHECK(checkpointer(d, "run/checkpoints").steps() == std::vector<std::uint64_t>{6, 7});
}

TEST_CASE("retention by bytes takes the cheapest first, and never the newest") {
    const auto bytes_of = [](disk& d, std::uint64_t step) {
        std::uint64_t sum = 0;
        const auto files = d.list(checkpointer(d, "run/checkpoints").step_path(step)).value();
        for (const auto& each : files) sum += each.bytes;
        return sum;
    };
    const auto kept_of_ten = [](disk& d, std::uint64_t bytes) {
        checkpoint_options options;
        options.keep_last = 3;
        options.keep_best = 2;
        options.keep_every = 2;
        model m(0);
        for (std::uint64_t step = 1; step <= 10; ++step) {
            options.keep_bytes = step < 10 ? 0 : bytes; // all at once, by the last
            auto state = state_of(m, step);
            state.metrics = {{"val_loss", step == 3 ? 1.0 : step == 5 ? 2.0 : 9.0}};
            checkpointer(d, "run/checkpoints", options).save(state);
        }
        return checkpointer(d, "run/checkpoints").steps();
    };
    using steps = std::vector<std::uint64_t>;
    crash_disk any;
    CHECK(kept_of_ten(any, 0) == steps{2, 3, 4, 5, 6, 8, 9, 10});
    std::uint64_t all = 0, sum = 0;
    for (const auto step : {2, 3, 4, 5, 6, 8, 9, 10}) all += bytes_of(any, step);
    constexpr std::uint64_t slack = 100; // digits of a time
    REQUIRE(bytes_of(any, 10) > 3 * slack);
    struct row {
        std::uint64_t dearest; // the one that fits with those of the rows above
        steps kept;
    };
    for (const auto& r :
         {row{10, {10}}, row{3, {3, 10}}, row{5, {3, 5, 10}}, row{9, {3, 5, 9, 10}},
          row{8, {3, 5, 8, 9, 10}}, row{6, {3, 5, 6, 8, 9, 10}}, row{4, {3, 4, 5, 6, 8, 9, 10}}}) {
        sum += bytes_of(any, r.dearest);
        crash_disk more, less;
        CHECK(kept_of_ten(more, sum + slack) == r.kept);
        auto fewer = r.kept;
        if (fewer.size() > 1) std::erase(fewer, r.dearest);
        CHECK(kept_of_ten(less, sum - slack) == fewer);
    }
    crash_disk whole;
    CHECK(kept_of_ten(whole, all + slack) == steps{2, 3, 4, 5, 6, 8, 9, 10});
}

TEST_CASE("folders that only look like a checkpoint's are neither loaded nor removed") {
    crash_disk d;
    const std::vector<std::string> theirs{"foo-step-00000003",
                                          "step-000000009", // nine digits: step 9 has eight
                                          "step-00000002.backup",
                                          "step-00000004.part-2",
                                          "step-00000005.part-one of the paper",
                                          "step-00000006.trash.kept",
                                          "step-5",
                                          "step-notes.part-0123456789abcdef"};
    const std::string dir = "run/checkpoints/";
    for (const auto& name : theirs) {
        d.make_dirs(dir + name).value();
        d.write_whole(dir + name + "/a", to_buffer("theirs")).value();
    }
    d.make_dirs(dir + "step-00000001.part-0123456789abcdef").value(); // ours, of a crash
    auto options = quiet();
    options.keep_last = 1;
    for (const std::uint64_t step : {7, 8}) save_step(d, step, options);
    checkpointer saver(d, "run/checkpoints", quiet());
    CHECK(saver.steps() == std::vector<std::uint64_t>{8});
    CHECK(saver.load_latest()->step() == 8);
    auto names = names_in(d);
    std::erase(names, "step-00000008");
    CHECK(names == theirs);
}

TEST_CASE("steps are numbers, also where their names become longer") {
    crash_disk d;
    auto options = quiet();
    options.keep_last = 2;
    for (const std::uint64_t step : {9999u, 10000u, 99999999u, 100000000u, 100000001u})
        save_step(d, step, options);
    checkpointer saver(d, "run/checkpoints", options);
    CHECK(saver.steps() == std::vector<std::uint64_t>{100000000, 100000001});
    CHECK(saver.load_latest()->step() == 100000001);
    CHECK(names_in(d) == std::vector<std::string>{"step-100000000", "step-100000001"});
}

TEST_CASE("checkpoints of before a resume count, and one that a person took away is not missed") {
    crash_disk d;
    auto options = quiet();
    options.keep_last = 2;
    options.keep_best = 1;
    model m(0);
    const auto save = [&](std::uint64_t step, double loss) {
        auto state = state_of(m, step);
        state.metrics = {{"val_loss", loss}};
        checkpointer(d, "run/checkpoints", options).save(state); // each is a start of its own
    };
    using steps = std::vector<std::uint64_t>;
    const auto there = [&] { return checkpointer(d, "run/checkpoints").steps(); };
    for (std::uint64_t step = 1; step <= 4; ++step) save(step, static_cast<double>(step));
    CHECK(there() == steps{1, 3, 4});
    d.remove_tree("run/checkpoints/step-00000001").value(); // the best
    save(5, 5.0);
    CHECK(there() == steps{3, 4, 5}); // the best of what is there
    save(6, 6.0);
    CHECK(there() == steps{3, 5, 6});
}

TEST_CASE("a checkpoint without the metric, or with NaN, is never among the best") {
    crash_disk d;
    checkpoint_options options;
    options.keep_last = 1;
    options.keep_best = 1;
    model m(0);
    for (std::uint64_t step : {1, 2, 3}) {
        auto state = state_of(m, step);
        state.metrics.clear();
        if (step == 1) state.metrics["val_loss"] = 9.0;
        if (step == 2) state.metrics["val_loss"] = std::numeric_limits<double>::quiet_NaN();
        checkpointer(d, "run/checkpoints", options).save(state);
    }
    CHECK(checkpointer(d, "run/checkpoints").steps() == std::vector<std::uint64_t>{1, 3});
}

TEST_CASE("checkpoints on a real file system") {
    test::temporary_folder folder;
    posix_disk d;
    const auto dir = folder.path + "/checkpoints";
    for (std::uint64_t step : {1, 2, 3}) save_step(d, step, quiet(), dir);
    auto found = checkpointer(d, dir).load_latest();
    REQUIRE(found);
    CHECK(found->step() == 3);
    CHECK(is_intact(*found));
    CHECK(names_in(d, dir) == std::vector<std::string>{"step-00000002", "step-00000003"});
}

TEST_CASE("a real disk that is full: a clear error, no debris, the older checkpoint kept") {
    test::temporary_folder folder;
    if (!folder.mount_tmpfs("size=256k")) SKIP("mounting a small tmpfs needs root");
    posix_disk d;
    const auto dir = folder.path + "/checkpoints";
    save_step(d, 1, quiet(), dir);
    model big(2, 8192); // 160 KiB + 128 KiB
    std::string what;
    errc code{};
    try {
        checkpointer(d, dir).save(state_of(big, 2));
    } catch (const error& e) {
        what = e.what();
        code = e.code();
    }
    CHECK(code == errc::disk_full);
    CHECK_THAT(what,
               ContainsSubstring("no space left on device") && ContainsSubstring("step 1 is kept"));
    CHECK(names_in(d, dir) == std::vector<std::string>{"step-00000001"});
    {
        auto found = checkpointer(d, dir).load_latest();
        REQUIRE(found);
        CHECK(is_intact(*found));
    }
}

TEST_CASE("a folder that cannot be written is named with a way out") {
    crash_disk d;
    d.fail_once(0, errc::permission_denied);
    CHECK_THROWS_WITH(save_step(d, 3), ContainsSubstring("checkpoint of step 3 not written") &&
                                           ContainsSubstring("run"));
}

TEST_CASE("a folder or a pipe in the place of a file is damage: the checkpoint before is used") {
    for (const std::string name : {"shard-0-of-1.safetensors", "manifest.json"})
        for (const bool pipe : {false, true}) {
            INFO(name << (pipe ? ": a pipe" : ": a folder"));
            test::temporary_folder folder;
            posix_disk d(link_policy::refuse);
            const auto dir = folder.path + "/checkpoints";
            warnings w;
            for (std::uint64_t step : {1, 2}) save_step(d, step, w.options(), dir);
            const auto file = dir + "/step-00000002/" + name;
            REQUIRE(d.remove(file));
            if (pipe)
                REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
            else
                REQUIRE(d.make_dirs(file));
            auto found = checkpointer(d, dir, w.options()).load_latest();
            REQUIRE(found);
            CHECK(found->step() == 1);
            CHECK(is_intact(*found));
            REQUIRE(w.lines.size() == 1);
            CHECK_THAT(w.lines[0], ContainsSubstring(pipe ? "it is a pipe" : "it is a folder") &&
                                       ContainsSubstring("renamed to step-00000002.broken"));
        }
}

TEST_CASE("a checkpoint that the disk does not give ends the resume with what to type for the one "
          "before, and stays") {
    const std::vector<std::string> both{"step-00000001", "step-00000002"};
    int told = 0;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        seeded_random random(seed);
        crash_disk d(random);
        warnings silent;
        for (std::uint64_t step : {1, 2}) save_step(d, step, silent.options());
        d.options().io_error = 0.2;
        std::string why;
        try {
            (void)checkpointer(d, "run/checkpoints", silent.options()).load_latest();
        } catch (const error& e) {
            CHECK(e.code() == errc::io);
            why = e.what();
        }
        d.options().io_error = 0;
        CHECK(names_in(d) == both);
        if (why.find("step-00000002") == std::string::npos) continue; // the list, or nothing failed
        ++told;
        CHECK_THAT(why, ContainsSubstring("go on from step 1 instead: mv "
                                          "run/checkpoints/step-00000002 "
                                          "run/checkpoints/step-00000002.unreadable"));
        d.rename("run/checkpoints/step-00000002", "run/checkpoints/step-00000002.unreadable")
            .value();
        const auto found = checkpointer(d, "run/checkpoints", silent.options()).load_latest();
        REQUIRE(found);
        CHECK(found->step() == 1);
    }
    CHECK(told > 5);

    test::temporary_folder folder; // a link is not followed, so it is not read either
    posix_disk real(link_policy::refuse);
    const auto dir = folder.path + "/checkpoints";
    save_step(real, 1, quiet(), dir);
    const auto shard = dir + "/step-00000001/shard-0-of-1.safetensors";
    real.rename(shard, folder.path + "/elsewhere").value();
    REQUIRE(::symlink((folder.path + "/elsewhere").c_str(), shard.c_str()) == 0);
    CHECK_THROWS_WITH(checkpointer(real, dir).load_latest(),
                      ContainsSubstring("symbolic link") &&
                          ContainsSubstring("resume when it can be read again") &&
                          !ContainsSubstring("instead"));
}
