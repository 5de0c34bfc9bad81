// SPDX-License-Identifier: Apache-2.0
// Checkpoints on a disk that fails, runs full and loses power at any operation: what was reported
// as saved is there after the crash, whole, or a newer one is.
#include "sim/scenario.hpp"

#include <skein/core/sleep.hpp>
#include <skein/sim/disk.hpp>
#include <skein/train/checkpoint.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace {

using namespace skein;

/// One tensor whose bytes are a function of the step.
byte_buffer weights_of(std::uint64_t step) {
    byte_buffer bytes(4 * (16 + step % 7));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(step * 31 + i);
    return bytes;
}

struct run_on_disk {
    sim::world& w;
    sim::disk disk;
    std::uint64_t reported = 0; // the newest step that save() reported
    std::uint64_t step = 0;

    explicit run_on_disk(sim::world& world)
        : w(world), disk(world.loop.random(), {}, &world.network.counts()) {}

    [[nodiscard]] train::checkpointer saver() {
        train::checkpoint_options options;
        options.keep_last = 2;
        options.chunk_bytes = 32;
        options.warn = [](const std::string&) {};
        return train::checkpointer(disk, "run/checkpoints", options);
    }
    void save() {
        const auto bytes = weights_of(++step);
        train::checkpoint_state state;
        state.step = step;
        state.tensors.push_back({"w", "F32", {static_cast<std::int64_t>(bytes.size() / 4)}, bytes});
        try {
            const auto saved = saver().save(state);
            if (saved.durable) reported = step;
        } catch (const error& e) {
            w.check(e.code() == errc::io || e.code() == errc::disk_full,
                    "a save failed for another reason than the disk");
        }
    }
    /// What a restarted program finds.
    void recover() {
        const auto found = saver().load_latest();
        if (!found) {
            w.check(reported == 0, "a reported checkpoint is gone");
            step = 0;
            return;
        }
        w.check(found->step() >= reported, "an older checkpoint than the reported one was found");
        w.check(found->step() <= step, "a checkpoint of a step that was never saved");
        w.check(found->read("w") == weights_of(found->step()), "the weights are not those saved");
        reported = step = found->step();
    }
};

task<void> disk_faults(sim::world& w) {
    run_on_disk run(w);
    for (int life = 0; life < 6; ++life) {
        const bool flaky = w.chance(0.5), tight = w.chance(0.3);
        const auto saves = 1 + w.below(4);
        for (std::uint64_t i = 0; i < saves; ++i) {
            run.disk.options().io_error = flaky && w.chance(0.5) ? 0.02 : 0.0;
            if (tight) {
                const auto used = UINT64_MAX - run.disk.free_space(".").value();
                run.disk.set_capacity(w.chance(0.5) ? UINT64_MAX : used + w.below(400));
            }
            // At some operation of this save: nothing, one failure, or the end of the power.
            const auto kind = w.below(3);
            if (kind == 1) {
                const auto at = w.below(30);
                run.disk.fail_once(at, w.chance(0.5) ? errc::io : errc::disk_full);
            }
            if (kind == 2) run.disk.power_off_after(w.below(30));
            run.save();
            auto pause = sleep_for(std::chrono::milliseconds(1 + w.below(20)));
            co_await pause;
        }
        run.disk.options().io_error = 0;
        run.disk.set_capacity(UINT64_MAX);
        run.disk.crash();
        run.recover();
        w.loop.trace(run.step);
    }
}

const sim::scenario registered("disk_faults", &disk_faults);

} // namespace
