// SPDX-License-Identifier: Apache-2.0
#include <tests/train/train_support.hpp>

#include <skein/train/sampler.hpp>

#include <catch2/catch_test_macros.hpp>

#include <mutex>

using namespace train_test;

namespace {

using tiny_ddp = sk::DDP<tiny_buckets>;

/// Gradients of one step of `world` ranks on 12 samples, by rank; `loss(model, rank)` may leave the
/// rank's part to `shares`.
template <class Model>
std::vector<std::vector<float>> gradients(
    int world, const std::function<at::Tensor(Model&, std::span<const std::uint64_t>)>& loss,
    int micro = 1, const std::string& model = "shm") {
    std::vector<std::vector<float>> out(static_cast<std::size_t>(world));
    std::mutex guard; // the default generator is shared by the ranks' threads
    run_world(
        world,
        [&](context& ctx) {
            at::set_num_threads(1);
            Model model = [&] {
                const std::lock_guard lock(guard);
                torch::manual_seed(static_cast<std::uint64_t>(ctx.rank()) + 5);
                return Model();
            }();
            tiny_ddp ddp(ctx, *model);
            ddp.begin_step();
            const auto [first, last] = rank_range(12, ctx.rank(), ctx.world_size());
            for (int m = 0; m < micro; ++m) {
                const auto [a, b] = rank_range(last - first, m, micro);
                std::vector<std::uint64_t> ids;
                for (auto i = first + a; i < first + b; ++i) ids.push_back(i);
                ddp.begin_micro(m + 1 == micro);
                auto l = loss(model, ids);
                l.backward(at::full_like(l, static_cast<double>(ids.size()) / 12.0));
            }
            ddp.finish_backward();
            std::vector<float> flat;
            for (const auto& p : model->parameters()) {
                const auto g = p.grad().defined() ? p.grad().contiguous() : torch::zeros_like(p);
                const auto* from = static_cast<const float*>(g.const_data_ptr());
                flat.insert(flat.end(), from, from + g.numel());
            }
            out[static_cast<std::size_t>(ctx.rank())] = std::move(flat);
        },
        model);
    return out;
}

const std::function<at::Tensor(Net&, std::span<const std::uint64_t>)> net_loss =
    [](Net& m, std::span<const std::uint64_t> ids) { return class_loss(m, numbers{}.batch(ids)); };

} // namespace

TEST_CASE("two and three ranks get the gradient of the whole batch, equal bit for bit among them") {
    const auto oracle = gradients<Net>(1, net_loss)[0];
    for (int world : {2, 3}) {
        const auto all = gradients<Net>(world, net_loss);
        CHECK(relative_error(all[0], oracle) < 1e-6);
        for (const auto& g : all) CHECK(g == all[0]);
    }
}

TEST_CASE("accumulated micro-batches give the gradient of the big batch") {
    const auto oracle = gradients<Net>(1, net_loss)[0];
    CHECK(relative_error(gradients<Net>(1, net_loss, 4)[0], oracle) < 1e-6);
    CHECK(relative_error(gradients<Net>(2, net_loss, 3)[1], oracle) < 1e-6);
}

TEST_CASE("all transports give the same bits for two ranks") {
    const auto shm = gradients<Net>(2, net_loss, 1, "shm");
    CHECK(gradients<Net>(2, net_loss, 1, "ring") == shm);
    CHECK(gradients<Net>(2, net_loss, 1, "hierarchical") == shm);
}

TEST_CASE("construction gives every rank the parameters and buffers of rank 0") {
    struct module : torch::nn::Module {
        explicit module(float v) {
            register_parameter("p", torch::full({40}, v));
            register_parameter("frozen", torch::full({3}, v), false);
            register_buffer("b", torch::full({2, 2}, v, torch::kDouble).t());
        }
    };
    run_world(2, [](context& ctx) {
        module m(static_cast<float>(ctx.rank()) + 7.0f);
        tiny_ddp ddp(ctx, m);
        for (const auto& p : m.parameters()) expect(p.eq(7.0).all().item<bool>());
        expect(m.buffers()[0].eq(7.0).all().item<bool>());
    });
}

struct BranchImpl : torch::nn::Module {
    BranchImpl() : left(8, 4), right(8, 4), frozen(8, 4) {
        register_module("left", left);
        register_module("right", right);
        register_module("frozen", frozen);
        for (auto& p : frozen->parameters()) p.set_requires_grad(false);
        tied = register_parameter("tied", left->weight);
    }
    torch::nn::Linear left, right, frozen;
    torch::Tensor tied;
};
TORCH_MODULE(Branch);

TEST_CASE("parameters that only some ranks use, frozen and tied ones, neither hang nor differ") {
    // Samples below 6 go left, the others right: each of two ranks leaves one branch unused.
    const std::function<at::Tensor(Branch&, std::span<const std::uint64_t>)> loss =
        [](Branch& m, std::span<const std::uint64_t> ids) {
            at::Tensor sum = torch::zeros({});
            for (const auto id : ids) {
                const auto b = numbers{}.batch(std::vector<std::uint64_t>{id});
                auto& branch = id < 6 ? m->left : m->right;
                sum = sum + (branch(b.x) + m->frozen(b.x)).pow(2).mean();
                if (id < 6) sum = sum + torch::nn::functional::linear(b.x, m->tied).mean();
            }
            return sum / static_cast<double>(ids.size());
        };
    const auto oracle = gradients<Branch>(1, loss)[0];
    const auto two = gradients<Branch>(2, loss);
    CHECK(relative_error(two[0], oracle) < 1e-6);
    CHECK(two[0] == two[1]);
}

TEST_CASE("most buckets are on their way before the backward pass has ended") {
    run_world(2, [](context& ctx) {
        Net net;
        tiny_ddp ddp(ctx, *net);
        expect(ddp.buckets() >= 3);
        ddp.begin_step();
        ddp.begin_micro(true);
        class_loss(net, numbers{}.batch(std::vector<std::uint64_t>{1, 2})).backward();
        ddp.finish_backward();
        expect(ddp.overlapped() == ddp.buckets());
    });
}

TEST_CASE("models that differ between ranks are refused on every rank") {
    const auto errors = try_world(2, [](context& ctx) {
        torch::nn::Linear model(4, ctx.rank() == 0 ? 4 : 5);
        tiny_ddp ddp(ctx, *model);
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        CHECK(e->code() == sk::errc::mismatch);
        CHECK(std::string(e->what()).find("rank 1") != std::string::npos);
    }
}

TEST_CASE("a strategy can be made again over the same module") {
    run_world(2, [](context& ctx) {
        Net net;
        for (int round = 0; round < 2; ++round) {
            tiny_ddp ddp(ctx, *net);
            ddp.begin_step();
            ddp.begin_micro(true);
            class_loss(net, numbers{}.batch(std::vector<std::uint64_t>{3})).backward();
            ddp.finish_backward();
            expect(ddp.store().grads_P().abs().sum().item<float>() > 0.0f);
        }
    });
}

TEST_CASE("a gradient that becomes final twice in one backward pass is refused, not sent half") {
    // The backward of this function runs a backward pass of its own over the same weight.
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
    const auto errors = try_world(2, [](context& ctx) {
        Net net;
        tiny_ddp ddp(ctx, *net);
        ddp.begin_step();
        ddp.begin_micro(true);
        const auto batch = numbers{}.batch(std::vector<std::uint64_t>{1, 2});
        const auto y = twice::apply(class_loss(net, batch), net->in->weight);
        (y + net->in->weight.sum()).backward();
        ddp.finish_backward();
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        CHECK(std::string(e->what()).find("became final twice") != std::string::npos);
    }
}
