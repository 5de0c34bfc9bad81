// SPDX-License-Identifier: Apache-2.0
// The messages of a cluster from any bytes: the first says which. Decoded within bounds or refused.
#include <skein/cluster/messages.hpp>
#include <skein/sched/resources.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const skein::byte_span body(reinterpret_cast<const std::byte*>(data + 1), size - 1);
    const auto read = skein::cluster::cluster_messages::check(data[0], body);
    if (!read && read.error().text().empty()) std::abort();
    // The demand in many of them.
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    if (const auto demand = skein::sched::parse_resources(text)) {
        const auto again = skein::sched::parse_resources(skein::sched::to_string(*demand));
        if (!again || !(*again == *demand)) std::abort();
    }
    return 0;
}
