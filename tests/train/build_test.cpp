// SPDX-License-Identifier: Apache-2.0
#include <skein/train/build.hpp>

#include <tests/train/zoo.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <mutex>
#include <optional>
#include <string>
#include <vector>

using namespace train_test;
using Catch::Matchers::ContainsSubstring;

namespace {

using built_fsdp = sk::FSDP<zoo_cells>;
using built_half = sk::FSDP<zoo_cells, sk::precision<sk::bf16>, sk::keep_f32<torch::nn::LayerNorm>>;
using built_hybrid = sk::Hybrid<zoo_cells>;

/// Draws the values of the whole model from its root, as GPT-2 does.
struct RootDrawsImpl : ZooImpl {
    RootDrawsImpl() : ZooImpl(shape::nested) {
        torch::NoGradGuard no_grad;
        for_each_parameter(*this, [](const std::string& name, torch::Tensor& p) {
            if (p.dim() >= 2)
                torch::nn::init::normal_(p, 0.0, 0.3);
            else if (name.find("norm") != std::string::npos)
                p.mul_(0.5); // a part of what was there
        });
    }
};
TORCH_MODULE(RootDraws);

template <class Model>
Model make_drawn(shape kind, std::uint64_t seed) {
    const std::lock_guard lock(model_guard);
    torch::manual_seed(seed);
    if constexpr (std::is_same_v<Model, Zoo>)
        return Zoo(kind);
    else
        return Model();
}

/// Five steps of a model that was built whole or in parts; the weights of rank 0, and the losses.
template <class Strategy, class Model = Zoo>
std::pair<std::vector<float>, std::vector<double>> built_run(bool in_parts, int world,
                                                             const std::string& transport,
                                                             shape kind = shape::nested) {
    std::pair<std::vector<float>, std::vector<double>> out;
    run_world(
        world,
        [&](context& ctx) {
            const auto make = [&] { return make_drawn<Model>(kind, 42); };
            auto model = in_parts ? build_for<Strategy>(ctx, make) : make();
            if (in_parts && world > 1) expect(model->a->in->weight.numel() == 0);
            auto config = quiet_config("unused");
            config.max_steps = 5;
            sk::Trainer<Strategy, remember_losses> trainer(
                ctx, config, remember_losses{ctx.is_first() ? &out.second : nullptr});
            (void)trainer.fit(model, sk::AdamW{.weight_decay = 0.1}, constant_rate{.peak = 1e-2},
                              zoo_loss, numbers{}, numbers{.n = 5});
            if (ctx.is_first()) out.first = weights(*model);
        },
        transport);
    return out;
}

template <class Strategy>
std::optional<sk::error> failing_build(const std::function<void(Zoo&)>& then,
                                       bool same_seeds = true) {
    const auto errors = try_world(2, [&](context& ctx) {
        auto model = build_for<built_fsdp>(ctx, [&] {
            return make_drawn<Zoo>(shape::plain,
                                   same_seeds ? 1 : static_cast<std::uint64_t>(ctx.rank()));
        });
        then(model);
        Strategy strategy(ctx, *model);
    });
    return errors[0];
}

} // namespace

TEST_CASE("a model that is built in parts is the model that is built whole") {
    struct row {
        int world;
        const char* transport;
    };
    for (const auto [world, transport] :
         {row{1, "shm"}, row{2, "shm"}, row{3, "shm"}, row{2, "ring"}, row{3, "ring"}}) {
        CAPTURE(world, transport);
        CHECK(built_run<built_fsdp>(true, world, transport) ==
              built_run<built_fsdp>(false, world, transport));
    }
    CHECK(built_run<built_hybrid>(true, 4, "hierarchical") ==
          built_run<built_hybrid>(false, 4, "hierarchical"));
    CHECK(built_run<built_half>(true, 2, "ring") == built_run<built_half>(false, 2, "ring"));
    CHECK(built_run<built_half>(true, 2, "shm") == built_run<built_half>(false, 2, "shm"));
    CHECK(built_run<sk::DDP<>>(false, 2, "shm") == built_run<sk::DDP<>>(false, 2, "shm"));
}

TEST_CASE("frozen and uneven blocks are built in parts, too") {
    for (const auto kind : {shape::uneven, shape::twice, shape::unused})
        CHECK(built_run<built_fsdp>(true, 2, "shm", kind) ==
              built_run<built_fsdp>(false, 2, "shm", kind));
}

TEST_CASE("a root draws the values of blocks that are there in part only") {
    for (const auto* transport : {"shm", "ring"})
        CHECK(built_run<built_fsdp, RootDraws>(true, 2, transport) ==
              built_run<built_fsdp, RootDraws>(false, 2, transport));
}

TEST_CASE("every rank keeps its part of a block and nothing else") {
    std::vector<std::int64_t> kept(3, 0);
    std::int64_t whole = 0;
    run_world(3, [&](context& ctx) {
        auto model = build_for<built_fsdp>(ctx, [] { return make_drawn<Zoo>(shape::plain, 3); });
        for (auto& [tensor, cut] : skein::train::detail::cut_parameters(*model)) {
            expect(cut->parameter.numel() == 0);
            expect(cut->values.numel() == cut->count);
            kept[static_cast<std::size_t>(ctx.rank())] += cut->count;
        }
    });
    const auto model = make_zoo(shape::plain);
    for (const auto& block : {model->a, model->b, model->c})
        for (const auto& p : block->parameters()) whole += p.numel();
    CHECK(kept[0] + kept[1] + kept[2] == whole);
    for (const auto part : kept) CHECK(part < whole / 2);
}

TEST_CASE("what cannot be built in parts says so") {
    const auto written = failing_build<built_fsdp>([](Zoo& model) {
        torch::NoGradGuard no_grad;
        model->b->in->weight.zero_();
    });
    REQUIRE(written);
    CHECK(written->code() == sk::errc::invalid_argument);
    CHECK_THAT(written->what(),
               ContainsSubstring("b.in.weight") && ContainsSubstring("for_each_parameter"));

    const auto loaded = failing_build<built_fsdp>(
        [](Zoo& model) { model->b->in->weight.set_data(torch::ones({32, 16})); });
    REQUIRE(loaded);
    CHECK(loaded->code() == sk::errc::invalid_argument);

    const auto drawn = failing_build<built_fsdp>([](Zoo& model) {
        torch::NoGradGuard no_grad;
        for (auto& p : model->parameters())
            if (p.dim() >= 2) torch::nn::init::normal_(p);
    });
    REQUIRE(drawn);
    CHECK(drawn->code() == sk::errc::invalid_argument);

    const auto frozen = failing_build<built_fsdp>(
        [](Zoo& model) { model->b->in->weight.set_requires_grad(false); });
    REQUIRE(frozen);
    CHECK(frozen->code() == sk::errc::not_supported);

    const auto other = failing_build<sk::DDP<>>([](Zoo&) {});
    REQUIRE(other);
    CHECK(other->code() == sk::errc::not_supported);
    CHECK_THAT(other->what(), ContainsSubstring("another layout"));

    const auto apart = failing_build<built_fsdp>([](Zoo&) {}, /*same_seeds=*/false);
    REQUIRE(apart);
    CHECK(apart->code() == sk::errc::mismatch);
    CHECK_THAT(apart->what(), ContainsSubstring("initial values"));
}

TEST_CASE("a rank that cannot build its model tells the others") {
    const auto errors = try_world(2, [](context& ctx) {
        (void)build_for<built_fsdp>(ctx, [&] {
            if (ctx.rank() == 1) throw std::runtime_error("no such vocabulary");
            return make_drawn<Zoo>(shape::plain, 1);
        });
    });
    REQUIRE(errors[0]);
    CHECK_THAT(errors[0]->what(), ContainsSubstring("no such vocabulary"));
}
