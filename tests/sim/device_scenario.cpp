// SPDX-License-Identifier: Apache-2.0
// device: collectives over NCCL's table on modelled devices, whose streams run in an order of the
// seed; with devices that fail, hang, stand still, and ranks that leave. No memory is used before
// its event or after its release, nothing waits for ever, elements are right or there is an error.
#include "sim/scenario.hpp"
#include "support/device_world.hpp"

namespace {

using namespace skein;

task<void> device(sim::world& w) {
    auto plan = test::device_plan::drawn(w.loop.random());
    std::vector<std::string> broken;
    auto running = test::run_devices(std::move(plan), {}, &broken);
    auto limited = with_timeout(std::move(running), std::chrono::seconds(200));
    co_await std::move(limited);
    for (const auto& law : broken) w.check(false, law);
}

const sim::scenario registered("device", &device);

} // namespace
