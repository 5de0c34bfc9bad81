// SPDX-License-Identifier: Apache-2.0
#include <tests/train/train_support.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace train_test;

TEST_CASE("parameters become views of one buffer and keep their values") {
    torch::manual_seed(3);
    Net net;
    const auto before = weights(*net);
    flat_storage flat(*net);
    CHECK(weights(*net) == before);
    CHECK(flat.trainable() == 8 * 16 + 16 + 16 + 16 + 16 * 4 + 4);
    for (const auto& s : flat.segments()) {
        CHECK(s.parameter.storage().is_alias_of(flat.params_P().storage()));
        CHECK(s.parameter.storage_offset() == s.offset);
        CHECK(s.offset % flat_storage::alignment == 0);
    }
    flat.params_P().fill_(2.0);
    for (float w : weights(*net)) CHECK(w == 2.0f);
}

TEST_CASE("the buffer's order is the reverse of registration and its padding stays zero") {
    Net net;
    flat_storage flat(*net);
    CHECK(flat.segments().front().name == "out.bias");
    CHECK(flat.segments().back().name == "in.weight");
    flat.expect_gradients();
    class_loss(net, numbers{}.batch(std::vector<std::uint64_t>{1, 2, 3})).backward();
    for (const auto& s : flat.segments()) {
        const auto pad = flat.grads_P().narrow(0, s.offset + s.count, s.padded - s.count);
        CHECK(pad.abs().sum().item<float>() == 0.0f);
    }
}

TEST_CASE("later backward passes of a step add into the flat gradients themselves") {
    Net net;
    flat_storage flat(*net);
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
    flat_storage a(*plain), b(*frozen);
    CHECK(a.layout_hash() != b.layout_hash());
}

TEST_CASE("a module's own zero_grad does not detach the gradients for good") {
    Net net;
    flat_storage flat(*net);
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
    flat_storage flat(m);
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
    { flat_storage flat(*net); }
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
    flat_storage flat(tied);
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
        flat_storage flat(aliased);
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
    flat_storage flat(m);
    CHECK(flat.segments().size() == 1);
    REQUIRE(flat.fixed().size() == 2);
    CHECK(flat.fixed()[0].name == "frozen");
    CHECK_FALSE(flat.fixed()[0].is_buffer);
    CHECK(flat.fixed()[1].is_buffer);
}

TEST_CASE("a model without a trainable parameter, or of another type, is refused") {
    struct module : torch::nn::Module {
    } empty;
    CHECK_THROWS_AS(flat_storage(empty), sk::error);
    struct doubles : torch::nn::Module {
        doubles() { register_parameter("d", torch::ones({2}, torch::kDouble)); }
    } d;
    try {
        flat_storage flat(d);
        FAIL("accepted");
    } catch (const sk::error& e) {
        CHECK(e.code() == sk::errc::not_supported);
    }
}

TEST_CASE("the layout hash tells other shapes and names") {
    Net a, b;
    flat_storage fa(*a), fb(*b);
    CHECK(fa.layout_hash() == fb.layout_hash());
    torch::nn::Linear other(8, 16);
    flat_storage fo(*other);
    CHECK(fo.layout_hash() != fa.layout_hash());
}
