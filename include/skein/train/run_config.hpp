// SPDX-License-Identifier: Apache-2.0
#pragma once
// Everything about a training run that is not the model, the data or the optimizer.
//
// A plain struct: fill it by name, pass it to train::launch() and to the Trainer.
//
//     skein::train::run_config config{.name = "gpt",
//                                     .max_steps = 500,
//                                     .scaling = {.workers = 4},
//                                     .checkpoint = {.every = 100, .keep_best = {.k = 2}}};

#include <skein/core/constants.hpp>
#include <skein/train/sampler.hpp>
#include <skein/wire/codec.hpp>
#include <skein/wire/reader.hpp>
#include <skein/wire/writer.hpp>

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>

namespace skein::train {

/// What to do with the checkpoints of an earlier run of the same name.
enum class resume_mode : std::uint8_t {
    fresh,  ///< start new; a restart after a failure within the same job still resumes
    latest, ///< go on from the newest valid checkpoint; start new if there is none
};

/// What a person sees.
enum class output_mode : std::uint8_t {
    automatic, ///< a live line on a terminal, plain lines elsewhere
    plain,     ///< plain lines
    quiet,     ///< errors only: no progress, notes or last screen
    json,      ///< one JSON object per line on stdout
};

/// A number of processes, or of an elastic run the fewest and the most.
struct worker_range {
    int least = 1, most = 1;

    constexpr worker_range() = default;
    constexpr worker_range(int n) : least(n), most(n) {} // NOLINT(google-explicit-constructor)
    constexpr worker_range(int fewest, int largest) : least(fewest), most(largest) {}
    [[nodiscard]] constexpr bool is_fixed() const noexcept { return least == most; }
    friend constexpr bool operator==(const worker_range&, const worker_range&) = default;
};
/// "4", or "1:4".
[[nodiscard]] std::string to_string(const worker_range& range);
/// Reads that; for option parsers. Anything else sets failbit.
std::istream& operator>>(std::istream& from, worker_range& to);

/// SKEIN_TRAIN_WORKERS, which `skein job submit --elastic` sets for its job; else 1. What is no number
/// of workers gives one that no run takes.
[[nodiscard]] worker_range default_workers();
/// SKEIN_TRAIN_CPUS and SKEIN_TRAIN_GPUS, likewise; else 0.
[[nodiscard]] double default_cpus();
[[nodiscard]] double default_gpus();

/// How many processes, and how much of the machine each takes.
struct scaling_config {
    /// Local processes, when no launcher has set up a world already. {1, 4}: from one to four, and
    /// the run goes on while some are lost, leave or join; see train/elastic.hpp.
    worker_range workers = default_workers();
    int threads = 0; ///< compute threads per rank; 0 = 1, the reproducible choice
    /// The global batch is so many slices for any number of workers up to that, and a run has the
    /// same bits with each of them: see docs/training.md. A power of two; DDP only, with one
    /// micro-batch per slice. 0: as many slices as there are ranks and micro-batches.
    int logical_shards = 0;
    double cpus = default_cpus(); ///< of each rank on a cluster's node; 0: as many as threads
    /// Whole gpus of each worker. On a cluster its ranks ask for them, and those of one node see one
    /// list, where the gpus of local rank r begin at place r * gpus; on one host as many must be
    /// visible. A rank whose device is "cuda" trains on the first; others are for the model's code.
    double gpus = default_gpus();
};

/// Which value of a metric is the best.
enum class metric_order : std::uint8_t { lowest, highest };

/// What a checkpoint counts by when its step has no evaluation of its own.
enum class best_value : std::uint8_t {
    evaluated, ///< the set is evaluated for the checkpoint
    newest,    ///< the last evaluation's number stands for it
};

/// Which checkpoints are kept for their metrics, besides the newest. The best is never removed for
/// a newer one that is worse.
struct keep_best_config {
    int k = 1; ///< so many; 0: none
    /// A number of an evaluation ("val_loss", "test_accuracy"), the newest of a metric of training
    /// ("train_accuracy"), or "loss": that of the step. One that the run has not is an error.
    std::string metric = "val_loss";
    metric_order order = metric_order::lowest;
    best_value value = best_value::evaluated;
};

/// When a run saves itself, and what it keeps.
struct checkpoint_config {
    bool enabled = true;      ///< false writes none at all
    std::int64_t every = 200; ///< steps from one to the next, and one at the end; 0: only that
    int keep_last = 2;        ///< the newest that are kept; less than 1 counts as 1
    keep_best_config keep_best{};
    /// Besides those, every one whose step is a multiple of it stays; 0: none.
    std::int64_t keep_every = 0;
    /// Bytes that all of those may take together; 0: any. What is too much goes: the oldest of
    /// keep_every first, then the oldest of keep_last, then the worst of keep_best; the newest is
    /// never removed. A save that is being made comes on top.
    std::uint64_t keep_bytes = 0;
    /// Saves are written while training goes on, from a copy of what each rank saves: see
    /// docs/checkpoints.md. Not given: where every rank has a core to spare. true: there, too, where
    /// it has none. Without memory for the copy saves hold training up, and a line says so.
    std::optional<bool> asynchronous{};
    /// A checkpoint when the run is stopped early. false: none then, and what came after the last
    /// one is lost.
    bool on_stop = true;
};

/// What happens when a process is lost, and how long one waits for another.
struct failure_config {
    int max_failures = 3; ///< restarts from the last checkpoint before the job gives up
    time_span backoff = time_constants::lan().job_restart_first; ///< before the first; doubles
    time_span collective_timeout = time_constants::lan().collective_timeout; ///< between ranks
    /// From a stop request to the kill: a step, an evaluation and a checkpoint must fit in.
    time_span stop_grace = time_constants::lan().training_stop_grace;
    /// After which a worker of an elastic job is lost. Zero: 1 s, on a busy host up to 10 s.
    time_span silence{};
};

/// SKEIN_RUNS_DIR, which a cluster sets for its jobs; else "runs", in the current folder.
[[nodiscard]] std::string default_runs_dir();

/// Settings of one run. All counts are over all ranks together.
struct run_config {
    // Where its files go: <runs_dir>/<name>/
    std::string runs_dir = default_runs_dir();
    std::string name = "run";
    resume_mode resume = resume_mode::fresh;

    // How it trains
    std::int64_t max_steps = 1000; ///< optimizer steps of the whole run, not of this start
    std::int64_t epochs = 0;       ///< > 0: so many passes over the data, in place of max_steps
    /// What becomes of the samples at the end of an epoch that do not fill a global batch.
    last_batch last = last_batch::drop;
    std::int64_t global_batch =
        16;                        ///< samples per optimizer step, over all ranks and micro-batches
    std::int64_t accumulation = 1; ///< micro-batches per rank and step
    std::uint64_t seed = 1;  ///< data order, dropout; use it for the model's initial values too
    double clip = 1.0;       ///< maximum gradient norm; 0 turns clipping off
    double clip_value = 0.0; ///< then the largest size of each number of the gradient; 0 = off
    std::string precision = "float32"; ///< the only one here; others are settings of a strategy
    /// Bytes that parameters, gradients and optimizer states of the ranks of one host may take
    /// together; 0: what the system says. fit() refuses a strategy that needs more before it
    /// allocates.
    std::uint64_t memory_limit = 0;
    /// Global batches made ahead, on a thread of their own, while a step computes. 0: made when
    /// they are needed, on the thread that computes.
    int prefetch_batches = 1;

    // Evaluation: every so many steps and at the end; 0 = only at the end
    std::int64_t eval_every = 100;
    std::int64_t eval_samples = 0; ///< at most so many samples of the evaluation set; 0 = all
    std::int64_t eval_batch = 0;   ///< samples per rank and forward pass; 0 = as in training

    // Where it runs, what it saves, and what becomes of it when something is lost
    scaling_config scaling{};
    checkpoint_config checkpoint{};
    failure_config failure{};
    /// automatic, shm, ring or hierarchical; for ranks on devices host, over one of these, or, with a
    /// device for each and where the program has added it, nccl (dist/nccl_model.hpp).
    std::string communicator = "automatic";
    /// What the model is trained on: cpu, cuda (the device of the local rank), or automatic, which
    /// says what it takes and why. Never run on a GPU: see docs/gpu.md.
    std::string device = "cpu";

    // What it says
    output_mode output = output_mode::automatic;
    std::int64_t tokens_per_sample = 0; ///< for tokens/s; 0 counts samples/s
    bool write_files = true;            ///< metrics.csv, metrics.jsonl, event file, loss.svg
    /// How the program was called, when it has flags to go on with: command_line(). Empty: the hint
    /// how to go on shows the command line as it was.
    std::string command{};
    /// What those flags are called: the one that resumes, and the one that gives the run's name.
    /// Empty for one that the program has not.
    std::string resume_flag = "--resume", name_flag = "--run";
    /// The same for the one that gives its length: steps, or epochs in a run by epochs. Not given:
    /// "--steps", and none in a run by epochs, whose length no number of steps changes.
    std::optional<std::string> steps_flag{};
};

/// config.steps_flag, or what it is when it was not given; empty: there is none.
[[nodiscard]] std::string steps_flag_of(const run_config& config);

/// How this process was called, as one would type it again.
[[nodiscard]] std::string command_line();

/// Steps of the whole run over so many samples: max_steps, or what config.epochs come to. For
/// schedules.
///   errors  usage when so many samples cannot train
[[nodiscard]] std::uint64_t total_steps(const run_config& config, std::uint64_t samples);

/// Throws errc::usage with a hint when a value makes no sense, for a world of so many ranks.
void validate(const run_config& config, int world_size);

} // namespace skein::train

namespace skein {
using train::checkpoint_config;
using train::failure_config;
using train::keep_best_config;
using train::metric_order;
using train::run_config;
using train::scaling_config;
} // namespace skein

/// As two numbers.
template <>
struct skein::wire::codec<skein::train::worker_range> {
    static constexpr std::string_view schema = "worker_range(i32,i32)";
    static void encode(writer& to, const train::worker_range& range) {
        to.fixed(static_cast<std::int32_t>(range.least));
        to.fixed(static_cast<std::int32_t>(range.most));
    }
    static result<void> decode(reader& from, train::worker_range& range) {
        std::int32_t least = 0, most = 0;
        if (from.fixed(least) && from.fixed(most)) range = {least, most};
        return from.status();
    }
};

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/run_config.ipp>
#endif
