// SPDX-License-Identifier: Apache-2.0
// Every strategy against one process: all shapes of a model, both optimizers, two to four ranks,
// every transport. label: strategies
//
// The oracle is one process with as many micro-batches per step as there are ranks and
// micro-batches of a rank together. Measured is the distance of all weights over their length (the
// Euclidean norms of the vectors of all weights), and the largest difference of the losses of 20
// steps over the loss. (Against the whole batch in one piece, sums of samples round differently:
// that comparison, to 1e-5, is in fsdp_test.cpp.)

#include <skein/train/fsdp.hpp>
#include <skein/train/single.hpp>
#include <skein/train/zero.hpp>

#include <tests/train/zoo.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cmath>
#include <cstdint>
#include <future>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

using namespace train_test;

namespace {

constexpr int steps = 20;

/// Worlds that train at the same time, each with its share of the columns: ranks of one world
/// mostly wait for each other, the more the busier the machine is.
constexpr std::size_t lanes = 4;

/// One column of the matrix.
struct column {
    const char* name;
    shape kind = shape::plain;
    int accumulation = 1;
    int recompute = 0;
    std::int64_t batch = 12;
};

const std::vector<column> columns{
    {.name = "tied", .kind = shape::tied},
    {.name = "frozen", .kind = shape::frozen},
    {.name = "unused", .kind = shape::unused},
    {.name = "twice used", .kind = shape::twice},
    {.name = "nested", .kind = shape::nested},
    {.name = "uneven",
     .kind = shape::uneven,
     .batch = 13}, // rows and samples that no world divides
    {.name = "accumulated", .accumulation = 2, .batch = 24},
    {.name = "checkpointed", .recompute = 1},
};

/// What a run leaves on one rank.
struct matrix_run {
    std::vector<float> weights;
    std::vector<double> losses;
    friend bool operator==(const matrix_run&, const matrix_run&) = default;
};

struct keep_losses {
    std::vector<double>* losses;
    void on_step(const step_info& s) const { losses->push_back(s.loss); }
};

/// The initial weights of a shape. Drawn before the lanes begin: a step of one lane seeds the
/// generator that another lane's model would draw from.
const std::vector<torch::Tensor>& first_weights(shape kind) {
    static const auto known = [] {
        std::map<shape, std::vector<torch::Tensor>> all;
        for (const auto k : all_shapes) all[k] = make_zoo(k)->parameters();
        return all;
    }();
    return known.at(kind);
}

Zoo zoo_with_first_weights(shape kind) {
    const auto& values = first_weights(kind);
    auto model = make_zoo(kind);
    const at::NoGradGuard no_grad;
    const auto parameters = model->parameters();
    for (std::size_t i = 0; i < values.size(); ++i) parameters.at(i).copy_(values[i]);
    return model;
}

template <class Strategy>
matrix_run train_one(context& ctx, const column& c, bool adam, int accumulation) {
    matrix_run out;
    auto model = zoo_with_first_weights(c.kind);
    if (c.recompute > 0) (void)checkpoint_activations(*model, c.recompute);
    auto config = quiet_config("unused");
    config.max_steps = steps;
    config.global_batch = c.batch;
    config.accumulation = accumulation;
    config.clip = 0.5;
    sk::Trainer<Strategy, keep_losses> trainer(ctx, config, keep_losses{&out.losses});
    const auto options = adam ? optimizer_options(sk::AdamW{.weight_decay = 0.1})
                              : optimizer_options(sk::SGD{.momentum = 0.9, .weight_decay = 0.1});
    (void)trainer.fit(model, options, constant_rate{.peak = 1e-2}, zoo_loss, numbers{},
                      numbers{.n = 0});
    out.weights = weights(*model);
    return out;
}

using trainee = matrix_run (*)(context&, const column&, bool, int);
const std::vector<std::pair<const char*, trainee>> strategies{
    {"DDP", train_one<sk::DDP<tiny_buckets>>},    {"Zero1", train_one<sk::Zero1<zoo_cells>>},
    {"Zero2", train_one<sk::Zero2<zoo_cells>>},   {"FSDP", train_one<sk::FSDP<zoo_cells>>},
    {"Hybrid", train_one<sk::Hybrid<zoo_cells>>},
};

/// All columns, both optimizers and every strategy in one world of threads; by column, optimizer,
/// strategy.
using key = std::tuple<std::size_t, bool, std::size_t>;
using table = std::map<key, std::vector<matrix_run>>;

/// Which of them run once more in the same world.
enum class again : std::uint8_t { none, adam, sgd };

table train_all(int world, const std::string& transport, again rerun) {
    // Two ranks on one host and one on the next are too uneven a world for Hybrid.
    const auto some = strategies.size() - (transport == "hierarchical" && world == 3 ? 1 : 0);
    table all;
    for (std::size_t c = 0; c < columns.size(); ++c)
        for (const bool adam : {true, false})
            for (std::size_t s = 0; s < some; ++s) {
                const bool twice = rerun == (adam ? again::adam : again::sgd);
                all[{c, adam, s}].resize(static_cast<std::size_t>(world * (twice ? 2 : 1)));
            }
    const auto train_lane = [&](context& ctx, std::size_t lane) {
        for (auto& [k, outcomes] : all) {
            const auto [number, adam, strategy] = k;
            if (number % lanes != lane) continue;
            const auto& c = columns[number];
            for (auto i = static_cast<std::size_t>(ctx.rank()); i < outcomes.size();
                 i += static_cast<std::size_t>(world))
                outcomes[i] = strategies[strategy].second(ctx, c, adam, c.accumulation);
        }
    };
    (void)first_weights(shape::plain);
    std::vector<std::future<void>> worlds;
    for (std::size_t lane = 0; lane < lanes; ++lane)
        worlds.push_back(std::async(std::launch::async, [&, lane] {
            run_world(world, [&](context& ctx) { train_lane(ctx, lane); }, transport);
        }));
    for (auto& w : worlds) w.get();
    return all;
}

/// |a - b| / |b| of two long vectors.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
    double apart = a.size() == b.size() ? 0.0 : 1e30, length = 0.0;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
        apart += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
        length += double(b[i]) * b[i];
    }
    return std::sqrt(apart / length);
}

double loss_distance(const std::vector<double>& a, const std::vector<double>& b) {
    double worst = a.size() == b.size() && a.size() == steps ? 0.0 : 1e30;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
        worst = std::max(worst, std::abs(a[i] / b[i] - 1.0));
    return worst;
}

const matrix_run& oracle(const column& c, bool adam, int world) {
    static std::map<std::tuple<std::string, bool, int>, matrix_run> known;
    auto& found = known[{c.name, adam, world}];
    auto ctx = context::single();
    if (found.losses.empty()) found = train_one<sk::Single>(ctx, c, adam, world * c.accumulation);
    return found;
}

std::string where(const key& k) {
    const auto [c, adam, s] = k;
    return std::string(columns[c].name) + (adam ? ", AdamW, " : ", SGD, ") + strategies[s].first;
}

/// Close to one process, and the same on every rank and whenever it ran.
void check_against_one_process(const table& all, int world) {
    for (const auto& [k, outcomes] : all) {
        INFO(where(k) << " on " << world << " ranks");
        const auto& wanted = oracle(columns[std::get<0>(k)], std::get<1>(k), world);
        for (const auto& o : outcomes) CHECK((o == outcomes[0]));
        CHECK(distance(outcomes[0].weights, wanted.weights) < 1e-6);
        CHECK(loss_distance(outcomes[0].losses, wanted.losses) < 1e-6);
    }
}

/// The strategy whose bits another has. Accumulated gradients are added in another order when each
/// micro-batch is reduced: (a0 + b0) + (a1 + b1), with DDP and Zero1 (a0 + a1) + (b0 + b1).
std::size_t like(std::size_t strategy, const column& c, bool one_host) {
    constexpr std::size_t ddp = 0, zero1 = 1, zero2 = 2, hybrid = 4;
    if (c.accumulation == 1 || strategy <= zero1) return ddp;
    return strategy == hybrid && !one_host ? ddp : zero2; // a host of one rank has nothing to shard
}

/// The same bits under every strategy.
void check_alike(const table& all, const table& of, bool one_host) {
    for (const auto& [k, outcomes] : all) {
        INFO(where(k));
        const auto [c, adam, s] = k;
        CHECK((outcomes[0] == of.at({c, adam, like(s, columns[c], one_host)})[0]));
    }
}

} // namespace

TEST_CASE("two ranks: the same bits under all strategies over every transport, and again") {
    const auto shared = train_all(2, "shm", again::sgd);
    check_against_one_process(shared, 2);
    check_alike(shared, shared, true);
    for (const std::string transport : {"ring", "hierarchical"}) {
        INFO(transport);
        const auto other = train_all(2, transport, again::none);
        check_against_one_process(other, 2);
        check_alike(other, shared, transport != "ring");
    }
}

TEST_CASE("three and four ranks in shared memory: the same bits under all strategies, and again") {
    for (const int world : {3, 4}) {
        const auto all = train_all(world, "shm", world == 3 ? again::adam : again::sgd);
        check_against_one_process(all, world);
        check_alike(all, all, true);
    }
}

TEST_CASE("three ranks in a ring and four on two hosts agree with one process") {
    check_against_one_process(train_all(3, "ring", again::none), 3);
    check_against_one_process(train_all(4, "hierarchical", again::none), 4);
}
