// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finding CUDA's runtime, and saying what is missing.

#include <cstdlib>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace skein::dist {

namespace detail {

SKEIN_INLINE std::string cuda_version_text(int number) {
    return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

SKEIN_INLINE std::string cuda_text(const cuda_runtime& cuda, cuda_result outcome) {
    const char* const text = cuda.error_text ? cuda.error_text(outcome) : nullptr;
    return fmt::format("{} (error {} of CUDA)", text != nullptr ? text : "no text",
                       static_cast<int>(outcome));
}

/// What decides which devices a process sees, for a hint.
SKEIN_INLINE std::string visible_devices() {
    const char* const set = std::getenv("CUDA_VISIBLE_DEVICES");
    if (set == nullptr) return "";
    if (*set == '\0') return "CUDA_VISIBLE_DEVICES is empty, which hides all devices: unset it";
    return fmt::format("CUDA_VISIBLE_DEVICES={}: check that it names devices of this machine", set);
}

SKEIN_INLINE error no_device_error(const cuda_runtime& cuda, cuda_result outcome) {
    int runtime = 0, driver = 0;
    if (cuda.runtime_version) (void)cuda.runtime_version(&runtime);
    if (cuda.driver_version) (void)cuda.driver_version(&driver);
    const bool no_driver = outcome == cuda_result::insufficient_driver && driver == 0;
    error why(errc::not_supported,
              no_driver ? std::string("no CUDA device: this machine has no driver of NVIDIA")
              : outcome == cuda_result::insufficient_driver
                  ? fmt::format("no CUDA device: the driver is for CUDA {}, the runtime is {}",
                                cuda_version_text(driver), cuda_version_text(runtime))
                  : std::string("no CUDA device"));
    why.with_cause(fmt::format("{}: {}", cuda.source, cuda_text(cuda, outcome)));
    const std::string visible = visible_devices();
    why.with_hint(no_driver ? "install the driver (nvidia-smi shows it), or train on the cpu"
                  : !visible.empty() ? visible
                                     : "see what nvidia-smi shows, or train on the cpu");
    return why;
}

} // namespace detail

SKEIN_INLINE std::vector<std::string> cuda_runtime_names() {
    return {"libcudart.so.13", "libcudart.so.12"};
}

SKEIN_INLINE result<cuda_runtime> cuda_runtime_from(const symbol_finder& find, std::string source) {
    cuda_runtime cuda;
    const auto missing = fill_table(cuda, find);
    cuda.source = std::move(source);
    if (!missing.empty()) {
        return error(errc::not_supported,
                     fmt::format("{} is no CUDA runtime that skein can use", cuda.source))
            .with_cause(fmt::format("it lacks {}", fmt::join(missing, ", ")))
            .with_hint("skein calls functions of CUDA 12 and 13");
    }
    int version = 0;
    const cuda_result asked = cuda.runtime_version(&version);
    if (asked != cuda_result::success || version < 12000) {
        return error(errc::not_supported,
                     fmt::format("not supported: CUDA {} of {}, which is older than 12.0",
                                 detail::cuda_version_text(version), cuda.source))
            .with_hint("install CUDA's runtime 12 or 13");
    }
    return cuda;
}

SKEIN_INLINE result<cuda_runtime> load_cuda_runtime(const std::vector<std::string>& names) {
    const auto found = shared_library::find(names);
    if (!found) {
        return error(errc::not_found,
                     fmt::format("no CUDA runtime: looked for {}", fmt::join(names, ", ")))
            .with_cause(found.error().cause())
            .with_hint("install CUDA's runtime, or put the folder of LibTorch's own "
                       "(nvidia/cu13/lib) into LD_LIBRARY_PATH");
    }
    return cuda_runtime_from([&](const char* name) { return found->symbol(name); }, found->path());
}

SKEIN_INLINE result<int> cuda_devices(const cuda_runtime& cuda) {
    int count = 0;
    const cuda_result outcome = cuda.device_count(&count);
    if (outcome == cuda_result::success && count > 0) return count;
    (void)cuda.last_error(); // nobody else is to find it
    return detail::no_device_error(cuda, outcome == cuda_result::success ? cuda_result::no_device
                                                                         : outcome);
}

SKEIN_INLINE void require_device(const cuda_runtime& cuda, int device) {
    const int count = cuda_devices(cuda).value();
    if (device >= 0 && device < count) return;
    error why(errc::invalid_argument,
              fmt::format("no device cuda:{}: this process sees {}", device, count));
    const std::string visible = detail::visible_devices();
    why.with_hint(visible.empty() ? fmt::format("the first is cuda:0, the last cuda:{}", count - 1)
                                  : visible);
    throw why;
}

SKEIN_INLINE void cuda_check(const cuda_runtime& cuda, cuda_result outcome, std::string_view what) {
    if (outcome == cuda_result::success) return;
    (void)cuda.last_error();
    if (outcome == cuda_result::insufficient_driver || outcome == cuda_result::no_device)
        throw detail::no_device_error(cuda, outcome).with_where(std::string(what));
    const bool full = outcome == cuda_result::out_of_memory;
    error why(full ? errc::exhausted : errc::io, fmt::format("cuda: cannot make {}", what));
    why.with_cause(detail::cuda_text(cuda, outcome));
    if (full && cuda.memory_info) {
        std::size_t free = 0, total = 0;
        if (cuda.memory_info(&free, &total) == cuda_result::success) {
            why.with_hint(
                fmt::format("the device has {} MiB free of {} MiB", free >> 20, total >> 20));
        }
    }
    throw why;
}

} // namespace skein::dist
