// SPDX-License-Identifier: Apache-2.0
#include <skein/train/loss_spike.hpp>
#include <skein/train/precision.hpp>

#include <tests/train/zoo.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

using namespace train_test;
using Catch::Matchers::ContainsSubstring;

namespace {

using half = sk::precision<sk::bf16>;
using single_half = sk::basic_single<half>;
using ddp_half = sk::DDP<sk::bucket<>, half>;
using zero1_half = sk::Zero1<sk::bucket<>, half>;
using zero2_half = sk::Zero2<sk::bucket<>, half>;
using fsdp_half = sk::FSDP<zoo_cells, half>;
using hybrid_half = sk::Hybrid<zoo_cells, half>;

template <class Strategy>
zoo_run half_run(int world, const std::string& transport = "shm", shape kind = shape::plain,
                 int accumulation = 1) {
    return run_zoo<Strategy>(
        {.kind = kind, .world = world, .transport = transport, .accumulation = accumulation});
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
    REQUIRE(a.size() == b.size());
    double most = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
        most = std::max(most, std::abs(double(a[i]) - double(b[i])));
    return most;
}

/// What the module is made of while it trains, step by step.
struct watch_types {
    torch::nn::Module* model;
    std::vector<at::ScalarType>* types;
    void on_step(const step_info& /*s*/) const {
        types->clear();
        for (const auto& p : model->parameters()) types->push_back(p.scalar_type());
    }
};

run_config short_run(const std::string& folder, int steps) {
    auto config = quiet_config(folder);
    config.max_steps = steps;
    config.clip = 0;
    return config;
}

/// Mixed precision as one writes it by hand: a 16-bit copy of the model, and masters in float32.
std::vector<float> by_hand(int steps) {
    auto master = make_zoo(shape::plain), model = make_zoo(shape::plain);
    model->to(torch::kBFloat16);
    torch::optim::AdamW optimizer(master->parameters(),
                                  torch::optim::AdamWOptions(1e-2).weight_decay(0.0).eps(1e-8));
    sampler order({.samples = numbers{}.size(), .batch = 12, .seed = quiet_config("x").seed}, 1);
    for (int step = 0; step < steps; ++step) {
        const auto slice = order.next(0, 1);
        model->zero_grad();
        zoo_loss(model, numbers{}.batch(slice.ids)).backward();
        torch::NoGradGuard no_grad;
        for (std::size_t i = 0; i < master->parameters().size(); ++i)
            master->parameters()[i].mutable_grad() =
                model->parameters()[i].grad().to(torch::kFloat);
        optimizer.step();
        for (std::size_t i = 0; i < master->parameters().size(); ++i)
            model->parameters()[i].copy_(master->parameters()[i]);
    }
    return weights(*master);
}

} // namespace

TEST_CASE("a precision is told in words") {
    CHECK(describe(precision_policy{}).empty());
    CHECK(describe(precision_of<sk::precision<sk::f32>>()).empty());
    CHECK(describe(precision_of<half>()) == "bfloat16, sums in float32");
    CHECK(
        describe(
            precision_of<sk::precision<sk::f16, sk::f16>, sk::keep_f32<torch::nn::LayerNorm>>()) ==
        "float16, sums in float16, some modules in float32");
    CHECK(precision_notice(precision_policy{}).empty());
    CHECK_THAT(precision_notice(precision_of<sk::precision<sk::f16>>()),
               ContainsSubstring("slower"));
}

TEST_CASE("mixed precision trains as masters and a 16-bit model by hand") {
    std::vector<float> trained;
    run_world(1, [&](context& ctx) {
        auto model = make_zoo(shape::plain);
        sk::Trainer<single_half> trainer(ctx, short_run("unused", 10));
        (void)trainer.fit(model, sk::AdamW{.weight_decay = 0.0}, constant_rate{.peak = 1e-2},
                          zoo_loss, numbers{}, numbers{.n = 0});
        for (const auto& p : model->parameters()) CHECK(p.scalar_type() == torch::kFloat);
        trained = weights(*model);
    });
    CHECK(largest_difference(trained, by_hand(10)) < 1e-5);
}

TEST_CASE("in bfloat16 every strategy gives the bits of every other one") {
    const auto single = half_run<single_half>(1);
    CHECK(half_run<fsdp_half>(1).losses == single.losses);
    for (const auto* transport : {"shm", "ring", "hierarchical"}) {
        CAPTURE(transport);
        const auto ddp = half_run<ddp_half>(2, transport);
        CHECK(std::abs(ddp.losses.back() - single.losses.back()) < 0.02);
        for (const auto& other :
             {half_run<zero1_half>(2, transport), half_run<zero2_half>(2, transport),
              half_run<fsdp_half>(2, transport)}) {
            CHECK(other.losses == ddp.losses);
            CHECK(other.weights == ddp.weights);
        }
    }
    const auto hybrid = half_run<hybrid_half>(4, "hierarchical");
    CHECK(hybrid.weights[0] == hybrid.weights[3]);
    CHECK(std::abs(hybrid.losses.back() - single.losses.back()) < 0.02);
}

TEST_CASE("in bfloat16 the shapes that make strategies stumble train alike") {
    for (const auto kind : all_shapes)
        for (const int accumulation : {1, 2}) {
            CAPTURE(int(kind), accumulation);
            const auto ddp = half_run<ddp_half>(2, "shm", kind, accumulation);
            const auto fsdp = half_run<fsdp_half>(2, "ring", kind, accumulation);
            const auto whole = run_zoo<sk::Single>({.kind = kind, .accumulation = accumulation});
            if (accumulation == 1) CHECK(fsdp.losses == ddp.losses);
            CHECK(std::abs(ddp.losses.back() - whole.losses.back()) < 0.03);
            CHECK(std::abs(fsdp.losses.back() - whole.losses.back()) < 0.03);
        }
}

TEST_CASE("gradients may be summed in bfloat16, too") {
    using narrow = sk::precision<sk::bf16, sk::bf16>;
    const auto single = half_run<sk::basic_single<narrow>>(1);
    for (const auto* transport : {"shm", "ring"}) {
        const auto ddp = half_run<sk::DDP<sk::bucket<>, narrow>>(2, transport);
        const auto fsdp = half_run<sk::FSDP<zoo_cells, narrow>>(2, transport);
        CHECK(fsdp.losses == ddp.losses);
        CHECK(std::abs(ddp.losses.back() - single.losses.back()) < 0.03);
    }
}

TEST_CASE("float16 is summed as float16") {
    using narrow = sk::precision<sk::f16, sk::f16>;
    const auto whole = run_zoo<sk::Single>({});
    for (const auto* transport : {"shm", "ring"}) {
        const auto ddp = half_run<sk::DDP<sk::bucket<>, narrow>>(2, transport);
        CHECK(half_run<sk::FSDP<zoo_cells, narrow>>(2, transport).losses == ddp.losses);
        CHECK(std::abs(ddp.losses.back() - whole.losses.back()) < 0.03);
    }
}

TEST_CASE("some modules stay in float32") {
    for (const auto* transport : {"shm", "ring"})
        run_world(
            2,
            [&](context& ctx) {
                auto model = make_zoo(shape::nested);
                std::vector<at::ScalarType> types;
                using kept = sk::FSDP<zoo_cells, half, sk::keep_f32<torch::nn::LayerNorm>>;
                sk::Trainer<kept, watch_types> trainer(ctx, short_run("unused", 3),
                                                       watch_types{model.get(), &types});
                (void)trainer.fit(model, sk::AdamW{}, constant_rate{.peak = 1e-2}, zoo_loss,
                                  numbers{}, numbers{.n = 0});
                const auto named = model->named_parameters();
                std::size_t floats = 0;
                for (std::size_t i = 0; i < types.size(); ++i) {
                    const bool norm = named[i].key().find("norm") != std::string::npos;
                    expect(types[i] == (norm ? torch::kFloat : torch::kBFloat16));
                    floats += norm ? 1 : 0;
                }
                expect(floats == 2); // weight and bias of the norm
            },
            transport);

    auto model = make_zoo(shape::plain);
    auto alone = context::single();
    using nothing = sk::basic_single<half, sk::keep_f32<torch::nn::BatchNorm2d>>;
    try {
        nothing strategy(alone, *model);
        FAIL("nothing is kept");
    } catch (const sk::error& e) {
        CHECK(e.code() == sk::errc::invalid_argument);
        CHECK_THAT(e.what(), ContainsSubstring("keep_f32<> matches no module"));
    }
}

TEST_CASE("a run goes on in another precision, because checkpoints hold float32") {
    const auto train = [](auto* strategy, int world, const std::string& folder, int steps) {
        using Strategy = std::remove_pointer_t<decltype(strategy)>;
        double last = 0;
        run_world(world, [&](context& ctx) {
            auto model = make_zoo(shape::plain);
            auto config = short_run(folder, steps);
            config.checkpoint.enabled = config.write_files = true;
            config.checkpoint.every = 5;
            config.resume = resume_mode::latest;
            sk::Trainer<Strategy> trainer(ctx, config);
            const auto result = trainer.fit(model, sk::AdamW{}, constant_rate{.peak = 1e-2},
                                            zoo_loss, numbers{}, numbers{.n = 0});
            expect(result.steps == static_cast<std::uint64_t>(steps));
            if (ctx.is_first()) last = result.loss;
        });
        return last;
    };
    const scratch one, two;
    const auto half_at_once = train(static_cast<fsdp_half*>(nullptr), 2, one.path, 10);
    (void)train(static_cast<fsdp_half*>(nullptr), 2, two.path, 5);
    CHECK(train(static_cast<fsdp_half*>(nullptr), 2, two.path, 10) == half_at_once);
    // and then in float32, by another number of ranks
    CHECK(std::abs(train(static_cast<sk::Single*>(nullptr), 1, two.path, 12) - half_at_once) < 0.3);
}

TEST_CASE("a training that fails leaves a float32 model") {
    for (const int world : {1, 2}) {
        const auto errors = try_world(world, [&](context& ctx) {
            auto model = make_zoo(shape::plain);
            const auto check = [&] {
                for (const auto& p : model->parameters())
                    expect(p.scalar_type() == torch::kFloat && p.numel() > 0);
            };
            try {
                sk::Trainer<ddp_half> trainer(ctx, short_run("unused", 3));
                (void)trainer.fit(
                    model, sk::AdamW{}, constant_rate{.peak = 1e-2},
                    [](auto& m, const sample_batch& b) {
                        if (b.ids[0] != 1000) throw std::runtime_error("as planned");
                        return zoo_loss(m, b);
                    },
                    numbers{}, numbers{.n = 0});
            } catch (const sk::error&) {
                check();
                throw;
            }
        });
        for (const auto& e : errors) {
            REQUIRE(e);
            CHECK_THAT(e->what(), !ContainsSubstring("float32"));
        }
    }
}

TEST_CASE("float16 trains with a scaled loss, and an overflow costs a step and halves the scale") {
    using f16_fsdp = sk::FSDP<zoo_cells, sk::precision<sk::f16>>;
    struct remember_scales {
        std::vector<double>* scales;
        void on_step(const step_info& s) const {
            if (const auto* m = find_metric(*s.metrics, "loss_scale")) scales->push_back(*m);
        }
    };
    std::vector<std::vector<double>> scales(2);
    std::vector<double> last(2);
    run_world(2, [&](context& ctx) {
        auto model = make_zoo(shape::plain);
        auto& mine = scales[static_cast<std::size_t>(ctx.rank())];
        sk::Trainer<f16_fsdp, remember_scales> trainer(ctx, short_run("unused", 8),
                                                       remember_scales{&mine});
        const auto result = trainer.fit(
            model, sk::AdamW{}, constant_rate{.peak = 1e-2},
            // gradients of a loss this large leave the range of float16 with the first scales
            [](auto& m, const sample_batch& b) { return zoo_loss(m, b) * 100.0; }, numbers{},
            numbers{.n = 0});
        last[static_cast<std::size_t>(ctx.rank())] = result.loss;
        for (const auto& p : model->parameters()) expect(torch::isfinite(p).all().item<bool>());
    });
    CHECK(scales[0] == scales[1]);
    REQUIRE(scales[0].size() == 8);
    CHECK(scales[0].front() == 65536.0);
    CHECK(scales[0].back() < scales[0].front());
    CHECK(std::isfinite(last[0]));

    // Overflows at the beginning are no spikes: six in a row would end the run.
    run_world(2, [&](context& ctx) {
        auto model = make_zoo(shape::plain);
        sk::Trainer<f16_fsdp, sk::loss_spike> trainer(ctx, short_run("unused", 24),
                                                      sk::loss_spike({.factor = 100, .most = 0}));
        (void)trainer.fit(
            model, sk::AdamW{}, constant_rate{.peak = 1e-3},
            [](auto& m, const sample_batch& b) { return zoo_loss(m, b) * 1000.0; }, numbers{},
            numbers{.n = 0});
    });

    const auto errors = try_world(2, [&](context& ctx) {
        auto model = make_zoo(shape::plain);
        sk::Trainer<f16_fsdp> trainer(ctx, short_run("unused", 150));
        (void)trainer.fit(
            model, sk::AdamW{}, constant_rate{.peak = 1e-2},
            [](auto& m, const sample_batch& b) {
                const auto loss = zoo_loss(m, b); // finite, but its gradient never is
                return loss + 0.0 * loss.detach() + (loss - loss.detach()) * 1e38;
            },
            numbers{}, numbers{.n = 0});
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        CHECK(e->code() == sk::errc::not_finite);
        CHECK_THAT(e->what(), ContainsSubstring("overflowed float16 in 100 steps"));
    }
}
