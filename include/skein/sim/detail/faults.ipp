// SPDX-License-Identifier: Apache-2.0
#pragma once
// The mix of one seed.

namespace skein::sim {

SKEIN_INLINE faults faults::draw(random_source& random, bool harsh) {
    faults f;
    const bool calm = random.below(5) == 0;
    // Always the same number of draws: a mix differs from another in values, not in the sequence.
    const auto rate = [&](double most) {
        const bool on = random.below(2) == 0;
        const double value = random.unit() * most;
        return on && !calm ? value : 0.0;
    };
    f.slow_chunk = rate(0.05);
    f.partial_read = rate(0.5);
    f.partial_write = rate(0.5);
    f.refuse = rate(0.3);
    f.reset = rate(0.01);
    f.disk_io = rate(0.02);
    const double link = rate(1.0);
    const std::uint64_t small_window = random.below(4);
    f.flip = rate(0.005);
    if (!harsh) f.reset = f.flip = 0;
    if (harsh && link > 0)
        f.link_fault_every = std::chrono::milliseconds(500 + static_cast<int>(link * 5000));
    if (!calm && small_window == 0) f.window = 1024 + static_cast<std::size_t>(random.below(8192));
    return f;
}

} // namespace skein::sim
