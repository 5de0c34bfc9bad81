// SPDX-License-Identifier: Apache-2.0
// Writes our files for other people's readers, and reads theirs. Used by tests/interop.
//
//   skein_interop_files write FOLDER     a run folder with events, a safetensors file and a
//                                        checkpoint
//   skein_interop_files shard FOLDER     a checkpoint of three ranks, with tensors in rows: value i
//                                        is i / 2
//   skein_interop_files read FILE        one JSON line per tensor: name, dtype, shape, hex of the
//                                        bytes
#include <skein/core/posix_disk.hpp>
#include <skein/report/run_dir.hpp>
#include <skein/train/checkpoint.hpp>
#include <skein/train/safetensors.hpp>
#include <skein/wire/json.hpp>

#include <support/thread_world.hpp>

#include <cstdio>
#include <cstring>
#include <string>

#include <fmt/core.h>

using namespace skein;
using namespace skein::report;
using namespace skein::train;

namespace {

/// Values 0, 0.5, 1, ... as float32.
byte_buffer halves(std::size_t count) {
    byte_buffer bytes(count * 4);
    for (std::size_t i = 0; i < count; ++i) {
        const float value = 0.5f * static_cast<float>(i);
        std::memcpy(bytes.data() + 4 * i, &value, 4);
    }
    return bytes;
}

void write(const std::string& folder) {
    posix_disk disk;
    auto run = run_dir::create(folder, "run");
    for (std::uint64_t step = 1; step <= 5; ++step) {
        metrics_row row{.step = step,
                        .values = {{"loss", 4.0 / static_cast<double>(step)}},
                        .timings = {{"tokens_per_s", 1000}}};
        if (step % 2 == 0) row.values.push_back({"val_loss", 0.25 * static_cast<double>(step)});
        run.append(row);
    }

    const auto matrix = halves(6), scalar = halves(1);
    const byte_buffer bytes = to_buffer("\x01\x02\x03"),
                      half = to_buffer(std::string_view("\x80\x3f\x00\x40", 4));
    byte_buffer count(8);
    store_le<std::uint64_t>(count.data(), 120);
    const std::vector<tensor_view> tensors{
        {"matrix", "F32", {2, 3}, matrix}, {"scalar", "F32", {}, scalar},
        {"raw", "U8", {3}, bytes},         {"count", "I64", {1}, count},
        {"half", "BF16", {2}, half},       {"none", "F32", {0, 4}, {}}};
    const auto plan = plan_safetensors(tensors, {{"format", "pt"}, {"made_by", "skein"}}).value();
    auto out = disk.open(folder + "/model.safetensors", open_mode::write).value();
    write_safetensors(plan, [&](byte_span part) { return out->append(part); }).value();
    out->close().value();

    checkpoint_state state;
    state.step = 120;
    for (const auto& t : tensors) state.tensors.push_back({t.name, t.dtype, t.shape, t.bytes});
    state.extra = R"({"seed": 1})";
    checkpointer(disk, run.checkpoints()).save(state);
}

void shard(const std::string& folder) {
    struct whole {
        std::string name;
        std::vector<std::int64_t> shape;
        std::vector<std::int64_t>
            cuts; ///< where the rows of ranks 1 and 2 begin; empty: everywhere
    };
    const std::vector<whole> all{{"model.w", {7, 3}, {3, 3}}, {"model.bias", {11}, {0, 10}},
                                 {"model.scale", {}, {0, 1}}, {"model.cube", {2, 3, 4}, {1, 2}},
                                 {"model.norm", {6, 2}, {}},  {"optim.steps", {}, {}}};
    posix_disk disk;
    test::run_ranks(3, [&](int rank, test::exchange_fn exchange) {
        checkpoint_state state;
        state.step = 120;
        std::vector<byte_buffer> store;
        for (const auto& t : all) store.push_back(halves(tensor_bytes("F32", t.shape).value() / 4));
        for (std::size_t i = 0; i < all.size(); ++i) {
            const auto& [name, shape, cuts] = all[i];
            auto part = tensor_part{name, "F32", shape, store[i]};
            if (!cuts.empty()) {
                const auto total = shape.empty() ? 1 : shape[0];
                const auto row = store[i].size() / static_cast<std::size_t>(total);
                const auto end = rank == 2 ? total : cuts[static_cast<std::size_t>(rank)];
                part.everywhere = false;
                part.first_row = rank == 0 ? 0 : cuts[static_cast<std::size_t>(rank) - 1];
                part.rows = end - part.first_row;
                part.bytes = part.bytes.subspan(row * part.first_row, row * part.rows);
            }
            state.tensors.push_back(part);
        }
        checkpointer(disk, folder, {}, {rank, 3, exchange}).save(state);
    });
}

void read(const std::string& path) {
    posix_disk disk;
    const auto bytes = disk.read_whole(path).value();
    const auto content = parse_safetensors(bytes).value();
    for (auto& t : content.tensors)
        fmt::print("{}\n", dump_json(ordered_json{{"name", t.name},
                                                  {"dtype", t.dtype},
                                                  {"shape", t.shape},
                                                  {"bytes", to_hex(t.bytes)}}));
}

} // namespace

int main(int argc, char** argv) {
    const std::string verb = argc == 3 ? argv[1] : "";
    try {
        if (verb == "write") return write(argv[2]), 0;
        if (verb == "shard") return shard(argv[2]), 0;
        if (verb == "read") return read(argv[2]), 0;
    } catch (const std::exception& e) {
        std::fprintf(stderr, "skein_interop_files: %s\n", e.what());
        return 1;
    }
    std::fprintf(stderr, "usage: skein_interop_files write FOLDER | shard FOLDER | read FILE\n");
    return 2;
}
