// SPDX-License-Identifier: Apache-2.0
// A parameter server: one actor has the weights, tasks compute gradients and push them, each at its own pace.
//
//     080_parameter_server [--workers N]
// [server]
#include <skein/skein.hpp>

#include <fmt/core.h>

#include <array>
#include <cstdint>
#include <random>
#include <vector>

using vec = std::array<double, 3>; // two slopes and an offset

struct parameter_server {
    vec weights{};
    double rate = 0.1;
    int pushes = 0;

    vec pull() const { return weights; }
    // One call per step: who pushes a gradient gets the weights that all the others have changed meanwhile.
    vec push(const vec& gradient) {
        ++pushes;
        for (std::size_t i = 0; i < weights.size(); ++i) weights[i] -= rate * gradient[i];
        return weights;
    }
    int count() const { return pushes; }
};
// [/server]

// [model]
struct sample {
    vec x; // the last one is 1
    double y;
};

// What a worker reads: here it is made, the same for the same shard wherever the task runs.
std::vector<sample> read_shard(std::uint32_t shard) {
    std::mt19937 random(shard);
    std::vector<sample> out;
    for (int i = 0; i < 200; ++i) {
        const auto uniform = [&] { return static_cast<double>(random()) / 4294967296.0; };
        const vec x{uniform(), uniform(), 1};
        out.push_back({x, 3 * x[0] - 2 * x[1] + 0.5}); // what is to be found
    }
    return out;
}

double error_of(const vec& w, const sample& s) {
    return w[0] * s.x[0] + w[1] * s.x[1] + w[2] * s.x[2] - s.y;
}

vec gradient(const vec& w, const std::vector<sample>& data) {
    vec sum{};
    for (const auto& s : data)
        for (std::size_t i = 0; i < sum.size(); ++i)
            sum[i] += 2 * error_of(w, s) * s.x[i] / static_cast<double>(data.size());
    return sum;
}

double loss(const vec& w, const std::vector<sample>& data) {
    double sum = 0;
    for (const auto& s : data) sum += error_of(w, s) * error_of(w, s);
    return sum / static_cast<double>(data.size());
}
// [/model]

// [train]
// A task that calls an actor. If its worker dies it runs again from its first step: gradients that were pushed twice do
// no harm, the weights come closer with each.
skein::task<int> train(skein::actor_handle<parameter_server> server, std::uint32_t shard,
                       int steps) {
    const auto data = read_shard(shard);
    auto now = co_await server.call<&parameter_server::pull>();
    for (int i = 0; i < steps; ++i) {
        const auto step = gradient(now, data); // of weights that may be old already
        now = co_await server.call<&parameter_server::push>(step);
    }
    co_return steps;
}
// [/train]

// [app]
skein::task<int> app() {
    auto server = co_await skein::actor<parameter_server>();
    std::vector<skein::ref<int>> trainers;
    for (std::uint32_t shard = 1; shard <= 4; ++shard)
        trainers.push_back(skein::remote<&train>(server, shard, 500));
    auto together = skein::all(std::move(trainers));
    int steps = 0;
    for (const int n : co_await std::move(together)) steps += n;

    const auto unseen = read_shard(100);
    const vec found = co_await server.call<&parameter_server::pull>();
    fmt::print("{} steps, {} pushes\n", steps, co_await server.call<&parameter_server::count>());
    fmt::print("the loss fell from {:.2f} to less than 0.0001: {}\n", loss({}, unseen),
               loss(found, unseen) < 0.0001);
    fmt::print("weights {:.1f} {:.1f} {:.1f}\n", found[0], found[1], found[2]);
    co_return 0;
}

int main(int argc, char** argv) { return skein::run(argc, argv, app); }
// [/app]
