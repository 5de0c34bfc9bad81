// SPDX-License-Identifier: Apache-2.0
// A small elastic training for tests, whose ranks do what the files in a folder say.
//
//     skein_elastic --workers 1:3 --runs DIR --asked FOLDER [--stream] [--batch N] [--steps N]
//                   [--logical-shards N] [--checkpoint-every N] [--pause MS] [--resume]
//
// --pause: between the steps of a rank's shards.
//
// A rank that starts:  die: it is killed; hang: it does no more; width, batch, seed: a number in
// place of the model's width, the batch and the seed.
// A rank that trains:  throw, exit, kill: the first rank that sees the file takes it away and
// throws, exits with 0, is killed; stop: the run ends behind the step.

#include <skein/train.hpp>

#include <CLI/CLI.hpp>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include <unistd.h>

namespace {

namespace train = skein::train;

/// Files by which the test says what is to happen.
struct wishes {
    std::filesystem::path folder;

    [[nodiscard]] bool has(const char* what) const {
        return std::filesystem::exists(folder / what);
    }
    /// True in one process alone.
    [[nodiscard]] bool take(const char* what) const {
        std::error_code failed;
        std::filesystem::rename(folder / what, folder / (std::string(what) + ".taken"), failed);
        return !failed;
    }
    template <class T>
    void read(const char* what, T& value) const {
        std::ifstream(folder / what) >> value;
    }
};

struct rows {
    torch::Tensor x_BI, y_B1;
};
rows rows_of(std::span<const std::uint64_t> ids) {
    const auto many = static_cast<std::int64_t>(ids.size());
    rows out{torch::empty({many, 8}), torch::empty({many, 1})};
    for (std::int64_t i = 0; i < many; ++i) {
        const auto id = static_cast<float>(ids[static_cast<std::size_t>(i)]);
        for (int k = 0; k < 8; ++k)
            out.x_BI.data_ptr<float>()[8 * i + k] = std::sin(id * static_cast<float>(k + 1));
        out.y_B1.data_ptr<float>()[i] = std::cos(id);
    }
    return out;
}

struct table {
    std::uint64_t count = 4096;
    std::uint64_t size() const { return count; }
    rows batch(std::span<const std::uint64_t> ids) const { return rows_of(ids); }
};
/// Each rank stands at a place of its own.
struct counter {
    std::uint64_t at = 0;
    std::optional<rows> next(const train::stream_share& share) {
        if (at == 0) at = 1000 * static_cast<std::uint64_t>(share.rank);
        std::vector<std::uint64_t> ids(share.samples);
        for (auto& id : ids) id = at++;
        return rows_of(ids);
    }
    std::string state() const { return std::to_string(at); }
    void restore(std::string_view saved) { at = std::stoull(std::string(saved)); }
};

struct stop_when_asked {
    wishes asked;
    train::action on_step(const train::step_info&) const {
        return asked.has("stop") ? train::action::stop : train::action::go_on;
    }
};

void train_rank(train::context& ctx, skein::run_config config, const wishes& asked, bool stream,
                std::chrono::milliseconds pause) {
    if (asked.has("die")) (void)std::raise(SIGKILL);
    while (asked.has("hang")) ::pause();
    std::int64_t width = 32;
    asked.read("width", width);
    asked.read("batch", config.global_batch);
    asked.read("seed", config.seed);
    torch::manual_seed(config.seed);
    torch::nn::Sequential net(torch::nn::Linear(8, width), torch::nn::Tanh(),
                              torch::nn::Linear(width, 1));
    const auto loss = [&](torch::nn::Sequential& model, const rows& b) {
        if (asked.take("throw")) throw std::runtime_error("this loss has had enough");
        if (asked.take("exit")) std::_Exit(0);
        if (asked.take("kill")) (void)std::raise(SIGKILL);
        std::this_thread::sleep_for(pause);
        return torch::mse_loss(model->forward(b.x_BI), b.y_B1);
    };
    const train::constant_rate rate{.peak = 1e-3};
    skein::Trainer<skein::Elastic<skein::DDP<>>, stop_when_asked> trainer(ctx, config,
                                                                          stop_when_asked{asked});
    if (stream)
        (void)trainer.fit(net, skein::AdamW{}, rate, loss, counter{}, table{0});
    else
        (void)trainer.fit(net, skein::AdamW{}, rate, loss, table{}, table{0});
}

} // namespace

int main(int argc, char** argv) {
    skein::run_config config{.name = "elastic", .max_steps = 10'000'000, .global_batch = 24};
    config.checkpoint.every = 0;
    config.checkpoint.keep_best.k = 0;
    config.eval_every = 0;
    config.failure.max_failures = 3;
    config.output = train::output_mode::plain;
    std::string folder;
    bool stream = false, resume = false;
    int pause = 0;
    CLI::App app("An elastic training for tests.");
    app.add_option("--workers", config.scaling.workers);
    app.add_option("--batch", config.global_batch);
    app.add_option("--steps", config.max_steps);
    app.add_option("--runs", config.runs_dir);
    app.add_option("--logical-shards", config.scaling.logical_shards);
    app.add_option("--checkpoint-every", config.checkpoint.every);
    app.add_option("--pause", pause);
    app.add_flag("--resume", resume);
    app.add_option("--asked", folder)->required();
    app.add_flag("--stream", stream);
    CLI11_PARSE(app, argc, argv);
    const wishes asked{folder};
    if (resume) config.resume = train::resume_mode::latest;
    return train::launch(config, [&](train::context& ctx) {
        train_rank(ctx, config, asked, stream, std::chrono::milliseconds(pause));
    });
}
