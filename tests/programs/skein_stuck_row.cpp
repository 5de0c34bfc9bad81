// SPDX-License-Identifier: Apache-2.0
// Trains on a pipeline of which one row never ends: for stuck_row_test.py.
//
//     skein_stuck_row WORKERS RUNS HELPERS [EPOCHS]    # with epochs: every row ends, after a while

#include <skein/data/pipeline.hpp>
#include <skein/program/run_options.hpp>
#include <skein/train.hpp>
#include <skein/train/feed.hpp>

#include <array>
#include <cstdint>
#include <cstdlib>

#include <unistd.h>

namespace {

namespace data = skein::data;

struct row {
    std::array<float, 4> x = std::array<float, 4>();
    std::int64_t id = 0;
};
struct points {
    torch::Tensor x, id;
};

row draw(std::int64_t i, data::draws& random) {
    row made;
    for (auto& v : made.x) v = random.uniform(-1, 1);
    made.id = i;
    return made;
}
row stick_at_30(row r) {
    while (r.id == 30) ::pause();
    return r;
}
row take_a_while(row r) {
    ::usleep(2000);
    return r;
}

template <class Plan>
void train_on(skein::train::context& ctx, const skein::run_config& run, const Plan& plan) {
    skein::Trainer<skein::DDP<>> trainer(ctx, run);
    torch::manual_seed(1);
    torch::nn::Linear net(4, 1);
    auto batches = skein::train::feed<points>(ctx, run, plan, {.threads = 1});
    const auto held_out = skein::train::numbered<points>(
        ctx, run, data::range(10) | data::map<&draw>(), {.threads = 1});
    const auto loss = [](torch::nn::Linear& model, const points& p) {
        return model->forward(p.x).pow(2).mean();
    };
    trainer.fit(net, skein::SGD{}, skein::train::constant_rate{0.1}, loss, batches, held_out);
}

} // namespace

int main(int argc, char** argv) {
    skein::serve_if_worker();
    if (argc < 4) return 2;
    skein::run_config run;
    run.name = "stuck";
    run.scaling.workers = std::atoi(argv[1]);
    run.runs_dir = argv[2];
    run.global_batch = 12;
    run.epochs = argc > 4 ? std::atoi(argv[4]) : 2;
    run.output = skein::train::output_mode::plain;
    const data::helpers who{.most = std::atoi(argv[3])};
    return skein::train::launch(run, [&](skein::train::context& ctx) {
        const auto drawn = data::range(60) | data::map<&draw>();
        if (argc > 4)
            train_on(ctx, run, drawn | data::map<&take_a_while>() | data::on(who));
        else
            train_on(ctx, run, drawn | data::map<&stick_at_30>() | data::on(who));
    });
}
