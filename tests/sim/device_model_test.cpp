// SPDX-License-Identifier: Apache-2.0
// label: cuda
// What the model of a device finds that a device does not tell.
#include <skein/sim/device_model.hpp>

#include "support/device_buffers.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>

#include <memory>
#include <set>
#include <string>
#include <vector>

using namespace skein;
using namespace skein::dist;

namespace device_model_test {

/// One device, two streams, an event and 64 bytes.
struct bench {
    explicit bench(std::uint64_t seed = 1, int devices = 1)
        : model({.devices = devices, .seed = seed, .is_one_thread = true}), cuda(model.cuda()),
          nccl(model.nccl()) {
        (void)cuda.stream_create(&a, cuda_stream_non_blocking);
        (void)cuda.stream_create(&b, cuda_stream_non_blocking);
        (void)cuda.event_create(&event, cuda_event_disable_timing);
        (void)cuda.allocate(&memory, 64);
    }
    void write(cuda_stream on, const std::string& what) const {
        model.launch(on, what, {{memory, 64, true}}, [] {});
    }
    void read(cuda_stream on, const std::string& what) const {
        model.launch(on, what, {{memory, 64, false}}, [] {});
    }
    [[nodiscard]] std::string first_complaint() const {
        const auto all = model.complaints();
        return all.empty() ? "" : all.front();
    }
    bool complains(const std::string& part) const {
        return first_complaint().find(part) != std::string::npos;
    }

    sim::device_model model;
    cuda_runtime cuda;
    nccl_library nccl;
    cuda_stream a = nullptr, b = nullptr;
    cuda_event event = nullptr;
    void* memory = nullptr;
};

/// A communicator of every device, ready.
std::vector<nccl_comm> communicators(const bench& on, int n) {
    nccl_unique_id id{};
    (void)on.nccl.unique_id(&id);
    std::vector<nccl_comm> made(static_cast<std::size_t>(n));
    nccl_config config;
    config.blocking = 0;
    for (int r = 0; r < n; ++r) {
        (void)on.cuda.set_device(r);
        (void)on.nccl.init_rank(&made[static_cast<std::size_t>(r)], n, id, r, &config);
    }
    for (const auto comm : made) {
        auto state = nccl_result::in_progress;
        while (state == nccl_result::in_progress) (void)on.nccl.async_error(comm, &state);
    }
    (void)on.cuda.set_device(0);
    return made;
}

void settle(const bench& on, nccl_comm comm) {
    auto state = nccl_result::in_progress;
    while (state == nccl_result::in_progress) (void)on.nccl.async_error(comm, &state);
}

} // namespace device_model_test

using device_model_test::bench;

TEST_CASE("a model finds that two streams touch memory with no event between them") {
    const bench on(GENERATE(range(1u, 9u)));
    on.write(on.a, "a write");
    on.read(on.b, "a read");
    CHECK(on.first_complaint() ==
          "a write and a read touch the same memory and no event is between them");
}

TEST_CASE("an event between two streams is enough for the model") {
    const bench on(GENERATE(range(1u, 9u)));
    on.write(on.a, "a write");
    CHECK(on.cuda.event_record(on.event, on.a) == cuda_result::success);
    CHECK(on.cuda.stream_wait_event(on.b, on.event, 0) == cuda_result::success);
    on.read(on.b, "a read");
    CHECK(on.model.complaints().empty());
    on.write(on.a, "a late write"); // the read is not behind the event
    CHECK(on.complains("a read and a late write touch"));
}

TEST_CASE("reads need no event between them") {
    const bench on;
    on.read(on.a, "one");
    on.read(on.b, "another");
    CHECK(on.model.complaints().empty());
}

TEST_CASE("a model finds an event that was recorded before the work") {
    const bench on;
    CHECK(on.cuda.event_record(on.event, on.a) == cuda_result::success);
    on.write(on.a, "a write");
    CHECK(on.cuda.stream_wait_event(on.b, on.event, 0) == cuda_result::success);
    on.read(on.b, "a read");
    CHECK(on.complains("a write and a read"));
}

TEST_CASE("memory that is released while work may touch it is found, until the host knows better") {
    {
        const bench on;
        on.write(on.a, "a write");
        CHECK(on.cuda.release(on.memory) == cuda_result::success);
        CHECK(on.complains("memory released under a write, which is in flight"));
    }
    const bench on;
    on.write(on.a, "a write");
    CHECK(on.cuda.event_record(on.event, on.a) == cuda_result::success);
    CHECK(on.cuda.event_synchronize(on.event) == cuda_result::success);
    CHECK(on.cuda.release(on.memory) == cuda_result::success);
    CHECK(on.model.complaints().empty());
    on.read(on.b, "a read");
    CHECK(on.complains("a read on memory that was released"));
}

TEST_CASE("memory of another device, of the host, or beyond its end is found") {
    const bench on(1, 2);
    on.model.launch(on.a, "a long read", {{on.memory, 65, false}}, [] {});
    CHECK(on.complains("a long read beyond the end"));
    const bench other(1, 2);
    (void)other.cuda.set_device(1);
    cuda_stream there = nullptr;
    (void)other.cuda.stream_create(&there, cuda_stream_non_blocking);
    other.read(there, "a read");
    CHECK(other.complains("a read of device 1 on memory of device 0"));
    const bench third;
    int pageable = 0;
    CHECK(third.cuda.copy_async(third.memory, &pageable, 4, cuda_copy::automatic, third.a) ==
          cuda_result::success);
    CHECK(third.complains("a copy of pageable memory"));
}

TEST_CASE("the host that reads pinned memory before its copy has ended is found") {
    const bench on;
    void* pinned = nullptr;
    (void)on.cuda.allocate_host(&pinned, 64, 0);
    (void)on.cuda.copy_async(pinned, on.memory, 64, cuda_copy::device_to_host, on.a);
    on.model.host_touches({pinned, 64, false}, "a look");
    CHECK(on.complains("a copy and a look touch"));
}

TEST_CASE("seeds choose the order of streams, and each stream keeps its own") {
    std::set<std::string> orders;
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
        const bench on(seed);
        std::string order;
        for (const char step : {'1', '2'})
            on.model.launch(on.a, "a", {}, [&order, step] { order += step; });
        for (const char step : {'x', 'y'})
            on.model.launch(on.b, "b", {}, [&order, step] { order += step; });
        while (on.model.run_one()) {}
        CHECK(order.find('1') < order.find('2'));
        CHECK(order.find('x') < order.find('y'));
        orders.insert(order);
    }
    CHECK(orders.size() == 6); // all that there are
}

TEST_CASE("who waits for what cannot come is told so") {
    const bench on(1, 2);
    const auto comms = device_model_test::communicators(on, 2);
    CHECK(on.nccl.all_reduce(on.memory, on.memory, 16, nccl_type::f32, nccl_op::sum, comms[0],
                             on.a) != nccl_result::invalid_argument);
    device_model_test::settle(on, comms[0]);
    CHECK(on.cuda.stream_synchronize(on.a) == cuda_result::launch_failure);
    CHECK(on.complains("the host waits for work that cannot end"));
}

TEST_CASE("a call that is in progress is not yet on its stream") {
    int late = 0;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        const bench on(seed);
        const auto comms = device_model_test::communicators(on, 1);
        const auto outcome = on.nccl.all_reduce(on.memory, on.memory, 16, nccl_type::f32,
                                                nccl_op::sum, comms[0], on.a);
        (void)on.cuda.event_record(on.event, on.a);
        device_model_test::settle(on, comms[0]);
        (void)on.cuda.stream_wait_event(on.b, on.event, 0);
        on.read(on.b, "a read");
        const bool is_late = outcome == nccl_result::in_progress;
        CHECK(is_late == on.complains("all_reduce of rank 0 and a read touch"));
        late += is_late ? 1 : 0;
    }
    CHECK(late > 0);
    CHECK(late < 20);
}

TEST_CASE("unlike calls hang or give wrong numbers, as NCCL's do") {
    int hung = 0, wrong = 0;
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
        const bench on(seed, 2);
        const auto comms = device_model_test::communicators(on, 2);
        (void)on.cuda.set_device(1);
        cuda_stream there = nullptr;
        void* other = nullptr;
        (void)on.cuda.stream_create(&there, cuda_stream_non_blocking);
        (void)on.cuda.allocate(&other, 64);
        (void)on.nccl.all_reduce(on.memory, on.memory, 16, nccl_type::f32, nccl_op::sum, comms[0],
                                 on.a);
        (void)on.nccl.all_reduce(other, other, 8, nccl_type::f32, nccl_op::sum, comms[1], there);
        for (const auto comm : comms) device_model_test::settle(on, comm);
        while (on.model.run_one()) {}
        CHECK(on.model.complaints().empty()); // nobody says so
        on.model.pending() > 0 ? ++hung : ++wrong;
    }
    CHECK(hung > 0);
    CHECK(wrong > 0);
}

TEST_CASE("communicators of a process that are aborted one by one would wait for each other") {
    for (const bool in_a_group : {false, true}) {
        const bench on(3, 2);
        const auto first = device_model_test::communicators(on, 2);
        const auto second = device_model_test::communicators(on, 2);
        (void)on.nccl.all_reduce(on.memory, on.memory, 16, nccl_type::f32, nccl_op::sum, first[0],
                                 on.a);
        device_model_test::settle(on, first[0]);
        void* other = nullptr;
        (void)on.cuda.allocate(&other, 64);
        (void)on.nccl.all_reduce(other, other, 16, nccl_type::f32, nccl_op::sum, second[0], on.b);
        device_model_test::settle(on, second[0]);
        if (in_a_group) (void)on.nccl.group_start();
        (void)on.nccl.abort(first[0]);
        (void)on.nccl.abort(second[0]);
        if (in_a_group) (void)on.nccl.group_end();
        CHECK(on.complains("aborted alone") == !in_a_group);
        CHECK(on.cuda.stream_synchronize(on.a) == cuda_result::success); // kernels leave
        CHECK(on.cuda.stream_synchronize(on.b) == cuda_result::success);
    }
}

TEST_CASE("two ranks of one device are refused, as NCCL does") {
    const bench on;
    nccl_unique_id id{};
    (void)on.nccl.unique_id(&id);
    nccl_config config;
    config.blocking = 0;
    nccl_comm one = nullptr, two = nullptr;
    CHECK(on.nccl.init_rank(&one, 2, id, 0, &config) == nccl_result::in_progress);
    CHECK(on.nccl.init_rank(&two, 2, id, 1, &config) == nccl_result::invalid_usage);
    CHECK(on.complains("Duplicate GPU detected"));
}
