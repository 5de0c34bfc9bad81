// SPDX-License-Identifier: Apache-2.0
#include <tests/train/train_support.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace train_test;

TEST_CASE("parameters become views of one buffer and keep their values") {
    torch::manual_seed(3);
    Net net;
    const auto before = weights(*net);
    flat_store flat(*net);
    CHECK(weights(*net) == before);
    CHECK(flat.trainable() == 8 * 16 + 16 + 16 + 16 + 16 * 4 + 4);
    for (const auto& s : flat.segments()) {
        CHECK(s.parameter.storage().is_alias_of(flat.params_P().storage()));
        CHECK(s.parameter.storage_offset() == s.offset);
        CHECK(s.offset % flat_store::alignment == 0);
    }
    flat.params_P().fill_(2.0);
    for (float w : weights(*net)) CHECK(w == 2.0f);
}

TEST_CASE("the buffer's order is that of registration and its padding stays zero") {
    Net net;
    flat_store flat(*net);
    CHECK(flat.segments().front().name == "in.weight");
    CHECK(flat.segments().back().name == "out.bias");
    flat.expect_gradients();
    class_loss(net, numbers{}.batch(std::vector<std::uint64_t>{1, 2, 3})).backward();
    for (const auto& s : flat.segments()) {
        const auto pad = flat.grads_P().narrow(0, s.offset + s.count, s.padded - s.count);
        CHECK(pad.abs().sum().item<float>() == 0.0f);
    }
}

TEST_CASE("later backward passes of a step add into the flat gradients themselves") {
    Net net;
    flat_store flat(*net);
    flat.expect_gradients();
    const auto batch = numbers{}.batch(std::vector<std::uint64_t>{1, 2, 3});
    class_loss(net, batch).backward();
    const auto once = flat.grads_P().clone();
    CHECK(once.abs().sum().item<float>() > 0.0f);
    // A marker in the padding-free first element: a copy over it would lose it.
    flat.grads_P()[0] += 1000.0;
    class_loss(net, batch).backward();
    auto twice = once * 2;
    twice[0] += 1000.0;
    CHECK(torch::allclose(flat.grads_P(), twice, 1e-6, 1e-3));
}

TEST_CASE("the squared norm is exact for many equal numbers, for any number of threads") {
    const auto many = torch::full({(1 << 26) + 5}, 0.1, torch::kFloat);
    const double v = 0.1f, exact = v * v * static_cast<double>(many.numel());
    const double one = squared_norm(many);
    CHECK(std::abs(one / exact - 1) < 1e-12);
    at::set_num_threads(2);
    CHECK(squared_norm(many) == one);
    at::set_num_threads(1);
    CHECK(squared_norm(torch::tensor({3.0f, 4.0f})) == 25.0);
    CHECK(squared_norm(torch::empty({0})) == 0.0);
}

TEST_CASE("freezing a parameter changes the layout's hash") {
    Net plain, frozen;
    frozen->in->weight.set_requires_grad(false); // the first of all: the same sequence of names
    flat_store a(*plain), b(*frozen);
    CHECK(a.layout_hash() != b.layout_hash());
}

TEST_CASE("a module's own zero_grad does not detach the gradients for good") {
    Net net;
    flat_store flat(*net);
    net->zero_grad(/*set_to_none=*/true);
    class_loss(net, numbers{}.batch(std::vector<std::uint64_t>{5})).backward();
    CHECK(flat.grads_P().abs().sum().item<float>() > 0.0f);
}

TEST_CASE("fresh gradients are copied into place, later ones of the step are added, missing ones "
          "are zero") {
    struct module : torch::nn::Module {
        module() {
            used = register_parameter("used", torch::ones({20}));
            unused = register_parameter("unused", torch::ones({20}));
        }
        torch::Tensor used, unused;
    } m;
    flat_store flat(m);
    for (int step = 1; step <= 2; ++step) {
        flat.grads_P().fill_(123.0); // whatever was there before
        flat.expect_gradients();
        for (int micro = 0; micro < 3; ++micro) (m.used * m.used * step).sum().backward();
        flat.settle_gradients();
        CHECK(m.used.grad().eq(3.0 * 2.0 * step).all().item<bool>());
        CHECK(m.unused.grad().eq(0.0).all().item<bool>());
        for (const auto& p : m.parameters())
            CHECK(p.grad().storage().is_alias_of(flat.grads_P().storage()));
    }
}

TEST_CASE("storage that is gone leaves a module that still trains") {
    Net net;
    { flat_store flat(*net); }
    net->zero_grad();
    class_loss(net, numbers{}.batch(std::vector<std::uint64_t>{5})).backward();
    CHECK(net->in->weight.grad().abs().sum().item<float>() > 0.0f);
}

struct TiedImpl : torch::nn::Module {
    TiedImpl() : a(4, 4) {
        register_module("a", a);
        b = register_parameter("b", a->weight);
    }
    torch::nn::Linear a;
    torch::Tensor b;
};

TEST_CASE("a tied parameter is stored once") {
    TiedImpl tied;
    flat_store flat(tied);
    CHECK(flat.segments().size() == 2);
    CHECK(flat.trainable() == 4 * 4 + 4);
}

TEST_CASE("different tensors in the same memory are refused with a way out") {
    struct module : torch::nn::Module {
        module() {
            a = register_parameter("a", torch::ones({4}));
            b = register_parameter("b", a.detach().clone());
            b.set_data(a.detach());
        }
        torch::Tensor a, b;
    } aliased;
    try {
        flat_store flat(aliased);
        FAIL("accepted");
    } catch (const sk::error& e) {
        CHECK(e.code() == sk::errc::not_supported);
        CHECK(std::string(e.what()).find("one tensor in both places") != std::string::npos);
    }
}

TEST_CASE("frozen parameters and buffers are fixed, not trained") {
    struct module : torch::nn::Module {
        module() {
            register_parameter("free", torch::ones({4}));
            register_parameter("frozen", torch::ones({3}), false);
            register_buffer("count", torch::zeros({1}, torch::kLong));
        }
    } m;
    flat_store flat(m);
    CHECK(flat.segments().size() == 1);
    REQUIRE(flat.fixed().size() == 2);
    CHECK(flat.fixed()[0].name == "frozen");
    CHECK_FALSE(flat.fixed()[0].is_buffer);
    CHECK(flat.fixed()[1].is_buffer);
}

TEST_CASE("a model without a trainable parameter, or of another type, is refused") {
    struct module : torch::nn::Module {
    } empty;
    CHECK_THROWS_AS(flat_store(empty), sk::error);
    struct doubles : torch::nn::Module {
        doubles() { register_parameter("d", torch::ones({2}, torch::kDouble)); }
    } d;
    try {
        flat_store flat(d);
        FAIL("accepted");
    } catch (const sk::error& e) {
        CHECK(e.code() == sk::errc::not_supported);
    }
}

TEST_CASE("the layout hash tells another order of buffers") {
    const auto with_buffers = [](const char* first, const char* second) {
        torch::nn::Linear net(4, 4);
        net->register_buffer(first, torch::zeros({4}));
        net->register_buffer(second, torch::zeros({4}));
        return flat_store(*net).layout_hash();
    };
    CHECK(with_buffers("mean", "count") == with_buffers("mean", "count"));
    CHECK(with_buffers("mean", "count") != with_buffers("count", "mean"));
}

TEST_CASE("the layout hash tells other shapes and names") {
    Net a, b;
    flat_store fa(*a), fb(*b);
    CHECK(fa.layout_hash() == fb.layout_hash());
    torch::nn::Linear other(8, 16);
    flat_store changed(*other);
    CHECK(changed.layout_hash() != fa.layout_hash());
}

namespace {
/// Units of two parameters each; the last may have one.
unit_plan pairs(torch::nn::Module&, const std::vector<plan_parameter>& parameters) {
    unit_plan plan;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (i % 2 == 0) plan.names.push_back(parameters[i].name);
        plan.unit_of.push_back(i / 2);
    }
    return plan;
}
} // namespace

TEST_CASE("what the ranks own of a store is together everything, each part whole rows") {
    for (const int shards : {1, 2, 3, 5}) {
        std::vector<std::int64_t> owned; // by segment of the store
        std::vector<std::vector<float>> seen;
        for (int shard = 0; shard < shards; ++shard) {
            torch::manual_seed(3);
            Net net;
            flat_store flat(*net, {.plan = pairs, .shards = shards, .shard = shard});
            CHECK(flat.units().size() == 3);
            owned.resize(flat.segments().size(), 0);
            std::int64_t at = 0;
            for (const auto& piece : flat.pieces()) {
                const auto& s = flat.segments()[piece.segment];
                CHECK(piece.first == owned[piece.segment]); // in rank order, without a gap
                owned[piece.segment] += piece.count;
                CHECK(piece.first % s.row == 0);
                CHECK(piece.count % s.row == 0);
                CHECK(piece.flat == s.offset + piece.first);
                CHECK(piece.at >= at);
                at = piece.at + piece.padded;
            }
            CHECK(at == flat.owned());
            CHECK(flat.is_sharded() == (shards > 1));
        }
        Net net;
        flat_store whole(*net, {.plan = pairs});
        for (std::size_t i = 0; i < owned.size(); ++i) CHECK(owned[i] == whole.segments()[i].count);
    }
}

TEST_CASE("units that take turns in two places keep what is owned of each, padding zero") {
    torch::manual_seed(3);
    Net net, plain;
    {
        torch::NoGradGuard no_grad;
        for (std::size_t i = 0; i < plain->parameters().size(); ++i)
            plain->parameters()[i].copy_(net->parameters()[i]);
    }
    // One parameter per unit, so that places of other sizes follow each other.
    const auto each = [](torch::nn::Module&, const std::vector<plan_parameter>& parameters) {
        unit_plan plan;
        for (const auto& p : parameters) {
            plan.unit_of.push_back(plan.names.size());
            plan.names.push_back(p.name);
        }
        return plan;
    };
    flat_store flat(*net, {.plan = each, .gradient_places = 2});
    CHECK(flat.grads_P().numel() == 2 * 8 * 16); // twice the largest
    const auto batch = numbers{}.batch(std::vector<std::uint64_t>{1, 2, 3});
    flat.ask_before([](std::size_t) { return false; }); // nobody may settle: all at the end
    flat.expect_gradients();
    for (int micro = 0; micro < 2; ++micro) {
        class_loss(net, batch).backward();
        for (auto u = flat.units().rbegin(); u != flat.units().rend(); ++u) {
            flat.settle_gradients(*u);
            flat.take_gradients(*u, micro > 0);
        }
    }
    class_loss(plain, batch).backward();
    double square = 0;
    for (const auto& piece : flat.pieces()) {
        const auto& s = flat.segments()[piece.segment];
        const auto wanted = plain->parameters()[s.registered].grad().flatten() * 2;
        const auto got = flat.own_grads(piece);
        CHECK(torch::allclose(got.narrow(0, 0, piece.count), wanted, 1e-6, 1e-6));
        CHECK(got.narrow(0, piece.count, piece.padded - piece.count).abs().sum().item<float>() ==
              0.0f);
        CHECK_FALSE(s.parameter.grad().defined());
        square += wanted.pow(2).sum().item<double>();
    }
    CHECK(std::abs(flat.own_squared_norm() / square - 1) < 1e-5);
}

TEST_CASE("a unit that is not shown cannot be computed with, and comes back with its values") {
    Net net;
    flat_store flat(*net);
    const auto x = numbers{}.batch(std::vector<std::uint64_t>{1}).x;
    const auto before = net->forward(x);
    flat.show(flat.units()[0], false);
    CHECK_THROWS(net->forward(x));
    flat.show(flat.units()[0], true);
    CHECK(torch::equal(net->forward(x), before));
}
