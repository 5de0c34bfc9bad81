// SPDX-License-Identifier: Apache-2.0
// label: cuda
// The communicator over NCCL's table, on a model of devices: values, laws, trouble.
#include "collective_values.hpp"
#include "ranks.hpp"

#include <skein/dist/nccl_communicator.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/sim/device_model.hpp>

#include "support/device_buffers.hpp"
#include "support/error_of.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

using namespace skein;
using namespace skein::dist;
using namespace std::chrono_literals;

namespace nccl_communicator_test {

/// Devices, an id, and whether processes have arithmetic.
struct bench {
    explicit bench(int devices, std::uint64_t seed = 1, bool has_math = true)
        : model({.devices = devices, .seed = seed}), cuda(model.cuda()), nccl(model.nccl()),
          math(has_math) {
        nccl_check(nccl, nccl.unique_id(&id), "an id");
    }
    [[nodiscard]] std::shared_ptr<nccl_domain> process() const {
        return std::make_shared<nccl_domain>(model.cuda(), model.nccl(),
                                             math ? std::shared_ptr(model.math()) : nullptr);
    }
    /// Nothing that a device does not tell went wrong.
    void check_laws() const {
        const auto all = model.complaints();
        CAPTURE(all);
        CHECK(all.empty());
    }

    sim::device_model model;
    cuda_runtime cuda;
    nccl_library nccl;
    nccl_unique_id id{};
    bool math;
};

/// One rank: a process of its own as a thread.
struct rank_on_device {
    rank_on_device(const bench& on, int r, int n, collective_options limits = {})
        : cuda(on.cuda), rank(r), size(n), domain(on.process()) {
        cuda_check(cuda, cuda.set_device(r), "a device current");
        work = std::make_unique<test::device_stream>(cuda);
        nccl_options where;
        where.device = r;
        where.work = *work;
        comm = loop.run(nccl_communicator::connect(domain, on.id, r, n, where, limits));
    }
    template <class T>
    test::device_vector<T> vector(const std::vector<T>& from) {
        return {cuda, *work, from};
    }
    void run(task<void> what) { loop.run(std::move(what)); }

    const cuda_runtime& cuda;
    int rank, size;
    net::real_loop loop;
    std::shared_ptr<nccl_domain> domain;
    std::unique_ptr<test::device_stream> work;
    std::unique_ptr<nccl_communicator> comm;
};

ranks::outcome each_rank(const bench& on, int n, const std::function<void(rank_on_device&)>& body,
                         collective_options limits = {}) {
    return ranks::each(n, [&](int r) {
        rank_on_device self(on, r, n);
        self.comm->set_deadline(limits.deadline);
        try {
            body(self);
        } catch (...) {
            self.run(self.comm->close());
            throw;
        }
        self.run(self.comm->close());
    });
}

void all_well(const ranks::outcome& errors) {
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}

void require(bool good, const std::string& what) {
    if (!good) throw error(errc::internal, what);
}

using collective_values::expected;
using collective_values::number;
using collective_values::value_of;

template <class T>
std::vector<T> values(int rank, std::size_t count, std::size_t from = 0) {
    std::vector<T> v(count);
    for (std::size_t i = 0; i < count; ++i) v[i] = number<T>(value_of(rank, from + i));
    return v;
}

template <class T>
std::vector<T> all_expected(reduce_op op, int n, std::size_t count, std::size_t from = 0) {
    std::vector<T> v(count);
    for (std::size_t i = 0; i < count; ++i) v[i] = expected<T>(op, n, from + i);
    return v;
}

std::vector<std::size_t> uneven(int ranks, int variant) {
    std::vector<std::size_t> counts;
    for (int r = 0; r < ranks; ++r) {
        const auto k = static_cast<std::size_t>(r);
        if (variant == 0) counts.push_back(k * 100 + 1);
        if (variant == 1) counts.push_back(r + 1 == ranks ? 301 : 0);
        if (variant == 2) counts.push_back(k % 3);
        if (variant == 3) counts.push_back(0);
    }
    return counts;
}

std::size_t sum_before(const std::vector<std::size_t>& counts, int rank) {
    return std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
}

template <class T>
void check_reductions(rank_on_device& c) {
    for (const reduce_op op : {reduce_op::sum, reduce_op::mean, reduce_op::max, reduce_op::min}) {
        for (const std::size_t count : {0u, 1u, 7u, 1000u}) {
            auto io = c.vector(values<T>(c.rank, count));
            c.run(c.comm->all_reduce(io.view(), op));
            require(io.read() == all_expected<T>(op, c.size, count), "all_reduce");
        }
        const std::size_t part = 129, all = part * static_cast<std::size_t>(c.size);
        auto in = c.vector(values<T>(c.rank, all));
        auto out = c.vector(std::vector<T>(part));
        c.run(c.comm->reduce_scatter(in.view(), out.view(), op));
        require(out.read() ==
                    all_expected<T>(op, c.size, part, part * static_cast<std::size_t>(c.rank)),
                "reduce_scatter");
        require(in.read() == values<T>(c.rank, all), "reduce_scatter changed its input");
        for (int variant = 0; variant < 4; ++variant) {
            const auto counts = uneven(c.size, variant);
            const std::size_t total = sum_before(counts, c.size),
                              first = sum_before(counts, c.rank);
            const std::size_t own = counts[static_cast<std::size_t>(c.rank)];
            auto io = c.vector(values<T>(c.rank, total));
            c.run(c.comm->reduce_scatter_v(io.view(), counts, op));
            const auto got = io.read();
            const auto want = all_expected<T>(op, c.size, own, first);
            require(std::equal(want.begin(), want.end(),
                               got.begin() + static_cast<std::ptrdiff_t>(first)),
                    "reduce_scatter_v");
            if constexpr (is_half(dtype_of<T>()) || std::is_same_v<T, float>) {
                io.write(values<T>(c.rank, total));
                auto wide = c.vector(std::vector<float>(own));
                c.run(c.comm->reduce_scatter_v(io.view(), counts, wide.view(), op));
                require(wide.read() == all_expected<float>(op, c.size, own, first),
                        "reduce_scatter_v into f32");
            }
        }
    }
}

template <class T>
void check_copies(rank_on_device& c) {
    const std::size_t part = 77;
    std::vector<T> all;
    for (int r = 0; r < c.size; ++r) {
        const auto one = values<T>(r, part);
        all.insert(all.end(), one.begin(), one.end());
    }
    auto in = c.vector(values<T>(c.rank, part));
    auto out = c.vector(std::vector<T>(all.size()));
    c.run(c.comm->all_gather(in.view(), out.view()));
    require(out.read() == all, "all_gather");
    const auto slice = out.view().slice(part * static_cast<std::size_t>(c.rank), part);
    c.run(c.comm->all_gather(slice, out.view()));
    require(out.read() == all, "all_gather in place");
    for (int variant = 0; variant < 4; ++variant) {
        const auto counts = uneven(c.size, variant);
        std::vector<T> want;
        for (int r = 0; r < c.size; ++r) {
            const auto one = values<T>(r, counts[static_cast<std::size_t>(r)]);
            want.insert(want.end(), one.begin(), one.end());
        }
        auto mine = c.vector(values<T>(c.rank, counts[static_cast<std::size_t>(c.rank)]));
        auto gathered = c.vector(std::vector<T>(want.size()));
        c.run(c.comm->all_gather_v(mine.view(), gathered.view(), counts));
        require(gathered.read() == want, "all_gather_v");
    }
    for (int root = 0; root < c.size; ++root) {
        auto io = c.vector(values<T>(c.rank, part));
        c.run(c.comm->broadcast(io.view(), root));
        require(io.read() == values<T>(root, part), "broadcast");
    }
    auto io = c.vector(values<T>(c.rank, part));
    if (c.rank == 0) c.run(c.comm->send(io.view(), c.size - 1));
    if (c.rank == c.size - 1) {
        c.run(c.comm->recv(io.view(), 0));
        require(io.read() == values<T>(0, part), "recv");
    }
    c.run(c.comm->barrier());
}

collective_options ends_within(time_span limit) {
    collective_options o;
    o.deadline = limit;
    return o;
}

} // namespace nccl_communicator_test

using namespace nccl_communicator_test;

TEST_CASE("two ranks sum over a modelled device") {
    const bench on(2);
    all_well(each_rank(on, 2, [](rank_on_device& c) {
        auto io = c.vector(std::vector<float>{1.0f + static_cast<float>(c.rank), 10.0f});
        c.run(c.comm->all_reduce(io.view(), reduce_op::sum));
        require(io.read() == std::vector<float>{3.0f, 20.0f}, "another sum");
        require(c.comm->name() == "nccl x2", c.comm->name());
    }));
    on.check_laws();
}

TEST_CASE("a barrier is on the rank's device, which need not have the rank's number") {
    const bench on(2);
    all_well(ranks::each(2, [&](int r) {
        net::real_loop loop;
        nccl_options where;
        where.device = 1 - r;
        auto comm = loop.run(nccl_communicator::connect(on.process(), on.id, r, 2, where));
        loop.run(comm->barrier());
        loop.run(comm->close());
    }));
    on.check_laws();
}

TEST_CASE("reductions over NCCL keep the laws of all communicators") {
    const int n = GENERATE(1, 2, 3);
    const bench on(n, static_cast<std::uint64_t>(n));
    all_well(each_rank(on, n, [](rank_on_device& c) {
        check_reductions<float>(c);
        check_reductions<double>(c);
        check_reductions<std::int64_t>(c);
        check_reductions<bf16_t>(c);
        check_reductions<f16_t>(c);
    }));
    on.check_laws();
}

TEST_CASE("gathers, broadcasts and messages over NCCL bring what others have") {
    const int n = GENERATE(2, 3);
    const bench on(n, static_cast<std::uint64_t>(n) + 10);
    all_well(each_rank(on, n, [](rank_on_device& c) {
        check_copies<float>(c);
        check_copies<std::uint8_t>(c);
        check_copies<f16_t>(c);
    }));
    on.check_laws();
}

TEST_CASE("halves are summed in float32 and rounded once, as in all models") {
    const bench on(3);
    all_well(each_rank(on, 3, [](rank_on_device& c) {
        // In bf16, step by step: 256 + 1 = 256, + 1 = 256; in float32: 258.
        auto io = c.vector(std::vector<bf16_t>{to_bf16(c.rank == 0 ? 256.0f : 1.0f)});
        c.run(c.comm->all_reduce(io.view(), reduce_op::sum));
        require(to_float(io.read().front()) == 258.0f, "it was rounded at each step");
    }));
    on.check_laws();
}

TEST_CASE("a collective comes after what is on the work stream, and before what comes then") {
    const bench on(2, GENERATE(range(1u, 6u)));
    all_well(each_rank(on, 2, [&](rank_on_device& c) {
        auto io = c.vector(std::vector<float>(100, 0.0f));
        auto* const at = static_cast<float*>(io.data());
        for (int round = 0; round < 5; ++round) {
            on.model.launch(*c.work, "a forward", {{at, io.bytes(), true}},
                            [=] { std::fill(at, at + 100, 1.0f); });
            c.run(c.comm->all_reduce(io.view(), reduce_op::sum));
            on.model.launch(*c.work, "an update", {{at, io.bytes(), true}}, [=] {
                for (int i = 0; i < 100; ++i) at[i] *= 3;
            });
            require(io.read() == std::vector<float>(100, 6.0f), "another order");
        }
    }));
    on.check_laws();
}

TEST_CASE("buffers of the host, and of another device, are refused by name") {
    const bench on(2);
    all_well(each_rank(on, 2, [](rank_on_device& c) {
        std::vector<float> host(4);
        const error why = test::error_of(
            [&] { c.run(c.comm->all_reduce(view_of(std::span(host)), reduce_op::sum)); });
        require(why.code() == errc::not_supported, why.what());
        require(std::string(why.what()).find("the buffer is on cpu") != std::string::npos,
                why.what());
        auto other = view_of(std::span(host));
        other.where = device::cuda(7);
        require(test::error_of([&] { c.run(c.comm->broadcast(other, 0)); }).code() ==
                    errc::not_supported,
                "a buffer of cuda:7 was taken");
        const error memory =
            test::error_of([&] { (void)c.loop.run(c.comm->allocate(64, memory_kind::own)); });
        require(memory.code() == errc::not_supported, memory.what());
        c.run(c.comm->barrier()); // nothing was sent
    }));
    on.check_laws();
}

TEST_CASE("without arithmetic averages and halves are refused, sums and copies are not") {
    const bench on(2, 1, false);
    all_well(each_rank(on, 2, [](rank_on_device& c) {
        auto io = c.vector(std::vector<float>{1.0f});
        auto half = c.vector(std::vector<bf16_t>{to_bf16(1.0f)});
        const error why =
            test::error_of([&] { c.run(c.comm->all_reduce(io.view(), reduce_op::mean)); });
        require(std::string(why.what()).find("not supported: an average over NCCL") !=
                    std::string::npos,
                why.what());
        require(test::error_of([&] {
                    c.run(c.comm->all_reduce(half.view(), reduce_op::sum));
                }).code() == errc::not_supported,
                "a sum of halves was made");
        c.run(c.comm->all_reduce(half.view(), reduce_op::max));
        c.run(c.comm->all_reduce(io.view(), reduce_op::sum));
        require(io.read().front() == 2.0f, "another sum");
    }));
    on.check_laws();
}

TEST_CASE(
    "a rank that does not come is an error at the deadline, and nothing is freed under work") {
    const bench on(3, GENERATE(range(1u, 5u)));
    const auto errors = each_rank(
        on, 3,
        [](rank_on_device& c) {
            auto io = c.vector(std::vector<float>{1.0f, 2.0f});
            c.comm->set_tag({.unit = 3, .phase = tag_phase::reduce, .step = 12});
            if (c.rank != 1) c.run(c.comm->all_reduce(io.view(), reduce_op::sum));
        },
        ends_within(1s));
    int late = 0;
    for (const int r : {0, 2}) {
        const auto& why = errors[static_cast<std::size_t>(r)];
        REQUIRE(why);
        INFO(why->what());
        // One is first; the other hears of it from NCCL, or is late itself.
        CHECK((why->code() == errc::timeout || why->code() == errc::peer_lost));
        CHECK(std::string(why->what())
                  .find("all_reduce #1 (f32 x 2, sum), reduce of unit 3 at "
                        "step 12") != std::string::npos);
        CHECK(std::string(why->what()).find("rank " + std::to_string(r) + " on cuda:") !=
              std::string::npos);
        late += why->code() == errc::timeout ? 1 : 0;
    }
    CHECK(late > 0);
    on.check_laws();
}

TEST_CASE("an asynchronous error ends every communicator of its process, and the process lives") {
    const bench on(2, GENERATE(range(1u, 5u)));
    nccl_unique_id second{};
    nccl_check(on.nccl, on.nccl.unique_id(&second), "an id");
    ranks::event_gate working;
    const auto errors = each_rank(
        on, 2,
        [&](rank_on_device& c) {
            nccl_options where;
            where.device = c.rank;
            where.work = *c.work;
            auto control =
                c.loop.run(nccl_communicator::connect(c.domain, second, c.rank, 2, where));
            auto io = c.vector(std::vector<float>{1.0f, 2.0f});
            c.run(control->all_reduce(io.view(), reduce_op::sum));
            working.arrive(); // nobody is told of an error before its sum is over
            working.wait_for_others(2);
            if (c.rank == 0) on.model.fail(0, nccl_result::system_error);
            const error first =
                test::error_of([&] { c.run(c.comm->all_reduce(io.view(), reduce_op::sum)); });
            const error then =
                test::error_of([&] { c.run(control->all_reduce(io.view(), reduce_op::sum)); });
            c.run(control->close());
            require(first.code() == errc::io || first.code() == errc::peer_lost ||
                        first.code() == errc::timeout,
                    first.what());
            require(then.text() == first.text(), then.what());
        },
        ends_within(2s));
    all_well(errors);
    on.check_laws();
}

TEST_CASE("who aborts from another thread ends what runs and all that comes later") {
    const bench on(2, 5);
    ranks::event_gate working;
    const auto errors = each_rank(
        on, 2,
        [&](rank_on_device& c) {
            auto io = c.vector(std::vector<float>{1.0f});
            working.arrive();
            working.wait_for_others(2);
            if (c.rank == 1) return; // never comes
            on.model.pause(0);
            std::thread other([&] {
                c.comm->abort(error(errc::peer_lost, "rank 1 is lost"));
                on.model.resume(0);
            });
            const error why =
                test::error_of([&] { c.run(c.comm->all_reduce(io.view(), reduce_op::sum)); });
            other.join();
            require(why.code() == errc::peer_lost, why.what());
            require(why.text() == "rank 1 is lost", why.what());
            require(test::error_of([&] { c.run(c.comm->barrier()); }).code() == errc::peer_lost,
                    "a barrier after the end");
        },
        ends_within(20s));
    all_well(errors);
    on.check_laws();
}

TEST_CASE("a process makes communicators again when those that failed are closed") {
    const bench on(1);
    nccl_unique_id second{};
    nccl_check(on.nccl, on.nccl.unique_id(&second), "an id");
    rank_on_device self(on, 0, 1);
    self.comm->abort(error(errc::aborted, "enough"));
    const auto again = [&] {
        return self.loop.run(nccl_communicator::connect(self.domain, second, 0, 1, {}));
    };
    CHECK(test::error_of(again).text() == "enough");
    self.run(self.comm->close());
    auto next = again();
    self.run(next->barrier());
    self.run(next->close());
    on.check_laws();
}

TEST_CASE("ranks that do not all come to a communicator learn it at the deadline") {
    const bench on(2);
    const error why = test::error_of([&] { rank_on_device alone(on, 0, 2, ends_within(200ms)); });
    INFO(why.what());
    CHECK(why.code() == errc::timeout);
    CHECK(std::string(why.what()).find("a communicator of 2 ranks did not end within 0.2 s") !=
          std::string::npos);
}

TEST_CASE("an orderly end does not wait for ranks that never come to theirs") {
    const bench on(2);
    ranks::event_gate closed;
    all_well(each_rank(
        on, 2,
        [&](rank_on_device& c) {
            auto io = c.vector(std::vector<float>{1.0f});
            c.run(c.comm->all_reduce(io.view(), reduce_op::sum));
            if (c.rank == 0) {
                on.model.hang(0);
                c.run(c.comm->close());
                closed.arrive();
            } else {
                closed.wait_for_others(1);
            }
        },
        ends_within(1s)));
    on.check_laws();
}
