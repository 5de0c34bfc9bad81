// SPDX-License-Identifier: Apache-2.0
// Rules that change the plan of a run, over ranks and resumes.
#include <tests/train/train_support.hpp>

#include <skein/train/reduce_on_plateau.hpp>
#include <skein/train/step_plan.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <fstream>
#include <initializer_list>
#include <iterator>
#include <mutex>
#include <sstream>

using namespace train_test;
using Catch::Matchers::ContainsSubstring;

namespace {

struct outcome {
    fit_result result;
    std::vector<float> weights;
    std::string csv, events;
    std::vector<std::vector<std::uint64_t>>
        ids; ///< of all steps and ranks, in order of their places
};

/// Throws behind a step, before anything of it is written.
struct killer {
    std::uint64_t step = 0;
    void on_step(const step_info& s) const {
        if (s.step == step) throw sk::error(sk::errc::io, "killed");
    }
};

/// A run of so many ranks with these rules.
template <class... Rules>
outcome train(int world, const run_config& config, Rules... rules) {
    outcome out;
    std::mutex guard;
    const auto record = [&](std::uint64_t step, int rank, const std::vector<std::uint64_t>& ids) {
        const std::lock_guard lock(guard);
        const auto at = step * static_cast<std::size_t>(world) + static_cast<std::size_t>(rank);
        if (out.ids.size() <= at) out.ids.resize(at + 1);
        out.ids[at].insert(out.ids[at].end(), ids.begin(), ids.end());
    };
    run_world(world, [&](context& ctx) {
        auto net = make_net();
        sk::Trainer<sk::DDP<tiny_buckets>, Rules...> trainer(ctx, config, rules...);
        auto session = trainer.open(net, sk::SGD{}, constant_rate{1e-2});
        const numbers data{60}, held_out{6};
        auto loss = class_loss;
        session.evaluate_on(net, loss, held_out);
        for (auto& step : session.steps(data))
            for (auto& micro : step) {
                record(session.finished(), ctx.rank(), micro.ids);
                session.backward(class_loss(net, micro));
            }
        auto done = session.finish();
        if (!ctx.is_first()) return;
        out.result = std::move(done);
        out.weights = weights(*net);
    });
    const auto text = [&](const char* file) {
        const auto path = config.runs_dir + "/" + config.name + "/" + file;
        std::ifstream in(path);
        return std::string(std::istreambuf_iterator<char>(in), {});
    };
    out.csv = text("metrics.csv");
    out.events = text("events.jsonl");
    return out;
}

run_config files_config(const scratch& dir) {
    auto config = quiet_config(dir.path);
    config.checkpoint.enabled = config.write_files = true;
    config.eval_every = 2;
    config.checkpoint.every = 2;
    config.checkpoint.keep_last = 100;
    return config;
}

/// The same whether it is killed behind one of its steps and resumed or not.
template <class... Rules>
void expect_same_after_kills(int world, run_config config, const outcome& whole,
                             std::initializer_list<std::uint64_t> kills, Rules... rules) {
    for (const auto kill : kills) {
        INFO(world << " ranks, killed behind step " << kill);
        scratch dir;
        config.runs_dir = dir.path;
        config.resume = resume_mode::fresh;
        CHECK_THROWS_AS(train(world, config, killer{kill}, rules...), sk::error);
        config.resume = resume_mode::latest;
        const auto rest = train(world, config, killer{}, rules...);
        CHECK(rest.result.steps == whole.result.steps);
        CHECK(rest.csv == whole.csv);
        CHECK(rest.events == whole.events);
        CHECK(rest.weights == whole.weights);
    }
}

std::vector<double> column(const std::string& csv, const std::string& name) {
    std::istringstream in(csv);
    std::string line, field;
    std::getline(in, line);
    std::size_t at = 0;
    std::istringstream header(line);
    for (; std::getline(header, field, ',') && field != name; ++at) {}
    std::vector<double> out;
    while (std::getline(in, line)) {
        std::istringstream row(line);
        for (std::size_t i = 0; i <= at; ++i) std::getline(row, field, ',');
        out.push_back(std::stod(field));
    }
    return out;
}

} // namespace

TEST_CASE("a rate that a plateau has lowered is used by all ranks, and goes on after a resume") {
    // No evaluation is an improvement by 1e9: the second in a row lowers the rate.
    const sk::reduce_on_plateau rule(
        {.factor = 0.5, .patience = 1, .threshold = 1e9, .relative = false});
    for (const int world : {1, 2}) {
        scratch dir;
        auto config = files_config(dir);
        config.max_steps = 14;
        const auto whole = train(world, config, killer{}, rule);
        CHECK(whole.result.steps == 14);
        std::vector<double> rates;
        // The first evaluation is the best; those of steps 6 and 10 are the second bad ones.
        for (int step = 1; step <= 14; ++step)
            rates.push_back(step <= 6 ? 1e-2 : step <= 10 ? 5e-3 : 2.5e-3);
        CHECK(column(whole.csv, "lr") == rates);
        CHECK_THAT(whole.csv, !ContainsSubstring("global_batch"));
        CHECK_THAT(whole.events,
                   ContainsSubstring("{\"step\":6,\"rule\":\"reduce_on_plateau\",\"what\":\"rate_"
                                     "factor\",\"from\":1.0,\"to\":0.5,\"why\":\"val_loss is ") &&
                       ContainsSubstring("{\"step\":10,"));
        expect_same_after_kills(world, config, whole, {5, 6, 7, 11}, rule);
    }
}
