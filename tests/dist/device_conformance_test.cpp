// SPDX-License-Identifier: Apache-2.0
// label: cuda
// What we believe of CUDA's streams and events and of NCCL: for the model, and for the real
// libraries where there is a device. Where the two differ, the model is wrong.
#include "ranks.hpp"

#include <skein/sim/device_model.hpp>

#include "support/device_buffers.hpp"
#include "support/device_libraries.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

using namespace skein;
using namespace skein::dist;

namespace device_conformance {

/// Libraries under test, and their devices.
struct subject {
    std::shared_ptr<sim::device_model> model; ///< null: real
    cuda_runtime cuda;
    std::optional<nccl_library> nccl;
    int devices = 0;
    bool shares = false; ///< ranks of NCCL may be on one device

    /// 0: the real libraries; else a seed of the model.
    static subject of(unsigned seed) {
        subject made;
        if (seed == 0) {
            const auto real = test::real_devices::look();
            made.cuda = *real.cuda;
            made.nccl = real.nccl;
            made.devices = real.count;
            const char* const asked = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
            made.shares = made.nccl && made.nccl->version_number >= 23000 && asked != nullptr &&
                          std::string(asked) == "1";
            return made;
        }
        sim::device_model_options how;
        how.devices = 3;
        how.seed = seed;
        made.model = std::make_shared<sim::device_model>(how);
        made.cuda = made.model->cuda();
        made.nccl = made.model->nccl();
        made.devices = how.devices;
        return made;
    }
    /// No law that a device does not tell was broken.
    ~subject() {
        if (!model) return;
        const auto all = model->complaints();
        CAPTURE(all);
        CHECK(all.empty());
    }
    subject() = default;
    subject(subject&&) = default;
    subject& operator=(subject&&) = default;

    void needs(int n) const {
        if (!nccl) SKIP("no NCCL here");
        if (devices < n && !shares) SKIP("this needs " << n << " devices, there are " << devices);
    }
};

/// The real libraries, if they have a device, and eight orders of the model.
unsigned first_subject() {
    static const bool is_real = test::real_devices::look().why_not.empty();
    return is_real ? 0 : 1;
}
#define SKEIN_DEVICE_SUBJECT() subject::of(GENERATE(range(first_subject(), 9u)))

using ints = std::vector<std::int64_t>;

/// One rank on a thread of its own, with a ready communicator.
struct rank_bench {
    rank_bench(const subject& s, const nccl_unique_id& id, int ranks, int number)
        : cuda(s.cuda), nccl(*s.nccl), rank(number), size(ranks) {
        cuda_check(cuda, cuda.set_device(rank % s.devices), "a device current");
        stream.emplace(cuda);
        nccl_config config;
        config.blocking = 0;
        nccl_check(nccl, nccl.init_rank(&comm, ranks, id, rank, &config), "a communicator");
        settle();
    }
    void settle() {
        auto state = nccl_result::in_progress;
        while (state == nccl_result::in_progress)
            nccl_check(nccl, nccl.async_error(comm, &state), "a look", comm);
        nccl_check(nccl, state, "a communicator's work", comm);
    }
    void did(nccl_result outcome) {
        nccl_check(nccl, outcome, "a call", comm);
        settle();
    }
    void leave() {
        stream->synchronize();
        did(nccl.finalize(comm));
        nccl_check(nccl, nccl.destroy(comm), "an end");
    }
    void require(bool right, const char* what) const {
        if (!right) throw error(errc::internal, what);
    }

    const cuda_runtime& cuda;
    const nccl_library& nccl;
    int rank, size;
    std::optional<test::device_stream> stream;
    nccl_comm comm = nullptr;
};

void with_ranks(const subject& s, int n, const std::function<void(rank_bench&)>& body) {
    nccl_unique_id id{};
    nccl_check(*s.nccl, s.nccl->unique_id(&id), "an id");
    ranks::event_gate made;
    const auto errors = ranks::each(n, [&](int r) {
        rank_bench bench(s, id, n, r);
        made.arrive(); // nobody leaves before all are there
        made.wait_for_others(n);
        body(bench);
        bench.leave();
    });
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}

} // namespace device_conformance

using namespace device_conformance;

TEST_CASE("what is believed of devices is asked of real ones, where there are any") {
    const auto real = test::real_devices::look();
    if (!real.why_not.empty()) SKIP("no device here: " << real.why_not);
    CHECK(first_subject() == 0);
}

TEST_CASE("work on a stream runs in its order, and is over when the stream is") {
    const auto s = SKEIN_DEVICE_SUBJECT();
    const test::device_stream on(s.cuda);
    test::device_vector<std::uint8_t> bytes(s.cuda, on, std::vector<std::uint8_t>(4096, 7));
    CHECK(s.cuda.set_async(bytes.data(), 1, 4096, on) == cuda_result::success);
    CHECK(s.cuda.set_async(bytes.data(), 2, 2048, on) == cuda_result::success);
    const auto now = bytes.read();
    CHECK(now.front() == 2);
    CHECK(now.back() == 1);
}

TEST_CASE("a stream that waits for an event sees what was before its record") {
    const auto s = SKEIN_DEVICE_SUBJECT();
    const test::device_stream one(s.cuda), two(s.cuda);
    cuda_event event = nullptr;
    REQUIRE(s.cuda.event_create(&event, cuda_event_disable_timing) == cuda_result::success);
    {
        test::device_vector<std::uint8_t> from(s.cuda, one, std::vector<std::uint8_t>(1 << 20, 7));
        test::device_vector<std::uint8_t> to(s.cuda, two, std::vector<std::uint8_t>(1 << 20, 0));
        for (int round = 1; round < 5; ++round) {
            CHECK(s.cuda.set_async(from.data(), round, from.bytes(), one) == cuda_result::success);
            CHECK(s.cuda.event_record(event, one) == cuda_result::success);
            CHECK(s.cuda.stream_wait_event(two, event, 0) == cuda_result::success);
            CHECK(s.cuda.copy_async(to.data(), from.data(), to.bytes(), cuda_copy::device_to_device,
                                    two) == cuda_result::success);
            CHECK(to.read().back() == round);
        }
    }
    CHECK(s.cuda.event_destroy(event) == cuda_result::success);
}

TEST_CASE("an event that was never recorded is over, and nobody waits for it") {
    const auto s = SKEIN_DEVICE_SUBJECT();
    const test::device_stream on(s.cuda);
    cuda_event event = nullptr;
    REQUIRE(s.cuda.event_create(&event, cuda_event_disable_timing) == cuda_result::success);
    CHECK(s.cuda.event_query(event) == cuda_result::success);
    CHECK(s.cuda.event_synchronize(event) == cuda_result::success);
    CHECK(s.cuda.stream_wait_event(on, event, 0) == cuda_result::success);
    on.synchronize();
    CHECK(s.cuda.event_destroy(event) == cuda_result::success);
}

TEST_CASE("a question after an event says not ready until it is, and never after that") {
    const auto s = SKEIN_DEVICE_SUBJECT();
    const test::device_stream on(s.cuda);
    cuda_event event = nullptr;
    REQUIRE(s.cuda.event_create(&event, cuda_event_disable_timing) == cuda_result::success);
    {
        test::device_vector<std::uint8_t> bytes(s.cuda, on, std::vector<std::uint8_t>(1 << 20, 7));
        for (int i = 0; i < 20; ++i)
            CHECK(s.cuda.set_async(bytes.data(), i, bytes.bytes(), on) == cuda_result::success);
        CHECK(s.cuda.event_record(event, on) == cuda_result::success);
        auto state = cuda_result::not_ready;
        while (state == cuda_result::not_ready) state = s.cuda.event_query(event);
        CHECK(state == cuda_result::success);
        CHECK(s.cuda.event_query(event) == cuda_result::success);
        CHECK(s.cuda.stream_query(on) == cuda_result::success);
    }
    CHECK(s.cuda.event_destroy(event) == cuda_result::success);
}

TEST_CASE("an event's stream and the event are of one device") {
    const auto s = SKEIN_DEVICE_SUBJECT();
    if (s.devices < 2) SKIP("this needs 2 devices, there are " << s.devices);
    cuda_event event = nullptr;
    REQUIRE(s.cuda.event_create(&event, cuda_event_disable_timing) == cuda_result::success);
    REQUIRE(s.cuda.set_device(1) == cuda_result::success);
    {
        const test::device_stream there(s.cuda);
        CHECK(s.cuda.event_record(event, there) == cuda_result::invalid_handle);
        (void)s.cuda.last_error();
    }
    CHECK(s.cuda.set_device(0) == cuda_result::success);
    CHECK(s.cuda.event_destroy(event) == cuda_result::success);
}

TEST_CASE("a stream that is destroyed ends its work all the same") {
    const auto s = SKEIN_DEVICE_SUBJECT();
    const test::device_stream reader(s.cuda);
    test::device_vector<std::uint8_t> bytes(s.cuda, reader, std::vector<std::uint8_t>(1 << 20, 7));
    cuda_event event = nullptr;
    REQUIRE(s.cuda.event_create(&event, cuda_event_disable_timing) == cuda_result::success);
    {
        const test::device_stream on(s.cuda);
        CHECK(s.cuda.set_async(bytes.data(), 5, bytes.bytes(), on) == cuda_result::success);
        CHECK(s.cuda.event_record(event, on) == cuda_result::success);
    }
    CHECK(s.cuda.event_synchronize(event) == cuda_result::success);
    CHECK(bytes.read().back() == 5);
    CHECK(s.cuda.event_destroy(event) == cuda_result::success);
}

TEST_CASE("a device that is full says so, and works on") {
    const auto s = SKEIN_DEVICE_SUBJECT();
    const test::device_stream on(s.cuda);
    std::size_t free = 0, total = 0;
    REQUIRE(s.cuda.memory_info(&free, &total) == cuda_result::success);
    CHECK(free <= total);
    void* all = nullptr;
    CHECK(s.cuda.allocate(&all, total + 1) == cuda_result::out_of_memory);
    (void)s.cuda.last_error();
    test::device_vector<std::uint8_t> bytes(s.cuda, on, std::vector<std::uint8_t>(64, 7));
    CHECK(bytes.read().back() == 7);
}

TEST_CASE("devices that are not there are refused") {
    const auto s = SKEIN_DEVICE_SUBJECT();
    CHECK(s.cuda.set_device(s.devices) == cuda_result::invalid_device);
    (void)s.cuda.last_error();
    CHECK(s.cuda.set_device(0) == cuda_result::success);
}

TEST_CASE("a communicator that does not block is ready when it says so, and knows its place") {
    const auto s = SKEIN_DEVICE_SUBJECT();
    s.needs(1);
    with_ranks(s, 1, [](rank_bench& b) {
        int count = 0, device = -1, rank = -1;
        nccl_check(b.nccl, b.nccl.count(b.comm, &count), "a count");
        nccl_check(b.nccl, b.nccl.device(b.comm, &device), "a device");
        nccl_check(b.nccl, b.nccl.rank(b.comm, &rank), "a rank");
        b.require(count == 1 && device == 0 && rank == 0, "another place");
    });
}

TEST_CASE("collectives of two ranks give these values") {
    const auto s = SKEIN_DEVICE_SUBJECT();
    s.needs(2);
    with_ranks(s, 2, [](rank_bench& b) {
        const std::int64_t r = b.rank;
        test::device_vector<std::int64_t> io(b.cuda, *b.stream, {r + 1, 10 * (r + 1), 5, 7 - r});
        const auto* const begin = static_cast<std::byte*>(io.data());
        b.did(b.nccl.all_reduce(io.data(), io.data(), 4, nccl_type::i64, nccl_op::sum, b.comm,
                                *b.stream));
        b.require(io.read() == ints{3, 30, 10, 13}, "all_reduce sum");
        io.write({r, -r, r, -r});
        b.did(b.nccl.all_reduce(io.data(), io.data(), 4, nccl_type::i64, nccl_op::max, b.comm,
                                *b.stream));
        b.require(io.read() == ints{1, 0, 1, 0}, "all_reduce max");
        io.write({r, -r, r, -r});
        b.did(b.nccl.all_reduce(io.data(), io.data(), 4, nccl_type::i64, nccl_op::min, b.comm,
                                *b.stream));
        b.require(io.read() == ints{0, -1, 0, -1}, "all_reduce min");

        io.write({1, 2, 3, 4});
        test::device_vector<std::int64_t> half(b.cuda, *b.stream, {0, 0});
        b.did(b.nccl.reduce_scatter(io.data(), half.data(), 2, nccl_type::i64, nccl_op::sum, b.comm,
                                    *b.stream));
        b.require(half.read() == (r == 0 ? ints{2, 4} : ints{6, 8}), "reduce_scatter");
        b.require(io.read() == ints{1, 2, 3, 4}, "reduce_scatter changed its input");

        half.write({r, r + 10});
        b.did(b.nccl.all_gather(half.data(), io.data(), 2, nccl_type::i64, b.comm, *b.stream));
        b.require(io.read() == ints{0, 10, 1, 11}, "all_gather");
        io.write({r, r + 1, r + 2, r + 3}); // the own slice of the result
        b.did(b.nccl.all_gather(begin + std::ptrdiff_t{16} * b.rank, io.data(), 2, nccl_type::i64,
                                b.comm, *b.stream));
        b.require(io.read() == ints{0, 1, 3, 4}, "all_gather in place");

        io.write({r, r, r, r});
        b.did(b.nccl.broadcast(io.data(), io.data(), 4, nccl_type::i64, 1, b.comm, *b.stream));
        b.require(io.read() == ints{1, 1, 1, 1}, "broadcast");
        io.write({1, 2, 3, 4});
        b.did(b.nccl.reduce(io.data(), io.data(), 4, nccl_type::i64, nccl_op::sum, 1, b.comm,
                            *b.stream));
        if (r == 1) b.require(io.read() == ints{2, 4, 6, 8}, "reduce");
        b.stream->synchronize(); // the other one has not waited yet
    });
}

TEST_CASE("calls of one group are one piece of work") {
    const auto s = SKEIN_DEVICE_SUBJECT();
    s.needs(3);
    with_ranks(s, 3, [](rank_bench& b) {
        // Uneven parts: 1, 0 and 3 elements; and everybody sends to the next one.
        const std::int64_t r = b.rank;
        test::device_vector<std::int64_t> io(b.cuda, *b.stream, {r, 1, 2 * r, 3});
        auto* const begin = static_cast<std::byte*>(io.data());
        nccl_check(b.nccl, b.nccl.group_start(), "a group");
        nccl_check(
            b.nccl,
            b.nccl.reduce(begin, begin, 1, nccl_type::i64, nccl_op::sum, 0, b.comm, *b.stream),
            "a call");
        nccl_check(b.nccl,
                   b.nccl.reduce(begin + 8, begin + 8, 3, nccl_type::i64, nccl_op::sum, 2, b.comm,
                                 *b.stream),
                   "a call");
        b.did(b.nccl.group_end());
        const auto parts = io.read();
        if (r == 0) b.require(parts[0] == 3, "the part of rank 0");
        if (r == 2) b.require(parts[1] == 3 && parts[2] == 6 && parts[3] == 9, "that of rank 2");

        test::device_vector<std::int64_t> out(b.cuda, *b.stream, {100 + r});
        test::device_vector<std::int64_t> in(b.cuda, *b.stream, {0});
        nccl_check(b.nccl, b.nccl.group_start(), "a group");
        nccl_check(b.nccl,
                   b.nccl.send(out.data(), 1, nccl_type::i64, (b.rank + 1) % 3, b.comm, *b.stream),
                   "a call");
        nccl_check(b.nccl,
                   b.nccl.recv(in.data(), 1, nccl_type::i64, (b.rank + 2) % 3, b.comm, *b.stream),
                   "a call");
        b.did(b.nccl.group_end());
        b.require(in.read().front() == 100 + (r + 2) % 3, "the message of the one before");
    });
}

TEST_CASE("sums of two ranks are the same bits on both") {
    const auto s = SKEIN_DEVICE_SUBJECT();
    s.needs(2);
    std::vector<std::vector<float>> got(2);
    with_ranks(s, 2, [&](rank_bench& b) {
        std::vector<float> values(1000);
        for (std::size_t i = 0; i < values.size(); ++i)
            values[i] = 0.1f * static_cast<float>(i) + 0.7f * static_cast<float>(b.rank);
        test::device_vector<float> io(b.cuda, *b.stream, values);
        b.did(b.nccl.all_reduce(io.data(), io.data(), values.size(), nccl_type::f32, nccl_op::sum,
                                b.comm, *b.stream));
        got[static_cast<std::size_t>(b.rank)] = io.read();
    });
    CHECK(got[0] == got[1]);
    CHECK(got[0][999] == 0.1f * 999.0f + (0.1f * 999.0f + 0.7f));
}

TEST_CASE("an aborted collective leaves its stream, and the process lives") {
    const auto s = SKEIN_DEVICE_SUBJECT();
    s.needs(2);
    nccl_unique_id id{};
    nccl_check(*s.nccl, s.nccl->unique_id(&id), "an id");
    ranks::event_gate made, seen;
    const auto errors = ranks::each(2, [&](int r) {
        rank_bench b(s, id, 2, r);
        made.arrive();
        made.wait_for_others(2);
        test::device_vector<std::int64_t> io(b.cuda, *b.stream, {1, 2, 3});
        if (r == 1) seen.wait_for_others(1);
        if (r == 0) { // rank 1 never comes
            b.did(b.nccl.all_reduce(io.data(), io.data(), 3, nccl_type::i64, nccl_op::sum, b.comm,
                                    *b.stream));
            b.require(b.cuda.stream_query(*b.stream) == cuda_result::not_ready, "it did not wait");
            seen.arrive();
        }
        nccl_check(b.nccl, b.nccl.group_start(), "a group");
        nccl_check(b.nccl, b.nccl.abort(b.comm), "an abort");
        nccl_check(b.nccl, b.nccl.group_end(), "a group");
        b.stream->synchronize();
    });
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}
