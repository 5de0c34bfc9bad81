// SPDX-License-Identifier: Apache-2.0
// Checkpoints of tensors whose rows lie on several ranks (<skein/train/checkpoint.hpp>).
#include <skein/core/error.hpp>
#include <skein/sim/disk.hpp>
#include <skein/train/checkpoint.hpp>
#include <skein/wire/json.hpp>

#include <support/thread_world.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <fmt/core.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <set>

using namespace skein;
using namespace skein::train;
using Catch::Matchers::ContainsSubstring;
using sharded_disk = skein::sim::disk;
using skein::sim::crash_mode;

namespace {

const std::string sharded_dir = "run/checkpoints";

struct whole_tensor {
    std::string name, dtype;
    std::vector<std::int64_t> shape;
    bool everywhere = false;

    [[nodiscard]] byte_buffer bytes(std::uint64_t step) const {
        byte_buffer out(tensor_bytes(dtype, shape).value());
        for (std::size_t i = 0; i < out.size(); ++i)
            out[i] = static_cast<std::byte>(step * 31 + i * 7 + name.size() * 3);
        return out;
    }
    [[nodiscard]] std::int64_t rows() const { return train::detail::rows_of(shape); }
    [[nodiscard]] std::size_t row_bytes() const {
        return rows() == 0 ? 0 : bytes(0).size() / static_cast<std::size_t>(rows());
    }
};

const std::vector<whole_tensor> sharded_tensors{
    {"w", "F32", {7, 3}},      {"bias", "BF16", {11}},        {"tall", "F64", {40, 2}},
    {"scale", "I64", {}},      {"one", "F32", {1, 2, 4}},     {"none", "F32", {0, 4}},
    {"hollow", "F32", {5, 0}}, {"norm", "F32", {6, 2}, true}, {"count", "I64", {}, true}};

/// The first row of each rank, and the end: uneven, and one rank has none.
std::vector<std::int64_t> cut_rows(std::int64_t rows, int world, std::size_t salt) {
    std::vector<std::int64_t> weights, cuts{0};
    std::int64_t sum = 0, upto = 0;
    for (int r = 0; r < world; ++r) {
        const auto k = static_cast<std::int64_t>(salt) + r;
        weights.push_back(world > 1 && k % world == 0 ? 0 : k % 3 + 1);
        sum += weights.back();
    }
    for (int r = 0; r < world; ++r) {
        upto += weights[static_cast<std::size_t>(r)];
        cuts.push_back(rows * upto / sum);
    }
    return cuts;
}

/// What one rank has of everything.
struct rank_tensors {
    std::vector<byte_buffer> store;
    checkpoint_state state;

    rank_tensors(std::uint64_t step, int rank, int world) {
        state.step = step;
        for (std::size_t i = 0; i < sharded_tensors.size(); ++i) {
            const auto& t = sharded_tensors[i];
            const auto cuts = cut_rows(t.rows(), world, i);
            const auto first = cuts[static_cast<std::size_t>(rank)];
            const auto rows = cuts[static_cast<std::size_t>(rank) + 1] - first;
            auto bytes = t.bytes(step);
            if (!t.everywhere)
                bytes = to_buffer(
                    byte_span(bytes).subspan(t.row_bytes() * first, t.row_bytes() * rows));
            store.push_back(std::move(bytes));
            auto part = tensor_part{t.name, t.dtype, t.shape, store.back()};
            if (!t.everywhere) {
                part.everywhere = false;
                part.first_row = first;
                part.rows = rows;
            }
            state.tensors.push_back(std::move(part));
        }
    }
    [[nodiscard]] tensor_part& at(const std::string& name) {
        return *std::ranges::find(state.tensors, name, &tensor_part::name);
    }
};

checkpoint_options small_chunks(std::vector<std::string>* warned = nullptr) {
    checkpoint_options o;
    o.chunk_bytes = 64;
    o.warn = [warned](const std::string& line) {
        if (warned != nullptr) warned->push_back(line);
    };
    return o;
}

using change_function = std::function<void(rank_tensors&, int rank)>;

/// Every rank saves; the messages of those that failed.
std::vector<std::string> save_rows(disk& d, std::uint64_t step, int world,
                                   const change_function& change = {}) {
    std::vector<std::string> failed;
    std::mutex guard;
    test::run_ranks(world, [&](int rank, test::exchange_fn exchange) {
        rank_tensors mine(step, rank, world);
        if (change) change(mine, rank);
        try {
            checkpointer(d, sharded_dir, small_chunks(), {rank, world, exchange}).save(mine.state);
        } catch (const error& e) {
            std::lock_guard lock(guard);
            failed.push_back(fmt::format("{}: {}", to_string(e.code()), e.what()));
        }
    });
    return failed;
}

bool all_rows_intact(const loaded_checkpoint& found, bool every_range = false) {
    if (found.tensors().size() != sharded_tensors.size()) return false;
    for (const auto& t : sharded_tensors) {
        const auto wanted = t.bytes(found.step());
        if (found.tensors().at(t.name).shape != t.shape || found.read(t.name) != wanted)
            return false;
        for (std::int64_t first = 0; every_range && first <= t.rows(); ++first)
            for (std::int64_t end = first; end <= t.rows(); ++end) {
                const auto part =
                    byte_span(wanted).subspan(t.row_bytes() * first, t.row_bytes() * (end - first));
                byte_buffer got(part.size());
                found.read(t.name, t.dtype, t.shape, first, end - first, got);
                if (!std::ranges::equal(got, part)) return false;
            }
    }
    return true;
}

/// Every rank loads from a disk of its own or the same; how it went, rank by rank.
std::vector<std::string> load_rows(int world, const std::function<disk&(int)>& disk_of,
                                   std::vector<std::string>* warned = nullptr) {
    std::vector<std::string> out(static_cast<std::size_t>(world));
    test::run_ranks(world, [&](int rank, test::exchange_fn exchange) {
        auto& said = out[static_cast<std::size_t>(rank)];
        try {
            checkpointer c(disk_of(rank), sharded_dir, small_chunks(rank == 0 ? warned : nullptr),
                           {rank, world, exchange});
            const auto found = c.load_latest();
            said = !found                    ? "nothing"
                   : all_rows_intact(*found) ? fmt::format("step {}", found->step())
                                             : "damaged";
        } catch (const error& e) {
            said = e.what();
        }
    });
    return out;
}

std::vector<std::string> same_for(int world, const std::string& said) {
    return std::vector<std::string>(static_cast<std::size_t>(world), said);
}

std::vector<std::string> folders_in(disk& d) {
    std::vector<std::string> names;
    for (auto& entry : d.list(sharded_dir).value()) names.push_back(entry.name);
    return names;
}

/// Changes the text of a manifest and makes its checksum right again.
void edit_manifest(sharded_disk& d, const std::string& folder, std::string_view from,
                   std::string_view to) {
    auto& bytes = d.content(folder + "/manifest.json");
    std::string text(as_text(bytes));
    text.resize(text.size() - train::detail::manifest_tail.size());
    const auto at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    text += train::detail::make_manifest_tail(text);
    bytes = to_buffer(std::string_view(text));
}

} // namespace

TEST_CASE("rows that any number of ranks saved are read in any range by any number of ranks") {
    for (int writers : {1, 2, 3, 4}) {
        sharded_disk d;
        REQUIRE(save_rows(d, 40, writers).empty());
        for (int readers : {1, 2, 3, 4}) {
            std::atomic<int> intact = 0;
            test::run_ranks(readers, [&](int rank, test::exchange_fn exchange) {
                const auto found =
                    checkpointer(d, sharded_dir, {}, {rank, readers, exchange}).load_latest();
                if (found && all_rows_intact(*found, true)) ++intact;
            });
            INFO(writers << " writers, " << readers << " readers");
            CHECK(intact == readers);
        }
    }
}

TEST_CASE("rows that a tensor has not, or memory of another size, are refused") {
    sharded_disk d;
    REQUIRE(save_rows(d, 1, 3).empty());
    const auto found = checkpointer(d, sharded_dir).load_latest().value();
    const std::vector<std::int64_t> shape{7, 3}, other{7, 4};
    byte_buffer rows(24);
    const auto code = [&](std::span<const std::int64_t> of, std::int64_t first, std::int64_t n) {
        try {
            found.read("w", "F32", of, first, n, rows);
        } catch (const error& e) {
            return e.code();
        }
        return errc{};
    };
    CHECK(code(shape, 2, 2) == errc{});
    CHECK(code(other, 2, 2) == errc::mismatch);
    CHECK(code(shape, 2, 3) == errc::mismatch);
    CHECK(code(shape, 6, 2) == errc::invalid_argument);
    CHECK(code(shape, -1, 2) == errc::invalid_argument);
    CHECK(code(shape, 2, -2) == errc::invalid_argument);
    CHECK(code(shape, INT64_MAX, 2) == errc::invalid_argument);
}

TEST_CASE("of replicas with equal rows only those that give them write them") {
    sharded_disk d;
    // Ranks 2 and 3 have what ranks 0 and 1 have.
    const auto failed = save_rows(d, 5, 4, [](rank_tensors& mine, int rank) {
        mine = rank_tensors(5, rank % 2, 2);
        for (auto& t : mine.state.tensors)
            if (!t.everywhere && rank >= 2) t.first_row = 0, t.rows = 0, t.bytes = {};
    });
    REQUIRE(failed.empty());
    CHECK(load_rows(3, [&](int) -> disk& { return d; }) == same_for(3, "step 5"));
    const auto found = checkpointer::open(d, sharded_dir + "/step-00000005").value();
    for (const auto& [name, tensor] : found.tensors())
        for (const auto& part : tensor.parts)
            CHECK((part.shard < 2 || name == "norm" || name == "count" || name == "none"));
}

TEST_CASE("every tensor of every shard tells its first row where PyTorch's reader looks for it") {
    sharded_disk d;
    REQUIRE(save_rows(d, 3, 3).empty());
    std::map<std::string, std::int64_t> rows;
    for (int shard = 0; shard < 3; ++shard) {
        const auto& file = d.content(
            fmt::format("{}/step-00000003/shard-{}-of-3.safetensors", sharded_dir, shard));
        const auto content = parse_safetensors(file).value();
        const auto info = parse_json(content.metadata.at("DCP_SHARDING_INFO")).value();
        CHECK(info.size() == content.tensors.size());
        for (const auto& t : content.tensors) {
            const auto offsets = json_uints(info.at(t.name), "saved_offsets").value();
            REQUIRE(offsets.size() == t.shape.size());
            const auto whole = std::ranges::find(sharded_tensors, t.name, &whole_tensor::name);
            const auto begin = offsets.empty() ? 0 : offsets[0] * whole->row_bytes();
            const auto wanted = whole->bytes(3);
            CHECK(std::ranges::equal(t.bytes, byte_span(wanted).subspan(begin, t.bytes.size())));
            rows[t.name] += train::detail::rows_of(t.shape);
        }
    }
    for (const auto& t : sharded_tensors) CHECK(rows.at(t.name) == t.rows());
}

TEST_CASE("rows that no rank has, or two ranks, are named on every rank and nothing is left") {
    sharded_disk d;
    REQUIRE(save_rows(d, 10, 3).empty());
    const auto refused = [&](const change_function& change, const std::string& text) {
        const auto failed = save_rows(d, 20, 3, change);
        REQUIRE(failed.size() == 3);
        for (const auto& line : failed)
            CHECK_THAT(line, ContainsSubstring("invalid_argument") && ContainsSubstring(text));
        CHECK(folders_in(d) == std::vector<std::string>{"step-00000010"});
    };
    const auto cuts = cut_rows(40, 3, 2);
    const auto whole = sharded_tensors[2].bytes(20);
    const auto give = [&](std::int64_t first, std::int64_t end) -> change_function {
        return [&whole, first, end](rank_tensors& mine, int rank) {
            if (rank != 2) return;
            auto& t = mine.at("tall");
            t.first_row = first;
            t.rows = end - first;
            t.bytes = byte_span(whole).subspan(16 * first, 16 * t.rows);
        };
    };
    REQUIRE(cuts[2] < 39);
    refused(give(cuts[2] + 1, 40),
            fmt::format("tensor 'tall': rows [{}, {}) are in no shard", cuts[2], cuts[2] + 1));
    refused(give(cuts[2], 38), "tensor 'tall': rows [38, 40) are in no shard");
    refused(give(cuts[2], cuts[2]),
            fmt::format("tensor 'tall': rows [{}, 40) are in no shard", cuts[2]));
    refused(give(cuts[2] - 2, 40),
            fmt::format("tensor 'tall': rows [{}, {}) are in shards", cuts[2] - 2, cuts[2]));
    refused(
        [](rank_tensors& mine, int) {
            auto& scalar = mine.at("scale");
            static const byte_buffer eight(8);
            scalar.rows = 1, scalar.first_row = 0, scalar.bytes = eight;
        },
        "tensor 'scale': rows [0, 1) are in shards 0 and 1");
}

TEST_CASE("a rank whose rows, bytes and shape do not agree is named on every rank") {
    const std::pair<change_function, std::string> cases[] = {
        {[](rank_tensors& m, int) { m.at("w").first_row = 7; }, "rows from row 7 given"},
        {[](rank_tensors& m, int) { m.at("w").rows = -2; }, "-2 rows from row"},
        {[](rank_tensors& m, int) { m.at("w").first_row = INT64_MAX; }, "the shape is [7, 3]"},
        {[](rank_tensors& m, int) { m.at("w").bytes = m.at("w").bytes.first(3); },
         "3 bytes given, type and shape say"},
        {[](rank_tensors& m, int) { m.at("norm").rows = 3; }, "but it is everywhere"},
        {[](rank_tensors& m, int) { m.at("norm").bytes = m.at("norm").bytes.first(3); },
         "tensor 'norm': 3 bytes given, type and shape say 48"},
    };
    for (const auto& [change, text] : cases) {
        sharded_disk d;
        const auto failed = save_rows(d, 20, 2, [&](rank_tensors& mine, int rank) {
            if (rank == 1) change(mine, rank);
        });
        REQUIRE(failed.size() == 2);
        for (const auto& line : failed)
            CHECK_THAT(line, ContainsSubstring("invalid_argument") && ContainsSubstring("rank 1") &&
                                 ContainsSubstring(text));
        CHECK(folders_in(d).empty());
    }
    sharded_disk d; // one rank holds a tensor everywhere, the others in rows
    for (const auto& line : save_rows(d, 20, 2, [&](rank_tensors& mine, int rank) {
             if (rank == 1) mine.at("count").everywhere = false;
         }))
        CHECK_THAT(line, ContainsSubstring("mismatch") && ContainsSubstring("rank 1 wants"));
}

TEST_CASE("a checkpoint of format 1 is read as it was written") {
    sharded_disk d;
    const auto folder = sharded_dir + "/step-00000006";
    d.make_dirs(folder).value();
    std::string shards;
    std::vector<byte_buffer> store;
    for (int shard = 0; shard < 2; ++shard) {
        std::vector<tensor_view> tensors;
        for (std::size_t i = 0; i < sharded_tensors.size(); ++i) {
            const auto& t = sharded_tensors[i];
            store.push_back(t.bytes(6));
            if (i % 2 == static_cast<std::size_t>(shard))
                tensors.push_back({t.name, t.dtype, t.shape, store.back()});
        }
        const auto plan = plan_safetensors(tensors, {{"format", "pt"}}).value();
        byte_buffer file;
        write_safetensors(plan, [&](byte_span part) {
            return append(file, part), result<void>();
        }).value();
        chunk_checksums sums(100);
        sums.add(file);
        const auto name = fmt::format("shard-{}-of-2.safetensors", shard);
        d.write_whole(join_path(folder, name), file).value();
        shards +=
            fmt::format(R"({}{{"name": "{}", "bytes": {}, "crc32c": {}}})", shard == 0 ? "" : ", ",
                        name, file.size(), dump_json(json(sums.finish())));
    }
    const auto body = fmt::format(R"({{"format": "skein-checkpoint-1", "step": 6, "world_size": 2,
  "chunk_bytes": 100, "shards": [{}], "extra": {{"seed": 3}}, "metrics": {{"val_loss": 0.5}},
  "config_hash": "ab", "skein": "0.1.0", "wall_time": 1.5)",
                                  shards);
    const auto text = body + train::detail::make_manifest_tail(body);
    d.write_whole(folder + "/manifest.json", as_bytes(std::string_view(text))).value();

    const auto found = checkpointer(d, sharded_dir, small_chunks()).load_latest();
    REQUIRE(found);
    CHECK(all_rows_intact(*found, true));
    CHECK(found->manifest().version == 1);
    CHECK(found->extra() == R"({"seed":3})");
    CHECK(load_rows(3, [&](int) -> disk& { return d; }) == same_for(3, "step 6"));
    // A tensor that is in both shards is refused, as before.
    const auto first = d.content(folder + "/shard-0-of-2.safetensors");
    d.content(folder + "/shard-1-of-2.safetensors") = first;
    const auto opened = checkpointer::open(d, folder, false);
    CHECK_FALSE(opened);
}

TEST_CASE("a flipped byte is found by whichever rank verifies it, with the verdict of one alone") {
    sharded_disk good;
    REQUIRE(save_rows(good, 10, 2).empty());
    REQUIRE(save_rows(good, 20, 3).empty());
    const auto folder = sharded_dir + "/step-00000020/";
    for (int shard = 0; shard < 3; ++shard) {
        const auto path = fmt::format("{}shard-{}-of-3.safetensors", folder, shard);
        const auto size = good.content(path).size();
        for (std::size_t at = 0; at < size; at += 61) {
            std::vector<std::string> alone;
            for (int readers : {1, 2, 3, 4}) {
                auto damaged = good.crash(crash_mode::all_written);
                damaged->content(path)[at] ^= std::byte{1};
                // A later one too: it must not be the one that is told.
                damaged->content(folder + "shard-2-of-3.safetensors").back() ^= std::byte{2};
                std::vector<std::string> warned;
                INFO(path << " byte " << at << ", " << readers << " readers");
                REQUIRE(load_rows(
                            readers, [&](int) -> disk& { return *damaged; }, &warned) ==
                        same_for(readers, "step 10"));
                REQUIRE(folders_in(*damaged) ==
                        std::vector<std::string>{"step-00000010", "step-00000020.broken"});
                REQUIRE(warned.size() == 1);
                if (readers == 1) alone = warned;
                REQUIRE(warned == alone);
            }
            CHECK_THAT(alone.front(), ContainsSubstring(path) &&
                                          ContainsSubstring(fmt::format("chunk {} ", at / 64)));
        }
    }
}

TEST_CASE("each rank verifies its share of the chunks and no more") {
    sharded_disk d;
    REQUIRE(save_rows(d, 10, 2).empty());
    REQUIRE(save_rows(d, 20, 2).empty());
    std::size_t chunk = 0;
    for (int shard = 0; shard < 2; ++shard) {
        const auto path =
            fmt::format("{}/step-00000020/shard-{}-of-2.safetensors", sharded_dir, shard);
        const auto size = d.content(path).size();
        const auto head = safetensors_head_bytes(d.content(path), size).value();
        for (std::size_t at = 0; at < size; at += 64, ++chunk) {
            if (at < head) continue; // read by all
            auto seen_by_1 = d.crash(crash_mode::all_written);
            auto seen_by_0 = d.crash(crash_mode::all_written);
            seen_by_1->content(path)[at] ^= std::byte{1};
            std::vector<std::string> said;
            test::run_ranks(2, [&](int rank, test::exchange_fn exchange) {
                auto& mine = rank == 0 ? *seen_by_0 : *seen_by_1;
                const auto found =
                    checkpointer(mine, sharded_dir, small_chunks(), {rank, 2, exchange})
                        .load_latest();
                if (rank == 0) said.push_back(fmt::format("{}", found->step()));
            });
            INFO("chunk " << chunk);
            CHECK(said == std::vector<std::string>{chunk % 2 == 1 ? "10" : "20"});
        }
    }
}

TEST_CASE("a disk that fails one rank stops all of them and nothing is renamed") {
    sharded_disk shared;
    REQUIRE(save_rows(shared, 10, 2).empty());
    REQUIRE(save_rows(shared, 20, 2).empty());
    auto failing = shared.crash(crash_mode::all_written);
    failing->options().io_error = 1.0;
    const auto said =
        load_rows(2, [&](int rank) -> disk& { return rank == 0 ? shared : *failing; });
    for (const auto& line : said) CHECK_THAT(line, ContainsSubstring("rank 1"));
    CHECK(folders_in(shared) == std::vector<std::string>{"step-00000010", "step-00000020"});
}

TEST_CASE("when every checkpoint is broken all ranks say so and nothing on disk changes") {
    sharded_disk d;
    REQUIRE(save_rows(d, 10, 2).empty());
    d.content(sharded_dir + "/step-00000010/shard-1-of-2.safetensors").back() ^= std::byte{1};
    const auto changes = d.changes();
    const auto said = load_rows(3, [&](int) -> disk& { return d; });
    for (const auto& line : said)
        CHECK_THAT(line, ContainsSubstring("no checkpoint in run/checkpoints is whole") &&
                             ContainsSubstring("shard-1-of-2.safetensors"));
    CHECK(d.changes() == changes);
}

TEST_CASE("a manifest that does not fit its shards is refused even under a right checksum") {
    sharded_disk d;
    REQUIRE(save_rows(d, 10, 2).empty());
    const auto folder = sharded_dir + "/step-00000010";
    REQUIRE(checkpointer::open(d, folder));
    const auto bias = [](std::string_view value) {
        return fmt::format("\"bias\": {{\n      \"dtype\": \"{}\"", value);
    };
    const std::pair<std::string, std::string> edits[] = {
        {bias("BF16"), bias("F16")},
        {"\"bias\": {", "\"bios\": {"},
        {"\"shape\": [\n        11\n      ]", "\"shape\": [\n        11,\n        1\n      ]"},
        {"\"tensors\": {", "\"tensors\": {\"more\": {\"dtype\": \"F32\", \"shape\": [2], "
                           "\"parts\": [{\"shard\": 1, \"first_row\": 0, \"rows\": 2}]},"},
    };
    for (const auto& [from, to] : edits) {
        auto bad = d.crash(crash_mode::all_written);
        edit_manifest(*bad, folder, from, to);
        const auto opened = checkpointer::open(*bad, folder);
        INFO(to);
        REQUIRE_FALSE(opened);
        CHECK(opened.error().code() == errc::malformed);
    }
    // The same rows in the other order: only the shards' own tables tell.
    const auto parts = checkpointer::open(d, folder)->tensors().at("tall").parts;
    REQUIRE(parts.size() == 1);
    auto& shard =
        d.content(folder + "/shard-" + std::to_string(parts[0].shard) + "-of-2.safetensors");
    const std::string text(as_text(shard));
    const auto key = text.find("\\\"tall\\\":{\\\"saved_offsets\\\":[0");
    REQUIRE(key != std::string::npos);
    shard[text.find("[0", key) + 1] = std::byte{'1'};
    const auto opened = checkpointer::open(d, folder, false);
    REQUIRE_FALSE(opened);
    CHECK_THAT(opened.error().what(), ContainsSubstring("tensor 'tall'") &&
                                          ContainsSubstring("is not what the manifest says"));
}

TEST_CASE("a crash at any point of a save of rows leaves the new checkpoint or the one before") {
    sharded_disk count;
    REQUIRE(save_rows(count, 10, 2).empty());
    const auto before = count.changes();
    REQUIRE(save_rows(count, 20, 2).empty());
    const auto total = count.changes() - before;
    std::set<std::string> outcomes;
    for (std::uint64_t point = 0; point <= total; ++point) {
        sharded_disk d;
        save_rows(d, 10, 2);
        d.power_off_after(point);
        const bool reported = save_rows(d, 20, 2).empty();
        for (std::uint64_t seed = 0; seed < 6; ++seed) {
            auto after = d.crash(seed == 0   ? crash_mode::all_written
                                 : seed == 1 ? crash_mode::only_synced
                                             : crash_mode::mixed,
                                 seed);
            std::vector<std::string> warned;
            const auto said = load_rows(1, [&](int) -> disk& { return *after; }, &warned).front();
            INFO("crash after " << point << " of " << total << " changes, seed " << seed);
            REQUIRE((said == "step 20" || (said == "step 10" && point < total)));
            REQUIRE(warned.empty());
            outcomes.insert(said);
        }
        CHECK((!reported || point + 1 >= total || outcomes.contains("step 20")));
    }
    CHECK(outcomes.size() == 2);
}
