// SPDX-License-Identifier: Apache-2.0
#include <skein/sim/disk.hpp>
#include <skein/train/snapshot.hpp>

#include <support/error_of.hpp>
#include <support/expect.hpp>
#include <support/thread_world.hpp>

#include <catch2/catch_test_macros.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

using namespace skein;
using namespace skein::train;

namespace {

/// Tensors that are everywhere, one of no rows, and one whose rows the ranks share.
struct tensors_of {
    std::vector<byte_buffer> memory;
    checkpoint_state state;

    tensors_of(std::uint64_t step, int rank, int size) {
        state.step = step;
        state.extra = fmt::format(R"({{"cursor":{}}})", step * 64);
        state.metrics = {{"val_loss", 1.0 / static_cast<double>(step)}};
        state.config_hash = "abc";
        add("wte", {50, 4});
        add("empty", {0, 7});
        add("scale", {});
        add("block.0.w", {30, 4});
        add("block.1.w", {30, 4});
        const std::int64_t rows = 12 / size;
        add("rows", {12, 3}, rank * rows, rows);
    }
    tensors_of(const tensors_of&) = delete;

    void add(std::string name, std::vector<std::int64_t> shape, std::int64_t first = 0,
             std::int64_t rows = tensor_part::whole) {
        const bool everywhere = rows == tensor_part::whole;
        auto mine = shape;
        if (!everywhere) mine[0] = rows;
        byte_buffer bytes(tensor_bytes("F32", mine).value());
        for (std::size_t i = 0; i < bytes.size(); ++i)
            bytes[i] = static_cast<std::byte>(state.step * 31 + (i + first * 12) * 7 + name.size());
        memory.push_back(std::move(bytes));
        state.tensors.push_back(
            {std::move(name), "F32", std::move(shape), memory.back(), first, rows, everywhere});
    }
    /// Training goes on.
    void overwrite() {
        for (auto& bytes : memory) std::fill(bytes.begin(), bytes.end(), std::byte{0xee});
        state.step += 1;
        state.extra = "{}";
        state.metrics.clear();
    }
};

/// All files below a folder, with what is in them; without the time of a manifest and
/// its checksum.
std::string files_of(disk& where, const std::string& path) {
    std::string all;
    for (const auto& entry : where.list(path).value()) {
        const auto below = join_path(path, entry.name);
        if (entry.is_directory) {
            all += files_of(where, below);
            continue;
        }
        auto text = std::string(as_text(where.read_whole(below).value()));
        for (const char* const key : {"\"wall_time\"", "\"self\""})
            if (const auto at = text.find(key); at != std::string::npos)
                text.erase(at, text.find_first_of(",}", at) - at);
        all += fmt::format("{} {}\n{}\n", below, text.size(), text);
    }
    return all;
}

} // namespace

TEST_CASE("a snapshot is what there was when it was taken") {
    tensors_of now(3, 0, 1);
    snapshot copy;
    copy.take(now.state, 0, 1);
    const auto before = tensors_of(3, 0, 1);
    now.overwrite();
    const auto& state = copy.state();
    CHECK(state.step == 3);
    CHECK(state.extra == before.state.extra);
    CHECK(state.metrics == before.state.metrics);
    CHECK(state.config_hash == "abc");
    REQUIRE(state.tensors.size() == before.state.tensors.size());
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
        const auto &got = state.tensors[i], &wanted = before.state.tensors[i];
        CHECK(got.name == wanted.name);
        CHECK(got.shape == wanted.shape);
        CHECK(to_buffer(got.bytes) == to_buffer(wanted.bytes));
    }
}

TEST_CASE("saves from snapshots have the bytes of saves from the state, on any number of ranks") {
    for (const int size : {1, 2, 3}) {
        CAPTURE(size);
        sim::disk direct, copied;
        test::run_ranks(size, [&](int rank, const auto& exchange) {
            const checkpoint_world world{rank, size, exchange};
            checkpointer first(direct, "run/checkpoints", {.keep_last = 9}, world);
            checkpointer second(copied, "run/checkpoints", {.keep_last = 9}, world);
            snapshot copy;
            for (std::uint64_t step = 1; step <= 5; ++step) {
                tensors_of now(step, rank, size);
                (void)first.save(now.state);
                copy.take(now.state, rank, size);
                now.overwrite();
                (void)second.save(copy.state());
            }
        });
        const auto wanted = files_of(direct, "run/checkpoints");
        CHECK(wanted.size() > 1000);
        CHECK(files_of(copied, "run/checkpoints") == wanted);
    }
}

TEST_CASE("a rank copies what it writes, and its memory stays") {
    std::size_t all = 0, most = 0;
    for (int rank = 0; rank < 3; ++rank) {
        tensors_of now(1, rank, 3);
        const auto bytes = snapshot::bytes_of(now.state, rank, 3);
        all += bytes;
        most = std::max(most, bytes);
        snapshot copy;
        copy.reserve(bytes);
        const auto room = copy.capacity();
        const std::byte* begin = nullptr;
        for (int i = 0; i < 3; ++i) {
            copy.take(now.state, rank, 3);
            for (const auto& t : copy.state().tensors)
                if (t.name == "rows") {
                    if (begin != nullptr) CHECK(t.bytes.data() == begin);
                    begin = t.bytes.data();
                }
        }
        CHECK(copy.capacity() == room);
    }
    tensors_of alone(1, 0, 1);
    const auto whole = snapshot::bytes_of(alone.state, 0, 1);
    CHECK(most < whole);
    CHECK(all >= whole); // and no tensor is copied twice
    CHECK(all < whole + 64 * 3 * alone.state.tensors.size());
}

TEST_CASE(
    "what the host cannot read is fetched once, by who writes it, and saved by its snapshot") {
    sim::disk direct, copied;
    test::run_ranks(2, [&](int rank, const auto& exchange) {
        const checkpoint_world world{rank, 2, exchange};
        tensors_of now(3, rank, 2);
        (void)checkpointer(direct, "run/checkpoints", {}, world).save(now.state);
        std::size_t fetched = 0;
        auto hidden = now.state;
        for (auto& t : hidden.tensors) {
            t.fetch = [&fetched, from = t.bytes](mut_byte_span to) {
                std::ranges::copy(from, to.begin());
                fetched += to.size();
            };
            t.bytes = {reinterpret_cast<const std::byte*>(std::uintptr_t{64}), t.bytes.size()};
        }
        test::expect(snapshot::must_copy(hidden));
        snapshot copy;
        const auto room = snapshot::bytes_of(hidden, rank, 2);
        copy.take(hidden, rank, 2);
        test::expect(fetched > 0);
        test::expect(fetched <= room);
        test::expect(!snapshot::must_copy(copy.state()));
        (void)checkpointer(copied, "run/checkpoints", {}, world).save(copy.state());
    });
    CHECK(files_of(copied, "run/checkpoints") == files_of(direct, "run/checkpoints"));
}

TEST_CASE("a snapshot has nothing after a fetch that throws, and can be taken again") {
    tensors_of now(3, 0, 1);
    snapshot copy;
    copy.take(now.state, 0, 1);
    auto hidden = now.state;
    hidden.tensors[1].fetch = [](mut_byte_span) { throw error(errc::io, "no copy"); };
    const auto why = test::error_of([&] { copy.take(hidden, 0, 1); });
    CHECK(why.code() == errc::io);
    CHECK(copy.state().tensors.empty());
    copy.take(now.state, 0, 1);
    CHECK(copy.state().tensors.size() == now.state.tensors.size());
}

TEST_CASE("a checkpoint of what the host cannot read is refused by name") {
    sim::disk where;
    tensors_of now(3, 0, 1);
    now.state.tensors[0].fetch = [](mut_byte_span) {};
    const auto why =
        test::error_of([&] { (void)checkpointer(where, "run/checkpoints").save(now.state); });
    CHECK(why.code() == errc::invalid_argument);
    CHECK(std::string(why.what()).find("tensor 'wte': the host cannot read it") !=
          std::string::npos);
}

TEST_CASE("a snapshot for which there is no memory leaves the one before as it was") {
    snapshot copy;
    copy.reserve(4096);
    const auto why =
        test::error_of([&] { copy.reserve(std::numeric_limits<std::size_t>::max() / 4); });
    CHECK(why.code() == errc::exhausted);
    CHECK(copy.capacity() == 4096);
    copy.release();
    CHECK(copy.capacity() == 0);
}
