// SPDX-License-Identifier: Apache-2.0
// Saves that are written while training goes on: the part alone, on a disk that a test holds up,
// and runs that have it.
#include <skein/core/log.hpp>
#include <skein/sim/disk.hpp>
#include <skein/train/checkpoint.hpp>
#include <skein/train/detail/session_saves.hpp>
#include <skein/train/weights.hpp>

#include <tests/support/error_of.hpp>
#include <tests/train/zoo.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace session_saves_test {

using namespace train_test;
using namespace skein::train;
using Catch::Matchers::ContainsSubstring;
using skein::train::detail::run_saves;
using skein::train::detail::save_word;
using namespace std::chrono_literals;

namespace {

/// What a test does to a disk goes before what is below.
class disk_above : public sk::disk {
public:
    sk::result<std::unique_ptr<sk::file>> open(const std::string& path,
                                               sk::open_mode mode) override {
        return below_.open(path, mode);
    }
    sk::result<void> rename(const std::string& from, const std::string& to) override {
        return below_.rename(from, to);
    }
    sk::result<void> sync_dir(const std::string& path) override { return below_.sync_dir(path); }
    sk::result<std::vector<sk::dir_entry>> list(const std::string& path) override {
        return below_.list(path);
    }
    sk::result<void> remove(const std::string& path) override { return below_.remove(path); }
    sk::result<void> make_dirs(const std::string& path) override { return below_.make_dirs(path); }
    sk::result<std::uint64_t> free_space(const std::string& path) override {
        return below_.free_space(path);
    }
    sk::result<sk::dir_entry> status(const std::string& path) override {
        return below_.status(path);
    }

protected:
    sk::sim::disk below_;
};

/// A disk whose shards are not created before the gate is open, or never.
class held_disk final : public disk_above {
public:
    void open_gate() { set(1); }
    void break_gate() { set(2); }
    void close_gate() { set(0); }

    sk::result<std::unique_ptr<sk::file>> open(const std::string& path,
                                               sk::open_mode mode) override {
        if (mode == sk::open_mode::create_new) {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [&] { return gate_ != 0; });
            if (gate_ == 2) return sk::error(sk::errc::disk_full, "no space left").with_where(path);
        }
        return below_.open(path, mode);
    }

private:
    void set(int gate) {
        const std::lock_guard lock(mutex_);
        gate_ = gate;
        changed_.notify_all();
    }
    std::mutex mutex_;
    std::condition_variable changed_;
    int gate_ = 1;
};

/// A disk that from the call number n on, which would change something, is read-only or gone.
class lost_disk final : public disk_above {
public:
    enum class way { read_only, gone };
    explicit lost_disk(way what) : what_(what) {}
    void lose_after(int calls) { left_ = calls; }
    void mend() { left_ = never; }
    /// A call found it lost.
    [[nodiscard]] bool was_lost() const { return was_lost_; }

    sk::result<std::unique_ptr<sk::file>> open(const std::string& path,
                                               sk::open_mode mode) override {
        if (auto bad = refusal(mode != sk::open_mode::read, path)) return *bad;
        auto opened = below_.open(path, mode);
        if (!opened) return opened.error();
        return std::unique_ptr<sk::file>(
            std::make_unique<lost_file>(*this, path, std::move(*opened)));
    }
    sk::result<void> rename(const std::string& from, const std::string& to) override {
        if (auto bad = refusal(true, from)) return *bad;
        return below_.rename(from, to);
    }
    sk::result<void> sync_dir(const std::string& path) override {
        if (auto bad = refusal(what_ == way::gone, path)) return *bad;
        return below_.sync_dir(path);
    }
    sk::result<std::vector<sk::dir_entry>> list(const std::string& path) override {
        if (auto bad = refusal(false, path)) return *bad;
        return below_.list(path);
    }
    sk::result<void> remove(const std::string& path) override {
        if (auto bad = refusal(true, path)) return *bad;
        return below_.remove(path);
    }
    sk::result<void> make_dirs(const std::string& path) override {
        if (auto bad = refusal(true, path)) return *bad;
        return below_.make_dirs(path);
    }
    sk::result<sk::dir_entry> status(const std::string& path) override {
        if (auto bad = refusal(false, path)) return *bad;
        return below_.status(path);
    }

private:
    static constexpr int never = 1 << 30;

    std::optional<sk::error> refusal(bool changes, const std::string& path) {
        const int left = changes ? left_-- : left_.load();
        if (left > 0 || (what_ == way::read_only && !changes)) return std::nullopt;
        was_lost_ = true;
        if (what_ == way::gone) return sk::error(sk::errc::io, "no such device").with_where(path);
        return sk::error(sk::errc::permission_denied, "read-only file system").with_where(path);
    }

    class lost_file final : public sk::file {
    public:
        lost_file(lost_disk& of, std::string path, std::unique_ptr<sk::file> below)
            : of_(of), path_(std::move(path)), below_(std::move(below)) {}
        sk::result<std::size_t> read_at(std::uint64_t offset, sk::mut_byte_span into) override {
            if (auto bad = of_.refusal(false, path_)) return *bad;
            return below_->read_at(offset, into);
        }
        sk::result<void> write_at(std::uint64_t offset, sk::byte_span bytes) override {
            if (auto bad = of_.refusal(true, path_)) return *bad;
            return below_->write_at(offset, bytes);
        }
        sk::result<void> append(sk::byte_span bytes) override {
            if (auto bad = of_.refusal(true, path_)) return *bad;
            return below_->append(bytes);
        }
        sk::result<std::uint64_t> size() override { return below_->size(); }
        sk::result<void> truncate(std::uint64_t bytes) override {
            if (auto bad = of_.refusal(true, path_)) return *bad;
            return below_->truncate(bytes);
        }
        sk::result<void> sync() override {
            if (auto bad = of_.refusal(true, path_)) return *bad;
            return below_->sync();
        }
        sk::result<void> close() override { return below_->close(); }

    private:
        lost_disk& of_;
        std::string path_;
        std::unique_ptr<sk::file> below_;
    };

    const way what_;
    std::atomic<int> left_ = never;
    std::atomic<bool> was_lost_ = false;
};

/// One tensor that is everywhere, one of which each rank has rows; by the step.
struct state_of_step {
    sk::byte_buffer all, rows;
    checkpoint_state state;
    state_of_step(std::uint64_t step, int rank, int size)
        : all(64, static_cast<std::byte>(step)), rows(16, static_cast<std::byte>(step + 100)) {
        state.step = step;
        state.tensors.push_back({.name = "all", .dtype = "F32", .shape = {16}, .bytes = all});
        state.tensors.push_back({.name = "rows",
                                 .dtype = "F32",
                                 .shape = {4 * size},
                                 .bytes = rows,
                                 .first_row = 4 * rank,
                                 .rows = 4,
                                 .everywhere = false});
    }
    state_of_step(const state_of_step&) = delete;
};

void open(run_saves& saves, const context& ctx) {
    saves.open("run/checkpoints", {},
               [&] { return state_of_step(0, ctx.rank(), ctx.world_size()).state; });
}

run_config beside_config() {
    run_config config;
    config.checkpoint.asynchronous = true;
    return config;
}

/// What a checkpoint of a run holds, file by file; without the time of the manifest and
/// its checksum.
std::map<std::string, std::string> checkpoints_of(const scratch& dir, const std::string& run) {
    std::map<std::string, std::string> all;
    const auto root = std::filesystem::path(dir.path) / run / "checkpoints";
    for (const auto& each : std::filesystem::recursive_directory_iterator(root)) {
        if (!each.is_regular_file()) continue;
        const auto name = std::filesystem::relative(each.path(), root).string();
        auto text = dir.text(run + "/checkpoints/" + name);
        for (const char* const key : {"\"wall_time\"", "\"self\""})
            if (const auto at = text.find(key); at != std::string::npos)
                text.erase(at, text.find_first_of(",}", at) - at);
        all[name] = std::move(text);
    }
    return all;
}

/// Counts the checkpoints it was told, and has the count in the next one.
struct saves_counter {
    std::vector<std::uint64_t>* steps;
    std::thread::id trains = std::this_thread::get_id();
    std::uint64_t count = 0;
    void on_checkpoint(const checkpoint_info& now) {
        count += 1;
        if (std::this_thread::get_id() != trains) throw std::logic_error("another thread");
        if (now.rank == 0) steps->push_back(now.step);
    }
    [[nodiscard]] std::string state() const { return std::to_string(count); }
    void restore(std::string_view saved) { count = std::stoull(std::string(saved)); }
};

run_config saving_config(const scratch& dir, bool beside) {
    auto config = quiet_config(dir.path);
    config.name = beside ? "beside" : "blocking";
    config.max_steps = 10;
    config.checkpoint.enabled = config.write_files = true;
    config.checkpoint.every = 2;
    config.checkpoint.keep_last = 9;
    config.checkpoint.asynchronous = beside;
    return config;
}

/// A parameter that is stored turned round, one of an image's layout, one that nothing asks for.
struct odd_layouts : torch::nn::Module {
    odd_layouts()
        : turned(register_parameter("turned", torch::empty_strided({8, 4}, {1, 8}).normal_())),
          image(register_parameter(
              "image", torch::randn({2, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast))),
          unused(register_parameter("unused", torch::randn({3, 2}))) {}
    torch::Tensor forward(const torch::Tensor& x, const std::vector<std::uint64_t>&) {
        return x.matmul(turned) * (1 + image.select(1, 1).sum() / 10);
    }
    torch::Tensor turned, image, unused;
};

/// Steps that on_checkpoint was told.
template <class Strategy>
std::vector<std::uint64_t> train(const run_config& config, int world) {
    std::vector<std::uint64_t> told;
    run_world(world, [&](context& ctx) {
        auto net = make_zoo(shape::plain);
        sk::Trainer<Strategy, saves_counter> trainer(ctx, config, saves_counter{&told});
        const auto result =
            trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, zoo_loss, numbers{64}, numbers{10});
        if (result.checkpoint.substr(result.checkpoint.size() - 13) != "step-00000010")
            throw std::logic_error("the newest is " + result.checkpoint);
    });
    return told;
}

template <class Strategy>
void check_same(int world, int every) {
    scratch dir;
    std::vector<std::uint64_t> told[2];
    for (const bool beside : {false, true}) {
        auto config = saving_config(dir, beside);
        config.checkpoint.every = every;
        told[beside] = train<Strategy>(config, world);
    }
    CHECK(told[0].size() == static_cast<std::size_t>(10 / every));
    CHECK(told[1] == told[0]);
    const auto wanted = checkpoints_of(dir, "blocking");
    CHECK(wanted.size() >= static_cast<std::size_t>(world + 1) * std::min(9, 10 / every));
    CHECK((checkpoints_of(dir, "beside") == wanted));
    CHECK(dir.text("beside/metrics.csv") == dir.text("blocking/metrics.csv"));
}

} // namespace

TEST_CASE("a save is staged at once, and durable when the disk is done", "[train]") {
    for (const int size : {1, 2}) {
        held_disk held;
        const auto config = beside_config();
        run_world(size, [&](context& ctx) {
            run_saves saves(ctx, config, &held);
            open(saves, ctx);
            expect(saves.is_beside());
            expect(saves.word() == save_word::none);
            if (ctx.is_first()) held.close_gate();
            double here = 0.0;
            all_reduce(ctx, std::span(&here, 1), sk::dist::reduce_op::max);
            {
                state_of_step now(1, ctx.rank(), ctx.world_size());
                expect(!saves.save(now.state, true).has_value());
            } // it works on a copy
            expect(saves.word() == save_word::writes);
            expect(!saves.take().has_value());
            // comm() is the training's meanwhile.
            for (int i = 0; i < 20; ++i)
                all_reduce(ctx, std::span(&here, 1), sk::dist::reduce_op::max);
            if (ctx.is_first()) held.open_gate();
            const auto saved = saves.settle();
            expect(saved.has_value());
            expect(saved->step == 1);
            expect(saved->durable);
            expect(saves.word() == save_word::none);
            expect(!saves.settle().has_value());
            const auto found = saves.load_latest();
            expect(found.has_value());
            expect(found->step() == 1);
            expect(found->read("all") == sk::byte_buffer(64, std::byte{1}));
        });
    }
}

TEST_CASE("a save that fails is told on every rank, and is owed", "[train]") {
    held_disk held;
    const auto config = beside_config();
    run_world(2, [&](context& ctx) {
        run_saves saves(ctx, config, &held);
        open(saves, ctx);
        held.break_gate();
        state_of_step now(1, ctx.rank(), 2);
        expect(!saves.save(now.state, true).has_value());
        const auto why = sk::test::error_of([&] { saves.fail(); });
        expect(why.code() == sk::errc::disk_full);
        expect(std::string(why.what()).find("checkpoint of step 1 not written") !=
               std::string::npos);
        expect(saves.word() == save_word::owed);
        double here = 0.0;
        all_reduce(ctx, std::span(&here, 1), sk::dist::reduce_op::max);
        held.open_gate();
        expect(!saves.save(now.state, true).has_value());
        expect(saves.settle()->step == 1);
        expect(saves.word() == save_word::none);
    });
}

TEST_CASE("a disk that becomes read-only or goes with a save in flight costs that save alone",
          "[train]") {
    const auto config = beside_config();
    sk::logging::set_sink([](const sk::logging::record&) {}); // what cannot be removed then
    for (const auto way : {lost_disk::way::read_only, lost_disk::way::gone}) {
        for (int n = 0;; ++n) {
            lost_disk lost(way);
            run_world(2, [&](context& ctx) {
                const auto barrier = [&] {
                    double here = 0.0;
                    all_reduce(ctx, std::span(&here, 1), sk::dist::reduce_op::max);
                };
                run_saves saves(ctx, config, &lost);
                open(saves, ctx);
                state_of_step first(1, ctx.rank(), 2), second(2, ctx.rank(), 2),
                    third(3, ctx.rank(), 2);
                expect(saves.save(first.state, false)->step == 1);
                barrier();
                if (ctx.is_first()) lost.lose_after(n);
                barrier();
                expect(!saves.save(second.state, true).has_value());
                std::optional<saved_checkpoint> made;
                try {
                    made = saves.settle();
                } catch (const sk::error&) { // it is told with the reason: see above
                }
                double ended_well = made ? 1.0 : 0.0;
                all_reduce(ctx, std::span(&ended_well, 1), sk::dist::reduce_op::sum);
                expect(ended_well == (made ? 2.0 : 0.0)); // all ranks alike
                expect(saves.word() == (made ? save_word::none : save_word::owed));
                if (ctx.is_first()) lost.mend();
                barrier();
                {
                    const auto found = saves.load_latest();
                    expect(found.has_value());
                    expect(found->step() == 2 || (!made && found->step() == 1));
                    expect(found->read("all") ==
                           sk::byte_buffer(64, static_cast<std::byte>(found->step())));
                }
                expect(!saves.save(third.state, true).has_value());
                expect(saves.settle()->step == 3);
                expect(saves.load_latest()->step() == 3);
                if (ctx.is_first())
                    for (const auto& each : lost.list("run/checkpoints").value())
                        expect(each.name.find('.') == std::string::npos);
            });
            if (!lost.was_lost()) {
                CHECK(n > 10); // files, folders and names of both ranks
                break;
            }
        }
    }
    sk::logging::set_sink(nullptr);
}

TEST_CASE("an abort lets a save end that can, and gives it up when others wait", "[train]") {
    for (const bool hurries : {false, true}) {
        CAPTURE(hurries);
        held_disk held;
        held.close_gate();
        const auto config = beside_config();
        std::atomic<int> staged = 0;
        const auto errors = try_world(2, [&](context& ctx) {
            run_saves saves(ctx, config, &held);
            open(saves, ctx);
            state_of_step now(1, ctx.rank(), 2);
            expect(!saves.save(now.state, true).has_value());
            ++staged;
            std::thread opens;
            if (ctx.is_first())
                opens = std::thread([&] {
                    while (staged < 2) std::this_thread::sleep_for(1ms);
                    std::this_thread::sleep_for(20ms);
                    held.open_gate();
                });
            saves.abort(sk::error(sk::errc::aborted, "a test ends it"), hurries);
            if (opens.joinable()) opens.join();
            expect(saves.end_with_world().has_value() == !hurries);
            expect((saves.word() == save_word::owed) == hurries);
        });
        for (const auto& e : errors) CHECK((e ? std::string(e->what()) : "") == "");
    }
}

TEST_CASE("without memory or a core for it saves hold training up", "[train]") {
    held_disk held;
    auto config = beside_config();
    config.memory_limit = 1;
    run_world(1, [&](context& ctx) {
        run_saves saves(ctx, config, &held);
        open(saves, ctx);
        CHECK_FALSE(saves.is_beside());
        CHECK_THAT(saves.notice(), ContainsSubstring("no memory for a copy of"));
        state_of_step now(1, 0, 1);
        const auto saved = saves.save(now.state, true);
        REQUIRE(saved);
        CHECK(saved->step == 1);
    });
    // No host has so many cores. Nobody asked: one line, where saves are long enough to be felt.
    const auto told = [&](std::size_t bytes, std::int64_t every, std::optional<bool> asked) {
        run_config busy;
        busy.scaling.threads = 1 << 20;
        busy.checkpoint.every = every;
        busy.checkpoint.asynchronous = asked;
        const sk::byte_buffer memory(bytes);
        checkpoint_state state;
        state.tensors.push_back({.name = "all",
                                 .dtype = "U8",
                                 .shape = {static_cast<std::int64_t>(bytes)},
                                 .bytes = memory});
        std::string notice;
        run_world(1, [&](context& ctx) {
            run_saves saves(ctx, busy, &held);
            saves.open("run/checkpoints", {}, [&] { return state; });
            CHECK(saves.is_beside() == asked.value_or(false));
            notice = saves.notice();
        });
        return notice;
    };
    constexpr std::size_t felt = 64u << 20;
    CHECK_THAT(told(felt, 200, {}),
               ContainsSubstring("each for 67.1 MB per rank: no core is free"));
    CHECK_THAT(told(felt, 200, true), ContainsSubstring("saves are written beside training"));
    CHECK(told(felt, 200, false).empty());
    CHECK(told(felt, 0, {}).empty()); // the one at the end has nothing beside it
    CHECK(told(felt - 64, 200, {}).empty());
    run_config plain;
    CHECK(skein::train::detail::has_spare_core(3, 1, plain, true)); // trains, makes batches, writes
    CHECK_FALSE(skein::train::detail::has_spare_core(2, 1, plain, true));
    CHECK_FALSE(skein::train::detail::has_spare_core(7, 2, plain, false));
    CHECK(skein::train::detail::has_spare_core(8, 2, plain, false));
    plain.prefetch_batches = 0;
    plain.scaling.threads = 4;
    CHECK(skein::train::detail::has_spare_core(5, 1, plain, true));
    CHECK_FALSE(skein::train::detail::has_spare_core(5, 1, plain, false));
}

TEST_CASE("what lies on a device is saved by a copy, for which there is memory from the beginning",
          "[train]") {
    held_disk held;
    const sk::byte_buffer device(4096, std::byte{7});
    int fetched = 0;
    checkpoint_state state{.step = 1};
    state.tensors.push_back(
        {.name = "all",
         .dtype = "U8",
         .shape = {4096},
         .bytes = {reinterpret_cast<const std::byte*>(std::uintptr_t{64}), 4096},
         .fetch = [&](sk::mut_byte_span to) {
             std::ranges::copy(device, to.begin());
             fetched += 1;
         }});
    auto config = beside_config();
    for (const bool beside : {false, true}) {
        config.checkpoint.asynchronous = beside;
        run_world(1, [&](context& ctx) {
            run_saves saves(ctx, config, &held);
            saves.open("run/checkpoints", {}, [&] { return state; });
            CHECK(fetched == (beside ? 2 : 0)); // by saves alone
            CHECK(saves.is_beside() == beside);
            for (int i = 0; i < 2; ++i) {
                const auto saved = saves.save(state, true);
                CHECK(saved.has_value() != beside);
                CHECK((saved || saves.settle()));
                state.step += 1;
            }
            CHECK((saves.load_latest()->read("all") == device));
        });
    }
    CHECK(fetched == 4);
    config.memory_limit = 1;
    for (const bool beside : {false, true}) {
        config.checkpoint.asynchronous = beside;
        const auto why = sk::test::error_of([&] {
            run_world(1, [&](context& ctx) {
                run_saves saves(ctx, config, &held);
                saves.open("run/checkpoints", {}, [&] { return state; });
            });
        });
        CHECK(why.code() == sk::errc::exhausted);
        CHECK_THAT(why.what(), ContainsSubstring("no memory of the host for a copy of 4.1"));
        CHECK_THAT(why.what(), ContainsSubstring("saves of what is on a device"));
    }
    CHECK(fetched == 4);
}

TEST_CASE("no rank begins where one has no memory for saves of what lies on a device", "[train]") {
    held_disk held;
    for (const bool beside : {false, true}) {
        std::array<std::string, 2> said;
        run_world(2, [&](context& ctx) {
            auto config = beside_config();
            config.checkpoint.asynchronous = beside;
            if (!ctx.is_first()) config.memory_limit = 1;
            checkpoint_state state{.step = 1};
            state.tensors.push_back({.name = "all",
                                     .dtype = "U8",
                                     .shape = {32},
                                     .bytes = {reinterpret_cast<const std::byte*>(64), 16},
                                     .first_row = ctx.rank() * 16,
                                     .rows = 16,
                                     .everywhere = false,
                                     .fetch = [](sk::mut_byte_span) {}});
            run_saves saves(ctx, config, &held);
            said[static_cast<std::size_t>(ctx.rank())] =
                sk::test::error_of([&] {
                    saves.open("run/checkpoints", {}, [&] { return state; });
                }).what();
        });
        CHECK_THAT(said[0], ContainsSubstring("no memory of the host for a copy of"));
        CHECK(said[0] == said[1]);
    }
}

TEST_CASE("a context that goes into another world waits for the save of this one", "[train]") {
    held_disk held;
    held.close_gate();
    const auto config = beside_config();
    context ctx({.rank = 0, .world_size = 1}, nullptr, nullptr);
    {
        run_saves saves(ctx, config, &held);
        open(saves, ctx);
        state_of_step now(1, 0, 1);
        CHECK_FALSE(saves.save(now.state, true));
        std::thread opens([&] {
            std::this_thread::sleep_for(20ms);
            held.open_gate();
        });
        ctx.rebind({.rank = 0, .world_size = 1}, nullptr, nullptr);
        CHECK(saves.word() == save_word::none);
        opens.join();
        CHECK(saves.end_with_world()->step == 1);
    }
    ctx.rebind({.rank = 0, .world_size = 1}, nullptr, nullptr); // nobody listens any more
}

TEST_CASE("checkpoints and rows are those of blocking saves, bit for bit", "[train]") {
    check_same<sk::Single>(1, 2);
    check_same<sk::DDP<>>(2, 2);
    check_same<sk::FSDP<zoo_cells>>(2, 2);
    check_same<sk::FSDP<zoo_cells>>(3, 1); // a save each step: the next one waits
}

TEST_CASE("a save that fails beside training ends the run on every rank, with its reason",
          "[train]") {
    scratch dir;
    auto config = saving_config(dir, true);
    config.max_steps = 200;
    config.checkpoint.every = 5;
    const auto place = std::filesystem::path(dir.path) / "beside" / "checkpoints";
    const auto errors = try_world(2, [&](context& ctx) {
        struct in_the_way {
            const std::filesystem::path* place;
            void on_checkpoint(const checkpoint_info& s) const { // none is in flight
                if (s.rank != 0 || s.step != 5) return;
                std::filesystem::rename(*place, place->string() + "-old");
                std::ofstream(place->string()) << "no folder\n";
            }
        };
        auto net = make_zoo(shape::plain);
        sk::Trainer<sk::DDP<>, in_the_way> trainer(ctx, config, in_the_way{&place});
        (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, zoo_loss, numbers{64}, numbers{0});
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        CHECK_THAT(e->what(), ContainsSubstring("checkpoint of step 10 not written"));
    }
    CHECK(errors[0]->text() == errors[1]->text());
    CHECK(std::filesystem::exists(place.string() + "-old/step-00000005/manifest.json"));
}

TEST_CASE("a run that fails behind a save in flight has its checkpoint", "[train]") {
    scratch dir;
    auto config = saving_config(dir, true);
    config.checkpoint.every = 4;
    const auto errors = try_world(2, [&](context& ctx) {
        auto net = make_zoo(shape::plain);
        std::uint64_t begun = 0;
        const auto loss = [&](Zoo& m, const sample_batch& b) {
            auto value = zoo_loss(m, b);
            return ++begun == 5 ? value * std::numeric_limits<double>::quiet_NaN() : value;
        };
        sk::Trainer<sk::DDP<>> trainer(ctx, config);
        (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, loss, numbers{64}, numbers{0});
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        CHECK(e->code() == sk::errc::not_finite);
    }
    CHECK(checkpoints_of(dir, "beside").contains("step-00000004/manifest.json"));
}

TEST_CASE("ranks that meet again have the save that was in flight, or make another one",
          "[train]") {
    scratch dir;
    (void)train<sk::DDP<>>(saving_config(dir, false), 2);
    const auto config = saving_config(dir, true);
    sk::sim::local_world first({"here", "here"}), second({"here", "here"});
    std::vector<std::optional<sk::error>> errors(2);
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r)
        threads.emplace_back([&, r] {
            try {
                const world_info place{
                    .rank = r, .world_size = 2, .local_rank = r, .local_size = 2, .host = "here"};
                auto comm = sk::dist::make_comm_thread(first.at(r), {});
                std::unique_ptr<sk::dist::comm_thread> again;
                context ctx(place, &first.at(r), comm.get());
                auto net = make_zoo(shape::plain);
                const numbers data{64}, held_out{10};
                bool breaks = r == 1;
                std::vector<std::uint64_t> told;
                sk::Trainer<sk::DDP<>, saves_counter> trainer(ctx, config, saves_counter{&told});
                auto session = trainer.open(net, sk::AdamW{}, constant_rate{1e-2});
                session.evaluate_on(net, zoo_loss, held_out);
                auto steps = session.steps(data);
                const auto all = [&] {
                    for (auto& step : steps)
                        for (auto& micro : step) {
                            session.backward(zoo_loss(net, micro));
                            if (step.number() == 5 && std::exchange(breaks, false))
                                throw sk::error(sk::errc::peer_lost, "broken");
                        }
                };
                try {
                    all();
                } catch (const sk::error& why) {
                    session.abort(why);
                    again = sk::dist::make_comm_thread(second.at(r), {});
                    ctx.rebind(place, &second.at(r), again.get());
                    session.rebind();
                    all();
                }
                (void)session.finish();
            } catch (...) {
                errors[static_cast<std::size_t>(r)] = sk::to_error(std::current_exception());
            }
        });
    for (auto& t : threads) t.join();
    for (const auto& e : errors) CHECK((e ? std::string(e->what()) : "") == "");
    CHECK(dir.text("beside/metrics.csv") == dir.text("blocking/metrics.csv"));
    const auto there = checkpoints_of(dir, "beside");
    CHECK((there.contains("step-00000004/manifest.json") ||
           there.contains("step-00000005/manifest.json")));
    for (const auto& [name, text] : checkpoints_of(dir, "blocking"))
        if (name.ends_with(".safetensors") && !name.starts_with("step-00000004"))
            CHECK((there.at(name) == text));
}

TEST_CASE("to keep less than one checkpoint is to keep the newest", "[train]") {
    for (const int keep : {0, -3}) {
        scratch dir;
        auto config = saving_config(dir, true);
        config.checkpoint.keep_last = keep;
        config.checkpoint.keep_best.k = 0;
        (void)train<sk::Single>(config, 1);
        std::vector<std::string> all;
        for (const auto& each : std::filesystem::directory_iterator(
                 std::filesystem::path(dir.path) / "beside/checkpoints"))
            all.push_back(each.path().filename().string());
        CHECK(all == std::vector<std::string>{"step-00000010"});
    }
}

TEST_CASE("parameters of any layout, and one without gradients, are what they were when resumed",
          "[train]") {
    scratch dir;
    const auto run = [&](const std::string& name, int steps, bool resumes, bool momentum) {
        auto config = saving_config(dir, true);
        config.name = name;
        config.max_steps = steps;
        config.checkpoint.every = 3;
        if (resumes) config.resume = resume_mode::latest;
        auto ctx = context::single();
        torch::manual_seed(resumes ? 2 : 1); // of a resumed run nothing that it drew is left
        auto net = std::make_shared<odd_layouts>();
        sk::Trainer<sk::Single> trainer(ctx, config);
        optimizer_options how = sk::AdamW{};
        if (momentum) how = sk::SGD{.momentum = 0.9};
        (void)trainer.fit(net, how, constant_rate{1e-2}, zoo_loss, numbers{64}, numbers{10});
        return net;
    };
    for (const bool momentum : {false, true}) {
        const std::string way = momentum ? "sgd" : "adamw";
        const auto whole = run("whole-" + way, 6, false, momentum);
        (void)run("parts-" + way, 3, false, momentum);
        const auto resumed = run("parts-" + way, 6, true, momentum);
        const auto wanted = checkpoints_of(dir, "whole-" + way),
                   got = checkpoints_of(dir, "parts-" + way);
        const std::string shard = "step-00000006/shard-0-of-1.safetensors";
        CHECK((got.at(shard) == wanted.at(shard)));
        odd_layouts again;
        (void)load_weights(again, dir / ("parts-" + way));
        for (const auto& p : whole->named_parameters()) {
            CHECK(torch::equal(resumed->named_parameters()[p.key()], p.value()));
            CHECK(torch::equal(again.named_parameters()[p.key()], p.value()));
        }
    }
}

TEST_CASE("every n-th checkpoint stays beside the newest, and bytes bound them all", "[train]") {
    scratch dir;
    auto config = saving_config(dir, true);
    config.checkpoint.every = 1;
    config.checkpoint.keep_last = 2;
    config.checkpoint.keep_every = 4;
    config.checkpoint.keep_best.k = 0;
    const auto folder = [&] {
        return std::filesystem::path(dir.path) / config.name / "checkpoints";
    };
    const auto steps = [&] {
        std::vector<std::string> all;
        for (const auto& each : std::filesystem::directory_iterator(folder()))
            all.push_back(each.path().filename().string());
        std::ranges::sort(all);
        return all;
    };
    (void)train<sk::Single>(config, 1);
    CHECK(steps() == std::vector<std::string>{"step-00000004", "step-00000008", "step-00000009",
                                              "step-00000010"});
    std::uint64_t three = 0;
    for (const char* const step : {"step-00000008", "step-00000009", "step-00000010"})
        for (const auto& file : std::filesystem::directory_iterator(folder() / step))
            three += file.file_size();
    config.name = "three";
    config.checkpoint.keep_bytes = three + 1000; // the place in the data has more digits later
    (void)train<sk::Single>(config, 1);
    CHECK(steps() == std::vector<std::string>{"step-00000008", "step-00000009", "step-00000010"});
    config.name = "one";
    config.checkpoint.keep_bytes = 1;
    (void)train<sk::Single>(config, 1);
    CHECK(steps() == std::vector<std::string>{"step-00000010"});
}

} // namespace session_saves_test
