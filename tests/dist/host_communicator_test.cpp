// SPDX-License-Identifier: Apache-2.0
// label: cuda
// Buffers of modelled devices over shared memory: values, laws, trouble.
#include "collective_values.hpp"
#include "ranks.hpp"

#include <skein/dist/host_communicator.hpp>
#include <skein/dist/models.hpp>
#include <skein/sim/device_model.hpp>

#include "support/device_buffers.hpp"
#include "support/device_libraries.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

using namespace skein;
using namespace skein::dist;
using namespace std::chrono_literals;

namespace host_communicator_test {

using collective_values::expected;
using collective_values::number;
using collective_values::value_of;

/// Devices of one test, whose ranks share them.
struct bench {
    explicit bench(int devices = 1, std::uint64_t seed = 1, std::size_t bytes = 8 << 20)
        : model({.devices = devices, .bytes_each = bytes, .seed = seed}), cuda(model.cuda()) {}
    [[nodiscard]] int device_of(int rank) const { return rank % device_count(); }
    [[nodiscard]] int device_count() const {
        int n = 0;
        (void)cuda.device_count(&n);
        return n;
    }
    void check_laws() const {
        const auto all = model.complaints();
        CAPTURE(all);
        CHECK(all.empty());
    }

    sim::device_model model;
    cuda_runtime cuda;
    bool is_modelled = true;
    std::function<cuda_runtime()> open = [this] { return model.cuda(); };
};
bench* bench_now = nullptr; // models are added once for the program
thread_local cuda_stream work_of_rank = nullptr;

/// "host" over the modelled devices, with a work stream for each rank.
void add_model() {
    static const bool added = [] {
        const auto fits = [](const comm_site& site) {
            return site.options.model == "automatic" ? comm_fit{0, "it is for a test"} : comm_fit{};
        };
        add_comm_model(
            {"modelled-host", fits, [](const comm_site& site) {
                 auto options = site.options;
                 options.model = "automatic";
                 const comm_site of{site.world, options,          site.worker,
                                    site.where, site.one_network, site.key};
                 const auto& cuda = bench_now->cuda;
                 cuda_check(cuda, cuda.set_device(bench_now->device_of(site.world.rank())),
                            "a device");
                 cuda_check(cuda, cuda.stream_create(&work_of_rank, cuda_stream_non_blocking),
                            "a stream");
                 return std::make_unique<host_communicator>(choose_comm_model(of).make(of),
                                                            bench_now->open, site.options.limits,
                                                            work_of_rank);
             }});
        return true;
    }();
    (void)added;
}

/// What one rank does; its work stream is work_of_rank.
ranks::outcome each_rank(bench& on, int n, const std::function<void(ranks::rank_view&)>& body,
                         time_span deadline = 60s) {
    add_model();
    bench_now = &on;
    comm_options options;
    options.limits.deadline = deadline;
    return ranks::group(
        std::vector<std::string>(static_cast<std::size_t>(n), "host-0"), "modelled-host",
        [&](ranks::rank_view& c) {
            (void)on.cuda.set_device(on.device_of(c.rank));
            body(c);
            (void)on.cuda.stream_synchronize(work_of_rank);
            (void)on.cuda.stream_destroy(work_of_rank);
        },
        options);
}

void all_well(const ranks::outcome& errors) {
    INFO(ranks::first_error(errors));
    CHECK(ranks::first_error(errors).empty());
}

void require(bool good, const std::string& what) {
    if (!good) throw error(errc::internal, what);
}

template <class T>
std::vector<T> values(int rank, std::size_t count, std::size_t from = 0) {
    std::vector<T> v(count);
    for (std::size_t i = 0; i < count; ++i) v[i] = number<T>(value_of(rank, from + i));
    return v;
}

/// Elements of one rank on its device.
template <class T>
struct on_device {
    on_device(const bench& of, const std::vector<T>& from)
        : cuda(of.cuda), vector(of.cuda, work_of_rank, from) {
        // A kernel that reads it is under way when the collective begins.
        if (of.is_modelled)
            of.model.launch(work_of_rank, "a forward", {{vector.data(), vector.bytes(), false}},
                            [] {});
    }
    on_device(const on_device&) = delete;
    on_device& operator=(const on_device&) = delete;
    ~on_device() { (void)cuda.stream_synchronize(work_of_rank); } // else it goes under that kernel
    [[nodiscard]] buffer_view view() const { return vector.view(); }
    void expect(const std::function<T(std::size_t)>& want, const std::string& what,
                std::size_t first = 0, std::size_t count = ~std::size_t{0}) {
        const auto got = vector.read();
        for (std::size_t i = first; i < got.size() && i - first < count; ++i)
            require(got[i] == want(i), what + " gives another value");
    }
    const cuda_runtime& cuda;
    test::device_vector<T> vector;
};

template <class T>
void check_all(const bench& of, ranks::rank_view& c, std::size_t part) {
    const auto n = static_cast<std::size_t>(c.size), me = static_cast<std::size_t>(c.rank);
    for (const auto op : {reduce_op::sum, reduce_op::mean, reduce_op::max}) {
        const auto sum = [&](std::size_t i) { return expected<T>(op, c.size, i); };
        on_device<T> io(of, values<T>(c.rank, part));
        c.all_reduce(io.view(), op);
        io.expect(sum, "all_reduce");
        on_device<T> in(of, values<T>(c.rank, part * n)), out(of, std::vector<T>(part));
        c.reduce_scatter(in.view(), out.view(), op);
        out.expect([&](std::size_t i) { return sum(me * part + i); }, "reduce_scatter");
        in.expect([&](std::size_t i) { return number<T>(value_of(c.rank, i)); }, "its input");
    }
    std::vector<std::size_t> counts;
    std::size_t total = 0, first = 0;
    for (std::size_t r = 0; r < n; ++r) {
        if (r == me) first = total;
        counts.push_back(r * part);
        total += r * part;
    }
    on_device<T> uneven(of, values<T>(c.rank, total));
    c.reduce_scatter_v(uneven.view(), counts, reduce_op::sum);
    uneven.expect([&](std::size_t i) { return expected<T>(reduce_op::sum, c.size, i); },
                  "reduce_scatter_v", first, counts[me]);
    // In place, and from elsewhere.
    const auto of_owner = [&](std::size_t i) {
        std::size_t r = 0, begin = 0;
        while (i >= begin + counts[r]) begin += counts[r++];
        return number<T>(value_of(static_cast<int>(r), i));
    };
    on_device<T> whole(of, values<T>(c.rank, total));
    c.all_gather_v(whole.view().slice(first, counts[me]), whole.view(), counts);
    whole.expect(of_owner, "all_gather_v in place");
    on_device<T> mine(of, values<T>(c.rank, counts[me], first)), all(of, std::vector<T>(total));
    c.all_gather_v(mine.view(), all.view(), counts);
    all.expect(of_owner, "all_gather_v");
    on_device<T> same(of, values<T>(c.rank, part)), every(of, std::vector<T>(part * n));
    c.all_gather(same.view(), every.view());
    every.expect(
        [&](std::size_t i) { return number<T>(value_of(static_cast<int>(i / part), i % part)); },
        "all_gather");
    on_device<T> word(of, values<T>(c.rank, part));
    c.broadcast(word.view(), 1);
    word.expect([&](std::size_t i) { return number<T>(value_of(1, i)); }, "broadcast");
    if (c.rank == 0) c.send(word.view(), 1);
    if (c.rank == 1) {
        on_device<T> got(of, std::vector<T>(part));
        c.recv(got.view(), 0);
        got.expect([&](std::size_t i) { return number<T>(value_of(1, i)); }, "recv");
    }
    c.barrier();
}

TEST_CASE("buffers of a device that ranks share have the values of every collective") {
    const auto seed = GENERATE(range(1u, 5u));
    const int devices = seed % 2 == 1 ? 1 : 3;
    bench of(devices, seed);
    all_well(each_rank(of, 3, [&](ranks::rank_view& c) {
        for (const std::size_t part : {1u, 65u, 3001u}) {
            check_all<float>(of, c, part);
            check_all<std::int64_t>(of, c, part);
            check_all<bf16_t>(of, c, part);
        }
    }));
    while (of.model.run_one()) {}
    of.check_laws();
    CHECK(of.model.pending() == 0);
}

TEST_CASE("halves of a device are summed in float32, into float32 where that is asked for") {
    bench of;
    all_well(each_rank(of, 2, [&](ranks::rank_view& c) {
        const std::vector<std::size_t> counts{40, 30};
        on_device<bf16_t> io(of, values<bf16_t>(c.rank, 70));
        const auto mine = counts[static_cast<std::size_t>(c.rank)];
        on_device<float> out(of, std::vector<float>(mine));
        c.reduce_scatter_v(io.view(), counts, out.view(), reduce_op::sum);
        const std::size_t first = c.rank == 0 ? 0 : 40;
        out.expect(
            [&](std::size_t i) { return expected<float>(reduce_op::sum, c.size, first + i); },
            "reduce_scatter_v into f32");
    }));
    of.check_laws();
}

TEST_CASE("buffers of the host go to the communicator below, and no door is opened for them") {
    bench of;
    of.open = []() -> cuda_runtime { throw error(errc::not_found, "no CUDA runtime"); };
    all_well(each_rank(of, 2, [&](ranks::rank_view& c) {
        require(c.comm.name() == "host over shm x2", c.comm.name());
        require(reaches(c.comm, device::cpu()) && reaches(c.comm, device::cuda(0)), "reaches");
        auto here = values<float>(c.rank, 100);
        c.all_reduce(view_of(std::span(here)), reduce_op::sum);
        for (std::size_t i = 0; i < here.size(); ++i)
            require(here[i] == expected<float>(reduce_op::sum, 2, i), "a sum on the host");
    }));
}

TEST_CASE("a rank without CUDA's runtime says so, and the others do not wait for it") {
    bench of;
    of.open = []() -> cuda_runtime {
        throw error(errc::not_found, "no CUDA runtime: looked for x");
    };
    const auto errors = each_rank(of, 2, [&](ranks::rank_view& c) {
        if (c.rank == 0) {
            on_device<float> io(of, {1.0f, 2.0f});
            c.all_reduce(io.view(), reduce_op::sum);
        } else {
            std::vector<float> here{1.0f, 2.0f};
            c.all_reduce(view_of(std::span(here)), reduce_op::sum);
        }
    });
    for (const auto& e : errors) REQUIRE(e);
    CHECK(errors[0]->code() == errc::not_found);
    INFO(errors[1]->what());
    CHECK(std::string(errors[1]->what()).find("no CUDA runtime: looked for x") !=
          std::string::npos);
}

TEST_CASE("buffers of two devices in one collective are refused by name") {
    bench of(2);
    const auto errors = each_rank(of, 2, [&](ranks::rank_view& c) {
        on_device<float> in(of, {1.0f, 2.0f}), out(of, {0.0f});
        auto other = out.view();
        other.where = device::cuda(static_cast<std::uint8_t>(1 - c.rank));
        c.reduce_scatter(in.view(), other, reduce_op::sum);
    });
    REQUIRE(errors[0]);
    INFO(errors[0]->what());
    CHECK(std::string(errors[0]->what()).find("a collective of buffers on cuda:") !=
          std::string::npos);
    of.check_laws();
}

TEST_CASE(
    "a device that stands still ends by the deadline, on all ranks, with its copies in place") {
    bench of(2);
    const auto errors = each_rank(
        of, 2,
        [&](ranks::rank_view& c) {
            on_device<float> io(of, values<float>(c.rank, 1000));
            c.all_reduce(io.view(), reduce_op::sum);
            if (c.rank == 1) of.model.pause(1);
            try {
                c.all_reduce(io.view(), reduce_op::sum);
            } catch (...) {
                if (c.rank == 1) of.model.resume(1);
                // Not before its copies are done may the buffer go; the model tells.
                (void)of.cuda.stream_synchronize(work_of_rank);
                (void)of.cuda.device_synchronize();
                throw;
            }
        },
        500ms);
    for (const auto& e : errors) REQUIRE(e);
    INFO(errors[1]->what());
    CHECK(errors[1]->code() == errc::timeout);
    CHECK(std::string(errors[1]->what()).find("copies of cuda:1 did not end") != std::string::npos);
    of.check_laws();
}

TEST_CASE("without pinned memory the group ends with the bytes that were asked for") {
    bench of;
    of.open = [&] {
        auto cuda = of.model.cuda();
        cuda.allocate_host = [all = cuda.allocate_host](void** to, std::size_t bytes,
                                                        unsigned how) {
            return bytes > 1000 ? cuda_result::out_of_memory : all(to, bytes, how);
        };
        return cuda;
    };
    const auto errors = each_rank(of, 2, [&](ranks::rank_view& c) {
        on_device<float> io(of, values<float>(c.rank, c.rank == 0 ? 1000 : 16));
        c.all_reduce(io.view(), reduce_op::sum);
    });
    for (const auto& e : errors) REQUIRE(e);
    INFO(errors[0]->what());
    CHECK(errors[0]->code() == errc::exhausted);
    CHECK(std::string(errors[0]->what()).find("bytes of pinned memory") != std::string::npos);
    of.check_laws();
}

TEST_CASE("a copy that fails ends the group with its reason, and nobody waits for the deadline") {
    bench of;
    of.open = [&] {
        auto cuda = of.model.cuda();
        cuda.copy_async = [all = cuda.copy_async](void* to, const void* from, std::size_t bytes,
                                                  cuda_copy how, cuda_stream on) {
            return bytes == 4004 ? cuda_result::launch_failure : all(to, from, bytes, how, on);
        };
        return cuda;
    };
    const auto errors = each_rank(of, 2, [&](ranks::rank_view& c) {
        on_device<float> io(of, values<float>(c.rank, c.rank == 0 ? 1001 : 1000));
        c.all_reduce(io.view(), reduce_op::sum);
    });
    for (const auto& e : errors) {
        REQUIRE(e);
        INFO(e->what());
        CHECK(e->code() != errc::timeout);
        CHECK(std::string(e->what()).find("cannot make a copy of 4004 bytes") != std::string::npos);
    }
    CHECK(errors[0]->code() == errc::io);
    of.check_laws();
}

TEST_CASE("host is a communicator that is asked for by its name") {
    CHECK(checked_comm_model("host").value() == "host");
    const auto two = ranks::group({"a", "a"}, "host", [](ranks::rank_view& c) {
        require(c.comm.name() == "host over shm x2", c.comm.name());
        float one = 1;
        c.all_reduce(view_of(std::span(&one, 1)), reduce_op::sum);
        require(one == 2, "a sum");
    });
    CHECK(ranks::first_error(two).empty());
    const auto automatic = ranks::group({"a", "a"}, "automatic", [](ranks::rank_view& c) {
        require(c.comm.name() == "shm x2", c.comm.name());
    });
    CHECK(ranks::first_error(automatic).empty());
}

TEST_CASE("buffers of a real device that two ranks share are summed as those of the host") {
    const auto real = test::real_devices::look();
    if (!real.cuda || real.count == 0) SKIP("no device here: " << real.why_not);
    bench of;
    of.is_modelled = false;
    of.cuda = *real.cuda;
    of.open = [&] { return *real.cuda; };
    all_well(each_rank(of, 2, [&](ranks::rank_view& c) {
        for (const std::size_t part : {1u, 65u, 3001u, 1000003u}) {
            check_all<float>(of, c, part);
            check_all<bf16_t>(of, c, part);
        }
    }));
}

} // namespace host_communicator_test
