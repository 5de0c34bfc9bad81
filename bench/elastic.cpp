// SPDX-License-Identifier: Apache-2.0
// Elastic training: the gap of a kill -9, a SIGSTOP, a join and a leave, beside TorchElastic and
// torchft: bench/elastic_events.py starts this program again as the trained one and disturbs it.
//
//     elastic                                 all figures; baselines with SKEIN_PYTHON
//     elastic --train LOG MIN:MAX RUNS EXTRA_MB   the training: 1.3 million parameters, SGD, a checkpoint
//                                             every 20 steps; or none, and EXTRA_MB of frozen parameters
//
// Each step appends two lines to the log: "begin|done NANOSECONDS STEP RANK PID".
#include <skein/core/clock.hpp>
#include <skein/data/draws.hpp>
#include <skein/train.hpp>

#include <fmt/core.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <unistd.h>

#ifndef SKEIN_BENCH_SOURCE_DIR // the build says where its scripts are
#define SKEIN_BENCH_SOURCE_DIR "bench"
#endif

namespace {

constexpr std::int64_t inputs = 784, classes = 10;

struct noise {
    struct rows {
        torch::Tensor x_BI, label_B;
    };
    std::uint64_t size() const { return 1U << 20; }
    rows batch(std::span<const std::uint64_t> ids) const {
        const auto many = static_cast<std::int64_t>(ids.size());
        rows out{torch::empty({many, inputs}), torch::empty({many}, torch::kLong)};
        auto* x = out.x_BI.data_ptr<float>();
        for (std::size_t i = 0; i < ids.size(); ++i) {
            skein::data::draws random(1, 0, ids[i], 0);
            for (std::int64_t k = 0; k < inputs; ++k) *x++ = random.uniform(-1, 1);
            out.label_B.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(random.integer(10));
        }
        return out;
    }
};

/// The lines of steps; one write each, so those of several ranks do not mix.
class step_log {
public:
    step_log(const std::string& path, const skein::train::context& ctx)
        : file_(std::fopen(path.c_str(), "a"), &std::fclose), ctx_(&ctx) {
        if (!file_) throw skein::error(skein::errc::io, "cannot append").with_where(path);
        std::setvbuf(file_.get(), nullptr, _IOFBF, 256);
    }
    void note(const char* what, std::uint64_t step) const {
        const auto now = skein::system_clock().now().time_since_epoch();
        fmt::print(file_.get(), "{} {} {} {} {}\n", what,
                   std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(), step,
                   ctx_->rank(), ::getpid());
        std::fflush(file_.get());
    }

private:
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
    const skein::train::context* ctx_; // its rank changes
};

struct note_done {
    std::shared_ptr<const step_log> log;
    void on_step(const skein::train::step_info& s) { log->note("done", s.step); }
};

struct NetImpl : torch::nn::Module {
    explicit NetImpl(std::int64_t extra_mb)
        : first(inputs, 1024), second(1024, 512), out(512, classes) {
        register_module("first", first);
        register_module("second", second);
        register_module("out", out);
        if (extra_mb > 0)
            register_parameter("frozen", torch::ones({extra_mb << 18}), false); // 4 bytes each
    }
    torch::Tensor forward(const torch::Tensor& x_BI) {
        return out(torch::relu(second(torch::relu(first(x_BI)))));
    }
    torch::nn::Linear first, second, out;
};
TORCH_MODULE(Net);

int train(const std::string& path, const std::string& workers, const std::string& runs,
          std::int64_t extra_mb) {
    skein::run_config config{.runs_dir = runs, .name = "elastic", .max_steps = 100'000'000};
    config.global_batch = 64;
    config.clip = 0;
    config.eval_every = 0;
    config.checkpoint.every = 20;
    config.checkpoint.enabled = extra_mb == 0; // writing 500 MB would be longer than what is measured
    config.checkpoint.keep_best.k = 0;
    config.failure.max_failures = 1000;
    config.output = skein::train::output_mode::plain;
    std::istringstream(workers) >> config.scaling.workers;
    return skein::train::launch(config, [&](skein::train::context& ctx) {
        const auto log = std::make_shared<const step_log>(path, ctx);
        skein::Trainer<skein::Elastic<skein::DDP<>>, note_done> trainer(ctx, config,
                                                                        note_done{log});
        torch::manual_seed(1);
        Net net(extra_mb);
        auto session = trainer.open(net, skein::SGD{}, skein::train::constant_rate{0.01});
        const noise data;
        for (auto& step : session.steps(data)) {
            log->note("begin", step.number());
            for (auto& micro : step)
                session.backward(
                    torch::nn::functional::cross_entropy(net->forward(micro.x_BI), micro.label_B));
        }
        (void)session.finish();
    });
}

} // namespace

int main(int argc, char** argv) {
    if (argc == 6 && std::strcmp(argv[1], "--train") == 0)
        return train(argv[2], argv[3], argv[4], std::atol(argv[5]));
    if (argc != 1) {
        fmt::print(stderr, "usage: elastic [--train LOG MIN:MAX RUNS EXTRA_MB]\n");
        return 2;
    }
    const std::string program = std::filesystem::read_symlink("/proc/self/exe");
    ::execlp("python3", "python3", SKEIN_BENCH_SOURCE_DIR "/elastic_events.py", program.c_str(),
             nullptr);
    std::perror("python3");
    return 1;
}
