// SPDX-License-Identifier: Apache-2.0
#include <skein/train/build.hpp>
#include <skein/train/export_weights.hpp>
#include <skein/train/training_state.hpp>

#include <tests/train/zoo.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
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

/// Five steps from weights on disk: each rank has read its rows, or the whole model.
template <class Strategy>
std::vector<float> given_run(bool in_parts, int world, const std::string& transport,
                             const std::string& from) {
    std::vector<float> out;
    run_world(
        world,
        [&](context& ctx) {
            const auto make = [&] { // ranks need not draw alike
                return make_drawn<Zoo>(shape::nested, 50 + static_cast<std::uint64_t>(ctx.rank()));
            };
            auto config = quiet_config("unused");
            config.max_steps = 5;
            sk::Trainer<Strategy> trainer(ctx, config);
            auto model = in_parts ? trainer.build(make, from) : make();
            if (!in_parts) (void)load_weights(*model, from);
            (void)trainer.fit(model, sk::AdamW{.weight_decay = 0.1}, constant_rate{.peak = 1e-2},
                              zoo_loss, numbers{}, numbers{.n = 5});
            if (ctx.is_first()) out = weights(*model);
        },
        transport);
    return out;
}

/// The tensors of a module; the most bytes that were read at once, and all of them.
class watched_weights final : public weight_source {
public:
    explicit watched_weights(torch::nn::Module& module) : weight_source("watched"), held_(module) {
        tensors_ = held_.tensors();
    }
    mutable std::size_t most = 0, all = 0;
    std::optional<sk::error> fails;

private:
    void read_rows(const std::string& name, const source_tensor&, std::int64_t first_row,
                   std::int64_t rows, sk::mut_byte_span into) const override {
        if (fails) throw *fails;
        most = std::max(most, into.size());
        all += into.size();
        held_.read(name, first_row, rows, into);
    }
    module_weights held_;
};

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

TEST_CASE("each rank reads its rows of given weights, and trains as if it had loaded all") {
    scratch dir;
    auto given = make_drawn<Zoo>(shape::nested, 7);
    (void)export_safetensors(*given, dir / "one");
    (void)export_safetensors(*given, dir / "many", {.max_shard = 2000});
    run_world(2, [&](context& ctx) { // a checkpoint of two shards
        auto config = quiet_config(dir.path);
        config.max_steps = 1;
        config.checkpoint.enabled = true;
        sk::Trainer<built_fsdp> trainer(ctx, config);
        auto model = make_drawn<Zoo>(shape::nested, 7);
        (void)trainer.fit(model, sk::AdamW{}, constant_rate{.peak = 1e-2}, zoo_loss, numbers{},
                          numbers{.n = 5});
    });
    for (const auto& from : {dir / "one/model.safetensors", "hf:" + (dir / "many"), dir / "run"}) {
        CAPTURE(from);
        Zoo alone(shape::nested);
        (void)load_weights(*alone, from);
        const auto wanted = alone->named_parameters();
        run_world(2, [&](context& ctx) {
            auto config = quiet_config("unused");
            sk::Trainer<built_fsdp> trainer(ctx, config);
            auto model = trainer.build([] { return make_drawn<Zoo>(shape::nested, 1); }, from);
            const auto cut = skein::train::detail::cut_parameters(*model);
            expect(!cut.empty());
            for (const auto& p : model->named_parameters()) {
                const auto all = wanted[p.key()].detach();
                const auto part = cut.find(p.value().unsafeGetTensorImpl());
                if (part == cut.end())
                    expect(torch::equal(p.value(), all));
                else
                    expect(torch::equal(
                        part->second->values,
                        all.reshape({-1}).narrow(0, part->second->first, part->second->count)));
            }
        });
        for (const int world : {1, 2, 3})
            CHECK(given_run<built_fsdp>(true, world, "shm", from) ==
                  given_run<built_fsdp>(false, world, "shm", from));
    }
    CHECK(given_run<built_hybrid>(true, 4, "hierarchical", dir / "run") ==
          given_run<built_hybrid>(false, 4, "hierarchical", dir / "run"));
    CHECK(given_run<sk::DDP<>>(true, 2, "ring", dir / "run") ==
          given_run<sk::DDP<>>(false, 2, "ring", dir / "run"));
}

TEST_CASE("a rank reads what it owns of given weights and no tensor twice") {
    auto given = make_drawn<Zoo>(shape::plain, 7);
    std::size_t whole = 0, largest = 0;
    for (const auto& p : given->parameters()) {
        whole += p.nbytes();
        largest = std::max(largest, p.nbytes());
    }
    std::vector<std::size_t> read(3), most(3);
    run_world(3, [&](context& ctx) {
        const watched_weights from(*given);
        auto config = quiet_config("unused");
        sk::Trainer<built_fsdp> trainer(ctx, config);
        auto model = trainer.build([] { return make_drawn<Zoo>(shape::plain, 1); }, from);
        std::size_t owned = 0;
        const auto cut = skein::train::detail::cut_parameters(*model);
        for (const auto& p : model->parameters()) {
            const auto part = cut.find(p.unsafeGetTensorImpl());
            owned += part == cut.end() ? p.nbytes() : part->second->values.nbytes();
        }
        for (const auto& b : model->buffers()) owned += b.nbytes();
        expect(from.all == owned);
        read[static_cast<std::size_t>(ctx.rank())] = from.all;
        most[static_cast<std::size_t>(ctx.rank())] = from.most;
    });
    for (std::size_t r = 0; r < 3; ++r) {
        CHECK(read[r] < whole / 2);
        CHECK(most[r] < largest);
    }
}

TEST_CASE("given weights that do not fit are told whole on every rank, and so is one rank's disk") {
    scratch dir;
    const auto build_on_two = [](const std::function<std::string(int rank)>& from_of) {
        return try_world(2, [&](context& ctx) {
            auto config = quiet_config("unused");
            sk::Trainer<built_fsdp> trainer(ctx, config);
            (void)trainer.build([] { return make_drawn<Zoo>(shape::plain, 1); },
                                from_of(ctx.rank()));
        });
    };
    auto given = make_drawn<Zoo>(shape::plain, 7);
    const auto odd = torch::zeros({3, 5}), more = torch::zeros({2});
    std::vector<tensor_view> views{{"extra.weight", "F32", {2}, bytes_of(more)}};
    for (const auto& p : given->named_parameters()) {
        if (p.key() == "a.in.bias") continue;
        const auto tensor = p.key() == "head.weight" ? odd : p.value().detach();
        views.push_back({p.key(), "F32", tensor.sizes().vec(), bytes_of(tensor)});
    }
    sk::byte_buffer bytes;
    write_safetensors(plan_safetensors(views).value(), [&](sk::byte_span part) {
        bytes.insert(bytes.end(), part.begin(), part.end());
        return sk::result<void>();
    }).value();
    sk::posix_disk here;
    here.write_whole(dir / "wrong.safetensors", bytes).value();
    for (const auto& why : build_on_two([&](int) { return dir / "wrong.safetensors"; })) {
        REQUIRE(why);
        CHECK_THAT(why->what(), ContainsSubstring("a.in.bias") &&
                                    ContainsSubstring("extra.weight") &&
                                    ContainsSubstring("head.weight is F32 [3, 5]"));
    }
    (void)export_safetensors(*given, dir / "good");
    const auto gone = build_on_two(
        [&](int rank) { return rank == 0 ? "hf:" + (dir / "good") : dir / "nowhere"; });
    for (const auto& why : gone) {
        REQUIRE(why);
        CHECK_THAT(why->what(), ContainsSubstring("nowhere"));
    }
    auto larger = make_drawn<Zoo>(shape::nested, 7);
    (void)export_safetensors(*larger, dir / "larger");
    const auto apart = try_world(2, [&](context& ctx) { // loose: nothing is amiss on a rank alone
        auto config = quiet_config("unused");
        sk::Trainer<built_fsdp> trainer(ctx, config);
        (void)trainer.build([] { return make_drawn<Zoo>(shape::plain, 1); },
                            "hf:" + (dir / (ctx.is_first() ? "good" : "larger")), {},
                            {.strict = false});
    });
    REQUIRE(apart[0]);
    CHECK(apart[0]->code() == sk::errc::mismatch);
    const auto failing = try_world(2, [&](context& ctx) {
        watched_weights from(*given);
        if (!ctx.is_first()) from.fails = sk::error(sk::errc::io, "the disk is gone");
        auto config = quiet_config("unused");
        sk::Trainer<built_fsdp> trainer(ctx, config);
        (void)trainer.build([] { return make_drawn<Zoo>(shape::plain, 1); }, from);
    });
    REQUIRE(failing[0]);
    CHECK_THAT(failing[0]->what(), ContainsSubstring("the disk is gone"));
}
