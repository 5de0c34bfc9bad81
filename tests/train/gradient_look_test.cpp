// SPDX-License-Identifier: Apache-2.0
#include <skein/train/gradient_look.hpp>

#include <skein/goodput/gradient_noise.hpp>
#include <skein/sim/local_elastic.hpp>
#include <skein/train/elastic.hpp>
#include <skein/train/elastic_place.hpp>

#include <tests/train/strategy_laws.hpp>
#include <tests/train/zoo.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>

namespace gradient_look_test {

using namespace train_test;
using Catch::Matchers::ContainsSubstring;
using sk::goodput::gradient_squares;

namespace {

/// What a callback was told of a step.
struct told {
    std::vector<gradient_squares> squares; ///< empty: there was no number
    bool differenced = false;

    friend bool operator==(const told& a, const told& b) {
        const auto same = [](const gradient_squares& x, const gradient_squares& y) {
            return x.count == y.count && x.local == y.local && x.total == y.total;
        };
        return a.differenced == b.differenced && std::ranges::equal(a.squares, b.squares, same);
    }
};
using told_steps = std::map<std::uint64_t, told>;

/// Maps have a printer of LibTorch's, which needs one of their values.
bool same(const told_steps& a, const told_steps& b) { return a == b; }

told told_by(const step_info& s) {
    told out{.squares = {}, .differenced = s.squares_are_differenced};
    if (s.squares != nullptr) out.squares = *s.squares;
    return out;
}

struct looker {
    gradient_look how{};
    told_steps* steps = nullptr;

    [[nodiscard]] gradient_look look() const { return how; }
    void on_step(const step_info& s) const {
        if (steps != nullptr) (*steps)[s.step] = told_by(s);
    }
};

/// What the step of a rank is about to be: left out where it says so.
struct judge_of {
    gradient_look how{};
    std::uint64_t leaves_out = 0;
    told_steps* agreed = nullptr;

    [[nodiscard]] gradient_look look() const { return how; }
    [[nodiscard]] ruling on_agreed(const step_info& s) const {
        if (agreed != nullptr) (*agreed)[s.step] = told_by(s);
        const bool broken = !std::isfinite(s.grad_norm) || s.step == leaves_out;
        return {.what = broken ? verdict::leave_out : verdict::apply, .why = "a test wants it"};
    }
};

/// The gradient of one part of a step, by autograd, elements in order of the parameters.
struct part {
    double weight = 0.0;
    std::vector<double> g;
};
struct parts_of_steps {
    std::mutex guard;
    std::map<std::uint64_t, std::vector<part>> steps{};
    std::vector<std::size_t> ends{}; ///< of the parameters, in the elements
};

template <class Module>
part part_of(Module& m, const at::Tensor& mean, double weight, std::vector<std::size_t>* ends) {
    std::vector<at::Tensor> parameters;
    for (const auto& p : m->parameters())
        if (p.requires_grad()) parameters.push_back(p);
    const auto all = torch::autograd::grad({mean}, parameters, {}, /*retain_graph=*/true,
                                           /*create_graph=*/false, /*allow_unused=*/true);
    part out{weight, {}};
    if (ends != nullptr) ends->clear();
    for (std::size_t i = 0; i < all.size(); ++i) {
        const auto n = static_cast<std::size_t>(parameters[i].numel());
        if (all[i].defined()) {
            const auto flat = all[i].detach().to(torch::kDouble).contiguous();
            const auto* from = static_cast<const double*>(flat.const_data_ptr());
            out.g.insert(out.g.end(), from, from + n);
        } else {
            out.g.insert(out.g.end(), n, 0.0);
        }
        if (ends != nullptr) ends->push_back(out.g.size());
    }
    return out;
}

/// Straight from the definition. Elements outside of [first, last) do not count, nor do those whose
/// divisor is 0.
gradient_squares expected(const std::vector<part>& parts, std::size_t first, std::size_t last,
                          const std::vector<double>& divisors = {}) {
    double weights = 0.0;
    for (const auto& p : parts) weights += p.weight;
    const auto by = [&](std::size_t i) {
        return divisors.empty() ? 1.0 : divisors[i] > 0 ? 1.0 / divisors[i] : 0.0;
    };
    gradient_squares out{.count = static_cast<int>(parts.size())};
    for (auto i = first; i < last; ++i) {
        double mean = 0.0;
        for (const auto& p : parts) {
            mean += p.weight / weights * p.g[i] * by(i);
            out.local += p.weight / weights * std::pow(p.g[i] * by(i), 2);
        }
        out.total += mean * mean;
    }
    return out;
}

bool is_near(double a, double b, double relative) {
    return std::abs(a - b) <= relative * std::max(std::abs(a), std::abs(b));
}
bool is_near(const gradient_squares& a, const gradient_squares& b, double relative) {
    return a.count == b.count && is_near(a.local, b.local, relative) &&
           is_near(a.total, b.total, relative);
}

struct look_options {
    int world = 1;
    int accumulation = 1, shards = 0;
    std::int64_t batch = 12, steps = 6;
    last_batch last = last_batch::drop;
    gradient_look how{};
    optimizer_options optimizer{sk::SGD{.momentum = 0.9}};
    bool weighted = false;
    shape kind = shape::plain;
    int recompute = 0;
    double clip = 0.5;
};

/// Every third sample counts for more than the others.
sk::weighted_loss weighted_zoo_loss(Zoo& m, const sample_batch& b) {
    const auto each = torch::nn::functional::cross_entropy(
        m->forward(b.x, b.ids), b.y,
        torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
    std::vector<float> weights;
    for (const auto id : b.ids) weights.push_back(id % 3 == 0 ? 1.7f : 0.3f);
    const auto w = torch::tensor(weights);
    return {(each * w).sum(), w.sum()};
}

/// A run of a small model; what each rank was told must be the same.
template <class Strategy>
told_steps run(const look_options& o, parts_of_steps* oracle = nullptr,
               std::vector<float>* weights_out = nullptr, const std::string& transport = "shm") {
    std::vector<told_steps> seen(static_cast<std::size_t>(o.world));
    run_world(
        o.world,
        [&](context& ctx) {
            at::set_num_threads(1);
            auto model = make_zoo(o.kind);
            if (o.recompute > 0) (void)checkpoint_activations(*model, o.recompute);
            auto config = quiet_config("unused");
            config.max_steps = o.steps;
            config.global_batch = o.batch;
            config.accumulation = o.accumulation;
            config.last = o.last;
            config.scaling.logical_shards = o.shards;
            config.clip = o.clip;
            auto& mine = seen[static_cast<std::size_t>(ctx.rank())];
            sk::Trainer<Strategy, looker> trainer(ctx, config, looker{o.how, &mine});
            const auto remember = [&](Zoo& m, const at::Tensor& mean, double weight) {
                if (oracle == nullptr || !m->is_training()) return;
                const std::lock_guard lock(oracle->guard);
                oracle->steps[mine.size() + 1].push_back(part_of(m, mean, weight, &oracle->ends));
            };
            if (o.weighted) {
                const auto loss = [&](Zoo& m, const sample_batch& b) {
                    const auto value = weighted_zoo_loss(m, b);
                    remember(m, value.sum / value.weight, value.weight.template item<double>());
                    return value;
                };
                (void)trainer.fit(model, o.optimizer, constant_rate{1e-2}, loss, numbers{},
                                  numbers{.n = 0});
            } else {
                const auto loss = [&](Zoo& m, const sample_batch& b) {
                    const auto value = zoo_loss(m, b);
                    remember(m, value, static_cast<double>(b.x.size(0)));
                    return value;
                };
                (void)trainer.fit(model, o.optimizer, constant_rate{1e-2}, loss, numbers{},
                                  numbers{.n = 0});
            }
            if (weights_out != nullptr && ctx.is_first()) *weights_out = weights(*model);
        },
        transport);
    for (std::size_t r = 1; r < seen.size(); ++r) CHECK(same(seen[r], seen[0]));
    return seen[0];
}

void check_near(const told_steps& a, const told_steps& b, double relative) {
    REQUIRE(a.size() == b.size());
    for (const auto& [step, one] : a) {
        INFO("step " << step);
        const auto& other = b.at(step);
        REQUIRE(one.squares.size() == other.squares.size());
        REQUIRE_FALSE(one.squares.empty());
        CHECK(one.differenced == other.differenced);
        for (std::size_t g = 0; g < one.squares.size(); ++g) {
            INFO("group " << g << ": " << one.squares[g].local << " and " << other.squares[g].local
                          << ", " << one.squares[g].total << " and " << other.squares[g].total);
            CHECK(is_near(one.squares[g], other.squares[g], relative));
        }
    }
}

/// All of a step in one group.
void check_oracle(const told_steps& seen, const parts_of_steps& oracle, double relative) {
    told_steps wanted;
    for (const auto& [step, parts] : oracle.steps)
        wanted[step].squares = {expected(parts, 0, parts.front().g.size())};
    check_near(seen, wanted, relative);
}

} // namespace

TEST_CASE("ranks, micro-batches and shards of equal parts show the same squares") {
    const auto ranks = run<sk::DDP<tiny_buckets>>({.world = 2});
    check_near(run<sk::Single>({.accumulation = 2}), ranks, 1e-12);
    check_near(run<sk::DDP<>>({.accumulation = 2}), ranks, 1e-12);
    check_near(run<sk::DDP<>>({.shards = 2}), ranks, 1e-12);
    check_near(run<sk::DDP<>>({.world = 2, .shards = 2}), ranks, 1e-12);
    check_near(run<sk::DDP<>>({.world = 2}, nullptr, nullptr, "ring"), ranks, 1e-12);
    CHECK(ranks.at(1).squares.at(0).count == 2);

    // Four parts, whose float32 gradients are added in another order.
    const auto four = run<sk::DDP<tiny_buckets>>({.world = 4});
    check_near(run<sk::Single>({.accumulation = 4}), four, 1e-5);
    check_near(run<sk::DDP<>>({.world = 2, .accumulation = 2}), four, 1e-5);
    check_near(run<sk::DDP<>>({.world = 2, .shards = 4}), four, 1e-5);
    CHECK(four.at(1).squares.at(0).count == 4);
}

TEST_CASE("squares are those that autograd gives for each part") {
    for (const bool weighted : {false, true})
        for (const int world : {1, 2, 3}) {
            INFO("weighted: " << weighted << ", ranks: " << world);
            const look_options o{
                .world = world, .accumulation = 2, .batch = 11, .weighted = weighted};
            parts_of_steps oracle;
            const auto seen = run<sk::DDP<tiny_buckets>>(o, &oracle);
            CHECK(seen.at(1).squares.at(0).count == 2 * world);
            check_oracle(seen, oracle, 1e-5);
        }
    parts_of_steps oracle;
    check_oracle(run<sk::Single>({.accumulation = 3, .batch = 11}, &oracle), oracle, 1e-5);
}

TEST_CASE("logical shards show the same bits on 1, 2 and 3 ranks") {
    const optimizer_options adam{sk::AdamW{.weight_decay = 0.1}};
    const auto one = run<sk::DDP<tiny_buckets>>({.shards = 4, .batch = 15, .optimizer = adam});
    CHECK(one.at(1).squares.at(0).count == 4);
    for (const int world : {2, 3})
        CHECK(same(run<sk::DDP<tiny_buckets>>(
                       {.world = world, .shards = 4, .batch = 15, .optimizer = adam}),
                   one));
    parts_of_steps oracle;
    check_oracle(run<sk::DDP<>>({.shards = 4, .batch = 15, .optimizer = adam}, &oracle), oracle,
                 1e-5);
    // Preconditioned, weighted, with parameters that some shards leave unused.
    look_options o{.shards = 4,
                   .batch = 15,
                   .steps = 9,
                   .how = {.preconditioned = true},
                   .optimizer = adam,
                   .weighted = true,
                   .kind = shape::unused};
    const auto first = run<sk::DDP<>>(o);
    CHECK_FALSE(first.at(9).squares.empty());
    for (const int world : {2, 3}) {
        o.world = world;
        CHECK(same(run<sk::DDP<>>(o), first));
    }
}

TEST_CASE("strategies that cut states and parameters show the squares that DDP shows") {
    for (const int accumulation : {1, 2}) {
        look_options o{.world = 2, .accumulation = accumulation};
        const auto all = run<sk::DDP<>>(o);
        check_near(run<sk::Zero1<>>(o), all, 1e-5);
        check_near(run<sk::Zero2<tiny_buckets>>(o), all, 1e-5);
        for (const auto* const transport : {"shm", "ring"}) {
            check_near(run<sk::FSDP<zoo_cells>>(o, nullptr, nullptr, transport), all, 1e-5);
            check_near(run<sk::Hybrid<zoo_cells>>(o, nullptr, nullptr, transport), all, 1e-5);
        }
        o.recompute = 1; // gradients that come in pieces
        o.kind = shape::twice;
        const auto pieces = run<sk::DDP<>>(o);
        check_near(run<sk::FSDP<zoo_cells>>(o), pieces, 1e-5);
        check_near(run<sk::Zero2<tiny_buckets>>(o), pieces, 1e-5);
        o.recompute = 0;
        check_near(run<sk::DDP<>>(o), pieces, 1e-5);
    }
    look_options o{.accumulation = 2, .kind = shape::twice, .recompute = 1};
    const auto pieces = run<sk::Single>(o);
    o.recompute = 0;
    check_near(run<sk::Single>(o), pieces, 1e-5);
}

TEST_CASE("squares are by parameter group, those of a frozen one are zeros") {
    const auto starts = [](const char* with) {
        return [with](const parameter_info& p) { return p.name.starts_with(with); };
    };
    const parameter_groups groups{{.match = starts("embed"), .lr_scale = 0.1},
                                  {.match = starts("head"), .frozen = true},
                                  {.match = starts("a."), .weight_decay = 0.0}};
    look_options o{.world = 2, .optimizer = {sk::SGD{}, {.groups = groups}}};
    parts_of_steps oracle;
    const auto seen = run<sk::DDP<tiny_buckets>>(o, &oracle);
    // embed, a (4 parameters), b and c, head (2)
    const auto& ends = oracle.ends;
    REQUIRE(ends.size() == 16);
    const std::size_t bounds[][2] = {
        {0, ends[1]}, {ends[15], ends[15]}, {ends[1], ends[5]}, {ends[5], ends[13]}};
    told_steps wanted;
    for (const auto& [step, parts] : oracle.steps)
        for (const auto& [first, last] : bounds)
            wanted[step].squares.push_back(expected(parts, first, last));
    check_near(seen, wanted, 1e-5);
    CHECK(seen.at(1).squares[1].local == 0.0);
    for (const int accumulation : {1, 2}) {
        o.accumulation = accumulation;
        const auto all = run<sk::DDP<>>(o);
        check_near(run<sk::Zero1<>>(o), all, 1e-5);
        check_near(run<sk::FSDP<zoo_cells>>(o), all, 1e-5);
        check_near(run<sk::Hybrid<zoo_cells>>(o, nullptr, nullptr, "hierarchical"), all, 1e-5);
    }
}

TEST_CASE("one gradient of a step is compared with that of the step before") {
    parts_of_steps oracle;
    const auto seen = run<sk::Single>({}, &oracle);
    CHECK(seen.at(1).squares.empty());
    for (std::uint64_t step = 2; step <= 6; ++step) {
        const auto& before = oracle.steps.at(step - 1).at(0);
        const auto& now = oracle.steps.at(step).at(0);
        REQUIRE(seen.at(step).squares.size() == 1);
        CHECK(seen.at(step).differenced);
        const auto wanted = expected({{1.0, before.g}, {1.0, now.g}}, 0, now.g.size());
        CHECK(is_near(seen.at(step).squares[0], wanted, 1e-5));
        CHECK(wanted.count == 2);
    }
    // One rank, in whatever strategy; not with several, of which one has samples.
    // Its parameters lie elsewhere, so that matrix products may add in another order: on some
    // processors they do.
    auto sharded = run<sk::FSDP<zoo_cells>>({.steps = 3}), whole = run<sk::DDP<>>({.steps = 3});
    CHECK(sharded.extract(1).mapped().squares.empty());
    CHECK(whole.extract(1).mapped().squares.empty());
    check_near(sharded, whole, 1e-5);
    const auto short_last = run<sk::DDP<>>(
        {.world = 2, .batch = 21, .steps = 5, .last = last_batch::shorten}); // of 64 samples
    for (const auto& [step, one] : short_last) CHECK(one.squares.empty() == (step == 4));
    for (const auto& [step, one] : run<sk::Single>({.how = {.differences = false}}))
        CHECK(one.squares.empty());
    // By weight: gradients of two steps have another divisor each.
    parts_of_steps weighted;
    const auto by_weight = run<sk::DDP<>>({.weighted = true}, &weighted);
    const auto& a = weighted.steps.at(1).at(0);
    const auto& b = weighted.steps.at(2).at(0);
    CHECK(is_near(by_weight.at(2).squares.at(0), expected({{1.0, a.g}, {1.0, b.g}}, 0, a.g.size()),
                  1e-5));
}

TEST_CASE("preconditioned squares are divided by what Adam divides by") {
    const sk::AdamW adam{.beta2 = 0.9, .eps = 1e-3};
    for (const int world : {1, 2})
        for (const int accumulation : {1, 2}) {
            INFO("ranks: " << world << ", micro-batches: " << accumulation);
            look_options o{.world = world,
                           .accumulation = accumulation,
                           .steps = 9,
                           .how = {.preconditioned = true},
                           .optimizer = adam,
                           .kind = shape::unused,
                           .clip = 0};
            parts_of_steps oracle;
            const auto seen = run<sk::DDP<tiny_buckets>>(o, &oracle);
            std::vector<double> moments(oracle.ends.back(), 0.0);
            std::vector<double> steps_of(oracle.ends.size(), 0.0); // without those left out
            for (std::uint64_t step = 1; step <= 9; ++step) {
                INFO("step " << step);
                std::vector<double> divisors;
                for (std::size_t p = 0, i = 0; p < oracle.ends.size(); ++p)
                    for (; i < oracle.ends[p]; ++i)
                        divisors.push_back(
                            moments[i] > 0
                                ? std::sqrt(moments[i] / (1 - std::pow(0.9, steps_of[p]))) + 1e-3
                                : 0.0);
                const auto& parts = oracle.steps.at(step);
                const auto& one = seen.at(step);
                REQUIRE(one.squares.size() == (step <= 5 ? 0 : 1));
                auto both = parts;
                if (parts.size() == 1 && step > 5) {
                    CHECK(one.differenced);
                    both = {{1.0, oracle.steps.at(step - 1).at(0).g}, {1.0, parts[0].g}};
                }
                if (step > 5)
                    CHECK(is_near(one.squares[0], expected(both, 0, oracle.ends.back(), divisors),
                                  1e-3));
                double weights = 0;
                for (const auto& p : parts) weights += p.weight;
                for (std::size_t p = 0, i = 0; p < oracle.ends.size(); ++p) {
                    const auto first = i;
                    std::vector<double> mean;
                    for (; i < oracle.ends[p]; ++i) {
                        mean.push_back(0.0);
                        for (const auto& each : parts)
                            mean.back() += each.weight / weights * each.g[i];
                    }
                    if (std::ranges::all_of(mean, [](double g) { return g == 0.0; })) continue;
                    steps_of[p] += 1;
                    for (std::size_t k = 0; k < mean.size(); ++k)
                        moments[first + k] = 0.9 * moments[first + k] + 0.1 * mean[k] * mean[k];
                }
            }
        }
}

TEST_CASE("a step that is left out has no number for the next to be compared with") {
    scratch dir;
    told_steps seen, agreed;
    run_world(1, [&](context& ctx) {
        auto model = make_net();
        auto config = quiet_config(dir.path);
        config.max_steps = 8;
        sk::Trainer<sk::Single, judge_of, looker> trainer(
            ctx, config, judge_of{.leaves_out = 4, .agreed = &agreed}, looker{.steps = &seen});
        (void)trainer.fit(model, sk::SGD{}, constant_rate{1e-2}, class_loss, numbers{},
                          numbers{.n = 0});
    });
    for (std::uint64_t step = 1; step <= 8; ++step) {
        INFO("step " << step);
        CHECK(seen.at(step).squares.empty() == (step == 1 || step == 5));
        CHECK(seen.at(step) == agreed.at(step)); // told before it is applied, and behind it
    }
}

TEST_CASE("a step behind a resume or one that is taken back is compared with none") {
    scratch dir;
    told_steps seen;
    std::vector<float> resumed, taken_back;
    const auto train = [&](std::int64_t steps, std::uint64_t redo_at, resume_mode how,
                           const std::string& name, std::vector<float>& out) {
        run_world(1, [&](context& ctx) {
            auto model = make_net();
            auto config = quiet_config(dir.path);
            config.name = name;
            config.max_steps = steps;
            config.write_files = config.checkpoint.enabled = true;
            config.resume = how;
            const numbers data{};
            sk::Trainer<sk::DDP<>, looker> trainer(ctx, config, looker{.steps = &seen});
            auto session = trainer.open(model, sk::SGD{}, constant_rate{1e-2});
            session.begin(sk::train::detail::make_input(data));
            while (session.draw()) {
                while (const auto* const batch = session.next_micro())
                    session.backward(class_loss(model, *static_cast<const sample_batch*>(batch)));
                session.agree();
                if (session.finished() + 1 == redo_at) {
                    redo_at = 0;
                    session.redo();
                    continue;
                }
                session.complete();
            }
            (void)session.finish();
            out = weights(*model);
        });
    };
    train(3, 0, resume_mode::fresh, "a", resumed);
    train(6, 0, resume_mode::latest, "a", resumed);
    for (const auto& [step, one] : seen) CHECK(one.squares.empty() == (step == 1 || step == 4));
    train(6, 3, resume_mode::fresh, "b", taken_back);
    for (const auto& [step, one] : seen) CHECK(one.squares.empty() == (step == 1 || step == 3));
    CHECK(taken_back == resumed);
}

namespace {

/// Rows of a table, whose gradient names those that were seen; a row that comes twice counts twice.
struct TableImpl : torch::nn::Module {
    explicit TableImpl(bool sparse)
        : rows(torch::nn::EmbeddingOptions(40, 6).sparse(sparse)), out(6, 4) {
        register_module("rows", rows);
        register_module("out", out);
    }
    torch::Tensor forward(const sample_batch& b) {
        std::vector<std::int64_t> ids;
        for (const auto id : b.ids) ids.push_back(static_cast<std::int64_t>(id % 40));
        return out(torch::tanh(rows(torch::tensor(ids, torch::kLong))));
    }
    torch::nn::Embedding rows;
    torch::nn::Linear out;
};
TORCH_MODULE(Table);

told_steps run_table(bool sparse, std::int64_t accumulation) {
    told_steps seen;
    run_world(1, [&](context& ctx) {
        const auto model = [&] {
            const std::lock_guard lock(model_guard);
            torch::manual_seed(3);
            return Table(sparse);
        };
        auto table = model();
        auto config = quiet_config("unused");
        config.max_steps = 6;
        config.accumulation = accumulation;
        const auto loss = [](Table& m, const sample_batch& b) {
            return torch::nn::functional::cross_entropy(m->forward(b), b.y);
        };
        sk::Trainer<sk::Single, looker> trainer(ctx, config, looker{.steps = &seen});
        (void)trainer.fit(table, sk::SGD{}, constant_rate{1e-1}, loss, numbers{}, numbers{.n = 0});
    });
    if (accumulation == 1) seen.erase(1); // nothing before it
    return seen;
}

} // namespace

TEST_CASE("squares of sparse gradients are those of dense ones") {
    for (const std::int64_t accumulation : {1, 2}) {
        const auto sparse = run_table(true, accumulation);
        REQUIRE(sparse.size() >= 5);
        check_near(sparse, run_table(false, accumulation), 1e-6);
    }
}

TEST_CASE("a gradient that becomes final twice in a pass is refused where somebody looks") {
    struct twice : torch::autograd::Function<twice> {
        static torch::Tensor forward(torch::autograd::AutogradContext* ctx, torch::Tensor x,
                                     torch::Tensor weight) {
            ctx->save_for_backward({weight});
            return x.clone();
        }
        static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                       torch::autograd::variable_list grads) {
            auto weight = ctx->get_saved_variables()[0];
            {
                torch::AutoGradMode on(true);
                weight.pow(2).sum().backward();
            }
            return {grads[0], torch::Tensor()};
        }
    };
    const auto train = [](gradient_look how) {
        run_world(1, [&](context& ctx) {
            auto model = make_net();
            auto config = quiet_config("unused");
            config.max_steps = 2;
            const auto loss = [](Net& m, const sample_batch& b) {
                return twice::apply(class_loss(m, b), m->in->weight) + m->in->weight.sum();
            };
            sk::Trainer<sk::Single, looker> trainer(ctx, config, looker{.how = how});
            (void)trainer.fit(model, sk::SGD{}, constant_rate{1e-3}, loss, numbers{},
                              numbers{.n = 0});
        });
    };
    CHECK_THROWS_WITH(train({}),
                      ContainsSubstring("became final twice") && ContainsSubstring("looked at"));
    CHECK_NOTHROW(train({.is_on = false}));
}

TEST_CASE("a gradient that is not finite has no squares") {
    told_steps seen;
    run_world(1, [&](context& ctx) {
        auto model = make_net();
        auto config = quiet_config("unused");
        config.max_steps = 10;
        config.accumulation = 2;
        sk::Trainer<sk::Single, judge_of, looker> trainer(ctx, config, judge_of{},
                                                          looker{.steps = &seen});
        (void)trainer.fit(model, sk::SGD{}, constant_rate{1e-2}, class_loss,
                          numbers{.n = 60, .broken = 17}, numbers{.n = 0});
    });
    const auto broken =
        std::ranges::count_if(seen, [](const auto& each) { return each.second.squares.empty(); });
    CHECK(broken == 2); // two passes over 60 samples, 12 a step
}

TEST_CASE("a look at gradients changes no weight and no row") {
    for (const int world : {1, 2})
        for (const int accumulation : {1, 4}) {
            INFO("ranks: " << world << ", micro-batches: " << accumulation);
            const auto train = [&]<class... Callbacks>(const std::string& folder,
                                                       const Callbacks&... callbacks) {
                std::vector<float> out;
                run_world(world, [&](context& ctx) {
                    at::set_num_threads(1);
                    auto model = make_zoo(shape::unused);
                    auto config = quiet_config(folder);
                    config.accumulation = accumulation;
                    config.write_files = true;
                    config.clip = 0.5;
                    sk::Trainer<sk::DDP<tiny_buckets>, Callbacks...> trainer(ctx, config,
                                                                             callbacks...);
                    (void)trainer.fit(model, sk::AdamW{}, constant_rate{1e-2}, zoo_loss, numbers{},
                                      numbers{.n = 5});
                    if (ctx.is_first()) out = weights(*model);
                });
                return out;
            };
            scratch without, with;
            const auto plain = train(without.path);
            const auto looked = train(with.path, looker{});
            CHECK(std::memcmp(plain.data(), looked.data(), plain.size() * sizeof(float)) == 0);
            // Columns of time differ from run to run.
            const auto columns = [](const std::string& folder) {
                std::ifstream in(folder + "/run/metrics.csv");
                std::string first;
                std::getline(in, first);
                return first;
            };
            CHECK(columns(with.path) == columns(without.path));
            CHECK_THAT(columns(with.path), ContainsSubstring("grad_norm"));
        }
}

TEST_CASE("squares in 16 bits are near those in float32, whatever the scale of the loss") {
    for (const int accumulation : {1, 2}) {
        const look_options o{
            .world = 2, .accumulation = accumulation, .steps = 1, .optimizer = {sk::SGD{}}};
        const auto whole = run<sk::DDP<>>(o);
        check_near(run<sk::DDP<sk::bucket<>, sk::precision<sk::bf16>>>(o), whole, 0.1);
        check_near(run<sk::DDP<sk::bucket<>, sk::precision<sk::bf16, sk::bf16>>>(o), whole, 0.1);
    }
    // The scale of float16 comes down from where it overflows: such steps have no squares, and no
    // bearing on the ones that have.
    look_options o{.world = 2, .steps = 1, .optimizer = {sk::SGD{}}};
    const auto whole = run<sk::DDP<>>(o);
    o.steps = 12;
    const auto seen = run<sk::DDP<sk::bucket<>, sk::precision<sk::f16>>>(o);
    const auto first =
        std::ranges::find_if(seen, [](const auto& each) { return !each.second.squares.empty(); });
    REQUIRE(first != seen.end());
    CHECK(first->second.squares[0].local < 100 * whole.at(1).squares[0].local);
    CHECK(first->second.squares[0].total > 0.01 * whole.at(1).squares[0].total);
}

namespace {

template <class Strategy, class... Callbacks>
std::string refusal(int world, const optimizer_options& optimizer, const Callbacks&... callbacks) {
    std::string why;
    std::mutex guard;
    const auto body = [&](context& ctx) {
        at::set_num_threads(1);
        auto model = make_zoo(shape::plain);
        try {
            sk::Trainer<Strategy, Callbacks...> trainer(ctx, quiet_config("unused"), callbacks...);
            (void)trainer.fit(model, optimizer, constant_rate{1e-2}, zoo_loss, numbers{},
                              numbers{.n = 0});
        } catch (const sk::error& e) {
            const std::lock_guard lock(guard);
            if (e.code() != sk::errc::aborted) why = e.what();
            throw;
        }
    };
    if (world == 1) {
        try {
            run_world(1, body);
        } catch (const sk::error&) { // it is in `why`
        }
    } else {
        (void)try_world(world, body);
    }
    return why;
}

struct second_looker : looker {};

} // namespace

TEST_CASE("what cannot be looked at is refused by name, before the first step") {
    const looker divided{.how = {.preconditioned = true}};
    CHECK_THAT(refusal<sk::Single>(1, sk::SGD{.momentum = 0.9}, divided),
               ContainsSubstring("not supported: a look at preconditioned gradients") &&
                   ContainsSubstring("sgd, which has no mean of squares"));
    CHECK_THAT(refusal<sk::Single>(1, sk::Adagrad{}, divided), ContainsSubstring("adagrad"));
    CHECK_THAT(refusal<sk::Zero1<>>(2, sk::AdamW{}, divided),
               ContainsSubstring("Zero1, where a rank has a part of the second moments"));
    CHECK_THAT((refusal<sk::FSDP<zoo_cells>>(2, sk::Adam{}, divided)), ContainsSubstring("FSDP"));
    CHECK(refusal<sk::FSDP<zoo_cells>>(1, sk::Adam{}, divided).empty()); // it has all of them
    CHECK_THAT((refusal<sk::Single>(1, sk::AdamW{}, divided, second_looker{})),
               ContainsSubstring("one callback looks at preconditioned gradients and another"));
    CHECK(refusal<sk::Single>(1, sk::SGD{}, looker{.how = {.is_on = false}}, second_looker{})
              .empty());
}

TEST_CASE("ranks that look differently do not train") {
    const auto errors = try_world(2, [](context& ctx) {
        auto model = make_net();
        sk::Trainer<sk::DDP<>, looker> trainer(ctx, quiet_config("unused"),
                                               looker{.how = {.is_on = ctx.is_first()}});
        (void)trainer.fit(model, sk::SGD{}, constant_rate{1e-2}, class_loss, numbers{},
                          numbers{.n = 0});
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        CHECK(e->code() == sk::errc::mismatch);
        CHECK_THAT(e->what(), ContainsSubstring("look at gradients"));
    }
}

TEST_CASE("nobody reports a number under the names of squares") {
    run_world(1, [](context& ctx) {
        sk::Trainer<sk::Single> trainer(ctx, quiet_config("unused"));
        CHECK_THROWS_WITH(trainer.report(metric_kind::sum, "gradient_squares/count0", 1.0),
                          ContainsSubstring("taken by the trainer"));
    });
}

TEST_CASE("a worker that joins is told the squares that the others are told", "[train][elastic]") {
    scratch dir;
    sk::sim::local_elastic job(1, 4);
    auto config = quiet_config(dir.path);
    config.scaling.workers = {1, 4};
    config.write_files = true;
    config.max_steps = 10;
    std::mutex guard;
    std::map<std::uint64_t, told_steps> seen;
    std::vector<std::string> errors;
    std::vector<std::thread> threads;
    threads.reserve(4);
    std::atomic<bool> done{false};
    std::function<void(sk::spmd::elastic_world&, Zoo)> live;
    const auto start = [&] {
        auto& world = job.add();
        threads.emplace_back([&live, &world, net = make_zoo(shape::plain)] { live(world, net); });
        return world.id();
    };
    std::uint64_t joiner = 0;
    live = [&](sk::spmd::elastic_world& mine, Zoo net) {
        told_steps steps;
        try {
            at::set_num_threads(1);
            sk::dist::comm_options options;
            options.model = "shm";
            elastic_place place(mine, options);
            context ctx(
                {.rank = 0, .world_size = 1, .local_size = 1, .host = "here", .job_id = "j"},
                nullptr, nullptr);
            ctx.use_elastic(&place);
            const auto loss = [&](Zoo& m, const sample_batch& b) {
                if (mine.id() == 1 && steps.size() == 4 && !done.exchange(true)) {
                    joiner = start();
                    job.wait_for_joiner();
                }
                return zoo_loss(m, b);
            };
            sk::Trainer<sk::Elastic<sk::DDP<>>, looker> trainer(ctx, config,
                                                                looker{.steps = &steps});
            (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-2}, loss, numbers{},
                              numbers{.n = 0});
        } catch (...) {
            const std::lock_guard lock(guard);
            errors.push_back(sk::to_error(std::current_exception()).what());
        }
        const std::lock_guard lock(guard);
        seen[mine.id()] = steps;
    };
    (void)start();
    for (std::size_t i = 0; i < threads.size(); ++i) threads[i].join();
    for (const auto& why : errors) FAIL_CHECK(why);
    REQUIRE(seen.size() == 2);
    // Alone by differences, but for the first step; then of two, from the first step that both make.
    for (const auto& [step, one] : seen.at(1)) {
        INFO("step " << step);
        const auto other = seen.at(joiner).find(step);
        CHECK(one.squares.empty() == (step == 1));
        if (other == seen.at(joiner).end()) {
            CHECK((step == 1 || one.differenced));
        } else {
            CHECK(one == other->second);
            CHECK_FALSE(one.differenced);
        }
    }
    CHECK(seen.at(joiner).size() >= 4);
    CHECK(seen.at(joiner).rbegin()->first == 10);
}

} // namespace gradient_look_test
