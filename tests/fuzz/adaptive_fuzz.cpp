// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for what adaptive_batch reads back: its state in a checkpoint, and the rows of a
// run's events. Any input gives a value or an error; a state that is taken is the one that is kept.
//
// The first byte chooses which; the rest is the input.

#include <skein/core/error.hpp>
#include <skein/train/adaptive_batch.hpp>
#include <tests/fuzz/require.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
    try {
        if (data[0] % 2 == 0) {
            std::uint64_t before = 0;
            for (const auto& each : skein::train::detail::read_batch_changes(text, "events")) {
                fuzz::require(each.from >= 1 && each.to >= 1 && each.step >= before, "a wrong row");
                before = each.step;
            }
        } else {
            skein::adaptive_batch one({.max = 64}), two({.max = 64});
            one.restore(text);
            two.restore(one.state());
            fuzz::require(one.state() == two.state(), "a state comes back as another one");
            (void)one.gain(4.0);
        }
    } catch (const skein::error&) { // that is an answer
    }
    return 0;
}
