// SPDX-License-Identifier: Apache-2.0
// What users do to a module while it is trained: each thing is right, or one error that names it.
#include <skein/torch/engine.hpp>
#include <skein/train/recompute.hpp>

#include <tests/train/zoo.hpp>

#include <catch2/catch_test_macros.hpp>

#include <filesystem>
#include <functional>
#include <memory>
#include <sstream>
#include <string>

using namespace train_test;

namespace {

using half = sk::precision<sk::bf16>;

struct at_step {
    std::function<void(std::uint64_t)> call;
    void on_step(const step_info& s) const { call(s.step); }
};

const auto half_loss = [](auto& m, const sample_batch& b) {
    const auto x = b.x.to(m->in->weight.scalar_type());
    return torch::nn::functional::cross_entropy(m->forward(x).to(torch::kFloat), b.y);
};

/// The error with which a fit ends whose callback does this after the first step of three; empty:
/// none.
template <class Strategy, class Change>
std::string told_after(Change change, int world = 1, const std::string& transport = "shm",
                       int steps = 3, std::uint64_t held_out = 0) {
    std::string told;
    const auto body = [&](context& ctx) {
        auto net = make_net();
        auto config = quiet_config("unused");
        config.max_steps = steps;
        sk::Trainer<Strategy, at_step> trainer(ctx, config, at_step{[&](std::uint64_t step) {
                                                   if (step == 1) change(net);
                                               }});
        (void)trainer.fit(net, sk::SGD{}, constant_rate{0.1}, half_loss, numbers{},
                          numbers{.n = held_out});
    };
    try {
        run_world(world, body, transport);
    } catch (const sk::error& e) {
        told = e.what();
    }
    return told;
}

void check_told(const std::string& text, std::initializer_list<const char*> words) {
    INFO(text);
    for (const char* word : words) CHECK(text.find(word) != std::string::npos);
}

std::string told_by(const std::function<void()>& call) {
    try {
        call();
    } catch (const sk::error& e) {
        return std::string(e.what()) + " | " + std::string(e.where()) + " | " +
               std::string(e.hint());
    }
    return {};
}

/// A module whose weight others see.
struct SeenImpl : torch::nn::Module {
    explicit SeenImpl(bool with_buffer = false) : in(8, 4) {
        register_module("in", in);
        if (with_buffer) register_buffer("alias", in->weight.detach().narrow(0, 1, 2));
    }
    torch::Tensor forward(const torch::Tensor& x) { return in(x); }
    torch::nn::Linear in;
};
TORCH_MODULE(Seen);

template <class Strategy>
std::string told_at_open(Seen& net) {
    return told_by([&] { run_world(1, [&](context& ctx) { (void)Strategy(ctx, *net); }); });
}

} // namespace

// ---- other handles on a parameter's memory ------------------------------------------------------

TEST_CASE("a view of a parameter that was kept is told when the training begins, by name") {
    Seen net;
    auto view = net->in->weight.narrow(0, 0, 1);
    check_told(told_at_open<sk::Single>(net), {"in.weight", "1 other tensor ", "forward()"});
    check_told(told_at_open<sk::DDP<>>(net), {"in.weight"});
    view = net->in->bias.detach();
    check_told(told_at_open<sk::FSDP<sk::auto_wrap<Cell>>>(net), {"in.bias", "clone()"});
    view = net->in->bias.detach().clone();
    auto same =
        net->in->weight; // a handle of the same tensor moves with it, as an optimizer's does
    CHECK(told_at_open<sk::Single>(net).empty());
    CHECK(same.is_alias_of(net->in->weight));
}

TEST_CASE("a buffer that is a view of a parameter is told with both names") {
    Seen net(true);
    check_told(told_at_open<sk::Single>(net), {"alias", "in.weight", "share memory"});
    check_told(told_at_open<sk::basic_single<half>>(net), {"alias", "in.weight"});
}

TEST_CASE("parameters that are parts of one tensor are taken, those that overlap are not") {
    struct PartsImpl : torch::nn::Module {
        explicit PartsImpl(int second) {
            auto all = torch::randn({8});
            register_parameter("a", all.narrow(0, 0, 4).detach());
            register_parameter("b", all.narrow(0, second, 4).detach());
        }
    };
    run_world(1, [](context& ctx) {
        PartsImpl apart(4), over(3);
        CHECK(told_by([&] { (void)sk::Single(ctx, apart); }).empty());
        check_told(told_by([&] { (void)sk::Single(ctx, over); }), {"a and b share memory"});
    });
}

TEST_CASE("a part of a model is trained after the model, and a model twice") {
    run_world(1, [](context& ctx) {
        auto net = make_net();
        auto config = quiet_config("unused");
        config.max_steps = 2;
        for (int i = 0; i < 2; ++i) {
            sk::Trainer<sk::Single> trainer(ctx, config);
            (void)trainer.fit(net, sk::SGD{}, constant_rate{0.1}, class_loss, numbers{},
                              numbers{.n = 0});
        }
        CHECK(told_by([&] { (void)sk::Single(ctx, *net->out); }).empty());
    });
}

// ---- changed while it is trained ----------------------------------------------------------------

TEST_CASE("a module that changes under its training is told at the next step, by name") {
    const auto both = [](const auto& change, std::initializer_list<const char*> words) {
        check_told(told_after<sk::Single>(change), words);
        check_told(told_after<sk::DDP<tiny_buckets>>(change, 2), words);
        check_told(told_after<sk::Zero2<>>(change, 2), words);
        check_told(told_after<sk::basic_single<half>>(change), words);
    };
    both([](Net& m) { m->in->weight.set_data(torch::zeros({16, 8})); }, {"in.weight was moved"});
    both([](Net& m) { m->to(torch::kDouble); }, {"was moved to other memory"});
    both(
        [](Net& m) {
            std::stringstream file;
            {
                const std::lock_guard lock(model_guard);
                const auto other = torch::nn::Linear(16, 4); // LibTorch reads no module named "in"
                torch::save(other, file);
            }
            torch::load(m->out, file);
        },
        {"was moved to other memory"});
    both([](Net& m) { (void)m->replace_module("out", torch::nn::Linear(16, 4)); },
         {"out.bias was exchanged"});
    both([](Net& m) { (void)m->register_module("more", torch::nn::Linear(2, 2)); },
         {"parameter more.bias was added"});
    both([](Net& m) { (void)m->register_buffer("mask", torch::ones({2})); },
         {"buffer mask was added"});
}

TEST_CASE("what has no tensors may be exchanged, and values written in place") {
    CHECK(told_after<sk::DDP<>>(
              [](Net& m) {
                  (void)m->register_module("drop", torch::nn::Dropout());
                  const torch::NoGradGuard no_grad;
                  m->in->weight.zero_();
                  m->out->weight.set_requires_grad(false);
              },
              2)
              .empty());
}

TEST_CASE("a parameter that moved is told by an evaluation, a save and the end, too") {
    run_world(1, [](context& ctx) {
        auto net = make_net();
        sk::Single s(ctx, *net);
        net->in->bias.set_data(torch::zeros({16}));
        check_told(told_by([&] { s.begin_evaluation(); }), {"in.bias was moved"});
        check_told(told_by([&] { s.sync_buffers(); }), {"in.bias was moved"});
        check_told(told_by([&] { s.finish(); }), {"in.bias was moved", "open()"});
    });
    const auto moved = [](Net& m) { m->in->bias.set_data(torch::zeros({16})); };
    check_told(told_after<sk::DDP<>>(moved, 2, "shm", 1), {"in.bias was moved"});
    check_told(told_after<sk::DDP<>>(moved, 2, "shm", 1, 5), {"in.bias was moved"});
}

TEST_CASE("a frozen parameter that is cast, and moves, is told") {
    run_world(1, [](context& ctx) {
        auto net = make_net();
        net->in->weight.set_requires_grad(false);
        sk::basic_single<half> s(ctx, *net);
        net->in->weight.set_data(torch::zeros({16, 8}));
        check_told(told_by([&] { s.begin_step(); }), {"frozen parameter in.weight was moved"});
    });
}

TEST_CASE("a write to a parameter of a block that is not gathered is told") {
    for (const bool by_half : {false, true}) {
        const auto run = [&]<class Strategy>(std::type_identity<Strategy>) {
            return told_by([] {
                run_world(
                    2,
                    [](context& ctx) {
                        auto model = make_zoo(shape::plain);
                        auto config = quiet_config("unused");
                        config.max_steps = 3;
                        sk::Trainer<Strategy, at_step> trainer(
                            ctx, config, at_step{[&](std::uint64_t) {
                                const torch::NoGradGuard no_grad;
                                for (auto& p : model->parameters()) p.clamp_(-0.01, 0.01);
                            }});
                        (void)trainer.fit(model, sk::SGD{}, constant_rate{0.1}, zoo_loss, numbers{},
                                          numbers{.n = 0});
                    },
                    "ring");
            });
        };
        const auto told = by_half ? run(std::type_identity<sk::FSDP<zoo_cells, half>>{})
                                  : run(std::type_identity<sk::FSDP<zoo_cells>>{});
        check_told(told, {"parameter a.in.weight was written to", "forward"});
    }
}

// ---- written to in 16 bits ----------------------------------------------------------------------

namespace {

/// The largest weight after ten steps whose callback cuts all weights to 0.01.
template <class Strategy>
double largest_of_clamped(int world, bool by_data) {
    double largest = 0;
    std::mutex guard;
    run_world(world, [&](context& ctx) {
        auto net = make_net();
        auto config = quiet_config("unused");
        config.max_steps = 10;
        sk::Trainer<Strategy, at_step> trainer(ctx, config, at_step{[&](std::uint64_t) {
                                                   const torch::NoGradGuard no_grad;
                                                   for (auto& p : net->parameters()) {
                                                       if (by_data)
                                                           p.data().clamp_(-0.01, 0.01);
                                                       else
                                                           p.clamp_(-0.01, 0.01);
                                                   }
                                               }});
        (void)trainer.fit(net, sk::SGD{}, constant_rate{0.1}, half_loss, numbers{},
                          numbers{.n = 0});
        const std::lock_guard lock(guard);
        for (const float w : weights(*net)) largest = std::max(largest, std::abs(double(w)));
    });
    return largest;
}

} // namespace

TEST_CASE("weights that are cut after each step stay cut in 16 bits, as in float32") {
    for (const bool by_data : {false, true}) {
        INFO((by_data ? "through data()" : "in place"));
        CHECK(largest_of_clamped<sk::Single>(1, by_data) < 0.0101);
        CHECK(largest_of_clamped<sk::basic_single<half>>(1, by_data) < 0.0101);
        CHECK(largest_of_clamped<sk::DDP<tiny_buckets, half>>(2, by_data) < 0.0101);
    }
}

TEST_CASE(
    "a value written in 16 bits is the master's from then on, and the others keep their digits") {
    run_world(1, [](context& ctx) {
        auto net = make_net();
        net->norm->bias.set_requires_grad(false);
        const auto before = weights(*net);
        sk::basic_single<half> s(ctx, *net);
        {
            const torch::NoGradGuard no_grad;
            net->in->weight[0][0].fill_(0.5); // by an operation
            static_cast<at::BFloat16*>(net->in->weight.mutable_data_ptr())[1] = 0.25f; // by address
            net->norm->bias.fill_(2.0);                                                // frozen
        }
        s.begin_step();
        s.begin_micro(true);
        half_loss(net, numbers{}.batch(std::vector<std::uint64_t>{1, 2})).backward();
        s.finish_backward(); // no step of an optimizer
        s.publish();
        s.finish();
        auto wanted = before;
        wanted[0] = 0.5f;
        wanted[1] = 0.25f;
        const auto after = weights(*net);
        for (std::size_t i = 0; i < 16 * 8; ++i) CHECK(after[i] == wanted[i]);
        CHECK(torch::equal(net->norm->bias, torch::full({16}, 2.0)));
    });
}

TEST_CASE(
    "what is written behind the last backward pass of a step, or behind the last step, is kept") {
    run_world(1, [](context& ctx) {
        auto net = make_net();
        auto config = quiet_config("unused");
        config.max_steps = 2;
        sk::Trainer<sk::basic_single<half>> trainer(ctx, config);
        auto session = trainer.open(net, sk::SGD{}, constant_rate{0.0});
        const numbers data{};
        for (auto& step : session.steps(data)) {
            for (auto& micro : step) session.backward(half_loss(net, micro));
            const torch::NoGradGuard no_grad;
            if (session.finished() == 0) net->in->weight.fill_(0.5);
        }
        {
            const torch::NoGradGuard no_grad;
            net->out->weight.fill_(0.25);
        }
        (void)session.finish();
        CHECK(torch::equal(net->in->weight.detach(), torch::full({16, 8}, 0.5)));
        CHECK(torch::equal(net->out->weight.detach(), torch::full({4, 16}, 0.25)));
    });
}

TEST_CASE("a batch norm in 16 bits is refused by name, with what to add") {
    struct NormedImpl : torch::nn::Module {
        NormedImpl() : in(8, 16), norm(16) {
            register_module("in", in);
            register_module("norm", norm);
        }
        torch::nn::Linear in;
        torch::nn::BatchNorm1d norm;
    };
    run_world(1, [](context& ctx) {
        NormedImpl net;
        check_told(told_by([&] { (void)sk::basic_single<half>(ctx, net); }),
                   {"BatchNorm1d keeps", "| norm |", "keep_f32<torch::nn::BatchNorm1d>"});
        using kept = sk::basic_single<half, sk::keep_f32<torch::nn::BatchNorm1d>>;
        CHECK(told_by([&] { (void)kept(ctx, net); }).empty());
        CHECK(told_by([&] { (void)sk::Single(ctx, net); }).empty());
    });
}

// ---- computed again -----------------------------------------------------------------------------

namespace {

/// All that a forward could leave behind, and what it reads of it.
struct StatefulImpl : torch::nn::Module {
    StatefulImpl() : in(8, 8), norm(8) {
        register_module("in", in);
        register_module("norm", norm);
        calls = register_buffer("calls", torch::zeros({}, torch::kLong));
        mean = register_buffer("mean", torch::zeros({8}));
    }
    torch::Tensor forward(const torch::Tensor& x) {
        const torch::Tensor h = torch::dropout(torch::tanh(norm(in(x)-mean)), 0.5, is_training());
        const torch::NoGradGuard no_grad;
        calls += 1;
        mean.mul_(0.5).add_(h.mean(0).to(torch::kFloat));
        return h;
    }
    torch::nn::Linear in;
    torch::nn::BatchNorm1d norm;
    torch::Tensor calls, mean;
};
TORCH_MODULE_IMPL(Stateful, sk::unit<StatefulImpl>);

struct StatefulNetImpl : torch::nn::Module {
    StatefulNetImpl() : out(8, 1) {
        register_module("block", block);
        register_module("out", out);
    }
    torch::Tensor forward(const torch::Tensor& x) { return out(block(x)); }
    Stateful block;
    torch::nn::Linear out;
};
TORCH_MODULE(StatefulNet);

StatefulNet make_stateful(bool recompute) {
    const std::lock_guard lock(model_guard);
    torch::manual_seed(4);
    StatefulNet net;
    if (recompute) (void)checkpoint_activations(*net);
    return net;
}

/// Losses, gradients and buffers of three steps.
std::vector<torch::Tensor> stateful_steps(bool recompute, bool casts) {
    auto net = make_stateful(recompute);
    torch::manual_seed(8);
    std::vector<torch::Tensor> all;
    for (int step = 0; step < 3; ++step) {
        net->zero_grad();
        at::autocast::set_autocast_enabled(at::kCPU, casts);
        const auto loss = net->forward(torch::randn({6, 8})).to(torch::kFloat).pow(2).mean();
        at::autocast::clear_cache();
        at::autocast::set_autocast_enabled(at::kCPU, false);
        loss.backward();
        all.push_back(loss.detach());
        for (const auto& p : net->parameters()) all.push_back(p.grad().clone());
        for (const auto& b : net->buffers()) all.push_back(b.clone());
    }
    all.push_back(torch::rand({2}));
    return all;
}

template <class Call>
std::string told_by_recompute(Call call) {
    auto net = make_stateful(true);
    return told_by([&] { call(net, torch::ones({4, 8})); });
}

} // namespace

TEST_CASE(
    "a block that is computed again leaves its state as one forward: buffers, dropout, autocast") {
    for (const bool casts : {false, true}) {
        INFO("autocast " << casts);
        const auto wanted = stateful_steps(false, casts);
        const auto got = stateful_steps(true, casts);
        REQUIRE(got.size() == wanted.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
            INFO(i);
            CHECK(torch::equal(got[i], wanted[i]));
        }
    }
}

TEST_CASE("a block is not computed again where autograd does not allow it") {
    check_told(told_by_recompute([](StatefulNet& m, torch::Tensor x) {
                   x.set_requires_grad(true);
                   (void)torch::autograd::grad({m->forward(x).sum()}, {x}, {}, true, true);
               }),
               {"checkpoint_activations", "autograd::grad()"});
    check_told(told_by_recompute([](StatefulNet& m, torch::Tensor x) {
                   x.set_requires_grad(true);
                   m->forward(x).sum().backward({}, false, false, std::vector{x});
               }),
               {"for some inputs only"});
    check_told(told_by_recompute([](StatefulNet& m, torch::Tensor x) {
                   m->forward(x).sum().backward({}, true, /*create_graph=*/true);
               }),
               {"create_graph"});
}

TEST_CASE("a block that has changed between forward and backward is not computed again") {
    check_told(told_by_recompute([](StatefulNet& m, torch::Tensor x) {
                   const auto loss = m->forward(x).sum();
                   m->eval();
                   loss.backward();
               }),
               {"train() and eval()"});
    check_told(told_by_recompute([](StatefulNet& m, torch::Tensor x) {
                   const auto loss = m->forward(x).sum();
                   {
                       const torch::NoGradGuard no_grad;
                       m->block->in->weight.mul_(2);
                   }
                   loss.backward();
               }),
               {"written to between forward and backward"});
}

TEST_CASE("a block whose second call returns other tensors is not computed again") {
    struct MovingImpl : torch::nn::Module {
        torch::Tensor forward(const torch::Tensor& x) { return x.narrow(0, 0, ++calls) * 2; }
        int calls = 0;
    };
    const auto block = std::make_shared<sk::unit<MovingImpl>>();
    block->recompute(true);
    check_told(
        told_by([&] { block->forward(torch::ones({4}, torch::requires_grad())).sum().backward(); }),
        {"returned other tensors", "buffers"});
}

// ---- elements in one place ----------------------------------------------------------------------

TEST_CASE("a tensor whose elements share memory is refused by name before the first step") {
    const auto told = [](const std::function<void(Net&)>& change) {
        return told_by([&] {
            auto ctx = context::single();
            auto net = make_net();
            change(net);
            auto config = quiet_config("unused");
            sk::Trainer<sk::Single> trainer(ctx, config);
            (void)trainer.open(net, sk::SGD{}, constant_rate{0.1});
        });
    };
    const auto buffer = [&](const torch::Tensor& of) {
        return told([&](Net& net) { net->register_buffer("scale", of); });
    };
    const auto some = torch::arange(12).to(torch::kFloat);
    check_told(buffer(torch::ones({1}).expand({4})), {"elements of scale share memory", "expand"});
    check_told(buffer(torch::ones({2, 1}).expand({2, 3})), {"elements of scale share memory"});
    check_told(buffer(some.as_strided({3, 4}, {2, 1})), {"elements of scale share memory"});
    check_told(buffer(some.as_strided({2, 3}, {1, 1})), {"elements of scale share memory"});
    check_told(told([](Net& net) {
                   auto frozen = torch::ones({1}).expand({3});
                   net->register_parameter("frozen", frozen, false);
               }),
               {"elements of frozen share memory"});
    check_told(told([](Net& net) { net->register_parameter("w", torch::ones({1}).expand({3})); }),
               {"elements of w share memory"});
    // What only looks like it: every element has a place of its own.
    CHECK(buffer(some.view({3, 4}).t()).empty());
    CHECK(buffer(some.slice(0, 0, 12, 3)).empty());
    CHECK(buffer(some.as_strided({2, 3}, {3, 2})).empty());
    CHECK(buffer(some.view({3, 4}).slice(1, 0, 2)).empty());
    CHECK(buffer(torch::ones({1}).expand({1, 1})).empty());
}

TEST_CASE("a buffer that nobody could read back is refused by name when it came to be so") {
    const auto told = [](const std::function<void(at::Tensor&)>& change) {
        scratch dir;
        auto config = quiet_config(dir.path);
        config.max_steps = 3;
        config.checkpoint.enabled = true;
        auto net = make_net();
        auto scale = net->register_buffer("scale", torch::ones({4}));
        auto text = told_by([&] {
            auto ctx = context::single();
            sk::Trainer<sk::Single, at_step> trainer(ctx, config, at_step{[&](std::uint64_t step) {
                                                         if (step == 3) change(scale);
                                                     }});
            (void)trainer.fit(net, sk::SGD{}, constant_rate{0.1}, class_loss, numbers{},
                              numbers{.n = 0});
        });
        const auto saved = dir.path + "/run/checkpoints/step-00000003";
        CHECK(std::filesystem::exists(saved) == text.empty());
        return text;
    };
    CHECK(told([](at::Tensor& scale) { scale.mul_(2); }).empty());
    check_told(told([](at::Tensor& scale) { scale.set_data(torch::ones({1}).expand({4})); }),
               {"elements of scale share memory"});
    check_told(told([](at::Tensor& scale) { scale.resize_({6}); }),
               {"a checkpoint of scale", "Float [6]", "Float [4]"});
}
