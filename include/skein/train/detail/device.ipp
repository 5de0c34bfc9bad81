// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/train/device.hpp>.

#include <skein/core/error.hpp>
#include <skein/dist/cuda_runtime.hpp>
#include <skein/dist/library.hpp>

#include <algorithm>
#include <utility>

#include <fmt/core.h>

namespace skein::train {

namespace detail {

SKEIN_INLINE device_survey::lack lack_of(const error& why) {
    const auto text = why.cause().empty() ? why.text() : why.text() + " (" + why.cause() + ")";
    return {text, why.hint()};
}

SKEIN_INLINE int count_devices(const std::vector<std::string>& names, device_survey& to) {
    const auto cuda = dist::load_cuda_runtime(names);
    if (!cuda) {
        to.lacking.push_back(lack_of(cuda.error()));
        return 0;
    }
    const auto count = dist::cuda_devices(*cuda);
    if (!count) to.lacking.push_back(lack_of(count.error()));
    return count ? *count : 0;
}

/// Why there is no device for each rank; empty: there is one.
SKEIN_INLINE device_survey::lack lack_for(const device_survey& there, int local_ranks,
                                          bool may_share) {
    device_survey::lack all;
    const auto add = [](std::string& to, const char* between, const std::string& more) {
        to += (to.empty() || more.empty() ? "" : between) + more;
    };
    for (const auto& each : there.lacking) {
        add(all.what, "; ", each.what);
        add(all.hint, "; ", each.hint);
    }
    if (all.what.empty() && there.devices < (may_share ? 1 : local_ranks)) {
        all.what = fmt::format("{} ranks on a host that shows this process {} device{}",
                               local_ranks, there.devices, there.devices == 1 ? "" : "s");
        all.hint = "start at most one rank for each device, or let them share one by communicator "
                   "\"host\"";
    }
    return all;
}

} // namespace detail

SKEIN_INLINE device_names usual_device_names() {
    return {dist::cuda_runtime_names(), "libtorch_cuda.so"};
}

SKEIN_INLINE device_survey survey_devices(const device_names& names) {
    device_survey out;
    out.devices = detail::count_devices(names.runtime, out);
    if (!dist::shared_library::is_loaded(names.libtorch))
        out.lacking.push_back({fmt::format("this LibTorch has no CUDA (this program was linked "
                                           "without {})",
                                           names.libtorch),
                               "link LibTorch's CUDA half (scripts/setup --cuda, or "
                               "LIBTORCH=<folder of one>)"});
    return out;
}

SKEIN_INLINE void require_device_kind(std::string_view asked) {
    if (asked == "cpu" || asked == "cuda" || asked == "automatic") return;
    throw error(errc::usage, fmt::format("device {}", asked))
        .with_hint("there are cpu, cuda, and automatic, which takes cuda where it can be used");
}

SKEIN_INLINE device_choice choose_device(std::string_view asked, const device_survey& there,
                                         int local_ranks, bool may_share) {
    require_device_kind(asked);
    if (asked == "cpu") return {dist::device::cpu(), "it was asked for"};
    const auto lacking = detail::lack_for(there, local_ranks, may_share);
    if (lacking.what.empty())
        return {dist::device::cuda(0), asked == "cuda"               ? "it was asked for"
                                       : there.devices < local_ranks ? "ranks share what is here"
                                       : there.devices == 1          ? "there is one here"
                                                                     : "there are enough here"};
    if (asked == "automatic") return {dist::device::cpu(), lacking.what};
    throw error(errc::usage, "device cuda: " + lacking.what)
        .with_hint(lacking.hint + "; or train with device cpu");
}

SKEIN_INLINE int device_of_rank(int local_rank, int each, int devices) noexcept {
    const int first = local_rank * std::max(1, each);
    return devices > 0 ? first % devices : first;
}

} // namespace skein::train
