// SPDX-License-Identifier: Apache-2.0
#pragma once
// Small models, data and worlds of threads for the tests of the trainer.

#include <skein/core/error.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/dist/bootstrap.hpp>
#include <skein/report/metrics.hpp>
#include <skein/sim/local_rendezvous.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/collective.hpp>
#include <skein/train/context.hpp>
#include <skein/train/ddp.hpp>
#include <skein/train/run_config.hpp>
#include <skein/train/sampler.hpp>
#include <skein/train/single.hpp>
#include <skein/train/trainer.hpp>

#include <fmt/core.h>

#include <tests/support/expect.hpp>
#include <tests/support/temporary_folder.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace train_test {

namespace sk = skein;
using namespace skein::train;
using namespace skein::report;

using skein::test::expect;
using scratch = skein::test::temporary_folder;

/// Runs body(ctx) on n threads that form one world; the errors by rank.
inline std::vector<std::optional<sk::error>> try_world(int n,
                                                       const std::function<void(context&)>& body,
                                                       const std::string& model = "shm",
                                                       int attempt = 0,
                                                       const std::string& job = {}) {
    std::vector<std::string> hosts;
    for (int r = 0; r < n; ++r) {
        const int host = model == "ring" ? r : model == "hierarchical" && n > 2 ? r / 2 : 0;
        hosts.push_back("host-" + std::to_string(host));
    }
    sk::sim::local_world world(hosts);
    std::vector<std::optional<sk::error>> errors(static_cast<std::size_t>(n));
    std::vector<std::thread> threads;
    for (int r = 0; r < n; ++r)
        threads.emplace_back([&, r] {
            try {
                sk::dist::comm_options options;
                options.model = model;
                auto comm = sk::dist::make_comm_thread(world.at(r), options);
                world_info where{.rank = r,
                                 .world_size = n,
                                 .local_rank = r,
                                 .local_size = n,
                                 .attempt = attempt,
                                 .host = "here",
                                 .job_id = job};
                context ctx(where, &world.at(r), comm.get());
                ctx.use_options(options);
                body(ctx);
            } catch (...) {
                errors[static_cast<std::size_t>(r)] = sk::to_error(std::current_exception());
            }
        });
    for (auto& t : threads) t.join();
    return errors;
}

/// The same; the first rank's error is thrown.
inline void run_world(int n, const std::function<void(context&)>& body,
                      const std::string& model = "shm", int attempt = 0,
                      const std::string& job = {}) {
    if (n == 1) {
        context ctx({.rank = 0,
                     .world_size = 1,
                     .local_rank = 0,
                     .local_size = 1,
                     .attempt = attempt,
                     .host = "here",
                     .job_id = job},
                    nullptr, nullptr);
        return body(ctx);
    }
    for (const auto& e : try_world(n, body, model, attempt, job))
        if (e) throw *e;
}

/// A two-layer classifier over 8 numbers, with a norm layer for some vectors.
struct NetImpl : torch::nn::Module {
    NetImpl() : in(8, 16), norm(torch::nn::LayerNormOptions({16})), out(16, 4) {
        register_module("in", in);
        register_module("norm", norm);
        register_module("out", out);
    }
    torch::Tensor forward(const torch::Tensor& x) { return out(torch::tanh(norm(in(x)))); }
    torch::nn::Linear in;
    torch::nn::LayerNorm norm;
    torch::nn::Linear out;
};
TORCH_MODULE(Net);

struct sample_batch {
    torch::Tensor x, y;
    std::vector<std::uint64_t> ids;
};

/// n samples, each a function of its number alone.
struct numbers {
    std::uint64_t n = 64;
    std::uint64_t broken = ~0ULL; ///< this sample is NaN
    [[nodiscard]] std::uint64_t size() const noexcept { return n; }
    [[nodiscard]] sample_batch batch(std::span<const std::uint64_t> ids) const {
        const auto count = static_cast<std::int64_t>(ids.size());
        sample_batch out{torch::empty({count, 8}),
                         torch::empty({count}, torch::kLong),
                         {ids.begin(), ids.end()}};
        auto* x = static_cast<float*>(out.x.mutable_data_ptr());
        auto* y = static_cast<std::int64_t*>(out.y.mutable_data_ptr());
        for (const auto id : ids) {
            for (std::uint64_t j = 0; j < 8; ++j)
                *x++ =
                    id == broken
                        ? std::numeric_limits<float>::quiet_NaN()
                        : static_cast<float>((id * 37 + j * 11 + id * id * 3) % 101) / 50.0f - 1.0f;
            *y++ = static_cast<std::int64_t>((id * 7 + id / 3) % 4);
        }
        return out;
    }
};

inline const auto class_loss = [](auto& m, const sample_batch& b) {
    return torch::nn::functional::cross_entropy(m->forward(b.x), b.y);
};

inline run_config quiet_config(const std::string& runs) {
    run_config c;
    c.runs_dir = runs;
    c.max_steps = 20;
    c.global_batch = 12;
    c.eval_every = 0;
    c.checkpoint.every = 0;
    c.output = output_mode::quiet;
    c.checkpoint.enabled = false;
    c.write_files = false;
    return c;
}

/// All parameters of a module in one vector, in order of registration.
inline std::vector<float> weights(const torch::nn::Module& m) {
    std::vector<float> all;
    for (const auto& p : m.parameters()) {
        const auto flat = p.detach().contiguous();
        const auto* from = static_cast<const float*>(flat.const_data_ptr());
        all.insert(all.end(), from, from + flat.numel());
    }
    return all;
}

/// Largest |a - b| relative to the largest |b|.
inline double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
    double worst = a.size() == b.size() ? 0.0 : 1e30, scale = 1e-30;
    for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
        worst = std::max(worst, std::abs(static_cast<double>(a[i]) - b[i]));
        scale = std::max(scale, std::abs(static_cast<double>(b[i])));
    }
    return worst / scale;
}

/// Buckets small enough that a test model has several.
struct tiny_buckets {
    static constexpr std::size_t first_bytes = 64, bytes = 256;
};

inline std::mutex model_guard; // the default generator is shared by the ranks' threads

/// The same weights every time.
inline Net make_net() {
    const std::lock_guard lock(model_guard);
    torch::manual_seed(42);
    return Net();
}

} // namespace train_test
