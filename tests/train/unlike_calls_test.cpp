// SPDX-License-Identifier: Apache-2.0
// label: cuda
// Ranks that call unlike things on a communicator that compares nothing: an error before the step is
// applied. The communicator is that over NCCL's table, on a model of devices.
#include <tests/train/train_support.hpp>

#include <skein/dist/call_record.hpp>
#include <skein/dist/nccl_model.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/sim/device_model.hpp>

#include <tests/support/device_buffers.hpp>

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace unlike_calls_test {

namespace dist = skein::dist;
using train_test::Net, train_test::sample_batch, train_test::context;

/// A communicator of three ranks over three modelled devices, made by one of the ranks.
std::unique_ptr<dist::comm_thread> connect(const skein::sim::device_model& model,
                                           skein::sim::local_world& world, int rank) {
    const auto made = dist::nccl_model([&](const dist::comm_site& site) {
        dist::nccl_place place;
        place.domain =
            std::make_shared<dist::nccl_domain>(model.cuda(), model.nccl(), model.math());
        place.where.device = site.world.rank();
        return place;
    });
    dist::comm_options options;
    options.model = "nccl";
    options.limits.deadline = std::chrono::seconds(2); // some unlike calls hang
    auto worker = std::make_unique<skein::net::loop_thread>("test-nccl");
    dist::comm_site site{
        .world = world.at(rank), .options = options, .worker = *worker, .where = {}};
    site.where = dist::placement::from({"a", "a", "a"}, rank);
    site.key = "unlike";
    auto comm = made.make(site);
    return std::make_unique<dist::comm_thread>(std::move(worker), std::move(comm));
}

/// What a rank does on the device in one step; `other`: as the odd one out.
using device_calls = std::function<void(dist::comm_thread&, const dist::cuda_runtime&, bool other)>;

struct outcome {
    std::vector<std::optional<skein::error>> errors;
    std::vector<std::vector<float>> last; // weights by rank, when it ended
    std::vector<float> after_one;         // weights behind the first step
};

struct keep_first {
    std::vector<float>* weights;
    const Net* net;
    void on_step(const skein::train::step_info& s) {
        if (s.step == 1 && s.rank == 0) *weights = train_test::weights(**net);
    }
};

/// Three ranks train; in the second step rank 2 is the odd one out.
outcome train(const device_calls& calls) {
    const skein::sim::device_model model({.devices = 3});
    skein::sim::local_world devices(3);
    train_test::scratch dir;
    auto config = train_test::quiet_config(dir.path);
    config.max_steps = 3;
    outcome out;
    out.last.resize(3);
    out.errors = train_test::try_world(3, [&](context& ctx) {
        const int rank = ctx.rank();
        const auto cuda = model.cuda();
        dist::cuda_check(cuda, cuda.set_device(rank), "a device current");
        const auto comm = connect(model, devices, rank);
        ctx.watch_calls(dist::calls_of(*comm));
        auto net = train_test::make_net();
        int step = 0;
        const auto loss = [&](Net& m, const sample_batch& b) {
            step += 1;
            calls(*comm, cuda, step == 2 && rank == 2);
            return train_test::class_loss(m, b);
        };
        skein::Trainer<skein::DDP<>, keep_first> trainer(ctx, config,
                                                         keep_first{&out.after_one, &net});
        try {
            (void)trainer.fit(net, skein::AdamW{}, skein::train::constant_rate{1e-2}, loss,
                              train_test::numbers{64}, train_test::numbers{0});
        } catch (...) {
            out.last[static_cast<std::size_t>(rank)] = train_test::weights(*net);
            throw;
        }
        out.last[static_cast<std::size_t>(rank)] = train_test::weights(*net);
    });
    return out;
}

dist::buffer_view view(const auto& of) { return of.view(); }

} // namespace unlike_calls_test

TEST_CASE("ranks that call the same on a communicator that compares nothing train as without it") {
    using namespace unlike_calls_test;
    const auto out = train([](dist::comm_thread& comm, const dist::cuda_runtime& cuda, bool) {
        skein::test::device_vector<float> io(cuda, nullptr, {1, 2, 3, 4});
        comm.all_reduce(view(io), dist::reduce_op::sum).wait();
        comm.broadcast(view(io), 1).wait();
    });
    for (const auto& e : out.errors) {
        INFO((e ? e->what() : ""));
        CHECK(!e);
    }
    CHECK(out.last[0] == out.last[2]);
    CHECK(out.last[0] != out.after_one);
}

TEST_CASE("an unlike call of one rank is an error before the step is applied") {
    using namespace unlike_calls_test;
    using io = skein::test::device_vector<float>;
    using whole = skein::test::device_vector<std::int64_t>;
    struct row {
        const char* what;
        device_calls calls;
    };
    const row rows[] = {
        {"size",
         [](auto& comm, const auto& cuda, bool other) {
             io data(cuda, nullptr, {1, 2, 3, 4});
             comm.all_reduce(view(data).slice(0, other ? 3 : 4), dist::reduce_op::sum).wait();
         }},
        {"type",
         [](auto& comm, const auto& cuda, bool other) {
             io data(cuda, nullptr, {1, 2, 3, 4});
             whole numbers(cuda, nullptr, {1, 2});
             comm.all_reduce(other ? view(numbers) : view(data), dist::reduce_op::sum).wait();
         }},
        {"order",
         [](auto& comm, const auto& cuda, bool other) {
             io data(cuda, nullptr, {1, 2, 3, 4});
             if (other) comm.broadcast(view(data), 0).wait();
             comm.all_reduce(view(data), dist::reduce_op::sum).wait();
             if (!other) comm.broadcast(view(data), 0).wait();
         }},
        {"root",
         [](auto& comm, const auto& cuda, bool other) {
             io data(cuda, nullptr, {1, 2, 3, 4});
             comm.broadcast(view(data), other ? 1 : 0).wait();
         }},
        {"operation",
         [](auto& comm, const auto& cuda, bool other) {
             io data(cuda, nullptr, {1, 2, 3, 4});
             comm.all_reduce(view(data), other ? dist::reduce_op::max : dist::reduce_op::sum)
                 .wait();
         }},
        {"tag",
         [](auto& comm, const auto& cuda, bool other) {
             io data(cuda, nullptr, {1, 2, 3, 4});
             const dist::collective_tag tag{.unit = other ? 8u : 7u,
                                            .phase = dist::tag_phase::reduce};
             comm.all_reduce(view(data), dist::reduce_op::sum, tag).wait();
         }},
        {"nothing",
         [](auto& comm, const auto& cuda, bool other) {
             io data(cuda, nullptr, {1, 2, 3, 4});
             if (!other) comm.all_reduce(view(data).slice(0, 0), dist::reduce_op::sum).wait();
         }},
    };
    for (const auto& r : rows) {
        const auto out = train(r.calls);
        bool named = false;
        for (std::size_t rank = 0; rank < 3; ++rank) {
            INFO(r.what << ", rank " << rank << ": "
                        << (out.errors[rank] ? out.errors[rank]->what() : "no error"));
            REQUIRE(out.errors[rank]);
            CHECK(out.last[rank] == out.after_one);
            const std::string said = out.errors[rank]->what();
            named = named || said.find("over nccl x3: ranks do not agree: rank 0 is in") !=
                                 std::string::npos;
        }
        INFO(r.what << ": " << out.errors[0]->what());
        // Those that hang end by the deadline.
        const bool late = out.errors[0]->code() == skein::errc::timeout ||
                          out.errors[0]->code() == skein::errc::aborted;
        CHECK((named || late));
        if (std::string(r.what) == "tag")
            CHECK(std::string(out.errors[0]->what()).find("reduce of unit 8") != std::string::npos);
    }
}
