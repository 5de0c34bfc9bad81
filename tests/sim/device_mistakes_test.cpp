// SPDX-License-Identifier: Apache-2.0
// label: cuda
// Mistakes that are planted between the communicator and its libraries: the scenario `device` finds
// each of them within 500 seeds, and nothing where there is none.
#include "support/device_world.hpp"

#include <skein/sim/loop.hpp>

#include <catch2/catch_test_macros.hpp>

#include <memory>
#include <set>
#include <string>
#include <vector>

using namespace skein;
using namespace skein::dist;

namespace device_mistakes_test {

std::vector<std::string> laws_broken_in(std::uint64_t seed, const test::device_mistake& mistake) {
    sim::loop loop(seed);
    auto plan = test::device_plan::drawn(loop.random());
    std::vector<std::string> broken;
    try {
        loop.run(test::run_devices(std::move(plan), mistake, &broken));
    } catch (const std::exception& e) {
        broken.emplace_back(e.what());
    }
    return broken;
}

void finds(const std::string& what, const test::device_mistake& mistake) {
    for (std::uint64_t seed = 1; seed <= 500; ++seed) {
        const auto broken = laws_broken_in(seed, mistake);
        if (broken.empty()) continue;
        SUCCEED(what << ": seed " << seed << ": " << broken.front());
        return;
    }
    FAIL_CHECK("500 seeds did not find this mistake: " << what);
}

/// Conversions on the default stream instead of the communicator's.
class math_elsewhere final : public device_math {
public:
    explicit math_elsewhere(std::shared_ptr<device_math> real) : real_(std::move(real)) {}
    void divide(cuda_stream on, buffer_view data, int by) override { real_->divide(on, data, by); }
    void convert(cuda_stream, buffer_view to, buffer_view from) override {
        real_->convert(nullptr, to, from);
    }

private:
    std::shared_ptr<device_math> real_;
};

} // namespace device_mistakes_test

using device_mistakes_test::finds;

TEST_CASE("without a mistake no seed finds one") {
    for (std::uint64_t seed = 1; seed <= 500; ++seed) {
        const auto broken = device_mistakes_test::laws_broken_in(seed, {});
        INFO("seed " << seed);
        CHECK(broken == std::vector<std::string>{});
    }
}

TEST_CASE("a stream that does not wait for an event is found") {
    finds("stream_wait_event", [](test::device_process& p, int) {
        p.cuda.stream_wait_event = [](cuda_stream, cuda_event, unsigned) {
            return cuda_result::success;
        };
    });
}

TEST_CASE("an event that is not recorded is found") {
    finds("event_record", [](test::device_process& p, int) {
        p.cuda.event_record = [](cuda_event, cuda_stream) { return cuda_result::success; };
    });
}

TEST_CASE("a call that is taken for done while it is in progress is found") {
    finds("async_error", [](test::device_process& p, int) {
        const auto ready = std::make_shared<std::set<nccl_comm>>();
        p.nccl.async_error = [ready, real = p.nccl.async_error](nccl_comm comm, nccl_result* to) {
            const auto outcome = real(comm, to);
            if (*to == nccl_result::success) ready->insert(comm);
            if (*to == nccl_result::in_progress && ready->contains(comm))
                *to = nccl_result::success;
            return outcome;
        };
    });
}

TEST_CASE("a host that does not wait for the end of a collective is found") {
    finds("event_query", [](test::device_process& p, int) {
        p.cuda.event_query = [](cuda_event) { return cuda_result::success; };
    });
}

TEST_CASE("communicators that are aborted one by one are found") {
    finds("abort", [](test::device_process& p, int) {
        p.nccl.abort = [nccl = p.nccl](nccl_comm comm) {
            (void)nccl.group_end();
            const auto outcome = nccl.abort(comm);
            (void)nccl.group_start();
            return outcome;
        };
    });
}

TEST_CASE("memory that is released before its stream is idle is found") {
    finds("stream_query", [](test::device_process& p, int) {
        p.cuda.stream_query = [](cuda_stream) { return cuda_result::success; };
    });
}

TEST_CASE("a thread whose device is not set is found") {
    finds("set_device", [](test::device_process& p, int) {
        p.cuda.set_device = [](int) { return cuda_result::success; };
    });
}

TEST_CASE("a rank that sums fewer elements is found") {
    finds("all_reduce", [](test::device_process& p, int rank) {
        if (rank != 1) return;
        p.nccl.all_reduce = [real = p.nccl.all_reduce](const void* in, void* out, std::size_t n,
                                                       nccl_type type, nccl_op op, nccl_comm comm,
                                                       cuda_stream on) {
            return real(in, out, n > 3 ? n - 1 : n, type, op, comm, on);
        };
    });
}

TEST_CASE("a rank that knows another root is found") {
    finds("broadcast", [](test::device_process& p, int rank) {
        if (rank != 0) return;
        p.nccl.broadcast = [real = p.nccl.broadcast](const void* in, void* out, std::size_t n,
                                                     nccl_type type, int root, nccl_comm comm,
                                                     cuda_stream on) {
            return real(in, out, n, type, (root + 1) % 2, comm, on);
        };
    });
}

TEST_CASE("arithmetic on another stream is found") {
    finds("convert", [](test::device_process& p, int) {
        p.math = std::make_shared<device_mistakes_test::math_elsewhere>(p.math);
    });
}
