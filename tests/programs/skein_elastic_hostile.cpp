// SPDX-License-Identifier: Apache-2.0
// A small elastic training whose ranks do harm where the test says so, for elastic_hostile_test.py.
//
//     skein_elastic_hostile --workers 1:3 --runs-dir DIR --told FOLDER [--steps N] [...]
//
// --throw, --exit, --nan STEP: the first rank that comes to the loss of the step after STEP throws,
// calls exit(0), gives NaN; once in all processes together. --told: each rank appends a line to
// FOLDER/<pid> for each event that its callback hears. The variable SKEIN_TEST_WIDTH_FILE: a
// file with another width.

#include <skein/metrics/metrics_manager.hpp>
#include <skein/train.hpp>

#include <CLI/CLI.hpp>

#include <fmt/core.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <unistd.h>

namespace {

namespace train = skein::train;
namespace metrics = skein::metrics;

struct program_options {
    skein::run_config run;
    std::string told;
    std::uint64_t samples = 512, held_out = 64;
    std::int64_t width = 16;
    std::int64_t throw_at = -1, exit_at = -1, nan_at = -1;
    int pause_ms = 0; ///< of each loss
};

struct rows {
    torch::Tensor x_BI, y_B1;
    std::vector<std::int64_t> ids;
};
struct table {
    std::uint64_t count = 0;
    std::uint64_t size() const { return count; }
    rows batch(std::span<const std::uint64_t> ids) const {
        const auto many = static_cast<std::int64_t>(ids.size());
        rows out{torch::empty({many, 8}), torch::empty({many, 1}), {}};
        for (std::int64_t i = 0; i < many; ++i) {
            const auto id = ids[static_cast<std::size_t>(i)];
            out.ids.push_back(static_cast<std::int64_t>(id));
            for (int k = 0; k < 8; ++k)
                out.x_BI.data_ptr<float>()[8 * i + k] =
                    std::sin(static_cast<float>(id) * static_cast<float>(k + 1));
            out.y_B1.data_ptr<float>()[i] = std::cos(static_cast<float>(id));
        }
        return out;
    }
};

/// How often each sample was shown in an epoch or an evaluation.
struct seen_once {
    static constexpr std::string_view name = "seen_once";
    std::uint64_t samples = 0;
    metrics::summed times{};

    void begin() { times.resize(samples); }
    void update(const metrics::samples& shown) {
        for (std::size_t i = 0; i < shown.target.size(); ++i)
            times[static_cast<std::size_t>(shown.target[i])] += 1;
    }
    double compute() const {
        double once = 0;
        for (std::size_t i = 0; i < samples; ++i) once += times[i] == 1 ? 1 : 0;
        return once;
    }
};

/// Writes down what it hears; counts steps, in the state of checkpoints, too.
struct listener {
    std::string folder;
    std::uint64_t* at;         ///< the step that is committed last
    std::uint64_t counted = 0; ///< steps that the run's callbacks heard of
    std::string state() const { return std::to_string(counted); }
    void restore(std::string_view saved) { counted = std::stoull(std::string(saved)); }

    void write(const std::string& line) const {
        if (folder.empty()) return;
        std::ofstream(folder + "/" + std::to_string(::getpid()), std::ios::app) << line << "\n";
    }
    void on_start(const train::start_info& s) const {
        write(fmt::format("start {} of {} at {}", s.rank, s.world_size, s.first_step));
    }
    void on_step(const train::step_info& s) {
        *at = s.step;
        ++counted;
        write(fmt::format("step {} rank {} lr {:.9g} counted {}", s.step, s.rank, s.lr, counted));
    }
    void on_eval(const train::eval_info& e) const {
        write(fmt::format("eval {} rank {}", e.step, e.rank));
    }
};

/// True in one process of all, once.
bool first_to(const program_options& o, const char* what) {
    std::error_code failed;
    return std::filesystem::create_directory(o.told + "/" + what, failed) && !failed;
}

void train_rank(train::context& ctx, const program_options& o) {
    std::uint64_t at = 0;
    const auto comes = [&](std::int64_t step, const char* what) {
        return step >= 0 && at == static_cast<std::uint64_t>(step) && first_to(o, what);
    };
    auto width = o.width;
    if (const char* other = std::getenv("SKEIN_TEST_WIDTH_FILE"))
        if (std::ifstream from(other); from) from >> width;
    torch::manual_seed(o.run.seed);
    torch::nn::Sequential net(torch::nn::Linear(8, width), torch::nn::BatchNorm1d(width),
                              torch::nn::Tanh(), torch::nn::Dropout(0.1),
                              torch::nn::Linear(width, 1));
    const auto loss = [&](torch::nn::Sequential& model, const rows& b, train::stage& stage) {
        if (stage.is_training()) {
            if (comes(o.throw_at, "throw")) throw std::runtime_error("this loss has had enough");
            if (comes(o.exit_at, "exit")) std::exit(0);
        }
        if (o.pause_ms > 0) {
            const timespec pause{0, o.pause_ms * 1'000'000L};
            ::nanosleep(&pause, nullptr);
        }
        stage.update("seen_once", torch::tensor(b.ids), torch::tensor(b.ids));
        auto value = torch::mse_loss(model->forward(b.x_BI), b.y_B1);
        if (stage.is_training() && comes(o.nan_at, "nan"))
            value = value * std::numeric_limits<float>::quiet_NaN();
        return value;
    };
    skein::Trainer<skein::Elastic<skein::DDP<>>, listener> trainer(ctx, o.run,
                                                                   listener{o.told, &at});
    trainer.measure({metrics::on("train", seen_once{.samples = o.samples}),
                     metrics::on("val", seen_once{.samples = o.held_out})});
    const auto steps = train::total_steps(o.run, o.samples);
    const train::warmup_cosine rate{.peak = 0.01, .warmup = steps / 10, .total = steps};
    const auto result =
        trainer.fit(net, skein::AdamW{}, rate, loss, table{o.samples}, table{o.held_out});
    if (ctx.is_first()) fmt::print("done at step {}\n", result.steps);
}

} // namespace

int main(int argc, char** argv) {
    program_options o;
    o.run.name = "elastic";
    o.run.max_steps = 0;
    o.run.epochs = 1;
    o.run.last = train::last_batch::shorten;
    o.run.global_batch = 24;
    o.run.eval_every = 0;
    o.run.output = train::output_mode::plain;
    bool resume = false;
    CLI::App app("An elastic training for tests.");
    app.add_option("--workers", o.run.scaling.workers);
    app.add_option("--runs-dir", o.run.runs_dir);
    app.add_option("--told", o.told);
    app.add_option("--steps", o.run.max_steps);
    app.add_option("--epochs", o.run.epochs);
    app.add_option("--samples", o.samples);
    app.add_option("--batch", o.run.global_batch);
    app.add_option("--width", o.width);
    app.add_option("--prefetch", o.run.prefetch_batches);
    app.add_option("--failures", o.run.failure.max_failures);
    app.add_option("--eval-every", o.run.eval_every);
    app.add_option("--checkpoint-every", o.run.checkpoint.every);
    app.add_option("--throw", o.throw_at);
    app.add_option("--exit", o.exit_at);
    app.add_option("--nan", o.nan_at);
    app.add_option("--pause", o.pause_ms);
    app.add_flag("--resume", resume);
    CLI11_PARSE(app, argc, argv);
    if (o.run.max_steps > 0) o.run.epochs = 0;
    if (resume) o.run.resume = train::resume_mode::latest;
    return train::launch(o.run, [&](train::context& ctx) { train_rank(ctx, o); });
}
