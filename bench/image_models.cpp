// SPDX-License-Identifier: Apache-2.0
// Images/s of a training step of ResNet-50 and EfficientNet-B7, against torchvision's networks in
// Python PyTorch (bench/images_pytorch.py).
//
//     SKEIN_PYTHON=python image_models     one JSON line per figure; a Python with torch and torchvision
//     image_models resnet50 224 4 6        one measurement of ours: pixels, images of a step, steps
//
// Forward, backward, clipping and SGD with momentum on one thread, images that are there already.
// Both sides run in processes of their own, in turns whose order alternates (SKEIN_BENCH_ROUNDS,
// default 3). A measurement is the median of the faster half of the steps behind the first; a ratio
// is the median of those within a round. On a busy machine the processor time tells more.

#include "bench.hpp"
#include "other_programs.hpp"

#include <skein/core/error.hpp>
#include <skein/models/efficientnet.hpp>
#include <skein/models/resnet.hpp>
#include <skein/train/launch.hpp>
#include <skein/train/single.hpp>
#include <skein/train/trainer.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace images_bench {

namespace models = skein::models;

/// What is measured, and in which sizes.
struct request {
    std::string model;
    std::int64_t image = 224, batch = 4, steps = 6;
};
/// Each step's seconds and processor time, and the first one's loss.
struct step_times {
    std::vector<double>* seconds;
    std::vector<double>* cpu_at;
    double* first_loss;
    void on_step(const skein::train::step_info& s) const {
        if (seconds->empty()) *first_loss = s.loss;
        seconds->push_back(s.seconds);
        std::timespec t{};
        ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
        cpu_at->push_back(double(t.tv_sec) + 1e-9 * double(t.tv_nsec));
    }
};

struct pictures {
    torch::Tensor images_NCHW, labels_N;
};
/// One batch, made once.
class same_images {
public:
    explicit same_images(const request& r)
        : made_{torch::randn({r.batch, 3, r.image, r.image}), torch::arange(r.batch)},
          count_(static_cast<std::uint64_t>(r.batch * r.steps)) {}
    [[nodiscard]] std::uint64_t size() const noexcept { return count_; }
    [[nodiscard]] pictures batch(std::span<const std::uint64_t>) const { return made_; }

private:
    pictures made_;
    std::uint64_t count_;
};
struct nothing {
    [[nodiscard]] std::uint64_t size() const noexcept { return 0; }
    [[nodiscard]] pictures batch(std::span<const std::uint64_t>) const { return {}; }
};

/// The median of the faster half, without the first.
double typical(std::vector<double> values) {
    values.erase(values.begin());
    std::sort(values.begin(), values.end());
    return values[values.size() / 4];
}

/// One measurement of ours: prints "rate R", "cpu S" (of a step) and "loss L" (of the first step).
template <class Model>
void measure(skein::train::context& ctx, const request& asked, Model model) {
    skein::run_config config;
    config.max_steps = asked.steps;
    config.global_batch = asked.batch;
    config.eval_every = config.checkpoint.every = 0;
    config.checkpoint.enabled = config.write_files = false;
    config.output = skein::train::output_mode::quiet;
    std::vector<double> seconds, cpu;
    double first_loss = 0;
    const auto loss = [](Model& net, const pictures& b) {
        return torch::nn::functional::cross_entropy(net->forward(b.images_NCHW), b.labels_N);
    };
    skein::Trainer<skein::Single, step_times> trainer(ctx, config,
                                                      step_times{&seconds, &cpu, &first_loss});
    (void)trainer.fit(model, skein::SGD{.momentum = 0.9, .weight_decay = 1e-4},
                      skein::train::constant_rate{1e-3}, loss, same_images(asked), nothing{});
    for (std::size_t i = cpu.size() - 1; i > 0; --i) cpu[i] -= cpu[i - 1];
    fmt::print("rate {} cpu {} loss {}\n", double(asked.batch) / typical(seconds), typical(cpu),
               first_loss);
    std::fflush(stdout);
}

int measure_ours(const request& asked) {
    skein::run_config config;
    config.output = skein::train::output_mode::quiet;
    return skein::train::launch(config, [&](skein::train::context& ctx) {
        torch::manual_seed(1);
        if (asked.model == "resnet50")
            return measure(ctx, asked, models::ResNet(models::resnet50()));
        if (asked.model == "efficientnet_b7")
            return measure(ctx, asked, models::EfficientNet(models::efficientnet_b7()));
        throw skein::error(skein::errc::usage, fmt::format("no model {}", asked.model))
            .with_hint("resnet50 or efficientnet_b7");
    });
}

/// What one process measured.
struct rates {
    double rate = 0, cpu = 0, loss = 0;
};
std::optional<rates> rates_of(std::vector<std::string> command, const request& asked) {
    skein::proc::process_options how;
    for (const auto& word : {asked.model, std::to_string(asked.image), std::to_string(asked.batch),
                             std::to_string(asked.steps)})
        command.push_back(word);
    how.argv = std::move(command);
    how.env = {{"OMP_NUM_THREADS", "1"}};
    std::istringstream said(bench::output_of(how).value_or(""));
    rates found;
    for (std::string key, value; said >> key >> value;) {
        const double number = std::strtod(value.c_str(), nullptr);
        if (key == "rate") found.rate = number;
        if (key == "cpu") found.cpu = number;
        if (key == "loss") found.loss = number;
    }
    return found.rate > 0 ? std::optional(found) : std::nullopt;
}

double median_of(const std::vector<rates>& all, double rates::* what) {
    std::vector<double> values;
    for (const auto& each : all) values.push_back(each.*what);
    return bench::summary(std::move(values)).median;
}
/// The baseline that stands in the median ratio to ours.
double baseline(const std::vector<rates>& ours, const std::vector<rates>& theirs,
                double rates::* what) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(ours[i].*what / theirs[i].*what);
    return median_of(ours, what) / bench::summary(std::move(ratios)).median;
}

/// The rounds of one model and its figures. False when a bar is missed or a side says nothing.
bool compare(const std::string& self, const request& asked, int rounds) {
    const char* python = std::getenv("SKEIN_PYTHON");
    std::vector<rates> ours, theirs;
    for (int round = 0; round < rounds; ++round)
        for (const bool is_ours : {round % 2 == 0, round % 2 != 0}) {
            if (!is_ours && python == nullptr) continue;
            const auto found =
                is_ours ? rates_of({self}, asked)
                        : rates_of({python, SKEIN_BENCH_SOURCE_DIR "/images_pytorch.py"}, asked);
            if (!found) {
                fmt::print(stderr, "bench image_models: {} gave no figure\n",
                           is_ours ? self : std::string(python));
                return false;
            }
            fmt::print(stderr, "{} {}: {:.3f} images/s, {:.3f} s of processor time a step\n",
                       is_ours ? "skein" : "Python", asked.model, found->rate, found->cpu);
            (is_ours ? ours : theirs).push_back(*found);
        }
    bench::figure images("image_models." + asked.model, median_of(ours, &rates::rate), "images/s");
    bench::figure cpu("image_models." + asked.model + ".cpu", median_of(ours, &rates::cpu),
                      "s of processor time a step");
    if (theirs.empty()) {
        fmt::print(stderr, "bench image_models: SKEIN_PYTHON names no Python\n");
        return images.print() && cpu.print();
    }
    // The same network on images of the same kind, else the figures compare different things.
    if (std::abs(ours[0].loss / theirs[0].loss - 1) > 0.2) {
        fmt::print(stderr, "bench image_models: the first loss is {} here and {} there\n",
                   ours[0].loss, theirs[0].loss);
        return false;
    }
    const bool ok = std::move(images)
                        .against("torchvision in Python", baseline(ours, theirs, &rates::rate))
                        .at_least(1)
                        .print();
    return std::move(cpu)
               .against("torchvision in Python", baseline(ours, theirs, &rates::cpu))
               .at_most(1)
               .print() &&
           ok;
}

} // namespace images_bench

int main(int argc, char** argv) {
    if (argc == 5)
        return images_bench::measure_ours(
            {argv[1], std::atoll(argv[2]), std::atoll(argv[3]), std::atoll(argv[4])});
    const char* wanted = std::getenv("SKEIN_BENCH_ROUNDS");
    const int rounds = std::max(1, wanted != nullptr ? std::atoi(wanted) : 3);
    bool ok = true;
    for (const images_bench::request& each :
         {images_bench::request{"resnet50", 224, 4, 6}, {"efficientnet_b7", 224, 2, 6}})
        ok &= images_bench::compare(argv[0], each, rounds);
    return ok ? 0 : 1;
}
