// SPDX-License-Identifier: Apache-2.0
#include <skein/train/fsdp.hpp>

#include <tests/train/zoo.hpp>

#include <catch2/catch_test_macros.hpp>

#include <sys/mman.h>
#include <unistd.h>

using namespace train_test;
using sk::FSDP;
using sk::Hybrid;

namespace {

using ddp = sk::DDP<tiny_buckets>;
using fsdp = FSDP<zoo_cells>;

/// Resident pages among those that lie wholly in a range of a buffer.
std::size_t resident_pages(const at::Tensor& flat_P, flat_range r) {
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto at = reinterpret_cast<std::uintptr_t>(flat_P.const_data_ptr());
    const auto begin = (at + std::uintptr_t(r.begin) * 4 + page - 1) / page * page;
    const auto end = (at + std::uintptr_t(r.end) * 4) / page * page;
    if (begin >= end) return 0;
    std::vector<unsigned char> there((end - begin) / page);
    expect(::mincore(reinterpret_cast<void*>(begin), end - begin, there.data()) == 0);
    return static_cast<std::size_t>(
        std::count_if(there.begin(), there.end(), [](unsigned char c) { return c & 1; }));
}

struct WideImpl : torch::nn::Module {
    WideImpl() : linear(128, 128) { register_module("linear", linear); }
    torch::Tensor forward(const torch::Tensor& x) { return torch::tanh(linear(x)); }
    torch::nn::Linear linear;
};
TORCH_MODULE_IMPL(Wide, sk::unit<WideImpl>);

struct StackImpl : torch::nn::Module {
    StackImpl() : head(128, 2) {
        register_module("first", first);
        register_module("second", second);
        register_module("third", third);
        register_module("head", head);
    }
    torch::Tensor forward(const torch::Tensor& x) { return head(third(second(first(x)))); }
    Wide first, second, third;
    torch::nn::Linear head;
};
TORCH_MODULE(Stack);

Stack make_stack() {
    const std::lock_guard lock(model_guard);
    torch::manual_seed(1);
    return Stack();
}

} // namespace

TEST_CASE("FSDP trains every shape of a model to the bits of DDP on two ranks, on any transport") {
    for (const auto kind : all_shapes)
        for (const bool adam : {true, false}) {
            INFO("shape " << static_cast<int>(kind) << (adam ? ", AdamW" : ", SGD"));
            const auto single = run_zoo<sk::Single>({.kind = kind, .adam = adam});
            const auto wanted = run_zoo<ddp>({.kind = kind, .world = 2, .adam = adam});
            CHECK(relative_error(wanted.weights[0], single.weights[0]) < 1e-5);
            for (const std::string transport : {"shm", "ring"}) {
                INFO(transport);
                const auto got =
                    run_zoo<fsdp>({.kind = kind, .world = 2, .transport = transport, .adam = adam});
                CHECK(got.weights == wanted.weights);
                CHECK(got.losses == wanted.losses);
            }
        }
}

TEST_CASE("FSDP agrees with one process on three and four ranks, accumulated or not") {
    for (const int world : {3, 4})
        for (const int accumulation : {1, 2})
            for (const std::string transport : {"shm", "ring", "hierarchical"}) {
                INFO(world << " ranks, " << transport << ", accumulation " << accumulation);
                const auto single = run_zoo<sk::Single>({.accumulation = accumulation});
                const auto got = run_zoo<fsdp>(
                    {.world = world, .transport = transport, .accumulation = accumulation});
                CHECK(relative_error(got.weights[0], single.weights[0]) < 1e-5);
                for (const auto& w : got.weights) CHECK(w == got.weights[0]);
            }
}

TEST_CASE("Hybrid shards inside hosts and replicates between them") {
    const auto single = run_zoo<sk::Single>({});
    const auto got = run_zoo<Hybrid<zoo_cells>>({.world = 4, .transport = "hierarchical"});
    CHECK(relative_error(got.weights[0], single.weights[0]) < 1e-5);
    for (const auto& w : got.weights) CHECK(w == got.weights[0]);
}

TEST_CASE("between hosts a rank holds its part of a block and the root, and no more") {
    run_world(
        2,
        [](context& ctx) {
            auto model = make_stack();
            FSDP<sk::auto_wrap<Wide>> strategy(ctx, *model);
            auto& store = strategy.store();
            const auto elsewhere = [&] { // pages of parameters that other ranks own
                std::size_t pages = 0;
                for (const auto& u : store.units())
                    if (!u.name.empty())
                        pages += resident_pages(store.params_P(), {u.place.begin, u.own.begin}) +
                                 resident_pages(store.params_P(), {u.own.end, u.place.end});
                return pages;
            };
            expect(elsewhere() == 0);
            strategy.begin_step();
            strategy.begin_micro(true);
            const auto loss = model->forward(torch::ones({2, 128})).pow(2).mean();
            expect(elsewhere() > 0); // the last block waits for its backward
            expect(model->first->linear->weight.numel() == 0);
            expect(model->third->linear->weight.numel() == 128 * 128);
            loss.backward();
            strategy.finish_backward();
            expect(elsewhere() == 0);
            strategy.finish();
            expect(model->first->linear->weight.numel() == 128 * 128);
        },
        "ring");
}

TEST_CASE("on one host all ranks compute with one copy of the parameters") {
    run_world(2, [](context& ctx) {
        auto model = make_stack();
        FSDP<sk::auto_wrap<Wide>> strategy(ctx, *model);
        expect(strategy.one_copy());
        strategy.begin_step();
        strategy.begin_micro(true);
        model->forward(torch::ones({2, 128})).pow(2).mean().backward();
        strategy.finish_backward();
        double everybody = 1;
        all_reduce(ctx, std::span(&everybody, 1), sk::dist::reduce_op::sum);
        {
            at::NoGradGuard no_grad;
            for (const auto& piece : strategy.store().pieces())
                strategy.store().params_P().narrow(0, piece.flat, piece.padded).fill_(2.5);
        }
        strategy.publish();
        for (const float w : weights(*model)) expect(w == 2.5f);
        strategy.finish(); // memory of its own from here on
        {
            at::NoGradGuard no_grad;
            model->head->weight.fill_(static_cast<float>(ctx.rank()));
        }
        all_reduce(ctx, std::span(&everybody, 1), sk::dist::reduce_op::sum);
        expect(model->head->weight.eq(ctx.rank()).all().item<bool>());
    });
}

TEST_CASE("a parameter read outside of its unit between hosts is an error, never zeros") {
    const auto errors = try_world(
        2,
        [](context& ctx) {
            auto model = make_stack();
            FSDP<sk::auto_wrap<Wide>> strategy(ctx, *model);
            strategy.begin_step();
            strategy.begin_micro(true);
            (void)torch::nn::functional::linear(torch::ones({2, 128}),
                                                model->first->linear->weight);
        },
        "ring");
    for (const auto& e : errors) REQUIRE(e);
}

TEST_CASE("a forward that goes past the mark of its unit between hosts is an error, never zeros") {
    const auto errors = try_world(
        2,
        [](context& ctx) {
            auto model = make_stack();
            FSDP<sk::auto_wrap<Wide>> strategy(ctx, *model);
            strategy.begin_step();
            strategy.begin_micro(true);
            auto& below = static_cast<WideImpl&>(*model->first);
            (void)below.forward(torch::ones({2, 128}));
        },
        "ring");
    for (const auto& e : errors) REQUIRE(e);
}

TEST_CASE("a block's forward outside of a step is refused by name while it is sharded") {
    const auto errors = try_world(
        2,
        [](context& ctx) {
            auto model = make_stack();
            FSDP<sk::auto_wrap<Wide>> strategy(ctx, *model);
            (void)model->second->forward(torch::ones({2, 128}));
        },
        "ring");
    for (const auto& e : errors) {
        REQUIRE(e);
        CHECK(std::string(e->what()).find("second") != std::string::npos);
    }
}

TEST_CASE("blocks that are no units can be sharded on one host but not between hosts") {
    using by_size = FSDP<sk::auto_wrap_size<100>>;
    const auto shared = run_zoo<by_size>({.world = 2});
    CHECK(shared.weights == run_zoo<ddp>({.world = 2}).weights);
    for (const auto& e : try_world(
             2,
             [](context& ctx) {
                 auto model = make_stack();
                 by_size strategy(ctx, *model);
             },
             "ring")) {
        REQUIRE(e);
        CHECK(e->code() == sk::errc::not_supported);
        CHECK(std::string(e->what()).find("skein::unit") != std::string::npos);
    }
}

namespace {

struct DeepImpl : torch::nn::Module {
    DeepImpl() : head(8, 4) {
        for (int i = 0; i < 6; ++i) cells->push_back(Cell(8, 8));
        register_module("cells", cells);
        register_module("head", head);
    }
    torch::Tensor forward(torch::Tensor x, std::size_t leave_out) {
        for (std::size_t i = 0; i < cells->size(); ++i)
            if (i != leave_out) x = cells[i]->as<Cell>()->forward(x);
        return head(x);
    }
    torch::nn::ModuleList cells;
    torch::nn::Linear head;
};
TORCH_MODULE(Deep);

Deep make_deep() {
    const std::lock_guard lock(model_guard);
    torch::manual_seed(4);
    return Deep();
}

} // namespace

TEST_CASE("a rank that leaves out a block between hosts holds nobody up") {
    for (const std::size_t leave_out : {5u, 0u, 3u})
        for (const int world : {2, 3}) {
            INFO("block " << leave_out << " of 6, " << world << " ranks");
            std::vector<std::vector<float>> after(static_cast<std::size_t>(world));
            run_world(
                world,
                [&](context& ctx) {
                    auto model = make_deep();
                    auto config = quiet_config("unused");
                    config.max_steps = 3;
                    sk::Trainer<fsdp> trainer(ctx, config);
                    const auto loss = [&](Deep& m, const sample_batch& b) {
                        const auto which = ctx.rank() == 0 ? std::size_t{99} : leave_out;
                        return torch::nn::functional::cross_entropy(m->forward(b.x, which), b.y);
                    };
                    (void)trainer.fit(model, sk::AdamW{}, constant_rate{.peak = 1e-2}, loss,
                                      numbers{}, numbers{.n = 0});
                    after[static_cast<std::size_t>(ctx.rank())] = weights(*model);
                },
                "ring");
            for (const auto& w : after) CHECK(w == after[0]);
        }
}

TEST_CASE("after a training that failed a module is its own again, or says that it is lost") {
    for (const std::string transport : {"shm", "ring"}) {
        const auto errors = try_world(
            2,
            [&](context& ctx) {
                auto model = make_zoo(shape::plain);
                auto config = quiet_config("unused");
                sk::Trainer<fsdp> trainer(ctx, config);
                const auto loss = [&](Zoo&, const sample_batch&) -> at::Tensor {
                    throw std::runtime_error("on purpose");
                };
                try {
                    (void)trainer.fit(model, sk::AdamW{}, constant_rate{}, loss, numbers{},
                                      numbers{.n = 0});
                } catch (const sk::error&) {}
                if (transport == "shm") {
                    at::NoGradGuard no_grad;
                    for (int round = 0; round < 200; ++round) { // the other rank writes, too
                        model->head->weight.fill_(static_cast<float>(ctx.rank()));
                        expect(model->head->weight.eq(ctx.rank()).all().item<bool>());
                    }
                } else {
                    flat_store again(*model);
                }
            },
            transport);
        for (const auto& e : errors) {
            if (transport == "shm") {
                CHECK_FALSE(e);
            } else {
                REQUIRE(e);
                CHECK(std::string(e->what()).find("were lost") != std::string::npos);
            }
        }
    }
}

TEST_CASE("an exception in the forward of one rank ends the step of all") {
    for (const std::string transport : {"shm", "ring"}) {
        const auto errors = try_world(
            2,
            [](context& ctx) {
                auto model = make_zoo(shape::plain);
                auto config = quiet_config("unused");
                config.max_steps = 5;
                sk::Trainer<fsdp> trainer(ctx, config);
                int calls = 0;
                const auto loss = [&](Zoo& m, const sample_batch& b) {
                    if (++calls == 3 && ctx.rank() == 1) throw std::runtime_error("on purpose");
                    return zoo_loss(m, b);
                };
                (void)trainer.fit(model, sk::AdamW{}, constant_rate{.peak = 1e-3}, loss, numbers{},
                                  numbers{.n = 0});
            },
            transport);
        for (const auto& e : errors) {
            REQUIRE(e);
            CHECK(std::string(e->what()).find("on purpose") != std::string::npos);
        }
    }
}

TEST_CASE("hosts with different numbers of ranks are refused for Hybrid") {
    const auto errors = try_world(
        3,
        [](context& ctx) {
            auto model = make_stack();
            Hybrid<sk::auto_wrap<Wide>> strategy(ctx, *model);
        },
        "hierarchical"); // two on the first host, one on the second
    for (const auto& e : errors) {
        REQUIRE(e);
        CHECK(e->code() == sk::errc::usage);
    }
}
