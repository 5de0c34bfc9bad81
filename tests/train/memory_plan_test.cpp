// SPDX-License-Identifier: Apache-2.0
#include <skein/train/memory_plan.hpp>

#include <skein/train/detail/sharded.hpp>
#include <skein/train/fsdp.hpp>
#include <skein/train/zero.hpp>

#include <tests/train/train_support.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace train_test;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinRel;

namespace {

struct SlabImpl : torch::nn::Module {
    SlabImpl() : linear(64, 256) { register_module("linear", linear); }
    torch::Tensor forward(const torch::Tensor& x) { return linear(x).narrow(1, 0, 64); }
    torch::nn::Linear linear;
};
TORCH_MODULE_IMPL(Slab, sk::unit<SlabImpl>);

struct PileImpl : torch::nn::Module {
    PileImpl() : head(64, 4) {
        for (int i = 0; i < 4; ++i) slabs->push_back(Slab());
        register_module("slabs", slabs);
        register_module("head", head);
    }
    torch::Tensor forward(torch::Tensor x) {
        for (const auto& s : *slabs) x = s->as<Slab>()->forward(x);
        return head(x);
    }
    torch::nn::ModuleList slabs;
    torch::nn::Linear head;
};
TORCH_MODULE(Pile);

Pile make_pile() {
    const std::lock_guard lock(model_guard);
    return Pile();
}

constexpr std::int64_t slab = 64 * 256 + 256, root = 64 * 4 + 16, all = 4 * slab + root;

memory_need need(std::string_view strategy, const memory_shape& shape) {
    for (auto& n : plan_memory({.total = all, .root = root, .largest = slab, .blocks = 4}, shape))
        if (n.strategy == strategy) return n;
    return {};
}

/// What all ranks hold together, beside the formula.
template <class Strategy>
void check_count(std::string_view name, int world, const std::string& transport,
                 const memory_shape& shape, bool own_part) {
    INFO(name << " on " << world << " ranks, " << transport);
    std::mutex guard;
    memory_need sum;
    run_world(
        world,
        [&](context& ctx) {
            auto model = make_pile();
            Strategy strategy(ctx, *model);
            const flat_optimizer optimizer(sk::AdamW{}, strategy.store());
            std::vector<at::Tensor> states;
            for (const auto& [key, state] : optimizer.states()) states.push_back(state);
            const auto mine = count_memory(strategy.store(), states, own_part);
            const std::lock_guard lock(guard);
            sum.parameters += mine.parameters;
            sum.gradients += mine.gradients;
            sum.optimizer += mine.optimizer;
        },
        transport);
    const auto planned = need(name, shape);
    CHECK_THAT(sum.parameters / world, WithinRel(planned.parameters, 0.01));
    CHECK_THAT(sum.gradients / world, WithinRel(planned.gradients, 0.01));
    CHECK_THAT(sum.optimizer / world, WithinRel(planned.optimizer, 0.01));
}

std::optional<sk::error> limited_fit(Pile& model, std::uint64_t limit) {
    auto ctx = context::single();
    auto config = quiet_config("unused");
    config.memory_limit = limit;
    sk::Trainer<sk::Single> trainer(ctx, config);
    const auto loss = [](Pile& m, const sample_batch& b) {
        return m->forward(torch::cat(std::vector<torch::Tensor>(8, b.x), 1)).pow(2).mean();
    };
    try {
        (void)trainer.fit(model, sk::AdamW{}, constant_rate{.peak = 1e-3}, loss, numbers{},
                          numbers{.n = 0});
    } catch (const sk::error& why) {
        return why;
    }
    return std::nullopt;
}

} // namespace

TEST_CASE("a model's units are measured without moving it: marked blocks, or buckets") {
    auto model = make_pile();
    const auto* before = model->head->weight.const_data_ptr();
    const auto sizes = measure_units(*model);
    CHECK(sizes.total == all);
    CHECK(sizes.root == root);
    CHECK(sizes.largest == slab);
    CHECK(sizes.blocks == 4);
    CHECK(model->head->weight.const_data_ptr() == before);
    CHECK(measure_units(*make_net()).blocks == 1);
}

TEST_CASE("the formula says what a strategy holds by count, within a percent") {
    using by_slab = sk::auto_wrap<Slab>;
    const memory_shape two{.ranks = 2}, three{.ranks = 3},
        apart{.ranks = 2, .hosts = 2, .one_copy = false}, hosts{.ranks = 4, .hosts = 2};
    check_count<sk::Single>("single", 1, "shm", {}, false);
    check_count<sk::DDP<>>("ddp", 2, "shm", two, false);
    check_count<sk::Zero1<by_slab>>("zero1", 2, "shm", two, true);
    check_count<sk::Zero2<by_slab>>("zero2", 3, "shm", three, true);
    check_count<sk::FSDP<by_slab>>("fsdp", 3, "shm", three, true);
    check_count<sk::Zero1<by_slab>>("zero1", 2, "ring", apart, false);
    check_count<sk::Zero2<by_slab>>("zero2", 2, "ring", apart, false);
    check_count<sk::FSDP<by_slab>>("fsdp", 2, "ring", apart, true);
    check_count<sk::Hybrid<by_slab>>("hybrid", 4, "hierarchical", hosts, true);
}

TEST_CASE(
    "bytes by kind: states by their number, two bytes where computing takes two, gathered units") {
    const auto f32 = need("fsdp", {.ranks = 4});
    CHECK_THAT(f32.parameters, WithinRel(all * 4.0 / 4));
    CHECK_THAT(f32.optimizer, WithinRel(2 * all * 4.0 / 4));
    CHECK(f32.gathered == 0.0);
    CHECK(need("ddp", {.ranks = 4, .states = 0}).optimizer == 0.0);

    const memory_shape apart{.ranks = 4, .hosts = 4, .one_copy = false};
    CHECK_THAT(need("fsdp", apart).gathered, WithinRel((root + 2.0 * slab) * 4 * 3 / 4));
    const auto bf16 = need("ddp", {.ranks = 2, .compute = 2, .reduce = 2});
    CHECK_THAT(bf16.parameters, WithinRel(all * 6.0));
    CHECK_THAT(bf16.gradients,
               WithinRel(all * 6.0)); // where they are summed, and for the optimizer
    CHECK(need("hybrid", {.ranks = 4, .hosts = 2}).optimizer ==
          need("fsdp", {.ranks = 2}).optimizer);
    CHECK(need("fsdp", {.ranks = 1}).total() == need("single", {.ranks = 1}).total());
    for (const auto* strategy : {"ddp", "zero2", "fsdp"})
        CHECK_THAT(need(strategy, {.ranks = 4, .saves_beside = true}).saves,
                   WithinRel(3 * all * 4.0 / 4));
    CHECK_THAT(need("hybrid", {.ranks = 4, .hosts = 2, .saves_beside = true}).saves,
               WithinRel(3 * all * 4.0 / 2));
    CHECK(need("ddp", {.ranks = 4}).saves == 0.0);
}

TEST_CASE("a setting is the limit; without one there is what the system says") {
    CHECK(find_memory_limit(5e6).bytes == 5e6);
    CHECK(find_memory_limit().bytes > 1e6);
    CHECK(proportional_set_size() > 1e6);
    const auto table =
        memory_table({.total = all, .root = root, .largest = slab, .blocks = 4}, {.ranks = 4},
                     {1.2 * need("fsdp", {.ranks = 4}).total() * 4, "a test"});
    const auto row = [&](const std::string& name) {
        const auto at = table.find("\n" + name) + 1;
        return table.substr(at, table.find('\n', at) - at);
    };
    CHECK_THAT(row("ddp"), ContainsSubstring("does not fit"));
    CHECK_THAT(row("fsdp"), !ContainsSubstring("does not fit"));
}

TEST_CASE("a state too large for the limit is refused before it is allocated, with what each would "
          "need") {
    auto model = make_pile();
    const auto* before = model->head->weight.const_data_ptr();
    const auto why = limited_fit(model, 100'000);
    REQUIRE(why);
    CHECK(why->code() == sk::errc::usage);
    for (const auto* word :
         {"Single needs", "100", "memory_limit", "ddp", "zero1", "zero2", "fsdp", "hybrid"})
        CHECK_THAT(std::string(why->what()), ContainsSubstring(word));
    CHECK(model->head->weight.const_data_ptr() == before);
    CHECK_FALSE(limited_fit(model, 100'000'000));
}

TEST_CASE("under a limit that refuses DDP, FSDP trains") {
    const auto ddp = need("ddp", {.ranks = 2}).total() * 2,
               fsdp = need("fsdp", {.ranks = 2}).total() * 2;
    const auto limit = static_cast<std::uint64_t>((ddp + fsdp) / 2);
    const auto fit = [&]<class Strategy>(context& ctx, std::type_identity<Strategy>) {
        auto model = make_pile();
        auto config = quiet_config("unused");
        config.memory_limit = limit;
        config.max_steps = 2;
        sk::Trainer<Strategy> trainer(ctx, config);
        const auto loss = [](Pile& m, const sample_batch& b) {
            return m->forward(torch::cat(std::vector<torch::Tensor>(8, b.x), 1)).pow(2).mean();
        };
        (void)trainer.fit(model, sk::AdamW{}, constant_rate{.peak = 1e-3}, loss, numbers{},
                          numbers{.n = 0});
    };
    for (const auto& e :
         try_world(2, [&](context& ctx) { fit(ctx, std::type_identity<sk::DDP<>>()); })) {
        REQUIRE(e);
        CHECK_THAT(std::string(e->what()), ContainsSubstring("(fits)"));
    }
    for (const auto& e : try_world(2, [&](context& ctx) {
             fit(ctx, std::type_identity<sk::FSDP<sk::auto_wrap<Slab>>>());
         }))
        CHECK_FALSE(e);
}
