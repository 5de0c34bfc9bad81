// SPDX-License-Identifier: Apache-2.0
#include <tests/train/train_support.hpp>

#include <skein/train/training_state.hpp>

#include <catch2/catch_test_macros.hpp>

using namespace train_test;

namespace {

struct with_buffersImpl : torch::nn::Module {
    with_buffersImpl() : in(4, 3) {
        register_module("in", in);
        register_parameter("frozen", torch::full({2}, 3.0), false);
        counts = register_buffer("counts", torch::arange(6, torch::kLong).view({2, 3}).t());
    }
    torch::nn::Linear in;
    torch::Tensor counts;
};
TORCH_MODULE(with_buffers);

/// One run's objects over a module.
struct parts {
    explicit parts(torch::nn::Module& m, optimizer_options o = sk::AdamW{},
                   std::uint64_t samples = 40, std::uint64_t seed = 9)
        : flat(m), optimizer(o, flat), order({.samples = samples, .batch = 4, .seed = seed}),
          state(flat, optimizer, order) {}
    flat_store flat;
    flat_optimizer optimizer;
    sampler order;
    training_state state;
};

} // namespace

TEST_CASE("what is saved comes back bit for bit: tensors, buffers, optimizer, sampler") {
    scratch dir;
    skein::posix_disk disk;
    with_buffers from, to;
    parts a(*from), b(*to);
    for (const auto& s : a.flat.segments())
        flat_store::view_of(a.flat.grads_P(), s).uniform_(-1, 1);
    a.optimizer.step(1e-2);
    (void)a.order.next(0, 1);
    from->counts.add_(100);

    checkpointer saver(disk, dir.path + "/c");
    (void)saver.save(a.state.save(1, 77));
    auto found = saver.load_latest();
    REQUIRE(found);
    b.state.restore(*found);

    CHECK(weights(*to) == weights(*from));
    CHECK(torch::equal(to->counts, from->counts));
    for (std::size_t i = 0; i < a.optimizer.states().size(); ++i)
        CHECK(torch::equal(b.optimizer.states()[i].second, a.optimizer.states()[i].second));
    CHECK(b.optimizer.steps() == 1);
    CHECK(b.order.state() == a.order.state());
    CHECK(found->contains("model.in.weight"));
    CHECK(found->contains("optim.exp_avg_sq.in.bias"));
    CHECK(found->contains("model.counts"));
}

TEST_CASE(
    "a checkpoint of another model or optimizer, or of other data, is a mismatch with its path") {
    scratch dir;
    skein::posix_disk disk;
    with_buffers model;
    parts a(*model);
    checkpointer saver(disk, dir.path + "/c");
    (void)saver.save(a.state.save(1, 77));
    auto found = saver.load_latest();
    REQUIRE(found);
    const auto refused = [&](parts& p) {
        try {
            p.state.restore(*found);
        } catch (const sk::error& e) {
            return e.code() == sk::errc::mismatch && e.where() == found->path() &&
                   !e.hint().empty();
        }
        return false;
    };
    torch::nn::Linear other(4, 3);
    with_buffers same_model, same_again, same_third;
    parts other_model(*other), other_optimizer(*same_model, sk::SGD{}),
        other_data(*same_again, sk::AdamW{}, 41), other_seed(*same_third, sk::AdamW{}, 40, 8);
    CHECK(refused(other_model));
    CHECK(refused(other_optimizer));
    CHECK(refused(other_data));
    CHECK(refused(other_seed));
}

TEST_CASE("the generator of a step depends on seed, step and micro-batch alone") {
    const auto draw = [](std::uint64_t seed, std::uint64_t step, int micro_batch) {
        seed_step(seed, step, micro_batch);
        return torch::rand({4});
    };
    CHECK(torch::equal(draw(1, 2, 3), draw(1, 2, 3)));
    CHECK_FALSE(torch::equal(draw(1, 2, 3), draw(2, 2, 3)));
    CHECK_FALSE(torch::equal(draw(1, 2, 3), draw(1, 3, 3)));
    CHECK_FALSE(torch::equal(draw(1, 2, 3), draw(1, 2, 2)));
}
