// SPDX-License-Identifier: Apache-2.0
// label: cuda
// DDP and FSDP over NCCL's table and the streams of a modelled device, with shared memory beside it
// for the row of a step, call what they call over shared memory, and train the same; so they do where
// buffers of a device that ranks share go through pinned memory of the host.
#include <tests/train/train_support.hpp>

#include <skein/dist/host_communicator.hpp>
#include <skein/dist/models.hpp>
#include <skein/dist/nccl_model.hpp>
#include <skein/sim/device_model.hpp>
#include <skein/train/fsdp.hpp>
#include <skein/train/unit.hpp>

#include "support/staged_communicator.hpp"

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace device_collectives_test {

using namespace train_test;
namespace dist = skein::dist;
using skein::test::call_list, skein::test::staged_communicator;

/// Blocks that are gathered and dropped.
struct BlockImpl : torch::nn::Module {
    BlockImpl() : in(8, 8) { register_module("in", in); }
    torch::Tensor forward(const torch::Tensor& x) { return x + torch::tanh(in(x)); }
    torch::nn::Linear in;
};
TORCH_MODULE_IMPL(Block, skein::unit<BlockImpl>);
struct StackImpl : torch::nn::Module {
    StackImpl() : out(8, 4) {
        int number = 0;
        for (auto* each : {&first, &second, &third})
            *each = register_module("block" + std::to_string(number++), Block());
        register_module("out", out);
    }
    torch::Tensor forward(const torch::Tensor& x) { return out(third(second(first(x)))); }
    Block first{nullptr}, second{nullptr}, third{nullptr};
    torch::nn::Linear out;
};
TORCH_MODULE(Stack);

/// The same weights every time.
Stack make_stack() {
    const std::lock_guard lock(model_guard);
    torch::manual_seed(42);
    return Stack();
}

/// What the communicators of one run share.
struct run_place {
    explicit run_place(int ranks)
        : devices({.devices = ranks}), lists(static_cast<std::size_t>(ranks)) {
        for (int r = 0; r < ranks; ++r)
            domains.push_back(std::make_shared<dist::nccl_domain>(devices.cuda(), devices.nccl(),
                                                                  devices.math()));
    }
    /// One list for each communicator that a rank makes, in their order.
    call_list& list_for(int rank) {
        const std::lock_guard lock(guard);
        return lists[static_cast<std::size_t>(rank)].emplace_back();
    }
    skein::sim::device_model devices;
    std::vector<std::shared_ptr<dist::nccl_domain>> domains; // each rank is a process of its own
    std::mutex guard;
    std::vector<std::deque<call_list>> lists; // by rank
};
run_place* place_now = nullptr; // models are added once for the program

/// The list of models has no names taken away: they are added once.
void add_models() {
    static const bool added = [] {
        const auto fits = [](const dist::comm_site& site) {
            return site.options.model == "automatic" ? dist::comm_fit{0, "it is for a test"}
                                                     : dist::comm_fit{};
        };
        dist::add_comm_model({"staged-shm", fits, [](const dist::comm_site& site) {
                                  auto options = site.options;
                                  options.model = "shm";
                                  const dist::comm_site of{site.world,       options,
                                                           site.worker,      site.where,
                                                           site.one_network, site.key};
                                  auto& calls = place_now->list_for(site.world.rank());
                                  return std::make_unique<staged_communicator>(
                                      dist::choose_comm_model(of).make(of), calls);
                              }});
        dist::add_comm_model(
            {"staged-host", fits, [](const dist::comm_site& site) {
                 auto options = site.options;
                 options.model = "shm";
                 const dist::comm_site of{site.world, options,          site.worker,
                                          site.where, site.one_network, site.key};
                 const auto cuda = place_now->devices.cuda();
                 dist::cuda_stream work = nullptr;
                 dist::cuda_check(cuda, cuda.set_device(0), "a device");
                 dist::cuda_check(cuda, cuda.stream_create(&work, dist::cuda_stream_non_blocking),
                                  "a stream");
                 auto over = std::make_unique<dist::host_communicator>(
                     dist::choose_comm_model(of).make(of), [cuda] { return cuda; },
                     site.options.limits, work);
                 auto& calls = place_now->list_for(site.world.rank());
                 return std::make_unique<staged_communicator>(std::move(over), calls, cuda, 0,
                                                              work);
             }});
        dist::add_comm_model(
            {"staged-nccl", fits, [](const dist::comm_site& site) {
                 // Gathers and reductions of a rank have one work stream, the device's default one,
                 // as LibTorch's kernels do.
                 const int rank = site.world.rank();
                 auto options = site.options;
                 options.limits.deadline = std::chrono::seconds(60);
                 const dist::comm_site of{site.world, options,          site.worker,
                                          site.where, site.one_network, site.key};
                 const auto over = dist::nccl_model([&](const dist::comm_site&) {
                     dist::nccl_place where;
                     where.domain = place_now->domains[static_cast<std::size_t>(rank)];
                     where.where.device = rank;
                     return where;
                 });
                 auto& calls = place_now->list_for(rank);
                 return std::make_unique<staged_communicator>(over.make(of), calls,
                                                              place_now->devices.cuda(), rank,
                                                              nullptr, /*words_stay=*/true);
             }});
        return true;
    }();
    (void)added;
}

struct trained {
    std::vector<std::vector<float>> weights;                  // by rank
    std::vector<double> losses;                               // by rank
    std::vector<std::vector<std::vector<std::string>>> calls; // by rank and communicator
    std::vector<std::string> complaints;
};

template <class Strategy>
trained train(int ranks, const std::string& model) {
    add_models();
    run_place place(ranks);
    place_now = &place;
    scratch dir;
    auto config = quiet_config(dir.path);
    config.max_steps = 20;
    const auto n = static_cast<std::size_t>(ranks);
    trained out{std::vector<std::vector<float>>(n), std::vector<double>(n), {}, {}};
    run_world(
        ranks,
        [&](context& ctx) {
            auto net = make_stack();
            skein::Trainer<Strategy> trainer(ctx, config);
            const auto result = trainer.fit(net, skein::AdamW{}, constant_rate{1e-2}, class_loss,
                                            numbers{64}, numbers{0});
            const auto mine = static_cast<std::size_t>(ctx.rank());
            out.losses[mine] = result.loss;
            out.weights[mine] = weights(*net);
        },
        model);
    for (const auto& lists : place.lists) {
        auto& mine = out.calls.emplace_back();
        for (const auto& list : lists) mine.push_back(list.lines());
    }
    out.complaints = place.devices.complaints();
    place_now = nullptr;
    return out;
}

/// exact: the sums are made by the same communicator.
template <class Strategy>
void compare(int ranks, const std::string& model, bool exact) {
    const auto memory = train<Strategy>(ranks, "staged-shm");
    const auto device = train<Strategy>(ranks, model);
    CHECK(device.complaints == std::vector<std::string>{});
    for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r) {
        INFO("rank " << r << " of " << ranks);
        REQUIRE(device.calls[r].size() == memory.calls[r].size());
        for (std::size_t c = 0; c < memory.calls[r].size(); ++c) {
            CHECK(memory.calls[r][c].size() > 20);
            CHECK(device.calls[r][c] == memory.calls[r][c]);
        }
        CHECK(relative_error(device.weights[r], memory.weights[r]) <= (exact ? 0.0 : 1e-5));
        CHECK(std::abs(device.losses[r] - memory.losses[r]) <= (exact ? 0.0 : 1e-5));
    }
}

} // namespace device_collectives_test

TEST_CASE("DDP over NCCL's table calls and trains what it does over shared memory") {
    using namespace device_collectives_test;
    for (const int ranks : {2, 4})
        compare<skein::DDP<tiny_buckets>>(ranks, "staged-nccl", ranks == 2);
}

TEST_CASE("FSDP over NCCL's table calls and trains what it does over shared memory") {
    using namespace device_collectives_test;
    for (const int ranks : {2, 4})
        compare<skein::FSDP<skein::auto_wrap<Block>>>(ranks, "staged-nccl", ranks == 2);
}

TEST_CASE("buffers of a device that ranks share, through the host, are what they are over memory") {
    using namespace device_collectives_test;
    compare<skein::DDP<tiny_buckets>>(2, "staged-host", true);
    compare<skein::FSDP<skein::auto_wrap<Block>>>(2, "staged-host", true);
}
