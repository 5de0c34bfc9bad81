// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for metrics that come from elsewhere: a saved list, and the rows of another rank. Any
// input gives a value or an error, without a crash or a leak, and never more rows than bytes.
//
// The first byte chooses which it is; from 128 on a saved list is mended: its layout is the right one.

#include <skein/metrics/classification.hpp>
#include <skein/metrics/curves.hpp>
#include <skein/metrics/metric_list.hpp>
#include <skein/metrics/regression.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>
#include <tests/fuzz/require.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

using namespace skein;
using namespace skein::metrics;

namespace metrics_fuzz {

/// As metric_list writes it.
struct saved_list {
    std::vector<std::pair<std::string, std::string>> layout{};
    std::vector<double> sums{}, maxima{};
    byte_buffer rows{};
};

} // namespace metrics_fuzz

namespace {

using fuzz::require;

metric_list some() {
    metric_list list;
    list.add("accuracy", accuracy{.classes = 3})
        .add("auroc", exact_auroc{.classes = 2})
        .add("ap", exact_average_precision{})
        .add("r2", r2{});
    return list;
}

/// With the right layout: most inputs never get past it.
byte_buffer mended(byte_span bytes) {
    auto read = wire::decode<metrics_fuzz::saved_list>(bytes);
    auto list = some();
    if (!read) return {bytes.begin(), bytes.end()};
    read->layout = list.layout();
    return wire::encode(*read);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const byte_span bytes = std::as_bytes(std::span(data + 1, size - 1));
    auto list = some();
    try {
        if (data[0] % 2 == 0)
            list.add_rows(bytes);
        else if (data[0] >= 128)
            list.restore(mended(bytes));
        else
            list.restore(bytes);
        (void)list.compute();
        const auto saved = list.save();
        require(saved.size() < bytes.size() + 1000, "more came out than went in");
        auto again = some();
        again.restore(saved);
        require(again.save() == saved, "another list was restored than was saved");
    } catch (const error& refused) {
        require(!refused.text().empty(), "an error without a text");
    }
    return 0;
}
