// SPDX-License-Identifier: Apache-2.0
// What a look at gradients adds to a step: the same training with a callback that looks and with one
// that does not, one micro-batch a step and four.
//
//     adaptive         GPT of 3.3 million parameters, CNN for MNIST; SKEIN_BENCH_ROUNDS (default 40)
//
// One rank, one compute thread. Both trainings are in one process and make one step each in turns, so
// that what the machine does meanwhile falls on both. With one micro-batch a step is compared with
// the one before, which keeps a copy of the gradient; with four each is apart. Without a bar: two
// ranks with one micro-batch each, which need no copy.

#include "bench.hpp"

#include "../examples/110_gpt_ddp/gpt.hpp"

#include <skein/dist/bootstrap.hpp>
#include <skein/sim/local_rendezvous.hpp>
#include <skein/train/ddp.hpp>
#include <skein/train/trainer.hpp>

#include <algorithm>
#include <barrier>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

namespace train = skein::train;

// ---- what is trained ----------------------------------------------------------------------------

struct made_batch {
    torch::Tensor x, y;
};

struct bytes {
    static constexpr std::int64_t context = 128;
    [[nodiscard]] std::uint64_t size() const noexcept { return 4096; }
    [[nodiscard]] made_batch batch(std::span<const std::uint64_t> ids) const {
        const auto rows = static_cast<std::int64_t>(ids.size());
        const auto all = torch::arange(rows * (context + 1)).remainder(251).view({rows, -1});
        return {all.slice(1, 0, context), all.slice(1, 1, context + 1)};
    }
};
struct gpt_work {
    using data = bytes;
    static constexpr std::int64_t batch = 8;
    gpt::GPT model{
        gpt::model_options{.context = bytes::context, .layers = 4, .heads = 8, .dim = 256}};
    static at::Tensor loss(gpt::GPT& m, const made_batch& b) {
        return gpt::next_byte_loss(m, b.x, b.y);
    }
};

/// That of AdaptDL's and PyTorch's MNIST tutorials: 1.2 million parameters.
struct CnnImpl : torch::nn::Module {
    CnnImpl()
        : first(torch::nn::Conv2dOptions(1, 32, 3)), second(torch::nn::Conv2dOptions(32, 64, 3)),
          hidden(9216, 128), out(128, 10) {
        register_module("first", first);
        register_module("second", second);
        register_module("hidden", hidden);
        register_module("out", out);
    }
    torch::Tensor forward(torch::Tensor x_BCHW) {
        x_BCHW = torch::relu(second(torch::relu(first(x_BCHW))));
        return out(torch::relu(hidden(torch::max_pool2d(x_BCHW, 2).flatten(1))));
    }
    torch::nn::Conv2d first, second;
    torch::nn::Linear hidden, out;
};
TORCH_MODULE(Cnn);

struct digits {
    [[nodiscard]] std::uint64_t size() const noexcept { return 4096; }
    [[nodiscard]] made_batch batch(std::span<const std::uint64_t> ids) const {
        const auto rows = static_cast<std::int64_t>(ids.size());
        return {torch::arange(rows * 784)
                    .remainder(97)
                    .to(torch::kFloat)
                    .div(97)
                    .view({rows, 1, 28, 28}),
                torch::arange(rows).remainder(10)};
    }
};
struct cnn_work {
    using data = digits;
    static constexpr std::int64_t batch = 64;
    Cnn model;
    static at::Tensor loss(Cnn& m, const made_batch& b) {
        return torch::nn::functional::cross_entropy(m->forward(b.x), b.y);
    }
};

// ---- steps of two trainings in turns ------------------------------------------------------------

struct looks_on {
    bool preconditioned = false;
    [[nodiscard]] train::gradient_look look() const { return {.preconditioned = preconditioned}; }
    void on_step(const train::step_info& s) const {
        if (s.squares != nullptr) bench::keep(s.squares->front().local);
    }
};
struct looks_away {
    void on_step(const train::step_info& s) const { bench::keep(s.loss); }
};

template <class Work, class Callback>
class training {
public:
    training(train::context& ctx, std::int64_t micro_batches, const Callback& callback)
        : config_(config_of(ctx, micro_batches)), trainer_(ctx, config_, callback),
          session_(trainer_.open(work_.model, skein::AdamW{}, train::constant_rate{1e-4})) {
        session_.begin(train::detail::make_input(data_));
    }
    /// Seconds of processor time of this thread, which computes all.
    double step() {
        return bench::cpu_seconds([&] {
            (void)session_.draw();
            while (const void* const batch = session_.next_micro())
                session_.backward(Work::loss(work_.model, *static_cast<const made_batch*>(batch)));
            session_.complete();
        });
    }

private:
    static skein::run_config config_of(const train::context& ctx, std::int64_t micro_batches) {
        skein::run_config config;
        config.max_steps = 1'000'000;
        config.global_batch = Work::batch * ctx.world_size();
        config.accumulation = micro_batches;
        config.prefetch_batches = 0;
        config.eval_every = config.checkpoint.every = 0;
        config.checkpoint.enabled = config.write_files = false;
        config.output = train::output_mode::quiet;
        return config;
    }
    typename Work::data data_;
    Work work_;
    skein::run_config config_;
    skein::Trainer<skein::DDP<>, Callback> trainer_;
    train::session session_;
};

struct both {
    double with = 0, without = 0, added = 0; ///< median seconds; the median of differences
};

template <class Work, class Looks>
both measure_here(train::context& ctx, std::int64_t micro_batches, int rounds, const Looks& looks) {
    at::set_num_threads(1);
    training<Work, Looks> with(ctx, micro_batches, looks);
    training<Work, looks_away> without(ctx, micro_batches, {});
    std::vector<double> ours, theirs, added;
    for (int round = -8; round < rounds; ++round) {
        double a = 0, b = 0;
        if (round % 2 == 0) a = with.step();
        b = without.step();
        if (round % 2 != 0) a = with.step();
        if (round < 0) continue;
        ours.push_back(a);
        theirs.push_back(b);
        added.push_back(a - b);
    }
    return {bench::summary(ours).median, bench::summary(theirs).median,
            bench::summary(added).median};
}

template <class Work, class Looks>
both measure(int ranks, std::int64_t micro_batches, int rounds, const Looks& looks) {
    if (ranks == 1) {
        train::context ctx({.host = "here"}, nullptr, nullptr);
        return measure_here<Work>(ctx, micro_batches, rounds, looks);
    }
    both out;
    skein::sim::local_world world(std::vector<std::string>(static_cast<std::size_t>(ranks), "a"));
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r)
        threads.emplace_back([&, r] {
            const skein::dist::comm_options options{.model = "shm"};
            auto comm = skein::dist::make_comm_thread(world.at(r), options);
            train::world_info where;
            where.rank = where.local_rank = r;
            where.world_size = where.local_size = ranks;
            where.host = "here";
            train::context ctx(where, &world.at(r), comm.get());
            ctx.use_options(options);
            const auto here = measure_here<Work>(ctx, micro_batches, rounds, looks);
            if (r == 0) out = here;
        });
    for (auto& t : threads) t.join();
    return out;
}

template <class Work, class Looks = looks_on>
bool compare(const std::string& name, int ranks, std::int64_t micro_batches, int rounds,
             bool has_bar, const Looks& looks = {}) {
    const auto m = measure<Work>(ranks, micro_batches, rounds, looks);
    auto line = bench::figure(name, (m.without + m.added) * 1e3, "ms of processor time per step")
                    .against("nobody looks", m.without * 1e3);
    if (has_bar) (void)std::move(line).at_most(1.02);
    return line.print();
}

} // namespace

int main() {
    const char* const asked = std::getenv("SKEIN_BENCH_ROUNDS");
    const int rounds = asked != nullptr ? std::max(1, std::atoi(asked)) : 40;
    bool ok = true;
    ok &= compare<gpt_work>("adaptive.look.gpt_3M.one", 1, 1, rounds, true);
    ok &= compare<gpt_work>("adaptive.look.gpt_3M.four", 1, 4, rounds, true);
    ok &= compare<cnn_work>("adaptive.look.mnist_cnn.one", 1, 1, rounds, true);
    ok &= compare<cnn_work>("adaptive.look.mnist_cnn.four", 1, 4, rounds, true);
    compare<gpt_work>("adaptive.look.gpt_3M.two_ranks", 2, 1, rounds, false);
    compare<cnn_work>("adaptive.look.mnist_cnn.two_ranks", 2, 1, rounds, false);
    compare<gpt_work>("adaptive.look.gpt_3M.preconditioned", 1, 4, rounds, false,
                      looks_on{.preconditioned = true});
    compare<cnn_work>("adaptive.look.mnist_cnn.preconditioned", 1, 4, rounds, false,
                      looks_on{.preconditioned = true});
    return ok ? 0 : 1;
}
