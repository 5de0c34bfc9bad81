// SPDX-License-Identifier: Apache-2.0
// Saves of a run: how long a step is held up, blocking and beside training.
//
//     checkpoint                            one JSON line per figure, 100 million parameters on two ranks
//     checkpoint --dim 512                  a smaller model: 25 million
//     checkpoint --mode beside --dim 512    one measurement: blocking, beside, or load behind that
//
// Ranks are processes under FSDP. A step is held up for what commit() takes where a save is due, less
// what it takes where none is. "A step beside a save" is the median of those whose save had not ended
// when they began, against the median of all others of the same run: on a machine without a core to
// spare the writer takes its time from training. One figure saves a small model 200 times.
//
// A load is of the last checkpoint: both ranks verify it and read the rows that they would own into
// memory that is there. Beside them, in the same run: DCP of PyTorch with as many bytes, where
// SKEIN_PYTHON names a Python with torch, and `dd`, one process with blocks of 4 MiB that syncs the
// file which it has written and reads one that is in memory.

#include "bench.hpp"
#include "bytes_gpt.hpp"
#include "other_programs.hpp"

#include <skein/core/posix_disk.hpp>
#include <skein/train/checkpoint.hpp>
#include <skein/train/collective.hpp>

#include <skein/train/fsdp.hpp>
#include <skein/train/launch.hpp>
#include <skein/train/single.hpp>
#include <skein/train/snapshot.hpp>
#include <skein/train/trainer.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <fmt/core.h>

namespace {

using skein::json;
namespace train = skein::train;

using bench::by_block;
using bench::loss_of;
using bench::some_bytes;

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

/// Whether a save is being written: its folder has no name yet.
bool is_written(const std::string& folder) {
    std::error_code none;
    for (const auto& each : std::filesystem::directory_iterator(folder, none))
        if (each.path().filename().string().find(".part-") != std::string::npos) return true;
    return false;
}

/// Rank 0 prints what its steps took.
template <class Strategy>
void measure(train::context& ctx, const skein::run_config& config, int dim) {
    torch::manual_seed(1);
    gpt::GPT model(gpt::model_options{.context = 32, .layers = 8, .heads = 8, .dim = dim});
    const some_bytes data{64};
    skein::Trainer<Strategy> trainer(ctx, config);
    auto session = trainer.open(model, skein::AdamW{}, train::constant_rate{.peak = 1e-4});
    std::vector<double> plain, held, alone, beside;
    const auto every = static_cast<std::uint64_t>(config.checkpoint.every);
    const auto folder = config.runs_dir + "/" + config.name + "/checkpoints";
    for (auto& step : session.steps(data)) {
        const auto number = step.number();
        const bool writes = is_written(folder);
        const double begin = now();
        for (auto& micro : step) session.backward(loss_of(model, micro));
        session.agree();
        session.apply();
        const double computed = now();
        session.commit();
        const double committed = now();
        if (number > 2) (writes ? beside : alone).push_back(computed - begin);
        if (number >= static_cast<std::uint64_t>(config.max_steps))
            continue; // at the end it blocks
        if (number > 2) (number % every == 0 ? held : plain).push_back(committed - computed);
    }
    const auto result = session.finish();
    std::uint64_t bytes = 0;
    for (const auto& each : std::filesystem::directory_iterator(result.checkpoint))
        bytes += each.file_size();
    if (!ctx.is_first()) return;
    fmt::print("{}\n", json{{"plain", plain},
                            {"held", held},
                            {"alone", alone},
                            {"beside", beside},
                            {"bytes", bytes},
                            {"parameters", 12LL * 8 * dim * dim}}
                           .dump());
    std::fflush(stdout);
}

double resident() {
    std::ifstream file("/proc/self/statm");
    double pages = 0;
    file >> pages >> pages;
    return pages * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

/// A number of kB of this process, as /proc/self/status has it.
double status_of(const std::string& what) {
    std::ifstream file("/proc/self/status");
    for (std::string word; file >> word;)
        if (double kilobytes = 0; word == what + ":" && file >> kilobytes) return kilobytes * 1024;
    return 0;
}

/// Rank 0 prints what loads took, and the memory beside what this rank owns.
void measure_load(train::context& ctx, const std::string& dir) {
    skein::posix_disk disk;
    struct owned {
        std::string name;
        std::int64_t first = 0, rows = 0;
        skein::byte_buffer bytes;
    };
    std::vector<owned> all;
    std::vector<double> seconds;
    double before = 0, bytes = 0;
    for (int i = 0; i < 4; ++i) { // the first one makes the memory
        double here = 0;
        train::all_reduce(ctx, std::span(&here, 1), skein::dist::reduce_op::max);
        const double begin = now();
        train::checkpointer saver(disk, dir, {}, train::make_checkpoint_world(ctx));
        const auto found = saver.load_latest();
        if (i == 0)
            for (const auto& [name, t] : found->tensors()) {
                const auto rows = t.shape.empty() ? 1 : t.shape[0];
                const auto first = rows * ctx.rank() / ctx.world_size();
                const auto count = rows * (ctx.rank() + 1) / ctx.world_size() - first;
                const auto whole = train::tensor_bytes(t.dtype, t.shape).value();
                all.push_back({name, first, count,
                               skein::byte_buffer(whole / static_cast<std::uint64_t>(rows) *
                                                  static_cast<std::uint64_t>(count))});
                bytes += static_cast<double>(whole);
            }
        if (i == 0) before = resident();
        for (auto& each : all) {
            const auto& t = found->tensors().at(each.name);
            found->read(each.name, t.dtype, t.shape, each.first, each.rows, each.bytes);
        }
        double took = now() - begin;
        train::all_reduce(ctx, std::span(&took, 1), skein::dist::reduce_op::max);
        if (i > 0) seconds.push_back(took);
    }
    if (!ctx.is_first()) return;
    fmt::print(
        "{}\n",
        json{{"load", seconds}, {"bytes", bytes}, {"more", status_of("VmHWM") - before}}.dump());
    std::fflush(stdout);
}

/// Resident memory after 20 and after 200 saves of one run.
void many_saves(const skein::run_config& from) {
    auto config = from;
    config.max_steps = 200;
    config.checkpoint.every = 1;
    auto ctx = train::context::single();
    gpt::GPT model(gpt::model_options{.context = 32, .layers = 2, .heads = 4, .dim = 128});
    struct watch {
        std::array<double, 2>* bytes;
        void on_checkpoint(const train::checkpoint_info& now) const {
            if (now.step == 20) (*bytes)[0] = resident();
            if (now.step == 199) (*bytes)[1] = resident();
        }
    };
    std::array<double, 2> bytes{};
    skein::Trainer<skein::Single, watch> trainer(ctx, config, watch{&bytes});
    (void)trainer.fit(model, skein::AdamW{}, train::constant_rate{.peak = 1e-4}, loss_of,
                      some_bytes{64}, some_bytes{0});
    bench::figure("checkpoint.memory_of_180_saves", (bytes[1] - bytes[0]) / 1048576.0, "MiB more")
        .at_most(16)
        .print();
}

/// What a snapshot of so many bytes takes, beside a plain copy of them.
void staging(std::size_t bytes) {
    skein::byte_buffer from(bytes, std::byte{1}), to(bytes);
    train::checkpoint_state state;
    const auto rows = static_cast<std::int64_t>(bytes / 4096);
    state.tensors.push_back({.name = "all", .dtype = "F32", .shape = {rows, 1024}, .bytes = from});
    train::snapshot copy;
    copy.take(state, 0, 1);
    std::vector<double> ours, plain;
    for (int i = 0; i < 5; ++i) {
        auto begin = now();
        copy.take(state, 0, 1);
        ours.push_back(now() - begin);
        begin = now();
        std::memcpy(to.data(), from.data(), bytes);
        bench::keep(to[bytes / 2]);
        plain.push_back(now() - begin);
    }
    const auto rate = [&](const std::vector<double>& all) {
        return static_cast<double>(bytes) / bench::percentile(all, 0.5) / 1e9;
    };
    bench::figure("checkpoint.staging", rate(ours), "GB/s")
        .against("memcpy", rate(plain))
        .at_least(0.8)
        .print();
}

json run(const std::string& command) {
    std::FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) return {};
    std::string text;
    std::array<char, 4096> piece;
    while (const auto n = std::fread(piece.data(), 1, piece.size(), pipe))
        text.append(piece.data(), n);
    const int status = ::pclose(pipe);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return {};
    return json::parse(text.substr(0, text.find('\n')), nullptr, false);
}

double median(const json& from, const char* what) {
    const auto all = from.at(what).get<std::vector<double>>();
    return all.empty() ? 0.0 : bench::percentile(all, 0.5);
}

/// Seconds of a command.
double seconds_of(const std::string& command) {
    const double begin = now();
    return std::system(command.c_str()) == 0 ? now() - begin : 0.0; // NOLINT(cert-env33-c)
}

/// What DCP takes for so many float32 numbers; no object without a Python that has it.
json dcp(const std::string& folder, double elements) {
    const char* const python = std::getenv("SKEIN_PYTHON");
    if (python == nullptr) return {};
    std::filesystem::create_directories(folder);
    return run(fmt::format("{} {} {} {:.0f} 2>/dev/null", python,
                           SKEIN_BENCH_SOURCE_DIR "/checkpoint_dcp.py", folder, elements));
}

/// `theirs` gets the baseline and the bar, if they were measured.
void print_beside(bench::figure figure, const std::string& baseline, double theirs, double bar,
                  bool more_is_better) {
    if (theirs <= 0) {
        figure.print();
        return;
    }
    auto compared = std::move(figure).against(baseline, theirs);
    (more_is_better ? std::move(compared).at_least(bar) : std::move(compared).at_most(bar)).print();
}

/// Both kinds of saves, and loads; false when one of them failed.
bool compare(const std::string& self, const std::string& folder, int dim) {
    const auto mode = [&](const char* name) {
        return run(fmt::format("OMP_NUM_THREADS=1 {} --mode {} --dim {}", self, name, dim));
    };
    const auto blocking = mode("blocking"), beside = mode("beside"), load = mode("load");
    if (!blocking.is_object() || !beside.is_object() || !load.is_object()) return false;
    const double bytes = blocking["bytes"].get<double>();
    const auto theirs = dcp(folder + "/dcp", load["bytes"].get<double>() / 4);
    const auto their = [&](const char* what) {
        return theirs.is_object() ? median(theirs, what) : 0.0;
    };
    const auto dcp_name = [&](const char* what) {
        return fmt::format("{} of torch {}", what,
                           theirs.is_object() ? theirs["version"].get<std::string>() : "");
    };
    if (!theirs.is_object())
        fmt::print(stderr, "bench checkpoint: DCP skipped: SKEIN_PYTHON names no Python with it\n");
    const auto held = [](const json& of) { return median(of, "held") - median(of, "plain"); };
    const auto size = fmt::format("{:.0f} million parameters, {:.0f} MB",
                                  blocking["parameters"].get<double>() / 1e6, bytes / 1e6);
    bench::figure("checkpoint.step_held_up", held(beside), "s")
        .against("a blocking save", held(blocking))
        .with("of", size)
        .print();
    print_beside({"checkpoint.step_held_up_dcp", held(beside), "s"}, dcp_name("async_save"),
                 their("held"), 0.5, false);
    bench::figure("checkpoint.step_beside_a_save", median(beside, "beside"), "s")
        .against("a step alone", median(beside, "alone"))
        .with("of", size)
        .print();
    print_beside({"checkpoint.load", median(load, "load"), "s"}, dcp_name("load"), their("load"),
                 0.5, false);
    bench::figure("checkpoint.memory_of_a_load", load["more"].get<double>() / 1048576.0,
                  "MiB beside what a rank owns")
        .at_most(64)
        .print();
    const auto file = folder + "/dd", blocks = fmt::format("{:.0f}", bytes / 4194304);
    const double written = seconds_of(
        fmt::format("dd if=/dev/zero of={} bs=4M count={} conv=fsync status=none", file, blocks));
    const double read = seconds_of(fmt::format("dd if={} of=/dev/null bs=4M status=none", file));
    std::filesystem::remove(file);
    const auto rate = [&](double seconds) { return seconds > 0 ? bytes / seconds / 1e9 : 0.0; };
    print_beside({"checkpoint.save_rate", rate(held(blocking)), "GB/s"}, "dd", rate(written), 0.8,
                 true);
    print_beside({"checkpoint.load_rate", rate(median(load, "load")), "GB/s"}, "dd", rate(read),
                 0.8, true);
    return true;
}

} // namespace

int main(int argc, char** argv) {
    std::string mode;
    int dim = 1024;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string_view flag = argv[i];
        if (flag == "--mode") mode = argv[i + 1];
        if (flag == "--dim") dim = std::atoi(argv[i + 1]);
    }
    skein::run_config config;
    config.runs_dir =
        std::filesystem::temp_directory_path() / fmt::format("skein-saves-{}", ::getpid());
    if (const char* shared = std::getenv("SKEIN_BENCH_FOLDER"))
        config.runs_dir = shared; // of all ranks
    config.max_steps = 33;
    config.global_batch = 4;
    config.scaling.workers = 2;
    config.eval_every = 0;
    config.checkpoint.every = 8;
    config.checkpoint.keep_last = 1;
    config.checkpoint.keep_best.k = 0;
    config.name = mode.empty() ? "many" : mode;
    config.checkpoint.asynchronous = mode != "blocking";
    config.failure.max_failures = 0;
    config.output = train::output_mode::quiet;
    if (mode == "load")
        return train::launch(config, [&](train::context& ctx) {
            measure_load(ctx, config.runs_dir + "/beside/checkpoints");
        });
    if (!mode.empty())
        return train::launch(
            config, [&](train::context& ctx) { measure<skein::FSDP<by_block>>(ctx, config, dim); });
    ::setenv("SKEIN_BENCH_FOLDER", config.runs_dir.c_str(), 1);
    const bool ok = compare(argv[0], config.runs_dir, dim);
    many_saves(config);
    staging(std::size_t{256} << 20);
    std::filesystem::remove_all(config.runs_dir);
    return ok ? 0 : 1;
}
